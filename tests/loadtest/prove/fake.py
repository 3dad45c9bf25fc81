"""A broker of its own, small and with switches: with none it keeps what MQTT promises, and each switch plants a fault.

It shares the codec with Canopy and nothing else, so that a fault of Canopy's cannot hide here. It keeps the rules that
a proof judges, not those of flow control and limits. A kill and a restart end all
connections and clean sessions, and lose nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Final, cast

from canopy_load.engine.job import Target
from canopy_load.prove.faults import BrokerFault, Fault
from canopy_mqtt.core.codec import encoder, packets
from canopy_mqtt.core.codec import properties as names
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import matches, parse_shared

TAKEN_OVER: Final = 0x8E
SHUTTING_DOWN: Final = 0x8B
NOT_AUTHORIZED: Final = 0x87
NO_SUBSCRIPTION_EXISTED: Final = 0x11
SLOW_SECONDS: Final = 8.0


class Planted(StrEnum):
    """The faults that can be planted; each says what the broker does."""

    LOSES_SOME = "loses every 20th acknowledged message, for the subscribers that are connected"
    LOSES_OF_AWAY = "keeps no message with QoS 1 for a client that is away"
    LOSES_QOS_2_OF_AWAY = "keeps no message with QoS 2 for a client that is away"
    LOSES_OF_EXACT = "loses every 5th message to a filter without wildcards"
    LOSES_IN_FLIGHT = "does not send again what was on its way when a connection broke"
    FORGETS_IDENTIFIERS = "forgets the identifiers of QoS 2 when a connection is taken over"
    TWICE = "sends every 20th message with QoS 2 twice"
    GROUP_TO_TWO = "sends every 10th message of a share group to two members"
    GROUP_TO_NOBODY = "loses what waits for a member of a share group"
    WAITS_FOR_ONE_MEMBER = "keeps what comes while no member is connected for the member whose turn it is"
    OLD_RETAINED = "keeps the first retained message of each topic"
    NO_RETAINED = "forgets every second retained topic"
    KEEPS_CLEARED = "keeps retained messages that an empty payload removes"
    STORES_EMPTY = "has an empty retained message where one was removed"
    NO_RETAINED_FOR_EXACT = "sends no retained messages to filters without wildcards"
    NO_RETAINED_FOR_V5 = "sends no retained messages to clients of 5.0"
    NO_WILL = "publishes no will of a client that is cut off"
    NO_WILL_OF_DURABLE = "publishes no will of a client of 3.1.1 whose session lasts"
    NO_WILL_OF_SILENT = "publishes no will of a client whose Keep Alive is over"
    WILL_AFTER_GOODBYE = "publishes a will after DISCONNECT, too"
    WILL_TOO_EARLY = "does not wait for the delay of a will"
    WILL_TWICE = "publishes each will twice"
    WILL_AFTER_RETURN = "publishes a delayed will although its client is back"
    REORDERS = "sends what waited for a client in the opposite order"
    OVERTAKES = "lets every 20th message overtake the one before, while its client is away"
    BEFORE_THE_DISK = "acknowledges before it has written to the disk, and loses the last writes in a kill"
    SESSION_GONE = "has no session for a client that comes back"
    PRESENT_WITHOUT_STATE = "says Session Present and has lost the subscriptions"
    PRESENT_AFTER_CLEAN = "says Session Present after a clean start"
    IGNORES_CLEAN_START = "goes on with the session of a client that starts clean, and does not say so"
    TWO_CONNECTIONS = "leaves the connection open that is taken over"
    NO_ANSWER = "does not answer every 40th PUBLISH with QoS 1"
    NO_SUBACK = "does not answer a SUBSCRIBE to #"
    ALTERS = "changes a byte in every 10th message"
    ALTERS_THE_FIRST = "changes the first byte of every 10th message"
    CUTS = "sends the first 8 bytes of every 10th message"
    EMPTIES = "sends every 10th message without its payload"
    HIGHER_QOS = "sends messages with QoS 1 with QoS 2"
    UNASKED = "sends each message on t/0 to a client without subscription"
    LOWER_QOS = "sends messages with QoS 2 with QoS 1"
    OVER_GRANTED = "sends each message with its own QoS, whatever was granted"
    TELLS_ANOTHER_REASON = "tells a connection that is taken over that the server shuts down"
    MAKES_UP = "sends after every 40th message one that nobody sent"
    DELIVERS_REFUSED = "refuses every 10th PUBLISH with QoS 1, and delivers it all the same"
    RETAINED_FADES = "forgets every second retained message that it has sent"
    SESSIONS_GONE_AFTER_KILL = "loses in a kill the sessions to which clients had come back"
    SILENT_TO_CONNECT = "does not answer every 10th CONNECT"
    SLOW_AFTER_KILL = "accepts connections after a kill, and answers 8 seconds later"
    STARVES_A_MEMBER = "gives no message of a share group to the member that came last"
    LOSES_OF_A_GROUP_EARLY = "loses the 41st to the 100th message of the share group of clean members"
    QOS_0_TWICE = "sends every 20th message with QoS 0 twice"
    KEEPS_AFTER_UNSUBSCRIBE = "sends what is published after UNSUBSCRIBE, too"
    NO_UNSUBACK = "does not answer UNSUBSCRIBE"
    IGNORES_NO_LOCAL = "sends messages back to their publisher, despite No Local"
    CLEARS_RETAIN = "clears RETAIN, despite Retain As Published"
    LEAVES_RETAIN = "leaves RETAIN 1 in new messages"
    IGNORES_RETAIN_HANDLING = "sends retained messages at each SUBSCRIBE, despite Retain Handling"
    IGNORES_KEEP_ALIVE = "keeps connections on which nothing comes"
    NO_FIRST_WILL = "publishes no will of the first connection of a client"
    OLD_RETAINED_ELSEWHERE = "has the first retained message of each topic at its second node"
    TWO_CONNECTIONS_ELSEWHERE = "leaves the connection open that is taken over at another node"
    ALWAYS_DUP = "sets DUP in everything with QoS 1 and 2"
    NEVER_DUP = "misses every 10th PUBACK, and sends the message again without DUP"
    DENIES_SUBSCRIPTIONS = "says in each UNSUBACK that there was no subscription"
    KEEPS_CLEAN_SESSIONS = "keeps sessions that end with their connections"
    DROPS_CONNECTIONS = "ends the connection of every 30th PUBLISH"
    DEAF_AFTER_KILL = "restores sessions after a kill without their subscriptions to t/#"


@dataclass
class Waiting:
    """A message for a session; `sent`: it was written on some connection; `released`: its PUBREC has come."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    packet_id: int = 0
    sent: bool = False
    released: bool = False


@dataclass
class Session:
    client_id: str
    filters: dict[str, SubscriptionRequest] = field(default_factory=dict)
    queue: deque[Waiting] = field(default_factory=deque)
    """What was not acknowledged yet, in order."""
    received: set[int] = field(default_factory=set)
    """Packet identifiers of QoS 2 messages that were taken over and not released."""
    identifiers: count[int] = field(default_factory=lambda: count(1))
    peer: Peer | None = None
    returned: bool = False
    """True if its client has come back to it."""

    def next_id(self) -> int:
        return next(self.identifiers) % 65_535 + 1


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, broker: FakeBroker, node: int = 0) -> None:
        self.broker = broker
        self.node = node
        self.transport: asyncio.Transport
        self.decoder = Decoder(MAX_PACKET, True)
        self.session: Session | None = None
        self.version = V5
        self.keeps = False
        self.will: Will | None = None
        self.keep_alive = 0
        self.heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.peers.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.broker.lost(self)

    def watch(self) -> None:
        """End the connection if nothing comes for one and a half times the Keep Alive."""
        loop = asyncio.get_running_loop()
        if self.broker.stopped is not None:
            self.heard = loop.time()
        due = self.heard + 1.5 * self.keep_alive
        if self.keep_alive and due <= loop.time() and Planted.IGNORES_KEEP_ALIVE not in self.broker.planted:
            if Planted.NO_WILL_OF_SILENT in self.broker.planted:
                self.will = None
            self.transport.close()
        elif self.keep_alive:
            self._timer = loop.call_at(max(due, loop.time() + 0.1), self.watch)

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        if self.broker.stopped is not None:
            self.broker.stopped.append((self, data))
            return
        try:
            self.decoder.feed(data)
            while self.decoder.next_frame() and not self.transport.is_closing():
                self.broker.got(self, self.decoder.packet())
        except ProtocolError:
            self.transport.abort()

    def send(self, packet: packets.Packet) -> None:
        self._write(encoder.encode(packet, self.version))

    def publish(self, each: Waiting, dup: bool) -> None:
        packet = Publish(each.topic.encode(), each.payload, each.qos, each.retain, dup, each.packet_id)
        self._write(encoder.publish(packet, self.version))

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


class FakeBroker:
    """A broker on a free port of 127.0.0.1, in the running event loop."""

    def __init__(self, *planted: Planted) -> None:
        self.planted = set(planted)
        self.peers: set[Peer] = set()
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, Waiting] = {}
        self.stopped: list[tuple[Peer, bytes]] | None = None
        self._counts: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._groups: dict[str, list[tuple[Waiting, int]]] = {}  # what waits for the member that connects first
        self._delays: dict[str, asyncio.TimerHandle] = {}
        self._unwritten: list[tuple[Session, Waiting]] = []
        self.grants = Properties()
        """The properties of each CONNACK."""
        self._slow = False
        self._connects: Counter[str] = Counter()
        self._first: dict[str, Waiting] = {}
        """The first retained message of each topic."""
        self._servers: list[asyncio.Server] = []
        self.ports = [0]

    @asynccontextmanager
    async def serving(self, nodes: int = 1) -> AsyncIterator[list[Target]]:
        """Listen while the block lasts. `nodes`: the number of ports, of which each stands for a node."""
        self.ports = [0] * nodes
        await self.start()
        try:
            yield [Target("127.0.0.1", port) for port in self.ports]
        finally:
            await self.close()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._servers = [
            await loop.create_server(lambda node=node: Peer(self, node), "127.0.0.1", port)  # type: ignore[misc]
            for node, port in enumerate(self.ports)
        ]
        self.ports = [each.sockets[0].getsockname()[1] for each in self._servers]

    async def close(self) -> None:
        """End it, and all connections."""
        for server in self._servers:
            server.close()
        for timer in self._delays.values():
            timer.cancel()
        self._delays.clear()
        peers, self.peers = self.peers, set()
        for peer in peers:
            session, peer.session = peer.session, None
            if session is not None:
                session.peer = None
                if not peer.keeps:
                    self.sessions.pop(session.client_id, None)
            peer.transport.abort()
        for server in self._servers:
            await server.wait_closed()

    async def inflict(self, fault: BrokerFault) -> None:
        """What a proof does to a broker that it has started."""
        if fault.fault is Fault.STOP:
            self.stopped = []
            return
        await self.close()
        if fault.fault is Fault.KILL:
            self._slow = Planted.SLOW_AFTER_KILL in self.planted
            if Planted.BEFORE_THE_DISK in self.planted:
                for session, each in self._unwritten[-30:]:
                    if each in session.queue:
                        session.queue.remove(each)
            if Planted.SESSIONS_GONE_AFTER_KILL in self.planted:
                self.sessions = {name: each for name, each in self.sessions.items() if not each.returned}
            if Planted.DEAF_AFTER_KILL in self.planted:
                for session in self.sessions.values():
                    session.filters.pop(next((each for each in session.filters if each.endswith("/t/#")), ""), None)

    async def heal(self, fault: BrokerFault) -> None:
        del fault
        if self.stopped is None:
            await self.start()
            if self._slow:
                self.stopped, self._slow = [], False
                asyncio.get_running_loop().call_later(SLOW_SECONDS, self._resume)
            return
        self._resume()

    def _resume(self) -> None:
        assert self.stopped is not None
        stopped, self.stopped = self.stopped, None
        for peer, data in stopped:
            if peer in self.peers:
                peer.data_received(data)

    def check(self) -> None:
        """It does not end by itself."""

    def every(self, planted: Planted, number: int) -> bool:
        """Return True each so many times, if this fault is planted."""
        if planted not in self.planted:
            return False
        self._counts[planted] += 1
        return self._counts[planted] % number == 0

    # -- what comes ----------------------------------------------------------------------------------------------------

    def got(self, peer: Peer, packet: packets.Packet) -> None:
        match packet:
            case Connect():
                self._connect(peer, packet)
            case Publish():
                self._publish(peer, packet)
            case Ack():
                self._acknowledge(peer, packet)
            case Subscribe():
                self._subscribe(peer, packet)
            case Unsubscribe():
                self._unsubscribe(peer, packet)
            case Disconnect():
                goodbye = Planted.WILL_AFTER_GOODBYE not in self.planted
                if goodbye:
                    peer.will = None
                peer.transport.close()
            case packets.Pingreq():
                peer.send(packets.Pingresp())
            case _:
                raise AssertionError(packet)

    def _connect(self, peer: Peer, packet: Connect) -> None:
        peer.version, peer.will = packet.version, packet.will
        expiry = packet.properties.integers.get(names.SESSION_EXPIRY_INTERVAL, 0)
        peer.keeps = bool(expiry) if packet.version == V5 else not packet.clean_start
        peer.keeps = peer.keeps or Planted.KEEPS_CLEAN_SESSIONS in self.planted
        clean_start = packet.clean_start
        if Planted.IGNORES_CLEAN_START in self.planted:
            peer.keeps, clean_start = True, False
        peer.keep_alive = packet.keep_alive
        peer.watch()
        if self.every(Planted.SILENT_TO_CONNECT, 10):
            return
        self._connects[packet.client_id] += 1
        if Planted.NO_FIRST_WILL in self.planted and self._connects[packet.client_id] == 1:
            peer.will = None
        before = self.sessions.get(packet.client_id)
        if before is not None and before.peer is not None:
            self._take_over(before, before.peer, peer.node)
            before = self.sessions.get(packet.client_id)
        delayed = self._delays.pop(packet.client_id, None)
        if delayed is not None and Planted.WILL_AFTER_RETURN not in self.planted:
            delayed.cancel()
        there = before is not None and not clean_start and Planted.SESSION_GONE not in self.planted
        session = before if there and before is not None else Session(packet.client_id)
        self.sessions[packet.client_id] = session
        session.returned = there
        peer.session, session.peer = session, peer
        present = there
        if Planted.PRESENT_WITHOUT_STATE in self.planted:
            session.filters.clear()
        if packet.clean_start:
            present = False
        if Planted.PRESENT_AFTER_CLEAN in self.planted and packet.version != V5:
            present = True
        waiting = [each for name in session.filters for each in self._groups.pop(name, ())]
        if Planted.GROUP_TO_NOBODY in self.planted and any(name.startswith("$share/") for name in session.filters):
            session.queue.clear()
            waiting.clear()
        peer.send(Connack(present, 0, self.grants if peer.version == V5 else None))
        if Planted.REORDERS in self.planted:
            fresh = [each for each in session.queue if not each.sent]
            session.queue = deque([*(each for each in session.queue if each.sent), *reversed(fresh)])
        for each in list(session.queue):
            if each.released:
                peer.send(Ack(PUBREL, each.packet_id))
            else:
                if each.sent and Planted.LOSES_IN_FLIGHT in self.planted:
                    session.queue.remove(each)
                    continue
                again, each.sent = each.sent, True
                peer.publish(each, dup=again and Planted.NEVER_DUP not in self.planted)
        for message, most in waiting:
            self._copy(session, message, most)

    def _take_over(self, session: Session, old: Peer, node: int) -> None:
        old.session = None
        session.peer = None
        if Planted.FORGETS_IDENTIFIERS in self.planted:
            session.received.clear()
        if not old.keeps:
            del self.sessions[session.client_id]
        if Planted.TWO_CONNECTIONS in self.planted:
            return
        if Planted.TWO_CONNECTIONS_ELSEWHERE in self.planted and node != old.node:
            return
        if old.version == V5:
            old.send(Disconnect(SHUTTING_DOWN if Planted.TELLS_ANOTHER_REASON in self.planted else TAKEN_OVER))
        old.transport.close()

    def lost(self, peer: Peer) -> None:
        """A connection is over."""
        self.peers.discard(peer)
        session, will = peer.session, peer.will
        if session is None:
            return
        peer.session = session.peer = None
        if not peer.keeps:
            self.sessions.pop(session.client_id, None)
        if will is None or Planted.NO_WILL in self.planted:
            return
        if Planted.NO_WILL_OF_DURABLE in self.planted and peer.keeps and peer.version != V5:
            return
        if will.delay and Planted.WILL_TOO_EARLY not in self.planted:
            loop = asyncio.get_running_loop()
            self._delays[session.client_id] = loop.call_later(will.delay, self._will, session.client_id, will)
        else:
            self._will(session.client_id, will)

    def _will(self, client_id: str, will: Will) -> None:
        self._delays.pop(client_id, None)
        for _ in range(2 if Planted.WILL_TWICE in self.planted else 1):
            self._route(Waiting(will.topic, will.payload, will.qos, will.retain))

    def _publish(self, peer: Peer, packet: Publish) -> None:
        session = peer.session
        if session is None:
            return
        if self.every(Planted.DROPS_CONNECTIONS, 30):
            peer.transport.abort()
            return
        known = packet.qos == 2 and packet.packet_id in session.received
        if packet.qos == 2:
            session.received.add(packet.packet_id)
        if not known:
            message = Waiting(packet.topic.decode(), packet.payload, packet.qos, packet.retain)
            self._route(message, session)
        if packet.qos == 1 and peer.version == V5 and self.every(Planted.DELIVERS_REFUSED, 10):
            peer.send(Ack(PUBACK, packet.packet_id, NOT_AUTHORIZED))
        elif packet.qos and not (packet.qos == 1 and self.every(Planted.NO_ANSWER, 40)):
            peer.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))

    def _acknowledge(self, peer: Peer, packet: Ack) -> None:
        session = peer.session
        if session is None:
            return
        if packet.kind == PUBREL:
            session.received.discard(packet.packet_id)
            peer.send(Ack(PUBCOMP, packet.packet_id))
            return
        found = next((each for each in session.queue if each.packet_id == packet.packet_id and each.sent), None)
        if packet.kind == PUBREC:
            if found is not None:
                found.released = True
            peer.send(Ack(PUBREL, packet.packet_id))
        elif found is not None and not self.every(Planted.NEVER_DUP, 10):
            session.queue.remove(found)

    def _subscribe(self, peer: Peer, packet: Subscribe) -> None:
        session = peer.session
        assert session is not None
        if packet.requests[0].topic_filter == "#" and Planted.NO_SUBACK in self.planted:
            return
        for each in packet.requests:
            session.filters[each.topic_filter] = each
        peer.send(Suback(packet.packet_id, [each.qos for each in packet.requests]))
        for each in packet.requests:
            if parse_shared(each.topic_filter)[0]:
                continue
            if each.retain_handling == 2 and Planted.IGNORES_RETAIN_HANDLING not in self.planted:
                continue
            if Planted.NO_RETAINED_FOR_EXACT in self.planted and not set("#+") & set(each.topic_filter):
                continue
            if Planted.NO_RETAINED_FOR_V5 in self.planted and peer.version == V5:
                continue
            elsewhere = peer.node and Planted.OLD_RETAINED_ELSEWHERE in self.planted
            for number, (topic, retained) in enumerate(sorted((self._first if elsewhere else self.retained).items())):
                if Planted.NO_RETAINED in self.planted and number % 2:
                    continue
                if matches(each.topic_filter, topic):
                    self._deliver(session, Waiting(topic, retained.payload, min(each.qos, retained.qos), True))
                    if self.every(Planted.RETAINED_FADES, 2):
                        del self.retained[topic]

    def _unsubscribe(self, peer: Peer, packet: Unsubscribe) -> None:
        session = peer.session
        assert session is not None
        if Planted.NO_UNSUBACK in self.planted:
            return
        if Planted.KEEPS_AFTER_UNSUBSCRIBE not in self.planted:
            for each in packet.topic_filters:
                session.filters.pop(each, None)
        code = NO_SUBSCRIPTION_EXISTED if Planted.DENIES_SUBSCRIPTIONS in self.planted else 0
        peer.send(Unsuback(packet.packet_id, [code] * len(packet.topic_filters) if peer.version == V5 else []))

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _route(self, message: Waiting, publisher: Session | None = None) -> None:
        if message.retain:
            self._first.setdefault(message.topic, message)
            if not message.payload and Planted.KEEPS_CLEARED in self.planted:
                pass
            elif not message.payload and Planted.STORES_EMPTY not in self.planted:
                self.retained.pop(message.topic, None)
                self._first.pop(message.topic, None)
            elif Planted.OLD_RETAINED not in self.planted or message.topic not in self.retained:
                self.retained[message.topic] = message
        groups: dict[str, list[tuple[Session, int]]] = {}
        no_local = Planted.IGNORES_NO_LOCAL not in self.planted
        lost = self.every(Planted.LOSES_OF_EXACT, 5)
        for session in list(self.sessions.values()):
            best = -1
            retain = message.retain and Planted.LEAVES_RETAIN in self.planted
            for name, asked in session.filters.items():
                group, plain = parse_shared(name)
                if lost and not set("#+") & set(plain):
                    continue
                if not matches(plain, message.topic) or (asked.no_local and no_local and publisher is session):
                    continue
                if group:
                    groups.setdefault(name, []).append((session, asked.qos))
                else:
                    best = max(best, asked.qos)
                    published = asked.retain_as_published and Planted.CLEARS_RETAIN not in self.planted
                    retain = retain or (published and message.retain)
            if best < 0 and message.topic.endswith("/t/0") and Planted.UNASKED in self.planted:
                best = 0
            if best >= 0:
                self._copy(session, message, best, retain)
        for name, members in groups.items():
            here = [each for each in members if each[0].peer is not None] or members
            self._turns[name] += 1
            early = 40 < self._turns[name] <= 100 and name.endswith("-clean/" + name.split("/", 2)[2])
            if early and Planted.LOSES_OF_A_GROUP_EARLY in self.planted:
                continue
            if len(here) > 1 and Planted.STARVES_A_MEMBER in self.planted:
                here = here[:-1]
            chosen = self._turns[name] % len(here)
            if here[chosen][0].peer is None and Planted.WAITS_FOR_ONE_MEMBER not in self.planted:
                self._groups.setdefault(name, []).append((message, here[chosen][1]))
                continue
            self._copy(*self._of(here[chosen], message))
            if len(here) > 1 and self.every(Planted.GROUP_TO_TWO, 10):
                self._copy(*self._of(here[chosen - 1], message))

    @staticmethod
    def _of(member: tuple[Session, int], message: Waiting) -> tuple[Session, Waiting, int]:
        return member[0], message, member[1]

    def _copy(self, session: Session, message: Waiting, most: int, retain: bool = False) -> None:
        """Send a message to a session, with its QoS or that of the subscription."""
        qos = message.qos if Planted.OVER_GRANTED in self.planted else min(most, message.qos)
        if qos == 2 and Planted.LOWER_QOS in self.planted:
            qos = 1
        if qos == 1 and Planted.HIGHER_QOS in self.planted:
            qos = 2
        payload = message.payload
        if self.every(Planted.ALTERS, 10):
            payload = payload[:-1] + b"?"
        if self.every(Planted.ALTERS_THE_FIRST, 10):
            payload = b"?" + payload[1:]
        if self.every(Planted.CUTS, 10):
            payload = payload[:8]
        if self.every(Planted.EMPTIES, 10):
            payload = b""
        away = session.peer is None
        if away and ((qos == 1 and Planted.LOSES_OF_AWAY in self.planted) or not qos):
            return
        if away and qos == 2 and Planted.LOSES_QOS_2_OF_AWAY in self.planted:
            return
        if not away and qos and self.every(Planted.LOSES_SOME, 20):
            return
        twice = (qos == 2 and self.every(Planted.TWICE, 20)) or (qos == 0 and self.every(Planted.QOS_0_TWICE, 20))
        for _ in range(2 if twice else 1):
            self._deliver(session, Waiting(message.topic, payload, qos, retain))
        if self.every(Planted.MAKES_UP, 40):
            self._deliver(session, Waiting(message.topic, payload[:12] + b"\x7f" + payload[13:], qos))

    def _deliver(self, session: Session, each: Waiting) -> None:
        if each.qos:
            each.packet_id = session.next_id()
            if session.peer is None and self.every(Planted.OVERTAKES, 20) and session.queue:
                session.queue.insert(len(session.queue) - 1, each)
            else:
                session.queue.append(each)
            self._unwritten.append((session, each))
        if session.peer is not None:
            each.sent = True
            session.peer.publish(each, dup=each.qos > 0 and Planted.ALWAYS_DUP in self.planted)
