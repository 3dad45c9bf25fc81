"""An MQTT server whose every fault is written in a script, and which keeps books of what it did.

Owns: `ScriptedServer`: MQTT 3.1.1 and 5.0, all qualities both ways, persistent sessions, wills, retained messages,
shared subscriptions. The bytes are made and read by `canopy_mqtt.core`; who gets what is found by looking through every
subscription of every session.

Promises: listens on a free port of 127.0.0.1 and lives in the event loop of the test; what it wrote stands in `books`
in the order in which it wrote it; what a client did against the specification stands in `violations`.

It has no expiry, no authorisation and no flow control of bytes (what a client does not read waits in this process).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from canopy_mqtt.core.codec import packets, properties
from canopy_mqtt.core.codec.packets import Ack, Connack, Connect, Publish, Suback, Subscribe, Unsuback, Unsubscribe
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.topic_names import matches, parse_shared
from tests.loadtest.account import Books, Message, Written
from tests.loadtest.peer import Peer, Session
from tests.loadtest.script import DELIVER, Delivery, Fate, Script


class ScriptedServer:
    """`async with ScriptedServer(Script(...)) as server:`, and `server.port` is where it listens."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = Script() if script is None else script
        self.books = Books()
        self.messages: list[Message] = []
        """Each application message that came in, once."""
        self.retained: dict[str, Message] = {}
        self.sessions: dict[str, Session] = {}
        self.connects: list[Connect] = []
        self.refused = 0
        self.subscribed: list[tuple[str, str]] = []
        self.unsubscribed: list[tuple[str, str]] = []
        self.disconnected: list[str] = []
        self.wills = 0
        self.refused_messages: list[Message] = []
        self.answered: set[tuple[str, str, bytes]] = set()
        """Messages with QoS 1 and 2 for which an answer went out."""
        self.most_in_flight: dict[str, int] = {}
        """By publisher: QoS 1 and 2 messages that were not answered at one time."""
        self.most_under_way: dict[str, int] = {}
        """By publisher: deliveries that were due and not written at one time."""
        self.violations: list[str] = []
        self.repeats = 0
        """Messages that came again without DUP."""
        self.port = 0
        self.stalled = False
        self._under_way: dict[str, int] = {}
        self._known: dict[tuple[str, str, bytes], Message] = {}
        self.arrivals: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        """By client, the number of its last CONNECT, from 0."""
        self.accepted: dict[str, int] = {}
        """The same of those that were accepted."""
        self._turns: dict[str, int] = {}
        self.peers: set[Peer] = set()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: Peer(self), "127.0.0.1", 0, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self._timers.clear()
        if self._timer is not None:
            self._timer.cancel()
        peers = list(self.peers)
        for peer in peers:
            peer.transport.abort()
        await asyncio.gather(*(peer.closed for peer in peers))
        await self._listener.wait_closed()

    # ------------------------------------------------------------------------------------------------------- the clock

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it after so many seconds; calls for the same moment in their order, and none while stalled."""
        heapq.heappush(self._timers, (asyncio.get_running_loop().time() + seconds, next(self._serial), call))
        self._wake()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._timers and not self.stalled:
            self._timer = asyncio.get_running_loop().call_at(self._timers[0][0], self._tick)

    def _tick(self) -> None:
        self._timer = None
        while self._timers and not self.stalled and self._timers[0][0] <= asyncio.get_running_loop().time():
            heapq.heappop(self._timers)[2]()
        self._wake()

    def begin_stall(self, seconds: float) -> None:
        """Do nothing for so long: nothing is read and nothing written."""
        self.stalled = True
        for peer in self.peers:
            peer.transport.pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._end_stall)

    def _end_stall(self) -> None:
        self.stalled = False
        for peer in list(self.peers):
            if not peer.transport.is_closing():
                peer.transport.resume_reading()
                peer.work()
        self._wake()

    # --------------------------------------------------------------------------------------------------------- clients

    def connect(self, peer: Peer, packet: Connect) -> None:
        """CONNECT: refuse, keep silent, or open the session."""
        self.connects.append(packet)
        name = packet.client_id or f"nameless-{len(self.connects)}"
        attempt = self.attempts[name] = self.attempts.get(name, -1) + 1
        code = self.script.connack(packet, attempt)
        if code is None:
            return
        if code:
            self.refused += 1
            peer.send(Connack(reason_code=code))
            peer.transport.close()
            return
        session = self.sessions.get(name)
        if session is not None and session.peer is not None:
            session.peer.session = None
            session.peer.transport.close()
            self._will(session.peer, name)
        present = session is not None and session.keeps and not packet.clean_start
        if session is None or not present:
            session = self.sessions[name] = Session(name, packet.version)
        limits = packet.properties.integers
        session.version = packet.version
        session.peer = peer
        session.connection = self.accepted[name] = self.accepted.get(name, -1) + 1
        session.keeps = (
            limits.get(properties.SESSION_EXPIRY_INTERVAL, 0) > 0 if packet.version == 5 else not packet.clean_start
        )
        session.receive_maximum = limits.get(properties.RECEIVE_MAXIMUM, 65_535)
        peer.session, peer.will = session, packet.will
        answer = Properties()
        if packet.version == 5:
            answer.integers.update(self.script.connack_properties)
        peer.send(Connack(present or self.script.resumes(name), 0, answer))
        if present:
            self._resume(session)

    def _resume(self, session: Session) -> None:
        for packet_id, (packet, written) in session.in_flight.items():
            assert session.peer is not None
            if packet_id in session.released:
                session.peer.send(Ack(packets.PUBREL, packet_id))
            else:
                packet.dup = True
                again = replace(written, dup=True, connection=session.connection)
                self.books.of(written.message.publisher, session.client_id).written.append(again)
                session.peer.send(packet)
        self._pump(session)

    def gone(self, peer: Peer) -> None:
        """The connection is over, by whomever."""
        self.peers.discard(peer)
        session, peer.session = peer.session, None
        if session is None:
            return
        session.peer = None
        self._will(peer, session.client_id)
        if not session.keeps:
            self.sessions.pop(session.client_id, None)

    def _will(self, peer: Peer, client_id: str) -> None:
        will, peer.will = peer.will, None
        if will is None:
            return

        def publish() -> None:
            session = self.sessions.get(client_id)
            if will.delay and session is not None and session.peer is not None:
                return
            self.wills += 1
            packet = Publish(will.topic.encode(), will.payload, will.qos, will.retain, properties=will.properties)
            self.arrive(client_id, packet, will=True)

        if will.delay:
            self.later(will.delay, publish)
        else:
            publish()

    def subscribe(self, peer: Peer, session: Session, packet: Subscribe) -> None:
        """SUBSCRIBE, and the retained messages for it behind the SUBACK."""
        codes, wanted = [], []
        for request in packet.requests:
            code = self.script.suback(session.client_id, request)
            if code is None:
                continue
            codes.append(code)
            if code >= 0x80:
                continue
            self.subscribed.append((session.client_id, request.topic_filter))
            new = request.topic_filter not in session.subscriptions
            request.qos = code
            session.subscriptions[request.topic_filter] = request
            share, _ = parse_shared(request.topic_filter)
            if not share and (request.retain_handling == 0 or (request.retain_handling == 1 and new)):
                wanted.append(request)
        peer.send(Suback(packet.packet_id, codes))
        for request in wanted:
            for topic, message in self.retained.items():
                if matches(request.topic_filter, topic):
                    self._give(session, session.client_id, message, min(message.qos, request.qos), DELIVER, True)

    def unsubscribe(self, peer: Peer, session: Session, packet: Unsubscribe) -> None:
        """UNSUBSCRIBE."""
        codes = []
        for each in packet.topic_filters:
            codes.append(0 if session.subscriptions.pop(each, None) else 0x11)
            self.unsubscribed.append((session.client_id, each))
        peer.send(Unsuback(packet.packet_id, codes))

    # -------------------------------------------------------------------------------------------------------- messages

    def note(self, publisher: str, packet: Publish, will: bool = False) -> Message:
        """The message that this packet carries; the same one when it is sent again."""
        topic = packet.topic.decode()
        key = (publisher, topic, packet.payload)
        if key in self._known:
            if not packet.dup:
                self.repeats += 1
            return self._known[key]
        number = self.arrivals[publisher] = self.arrivals.get(publisher, -1) + 1
        message = Message(publisher, topic, packet.payload, number, packet.qos, packet.retain, packet.properties, will)
        self._known[key] = message
        self.messages.append(message)
        return message

    def arrive(self, publisher: str, packet: Publish, will: bool = False) -> None:
        """Note a message and route it."""
        self.route(self.note(publisher, packet, will))

    def announce(self, topic: str, text: str) -> None:
        """Publish a retained message of the server's own."""
        self.route(Message("$SYS", topic, text.encode(), 0, 0, True))

    def route(self, message: Message) -> None:
        """Give a message to whoever has subscribed, as the script says."""
        if message.retain:
            self.retained.pop(message.topic, None)
            if message.payload:
                self.retained[message.topic] = message
        shares: dict[str, list[str]] = {}
        for session in list(self.sessions.values()):
            matched = []
            for each, request in session.subscriptions.items():
                share, inner = parse_shared(each)
                if not matches(inner, message.topic):
                    continue
                if share:
                    if session.peer is not None:
                        shares.setdefault(each, []).append(session.client_id)
                elif not (request.no_local and session.client_id == message.publisher):
                    matched.append(min(message.qos, request.qos))
            if matched and (session.peer is not None or max(matched)):
                one = [max(matched)]
                self._due(session, session.client_id, message, matched if self.script.copies_by_filter else one)
        for each, members in shares.items():
            turn = self._turns[each] = self._turns.get(each, -1) + 1
            choose = self.script.share
            member = choose(message, members) if choose else members[turn % len(members)]
            session = self.sessions[member]
            self._due(session, each, message, [min(message.qos, session.subscriptions[each].qos)])

    def _due(self, session: Session, subscriber: str, message: Message, qualities: list[int]) -> None:
        due = self.books.of(message.publisher, subscriber).due
        due[message.identity] = max(due.get(message.identity, 0), len(qualities))
        fate = self.script.fate(Delivery(message, subscriber, session.deliveries))
        session.deliveries += 1
        if fate.drop:
            return
        count = self._under_way[message.publisher] = self._under_way.get(message.publisher, 0) + 1
        self.most_under_way[message.publisher] = max(count, self.most_under_way.get(message.publisher, 0))

        def give() -> None:
            self._under_way[message.publisher] -= 1
            for qos in qualities:
                self._give(session, subscriber, message, qos, fate, False)

        def out() -> None:
            give()
            self._let_go(session)

        if fate.hold:
            session.held.append((fate.hold, give))
        elif fate.delay:
            self.later(fate.delay, out)
        else:
            out()

    def _let_go(self, session: Session) -> None:
        held, session.held = session.held, []
        for count, give in held:
            if count > 1:
                session.held.append((count - 1, give))
            else:
                give()

    def _give(self, session: Session, subscriber: str, message: Message, qos: int, fate: Fate, retained: bool) -> None:
        payload = fate.payload(message.payload) if fate.payload else message.payload
        topic = fate.topic or message.topic
        told = message.properties if session.version == 5 else b""
        if fate.told and session.version == 5:
            told += properties.encode_forward(user=[("canopy-lost", value) for value in fate.told])
        counts = [value.partition(";")[0] for value in fate.told if session.version == 5]
        lost = sum(int(each) for each in counts if each.isdigit())
        packet = Publish(topic.encode(), payload, qos, retained, properties=told)
        written = Written(
            message, session.client_id, session.connection, qos, False,
            (topic, payload) != (message.topic, message.payload), retained, lost,
        )  # fmt: skip
        for copy in range(fate.copies):
            again = copy > 0 and fate.dup and qos == 1
            note = replace(written, told=0 if copy else lost, dup=again)
            plain = message.properties if copy and session.version == 5 else packet.properties
            self._send(session, replace_publish(packet, again, plain), note, subscriber)

    def _send(self, session: Session, packet: Publish, written: Written, subscriber: str) -> None:
        if packet.qos and (session.peer is None or len(session.in_flight) >= session.receive_maximum):
            session.waiting.append((packet, written, subscriber))
            return
        if session.peer is None:
            return
        if packet.dup:
            packet.packet_id = session.next_id
            session.copies[packet.packet_id] = session.copies.get(packet.packet_id, 0) + 1
        elif packet.qos:
            session.next_id = session.next_id % 65_535 + 1
            packet.packet_id = session.next_id
            session.in_flight[packet.packet_id] = (packet, written)
        written = replace(written, connection=session.connection)
        self.books.of(written.message.publisher, subscriber).written.append(written)
        session.peer.send(packet)

    def _pump(self, session: Session) -> None:
        while session.waiting and session.peer and len(session.in_flight) < session.receive_maximum:
            self._send(session, *session.waiting.pop(0))

    def publish(self, peer: Peer, session: Session, packet: Publish) -> None:
        """PUBLISH from a client, with its acknowledgement."""
        if packet.qos == 0:
            self.arrive(session.client_id, packet)
            return
        name, number = session.client_id, packet.packet_id
        if number in session.incoming and not packet.dup:
            self.violations.append(f"{name}: packet identifier {number} is in use")
        known = number in session.unreleased
        session.incoming.add(number)
        limit = self.script.connack_properties.get(properties.RECEIVE_MAXIMUM, 65_535)
        if peer.version == 5 and len(session.incoming) > limit:
            self.violations.append(f"{name}: more than the Receive Maximum of {limit} in flight")
        self.most_in_flight[name] = max(self.most_in_flight.get(name, 0), len(session.incoming))
        message = self.note(name, packet)
        code = self.script.puback(message)
        if code is not None and code >= 0x80:
            self.refused_messages.append(message)
        elif not known:
            if packet.qos == 2:
                session.unreleased.add(number)
            self.route(message)
        if code is None:
            return

        def answer() -> None:
            self.answered.add(message.identity)
            if packet.qos == 1 or code >= 0x80:
                session.incoming.discard(number)
            peer.send(Ack(packets.PUBACK if packet.qos == 1 else packets.PUBREC, number, code))

        if self.script.ack_delay:
            self.later(self.script.ack_delay, answer)
        else:
            answer()

    def acknowledged(self, peer: Peer, session: Session, packet: Ack) -> None:
        """PUBACK, PUBREC, PUBREL, PUBCOMP."""
        number = packet.packet_id
        if packet.kind == packets.PUBREL:
            session.unreleased.discard(number)
            session.incoming.discard(number)
            peer.send(Ack(packets.PUBCOMP, number))
            return
        if session.copies.get(number):
            session.copies[number] -= 1
            return
        if number not in session.in_flight:
            self.violations.append(f"{session.client_id}: {packets.NAMES[packet.kind]} for {number}, which is free")
        if packet.kind == packets.PUBREC and packet.reason_code < 0x80:
            session.released.add(number)
            peer.send(Ack(packets.PUBREL, number))
            return
        session.in_flight.pop(number, None)
        session.released.discard(number)
        self._pump(session)


def replace_publish(packet: Publish, dup: bool, held: bytes) -> Publish:
    """A copy of a PUBLISH without its packet identifier."""
    return Publish(packet.topic, packet.payload, packet.qos, packet.retain, dup, properties=held)
