"""How the costs of a mesh grow, on paper: formulas with the constants that were measured before.

Every node speaks with every other one, so that links, interest and heartbeats grow with the square of the nodes in the
whole mesh, and in proportion to the nodes at each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.mesh.interest import Figures

SIZES: Final = (2, 5, 10, 20, 50, 100)
FILTERS: Final = 10_000
"""Topic filters of each node's own clients."""
CHURN: Final = 10.0
"""Filters a second that come and go at each node."""
DIGEST_BYTES: Final = 8_202
"""What two nodes send to compare what they retain: 1,024 sums of 8 bytes, and a head."""
DIGEST_INTERVAL: Final = 60.0


@dataclass(frozen=True)
class Constants:
    """CPU in microseconds, bytes. `interest` has those of filters and of nodes that have nothing to say."""

    interest: Figures
    local_cpu: float
    """A message from one local client to another, in bursts."""
    crossing_cpu: float
    """The same from one node to another, at both nodes together."""


@dataclass(frozen=True)
class Growth:
    """Of one node of so many."""

    nodes: int
    links: int
    filters_known: int
    memory: float
    background_cpu: float
    """Share of a core that goes to heartbeats and to the churn of all nodes."""
    background_wire: float
    """Bytes a second that the node sends for them, and to compare what is retained."""
    delivery_cpu: float
    """CPU of the mesh for a message and its one subscriber, who is on any node with equal chance."""


FORMULAS: Final = (
    "links of a node      = n - 1",
    "filters known        = (n - 1) × F",
    "memory, bytes        = (n - 1) × F × filter_bytes",
    "background, µs/s     = (n - 1) × (idle_cpu + C × (churn_cpu + churn_own_cpu))",
    "background, bytes/s  = (n - 1) × (C × churn_wire + digest_bytes / digest_interval)",
    "a delivery, µs       = (local_cpu + (n - 1) × crossing_cpu) / n",
)
"""n: nodes; F: filters of each node's clients; C: filters that come and go a second at each node."""


def growth(n: int, known: Constants, filters: int = FILTERS, churn: float = CHURN) -> Growth:
    """What `FORMULAS` say of a mesh of n nodes."""
    others, told = n - 1, known.interest
    return Growth(
        nodes=n,
        links=others,
        filters_known=others * filters,
        memory=others * filters * told.filter_bytes,
        background_cpu=others * (told.idle_cpu + churn * (told.churn_cpu + told.churn_own_cpu)) / 1e6,
        background_wire=others * (churn * told.churn_wire + DIGEST_BYTES / DIGEST_INTERVAL),
        delivery_cpu=(known.local_cpu + others * known.crossing_cpu) / n,
    )


def text(known: Constants) -> str:
    """Formulas, constants, and the table."""
    constants_ = {
        **vars(known.interest),
        "local_cpu": known.local_cpu,
        "crossing_cpu": known.crossing_cpu,
        "digest_bytes": DIGEST_BYTES,
        "digest_interval": DIGEST_INTERVAL,
    }
    constants = "\n".join(f"{name:<15} = {number(value)}" for name, value in constants_.items())
    body = [
        [
            str(each.nodes),
            f"{each.links * each.nodes // 2:,}",
            f"{each.filters_known:,}",
            number(each.memory / 1e6),
            f"{100 * each.background_cpu:.2f}",
            number(each.background_wire / 1e3),
            number(each.delivery_cpu),
        ]
        for each in (growth(n, known) for n in SIZES)
    ]
    headings = (
        "nodes",
        "links in all",
        "filters known",
        "memory MB",
        "background % of a core",
        "kB/s sent",
        "CPU µs a delivery",
    )
    assumed = f"F = {FILTERS:,} filters, C = {CHURN:g} a second"
    return "\n\n".join(("\n".join(FORMULAS), f"{constants}\n{assumed}", aligned(headings, body, set())))
