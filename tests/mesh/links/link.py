"""A node with a store that commits when it is told, and one connection to another node, without sockets and clocks."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, Final

from broker.core.codec import packets as p
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Ack, Connack, Packet, Publish, SubscriptionRequest
from broker.core.codec.topic_names import parse_shared
from broker.core.queues.live.outbox import Outbox
from broker.mesh.links import restoring
from broker.mesh.links.link import made
from broker.mesh.links.protocol import NodeProtocol
from broker.mesh.links.session import NodeSession
from broker.settings.brokers.mesh import Mesh
from tests.core.harness import BATCH, Client, Link, Network, bag
from tests.e2e.wire import RECEIVE_MAXIMUM
from tests.mesh.zenoh.nodes import Lines
from tests.store.grouped import GroupStore
from tests.store.observed import at_once
from tests.support.restored import restore

PATIENCE: Final = 5.0
EXPIRY: Final = 300.0


class Other:
    """The other node: what it has got, and what it knows of the QoS 2 publishes that are not complete."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.known: set[int] = set()
        self.has_session = False

    def act(self, packet: Packet) -> Packet | None:
        """Take a packet; the answer."""
        if isinstance(packet, Publish):
            number = packet.packet_id
            if packet.qos < 2 or number not in self.known:
                self.got.append(int(packet.payload))
            if packet.qos == 2:
                self.known.add(number)
            return Ack(p.PUBACK if packet.qos == 1 else p.PUBREC, number)
        assert isinstance(packet, Ack)
        assert packet.kind == p.PUBREL
        self.known.discard(packet.packet_id)
        return Ack(p.PUBCOMP, packet.packet_id)


class Wire(Link):
    """The connection: packets on their way there, and answers on their way back."""

    def __init__(self, node: Node, window: int) -> None:
        router = node.network.router
        self.node = node
        self.cut = self.frozen = False
        self.outbox = Outbox(router.peers.touched, router.counters, 0, node.settings.queue_bytes)
        self.outbox.owner = self
        self.there: deque[Packet] = deque()
        self.back: deque[Packet] = deque()
        self.peer = NodeProtocol(router, node.session, self.outbox, "$node/from/a", round(EXPIRY))
        self.clean_start = not node.session.known
        self.peer.hello(self.clean_start)
        self._decoder = Decoder(1 << 28, False, V5)
        other = node.other
        present = other.has_session and not self.clean_start
        if not present:
            other.known.clear()
        other.has_session = True
        self.hear(Connack(present, 0, bag(i={RECEIVE_MAXIMUM: window})))

    def hear(self, packet: Packet) -> None:
        """The other node says something."""
        self.peer.receive(encode(packet, V5), self.node.network.now)

    def flush(self, batches: int = 1_000_000) -> bool:
        """See `Link`: what is written is on its way."""
        del batches
        moved = False
        while not (self.cut or self.frozen):
            data = self.outbox.take(BATCH, self.node.network.now)
            if data:
                moved = True
                self._decoder.feed(data)
                while self._decoder.next_frame():
                    self.there.append(self._decoder.packet())
            if not self.peer.refill(self.node.network.now) and not data:
                self.outbox.woken()
                break
        return moved


class Node:
    """The node `a`, of which one process follows another."""

    def __init__(self, store: bool = True, piece: int = 0, **settings: Any) -> None:
        """`piece`: how many messages are kept in a turn; turns go on with `turn` and `commit`. 0: by themselves."""
        self.other = Other()
        self.piece = piece
        self.network = Network()
        self.log = Lines()
        self.store = GroupStore(lambda: self.network.now) if store else None
        self.companions: Any = None
        self.settings = Mesh(name="one", node="a", node_expiry=EXPIRY, **settings)
        self._begin()
        self.session = self._in_pieces(made(self.server, self.settings, "c"))
        self.wire: Wire | None = None
        self.publisher: Client = self._client()

    @property
    def server(self) -> Any:
        """What the links need of a server."""
        return SimpleNamespace(
            router=self.network.router,
            loop=SimpleNamespace(time=lambda: self.network.now),
            settings=SimpleNamespace(mesh=self.settings),
            companions=self.companions,
            log=self.log,
        )

    def _begin(self) -> None:
        router = self.network.router
        if self.store is not None:
            at_once(self.store.open(lambda: self.network.now))
            router.journal = self.store.journal
            if self.piece:
                self.store.gate.wake = lambda: None
        router.nodes.count = 1
        router.nodes.patience = PATIENCE

    def _in_pieces(self, session: NodeSession) -> NodeSession:
        if self.piece:
            session.piece = self.piece
        return session

    def _client(self) -> Client:
        return self.network.client("says")

    def kill(self) -> None:
        """kill -9, and another process: with what was committed."""
        assert self.store is not None
        self.publisher.killed()
        before, now = self.store, self.network.now
        self.network = Network()
        self.network.now = now
        self.store = GroupStore(lambda: self.network.now, before)
        self._begin()
        records = restore(self.network.router, at_once(self.store.load()), now)
        deque(restoring.restore(self.server, records, []), 0)
        self.wire = None
        session = self.network.router.sessions.get("$node/to/c")
        if session is None:
            session = made(self.server, self.settings, "c")
        assert isinstance(session, NodeSession)
        self.session = self._in_pieces(session)
        self.publisher = self._client()

    def commit(self) -> None:
        """All that was told is on disk."""
        assert self.store is not None
        self.store.commit_all()
        while self.turn():
            pass

    def turn(self) -> bool:
        """A turn of those who wait for the store. Whether there is more."""
        assert self.store is not None
        more = self.piece > 0 and self.store.gate.release()
        self.network.settle()
        return more

    def subscribe(self, name: str) -> None:
        """The other node wants a topic filter."""
        group, topic_filter = parse_shared(name)
        request = SubscriptionRequest(name, 2, not group, True, 2)
        self.network.router.subscribe(self.session, group, topic_filter, request, 0)

    def connect(self, window: int = 65_535) -> None:
        """The connection is there."""
        self.wire = Wire(self, window)
        self.network.settle()

    def lose(self) -> None:
        """The connection is lost, with what is on its way."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.cut = True
            wire.peer.lost("lost", self.network.now)
            self.network.settle()

    def act(self, count: int = 1 << 20) -> None:
        """The other node acts on so many packets; its answers are on their way."""
        wire = self.wire
        while wire is not None and wire.there and count > 0:
            count -= 1
            answer = self.other.act(wire.there.popleft())
            if answer is not None:
                wire.back.append(answer)

    def hear(self, count: int = 1 << 20) -> None:
        """So many of its answers arrive."""
        wire = self.wire
        while wire is not None and wire.back and count > 0:
            count -= 1
            wire.hear(wire.back.popleft())
            self.network.settle()

    def finish(self) -> None:
        """All goes its way."""
        while self.wire is not None and (self.wire.there or self.wire.back):
            self.act()
            self.hear()
            if self.store is not None:
                self.commit()

    def on_disk(self) -> list[int]:
        """The messages for the other node that a process which begins now would find, in their order."""
        assert self.store is not None
        kept = self.store.state.sessions.get("$node/to/c")
        found = [] if kept is None else [kept.deliveries[number].message for number in sorted(kept.deliveries)]
        return [int(message.payload) for message in found if message is not None]
