"""One network connection's protocol: bytes come in; calls to the router and queued packets go out.

Moves a connection through its phases (`phases`) and its packets to their handlers, in bounded turns: the rest of a read
waits until other connections have had a turn. An invalid packet ends this connection with the reason code of its error,
and affects no other. The shell calls `receive`, `go_on`, `lost` and `close`; after each of them `close_cause` says
whether the connection has ended, and `final_packet` what is still to be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.core.causes import (
    CLIENT_DISCONNECT,
    CLIENT_DISCONNECT_WITH_WILL,
    MAX_TEXT,
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
from broker.core.codec.packets import PUBREL, V5, Ack, Auth, Connect, Disconnect
from broker.core.codec.properties import TOPIC_ALIAS_MAXIMUM
from broker.core.connection import phases
from broker.core.connection.answers import Answers
from broker.core.connection.connect import authenticating, handshake, identity
from broker.core.connection.connect.handshake import PendingConnect
from broker.core.connection.phases import ADMITTING, AUTHENTICATING, CLOSED, CONNECTED, CONNECTING
from broker.core.connection.publish.acknowledging import Acknowledger
from broker.core.connection.publish.holding import Hold, publish_limit, released
from broker.core.connection.publish.publishing import PublishHandler
from broker.core.connection.subscribing import FilterHandler
from broker.core.hooks import LATER, Origin
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.queue_totals import QueueTotals
from broker.core.queues.requests import Peer, Request
from broker.core.routing.peers import HELD_WORK, PeerDisconnected
from broker.core.routing.router import Router
from broker.core.sampling.sampler import SHARE
from broker.core.session.session import Session

TURN_WORK: Final = 65_536
PACKET_WORK: Final = 8
NEXT_WORK: Final = 2
"""Deliveries that one connection may cause in a turn, or what takes as long: three to four milliseconds. What a packet
counts for, and what each further PUBLISH that is taken with it."""

LARGER: Final = "limits.max_packet_size, or max_packet_size of the listener"
LARGER_CONNECT: Final = "limits.max_connect_size"
"""What an operator may raise for a packet that was too large, from a client that was accepted and from another."""

LARGE_READ: Final = 1_024
"""Bytes of a read that are a sign of life though no packet was completed: a large packet over a thin link. A client
that trickles a packet byte by byte is silent, in the sense of its keep alive."""


class ServerProtocol(Peer):
    """The protocol state of one connection. `origin`: where it comes from, for logs and access control."""

    def __init__(self, router: Router, outbox: Outbox, origin: Origin) -> None:
        self.router = router
        self.outbox = outbox
        self.decoder = Decoder(
            handshake.first_packet_size(router.limits, origin), max_user_properties=router.limits.max_user_properties
        )
        self._acknowledger = Acknowledger(outbox, router.limits, router.deadlines)
        self._publishing = PublishHandler(router, outbox, self.decoder, self._acknowledger)
        answers = Answers(outbox)
        self._filters = FilterHandler(router, outbox, self.decoder, answers)
        # Up to here, and to `accepted`, it is what each read touches: side by side, in few lines of the cache.
        self._publish_limit = publish_limit(router.limits)
        self.session: Session | None = None  # while the client is connected
        self.state: i64 = CONNECTING
        self.last_received = 0.0
        self.held_until = 0.0  # not before this time, when the client publishes too fast; 0.0: it does not
        self._hold: Hold | None = None  # once it was too fast for a subscriber
        self.messages_received: i64 = 0
        # What all clients had sent when the present turn began.
        self._received_before: i64 = 0
        self.work_done: i64 = 0  # in the last turn
        self.unfinished = False  # a turn ended before the read was through: the shell calls `go_on`
        self.hurried = False  # because a subscriber has fallen behind: a little later, then
        self.renewed = False  # the client has authenticated again; the shell's to reset
        self._answered = False  # access control, late
        # Known from the CONNECT on.
        self.accepted = self.v5 = False
        self.version = self.keep_alive = self._requested_expiry = 0
        self.client_id = self.close_cause = self.close_text = ""
        self.origin, self._answers, outbox.peer = origin, answers, self
        # What the log tells of the connection. The user is whom the CONNECT names, then whom the client proved to be.
        self.user_name: str | None = None
        self.clean_start = self.session_present = False
        if self._publish_limit is not None:
            self._publishing.longest_run = 1  # it is asked after each packet
        self.refused = 0  # the shell's, before the first `receive`: with which code to refuse its CONNECT
        self.final_packet = self._first_bytes = b""  # the second: of the first read, until the client is accepted
        # The shell's, where there is access control: it calls `admitted`, and looks at the connection after.
        self.answer_later: Callable[[int], None] | None = None
        self._pending: PendingConnect | None = None  # from its CONNECT until its session is open
        self._authentication: authenticating.Authentication | None = None  # the exchange, if its CONNECT named a method

    # -- what the shell calls ------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float, work: i64 = TURN_WORK) -> bool:
        """Take a read, and process the complete packets in it, up to a limit of work.

        True when the shell has to look at the connection: it was accepted, is over, or cannot be read from now.
        """
        if self.state == CLOSED:
            return True
        accepted = self.accepted
        self.router.counters.bytes_received += len(data)
        if len(data) >= LARGE_READ:
            self.last_received = now
        if self.state == CONNECTING and not self._first_bytes:
            self._first_bytes = data[: handshake.SHOWN]
        self.decoder.feed(data)
        if now < self.held_until:
            return True
        self._turn(reasons.SUCCESS, now, work)
        waits = self.state == CLOSED or self.state == ADMITTING or self.unfinished
        return waits or accepted is not self.accepted or self.outbox.congested

    def refill(self, now: float) -> bool:
        """After the writer took a batch: queue what waited for room. True if it should take another."""
        self.router.counters.load.now = now
        session = self.session
        more = session is not None and session.backlog and session.pump(now)
        return more or not self.outbox.empty

    def go_on(self, now: float, work: i64 = TURN_WORK) -> None:
        """A turn: apply the events of other peers, then process the packets in the decoder.

        The shell calls it for a read that was left unfinished, when others have had theirs, not before `held_until`.
        """
        if self.state != CLOSED:
            self._turn(reasons.SUCCESS, now, work)

    def _turn(self, reason_code: int, now: float, most: i64) -> None:
        """A turn, which begins with the answer of access control where that was waited for and has come."""
        router = self.router
        router.peers.drain(router, now)
        counters = router.counters
        self._received_before = counters.messages_received
        self.work_done = 0
        fanout = router.fanout
        work = fanout.work
        try:
            if self._answered and self.state == ADMITTING:
                self._answered = False
                self._admit(reason_code, now)
            self._run(now, most)
        except ProtocolError as error:
            self._fail(error)
        self.messages_received += counters.messages_received - self._received_before
        self.work_done += fanout.work - work
        router.peers.drain(router, now)

    def _run(self, now: float, most: i64) -> None:
        """Act on the packets that are there: all of them, or as many as one turn allows.

        A turn ends early when so much was done (`most`), when an outbox has become half full, so that
        its writer can empty it, when a 3.1.1 client, which knows no Receive Maximum, has as many acknowledgements to
        read as a 5.0 client may have publishes in flight, and when the client publishes too fast (`held_until`).
        """
        decoder = self.decoder
        router = self.router
        counters = router.counters
        load = counters.load
        crowds: i64 = load.crowds
        half_full = counters.half_full
        backed_up = counters.backed_up
        window = self.outbox.receive_window
        most_unread: i64 = self._acknowledger.most_unread
        publishing = self._publishing
        filters = self._filters
        taken: i64 = 0
        fanout = router.fanout
        sampler = router.sampler
        before = fanout.work
        self.unfinished = False
        self.hurried = False
        if self.state == CONNECTING and self._first_bytes:
            handshake.check_first_bytes(self._first_bytes)
        rate = self._publish_limit
        if self.held_until > 0.0 or self._hold is not None:
            self.held_until = released(self._hold, rate, self.held_until, now)
            # Another turn even when nothing more has come: until then the client is not read from.
            self.unfinished = self.held_until > 0.0
            if self.unfinished:
                return
        # Not a packet more once the connection is over, also of a read that a refused CONNECT began [MQTT-3.1.4-6].
        while self.state != CLOSED and self.state != ADMITTING:
            if load.crowds != crowds:
                crowds = load.crowds
                if self._meet(load, now):
                    self.unfinished = True
                    return
            if (
                self.work_done + fanout.work - before >= most
                or counters.half_full != half_full
                or counters.backed_up != backed_up
                or window.unwritten + window.held >= most_unread
            ):
                # A packet that has not come whole is no reason for another turn.
                self.unfinished = decoder.end < len(decoder.buffer) or filters.busy
                if self.unfinished:
                    self.hurried = counters.backed_up != backed_up
                    return
            if filters.busy:
                # Nothing behind a SUBSCRIBE or UNSUBSCRIBE is acted on before it is done.
                filters.turn(before + most - self.work_done, now)
                continue
            if not decoder.next_frame():
                begun: i64 = decoder.begun_kind()
                if begun >= 0:
                    refused: i64 = phases.action(self.state, begun)
                    if refused >= phases.NOT_CONNECT:
                        # The rest of what may not come is not waited for.
                        raise ProtocolViolation(phases.ERRORS[refused])
                return
            self.work_done += PACKET_WORK
            self.last_received = now
            counters.packets_received += 1
            kind: i64 = decoder.header >> 4
            action: i64 = phases.action(self.state, kind)
            if action == phases.PUBLISH:
                taken = publishing.publish(now)
                if taken == 0:
                    self.unfinished = True
                    return
                counters.messages_received += taken
                taken_bytes: i64 = decoder.end - decoder.start
                counters.publish_bytes_received += taken_bytes
                if decoder.header & 2:
                    counters.received_qos1 += taken
                elif decoder.header & 4:
                    counters.received_qos2 += taken
                sampler.until -= taken_bytes + taken * SHARE
                if sampler.until < 0:
                    publishing.sample(sampler, taken)
                self.work_done += NEXT_WORK * (taken - 1)
                counters.packets_received += taken - 1
                if rate is not None:
                    self.held_until = rate.published(taken, decoder.end - decoder.start, now)
                    if self.held_until > 0.0:
                        # Another turn even when nothing more has come yet: until then the client is not read from.
                        self.unfinished = True
                        return
            elif action == phases.ACKNOWLEDGE:
                session = self.session
                assert session is not None
                taken = self._acknowledge(session, kind, now)
                self.work_done += PACKET_WORK * (taken - 1)
                counters.packets_received += taken - 1
            else:
                self._act(action, now)

    def _meet(self, load: QueueTotals, now: float) -> bool:
        """It has published to somebody who is behind: whether nothing more is taken of it for now."""
        sent: i64 = self.messages_received + self.router.counters.messages_received - self._received_before
        hold = self._hold
        if hold is None:
            most = self.router.limits.hold_publishers
            if most <= 0.0 and load.crowded_record is None:
                return False
            self._hold = hold = Hold(most, sent, now)
        decoder = self.decoder
        more: i64 = len(decoder.buffer) - decoder.end
        return hold.meet(load, self.session, decoder.end - decoder.start, more, sent, now)

    @property
    def throttled(self) -> bool:
        """True while an unfinished turn waits until the client has been sent its acknowledgements."""
        return self._acknowledger.behind()

    @property
    def waiting(self) -> bool:
        """True while access control decides: the shell reads nothing until `admitted`."""
        return self.state == ADMITTING

    def admitted(self, reason_code: int, now: float, work: i64 = TURN_WORK) -> None:
        """The late answer of access control: a turn. Does nothing if the connection has ended."""
        if self.state == ADMITTING:
            self._answered = True
            self._turn(reason_code, now, work)

    def lost(self, cause: str, now: float, text: str = "") -> None:
        """The connection is lost, or given up: nothing more can be written [MQTT-3.1.2-8]. `text`: for the log."""
        self._end(cause, text)
        self.router.peers.drain(self.router, now)

    def close(self, cause: str, reason_code: int, text: str, now: float) -> None:
        """End the connection from this side, with a DISCONNECT if the protocol has one (`Answers.last`)."""
        if self.state == CLOSED:
            return
        self.final_packet = self._answers.last(self.state, reason_code, text, self.router.limits.server_reference)
        self._end(cause, text)
        self.router.peers.drain(self.router, now)

    def take_over(self, now: float) -> None:
        """Another connection of the client ends this one [MQTT-3.1.4-3], in 3.1.1 without a packet [MQTT3-3.1.4-2]."""
        self.close(TAKEN_OVER, reasons.SESSION_TAKEN_OVER, "another connection with this client identifier", now)

    def overflow(self, now: float) -> None:
        """The queue overflowed, and its policy is to end the connection: with 0x97 if the client can be told."""
        self.close(QUEUE_FULL, reasons.QUOTA_EXCEEDED, "the queue for this client is full", now)

    def answer(self, request: Request) -> None:
        """It is known whether a request reached a subscriber (`queues.requests`)."""
        self._acknowledger.settle(request)

    def comes_from(self, host: str) -> bool:
        """Whether it is a client's connection from that IP address, or its /64 of IPv6."""
        return self.origin.shares_address(host)

    # -- endings -------------------------------------------------------------------------------------------------------

    def _end(self, cause: str, text: str) -> None:
        if self.state == CLOSED:
            return
        self.state = phases.follow(self.state, CLOSED)
        self.close_cause, self.close_text = cause, text
        self._pending_over()
        self._authentication = None
        self._filters.ended()
        self._acknowledger.ended()
        self._publishing.ended()
        session = self.session
        self.router.work += HELD_WORK * self.outbox.messages
        if session is not None:
            if self.router.tap is not None:
                self.router.tap.disconnected(session.client_id, self.origin.address, cause)
            self.router.peers.post(PeerDisconnected(session, self.outbox, cause))
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
        if isinstance(error, PacketTooLarge):
            text += f": raise {LARGER if self.state == CONNECTED else LARGER_CONNECT}"
        if self.state == CONNECTED and not self.v5 and isinstance(error, (Refused, PacketTooLarge)):
            # Only 5.0 clients are told of the limits that hold for them, in CONNACK.
            self._end(NOT_ALLOWED, text)
            return
        self.router.counters.protocol_errors += 1
        if self.state == CONNECTED:
            if self.v5:
                self.final_packet = self._answers.disconnect(error.reason_code, text)
            self._end(PROTOCOL_ERROR, text)
            return
        if self.state == CLOSED:
            return
        self.client_id = self.client_id or self.decoder.client_id
        # A CONNECT that broke off may still have told its version, and so what answer it can read.
        version = self.version or self.decoder.version
        if version == 0:
            text = handshake.guess(self._first_bytes) or text
        self.final_packet = handshake.refusal(version, error.reason_code, text, self.outbox.max_packet)
        if isinstance(error, Refused) and error.detail:
            text = error.detail[:MAX_TEXT]
        if self._pending is not None:
            self.user_name = self._pending.user_name
            text = self._pending.detail[:MAX_TEXT] or text
        self._end(REFUSED if isinstance(error, Refused) else PROTOCOL_ERROR, text)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _act(self, action: i64, now: float) -> None:
        """Act on the current frame, whatever it is but a PUBLISH or an acknowledgement: as its phase has it."""
        if action >= phases.NOT_CONNECT:
            raise ProtocolViolation(phases.ERRORS[action])
        if action == phases.FILTERS:
            session = self.session
            assert session is not None
            self._filters.begin(session)
            return
        packet = self.decoder.packet()
        if action == phases.PING:
            self.outbox.control(PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, Connect):
            self._on_connect(packet, now)
        elif isinstance(packet, Auth):
            authentication = self._authentication
            if authentication is None:
                raise ProtocolViolation("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
            authentication.proceed(packet, self.state == CONNECTED)
            self._after_exchange(authentication, now)
        elif isinstance(packet, Disconnect):
            self._on_disconnect(packet)

    def _acknowledge(self, session: Session, kind: i64, now: float) -> i64:
        """Take the decoder's current frame, of that packet type, and those of four bytes behind it. How many in all."""
        decoder = self.decoder
        start: i64 = decoder.start
        stop: i64 = start
        if kind == PUBREL:
            stop = self._acknowledger.released_run(decoder.buffer, start)
        else:
            stop = session.on_acks(kind, decoder.buffer, start, now)
        if stop > start:
            decoder.end = stop
            return (stop - start) // 4
        packet_id = decoder.short_ack()
        reason_code = reasons.SUCCESS
        if packet_id <= 0:
            packet = decoder.packet()
            assert isinstance(packet, Ack)
            packet_id = packet.packet_id
            reason_code = packet.reason_code
        if kind == PUBREL:
            self._acknowledger.released(packet_id)
        else:
            session.on_ack(kind, packet_id, reason_code, now)
        return 1

    # -- CONNECT -------------------------------------------------------------------------------------------------------

    def _on_connect(self, connect: Connect, now: float) -> None:
        self.router.counters.connects += 1
        self.version = connect.version
        self.v5 = connect.version == V5
        self.client_id = connect.client_id
        if not connect.user_name:
            # An empty one is none: many clients send it, with an empty password, for a field that was left empty.
            connect.user_name = None
            connect.password = connect.password or None
        self.user_name = connect.user_name
        self.clean_start = connect.clean_start
        self._answers.connecting(connect)
        router = self.router
        self._pending = PendingConnect(connect, self.origin, router)
        handshake.check(connect, self.refused, self.origin.host, router, now)
        self.decoder.undecided()
        authentication = self._authentication = authenticating.begin(connect, self.origin, router)
        if authentication is None:
            self._ask_access_control(now)
        else:
            self.state = phases.follow(self.state, AUTHENTICATING)
            authentication.start()
            self._after_exchange(authentication, now)

    def _after_exchange(self, authentication: authenticating.Authentication, now: float) -> None:
        """Say what the exchange has come to: AUTH, or on to access control; or it ends the connection."""
        answer = authentication.answer(self.state == CONNECTED)
        if answer is not None:
            if self.session is not None and answer.reason_code == reasons.SUCCESS:
                identity.renew(self.session, authentication.principal, self.origin, self.router)
                self._filters.renewed(self.session)
                # The shell is to look: the credentials may expire at another time. Asking for a turn is how it does.
                self.renewed = self.unfinished = True
            self._answers.send(answer)
            return
        self._ask_access_control(now)

    def _ask_access_control(self, now: float) -> None:
        """A client that is turned away is refused like any other: its connection closes [MQTT-3.1.4-2]."""
        pending = self._pending
        assert pending is not None
        if self.router.access_control is not None:
            self.state = phases.follow(self.state, ADMITTING)
        answer = pending.ask(self._authentication, self.answer_later)
        # It may have ended this connection.
        if answer != LATER and self.state != CLOSED:
            self._admit(answer, now)

    def _admit(self, answer: int, now: float) -> None:
        """By this answer the client may come in, or may not: open its session, answer CONNACK [MQTT-3.1.4-5].

        Until then only AUTH went to the client [MQTT-3.2.0-1]: its session gets the outbox here, and the CONNACK is the
        first thing in it. Only a CONNECT leads here, and a second one is refused, so there is one CONNACK
        [MQTT-3.2.0-2].
        """
        if answer >= 0x80:
            raise Refused(reasons.name(answer), answer)
        pending = self._pending
        assert pending is not None
        router = self.router
        outbox = self.outbox
        terms = handshake.Terms(pending.connect, router.limits, self.origin)
        connack = pending.connack(terms, self._authentication, outbox.max_packet)
        self.client_id = pending.client_id
        if connack is None:
            self._end(REFUSED, "the CONNACK does not fit the client's Maximum Packet Size")
            return
        pending.identify(now)
        self.user_name = pending.user_name
        session = pending.open_session(terms, connack, outbox, now)
        self.keep_alive = terms.keep_alive
        self._requested_expiry = terms.requested_expiry
        self.session = session
        self._first_bytes = b""
        self.decoder.decided(terms.max_packet_size)
        self._acknowledger.connected(session, self.version, router.commits)
        self._publishing.connected(session, self.version, connack.properties.integers.get(TOPIC_ALIAS_MAXIMUM, 0))
        self.state = phases.follow(self.state, CONNECTED)
        self.accepted = True
        self.session_present = connack.session_present
        outbox.control(encode(connack, self.version))
        if pending.present:
            self._filters.resume(session, now)
        self._pending_over()

    def _pending_over(self) -> None:
        pending = self._pending
        self._pending = self.answer_later = None
        if pending is not None:
            pending.over()

    def _on_disconnect(self, packet: Disconnect) -> None:
        session = self.session
        if session is not None:
            handshake.change_expiry(packet, session, self._requested_expiry, self.router.limits)
        if packet.reason_code == reasons.SUCCESS or session is None:
            self._end(CLIENT_DISCONNECT, "")
        else:
            self._end(CLIENT_DISCONNECT_WITH_WILL, reasons.name(packet.reason_code))
