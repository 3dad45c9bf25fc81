"""Sections that earlier versions had, and what to do in place of each.

Owns the advice, with which `reading` refuses them.
"""

from __future__ import annotations

from typing import Final

ONE_PROCESS: Final = "Canopy runs as one process; to serve more clients, start several brokers and join them by links"
ONE_BROKER: Final = "Canopy has no clusters; join two brokers by links"
WHERE: Final = "(docs/cluster.md)"

REMOVED: Final = {
    "mesh": f"{ONE_BROKER} {WHERE}; remove the section [mesh]",
    "workers": f"{ONE_PROCESS} {WHERE}; remove the section [workers]",
}
"""By a section's name."""


def removed(name: str) -> str | None:
    """What to do about a setting of an earlier version, by its full name; None: it is not told."""
    return REMOVED.get(name.partition(".")[0])
