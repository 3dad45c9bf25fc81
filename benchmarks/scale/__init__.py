"""How a broker's costs grow with what it holds: very many filters, and very many silent clients.

``filters``: what wildcard subscriptions cost to make, to hold, to route past and to drop. ``clients``: what connected
clients cost to accept, to hold, to keep alive and to serve others beside. What is measured beside filters or clients is
also measured without them. ``benchmarks.store`` has a start with what a store kept.
"""

from __future__ import annotations

from typing import Final

from benchmarks.runner import Bench, Row, peers
from benchmarks.scale import clients, filters
from canopy_load.brokers.registry import FILTERS

BENCH: Final = Bench(
    "scale",
    "How a broker's costs grow with what it holds.",
    {
        "filters": Row("filters", filters.run, sizes=(2_000_000,), needs=frozenset({FILTERS})),
        "clients": Row("clients", clients.run, sizes=(50_000,)),
    },
    peers(),
    repeats=1,
)
