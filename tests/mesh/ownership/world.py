"""Some brokers that are one, in one thread: their routers, the rooms under test, and lanes in which messages wait.

Owns what the real mesh has besides: who wants what (one topic filter, `TOPIC`), told and confirmed in the lanes, and
messages that go to the nodes that want them, in pipes of their own. Nothing moves unless a test says so: `step`
delivers one message of a lane, `flow` one of a pipe, `run` what was put off; `settle` all of them. A node that is
stopped (`stop`) does nothing and hears nothing until it goes on (`go_on`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from broker.core.limits import Limits
from broker.core.queues.message import Message
from broker.core.routing.remote.loop_detection import FROM_NODE, NODES
from broker.core.session.session import Session
from broker.mesh import frames
from broker.mesh.bus import Bus, Room
from broker.mesh.ownership.gates import MARK
from broker.mesh.ownership.messages import Late, Missed
from broker.mesh.ownership.room import Ownership
from broker.mesh.ownership.shell import Shell
from tests.core.harness import Client, Network, limits, total_ledger

TOPIC: Final = "t"
TIMEOUT: Final = 5.0
LOG: Final = structlog.get_logger("tests")

WANT: Final = 100
CONFIRM: Final = 101


class Lanes(Bus):
    """One node's bus."""

    def __init__(self, world: World, node: str) -> None:
        self.node = node
        self._world = world

    def attach(self, kind: int, room: Room) -> None:
        """There is one room, and the world knows it."""

    def nodes(self) -> list[str]:
        """Those that are there."""
        return sorted(self._world.nodes[self.node].there)

    def version(self, node: str) -> int:
        """The newest."""
        del node
        return frames.HIGHEST

    def send(self, node: str, kind: int, data: bytes) -> None:
        """A message waits in a lane."""
        if node in self._world.nodes[self.node].there:
            self._world.lanes[self.node, node].append((kind, data))


class Node(Shell):
    """One broker."""

    def __init__(self, world: World, name: str, given: Limits, skew: float) -> None:
        self.name = name
        self._world = world
        self.network = Network(given)
        self.there: set[str] = set()
        self.skew = skew
        self.calls: deque[Callable[[], None]] = deque()
        self.bus = Lanes(world, name)
        self.room = Ownership(self.network.router, self.bus, self, LOG, TIMEOUT)
        self.network.router.owner = self.room
        # Who wants the topic, as far as is known here; what was said of this node, and who has confirmed it.
        self.wanted: set[str] = set()
        self.wants = False
        self.version = 0
        self.confirmed: dict[str, int] = {}
        self._settling: list[tuple[int, float, Callable[[set[str]], None]]] = []

    def now(self) -> float:
        """The network's clock."""
        return self.network.now

    def wall(self) -> float:
        """Another one, which is wrong."""
        return self.network.now + self.skew

    def soon(self, call: Callable[[], None]) -> None:
        """At the next step of this node."""
        self.calls.append(call)

    def wake(self) -> None:
        """The writers' turn."""
        self.network.wake()

    def arrived(self, node: str, call: Callable[[], None]) -> None:
        """Behind what is in the pipe."""
        self._world.pipes[self.name, node].append(call)

    def known(self) -> set[str]:
        """Nothing waits for those that are not there."""
        return self.there

    def waiting(self, missed: Missed, filters: list[str]) -> list[Message]:
        """Nothing waits."""
        del missed, filters
        return []

    def hand_over(self, lates: list[Late]) -> None:
        """Nothing but the marks: what waits for the old node goes there."""
        for late in lates:
            if late.to in self.there:
                room = self._world[late.to].room
                mark = Message(b"", b"", 0, False, b"", 0.0, FROM_NODE + self.name)
                came = partial(room.gates.came, late.name + MARK, FROM_NODE + self.name, mark)
                self._world.pipes[self.name, late.to].append(came)

    def settle(self, call: Callable[[set[str]], None]) -> None:
        """When all that are there have confirmed what is wanted here, or have had their time."""
        self.tell_wants()
        self._settling.append((self.version, self.now() + TIMEOUT, call))
        self.soon(self.confirm)

    def confirm(self) -> None:
        """Somebody has confirmed, or left, or time has passed."""
        waiting, self._settling = self._settling, []
        for version, due, call in waiting:
            late = {node for node in self.there if self.confirmed.get(node, 0) < version}
            if late and self.now() < due:
                self._settling.append((version, due, call))
            else:
                self.soon(partial(call, late))

    def tell_wants(self) -> None:
        """Tell the others when it has changed whether the topic is wanted here."""
        entry = self.network.router.trie.find(TOPIC)
        wants = entry is not None and any(
            not one.session.ended for one in entry.subscriptions if isinstance(one.session, Session)
        )
        if wants != self.wants:
            self.wants = wants
            self.version += 1
            for node in self.there:
                self.bus.send(node, WANT, b"%d %d" % (self.version, wants))


class World:
    """The nodes and what lies between them. They know each other from the start unless `apart`."""

    def __init__(
        self, *names: str, skew: tuple[float, ...] = (), apart: bool = False, given: Limits | None = None
    ) -> None:
        self.lanes: dict[tuple[str, str], deque[tuple[int, bytes]]] = {
            (source, target): deque() for source in names for target in names if source != target
        }
        # What is published goes a way of its own: faster than all else, or slower. Behind it, who waits for it.
        self.pipes: dict[tuple[str, str], deque[bytes | Callable[[], object]]] = {lane: deque() for lane in self.lanes}
        skews = dict(zip(names, skew, strict=False))
        self.nodes = {name: Node(self, name, given or limits(), skews.get(name, 0.0)) for name in names}
        self.published = 0
        # The nodes that are stopped, and for how long; those that a stopped one has lost meanwhile.
        self.stopped: dict[str, float] = {}
        self.lost: dict[str, list[str]] = {name: [] for name in names}
        if not apart:
            for one in names:
                for other in names:
                    if one < other:
                        self.join(one, other)
            self.settle()

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    # -- who is there --------------------------------------------------------------------------------------------------

    def join(self, one: str, other: str) -> None:
        """Two nodes know of each other. Not while one is stopped."""
        if one in self.stopped or other in self.stopped:
            return
        for name, peer in ((one, other), (other, one)):
            node = self.nodes[name]
            if peer in node.there:
                return
            node.there.add(peer)
            node.bus.send(peer, WANT, b"%d %d" % (node.version, node.wants))
            node.room.joined(peer)

    def cut(self, one: str, other: str) -> None:
        """Two nodes lose each other, and what is on the way between them."""
        for name, peer in ((one, other), (other, one)):
            self.lanes[name, peer].clear()
            self.pipes[name, peer].clear()
            if name in self.stopped:
                self.lost[name].append(peer)
            else:
                self._leave(name, peer)

    def _leave(self, name: str, peer: str) -> None:
        node = self.nodes[name]
        if peer in node.there:
            node.there.discard(peer)
            node.wanted.discard(peer)
            node.confirmed.pop(peer, None)
            node.room.left(peer)
            node.confirm()

    def stop(self, name: str) -> None:
        """As SIGSTOP does."""
        self.stopped.setdefault(name, 0.0)

    def go_on(self, name: str) -> None:
        """As SIGCONT does: its timers come first, then what its messages say."""
        seconds = self.stopped.pop(name, None)
        if seconds:
            self._pass(self.nodes[name], seconds)
        lost, self.lost[name] = self.lost[name], []
        for peer in lost:
            self._leave(name, peer)

    def running(self) -> list[str]:
        """The nodes that are not stopped."""
        return [name for name in self.nodes if name not in self.stopped]

    # -- moving --------------------------------------------------------------------------------------------------------

    def step(self, source: str, target: str, count: int = 1) -> bool:
        """Deliver so many messages of a lane. Whether there were any."""
        lane = self.lanes[source, target]
        moved = False
        for _ in range(count):
            if not lane or target in self.stopped:
                break
            kind, data = lane.popleft()
            moved = True
            self._deliver(source, self.nodes[target], kind, data)
            self.nodes[target].tell_wants()
        return moved

    def _deliver(self, source: str, node: Node, kind: int, data: bytes) -> None:
        if kind == WANT:
            version, wants = data.split()
            if wants == b"1":
                node.wanted.add(source)
            else:
                node.wanted.discard(source)
            node.bus.send(source, CONFIRM, version)
        elif kind == CONFIRM:
            node.confirmed[source] = max(int(data), node.confirmed.get(source, 0))
            node.confirm()
        else:
            node.room.received(source, data)

    def flow(self, source: str, target: str, count: int = 1) -> bool:
        """Deliver so much of what is published. Whether there was any."""
        pipe = self.pipes[source, target]
        if target in self.stopped:
            return False
        moved = bool(pipe)
        for _ in range(min(count, len(pipe))):
            first = pipe.popleft()
            if isinstance(first, bytes):
                self._route(self.nodes[target], first, first[0] - 48, f"{NODES}from/{source}")
            else:
                first()
        return moved

    def run(self, name: str) -> bool:
        """The turn of a node: what was put off, and what its clients have sent. Whether there was anything."""
        node = self.nodes[name]
        if name in self.stopped:
            return False
        moved = bool(node.calls)
        for _ in range(len(node.calls)):
            node.calls.popleft()()
        node.network.settle()
        node.tell_wants()
        return moved

    def settle(self) -> None:
        """Move everything until nothing moves."""
        moved = True
        while moved:
            moved = False
            for name in self.nodes:
                moved = self.run(name) or moved
            for source, target in self.lanes:
                moved = self.step(source, target, 1_000) or moved
                moved = self.flow(source, target, 1_000) or moved

    def advance(self, seconds: float) -> None:
        """Let time pass for all: each room has its turn when it is due."""
        left = seconds
        while left > 0.0:
            running = [self.nodes[name] for name in self.running()]
            dues = [node.room.due - node.network.now for node in running if node.room.due > 0.0]
            step = min([left, *(max(due, 0.001) for due in dues)])
            left -= step
            self.elapse(step)
            self.settle()

    def elapse(self, seconds: float) -> None:
        """Let time pass for all, and nothing arrive meanwhile."""
        for name, node in self.nodes.items():
            if name in self.stopped:
                self.stopped[name] += seconds
            else:
                self._pass(node, seconds)

    def _pass(self, node: Node, seconds: float) -> None:
        node.network.advance(seconds)
        node.confirm()
        if 0.0 < node.room.due <= node.network.now:
            node.room.tick()

    # -- clients -------------------------------------------------------------------------------------------------------

    def client(self, client_id: str = "x", version: int = 5) -> Client:
        """A client that is nowhere yet."""
        made = Client(next(iter(self.nodes.values())).network, client_id, version)
        made.judge.enabled = False
        return made

    def connect(self, client: Client, name: str, clean: bool = False, **connect: Any) -> None:
        """A client sends CONNECT to a node; nothing but that happens until somebody moves."""
        client.network = self.nodes[name].network
        client.connect(clean=clean, expiry=connect.pop("expiry", 1_000), settle=False, **connect)
        client.network.settle()
        self.nodes[name].tell_wants()

    def publish(self, name: str, qos: int = 1) -> bytes:
        """A node gets a message, and hands it on to those who want it. Its payload begins with its QoS."""
        self.published += 1
        payload = b"%d:%d" % (qos, self.published)
        node = self.nodes[name]
        self._route(node, payload, qos, "p")
        for other in sorted(node.wanted & node.there):
            self.pipes[name, other].append(payload)
        return payload

    def _route(self, node: Node, payload: bytes, qos: int, publisher: str) -> None:
        router = node.network.router
        router.peers.drain(router, node.network.now)
        router.publish(Message(TOPIC.encode(), payload, qos, False, b"", 0.0, publisher), None)
        node.network.wake()

    def owners(self, client_id: str = "x") -> list[str]:
        """The nodes to which a client with this identifier is connected."""
        found = []
        for name, node in self.nodes.items():
            session = node.network.router.sessions.get(client_id)
            if session is not None and session.outbox is not None:
                found.append(name)
        return found

    def holders(self, client_id: str = "x") -> list[str]:
        """The nodes with a session of it."""
        return [name for name, node in self.nodes.items() if client_id in node.network.router.sessions]


def quiet(world: World) -> None:
    """Nothing is under way, and nothing is forgotten."""
    for node in world.nodes.values():
        assert not node.room.claims.pending
        assert not node.room.giver.givings
        assert not node.room.taker.coming
        assert total_ledger(node.network.router.sessions.values()) == []
