"""What two nodes tell each other of themselves, in the user property `canopy-node` of CONNECT and CONNACK.

The text is `cluster/node/asks/versions` or `cluster/node/knows/versions`: whether the node asks which filters its
session at the other one holds, and the versions of what nodes say to each other, with "," between them. The highest
that both know is used.
"""

from __future__ import annotations

from typing import Final, NamedTuple

VERSIONS: Final = (1,)
"""The versions that this program knows."""

PARTS: Final = 4
ASKS: Final = {"asks": True, "knows": False}


class Greeting(NamedTuple):
    """A node, as it names itself."""

    cluster: str
    node: str
    asks: bool = False
    """Whether the node asks which filters its session holds: it may be one from before its start."""
    versions: tuple[int, ...] = VERSIONS

    def text(self) -> str:
        """Return the value of the property."""
        return f"{self.cluster}/{self.node}/{'asks' if self.asks else 'knows'}/{','.join(map(str, self.versions))}"

    def refusal(self, other: Greeting | None) -> str:
        """Return why this node and another one cannot be linked; empty: they can."""
        if other is None:
            return "it is no node of a cluster"
        if other.cluster != self.cluster:
            return f'it is a node of the cluster "{other.cluster}", and not of "{self.cluster}" (cluster.name)'
        if other.node == self.node:
            return f'it has the name of this node, "{self.node}": give each node its own (cluster.node)'
        if not set(self.versions) & set(other.versions):
            return (
                f"it speaks the versions {_listed(other.versions)} of node links, and this one {_listed(self.versions)}"
            )
        return ""


def read(value: str) -> Greeting | None:
    """Return the greeting in the value of a property; None: it is none."""
    parts = value.split("/")
    if len(parts) != PARTS or not all(parts) or parts[2] not in ASKS:
        return None
    versions = parts[3].split(",")
    if not all(each.isascii() and each.isdecimal() and len(each) < PARTS for each in versions):
        return None
    return Greeting(parts[0], parts[1], ASKS[parts[2]], tuple(int(each) for each in versions))


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions))
