"""Sections of earlier versions, and the remedy for each.

`validation` refuses settings with them, and prints the remedy.
"""

from __future__ import annotations

from typing import Final

ONE_BROKER: Final = "nodes of a cluster stand in [cluster]"
WHERE: Final = "(docs/cluster.md)"

REMOVED: Final = {
    "mesh": f"{ONE_BROKER} {WHERE}; remove the section [mesh]",
}
"""Section → remedy."""


def removed(name: str) -> str | None:
    """Return the remedy for a removed setting, by its full name; None: it is not a removed one."""
    return REMOVED.get(name.partition(".")[0])
