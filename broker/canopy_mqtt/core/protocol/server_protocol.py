"""One network connection's protocol: bytes come in; calls to the router and queued packets go out.

Owns the state of a connection, moves it through its phases (`phases`) and hands its packets to their functions
(`connect`, `publish`, `acknowledge`, `subscribe`), in bounded turns: the rest of a read waits until other connections
have had a turn. An invalid packet ends this connection with the reason code of its error, and affects no other. The
shell calls `receive`, `go_on`, `end` and `close`; after each of them `close_cause` says whether the connection has
ended, and `final_packet` what is still to be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.causes import (
    CLIENT_DISCONNECT,
    CLIENT_DISCONNECT_WITH_WILL,
    MAX_TEXT,
    NOT_ALLOWED,
    PROTOCOL_ERROR,
    QUEUE_FULL,
    REFUSED,
    TAKEN_OVER,
)
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import PINGRESP
from canopy_mqtt.core.codec.packets import Auth, Connect, Disconnect
from canopy_mqtt.core.codec.reason_codes import PacketTooLarge, ProtocolError, ProtocolViolation, Refused
from canopy_mqtt.core.hooks import LATER, Origin, Ticket
from canopy_mqtt.core.jobs import HELD_WORK, PACKET_WORK, TURN_WORK
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol import acknowledge, connect, control_packets, phases, publish, subscribe
from canopy_mqtt.core.protocol.backpressure import PublisherHold
from canopy_mqtt.core.protocol.identity import Authentication
from canopy_mqtt.core.protocol.phases import ADMITTING, CLOSED, CONNECTED, CONNECTING
from canopy_mqtt.core.protocol.publish_limit import PublishLimit, publish_limit
from canopy_mqtt.core.queues.queue_terms import max_delay
from canopy_mqtt.core.queues.requests import Peer, Request, WaitingRequests
from canopy_mqtt.core.queues.send_buffer import MAX_CONTROL_BYTES, SendBuffer
from canopy_mqtt.core.routing.peers import PeerDisconnected
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session

LARGER: Final = "limits.max_packet_size, or max_packet_size of the listener"
LARGER_CONNECT: Final = "limits.max_connect_size"
"""The settings that an operator may raise for a packet that was too large, from a client that was accepted and from
another."""

LARGE_READ: Final = 1_024
"""Bytes of a read that are a sign of life though no packet was completed: a large packet over a thin link. A client
that trickles a packet byte by byte is silent, in the sense of its keep alive."""


class ServerProtocol(Peer):
    """The protocol state of one connection. `origin`: where it comes from, for logs and access control."""

    def __init__(self, router: Router, send_buffer: SendBuffer, origin: Origin) -> None:
        # First what each read and each PUBLISH touches, side by side, in few lines of the processor's cache.
        self.router = router
        self.send_buffer = send_buffer
        self.decoder = Decoder(
            connect.first_packet_size(router.limits, origin), max_user_properties=router.limits.max_user_properties
        )
        self.session: Session | None = None  # while the client is connected
        self.state: i64 = CONNECTING
        self.last_received = 0.0
        self.held_until = 0.0  # not before this time, when the client publishes too fast; 0.0: it does not
        # When the present turn began: the counts that `should_yield` compares.
        self._half_full: i64 = 0
        self._backed_up: i64 = 0
        self._over_half: i64 = 0
        # Acknowledgements that wait to be read, at which the client is not read from: 3.1.1 knows no Receive Maximum.
        self.max_unread: i64 = router.limits.receive_maximum
        # Bytes of the longest payload that takes the hot path; -1: none does.
        self.max_plain_payload: i64 = -1
        self.max_run: i64 = 0  # publishes of QoS 1 or 2 that may be acknowledged together
        # What access control has allowed last: as whom, what (`Permissions.publish_key`), and where.
        self.allowed_as: Principal | None = None
        self.allowed_key: i64 = -1
        self.allowed_topic = b""
        # With a store that commits later: the number of the journal's last note when the publish that is dealt with
        # came; -1: it came earlier.
        self.noted_before: i64 = -1
        # QoS 2 publishes of earlier connections that are not released and did not come again on this one: they do not
        # count against Receive Maximum, and neither do their PUBCOMPs (section 4.9).
        self.earlier_qos2: set[int] | None = None
        # Requests whose answers wait for links, once there was one.
        self.requests: WaitingRequests | None = None
        self.publish_limit: PublishLimit | None = None
        self.hold: PublisherHold | None = None  # once it was too fast for a subscriber
        # The SUBSCRIBE or UNSUBSCRIBE, or the check of a resumed session, that goes on. Nothing behind it is acted on
        # before it is done.
        self.filter_job: subscribe.FilterPacket | subscribe.SubscriptionReview | None = None
        self.messages_received: i64 = 0
        # What all clients had sent when the present turn began.
        self._received_before: i64 = 0
        # What stands before the client's topics here (`topic_names.mount_topic`); with one nothing takes the hot path.
        self.mount = b""
        # Topic aliases that the client has set: they end with the connection [MQTT-3.3.2-7].
        self.aliases: publish.TopicAliases | None = None
        self.max_aliases: i64 = 0
        # Known from the CONNECT on.
        self.version = 0
        self.keep_alive = 0
        self.requested_expiry = 0
        self.client_id = ""
        self.close_cause = ""
        self.close_text = ""
        self.origin = origin
        # What the log tells of the connection. The user is whom the CONNECT names, then whom the client proved to be.
        self.user_name: str | None = None
        self.refused = 0  # the shell's, before the first `receive`: with which code to refuse its CONNECT
        self.final_packet = b""
        self.first_bytes = b""  # of the first read, until the client is accepted
        # The shell's, where there is access control, or sessions are claimed: it calls `admitted`, and looks at the
        # connection after.
        self.answer_later: Callable[[int], None] | None = None
        # From its CONNECT until its session is open; what access control is asked; the exchange, if the CONNECT named
        # an authentication method.
        self.connect: Connect | None = None
        # What another node of the cluster is told in CONNACK; None: it is a client.
        self.node: list[tuple[str, str]] | None = None
        self.ticket: Ticket | None = None
        self.granted: connect.GrantedConnect | None = None  # while its session is claimed
        self.authentication: Authentication | None = None
        self.v5 = False
        self.accepted = False
        self.unfinished = False  # a turn ended before the read was through: the shell calls `go_on`
        self.hurried = False  # because a subscriber has fallen behind: a little later, then
        self.renewed = False  # the client has authenticated again; the shell's to reset
        self.wants_problems = True  # whether a SUBACK may have properties [MQTT-3.1.2-29]
        self.clean_start = False
        self.session_present = False
        self.limit_publishes()
        send_buffer.peer = self

    # -- what the shell calls ------------------------------------------------------------------------------------------

    def limit_publishes(self) -> None:
        """Hold the client to the rates of the settings from now on, without what it owes by former ones."""
        self.publish_limit = publish_limit(self.router.limits)
        # The limit is asked after each packet.
        self.max_run = publish.MAX_RUN if self.publish_limit is None else 1

    def receive(self, data: bytes, now: float, work: i64 = TURN_WORK) -> bool:
        """Take a read, and process the complete packets in it, up to a limit of work.

        Return True when the shell has to look at the connection: it was accepted, is over, or cannot be read from now.
        """
        if self.state == CLOSED:
            return True
        accepted = self.accepted
        self.router.counters.bytes_received += len(data)
        if len(data) >= LARGE_READ:
            self.last_received = now
        if self.state == CONNECTING and not self.first_bytes:
            self.first_bytes = data[: connect.MAX_GUESSED]
        self.decoder.feed(data)
        if now < self.held_until:
            return True
        self._turn(now, work)
        send_buffer = self.send_buffer
        return (
            self.unfinished
            or self.state == CLOSED
            or self.state == ADMITTING
            or accepted is not self.accepted
            # `SendBuffer.congested`, spelled out: this is asked after every read.
            or send_buffer.control_bytes + send_buffer.held_bytes > MAX_CONTROL_BYTES
        )

    def refill(self, now: float) -> bool:
        """Queue what waited for room, after the writer took a batch. Return True if it should take another."""
        self.router.counters.totals.now = now
        session = self.session
        more = session is not None and session.backlog and session.refill(now)
        return more or not self.send_buffer.empty

    def go_on(self, now: float, work: i64 = TURN_WORK) -> None:
        """Take a turn: apply the events of other peers, then process the packets in the decoder.

        The shell calls it for a read that was left unfinished, when others have had theirs, not before `held_until`.
        """
        if self.state != CLOSED:
            self._turn(now, work)

    @property
    def throttled(self) -> bool:
        """True while an unfinished turn waits until the client has been sent its acknowledgements: see `max_unread`."""
        send_buffer = self.send_buffer
        return send_buffer.unwritten + send_buffer.unqueued >= self.max_unread

    @property
    def waiting(self) -> bool:
        """True while access control decides, or the session is claimed: the shell reads nothing until `admitted`."""
        return self.state == ADMITTING

    def admitted(self, reason_code: int, now: float, work: i64 = TURN_WORK) -> None:
        """Take the late answer of access control or of a claim, in a turn. Does nothing if the connection has ended."""
        if self.state == ADMITTING:
            self._turn(now, work, reason_code)

    def end(self, cause: str, now: float, text: str = "") -> None:
        """End the protocol, once, and apply that among the peers; nothing more is queued [MQTT-3.1.2-8].

        What the connection owns goes. The shell calls this for a connection that is lost or given up. `text`: for the
        log.
        """
        router = self.router
        if self.state != CLOSED:
            session = self.session
            if session is not None:
                # First the core hears of the end, whatever raises then.
                router.peers.events.append(PeerDisconnected(session, self.send_buffer, cause))
                self.session = None
            self.state = CLOSED
            self.close_cause = cause
            self.close_text = text
            router.budget.used += HELD_WORK * self.send_buffer.messages
            if session is not None:
                if router.tap is not None:
                    router.tap.disconnected(session.client_id, self.origin.address, cause)
            else:
                self.send_buffer.close()
            if self.connect is not None or self.answer_later is not None:
                connect.forget(self)
            self.authentication = None
            self.allowed_as = None
            self.earlier_qos2 = None
            self.filter_job = None
            if self.send_buffer.held is not None or self.requests is not None:
                acknowledge.end(self)
            if self.aliases is not None:
                self.aliases.discard()
                self.aliases = None
        router.peers.drain(router, now)

    def close(self, cause: str, reason_code: int, text: str, now: float) -> None:
        """End the connection from this side, with a DISCONNECT if the protocol has one."""
        if self.state == CLOSED:
            return
        phase = self.state
        try:
            self.end(cause, now, text)
        finally:
            # Also where the end of another client has raised: the shell has no other way to hear of this one.
            self.final_packet = control_packets.last(self, phase, reason_code, text)
            self.send_buffer.report_end()

    def take_over(self, now: float) -> None:
        """End it for another connection of the client [MQTT-3.1.4-3], in 3.1.1 without a packet [MQTT3-3.1.4-2]."""
        self.close(TAKEN_OVER, reason_codes.SESSION_TAKEN_OVER, "another connection with this client identifier", now)

    def overflow(self, now: float) -> None:
        """End it because its queue overflowed and the policy says so: with 0x97 if the client can be told."""
        self.close(QUEUE_FULL, reason_codes.QUOTA_EXCEEDED, "the queue for this client is full", now)

    def answer(self, request: Request) -> None:
        """Acknowledge a request of which it is known now whether it reached a subscriber (`queues.requests`)."""
        acknowledge.answer_request(self, request)

    def max_delay(self) -> float:
        session = self.session
        return 0.0 if session is None else max_delay(self.router.limits, session, self.origin.max_delay)

    # -- a turn --------------------------------------------------------------------------------------------------------

    def _turn(self, now: float, most: i64, answer: int = LATER) -> None:
        """Take a turn: act on the packets that are there, or on as many as one turn allows (`should_yield`).

        It begins with the late answer of access control, or of a claim, where one has come. Events of peers take effect
        before and after it, not within.
        """
        router = self.router
        counters = router.counters
        totals = counters.totals
        peers = router.peers
        totals.now = now
        if peers.events or totals.overflowed:
            peers.drain(router, now)
        self._received_before = counters.messages_received
        budget = router.budget
        self.unfinished = False
        self.hurried = False
        decoder = self.decoder
        try:
            if answer != LATER and self.state == ADMITTING:
                connect.admit(self, answer, now)
            budget.begin(most)
            self._half_full = counters.half_full
            self._backed_up = counters.backed_up
            self._over_half = totals.over_half
            if self.state == CONNECTING and self.first_bytes:
                connect.check_first_bytes(self.first_bytes)
            if self.held_until > 0.0 or self.hold is not None:
                self._look_at_hold(now)
                # Another turn even when nothing more has come: until then the client is not read from.
                self.unfinished = self.held_until > 0.0
            # Not a packet more once the connection is over, also of a read that a refused CONNECT began [MQTT-3.1.4-6].
            while not self.unfinished and self.state != CLOSED and self.state != ADMITTING:
                # At the end of a read there is nothing to yield with, but the client may have to be held.
                more = decoder.end < len(decoder.buffer) or self.filter_job is not None
                if (more or totals.over_half != self._over_half) and self.should_yield(now):
                    self.unfinished = True
                elif self.filter_job is not None:
                    subscribe.on_filters(self, now)
                elif more and decoder.next_frame():
                    budget.used += PACKET_WORK
                    self.last_received = now
                    counters.packets_received += 1
                    kind: i64 = decoder.header >> 4
                    action: i64 = phases.ACTIONS[(self.state << 4) + kind]
                    if action == phases.PUBLISH:
                        if not publish.on_publish(self, now):
                            self.unfinished = True
                    elif action == phases.ACKNOWLEDGE:
                        taken: i64 = acknowledge.on_acknowledgement(self, kind, now)
                        budget.used += PACKET_WORK * (taken - 1)
                        counters.packets_received += taken - 1
                    elif action == phases.FILTERS:
                        subscribe.on_filters(self, now)
                    else:
                        self._act(action, now)
                else:
                    if not more:
                        # The usual end of a read: nothing has begun, and nothing of it is kept.
                        decoder.buffer = b""
                        decoder.start = decoder.end = 0
                    if decoder.need > 0:
                        refused: i64 = phases.action(self.state, decoder.begun_kind())
                        if refused >= phases.NOT_CONNECT:
                            # The rest of what may not come is not waited for.
                            raise ProtocolViolation(phases.ERRORS[refused])
                    break
        except ProtocolError as error:
            self._fail(error, now)
        self.messages_received += counters.messages_received - self._received_before
        if peers.events or totals.overflowed:
            peers.drain(router, now)

    def should_yield(self, now: float) -> bool:
        """Return whether the turn ends before the next packet, which then waits: the one place that says why.

        So much was done (`most` of `_turn`); a buffer has become half full, so that its writer can empty it; a peer has
        been given more than it takes at once; the client of 3.1.1, which knows no Receive Maximum, has as many
        acknowledgements to read as one of 5.0 may have publishes in flight; or the client is held, since it fills the
        queue of a subscriber that reads (`PublisherHold`).
        """
        budget = self.router.budget
        counters = self.router.counters
        totals = counters.totals
        if totals.over_half != self._over_half:
            self._over_half = totals.over_half
            if self._is_held(now):
                return True
        send_buffer = self.send_buffer
        if (
            # `spent` is asked only then: this is asked after every packet.
            (budget.used >= budget.mark and budget.spent())
            or counters.half_full != self._half_full
            or send_buffer.unwritten + send_buffer.unqueued >= self.max_unread
        ):
            decoder = self.decoder
            # A packet that has not come whole is no reason for another turn.
            if decoder.end < len(decoder.buffer) or self.filter_job is not None:
                self.hurried = counters.backed_up != self._backed_up
                return True
        return False

    def _is_held(self, now: float) -> bool:
        """Return whether nothing more is taken of a client that has published to a peer which is behind."""
        totals = self.router.counters.totals
        sent: i64 = self.messages_received + self.router.counters.messages_received - self._received_before
        hold = self.hold
        if hold is None:
            most = self.router.limits.hold_publishers
            if most <= 0.0 and totals.over_half_recorder is None:
                return False
            self.hold = hold = PublisherHold(most, sent, now)
        decoder = self.decoder
        more: i64 = len(decoder.buffer) - decoder.end
        return hold.should_wait(totals, self.session, decoder.end - decoder.start, more, sent, now)

    def _look_at_hold(self, now: float) -> None:
        """The time has come until which the client was held, by its rate or for a subscriber: perhaps a later one.

        Raises:
            ProtocolError: see `PublishLimit.released`.
        """
        hold = self.hold
        if hold is not None and hold.on:
            self.held_until = hold.until(now)
            return
        limit = self.publish_limit
        if self.held_until > 0.0 and limit is not None:
            limit.released(now)
        self.held_until = 0.0

    # -- packets -------------------------------------------------------------------------------------------------------

    def _act(self, action: i64, now: float) -> None:
        """Act on the current frame, a packet for which `_turn` has no shorter way, as its phase has it."""
        if action >= phases.NOT_CONNECT:
            raise ProtocolViolation(phases.ERRORS[action])
        packet = self.decoder.packet()
        if action == phases.PING:
            self.send_buffer.control(PINGRESP)  # [MQTT-3.12.4-1]
            if self.session is not None:
                self.session.pinged()
        elif isinstance(packet, Connect):
            connect.on_connect(self, packet, now)
        elif isinstance(packet, Auth):
            connect.on_auth(self, packet, now)
        elif isinstance(packet, Disconnect):
            session = self.session
            if session is not None:
                connect.change_expiry(packet, session, self.requested_expiry, self.router.limits)
            if packet.reason_code == reason_codes.SUCCESS or session is None:
                self.end(CLIENT_DISCONNECT, now)
            else:
                self.end(CLIENT_DISCONNECT_WITH_WILL, now, reason_codes.name(packet.reason_code))

    def _fail(self, error: ProtocolError, now: float) -> None:
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
            self.end(NOT_ALLOWED, now, text)
            return
        self.router.counters.protocol_errors += 1
        if self.state == CONNECTED:
            if self.v5:
                self.final_packet = control_packets.disconnect(self, error.reason_code, text)
            self.end(PROTOCOL_ERROR, now, text)
            return
        if self.state == CLOSED:
            return
        self.client_id = self.client_id or self.decoder.client_id
        # A CONNECT that broke off may still have told its version, and so what answer it can read.
        version = self.version or self.decoder.version
        if version == 0:
            text = connect.guess(self.first_bytes) or text
        self.final_packet = control_packets.refusal(version, error.reason_code, text, self.send_buffer.max_packet)
        if isinstance(error, Refused) and error.detail:
            text = error.detail[:MAX_TEXT]
        elif self.ticket is not None:
            text = self.ticket.detail[:MAX_TEXT] or text
        self.end(REFUSED if isinstance(error, Refused) else PROTOCOL_ERROR, now, text)
