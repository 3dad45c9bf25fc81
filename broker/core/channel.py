"""One network connection's side of the protocol: bytes come in, calls to the router and queued packets come out.

Owns the connection's state (waiting for CONNECT, authenticating, connected, closed), what was negotiated (version,
limits, keep alive), the topic aliases of the client, and the decision what to answer to each packet.

Promises:
- A whole read is parsed in one go and each PUBLISH is routed as it is met. Events of other peers are applied before.
- A malformed or forbidden packet ends this connection with the reason code of its error, and touches nobody else.
- After `receive`, `close_cause` tells whether the connection is over; `farewell` then is what is still to be
  written.

Refuses: sockets, tasks, timers. The shell calls `receive`, `lost`, `close`, and looks at `keep_alive`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core import handshake, reasons
from broker.core.causes import (
    CLIENT_DISCONNECT,
    CLIENT_DISCONNECT_WITH_WILL,
    PROTOCOL_ERROR,
    REFUSED,
    TAKEN_OVER,
)
from broker.core.decoder import Decoder
from broker.core.encoder import ack, encode
from broker.core.errors import ProtocolError, ProtocolViolation, ReceiveMaximumExceeded, Refused, TopicAliasInvalid
from broker.core.fanout import PeerDisconnected
from broker.core.hooks import LATER, AuthExchange
from broker.core.matchcache import Route
from broker.core.message import Message
from broker.core.outbox import LARGEST_PACKET, Outbox, Peer
from broker.core.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from broker.core.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    REASON_STRING,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
)
from broker.core.router import Router
from broker.core.session import Session
from broker.core.topics import has_wildcard, level_count, parse_shared, validate_filter

CONNECTING: Final = 0
AUTHENTICATING: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3

PINGRESP_PACKET: Final = b"\xd0\x00"
DOLLAR: Final = 0x24


class Channel(Peer):
    """The protocol state of one connection. `address` is the peer's, for logs and the gate."""

    def __init__(self, router: Router, outbox: Outbox, address: str) -> None:
        # Shared by all channels.
        self.router = router
        # This connection's, for its whole life.
        self.outbox = outbox
        self.address = address
        self.decoder = Decoder(router.limits.max_packet_size)
        self.state = CONNECTING
        self.close_cause = ""
        self.close_text = ""
        self.farewell = b""
        self.last_received = 0.0
        outbox.peer = self
        # Known from the CONNECT on.
        self.v5 = False
        self.version = 0
        self.client_id = ""
        self.keep_alive = 0
        self.accepted = False
        self.session: Session | None = None
        self.request_problem = True
        # The CONNECT while a gate, or an authentication exchange, decides about it.
        self._connect: Connect | None = None
        self._pending_connect: Connect | None = None
        self._method = ""
        self._exchange: AuthExchange | None = None
        self._reauthenticating = False
        self._requested_expiry = 0
        self._aliases: dict[int, bytes] | None = None

    # -- what the shell calls ------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take a read: apply what happened to other peers, then parse and act on every whole packet in it."""
        if self.state == CLOSED:
            return
        router = self.router
        router.fanout.drain(router, now)
        self.last_received = now
        router.counters.bytes_received += len(data)
        try:
            self.decoder.feed(data)
            self._run(now)
        except ProtocolError as error:
            self._fail(error)
        router.fanout.drain(router, now)

    def _run(self, now: float) -> None:
        decoder = self.decoder
        counters = self.router.counters
        while self.state != CLOSED and self._connect is None and decoder.next_frame():
            counters.packets_received += 1
            kind: i64 = decoder.header >> 4
            if self.state != CONNECTED:
                self._packet(now)
            elif kind == 3:
                counters.messages_received += 1
                self._publish(now)
            elif 4 <= kind <= 7:
                packet_id = decoder.short_ack()
                if packet_id > 0:
                    self._on_ack(kind, packet_id, reasons.SUCCESS, now)
                else:
                    self._packet(now)
            else:
                self._packet(now)

    @property
    def waiting(self) -> bool:
        """True while a gate makes up its mind: the shell stops reading until `admitted` was called."""
        return self._connect is not None

    def admitted(self, reason_code: int, now: float) -> None:
        """The gate's late answer to `admit`. Does nothing when the connection has ended meanwhile."""
        connect = self._connect
        self._connect = None
        if connect is None or self.state == CLOSED:
            return
        router = self.router
        router.fanout.drain(router, now)
        try:
            if reason_code >= 0x80:
                raise Refused(reasons.name(reason_code), reason_code)
            self._admit(connect, now)
            self._run(now)
        except ProtocolError as error:
            self._fail(error)
        router.fanout.drain(router, now)

    def lost(self, cause: str, now: float) -> None:
        """The connection is gone, or given up: nothing more can be written [MQTT-3.1.2-8]."""
        self._end(cause, "")
        self.router.fanout.drain(self.router, now)

    def close(self, cause: str, reason_code: int, text: str, now: float) -> None:
        """End the connection from this side, with a DISCONNECT where the protocol has one."""
        if self.state == CLOSED:
            return
        if self.v5 and self.state == CONNECTED:
            self.farewell = self._disconnect(reason_code, text)
        elif self.state == AUTHENTICATING and reason_code == reasons.SERVER_SHUTTING_DOWN:
            # Of the reasons for which a server ends a connection, only this one has a CONNACK to tell it.
            self.farewell = handshake.refusal(self.version, reasons.SERVER_UNAVAILABLE, text, self.outbox.max_packet)
        self._end(cause, text)
        self.router.fanout.drain(self.router, now)

    def take_over(self, now: float) -> None:
        """Another connection of the same client [MQTT-3.1.4-3]."""
        self.close(TAKEN_OVER, reasons.SESSION_TAKEN_OVER, "another connection with this client identifier", now)

    # -- endings -------------------------------------------------------------------------------------------------------

    def _end(self, cause: str, text: str) -> None:
        if self.state == CLOSED:
            return
        self.state = CLOSED
        self.close_cause = cause
        self.close_text = text
        self._connect = None
        self._pending_connect = None
        self._exchange = None
        self._aliases = None
        session = self.session
        if session is not None:
            self.router.fanout.post(PeerDisconnected(session, self.outbox, cause))
            self.session = None
        else:
            self.outbox.close()
        self.outbox.report_end()

    def _fail(self, error: ProtocolError) -> None:
        """Answer an error of the peer with its reason code and end the connection (section 4.13)."""
        self.router.counters.protocol_errors += 1
        text = str(error)
        if self.state == CONNECTED:
            if self.v5:
                self.farewell = self._disconnect(error.reason_code, text)
            self._end(PROTOCOL_ERROR, text)
            return
        if self.state == CLOSED:
            return
        # A CONNECT that broke off may still have told its version, and so what answer it can read.
        version = self.version or self.decoder.version
        self.farewell = handshake.refusal(version, error.reason_code, text, self.outbox.max_packet)
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

    def _disconnect(self, reason_code: int, text: str) -> bytes:
        packet = Disconnect(reason_code)
        plain = encode(packet, V5)
        if text:
            packet.properties.strings[REASON_STRING] = text
            told = encode(packet, V5)
            # Never longer than the client takes [MQTT-3.14.2-3].
            if len(told) <= self.outbox.max_packet:
                return told
        return plain

    # -- packets -------------------------------------------------------------------------------------------------------

    def _packet(self, now: float) -> None:
        """Any packet but a PUBLISH of a connected client."""
        decoder = self.decoder
        if self.state == CONNECTING and decoder.header != 0x10:
            raise ProtocolViolation("the first packet is not CONNECT")  # [MQTT-3.1.0-1]
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
            self.outbox.control(PINGRESP_PACKET)  # [MQTT-3.12.4-1]
        elif isinstance(packet, Subscribe):
            self._on_subscribe(packet, session, now)
        elif isinstance(packet, Unsubscribe):
            self._on_unsubscribe(packet, session)
        elif isinstance(packet, Disconnect):
            self._on_disconnect(packet, session)
        elif isinstance(packet, Auth):
            self._on_auth(packet, now)
        elif isinstance(packet, Connect):
            raise ProtocolViolation("a second CONNECT")  # [MQTT-3.1.0-2]
        else:
            raise ProtocolViolation("a packet that only a server sends")

    # -- CONNECT -------------------------------------------------------------------------------------------------------

    def _on_connect(self, connect: Connect, now: float) -> None:
        self.version = connect.version
        self.v5 = connect.version == V5
        self.client_id = connect.client_id
        self.outbox.max_packet = connect.properties.integers.get(MAXIMUM_PACKET_SIZE, LARGEST_PACKET)
        router = self.router
        handshake.check(connect, router)
        method = connect.properties.strings.get(AUTHENTICATION_METHOD)
        if method is not None:
            known = router.auth_methods.get(method)
            if known is None:
                raise Refused(f"unknown authentication method {method!r}", reasons.BAD_AUTHENTICATION_METHOD)
            self.state = AUTHENTICATING
            self._method = method
            self._exchange = known.begin()
            self._pending_connect = connect
            self._exchange.start(connect, connect.properties.binaries.get(AUTHENTICATION_DATA))
            self._after_auth_step(now)
            return
        self._ask_gate(connect, now)

    def _ask_gate(self, connect: Connect, now: float) -> None:
        """Whoever decides about clients is asked last, also when an authentication method was satisfied."""
        gate = self.router.gate
        if gate is not None:
            self._connect = connect
            self.state = AUTHENTICATING
            answer = gate.admit(connect, self.address, self)
            if answer == LATER:
                return
            self._connect = None
            if answer >= 0x80:
                raise Refused(reasons.name(answer), answer)
        self._admit(connect, now)

    def _admit(self, connect: Connect, now: float) -> None:
        """The client may come in: take over an earlier connection, open the session, answer CONNACK."""
        router = self.router
        client_id = connect.client_id
        assigned = ""
        if not client_id:
            assigned = router.new_client_id()
            client_id = assigned
        self.client_id = client_id
        earlier = router.sessions.get(client_id)
        if earlier is None or earlier.outbox is None:
            handshake.check_room(router, earlier is None)
        else:
            peer = earlier.outbox.peer
            assert peer is not None
            peer.take_over(now)
            router.fanout.drain(router, now)
        terms = handshake.Terms(connect, router.limits)
        outbox = self.outbox
        outbox.v5 = self.v5
        outbox.max_packet = terms.max_packet
        outbox.max_aliases = terms.max_aliases
        self.keep_alive = terms.keep_alive
        self.request_problem = terms.request_problem
        self._requested_expiry = terms.requested_expiry
        session, present = router.connect(
            client_id, connect.clean_start, outbox, self.version, terms.window, terms.max_aliases == 0, now
        )
        session.user_name = connect.user_name
        session.expiry_interval = terms.expiry
        session.will = connect.will
        if router.journal is not None:
            router.settle(session)
        self.session = session
        self.state = CONNECTED
        self.accepted = True
        connack = handshake.accept(connect, terms, assigned, present, router)
        exchange = self._exchange
        if exchange is not None:
            connack.properties.strings[AUTHENTICATION_METHOD] = self._method
            if exchange.data is not None:
                connack.properties.binaries[AUTHENTICATION_DATA] = exchange.data
        self._answer(connack)
        if present:
            session.resume(now)

    # -- AUTH ----------------------------------------------------------------------------------------------------------

    def _on_auth(self, packet: Auth, now: float) -> None:
        """AUTH from the client (section 4.12): only for the method that its CONNECT named."""
        exchange = self._exchange
        if exchange is None:
            raise ProtocolViolation("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-6]
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
            raise ProtocolViolation("AUTH with a reason code that may not come now")
        self._after_auth_step(now)

    def _after_auth_step(self, now: float) -> None:
        exchange = self._exchange
        assert exchange is not None
        code = exchange.reason_code
        if code >= 0x80:
            if self.state == CONNECTED:
                raise ProtocolError("re-authentication failed", code)
            raise Refused("authentication failed", code)
        if code == reasons.SUCCESS and self.state == AUTHENTICATING:
            connect = self._pending_connect
            assert connect is not None
            self._pending_connect = None
            self._ask_gate(connect, now)
            return
        if code == reasons.SUCCESS:
            self._reauthenticating = False
        answer = Auth(code)
        answer.properties.strings[AUTHENTICATION_METHOD] = self._method
        if exchange.data is not None:
            answer.properties.binaries[AUTHENTICATION_DATA] = exchange.data
        self._answer(answer)

    # -- PUBLISH -------------------------------------------------------------------------------------------------------

    def _publish(self, now: float) -> None:
        """The hot path: a PUBLISH without retain, DUP and properties, to a topic that was routed before.

        With QoS 0 it goes on as the bytes it came in. Everything else is decoded in full, by `_on_publish`.
        """
        decoder = self.decoder
        router = self.router
        header: i64 = decoder.header
        buffer = decoder.buffer
        body: i64 = decoder.body
        end: i64 = decoder.end
        if (
            (header == 0x30 or header == 0x32 or header == 0x34)
            and router.gate is None
            and body + 2 < end
            and buffer[body + 2] != DOLLAR
        ):
            topic_end: i64 = body + 2 + ((buffer[body] << 8) | buffer[body + 1])
            payload_at: i64 = topic_end
            if header != 0x30:
                payload_at += 2
            if self.v5:
                # One more byte, the property length, which must be 0 here.
                payload_at = payload_at + 1 if payload_at < end and buffer[payload_at] == 0 else end + 1
            if payload_at <= end:
                topic = buffer[body + 2 : topic_end]
                route = router.cache.lookup(topic)
                # What is in the cache has been validated.
                if route is not None:
                    if header == 0x30:
                        if route.entries:
                            message = Message(topic, b"", 0, False, b"", 0.0, self.client_id)
                            start: i64 = decoder.start
                            message.adopt_frame(buffer[start:end], self.v5, payload_at - start)
                            router.forward(route, message, self.session)
                        return
                    if self._publish_quality(route, topic, topic_end, payload_at):
                        return
        self._on_publish(decoder.publish(), now)

    def _publish_quality(self, route: Route, topic: bytes, id_at: i64, payload_at: i64) -> bool:
        """A QoS 1 or 2 PUBLISH on the hot path; False when it is not the common case after all."""
        session = self.session
        assert session is not None
        router = self.router
        decoder = self.decoder
        buffer = decoder.buffer
        outbox = self.outbox
        packet_id = (buffer[id_at] << 8) | buffer[id_at + 1]
        qos = 1 if decoder.header == 0x32 else 2
        inbound = session.inbound
        unfinished = outbox.acks + (0 if inbound is None else len(inbound))
        if packet_id == 0 or qos > router.limits.max_qos or unfinished >= router.limits.receive_maximum:
            return False
        if qos == 2:
            if inbound is None:
                inbound = set()
                session.inbound = inbound
            elif packet_id in inbound:
                return False
            inbound.add(packet_id)
            if session.journal is not None:
                session.journal.received(session.client_id, packet_id)
        message = Message(topic, buffer[payload_at : decoder.end], qos, False, b"", 0.0, session.client_id)
        count = router.forward(route, message, session)
        if qos == 1:
            outbox.acks += 1
            if count > 0 or not self.v5:
                outbox.control(b"\x40\x02" + buffer[id_at : id_at + 2])  # [MQTT-4.3.2-4]
            else:
                outbox.control(ack(PUBACK, packet_id, reasons.NO_MATCHING_SUBSCRIBERS, self.version))
        elif count > 0 or not self.v5:
            outbox.control(b"\x50\x02" + buffer[id_at : id_at + 2])  # [MQTT-4.3.3-8]
        else:
            outbox.control(ack(PUBREC, packet_id, reasons.NO_MATCHING_SUBSCRIBERS, self.version))
        return True

    def _on_publish(self, publish: Publish, now: float) -> None:
        session = self.session
        assert session is not None
        router = self.router
        limits = router.limits
        qos = publish.qos
        if qos > limits.max_qos:
            raise Refused(f"QoS {qos} is not supported", reasons.QOS_NOT_SUPPORTED)  # [MQTT-3.2.2-11]
        if publish.retain and not limits.retain_available:
            raise Refused("retained messages are not supported", reasons.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-14]
        topic = publish.topic
        if publish.topic_alias > 0:
            topic = self._resolve_alias(topic, publish.topic_alias)
        packet_id = publish.packet_id
        if qos > 0:
            inbound = session.inbound
            if qos == 2 and inbound is not None and packet_id in inbound:
                # Known already: acknowledged again, not routed again [MQTT-4.3.3-10].
                self.outbox.control(ack(PUBREC, packet_id, reasons.SUCCESS, self.version))
                return
            if self.v5:
                unfinished = self.outbox.acks + (0 if inbound is None else len(inbound))
                if unfinished >= limits.receive_maximum:
                    raise ReceiveMaximumExceeded(f"more than {limits.receive_maximum} publishes in flight")
        refusal = self._check_topic(topic, session)
        if refusal >= 0x80:
            if qos == 1:
                self.outbox.acks += 1
                self.outbox.control(ack(PUBACK, packet_id, refusal, self.version))
            elif qos == 2:
                if self.v5:
                    self.outbox.control(ack(PUBREC, packet_id, refusal, V5))
                else:
                    self._receive_qos2(session, packet_id, reasons.SUCCESS)
            return
        expires_at = now + publish.message_expiry if publish.message_expiry >= 0 else 0.0
        message = Message(
            topic, publish.payload, qos, publish.retain, publish.properties, expires_at, session.client_id
        )
        count = router.publish(message, session)
        if qos == 0:
            return
        reason = reasons.SUCCESS
        if count == 0 and self.v5:
            reason = reasons.NO_MATCHING_SUBSCRIBERS
        if qos == 1:
            self.outbox.acks += 1
            self.outbox.control(ack(PUBACK, packet_id, reason, self.version))  # [MQTT-4.3.2-4]
        else:
            self._receive_qos2(session, packet_id, reason)

    def _receive_qos2(self, session: Session, packet_id: int, reason: int) -> None:
        inbound = session.inbound
        if inbound is None:
            inbound = set()
            session.inbound = inbound
        inbound.add(packet_id)
        if session.journal is not None:
            session.journal.received(session.client_id, packet_id)
        self.outbox.control(ack(PUBREC, packet_id, reason, self.version))  # [MQTT-4.3.3-8]

    def _check_topic(self, topic: bytes, session: Session) -> int:
        """0, or the reason code with which a topic name is refused to this client."""
        limits = self.router.limits
        if limits.max_topic_levels > 0 and topic.count(b"/") >= limits.max_topic_levels:
            return reasons.TOPIC_NAME_INVALID
        if topic[:1] == b"$" and (topic == b"$SYS" or topic.startswith(b"$SYS/")):
            return reasons.NOT_AUTHORIZED
        gate = self.router.gate
        if gate is not None and not gate.may_publish(session.client_id, session.user_name, topic.decode()):
            return reasons.NOT_AUTHORIZED
        return 0

    def _resolve_alias(self, topic: bytes, alias: int) -> bytes:
        """The topic name of a topic alias, set or used (section 3.3.2.3.4)."""
        if alias > self.router.limits.topic_alias_maximum:
            raise TopicAliasInvalid(f"topic alias {alias} is above the maximum")  # [MQTT-3.3.2-9]
        aliases = self._aliases
        if aliases is None:
            aliases = {}
            self._aliases = aliases
        if topic:
            aliases[alias] = topic
            return topic
        known = aliases.get(alias)
        if known is None:
            raise ProtocolViolation(f"topic alias {alias} was never set")
        return known

    def _on_ack(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        session = self.session
        assert session is not None
        if kind == PUBACK:
            session.on_puback(packet_id, now)
        elif kind == PUBREC:
            session.on_pubrec(packet_id, reason_code, now)
        elif kind == PUBCOMP:
            session.on_pubcomp(packet_id, now)
        elif kind == PUBREL:
            inbound = session.inbound
            reason = reasons.SUCCESS
            if inbound is not None and packet_id in inbound:
                inbound.discard(packet_id)
                if session.journal is not None:
                    session.journal.completed(session.client_id, packet_id)
                self.outbox.acks += 1
            elif self.v5:
                reason = reasons.PACKET_IDENTIFIER_NOT_FOUND
            self.outbox.control(ack(PUBCOMP, packet_id, reason, self.version))  # [MQTT-4.3.3-11]

    # -- SUBSCRIBE, UNSUBSCRIBE, DISCONNECT ----------------------------------------------------------------------------

    def _on_subscribe(self, packet: Subscribe, session: Session, now: float) -> None:
        """All filters are held against the rules before any is subscribed to; then each gets its own reason code."""
        router = self.router
        limits = router.limits
        identifier = packet.properties.integers.get(SUBSCRIPTION_IDENTIFIER, 0)
        if identifier > 0 and not limits.subscription_identifiers:
            raise Refused("subscription identifiers are not supported", reasons.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED)
        parsed: list[tuple[str, str]] = []
        for request in packet.requests:
            group, topic_filter = parse_shared(request.topic_filter)
            validate_filter(topic_filter)
            if group and request.no_local:
                raise ProtocolViolation("No Local on a shared subscription")  # [MQTT-3.8.3-4]
            parsed.append((group, topic_filter))
        codes: list[int] = []
        for at, request in enumerate(packet.requests):
            group, topic_filter = parsed[at]
            code = self._judge(session, request.topic_filter, group, topic_filter)
            if code == 0:
                router.subscribe(session, group, topic_filter, request, identifier)
                code = min(request.qos, limits.max_qos)
            elif not self.v5:
                code = reasons.V3_SUBACK_FAILURE
            codes.append(code)
        # One SUBACK with a code for each filter, in their order [MQTT-3.8.4-5] [MQTT-3.8.4-6].
        self._answer(Suback(packet.packet_id, codes))
        if session.streams is not None:
            session.pump(now)

    def _judge(self, session: Session, name: str, group: str, topic_filter: str) -> int:
        """0, or the reason code with which a well-formed filter is refused."""
        limits = self.router.limits
        if group and not limits.shared_subscriptions:
            return reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not limits.wildcard_subscriptions and has_wildcard(topic_filter):
            return reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if limits.max_topic_levels > 0 and level_count(topic_filter) > limits.max_topic_levels:
            return reasons.TOPIC_FILTER_INVALID
        if 0 < limits.max_subscriptions_per_client <= len(session.subscriptions) and name not in session.subscriptions:
            return reasons.QUOTA_EXCEEDED
        gate = self.router.gate
        if gate is not None and not gate.may_subscribe(session.client_id, session.user_name, topic_filter):
            return reasons.NOT_AUTHORIZED
        return 0

    def _on_unsubscribe(self, packet: Unsubscribe, session: Session) -> None:
        codes: list[int] = []
        for name in packet.topic_filters:
            validate_filter(parse_shared(name)[1])
        for name in packet.topic_filters:
            found = self.router.unsubscribe(session, name)
            codes.append(reasons.SUCCESS if found else reasons.NO_SUBSCRIPTION_EXISTED)
        # Answered even when nothing matched [MQTT-3.10.4-5].
        self._answer(Unsuback(packet.packet_id, codes))

    def _on_disconnect(self, packet: Disconnect, session: Session) -> None:
        expiry = packet.properties.integers.get(SESSION_EXPIRY_INTERVAL, -1)
        if expiry >= 0:
            if expiry > 0 and self._requested_expiry == 0:
                # [MQTT-3.14.2-2] and section 3.14.2.2.2: it cannot be raised from zero.
                raise ProtocolViolation("Session Expiry Interval raised from 0 in DISCONNECT")
            session.expiry_interval = min(expiry, self.router.limits.max_session_expiry)
        if packet.reason_code == reasons.SUCCESS:
            self._end(CLIENT_DISCONNECT, "")
        else:
            self._end(CLIENT_DISCONNECT_WITH_WILL, reasons.name(packet.reason_code))
