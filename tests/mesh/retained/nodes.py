"""Nodes with retained messages alone, in a network that does what a test says, message by message."""

from __future__ import annotations

from collections import deque
from itertools import permutations

from broker.core.queues.message import Message
from broker.core.routing.router import Router
from broker.mesh.bus import RETAINED, Bus, Room
from broker.mesh.retained.replicas import Replicas, ReplicaTerms
from tests.core.harness import limits

EPOCH = 1_800_000_000.0


class TestBus(Bus):
    """One node's end of the network."""

    __test__ = False

    def __init__(self, node: str, network: Nodes) -> None:
        self.node = node
        self.network = network
        self.room: Room | None = None

    def attach(self, kind: int, room: Room) -> None:
        assert kind == RETAINED
        self.room = room

    def nodes(self) -> list[str]:
        return [other for one, other in self.network.links if one == self.node]

    def send(self, node: str, kind: int, data: bytes) -> None:
        assert kind == RETAINED
        queue = self.network.links.get((self.node, node))
        if queue is not None:
            queue.append(data)


class Node:
    """One broker's retained messages. `skew`: seconds by which its wall clock is ahead."""

    def __init__(self, name: str, network: Nodes, terms: ReplicaTerms, router: Router, skew: float = 0.0) -> None:
        self.name = name
        self.network = network
        self.skew = skew
        self.router = router
        self.bus = TestBus(name, network)
        self.wakes = 0
        self.replicas = Replicas(
            self.bus, router.retained_store, terms, lambda: network.now, lambda: network.wall() + self.skew, self.wake
        )

    def wake(self) -> None:
        self.wakes += 1

    def publish(self, topic: str, payload: bytes, expiry: float = 0.0, qos: int = 1, properties: bytes = b"") -> None:
        """A client publishes a retained message; without a payload it clears the topic."""
        expires_at = self.network.now + expiry if expiry else 0.0
        message = Message(topic.encode(), payload, qos, True, properties, expires_at, "client")
        self.router.publish(message, None)

    def kept(self) -> dict[str, bytes]:
        """The retained messages of clients."""
        return {
            message.topic.decode(): message.payload()
            for topic_filter in ("#", "$own/#")
            for message in (found.value for found in self.router.retained.matching(topic_filter))
            if isinstance(message, Message)
        }

    def turn(self) -> bool:
        """Whether there was something to do."""
        due = self.replicas.due()
        if not 0.0 <= due <= self.network.now:
            return False
        self.replicas.turn(self.network.now)
        return True


class Nodes:
    """The network, and its time (s, monotonic). `links` have what is on the way, by sender and receiver."""

    def __init__(self, *names: str, terms: ReplicaTerms | None = None, **bounds: int) -> None:
        self.now = 1_000.0
        self.terms = terms or ReplicaTerms()
        self.bounds = bounds
        self.restarts = 0
        self.links: dict[tuple[str, str], deque[bytes]] = {}
        self.nodes = {name: self._made(name, self._router()) for name in names}

    def add(self, name: str, router: Router) -> None:
        """One more node, of a router that is there."""
        self.nodes[name] = self._made(name, router)

    def _router(self, **bounds: int) -> Router:
        return Router(limits(**{**self.bounds, **bounds}))

    def _made(self, name: str, router: Router, skew: float = 0.0) -> Node:
        return Node(name, self, self.terms, router, skew)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def wall(self) -> float:
        return EPOCH + self.now

    def restart(self, name: str, keeps: bool, **bounds: int) -> None:
        """A node goes and comes back without its stamps; `keeps`: with its messages, as from a store."""
        for other in self.nodes:
            self.cut(name, other)
        old = self.nodes[name]
        router = self._router(**bounds)
        if keeps:
            for topic_filter in ("#", "$own/#"):
                for found in old.router.retained.matching(topic_filter):
                    assert isinstance(found.value, Message)
                    router.retained_store.put(found.topic, found.value, router.accounts.internal)
        # Nobody starts twice in the same millisecond.
        self.restarts += 1
        self.now += 0.0137 * self.restarts
        self.nodes[name] = self._made(name, router, old.skew)

    def join(self, one: str, other: str) -> None:
        """The nodes reach each other."""
        if one != other and (one, other) not in self.links:
            self.links[one, other] = deque()
            self.links[other, one] = deque()
            self._room(one).joined(other)
            self._room(other).joined(one)

    def join_all(self) -> None:
        for one, other in permutations(self.nodes, 2):
            self.join(one, other)

    def cut(self, one: str, other: str) -> None:
        """They do not any more; what was on the way is lost."""
        if self.links.pop((one, other), None) is not None:
            del self.links[other, one]
            self._room(one).left(other)
            self._room(other).left(one)

    def deliver(self, sender: str, receiver: str) -> bool:
        """The next message on the way from one to the other arrives; False: there is none."""
        queue = self.links.get((sender, receiver))
        if not queue:
            return False
        self._room(receiver).received(sender, queue.popleft())
        return True

    def _room(self, name: str) -> Room:
        room = self.nodes[name].bus.room
        assert room is not None
        return room

    def settle(self) -> None:
        """Everything that is on the way arrives, and all do what they have to do."""
        for _ in range(1_000_000):
            busy = False
            for sender, receiver in list(self.links):
                while self.deliver(sender, receiver):
                    busy = True
            for node in self.nodes.values():
                busy |= node.turn()
            if not busy:
                return
        raise AssertionError("the nodes do not come to rest")

    def tick(self, name: str) -> None:
        """What is due in a broker happens: messages expire."""
        while self.nodes[name].router.tick(self.now):
            pass

    def advance(self, seconds: float) -> None:
        """Time passes for all."""
        self.now += seconds
        for name in self.nodes:
            self.tick(name)

    def heal(self) -> None:
        """All reach each other, and have the time to become the same."""
        self.join_all()
        self.settle()
        for _ in range(3):
            self.advance(self.terms.digest_interval * 65)
            self.settle()
