"""Clients, a broker's core and the wire between them, without a socket, a task or a clock.

Owns: `Network` (a real `Router`, the time `now`, and the wires), `Link` (what the shell is to a connection: it feeds
the channel and takes from the buffer), and `Client` (the other end: the project's codec turned round, acknowledgements,
and the state that a client keeps over connections). A `Judge` looks at every packet on each client's wire.

Promises: everything is deterministic, and nothing moves unless a test says so. `Network.settle` moves until nothing is
left to move; `Link.flush`, `Link.to_channel` and `Link.to_client` move one wire by hand, so that a test can cut a
connection between any two bytes. `Network.pace` says how many bytes arrive in one read: 0 (all), 1, or any number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from canopy_mqtt.core.causes import CONNECTION_LOST
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Will,
)
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from tests.core.judge import ANY_SIZE, Judge
from tests.support.losses import dropped_by_cause

START: Final = 1_000.0
"""Seconds: the time at which every network begins. Not 0, which means "never" in the core."""

BATCH: Final = 1 << 30
"""Bytes that a link takes at once unless it is told otherwise."""


_Kind = TypeVar("_Kind", bound=Packet)


def bag(
    *user: tuple[str, str],
    i: dict[int, int] | None = None,
    s: dict[int, str] | None = None,
    b: dict[int, bytes] | None = None,
) -> Properties:
    """A filled bag of properties."""
    made = Properties()
    made.integers.update(i or {})
    made.strings.update(s or {})
    made.binaries.update(b or {})
    made.user.extend(user)
    return made


def limits(**changes: int | bytes | tuple[str, ...]) -> Limits:
    """Limits that differ from the defaults by name."""
    made = Limits()
    for name, value in changes.items():
        if not hasattr(made, name):
            raise AttributeError(name)
        # Compiled attributes take no int for a bool.
        setattr(made, name, type(getattr(made, name))(value))
    return made


class Link:
    """One connection: the wire in both directions, and the shell's part at the broker's end."""

    def __init__(self, network: Network, client: Client) -> None:
        self.network = network
        self.client = client
        self.version = client.version
        router = network.router
        self.send_buffer = SendBuffer(
            router.peers.touched, router.counters, router.limits.live_messages, router.limits.live_bytes
        )
        self.send_buffer.owner = self
        origin = Origin(f"client:{len(network.links)}")
        origin.mount = client.mount
        origin.host = client.host
        self.protocol = ServerProtocol(router, self.send_buffer, origin)
        self.protocol.answer_later = lambda reason_code: self.protocol.admitted(reason_code, network.now)
        self.up = bytearray()
        self.down = bytearray()
        # A frozen writer takes nothing, as for a peer that does not read.
        self.frozen = False
        self.batch = BATCH
        self.cut = False
        self.finished = False
        self._broken = False
        self._tap_up = Decoder(ANY_SIZE, server=True)
        self._tap_down = Decoder(ANY_SIZE, server=False, version=client.version)
        network.links.append(self)

    def flush(self, batches: int = 1_000_000) -> bool:
        """What the writer does when it is woken; at most so many batches. False when there was nothing to do."""
        send_buffer = self.send_buffer
        moved = False
        if self.cut or self.frozen:
            return False
        for _ in range(batches):
            batch = send_buffer.take_batch(self.batch, self.network.now)
            if batch:
                moved = True
                self._wrote(b"".join(batch))
            session = self.protocol.session
            more = session is not None and session.backlog and session.refill(self.network.now)
            if not batch and send_buffer.empty and not more:
                send_buffer.listed = False
                break
        if self.protocol.close_cause and send_buffer.empty and not self.finished:
            self.finished = True
            moved = True
            if self.protocol.final_packet:
                self._wrote(self.protocol.final_packet)
        return moved

    def _wrote(self, data: bytes) -> None:
        self.down += data
        self._tap_down.feed(data)
        while self._tap_down.next_frame():
            size = self._tap_down.end - self._tap_down.start
            self.client.judge.from_server(self._tap_down.packet(), size)

    def to_channel(self, count: int = ANY_SIZE) -> bool:
        """Up to `count` bytes reach the broker, in reads of the network's pace. False when there were none.

        As in the shell, nothing is read while the channel has not finished with what it got; the rest stays put.
        """
        if self.cut or not self.up or self._busy():
            return False
        moving = bytes(self.up[:count])
        del self.up[:count]
        at = 0
        for read in _reads(moving, self.network.pace):
            at += len(read)
            if not self._broken:
                self._listen(read)
            self.protocol.receive(read, self.network.now)
            if self._busy():
                break
        self.up[:0] = moving[at:]
        return True

    def _busy(self) -> bool:
        return self.protocol.waiting or self.protocol.unfinished

    def go_on(self) -> bool:
        """The channel's next turn, when the last one ended early for the sake of others. False when there is none."""
        protocol = self.protocol
        if self.cut or protocol.close_cause or not protocol.unfinished:
            return False
        if (
            protocol.waiting
            or protocol.throttled
            or self.send_buffer.congested
            or protocol.held_until > self.network.now
        ):
            return False
        protocol.go_on(self.network.now)
        return True

    def _listen(self, data: bytes) -> None:
        try:
            self._tap_up.feed(data)
            while self._tap_up.next_frame():
                self.client.judge.from_client(self._tap_up.packet())
        except ProtocolError:
            self._broken = True  # what the broker makes of it is for the test to see

    def to_client(self, count: int = ANY_SIZE) -> bool:
        """Up to `count` bytes reach the client, in reads of the network's pace. False when there was nothing."""
        if self.cut:
            return False
        moved = bool(self.down)
        moving = bytes(self.down[:count])
        del self.down[:count]
        for read in _reads(moving, self.network.pace):
            self.client.receive(read)
        if self.finished and not self.down and not self.client.closed:
            self.client.closed = True
            moved = True
        return moved

    def lose(self, cause: str = CONNECTION_LOST) -> None:
        """The network loses the connection, and with it whatever is on the wire."""
        if not self.cut:
            self.cut = True
            self.up.clear()
            self.down.clear()
            self.protocol.end(cause, self.network.now)


def _reads(data: bytes, pace: int) -> Iterator[bytes]:
    step = pace or len(data) or 1
    for at in range(0, len(data), step):
        yield data[at : at + step]


class Network:
    """A broker's core, its clients and the time."""

    def __init__(
        self, given: Limits | None = None, pace: int = 0, trie: str = "nodes", match_cache: int = 16_384
    ) -> None:
        self.router = Router(given or Limits(), trie, match_cache)
        self.now = START
        self.pace = pace
        self.links: list[Link] = []

    def client(self, client_id: str, version: int = p.V5, **connect: Any) -> Client:
        """A client that is connected; see `Client.connect`."""
        return self.mounted(client_id, version, "", **connect)

    def mounted(self, client_id: str, version: int, mount: str, **connect: Any) -> Client:
        """A client that is connected by a listener with this mount."""
        made = self.idle(client_id, version, mount)
        answer = made.connect(**connect)
        assert answer.reason_code == 0, answer
        return made

    def idle(self, client_id: str, version: int = p.V5, mount: str = "") -> Client:
        """A client that is not connected."""
        made = Client(self, client_id, version)
        made.mount = mount
        return made

    def settle(self) -> None:
        """Move everything until nothing moves."""
        moved = True
        while moved:
            moved = self.wake()
            if self.router.jobs.waiting:
                self.router.tick(self.now)
                moved = True
            for link in self.links:
                moved = link.go_on() or moved
                moved = link.to_channel() or moved
            moved = self.wake() or moved
            for link in self.links:
                moved = link.to_client() or moved
            if len(self.links) > 64:
                self.links = [link for link in self.links if not (link.cut or (link.finished and link.client.closed))]

    def wake(self) -> bool:
        """Wake the writers of the send buffers that were touched, or whose protocols are over, each once."""
        touched = self.router.peers.touched
        ended = [
            link.send_buffer for link in self.links if link.protocol.close_cause and not (link.finished or link.cut)
        ]
        listed = list(dict.fromkeys([*touched, *ended]))
        touched.clear()
        moved = False
        for send_buffer in listed:
            link = send_buffer.owner
            assert isinstance(link, Link)
            if link.frozen and not link.cut:
                touched.append(send_buffer)
            else:
                moved = link.flush() or moved
        return moved

    def advance(self, seconds: float) -> None:
        """Let time pass; what falls due is done, and the wires settle."""
        self.now += seconds
        while self.router.tick(self.now):
            self.settle()
        self.settle()

    def session(self, client_id: str) -> Session:
        """The broker's session of a client."""
        return self.router.sessions[client_id]


class Client:
    """The client's end of connections with one client identifier. Acknowledges by itself while `answering`."""

    def __init__(self, network: Network, client_id: str, version: int) -> None:
        self.network = network
        self.client_id = client_id
        self.version = version
        self.judge = Judge()
        self.answering = True
        # That of the listener by which it connects.
        self.mount = ""
        # The address from which it connects.
        self.host = ""
        self.link: Link | None = None
        self.closed = False
        # The ends of earlier connections that this client left open when it opened another.
        self.ghosts: list[Client] = []
        # Everything that came on this connection, and the application messages that came on all of them.
        self.packets: list[Packet] = []
        self.inbox: list[Publish] = []
        # What the client would acknowledge next, while it is not answering.
        self.unanswered: list[Packet] = []
        # State that outlives a connection: what was sent and is not complete, QoS 2 that came and is not released.
        self.outgoing: dict[int, Publish | None] = {}
        self.incoming: set[int] = set()
        self._decoder = Decoder(ANY_SIZE, server=False, version=version)
        self._aliases: dict[int, bytes] = {}
        self._told_to_go = False
        self._next_id = 0

    # -- connection --------------------------------------------------------------------------------------------------

    def connect(
        self,
        clean: bool = True,
        will: Will | None = None,
        keep_alive: int = 0,
        user_name: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
        expiry: int | None = None,
        receive_maximum: int | None = None,
        max_packet: int | None = None,
        frozen: bool = False,
        settle: bool = True,
        bridge: bool = False,
    ) -> Connack:
        """Connect, and resume what the session holds. The CONNACK; one with reason -1 when none has come yet."""
        given = properties or Properties()
        for identifier, value in ((0x11, expiry), (0x21, receive_maximum), (0x27, max_packet)):
            if value is not None:
                given.integers[identifier] = value
        self.dial()
        link = self.wire
        link.frozen = frozen
        self.send(
            Connect(self.client_id, self.version, clean, keep_alive, will, user_name, password, given, bridge),
        )
        if not settle:
            return Connack(False, -1)
        self.network.settle()
        return self.connack

    def dial(self) -> Link:
        """Open a connection and send nothing on it."""
        old = self.link
        if old is not None and old.protocol.close_cause:
            # What is still on the wire of a connection that is over nobody reads.
            old.lose()
        elif old is not None and not old.cut:
            # The old connection stays, for the broker to find out about; its bytes no longer reach this client.
            old.client = _Ghost(self)
        self.link = Link(self.network, self)
        self.closed = False
        self.packets = []
        self.unanswered = []
        self._decoder = Decoder(ANY_SIZE, server=False, version=self.version)
        self._aliases = {}
        self._told_to_go = False
        return self.link

    @property
    def wire(self) -> Link:
        """The present connection."""
        assert self.link is not None
        return self.link

    @property
    def connack(self) -> Connack:
        """The CONNACK of this connection, or one with reason -1."""
        found = self.got(Connack)
        return found[0] if found else Connack(False, -1)

    @property
    def session(self) -> Session:
        """The broker's session of this client."""
        return self.network.session(self.client_id)

    def cut(self) -> None:
        """Lose the connection with all that is under way, in both directions."""
        self.wire.lose()
        self.unanswered = []

    def killed(self) -> None:
        """The broker is gone with all its connections to this client; another one may follow."""
        for one in (self, *self.ghosts):
            if one.link is not None and not one.link.cut:
                one.wire.lose()
        self.ghosts = []
        self.unanswered = []
        self.answering = True
        # It knows what the last broker knew, which is more than the next one does.
        self.judge.enabled = False

    def disconnect(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        """Say goodbye."""
        self.send(Disconnect(reason_code, properties or Properties()))
        self.network.settle()

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, packet: Packet) -> None:
        """Put a packet on the wire; it moves with the network."""
        self.wire.up += encoder.encode(packet, self.version)

    def raw(self, data: bytes) -> None:
        """Put any bytes on the wire, and settle."""
        self.wire.up += data
        self.network.settle()

    def take_id(self) -> int:
        """A packet identifier that is not in use."""
        while True:
            self._next_id = self._next_id % 65_535 + 1
            if self._next_id not in self.outgoing:
                return self._next_id

    def post(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        expiry: int = -1,
        alias: int = 0,
    ) -> Publish:
        """Put a PUBLISH on the wire, and remember it until it is acknowledged."""
        packet = Publish(
            topic.encode(), payload, qos, retain, False, self.take_id() if qos else 0, properties, alias, expiry
        )
        if qos:
            self.outgoing[packet.packet_id] = packet
        self.send(packet)
        return packet

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        expiry: int = -1,
        alias: int = 0,
    ) -> Publish:
        """The same, and settle."""
        packet = self.post(topic, payload, qos, retain, properties, expiry, alias)
        self.network.settle()
        return packet

    def subscribe(self, *filters: str | Request, qos: int = 0, identifier: int = 0) -> list[int]:
        """Subscribe; the reason codes of the SUBACK."""
        requests = [one if isinstance(one, Request) else Request(one, qos) for one in filters]
        number = self.take_id()
        self.send(Subscribe(number, requests, bag(i={0x0B: identifier}) if identifier else Properties()))
        self.network.settle()
        [answer] = [each for each in self.got(Suback) if each.packet_id == number][-1:]
        return answer.reason_codes

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe; the reason codes of the UNSUBACK (none in 3.1.1)."""
        number = self.take_id()
        self.send(p.Unsubscribe(number, list(filters)))
        self.network.settle()
        [answer] = [each for each in self.got(Unsuback) if each.packet_id == number][-1:]
        return answer.reason_codes

    def ping(self) -> None:
        """A round trip."""
        before = len(self.got(p.Pingresp))
        self.send(p.Pingreq())
        self.network.settle()
        assert len(self.got(p.Pingresp)) == before + 1

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """A read."""
        decoder = self._decoder
        decoder.feed(data)
        while decoder.next_frame():
            self._on_packet(decoder.packet())

    def _on_packet(self, packet: Packet) -> None:
        assert not self._told_to_go, f"{packet!r} after DISCONNECT"  # [MQTT-3.14.4-1]
        self._told_to_go = isinstance(packet, Disconnect)
        self.packets.append(packet)
        if isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Publish):
            self._on_publish(packet)
        elif isinstance(packet, Ack):
            self._on_ack(packet)

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason_code:
            return
        if not packet.session_present:
            self.outgoing = {}
            self.incoming = set()
        for number, publish in self.outgoing.items():
            if publish is None:
                self.send(Ack(p.PUBREL, number))
            else:
                publish.dup = True
                self.send(publish)

    def _on_publish(self, packet: Publish) -> None:
        if packet.topic_alias:
            if packet.topic:
                self._aliases[packet.topic_alias] = packet.topic
            else:
                packet.topic = self._aliases[packet.topic_alias]
        if packet.qos < 2 or packet.packet_id not in self.incoming:
            self.inbox.append(packet)
        if packet.qos == 1:
            self._answer(Ack(p.PUBACK, packet.packet_id))
        elif packet.qos == 2:
            self.incoming.add(packet.packet_id)
            self._answer(Ack(p.PUBREC, packet.packet_id))

    def _on_ack(self, packet: Ack) -> None:
        number = packet.packet_id
        if packet.kind == p.PUBREL:
            self.incoming.discard(number)
            self._answer(Ack(p.PUBCOMP, number))
        elif packet.kind == p.PUBREC and packet.reason_code < 0x80:
            self.outgoing[number] = None
            self.send(Ack(p.PUBREL, number))
        else:
            self.outgoing.pop(number, None)

    def _answer(self, packet: Packet) -> None:
        if self.answering:
            self.send(packet)
        else:
            self.unanswered.append(packet)

    def answer(self, count: int = 1_000_000, settle: bool = True) -> None:
        """Send what waits to be acknowledged, the oldest first, and settle."""
        going, self.unanswered = self.unanswered[:count], self.unanswered[count:]
        for packet in going:
            self.send(packet)
        if settle:
            self.network.settle()

    def got(self, kind: type[_Kind]) -> list[_Kind]:
        """The packets of one type that came on this connection."""
        return [packet for packet in self.packets if isinstance(packet, kind)]

    def acks(self, kind: int) -> list[Ack]:
        """The acknowledgements of one type that came on this connection."""
        return [packet for packet in self.got(Ack) if packet.kind == kind]

    def take(self) -> list[Publish]:
        """The application messages since the last call."""
        taken, self.inbox = self.inbox, []
        return taken

    def payloads(self) -> list[bytes]:
        """Their payloads."""
        return [packet.payload for packet in self.take()]

    @property
    def end(self) -> int:
        """The reason code with which the broker ended this connection; -1: closed without a word, -2: still open."""
        if not self.closed:
            return -2
        said: list[Disconnect | Connack] = [*self.got(Disconnect), *self.got(Connack)]
        return said[0].reason_code if said and said[0].reason_code else -1


class _Ghost(Client):
    """What is left of a client at the end of a connection that it replaced: nobody reads."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.network, client.client_id, client.wire.version)
        # Until the broker has read the new CONNECT, what it reads and writes here is the session's.
        self.judge = client.judge
        self.link = client.link
        # Set by what came already.
        self._aliases = client._aliases
        client.ghosts.append(self)

    def _answer(self, packet: Packet) -> None:
        pass


def total_ledger(sessions: Iterable[Session]) -> list[str]:
    """What is wrong with the ledgers of some sessions; empty when all add up."""
    wrong = []
    for session in sessions:
        dropped = sum(dropped_by_cause(session))
        if session.offered != session.delivered_in_all() + dropped + session.queued():
            wrong.append(
                f"{session.client_id}: offered {session.offered}, delivered {session.delivered_in_all()},"
                f" dropped {dropped}, queued {session.queued()}"
            )
    return wrong


@contextmanager
def untouched(witness: Client, publisher: Client) -> Iterator[None]:
    """Whatever happens inside: two other clients stay connected and still hear each other."""
    witness.subscribe("witness/#", qos=1)
    yield
    witness.network.settle()
    witness.take()
    publisher.publish("witness/a", b"still here", 1)
    assert witness.payloads() == [b"still here"]
    assert not witness.closed
    assert not publisher.closed
