"""One network connection's side of the protocol: bytes come in, calls to the router and queued packets come out.

Owns the connection's state (waiting for CONNECT, authenticating, connected, closed), what was negotiated (version,
limits, keep alive), the topic aliases of the client, and the decision what to answer to each packet.

Promises:
- A read is parsed in one go and each PUBLISH is routed as it is met; only work that would hold up others, or would fill
  a queue that its writer could empty, is left for another turn. Events of other peers are applied before each turn.
- A malformed or forbidden packet ends this connection with the reason code of its error, and touches nobody else.
- A client that publishes faster than it may is held back, and goes on when its time has come (`held_until`).
- After `receive`, `close_cause` tells whether the connection is over; `final_packet` then is what is still to be
  written.

Refuses: sockets, tasks, timers. The shell calls `receive`, `lost`, `close`, and looks at `keep_alive`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.core.causes import (
    CLIENT_DISCONNECT,
    CLIENT_DISCONNECT_WITH_WILL,
    NOT_ALLOWED,
    PROTOCOL_ERROR,
    QUEUE_FULL,
    REFUSED,
    TAKEN_OVER,
)
from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import PINGRESP, encode
from broker.core.codec.errors import PacketTooLarge, ProtocolError, ProtocolViolation, Refused
from broker.core.codec.packets import (
    CONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    V5,
    V31,
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Suback,
)
from broker.core.codec.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    REQUEST_PROBLEM_INFORMATION,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
    Properties,
)
from broker.core.connection import first_bytes, handshake, identity, subscribing
from broker.core.connection.acknowledging import Acknowledger
from broker.core.connection.publishing import PublishHandler
from broker.core.connection.rate_limit import PublishLimit
from broker.core.connection.subscribing import FilterWork
from broker.core.hooks import LATER, AuthExchange, Ticket
from broker.core.queues.outbox import LARGEST_PACKET, Outbox, Peer
from broker.core.routing.peers import PeerDisconnected
from broker.core.routing.router import Router
from broker.core.session.session import Session

CONNECTING: Final = 0
AUTHENTICATING: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3

TURN_PACKETS: Final = 8_192
"""Packets of one connection that are acted on before others have their turn: about a millisecond, compiled."""

TURN_WORK: Final = 65_536
"""Deliveries that one connection may cause in a turn: some milliseconds. More than for packets, since the writers of
many receivers work best with many messages at once."""

STREAM_WORK: Final = 2_048
"""What the beginning of a stream of retained messages counts for in a turn: the topics that are looked at, at most."""

LARGE_READ: Final = 1_024
"""Bytes of a read that are a sign of life though no packet was completed: a large packet over a thin link. A client
that trickles a packet byte by byte is silent, in the sense of its keep alive."""

MAX_TEXT: Final = 256
"""Characters of a reason that are told and logged; it may quote what a client sent."""


_CROWDED: Final[dict[int, str]] = {
    reasons.QUOTA_EXCEEDED: "too many connections from this address",
    reasons.CONNECTION_RATE_EXCEEDED: "too many new connections",
}
"""What a client is told whose connection is one too many."""


class ServerProtocol(Peer):
    """The protocol state of one connection. `address` is the peer's, for logs and the gate."""

    def __init__(self, router: Router, outbox: Outbox, address: str) -> None:
        self.router = router
        self.outbox = outbox
        self.decoder = Decoder(
            handshake.first_packet_size(router.limits), max_user_properties=router.limits.max_user_properties
        )
        self._acknowledger = Acknowledger(outbox, router.limits, router.deadlines)
        self._publishing = PublishHandler(router, outbox, self.decoder, self._acknowledger)
        self.address = address
        # Known from the CONNECT on; `session` while it is connected.
        self.v5 = False
        self.version = 0
        self.client_id = ""
        self.session: Session | None = None
        self.state = CONNECTING
        self.close_cause = ""
        self.close_text = ""
        self.final_packet = b""
        self.last_received = 0.0
        outbox.peer = self
        # Known from the CONNECT on.
        self.keep_alive = 0
        self.accepted = False
        # What the log tells of the connection.
        self.user_name: str | None = None
        self.clean_start = False
        self.session_present = False
        self.messages_received: i64 = 0
        # True when a turn ended before the read was through: the shell calls `go_on`. True as well when that was
        # because a subscriber has fallen behind: a little later, then.
        self.unfinished = False
        self.hurried = False
        # Not before this time, when the client publishes too fast; 0.0: it does not.
        self.held_until = 0.0
        limits = router.limits
        self._publish_limit: PublishLimit | None = None
        if limits.max_publish_rate > 0.0 or limits.max_publish_bytes > 0:
            self._publish_limit = PublishLimit(
                limits.max_publish_rate, limits.max_publish_bytes, limits.publish_patience
            )
            self._publishing.longest_run = 1
        # The shell's, before the first `receive`: the IP address of the peer ("": none), and the reason code with which
        # its CONNECT is to be refused, because there are too many connections.
        self.host = ""
        self.refused = 0
        # How the first read began, until the client is accepted.
        self._first_bytes = b""
        # The shell's, where there is access control: it calls `admitted`, and looks at the connection after.
        self.answer_later: Callable[[int], None] | None = None
        # While access control is asked, and what it said by its ticket before it returned.
        self._asking = False
        self._early_answer = LATER
        # The CONNECT while a gate, or an authentication exchange, decides about it.
        self._connect: Connect | None = None
        self._pending_connect: Connect | None = None
        self._method = ""
        self._exchange: AuthExchange | None = None
        self._reauthenticating = False
        self._requested_expiry = 0
        # The SUBSCRIBE or UNSUBSCRIBE that is being worked off: nothing behind it is acted on before.
        self._filter_work: FilterWork | None = None
        # Whether a SUBACK may have properties [MQTT-3.1.2-29]; of our answers only CONNACK and DISCONNECT do besides.
        self._wants_problems = True

    # -- what the shell calls ------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> bool:
        """Take a read: apply what happened to other peers, then parse and act on the whole packets in it.

        True when the shell has to look at the connection: it was accepted, is over, or something is in the way of
        reading on.
        """
        if self.state == CLOSED:
            return True
        accepted = self.accepted
        self.router.counters.bytes_received += len(data)
        if len(data) >= LARGE_READ:
            self.last_received = now
        if self.state == CONNECTING and not self._first_bytes:
            self._first_bytes = data[: first_bytes.SHOWN]
        self.decoder.feed(data)
        if now < self.held_until:
            return True
        self.go_on(now)
        return (
            self.state == CLOSED
            or self.unfinished
            or accepted is not self.accepted
            or self._connect is not None
            or self.outbox.congested
        )

    def refill(self, now: float) -> bool:
        """After the writer took a batch: queue what waited for room. True when it should take another."""
        self.router.counters.load.now = now
        session = self.session
        more = session is not None and session.backlog and session.pump(now)
        return more or not self.outbox.empty

    def go_on(self, now: float) -> None:
        """A turn: apply what happened to other peers, then act on what the decoder holds.

        The shell calls it for a read that was left unfinished, when writers and other connections have had theirs, and
        not before `held_until`.
        """
        if self.state == CLOSED:
            return
        router = self.router
        router.fanout.drain(router, now)
        before = router.counters.messages_received
        try:
            self._run(now)
        except ProtocolError as error:
            self._fail(error)
        self.messages_received += router.counters.messages_received - before
        router.fanout.drain(router, now)

    def _run(self, now: float) -> None:
        """Act on the packets that are there: all of them, or as many as one turn allows.

        A turn ends early when others have waited long enough (`TURN_…`), when an outbox has become half full, so that
        its writer can empty it, when a 3.1.1 client, which knows no Receive Maximum, has as many acknowledgements to
        read as a 5.0 client may have publishes in flight, and when the client publishes too fast (`held_until`).
        """
        decoder = self.decoder
        router = self.router
        counters = router.counters
        half_full = counters.half_full
        backed_up = counters.backed_up
        acknowledger = self._acknowledger
        publishing = self._publishing
        work: i64 = 0
        before = router.work
        self.unfinished = False
        self.hurried = False
        if self.state == CONNECTING and self._first_bytes and self._first_bytes[0] >> 4 != CONNECT:
            # Said at once: what looks like a long packet of another kind would be waited for.
            raise ProtocolViolation("the first packet is not CONNECT")  # [MQTT-3.1.0-1]
        publish_limit = self._publish_limit
        if publish_limit is not None and self.held_until > 0.0:
            self.held_until = 0.0
            publish_limit.released(now)
        # Not a packet more once the connection is over, also of a read that a refused CONNECT began [MQTT-3.1.4-6].
        while self.state != CLOSED and self._connect is None:
            if (
                work >= TURN_PACKETS
                or router.work - before >= TURN_WORK
                or counters.half_full != half_full
                or counters.backed_up != backed_up
                or acknowledger.behind()
            ):
                # A packet that has not come whole is no reason for another turn.
                self.unfinished = decoder.end < len(decoder.buffer) or self._filter_work is not None
                if self.unfinished:
                    self.hurried = counters.backed_up != backed_up
                    return
            if self._filter_work is not None:
                self._work_off(self._filter_work, before + TURN_WORK, now)
                continue
            if not decoder.next_frame():
                return
            work += 1
            self.last_received = now
            counters.packets_received += 1
            kind: i64 = decoder.header >> 4
            if self.state != CONNECTED:
                self._packet(now)
            elif kind == 3:
                taken: i64 = publishing.publish(now)
                counters.messages_received += taken
                if taken > 1:
                    work += taken - 1
                    counters.packets_received += taken - 1
                if publish_limit is not None:
                    self.held_until = publish_limit.published(taken, decoder.end - decoder.start, now)
                    if self.held_until > 0.0:
                        # Another turn even when nothing more has come yet: until then the client is not read from.
                        self.unfinished = True
                        return
            elif 4 <= kind <= 7:
                # Those of four bytes side by side, and perhaps none.
                start: i64 = decoder.start
                stop: i64 = start
                if kind == PUBREL:
                    stop = acknowledger.released_run(decoder.buffer, start)
                elif self.session is not None:
                    stop = self.session.on_acks(kind, decoder.buffer, start, now)
                if stop > start:
                    decoder.end = stop
                    work += (stop - start) // 4 - 1
                    counters.packets_received += (stop - start) // 4 - 1
                    continue
                packet_id = decoder.short_ack()
                if packet_id > 0:
                    self._on_ack(kind, packet_id, reasons.SUCCESS, now)
                else:
                    self._packet(now)
            else:
                self._packet(now)

    @property
    def throttled(self) -> bool:
        """True while an unfinished turn waits for the client to be sent its acknowledgements."""
        return self._acknowledger.behind()

    @property
    def waiting(self) -> bool:
        """True while a gate makes up its mind: the shell stops reading until `admitted` was called."""
        return self._connect is not None

    def answer_connect(self, reason_code: int) -> None:
        """`Ticket.answer` was called: have the shell call `admitted`."""
        if self._asking:
            self._early_answer = reason_code
            return
        answer_later = self.answer_later
        if answer_later is not None and self._connect is not None:
            answer_later(reason_code)

    def admitted(self, reason_code: int, now: float) -> None:
        """The late answer of access control. Does nothing when the connection has ended meanwhile."""
        connect = self._connect
        self._connect = None
        if connect is None or self.state == CLOSED:
            return
        router = self.router
        router.fanout.drain(router, now)
        before = router.counters.messages_received
        try:
            if reason_code >= 0x80:
                raise Refused(reasons.name(reason_code), reason_code)
            self._admit(connect, now)
            self._run(now)
        except ProtocolError as error:
            self._fail(error)
        self.messages_received += router.counters.messages_received - before
        router.fanout.drain(router, now)

    def lost(self, cause: str, now: float) -> None:
        """The connection is gone, or given up: nothing more can be written [MQTT-3.1.2-8]."""
        self._end(cause, "")
        self.router.fanout.drain(self.router, now)

    def close(self, cause: str, reason_code: int, text: str, now: float) -> None:
        """End the connection from this side, with a DISCONNECT where the protocol has one.

        That is in 5.0, when a CONNACK has accepted the client [MQTT-3.14.0-1].
        """
        if self.state == CLOSED:
            return
        if self.v5 and self.state == CONNECTED:
            self.final_packet = self._disconnect(reason_code, text)
        elif self.state == AUTHENTICATING and reason_code == reasons.SERVER_SHUTTING_DOWN:
            # Of the reasons for which a server ends a connection, only this one has a CONNACK to tell it.
            self.final_packet = handshake.refusal(
                self.version, reasons.SERVER_UNAVAILABLE, text, self.outbox.max_packet
            )
        self._end(cause, text)
        self.router.fanout.drain(self.router, now)

    def take_over(self, now: float) -> None:
        """Another connection of the client ends this one [MQTT-3.1.4-3], in 3.1.1 without a word [MQTT3-3.1.4-2]."""
        self.close(TAKEN_OVER, reasons.SESSION_TAKEN_OVER, "another connection with this client identifier", now)

    def overflow(self, now: float) -> None:
        """The queue ran over, and its policy is to end the connection: with 0x97 where the client can be told."""
        self.close(QUEUE_FULL, reasons.QUOTA_EXCEEDED, "the queue for this client is full", now)

    def answer(self, packet_id: int, qos: int, reached: bool) -> None:
        """It is known whether a request reached anybody (`queues.requests`)."""
        del qos
        self._acknowledger.settle(packet_id, reached)

    # -- endings -------------------------------------------------------------------------------------------------------

    def _end(self, cause: str, text: str) -> None:
        if self.state == CLOSED:
            return
        self.state = CLOSED
        self.close_cause = cause
        self.close_text = text
        self._connect = None
        self._pending_connect = None
        self.answer_later = None
        self._exchange = None
        self._filter_work = None
        self._acknowledger.ended()
        self._publishing.ended()
        session = self.session
        if session is not None:
            if self.router.tap is not None:
                self.router.tap.disconnected(session.client_id, self.address, cause)
            self.router.fanout.post(PeerDisconnected(session, self.outbox, cause))
            self.session = None
        else:
            self.outbox.close()
        self.outbox.report_end()

    def _fail(self, error: ProtocolError) -> None:
        """Answer an error of the peer with its reason code and end the connection (section 4.13).

        It ends whether or not there is an answer that can be sent [MQTT-4.13.1-1] [MQTT-4.13.2-1] [MQTT3-4.8.0-1], and
        so does that of a client which is refused [MQTT-3.2.2-7] [MQTT3-3.2.2-5]. Before the client was accepted the
        answer is a CONNACK and never a DISCONNECT [MQTT-3.14.0-1].
        """
        text = str(error)[:MAX_TEXT]
        if self.state == CONNECTED and not self.v5 and isinstance(error, (Refused, PacketTooLarge)):
            # Only 5.0 clients are told of the limits that hold for them, in CONNACK.
            self._end(NOT_ALLOWED, text)
            return
        self.router.counters.protocol_errors += 1
        if self.state == CONNECTED:
            if self.v5:
                self.final_packet = self._disconnect(error.reason_code, text)
            self._end(PROTOCOL_ERROR, text)
            return
        if self.state == CLOSED:
            return
        if not self.client_id:
            self.client_id = self.decoder.client_id
        # A CONNECT that broke off may still have told its version, and so what answer it can read.
        version = self.version or self.decoder.version
        if version == 0:
            text = first_bytes.guess(self._first_bytes) or text
        self.final_packet = handshake.refusal(version, error.reason_code, text, self.outbox.max_packet)
        if isinstance(error, Refused):
            self._end(REFUSED, text)
        else:
            self._end(PROTOCOL_ERROR, text)

    def _answer(self, packet: Packet) -> None:
        """Queue a control packet that may be long; one that the client cannot take ends the connection.

        [MQTT-3.1.2-24]
        """
        raw = encode(packet, self.version)
        if len(raw) > self.outbox.max_packet:
            raise ProtocolError("the answer exceeds the client's Maximum Packet Size", reasons.PACKET_TOO_LARGE)
        self.outbox.control(raw)

    def _answer_subscribe(self, suback: Suback) -> None:
        """Queue a SUBACK, without its properties where the client takes less [MQTT-3.9.2-1] [MQTT-3.9.2-2].

        Or where it wants none: its Request Problem Information was 0 [MQTT-3.1.2-29].
        """
        if suback.properties and (
            not self._wants_problems or len(encode(suback, self.version)) > self.outbox.max_packet
        ):
            suback.properties = Properties()
        self._answer(suback)

    def _disconnect(self, reason_code: int, text: str) -> bytes:
        # Never longer than the client takes [MQTT-3.14.2-3]; it has no User Property to leave out [MQTT-3.14.2-4].
        packet = Disconnect(reason_code)
        return handshake.with_reason(packet, packet.properties, text, self.outbox.max_packet)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _packet(self, now: float) -> None:
        """Any packet but a PUBLISH of a connected client."""
        decoder = self.decoder
        if self.state == CONNECTED and decoder.header >> 4 == 1:
            # Whatever it says [MQTT-3.1.0-2].
            raise ProtocolViolation("a second CONNECT")
        kind = decoder.header >> 4
        if self.state == CONNECTED and kind in (SUBSCRIBE, UNSUBSCRIBE):
            assert self.session is not None
            self._filter_work = FilterWork(decoder.filters(), self.session, self.router)
            return
        packet = decoder.packet()
        if self.state == CONNECTING:
            assert isinstance(packet, Connect)
            self._on_connect(packet, now)
            return
        if self.state == AUTHENTICATING:
            if isinstance(packet, Auth):
                self._on_auth(packet, now)
                return
            if isinstance(packet, Disconnect):
                self._end(CLIENT_DISCONNECT, "")
                return
            raise ProtocolViolation("only AUTH or DISCONNECT may come before CONNACK")  # [MQTT-3.1.2-30]
        session = self.session
        assert session is not None
        if isinstance(packet, Ack):
            self._on_ack(packet.kind, packet.packet_id, packet.reason_code, now)
        elif isinstance(packet, Pingreq):
            self.outbox.control(PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, Disconnect):
            self._on_disconnect(packet, session)
        elif isinstance(packet, Auth):
            self._on_auth(packet, now)
        else:
            raise ProtocolViolation("a packet that only a server sends")

    def _work_off(self, work: FilterWork, until: i64, now: float) -> None:
        """Go on with a SUBSCRIBE or UNSUBSCRIBE; answer it when all of it was acted on."""
        if not work.turn(until):
            return
        self._filter_work = None
        answer = work.answer()
        if not isinstance(answer, Suback):
            self._answer(answer)  # [MQTT-3.10.4-4]
            return
        self._answer_subscribe(answer)  # [MQTT-3.8.4-1]
        session = self.session
        if session is not None and session.streams is not None:
            # The first retained messages go at once; the others at the receiver's pace, as its writer fetches them.
            self.router.work += STREAM_WORK
            if session.pump(now):
                self.outbox.schedule_flush()

    def _on_ack(self, kind: i64, packet_id: int, reason_code: int, now: float) -> None:
        session = self.session
        assert session is not None
        if kind == PUBACK:
            session.on_puback(packet_id, reason_code, now)
        elif kind == PUBREC:
            session.on_pubrec(packet_id, reason_code, now)
        elif kind == PUBCOMP:
            session.on_pubcomp(packet_id, now)
        else:
            self._acknowledger.released(packet_id)

    # -- CONNECT -------------------------------------------------------------------------------------------------------

    def _on_connect(self, connect: Connect, now: float) -> None:
        self.version = connect.version
        self.v5 = connect.version == V5
        self.client_id = connect.client_id
        self.user_name = connect.user_name
        self.clean_start = connect.clean_start
        self._wants_problems = connect.properties.integers.get(REQUEST_PROBLEM_INFORMATION, 1) != 0
        self.outbox.max_packet = connect.properties.integers.get(MAXIMUM_PACKET_SIZE, LARGEST_PACKET)
        router = self.router
        handshake.check_load(router, now)
        if self.refused != 0 and not self._takes_over(connect.client_id):
            raise Refused(_CROWDED.get(self.refused, ""), self.refused)
        handshake.check(connect, router)
        method = connect.properties.strings.get(AUTHENTICATION_METHOD)
        if method is not None:
            known = router.auth_methods.get(method)
            if known is None:
                # CONNACK 0x8C, and closed [MQTT-4.12.0-1].
                raise Refused(f"unknown authentication method {method[:64]!r}", reasons.BAD_AUTHENTICATION_METHOD)
            self.state = AUTHENTICATING
            self._method = method
            self._exchange = known.begin()
            self._pending_connect = connect
            self._exchange.start(connect, connect.properties.binaries.get(AUTHENTICATION_DATA))
            self._after_auth_step(now)
            return
        self._ask_gate(connect, now)

    def _takes_over(self, client_id: str) -> bool:
        """Whether a client of an address with too many connections comes in place of one of them.

        Its old connection may well be dead, and would keep it out until somebody notices.
        """
        earlier = self.router.sessions.get(client_id)
        if self.refused != reasons.QUOTA_EXCEEDED or earlier is None or earlier.outbox is None:
            return False
        peer = earlier.outbox.peer
        return isinstance(peer, ServerProtocol) and peer.host == self.host

    def _ask_gate(self, connect: Connect, now: float) -> None:
        """Whoever decides about clients is asked last, also when an authentication method was satisfied.

        A client that the gate turns away is refused like any other: its connection closes [MQTT-3.1.4-2].
        """
        access_control = self.router.access_control
        if access_control is not None:
            self._connect = connect
            self.state = AUTHENTICATING
            self._early_answer = LATER
            self._asking = True
            try:
                answer = access_control.admit(connect, self.address, LateAnswer(self))
            finally:
                self._asking = False
            if answer == LATER:
                # It may have been given before the call was over.
                answer = self._early_answer
            if answer == LATER or self._connect is None:
                return
            self._connect = None
            if answer >= 0x80:
                raise Refused(reasons.name(answer), answer)
        self._admit(connect, now)

    def _admit(self, connect: Connect, now: float) -> None:
        """The client may come in: take over an earlier connection, open the session, answer CONNACK [MQTT-3.1.4-5].

        Until then only AUTH went to the client [MQTT-3.2.0-1]: its session gets the outbox here, and the CONNACK is the
        first thing in it. Only a CONNECT leads here, and a second one is refused, so there is one CONNACK
        [MQTT-3.2.0-2].
        """
        router = self.router
        client_id = connect.client_id
        assigned = ""
        if not client_id:
            # From here on as if the client had brought it; the CONNACK tells [MQTT-3.1.3-7].
            assigned = router.new_client_id()
            client_id = assigned
        self.client_id = client_id
        terms = handshake.Terms(connect, router.limits)
        connack = handshake.accept(connect, terms, assigned, router)
        exchange = self._exchange
        if exchange is not None:  # else no method is named [MQTT-4.12.0-6]
            connack.properties.strings[AUTHENTICATION_METHOD] = self._method
            if exchange.data is not None:
                connack.properties.binaries[AUTHENTICATION_DATA] = exchange.data
        if connack.properties.user and len(encode(connack, self.version)) > self.outbox.max_packet:
            connack.properties.user.clear()  # [MQTT-3.2.2-20]
        if len(encode(connack, self.version)) > self.outbox.max_packet:
            # Nothing has been done yet, and nothing can be said [MQTT-3.1.2-24].
            self._end(REFUSED, "the CONNACK does not fit the client's Maximum Packet Size")
            return
        access_control = router.access_control
        will = connect.will
        if (
            will is not None
            and access_control is not None
            and not access_control.may_publish(client_id, connect.user_name, will.topic)
        ):
            raise Refused("the will's topic", reasons.NOT_AUTHORIZED)  # section 5.4.2
        earlier = router.sessions.get(client_id)
        identity.check_owner(earlier, connect.user_name, router.limits, now)
        handshake.check_session(connect, client_id, router, now)
        if earlier is None or earlier.outbox is None:
            handshake.check_room(router)
        else:
            peer = earlier.outbox.peer
            assert peer is not None
            peer.take_over(now)
            router.fanout.drain(router, now)
        outbox = self.outbox
        outbox.v5 = self.v5
        outbox.max_aliases = terms.max_aliases
        self.keep_alive = terms.keep_alive
        self._requested_expiry = terms.requested_expiry
        session, present = router.connect(
            client_id, connect.clean_start, outbox, self.version, terms.window, terms.max_aliases == 0, now
        )
        another = session.user_name != connect.user_name
        session.user_name = connect.user_name
        router.apply_queue_limits(session)
        if another and session.subscriptions and router.limits.rules:
            router.renew_lanes(session)
        session.link_peer = handshake.link_peer(connect)
        session.link = identity.is_link(client_id, connect.user_name, router.limits)
        # A broker of our own kind says 0x10 by itself where it reaches nobody.
        session.answers = session.link and session.link_peer != ""
        session.bridge = connect.bridge
        session.expiry_interval = terms.expiry
        session.will = connect.will  # [MQTT-3.1.2-7]
        router.session_table.count(session)
        if router.journal is not None:
            router.settle(session)
        self.session = session
        self._first_bytes = b""
        self.answer_later = None
        self.decoder.max_packet_size = router.limits.max_packet_size
        self._acknowledger.connected(session, self.version)
        self._publishing.connected(session, self.version, connack.properties.integers.get(TOPIC_ALIAS_MAXIMUM, 0))
        self.state = CONNECTED
        self.accepted = True
        # Whether there was a session to go on with [MQTT-3.2.2-3], so never after a clean start [MQTT-3.2.2-2]
        # [MQTT3-3.2.2-1]. In 3.1 the byte is reserved.
        connack.session_present = present and self.version != V31
        self.session_present = connack.session_present
        outbox.control(encode(connack, self.version))
        if router.tap is not None:
            router.tap.connected(
                client_id, self.address, connect.user_name, self.version, connect.clean_start, connack.session_present
            )
        if present:
            subscribing.ask_again(session, router)
            session.resume(now)

    # -- AUTH ----------------------------------------------------------------------------------------------------------

    def _on_auth(self, packet: Auth, now: float) -> None:
        """AUTH from the client (section 4.12): only for the method that its CONNECT named.

        That holds for re-authentication too [MQTT-4.12.1-1].
        """
        exchange = self._exchange
        if exchange is None:
            raise ProtocolViolation("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
        method = packet.properties.strings.get(AUTHENTICATION_METHOD)
        if method != self._method:
            raise ProtocolViolation("AUTH names another authentication method than CONNECT")  # [MQTT-4.12.0-5]
        data = packet.properties.binaries.get(AUTHENTICATION_DATA)
        if packet.reason_code == reasons.REAUTHENTICATE:
            if self.state != CONNECTED or self._reauthenticating:
                raise ProtocolViolation("re-authentication while authenticating")
            self._reauthenticating = True
            exchange.again(data)
        elif packet.reason_code == reasons.CONTINUE_AUTHENTICATION and (
            self.state == AUTHENTICATING or self._reauthenticating
        ):
            exchange.proceed(data)
        else:
            # Within an exchange the client has 0x18 and nothing else to say [MQTT-4.12.0-3].
            raise ProtocolViolation("AUTH with a reason code that may not come now")
        self._after_auth_step(now)

    def _after_auth_step(self, now: float) -> None:
        """Say what the exchange has come to: AUTH, CONNACK or the end.

        An AUTH goes out for an exchange only, never to a client that named no method [MQTT-4.12.0-6]. It has no Reason
        String and no User Property that could make it too large [MQTT-3.15.2-2] [MQTT-3.15.2-3].
        """
        exchange = self._exchange
        assert exchange is not None
        code = exchange.reason_code
        if code >= 0x80:
            if self.state == CONNECTED:
                raise ProtocolError("re-authentication failed", code)  # [MQTT-4.12.1-2]
            raise Refused("authentication failed", code)  # [MQTT-4.12.0-4]
        if code == reasons.SUCCESS and self.state == AUTHENTICATING:
            connect = self._pending_connect
            assert connect is not None
            self._pending_connect = None
            self._ask_gate(connect, now)
            return
        if code == reasons.SUCCESS:
            self._reauthenticating = False
        answer = Auth(code)  # 0x18 while more is asked for [MQTT-4.12.0-2]
        answer.properties.strings[AUTHENTICATION_METHOD] = self._method
        if exchange.data is not None:
            answer.properties.binaries[AUTHENTICATION_DATA] = exchange.data
        self._answer(answer)

    # -- DISCONNECT ----------------------------------------------------------------------------------------------------

    def _on_disconnect(self, packet: Disconnect, session: Session) -> None:
        expiry = packet.properties.integers.get(SESSION_EXPIRY_INTERVAL, -1)
        if expiry >= 0:
            if expiry > 0 and self._requested_expiry == 0:
                # [MQTT-3.14.2-2] and section 3.14.2.2.2: it cannot be raised from zero.
                raise ProtocolViolation("Session Expiry Interval raised from 0 in DISCONNECT")
            session.expiry_interval = handshake.granted_expiry(expiry, self.router.limits)
        if packet.reason_code == reasons.SUCCESS:
            self._end(CLIENT_DISCONNECT, "")
        else:
            self._end(CLIENT_DISCONNECT_WITH_WILL, reasons.name(packet.reason_code))


class LateAnswer(Ticket):
    """The ticket of one connection's CONNECT."""

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol

    def answer(self, reason_code: int) -> None:
        """See `Ticket`."""
        self._protocol.answer_connect(reason_code)
