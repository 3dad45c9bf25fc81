"""What a connected client publishes, and its acknowledgements: the hot path in.

Owns the topic aliases that the client sets, the decision whether a PUBLISH is routed, the acknowledgement that it
gets, and the requests whose acknowledgements wait for links (`requests`). The base of `ServerProtocol`, which owns
everything else about a connection.

Promises:
- A QoS 0 PUBLISH of the common form goes on as the bytes that it came in; nothing of it is decoded but its topic's
  place.
- A QoS 2 PUBLISH is routed once, however often it comes, until its PUBREL [MQTT-4.3.3-10].
- No more QoS 1 and 2 publishes are unacknowledged than the Receive Maximum that was announced, or the connection
  ends. Those whose acknowledgement waits are among them.
- A message that has been here before, or has come over too many links, is acknowledged and goes nowhere (`path`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import ack
from broker.core.codec.errors import ProtocolViolation, ReceiveMaximumExceeded, Refused, TopicAliasInvalid
from broker.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, Publish
from broker.core.connection.identity import is_reserved
from broker.core.queues.message import Message
from broker.core.queues.outbox import Outbox, Peer
from broker.core.queues.requests import Request
from broker.core.routing.bursts import Run
from broker.core.routing.loop_detection import visited
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.topics.match_cache import Route

DOLLAR: Final = 0x24


class PublishHandler(Peer):
    """The publishing side of one connection."""

    def __init__(self, router: Router, outbox: Outbox, decoder: Decoder) -> None:
        self.router = router
        self.outbox = outbox
        self.decoder = decoder
        # Known from the CONNECT on; `session` while it is connected.
        self.v5 = False
        self.version = 0
        self.client_id = ""
        self.session: Session | None = None
        # Topic aliases that the client has set: they end with the connection [MQTT-3.3.2-7].
        self._aliases: dict[int, bytes] | None = None
        # Its requests whose answers wait for links, by packet identifier: they are this connection's.
        self._requests: dict[int, Request] | None = None

    def _publish(self, now: float) -> int:
        """The hot path: a PUBLISH without retain, DUP and properties, to a topic that was routed before.

        With QoS 0 it goes on as the bytes it came in, and so do those behind it that go the same way: how many there
        were in all. Everything else is decoded in full, by `_on_publish`.
        """
        decoder = self.decoder
        router = self.router
        header: i64 = decoder.header
        buffer = decoder.buffer
        body: i64 = decoder.body
        end: i64 = decoder.end
        if (
            (header == 0x30 or header == 0x32 or header == 0x34)
            and router.access_control is None
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
                        return self._publish_plain(route, topic, payload_at)
                    if self._publish_qos12(route, topic, topic_end, payload_at):
                        return 1
        self._on_publish(decoder.publish(), now)
        return 1

    def _publish_plain(self, route: Route, topic: bytes, payload_at: int) -> int:
        """Route the current frame, of QoS 0, and those behind it that go the same way to a single filter.

        Returns how many there were.
        """
        router = self.router
        entries = route.entries
        tap = router.tap if route.tapped else None
        if not entries and tap is None:
            return 1
        decoder = self.decoder
        data = decoder.buffer
        start: i64 = decoder.start
        end: i64 = decoder.end
        largest: i64 = end - start
        count: i64 = 1
        entry = entries[0] if len(entries) == 1 else None
        if tap is not None and tap.deliveries:
            # Told message by message.
            entry = None
        if entry is not None and end < len(data) and data[end] == 0x30 and not entry.groups:
            count = router.runs.find(decoder, payload_at, entry, self.v5, route.tapped)
            largest = router.runs.largest
            end = decoder.end
        if start > 0 or end < len(data):
            data = data[start:end]
        if tap is not None and (entry is not None or not entries):
            tap.frames(data, count, self.v5, self.client_id)
            if not entries:
                return 1
        if entry is not None:
            sole = entry.sole
            if sole is not None and router.offer_plain(sole, data, count, largest, self.v5, self.session):
                return count
            if count > 1:
                router.forward_run(Run(data, count, largest, self.v5, self.client_id), entry, self.session)
                return count
        message = Message(topic, b"", 0, False, b"", 0.0, self.client_id)
        message.adopt_frame(data, self.v5, payload_at - start)
        if entry is None:
            router.forward(route, message, self.session)
        else:
            router.spread(route, message, self.session)
        return 1

    def _publish_qos12(self, route: Route, topic: bytes, id_at: i64, payload_at: i64) -> bool:
        """A QoS 1 or 2 PUBLISH on the hot path; False when it is not the common case after all."""
        session = self.session
        assert session is not None
        router = self.router
        decoder = self.decoder
        buffer = decoder.buffer
        outbox = self.outbox
        packet_id = (buffer[id_at] << 8) | buffer[id_at + 1]
        qos = 1 if decoder.header == 0x32 else 2
        incoming_qos2 = session.incoming_qos2
        unfinished = outbox.acks + (0 if incoming_qos2 is None else len(incoming_qos2))
        if packet_id == 0 or qos > router.limits.max_qos or unfinished >= router.limits.receive_maximum:
            return False
        if qos == 2:
            if incoming_qos2 is None:
                incoming_qos2 = set()
                session.incoming_qos2 = incoming_qos2
            elif packet_id in incoming_qos2:
                return False
            incoming_qos2.add(packet_id)
            if session.journal is not None:
                session.journal.received(session.client_id, packet_id)
        message = Message(topic, buffer[payload_at : decoder.end], qos, False, b"", 0.0, session.client_id)
        message.adopt_head(buffer[decoder.start : id_at], self.v5)
        count = router.forward(route, message, session)
        if self.v5 and router.limits.tell_publisher and router.refused_by_all:
            self._tell_refused(session, qos, packet_id)
        elif qos == 1:
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

    def _tell_refused(self, session: Session, qos: int, packet_id: int) -> None:
        """Answer 0x97 for a message that every queue it was for has refused; the publisher may send it again.

        With such a PUBREC the identifier is free at once [MQTT-4.3.3-9].
        """
        if qos == 1:
            self.outbox.acks += 1
            self.outbox.control(ack(PUBACK, packet_id, reasons.QUOTA_EXCEEDED, V5))
            return
        incoming_qos2 = session.incoming_qos2
        if incoming_qos2 is not None and packet_id in incoming_qos2:
            incoming_qos2.discard(packet_id)
            if session.journal is not None:
                session.journal.completed(session.client_id, packet_id)
        self.outbox.control(ack(PUBREC, packet_id, reasons.QUOTA_EXCEEDED, V5))

    def _on_publish(self, publish: Publish, now: float) -> None:
        """Judge a PUBLISH, route it, and answer by its QoS: nothing, PUBACK or PUBREC [MQTT-3.3.4-1]."""
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
            if self._requests is not None and packet_id in self._requests:
                # It came again before it was acknowledged: the answer that it waits for is for both.
                return
            incoming_qos2 = session.incoming_qos2
            if qos == 2 and incoming_qos2 is not None and packet_id in incoming_qos2:
                # Known already: acknowledged again, not routed again [MQTT-4.3.3-10].
                self.outbox.control(ack(PUBREC, packet_id, reasons.SUCCESS, self.version))
                return
            if self.v5:
                unfinished = self.outbox.acks + (0 if incoming_qos2 is None else len(incoming_qos2))
                if unfinished >= limits.receive_maximum:
                    # [MQTT-3.3.4-7]
                    raise ReceiveMaximumExceeded(f"more than {limits.receive_maximum} publishes in flight")
        refusal = self._check_topic(topic, session)
        if refusal >= 0x80:
            # 3.1.1 has no code for it: the message goes nowhere and is acknowledged as usual [MQTT3-3.3.5-2].
            if qos == 1:
                self.outbox.acks += 1
                self.outbox.control(ack(PUBACK, packet_id, refusal, self.version))
            elif qos == 2:
                # With such a PUBREC the identifier is free at once, so it is not remembered [MQTT-4.3.3-9].
                if self.v5:
                    self.outbox.control(ack(PUBREC, packet_id, refusal, V5))
                else:
                    self._receive_qos2(session, packet_id, reasons.SUCCESS)
            return
        if publish.properties and self._looped(publish.properties):
            router.counters.looped += 1
            # A request has reached nobody this way: whoever asked is told by the other ways.
            reason = reasons.NO_MATCHING_SUBSCRIBERS if publish.request else reasons.SUCCESS
            if qos == 1:
                self.outbox.acks += 1
                self.outbox.control(ack(PUBACK, packet_id, reason, self.version))
            elif qos == 2:
                self._receive_qos2(session, packet_id, reason)
            return
        expires_at = now + publish.message_expiry if publish.message_expiry >= 0 else 0.0
        message = Message(
            topic, publish.payload, qos, publish.retain, publish.properties, expires_at, session.client_id
        )
        if publish.request and qos > 0:
            request = Request(packet_id, qos)
            count = router.ask(message, session, request)
            if request.waits(self, count):
                self._await_answer(session, request, now)
                return
        else:
            count = router.publish(message, session)
        if qos == 0:
            return
        reason = reasons.SUCCESS
        if count == 0 and self.v5:
            reason = reasons.NO_MATCHING_SUBSCRIBERS
        elif self.v5 and limits.tell_publisher and router.refused_by_all:
            self._tell_refused(session, qos, packet_id)
            return
        if qos == 1:
            # The identifier is not remembered: coming again, with DUP or not, it is a new message [MQTT-4.3.2-5].
            self.outbox.acks += 1
            self.outbox.control(ack(PUBACK, packet_id, reason, self.version))  # [MQTT-4.3.2-4]
        else:
            self._receive_qos2(session, packet_id, reason)

    def _await_answer(self, session: Session, request: Request, now: float) -> None:
        """The acknowledgement has to wait for what links say. Until then the publish counts as unacknowledged."""
        self.router.deadlines.set(request, now + self.router.limits.answer_timeout)
        requests = self._requests
        if requests is None:
            requests = {}
            self._requests = requests
        requests[request.packet_id] = request
        if request.qos == 1:
            self.outbox.acks += 1
            self.outbox.held += 1
        else:
            self._remember(session, request.packet_id)

    def answer(self, packet_id: int, qos: int, reached: bool) -> None:
        """It is known whether its request reached anybody: PUBACK or PUBREC, if the connection still waits for it."""
        requests = self._requests
        request = None if requests is None else requests.pop(packet_id, None)
        if request is None:
            return
        self.router.deadlines.cancel(request)
        reason = reasons.SUCCESS if reached else reasons.NO_MATCHING_SUBSCRIBERS
        if qos == 1:
            # It counts since it came.
            self.outbox.held -= 1
            self.outbox.control(ack(PUBACK, packet_id, reason, self.version))  # [MQTT-4.3.2-4]
        else:
            self.outbox.control(ack(PUBREC, packet_id, reason, self.version))  # [MQTT-4.3.3-8]

    def _forget_requests(self) -> None:
        """The connection is over: nobody waits for the answers any more.

        One of QoS 2 stays known by its identifier: sent again on the session's next connection it gets its PUBREC, and
        is not routed again [MQTT-4.3.3-10].
        """
        requests = self._requests
        if requests is not None:
            self._requests = None
            for request in requests.values():
                request.peer = None
                self.router.deadlines.cancel(request)

    def _receive_qos2(self, session: Session, packet_id: int, reason: int) -> None:
        """Remember the identifier until its PUBREL, and answer PUBREC."""
        self._remember(session, packet_id)
        self.outbox.control(ack(PUBREC, packet_id, reason, self.version))  # [MQTT-4.3.3-8]

    def _remember(self, session: Session, packet_id: int) -> None:
        """Know the identifier of a QoS 2 publish until its PUBREL.

        Only the identifier: that the message may expire meanwhile changes nothing in what follows [MQTT-4.3.3-13].
        """
        incoming_qos2 = session.incoming_qos2
        if incoming_qos2 is None:
            incoming_qos2 = set()
            session.incoming_qos2 = incoming_qos2
        incoming_qos2.add(packet_id)
        if session.journal is not None:
            session.journal.received(session.client_id, packet_id)

    def _looped(self, properties: bytes) -> bool:
        """Whether a message has been here before, or has come over more links than it may.

        It is accepted and goes nowhere: whoever sent it has done nothing wrong, and everybody here has had it.
        """
        path = visited(properties)
        if not path:
            return False
        own = self.router.broker_id
        return (own != "" and own in path) or 0 < self.router.limits.hop_limit <= len(path)

    def _check_topic(self, topic: bytes, session: Session) -> int:
        """0, or the reason code with which a topic name is refused to this client."""
        limits = self.router.limits
        if limits.max_topic_levels > 0 and topic.count(b"/") >= limits.max_topic_levels:
            return reasons.TOPIC_NAME_INVALID
        if is_reserved(topic, session.link, self.router):
            return reasons.NOT_AUTHORIZED
        access_control = self.router.access_control
        if access_control is not None and not access_control.may_publish(
            session.client_id, session.user_name, topic.decode()
        ):
            return reasons.NOT_AUTHORIZED
        return 0

    def _resolve_alias(self, topic: bytes, alias: int) -> bytes:
        """The topic name of a topic alias, set or used (section 3.3.2.3.4).

        Any from 1 (the decoder refuses 0) to the maximum that was announced is taken [MQTT-3.3.2-12], and none above
        it [MQTT-3.2.2-17]: with a maximum of 0, which is announced by saying nothing, none at all [MQTT-3.2.2-18].
        """
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
            session.on_puback(packet_id, reason_code, now)
        elif kind == PUBREC:
            session.on_pubrec(packet_id, reason_code, now)
        elif kind == PUBCOMP:
            session.on_pubcomp(packet_id, now)
        elif kind == PUBREL:
            incoming_qos2 = session.incoming_qos2
            reason = reasons.SUCCESS
            if incoming_qos2 is not None and packet_id in incoming_qos2:
                if self._requests is not None and packet_id in self._requests:
                    raise ProtocolViolation("PUBREL for a publish that got no PUBREC yet")
                # After the PUBCOMP it means a new message [MQTT-4.3.3-12].
                incoming_qos2.discard(packet_id)
                if session.journal is not None:
                    session.journal.completed(session.client_id, packet_id)
                self.outbox.acks += 1
            elif self.v5:
                reason = reasons.PACKET_IDENTIFIER_NOT_FOUND
            self.outbox.control(ack(PUBCOMP, packet_id, reason, self.version))  # [MQTT-4.3.3-11]
