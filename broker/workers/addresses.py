"""Workers as nodes of a mesh of machines: their names, their addresses, and what of `[mesh]` they cannot use.

Owns the rule: the first worker is the node that the machine would be without workers, under `mesh.node` and at
`mesh.listen`; worker N is the node `<mesh.node>-wN`, and listens at the ports that are N higher.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Final, NamedTuple

from broker.settings import Settings

LONGEST_NODE: Final = 64
"""Characters of a node's name."""

LAST_PORT: Final = 65_535

_ADDRESS: Final = re.compile(r"((?:tcp|tls|quic)/)([^?#]*):(\d{1,5})([?#].*)?")
_ANYWHERE: Final = frozenset({"0.0.0.0", "[::]"})


class Address(NamedTuple):
    """An address of `mesh.listen`, taken apart."""

    kind: str
    host: str
    port: int
    rest: str

    @classmethod
    def of(cls, place: str) -> Address | None:
        """None: it has no port."""
        found = _ADDRESS.fullmatch(place)
        return None if found is None else cls(found[1], found[2], int(found[3]), found[4] or "")

    def overlaps(self, other: Address, workers: int) -> bool:
        """Whether one worker would have a port of this address, and another one the same port of the other."""
        same = self.host == other.host or not _ANYWHERE.isdisjoint((self.host, other.host))
        return same and 0 not in (self.port, other.port) and 0 < abs(self.port - other.port) < workers


def node_of(machine: str, worker: int) -> str:
    """The node that a worker is. `machine`: the one that the first worker is."""
    return f"{machine}-w{worker}" if worker else machine


def worker_of(node: str, machine: str) -> int | None:
    """The number of the worker that a node is; None: it is on another machine."""
    if node == machine:
        return 0
    found = re.fullmatch(r"-w([1-9][0-9]?)", node.removeprefix(machine)) if node.startswith(machine) else None
    return None if found is None else int(found[1])


def of_worker(place: str, worker: int) -> str:
    """Where a worker listens, of an address of `mesh.listen`. Port 0 is any."""
    address = Address.of(place)
    if address is None or address.port == 0:
        return place
    return f"{address.kind}{address.host}:{address.port + worker}{address.rest}"


def unusable(settings: Settings, workers: int) -> Iterator[str]:
    """Why so many workers cannot be nodes of the mesh of the settings, a line each."""
    mesh = settings.mesh
    if not mesh.name:
        return
    if settings.store.kept and not mesh.node:
        yield "mesh.node: workers with a store need a name that stays, under which messages wait for them; set one"
    last = node_of(mesh.node, workers - 1)
    if len(last) > LONGEST_NODE:
        yield f"mesh.node: the last worker would be {last}, longer than {LONGEST_NODE} characters; shorten it"
    known: list[tuple[int, Address]] = []
    for at, place in enumerate(mesh.listen):
        address = Address.of(place)
        if address is None:
            yield (
                f"mesh.listen[{at}]: {place} cannot be an address of each worker; use tcp/HOST:PORT or tls/HOST:PORT, "
                "of which worker N has the port that is N higher"
            )
        elif address.port + workers - 1 > LAST_PORT:
            highest = address.port + workers - 1
            yield f"mesh.listen[{at}]: {workers} workers would have ports up to {highest}; use a lower one"
        else:
            known.append((at, address))
    for (first, one), (second, other) in combinations(known, 2):
        if one.overlaps(other, workers):
            yield (
                f"mesh.listen[{second}]: of {workers} workers one would have the same port here as another one at "
                f"mesh.listen[{first}]; leave {workers} ports to each"
            )
