"""What became of the messages, and whose limit was met.

``mark`` (what each message carries) · ``deliveries`` (what a subscriber got, message by message) · ``expected`` (what
should have come) · ``counters``, ``histogram`` (figures of an interval, latencies) · ``broker_statistics`` (`$SYS`) ·
``broker_usage`` (CPU and memory from `/proc`) · ``verdict`` (generator or broker) · ``records``, ``record_tables`` (a
row of every message).
"""
