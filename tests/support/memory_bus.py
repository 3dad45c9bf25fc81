"""A mesh in one process: a bus for each node, whose messages arrive in later turns of the event loop.

Owns what is on the way between two nodes, each direction for itself. Keeps the promises of `broker.mesh.bus`, also that
a node hears `joined` before the first message of another; messages of a kind that nobody has attached a room for are
forgotten. What a room raises is in `MemoryMesh.faults`, and ends the
membership of the two nodes for each other; leaving the mesh raises what is no ProtocolFault.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Final

from broker.mesh import frames
from broker.mesh.bus import Bus, ProtocolFault, Room

QUIET: Final = 5
"""Turns of the event loop without a delivery after which a mesh is settled."""

JOINED: Final = -1
LEFT: Final = -2


class MemoryBus(Bus):
    """One node's bus. Made by its mesh."""

    def __init__(self, mesh: MemoryMesh, node: str) -> None:
        self.node = node
        self.rooms: dict[int, Room] = {}
        self.there: list[str] = []
        self.speaks = frames.HIGHEST
        self._mesh = mesh

    def attach(self, kind: int, room: Room) -> None:
        """Have a room hear the messages of a kind."""
        assert kind not in self.rooms, "two rooms for one kind"
        self.rooms[kind] = room

    def nodes(self) -> list[str]:
        """The nodes that are there."""
        return list(self.there)

    def version(self, node: str) -> int:
        """What both understand."""
        return min(self.speaks, self._mesh[node].speaks)

    def send(self, node: str, kind: int, data: bytes) -> None:
        """Have a message arrive in a later turn, if the node is there by then."""
        if node in self.there:
            self._mesh.carry(self.node, node, kind, data)


class Lane:
    """What is on the way from one node to another."""

    def __init__(self, mesh: MemoryMesh, source: str, target: MemoryBus) -> None:
        self._mesh = mesh
        self._source = source
        self._target = target
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.size = 0
        self.held = False
        self._due: asyncio.Handle | None = None

    @property
    def busy(self) -> bool:
        """Whether something is to be delivered that is not held back."""
        return bool(self.waiting) and not self.held

    def put(self, kind: int, data: bytes = b"") -> None:
        self.waiting.append((kind, data))
        self.size += len(data)
        self.wake()

    def wake(self) -> None:
        if self._due is None and self.busy:
            self._due = asyncio.get_running_loop().call_soon(self._deliver)

    def clear(self) -> None:
        self.waiting.clear()
        self.size = 0

    def _deliver(self) -> None:
        self._due = None
        target, source = self._target, self._source
        for _ in range(len(self.waiting)):
            if not self.busy:  # cut or held meanwhile
                break
            kind, data = self.waiting.popleft()
            self.size -= len(data)
            try:
                if kind == JOINED:
                    target.there.append(source)
                    for room in list(target.rooms.values()):
                        room.joined(source)
                elif kind == LEFT:
                    target.there.remove(source)
                    for room in list(target.rooms.values()):
                        room.left(source)
                elif kind in target.rooms:
                    target.rooms[kind].received(source, data)
            except Exception as error:
                self._mesh.faults.append(error)
                self._mesh.cut(source, target.node)
        self.wake()


class MemoryMesh:
    """Some nodes and what lies between them; as an asynchronous context manager from the start of the bus on.

    `mesh["a"]` is a node's bus: rooms are attached before the mesh is entered, or else before `join`. `queue_bytes`:
    what may be on the way in one direction; with more, the two nodes begin anew.
    """

    def __init__(self, *nodes: str, queue_bytes: int = 1 << 26) -> None:
        self.faults: list[Exception] = []
        """What rooms have raised."""
        self._queue_bytes = queue_bytes
        self._buses = {node: MemoryBus(self, node) for node in nodes}
        self._linked: set[frozenset[str]] = set()
        self._lanes = {
            (source, target): Lane(self, source, self._buses[target])
            for source in nodes
            for target in nodes
            if source != target
        }

    def __getitem__(self, node: str) -> MemoryBus:
        return self._buses[node]

    async def __aenter__(self) -> MemoryMesh:
        for source, target in self._lanes:
            self.join(source, target)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, raised: object, trace: TracebackType | None) -> None:
        for source, target in self._lanes:
            self.release(source, target)
            self.cut(source, target)
        await self.settle()
        for fault in self.faults:
            if kind is None and not isinstance(fault, ProtocolFault):
                raise fault

    def join(self, one: str, other: str) -> None:
        """Have two nodes know of each other, each in a later turn. Nothing happens where they do."""
        pair = frozenset((one, other))
        if pair not in self._linked:
            self._linked.add(pair)
            self._lanes[one, other].put(JOINED)
            self._lanes[other, one].put(JOINED)

    def cut(self, one: str, other: str) -> None:
        """Lose what is on the way between two nodes, and have each hear, in a later turn, that the other left."""
        pair = frozenset((one, other))
        if pair not in self._linked:
            return
        self._linked.remove(pair)
        for source, target in ((one, other), (other, one)):
            lane = self._lanes[source, target]
            lane.clear()
            if source in self._buses[target].there:
                lane.put(LEFT)

    def lose(self, one: str, other: str) -> None:
        """What a bus does that found a gap: the nodes begin anew."""
        self.cut(one, other)
        self.join(one, other)

    def stop(self, node: str) -> None:
        """A node goes, for all others."""
        for other in self._buses:
            self.cut(node, other)

    def hold(self, source: str, target: str) -> None:
        """Let nothing arrive that goes from one node to another, until `release`."""
        self._lanes[source, target].held = True

    def release(self, source: str, target: str) -> None:
        """Let arrive what was held back."""
        lane = self._lanes[source, target]
        lane.held = False
        lane.wake()

    def waiting(self, source: str, target: str) -> int:
        """How many messages are on the way from one node to another."""
        return sum(kind >= 0 for kind, _ in self._lanes[source, target].waiting)

    async def settle(self) -> None:
        """Wait until all has arrived that is not held back, and what followed from it."""
        quiet = 0
        while quiet < QUIET:
            quiet = 0 if any(lane.busy for lane in self._lanes.values()) else quiet + 1
            await asyncio.sleep(0)

    def carry(self, source: str, target: str, kind: int, data: bytes) -> None:
        """For `MemoryBus.send`."""
        if frozenset((source, target)) not in self._linked:
            return
        lane = self._lanes[source, target]
        if lane.size + len(data) > self._queue_bytes:
            self.lose(source, target)
        else:
            lane.put(kind, data)
