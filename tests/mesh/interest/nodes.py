"""Nodes with interest tables, and lines between them on which a test lets one message after the other arrive."""

from __future__ import annotations

from collections import deque

from broker.core.codec.topic_names import covers
from broker.mesh.bus import INTEREST, Bus, Room
from broker.mesh.interest.confirmations import Waiter
from broker.mesh.interest.declaring import Interest
from broker.mesh.interest.receiving import Sink
from broker.mesh.interest.room import InterestRoom

PLENTY = 1 << 40


class Wanted(Sink):
    """What a node wants, as it would stand in the trie. `calls`: how often that changed."""

    def __init__(self) -> None:
        self.filters: set[str] = set()
        self.groups: dict[tuple[str, str], int] = {}
        self.calls = 0
        self.gone: list[str] = []

    def subscribe(self, topic_filter: str) -> None:
        assert topic_filter not in self.filters
        self.filters.add(topic_filter)
        self.calls += 1

    def unsubscribe(self, topic_filter: str) -> None:
        self.filters.remove(topic_filter)
        self.gone.append(topic_filter)
        self.calls += 1

    def put_group(self, name: str, topic_filter: str, connected: int, away: bool) -> None:
        assert not (connected and away)
        key = (name, topic_filter)
        state = -1 if away else connected
        assert self.groups.get(key, 0) != state
        self.groups[key] = state
        if state == 0:
            del self.groups[key]
        self.calls += 1

    def covers(self, topic_filter: str) -> bool:
        """Whether the node is sent all that the filter matches."""
        return any(covers(wide, topic_filter) for wide in self.filters)


class Line(Bus):
    """One node's bus: what it sends waits in `mesh.lines` until a test has it arrive."""

    def __init__(self, mesh: Mesh, node: str) -> None:
        self.node = node
        self._mesh = mesh
        self.there: set[str] = set()

    def attach(self, kind: int, room: Room) -> None:
        """There is one room."""

    def nodes(self) -> list[str]:
        return sorted(self.there)

    def send(self, node: str, kind: int, data: bytes) -> None:
        assert node in self.there
        assert kind == INTEREST
        self._mesh.lines[self.node, node].append(data)


class Node:
    """A node: its room, and what the others want. `now`: its mesh's."""

    def __init__(
        self,
        mesh: Mesh,
        name: str,
        max_filters: int = 0,
        most: int = PLENTY,
        most_bytes: int = PLENTY,
        declare_keys: int = 1_024,
        units: int = 512,
        looks: int = 2_048,
    ) -> None:
        self.name = name
        self.bus = Line(mesh, name)
        self.sinks: dict[str, Wanted] = {}
        self.woken = False
        self.interest = Interest(self.bus, max_filters, hold=10.0, declare_keys=declare_keys, units=looks)
        self.room = InterestRoom(self.bus, self.interest, self._sink, self._wake, most, most_bytes, units)

    def _sink(self, node: str) -> Sink:
        # Of a node that comes back after it was forgotten it is another one: the earlier one is still being emptied.
        self.sinks[node] = sink = Wanted()
        return sink

    def _wake(self) -> None:
        assert not self.woken
        self.woken = True

    def turn(self, now: float) -> None:
        """A turn, if the room has asked for it or its time has come."""
        if self.woken or 0.0 < self.room.due <= now:
            self.woken = False
            self.room.turn(now)

    def declared(self) -> tuple[set[str], dict[tuple[str, str], int]]:
        """What it declares: filters, and share groups with what `Wanted` has of them."""
        declared = self.interest.declared
        groups: dict[tuple[str, str], int] = {}
        for key in declared.groups.names:
            _, name, topic_filter = key.split("/", 2)
            state = declared.state(key)
            groups[name, topic_filter] = -1 if state == 256 else state
        return {*declared.filters.names, *declared.wides}, groups


class Mesh:
    """Some nodes. Nothing happens by itself."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.lines: dict[tuple[str, str], deque[bytes]] = {}
        self.now = 100.0
        self.most_sent = 0

    def add(self, node: Node) -> Node:
        """One more node, which nobody knows yet."""
        for name in self.nodes:
            self.lines[name, node.name] = deque()
            self.lines[node.name, name] = deque()
        self.nodes[node.name] = node
        return node

    def join(self, one: str, other: str) -> None:
        """`one` hears that `other` is there."""
        node = self.nodes[one]
        if other not in node.bus.there:
            node.bus.there.add(other)
            node.room.joined(other)

    def cut(self, one: str, other: str) -> None:
        """Both hear that the other one has left; what was on the way never arrives."""
        for source, target in ((one, other), (other, one)):
            self.lines[source, target].clear()
            node = self.nodes[source]
            if target in node.bus.there:
                node.bus.there.discard(target)
                node.room.left(target)

    def deliver(self, source: str, target: str) -> bool:
        """Have the next message arrive, if there is one and its target knows the source."""
        line = self.lines[source, target]
        if not line or source not in self.nodes[target].bus.there:
            return False
        data = line.popleft()
        self.most_sent = max(self.most_sent, len(data))
        self.nodes[target].room.received(source, data)
        return True

    def settle(self) -> None:
        """Until nothing is on the way, and nobody has anything to do."""
        for source, target in self.lines:
            self.join(source, target)
        busy = True
        rounds = 0
        while busy:
            busy = False
            rounds += 1
            assert rounds < 1_000, "they never come to an end"
            for source, target in self.lines:
                busy = self.deliver(source, target) or busy
            for node in self.nodes.values():
                busy = busy or node.woken
                node.turn(self.now)


class Counted(Waiter):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def confirmed(self, everywhere: bool) -> None:
        self.heard.append(everywhere)
