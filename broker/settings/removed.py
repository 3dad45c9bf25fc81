"""Settings that earlier versions had, and what to do in place of each.

Owns the advice. `reading` refuses these names with it, so that a file of an earlier version does not start a broker
that shares nothing with the brokers which the file names.
"""

from __future__ import annotations

from typing import Final

ONE_PROCESS: Final = "Canopy runs as one process; to serve more clients, start several brokers and join them by links"
ONE_BROKER: Final = "Canopy has no clusters; join two brokers by links"
WHERE: Final = "(docs/cluster.md)"

REMOVED: Final = {
    "mesh": f"{ONE_BROKER} {WHERE}; remove the section [mesh]",
    "workers": f"{ONE_PROCESS} {WHERE}; remove the section [workers]",
    "alarms.node_down": "there is no such alarm any more; remove the setting",
}
"""By a section's name, or a setting's full name."""


def removed(name: str) -> str | None:
    """What to do about a setting of an earlier version, by its full name; None: there was no such setting."""
    return REMOVED.get(name) or REMOVED.get(name.partition(".")[0])
