"""Judging a load test: the fate of its messages, and whether broker or generator was the limit; ``ledger`` counts.

It judges figures, for millions of messages a run, of which none is remembered: a stream has a count and gaps. What
needs the history of each message, such as what a session was promised when, is judged by ``canopy_load.prove``.

``expected`` (what should have come) · ``broker_statistics`` (`$SYS`) · ``broker_usage``
(CPU and memory from `/proc`) · ``verdict`` (generator or broker) · ``judged`` (thresholds).
"""
