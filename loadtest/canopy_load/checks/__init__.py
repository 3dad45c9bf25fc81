"""Judging a run: the fate of its messages, and whether broker or generator was the limit; ``ledger`` counts.

``expected`` (what should have come) · ``broker_statistics`` (`$SYS`) · ``broker_usage``
(CPU and memory from `/proc`) · ``verdict`` (generator or broker) · ``judged`` (thresholds).
"""
