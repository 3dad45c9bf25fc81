"""What two nodes tell each other of themselves, in the user property `canopy-node` of CONNECT and CONNACK.

The text is `cluster/node/asks/versions` or `cluster/node/knows/versions`: whether the node asks which filters its
session at the other one holds, and the versions of what nodes say to each other, with "," between them. The highest
that both know is used. A node that shares its sessions adds `/store`, which names the schema where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

VERSIONS: Final = (1, 2)
"""The versions that this program knows. 1: all but what follows. 2: nodes tell what they have (`comparing`). A release
knows those of the release before it, so that nodes can be upgraded one after the other."""

OWN: Final = 2
"""The version from which on a node hears what others have."""

PARTS: Final = (4, 5)
MAX_VERSION_DIGITS: Final = 3
"""Digits."""
ASKS: Final = {"asks": True, "knows": False}


class Greeting(NamedTuple):
    """A node, as it names itself."""

    cluster: str
    node: str
    asks: bool = False
    """Whether the node asks which filters its session holds: it may be one from before its start."""
    versions: tuple[int, ...] = VERSIONS
    store: str = ""
    """The identity of the store that it shares with others; empty: it shares none."""

    def text(self) -> str:
        """Return the value of the property."""
        versions = ",".join(map(str, self.versions))
        parts = [self.cluster, self.node, "asks" if self.asks else "knows", versions]
        return "/".join([*parts, self.store] if self.store else parts)

    def refusal(self, other: Greeting | None) -> str:
        """Return why this node and another one cannot be linked; empty: they can."""
        if other is None:
            return "it is no node of a cluster"
        if other.cluster != self.cluster:
            return f'it is a node of the cluster "{other.cluster}", and not of "{self.cluster}" (cluster.name)'
        if other.node == self.node:
            return f'it has the name of this node, "{self.node}": give each node its own (cluster.node)'
        if self.store != other.store:
            if self.store and other.store:
                where = "has its sessions in another database or schema"
            else:
                where = f"{'shares no' if self.store else 'shares its'} sessions with other nodes, and this one does"
                where += "" if self.store else " not"
            return f"it {where}: give all nodes the same store.url and store.name, or none of them a store.url"
        if not set(self.versions) & set(other.versions):
            return strangers("it", other.versions, self.versions)
        return ""


def read(value: str) -> Greeting | None:
    """Return the greeting in the value of a property; None: it is none."""
    parts = value.split("/")
    if len(parts) not in PARTS or not all(parts) or parts[2] not in ASKS:
        return None
    versions = parts[3].split(",")
    if not all(each.isascii() and each.isdecimal() and len(each) <= MAX_VERSION_DIGITS for each in versions):
        return None
    return Greeting(parts[0], parts[1], ASKS[parts[2]], tuple(int(each) for each in versions), "".join(parts[4:]))


def strangers(other: str, theirs: Iterable[int], own: Iterable[int]) -> str:
    """Return why a node cannot be linked with this one, that speaks no version which this one speaks."""
    return (
        f"{other} speaks the versions {_listed(theirs)} of node links, and this one {_listed(own)}: "
        "upgrade nodes from one release to the next, each of them before the release after that"
    )


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))
