"""What it costs to keep what is acknowledged (``python -m benchmarks.store``).

Owns: rates, latencies and start-up of Canopy in memory and with its store, beside mosquitto in memory and with
persistence, all in one run; and what a sync of this disk takes, printed beside them.

Promises: every figure is of a fresh broker process, pinned as in ``benchmarks.network``; every message is acknowledged
before the clock stops.

Modules: ``disk`` (what a sync takes) · ``entrants`` (how each broker is started) · ``clients`` (many sockets, one
thread) · ``rows`` (what is measured) · ``filling`` (a store of a given size) · ``cli``.
"""
