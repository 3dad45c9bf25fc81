"""Some brokers that are one, in one thread: their routers, the rooms of wills and of sessions, and lanes between them.

Nothing moves unless a test says so: `step` delivers messages of a lane, `settle` all of them. A node that is killed is
forgotten with all that it had; one that is started under its name is another process. What nodes publish is not carried
to others: `published` has what the subscribers of each node have had.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from broker.core.codec.packets import Publish, Will
from broker.core.limits import Limits
from broker.core.queues.message import Message
from broker.mesh.bus import OWNERSHIP, WILLS, Bus, Room
from broker.mesh.ownership.messages import Late, Missed
from broker.mesh.ownership.room import Ownership
from broker.mesh.ownership.shell import Shell
from broker.mesh.wills.room import Wills, WillTerms
from broker.store.groups.principals import Principals
from tests.core.harness import Client, Network, limits

DEAD_AFTER: Final = 30.0
KNOWN_FOR: Final = 3_600.0
TIMEOUT: Final = 5.0
STEP: Final = 25.0
LARGEST: Final = 10_000
LOG: Final = structlog.get_logger("tests")
ROOMS: Final = (WILLS, OWNERSHIP)


class Lanes(Bus):
    """One node's bus."""

    def __init__(self, world: World, node: str, speaks: int) -> None:
        self.node = node
        self.speaks = speaks
        self.there: list[str] = []
        self._world = world

    def attach(self, kind: int, room: Room) -> None:
        """The world knows the rooms."""

    def nodes(self) -> list[str]:
        """Those that are there."""
        return list(self.there)

    def version(self, node: str) -> int:
        """What both understand."""
        return min(self.speaks, self._world[node].bus.speaks)

    def send(self, node: str, kind: int, data: bytes) -> None:
        """A message waits in a lane."""
        if node in self.there:
            self._world.lanes[self.node, node].append((kind, data))


class Node(Shell):
    """One process of a broker."""

    def __init__(self, world: World, name: str, process: int, given: Limits, speaks: int, most_bytes: int) -> None:
        self.name = name
        self.network = Network(given)
        self.network.now = world.now
        self.bus = Lanes(world, name, speaks)
        self.calls: deque[Callable[[], None]] = deque()
        self.turns = 0
        self.woken = False
        router = self.network.router
        principals = Principals()
        terms = WillTerms(DEAD_AFTER, most_bytes, KNOWN_FOR, LARGEST)
        self.wills = Wills(router, self.bus, principals, terms, process, self.now, LOG, self.turn_soon)
        router.wills.listener = self.wills
        self.sessions = Ownership(router, self.bus, self, LOG, TIMEOUT, principals)
        self.sessions.claimed = self.wills.claimed
        router.owner = self.sessions
        self.watcher = self.network.client(f"watcher-{name}")
        self.watcher.subscribe("#", qos=2)

    def turn_soon(self) -> None:
        """The room has something to do."""
        self.woken = True

    def now(self) -> float:
        """The network's clock."""
        return self.network.now

    def wall(self) -> float:
        """The same."""
        return self.network.now

    def soon(self, call: Callable[[], None]) -> None:
        """At the next step of this node."""
        self.calls.append(call)

    def wake(self) -> None:
        """The writers' turn."""
        self.network.wake()

    def arrived(self, node: str, call: Callable[[], None]) -> None:
        """Nothing is published for others."""
        del node
        self.calls.append(call)

    def settle(self, call: Callable[[set[str]], None]) -> None:
        """Nobody wants anything of others."""
        self.calls.append(partial(call, set[str]()))

    def known(self) -> set[str]:
        """Nothing waits for those that are not there."""
        return set(self.bus.there)

    def waiting(self, missed: Missed, filters: list[str]) -> list[Message]:
        """Nothing waits."""
        del missed, filters
        return []

    def hand_over(self, lates: list[Late]) -> None:
        """The bus speaks no version that has it."""
        raise AssertionError(lates)

    def run(self) -> bool:
        """What was put off. Whether there was anything."""
        self.network.settle()
        moved = bool(self.calls) or self.woken
        for _ in range(len(self.calls)):
            self.calls.popleft()()
        if self.woken or 0.0 < self.wills.due <= self.network.now:
            moved = True
            self.woken = False
            self.turns += 1
            self.wills.turn(self.network.now)
        if 0.0 < self.sessions.due <= self.network.now:
            moved = True
            self.sessions.tick()
        self.network.settle()
        return moved


class World:
    """The nodes and what lies between them. They know each other from the start."""

    def __init__(
        self, *names: str, most_bytes: int = 1 << 26, speak: dict[str, int] | None = None, without: tuple[str, ...] = ()
    ) -> None:
        self.now = 1_000.0
        self.lanes: dict[tuple[str, str], deque[tuple[int, bytes]]] = {
            (source, target): deque() for source in names for target in names if source != target
        }
        self.nodes: dict[str, Node] = {}
        self.published: list[tuple[str, Publish]] = []
        """What was published, and where first."""
        self._most_bytes = most_bytes
        self._speak = speak or {}
        self._processes = 0
        for name in names:
            if name not in without:
                self.start(name)
        self.settle()

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """A node comes, and meets all that are there."""
        self._processes += 1
        made = Node(self, name, self._processes, limits(), self._speak.get(name, 2), self._most_bytes)
        self.nodes[name] = made
        for other in self.nodes:
            if other != name:
                self.join(name, other)

    def kill(self, name: str) -> None:
        """A process is gone, and the others have told each other so."""
        self.look()
        for other in list(self.nodes[name].bus.there):
            self.cut(name, other)
        del self.nodes[name]
        self.settle()

    def join(self, one: str, other: str) -> None:
        """Two nodes know of each other."""
        for name, peer in ((one, other), (other, one)):
            self.nodes[name].bus.there.append(peer)
        for name, peer in ((one, other), (other, one)):
            self.nodes[name].wills.joined(peer)
            self.nodes[name].sessions.joined(peer)

    def cut(self, one: str, other: str) -> None:
        """Two nodes lose each other, and what is on the way between them."""
        for name, peer in ((one, other), (other, one)):
            self.lanes[name, peer].clear()
            self.nodes[name].bus.there.remove(peer)
        for name, peer in ((one, other), (other, one)):
            self.nodes[name].wills.left(peer)
            self.nodes[name].sessions.left(peer)

    # -- moving --------------------------------------------------------------------------------------------------------

    def step(self, source: str, target: str, count: int = 1) -> bool:
        """Deliver so many messages of a lane. Whether there were any."""
        lane = self.lanes[source, target]
        moved = False
        if target not in self.nodes:
            return False
        for _ in range(min(count, len(lane))):
            kind, data = lane.popleft()
            moved = True
            node = self.nodes[target]
            (node.wills if kind == WILLS else node.sessions).received(source, data)
        return moved

    def run(self) -> bool:
        """A turn of each node. Whether any had something to do."""
        moved = [node.run() for node in list(self.nodes.values())]
        return any(moved)

    def settle(self) -> None:
        """Move everything until nothing moves."""
        moved = True
        while moved:
            moved = self.run()
            for source, target in self.lanes:
                moved = self.step(source, target, 1_000) or moved
        self.look()

    def advance(self, seconds: float) -> None:
        """Let time pass for all, in steps in which nodes hear of each other what happens."""
        while seconds > 0:
            step = min(seconds, STEP)
            seconds -= step
            self.now += step
            for node in self.nodes.values():
                node.network.advance(step)
            self.settle()

    def look(self) -> None:
        """Write down what was published."""
        for name, node in self.nodes.items():
            node.network.settle()
            self.published.extend((name, packet) for packet in node.watcher.take())

    # -- clients -------------------------------------------------------------------------------------------------------

    def connect(
        self, name: str, client_id: str, payload: bytes = b"", *, clean: bool = False, expiry: int = 0, delay: int = 0,
        **will: Any,
    ) -> Client:  # fmt: skip
        """A client comes to a node, with a will of that payload, if it has one, and has its session there."""
        client = Client(self.nodes[name].network, client_id, 5)
        client.judge.enabled = False
        made = Will(f"wills/{client_id}", payload, delay=delay, **will) if payload else None
        client.connect(clean=clean, expiry=expiry, will=made, settle=False)
        self.settle()
        return client

    def many(self, name: str, count: int, payload: bytes) -> None:
        """So many clients of a node that is alone, with wills that begin with their numbers."""
        assert not self.nodes[name].bus.there
        for number in range(count):
            self.nodes[name].network.client(f"c{number}", will=Will("wills/many", b"%d" % number + payload))

    def count(self) -> Counter[bytes]:
        """How often each will was published."""
        self.look()
        return Counter(packet.payload for _, packet in self.published)
