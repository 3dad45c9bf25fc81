"""What became of the messages of a run, and whose limit was met; ``ledger`` has the books.

``expected`` (what should have come) · ``broker_statistics`` (`$SYS`) · ``broker_usage``
(CPU and memory from `/proc`) · ``verdict`` (generator or broker) · ``judged`` (thresholds).
"""
