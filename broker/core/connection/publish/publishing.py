"""Handles a connected client's PUBLISH packets: the hot path in.

Owns the decision whether a PUBLISH is routed, and with which reason code it is acknowledged; `Acknowledger` sends that.
A QoS 0 PUBLISH of the common form is forwarded as the bytes that arrived: only the position of its topic is decoded. A
QoS 2 PUBLISH is routed once until its PUBREL, even if it is sent again [MQTT-4.3.3-10]. A message that has already been
here, or has crossed too many links, is acknowledged and not routed (`loop_detection`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.errors import (
    MalformedPacket,
    ProtocolViolation,
    ReceiveMaximumExceeded,
    Refused,
    TopicAliasInvalid,
)
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.mounted_names import outer_properties, outer_topic
from broker.core.codec.packets import V5, Publish
from broker.core.codec.publish_layout import alike, plain_payload, topic_end
from broker.core.codec.publish_layout import head as frame_head
from broker.core.codec.topic_names import has_control
from broker.core.connection.connect.identity import is_reserved
from broker.core.connection.publish.acknowledging import Acknowledger
from broker.core.permissions import Permissions
from broker.core.principal import Principal
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import OVERHEAD, Message
from broker.core.queues.requests import Request
from broker.core.refusals import MOUNT, PUBLISH, STORE
from broker.core.routing.in_turns.broadcasts import PLAIN_BROADCAST
from broker.core.routing.loop_detection import has_looped, visited
from broker.core.routing.receivers.bursts import Run
from broker.core.routing.receivers.fanout import REFUSED_BY_ALL
from broker.core.routing.router import Router
from broker.core.sampling.sampler import Sampler
from broker.core.session.session import Session
from broker.core.topics.route import Route

DOLLAR: Final = 0x24

PROPERTY_WORK: Final = 1
"""Properties of a PUBLISH count for one in a turn by so many bits of their length: two bytes. Each user property is
checked by itself, and may have five bytes."""

DECODE_WORK: Final = 48
"""What a PUBLISH that is decoded in full counts for in a turn, in deliveries: two to three microseconds."""

ASK_WORK: Final = 8
"""What asking access control about one publish counts for in a turn: two microseconds, where it is quick."""

PUBLISH_RUN: Final = 64
RUN_BYTES: Final = 16_384
"""Publishes of QoS 1 or 2 that are routed and acknowledged together, at most, and their bytes: what a receiver is sent
in one piece."""


IN_ONE_PIECE: Final = 12
"""Publishes in a row from which on one piece of all their frames costs less than each frame by itself."""


class PublishHandler:
    """Handles the PUBLISH packets of one connection."""

    def __init__(self, router: Router, outbox: Outbox, decoder: Decoder, acknowledger: Acknowledger) -> None:
        self._router = router
        self._outbox = outbox
        self._decoder = decoder
        self._acknowledger = acknowledger
        self._why = ""  # what refused the last topic; empty: access control did
        # Known while the client is connected.
        self._session: Session | None = None
        self._v5 = False
        self._max_aliases = 0
        # Publishes of QoS 1 or 2 that may be acknowledged together.
        self.longest_run: i64 = PUBLISH_RUN
        # Bytes of the longest payload that takes the hot path.
        self._plain_most: i64 = -1
        # What access control has allowed last: as whom, what (`Permissions.publish_key`), and where.
        self._allowed_as: Principal | None = None
        self._allowed_key: i64 = -1
        self._allowed_topic = b""
        # What stands before its topics here (`codec.mounted_names`); with one nothing takes the hot path.
        self._mount = b""
        # Topic aliases that the client has set: they end with the connection [MQTT-3.3.2-7].
        self._aliases: TopicAliases | None = None

    def connected(self, session: Session, version: int, max_aliases: int) -> None:
        """The client was accepted; `max_aliases` is the Topic Alias Maximum that it was told."""
        self._session = session
        self._max_aliases = max_aliases
        self._v5 = version == V5
        limits = self._router.limits
        # On the hot path a message is neither refused for its payload nor does it get another QoS.
        self._plain_most = limits.max_payload_size or LARGEST_PACKET
        self._mount = session.principal.mount.encode()
        if limits.upgrade_outgoing_qos or self._mount or self._router.message_hook is not None:
            self._plain_most = -1

    def ended(self) -> None:
        """The connection is over."""
        self._session = None
        self._allowed_as = None
        aliases = self._aliases
        if aliases is not None:
            self._aliases = None
            aliases.forget()

    def publish(self, now: float) -> int:
        """Take the decoder's current frame, a PUBLISH. How many it took, with those that go the same way; 0: it waits.

        The hot path: a PUBLISH without retain, DUP and properties, to a topic that was routed before. With QoS 0 it
        goes on as the bytes it came in. Everything else is decoded in full, by `_on_publish`.
        """
        decoder = self._decoder
        router = self._router
        if router.fanout.broadcasting and self._comes_later():
            decoder.end = decoder.start
            router.counters.packets_received -= 1
            return 0
        header: i64 = decoder.header
        buffer = decoder.buffer
        body: i64 = decoder.body
        end: i64 = decoder.end
        permissions = router.permissions
        if (
            (header == 0x30 or header == 0x32 or header == 0x34)
            and (permissions is None or permissions.steady)
            and body + 2 < end
            and buffer[body + 2] != DOLLAR
        ):
            payload_at: i64 = plain_payload(buffer, body, end, header & 6, self._v5)
            if payload_at > 0 and end - payload_at <= self._plain_most:
                topic_stop: i64 = topic_end(buffer, body)
                topic = buffer[body + 2 : topic_stop]
                route = router.cache.lookup(topic)
                # What is in the cache has been validated.
                if route is not None and (permissions is None or self._may(route, topic, header, permissions)):
                    if header == 0x30:
                        return self._publish_plain(route, topic, payload_at)
                    taken: i64 = self._publish_qos12(route, topic, topic_stop, payload_at)
                    if taken > 0:
                        return taken
        self._on_publish(decoder.publish(), now)
        return 1

    def sample(self, sampler: Sampler, taken: i64) -> None:
        """Have the sampler look at the current frame, or at those of the run that begins there: it was routed."""
        decoder = self._decoder
        session = self._session
        if session is None or decoder.end <= decoder.start:
            sampler.skip()
            return
        topic = b""
        body: i64 = decoder.body
        if taken == 1 and topic_end(decoder.buffer, body) == body + 2:
            topic = self._aliased(b"", decoder.publish().topic_alias)
        sampler.take(decoder.buffer, decoder.start, decoder.end, taken, topic, self._mount, session.client_id)

    def _may(self, route: Route, topic: bytes, header: i64, permissions: Permissions) -> bool:
        """Whether access control lets the client publish so. What it has said is remembered twice, and no more:

        with the topic, about the client that published there last, and with the connection, about its last topic.
        """
        session = self._session
        assert session is not None
        if session.own:
            return True
        principal = session.principal
        key = permissions.publish_key(header)
        if route.publish_key == key and route.publisher is principal:
            return True
        if self._allowed_key != key or self._allowed_as is not principal or self._allowed_topic != topic:
            self._router.work += ASK_WORK + permissions.source.ask_work
            if not permissions.asked.may_publish(principal, topic.decode(), (header & 6) >> 1, False):
                return False
            self._allowed_key = key
            self._allowed_as = principal
            self._allowed_topic = topic
        route.publisher = principal
        route.publish_key = key
        return True

    def _comes_later(self) -> bool:
        """While a message is on its way to very many, others that are for very many wait for it."""
        publish = self._decoder.publish()
        topic = publish.topic
        if publish.topic_alias > 0:
            topic = self._aliased(topic, publish.topic_alias)
        return self._router.fanout.would_wait(self._mount + topic)

    def _publish_plain(self, route: Route, topic: bytes, payload_at: i64) -> int:
        """Route the current frame, of QoS 0, and those behind it that go the same way to a single filter.

        Returns how many there were.
        """
        router = self._router
        session = self._session
        assert session is not None
        entries = route.entries
        tap = router.tap if route.tapped else None
        if not entries and tap is None:
            return 1
        decoder = self._decoder
        data = decoder.buffer
        v5 = self._v5
        start: i64 = decoder.start
        end: i64 = decoder.end
        largest: i64 = end - start
        count: i64 = 1
        entry = entries[0] if len(entries) == 1 else None
        if tap is not None and tap.deliveries:
            # Told message by message.
            entry = None
        if entry is not None and not router.fanout.open(route):
            # Not for everybody who listens there.
            entry = None
        if (
            entry is not None
            and end < len(data)
            and data[end] == 0x30
            and not entry.groups
            and entry.ordinary_count <= PLAIN_BROADCAST
            and not router.fanout.broadcasting  # each has its topic looked at: see `_comes_later`
        ):
            router.runs.permit(router.permissions, session.principal)
            count, largest = router.runs.find(decoder, payload_at, entry, v5, route.tapped)
            end = decoder.end
        if start > 0 or end < len(data):
            data = data[start:end]
        if tap is not None and (entry is not None or not entries):
            tap.frames(data, count, v5, session.client_id)
            if not entries:
                return 1
        if entry is not None:
            sole = entry.sole
            if sole is not None and router.fanout.offer_plain(sole, data, count, largest, v5, session):
                return count
            if count > 1:
                router.fanout.forward_run(Run(data, count, largest, v5, session.client_id), entry, session)
                return count
        message = Message(topic, b"", 0, False, b"", 0.0, session.client_id)
        message.adopt_frame(data, v5, payload_at - start)
        if entry is None:
            router.fanout.forward(route, message, session)
        else:
            router.fanout.spread(route, message, session)
        return 1

    def _publish_qos12(self, route: Route, topic: bytes, id_at: i64, payload_at: i64) -> i64:
        """Route a QoS 1 or 2 PUBLISH on the hot path, and those behind it that have the same topic and length.

        Returns how many there were; 0 when it is not the common case after all.
        """
        session = self._session
        assert session is not None
        router = self._router
        decoder = self._decoder
        buffer = decoder.buffer
        acknowledger = self._acknowledger
        start: i64 = decoder.start
        end: i64 = decoder.end
        packet_id: i64 = (buffer[id_at] << 8) | buffer[id_at + 1]
        qos: i64 = 1 if decoder.header == 0x32 else 2
        room: i64 = acknowledger.room()
        if packet_id == 0 or room <= 0 or qos > router.limits.max_qos:
            return 0
        if router.commits is not None:
            if router.commits.refuses(router.limits.store_refuses):
                return 0
            acknowledger.begin()
        head = buffer[start:id_at]
        receiver = router.fanout.sole_receiver(route, qos)
        if receiver is not None:
            count: i64 = 1
            if end < len(buffer):
                if room > self.longest_run:
                    room = self.longest_run
                count = alike(buffer, head, start, end, payload_at, self._v5, room, start + RUN_BYTES)
            count = receiver.room(count, OVERHEAD + len(topic) + end - payload_at)
            if count > 1:
                return self._publish_run(session, receiver, topic, head, count, payload_at - start)
            if count == 0:
                receiver = None
        if qos == 2 and acknowledger.knows(packet_id):
            return 0
        if qos == 2:
            acknowledger.remember(packet_id)
        message = Message(topic, buffer[payload_at:end], qos, False, b"", 0.0, session.client_id)
        message.adopt_head(head, self._v5)
        if receiver is not None:
            receiver.send_now(message, qos)
            router.work += 1
            acknowledger.answer_one(qos, buffer[id_at : id_at + 2])
        else:
            reached = router.fanout.forward(route, message, session)
            acknowledger.answer(qos, packet_id, reasons.SUCCESS if reached > 0 else self._reason(reached))
        return 1

    def _publish_run(
        self, session: Session, receiver: Session, topic: bytes, head: bytes, count: i64, payload_at: i64
    ) -> i64:
        """Route up to `count` frames that are alike, from the current one on, to the one who gets them.

        `head`: the bytes of the first before its packet identifier; `payload_at`: where its payload begins in it.
        Returns how many there were: fewer, and perhaps none, where an identifier is in use.
        """
        decoder = self._decoder
        buffer = decoder.buffer
        acknowledger = self._acknowledger
        qos: i64 = 1 if decoder.header == 0x32 else 2
        start: i64 = decoder.start
        length: i64 = decoder.end - start
        id_at: i64 = len(head)
        v5 = session.v5
        sent_v5 = receiver.v5
        sent_head = head
        if sent_v5 != v5:
            sent_head = frame_head(decoder.header, topic, length - payload_at + (1 if sent_v5 else 0))
        messages: list[Message] = []
        packet_ids: list[bytes] = []
        at: i64 = start
        while count > 0:
            if qos == 2:
                packet_id: i64 = (buffer[at + id_at] << 8) | buffer[at + id_at + 1]
                if acknowledger.knows(packet_id):
                    break
                acknowledger.remember(packet_id)
            message = Message(topic, buffer[at + payload_at : at + length], qos, False, b"", 0.0, session.client_id)
            message.adopt_head(sent_head, sent_v5)
            messages.append(message)
            packet_ids.append(buffer[at + id_at : at + id_at + 2])
            at += length
            count -= 1
        count = len(messages)
        if count > 0:
            decoder.end = at
            self._router.work += count
            if count < IN_ONE_PIECE:
                for message in messages:
                    receiver.send_now(message, qos)
                acknowledger.answer_run(qos, packet_ids)
                return count
            if sent_v5 == v5:
                frames = bytearray(buffer[start:at])
            else:
                # The packet identifiers follow; 5.0 has the length of no properties behind them.
                glue = sent_head + (b"\0\0\0" if sent_v5 else b"\0\0")
                frames = bytearray(glue + glue.join([message.payload() for message in messages]))
            receiver.send_run(messages, qos, frames, len(sent_head))
            acknowledger.answer_run(qos, packet_ids)
        return count

    def _judge(self, topic: bytes, session: Session, qos: int, retain: bool) -> int:
        """0, or the reason code with which a topic name is refused to this client.

        Raises:
            MalformedPacket: it holds control characters, and the settings let none in (section 1.5.4).
        """
        router = self._router
        limits = router.limits
        self._why = ""
        if limits.max_topic_levels > 0 and topic.count(b"/") >= limits.max_topic_levels:
            self._why = "limits.max_topic_levels"
            return reasons.TOPIC_NAME_INVALID
        # What the cache knows holds none: it is asked once for a topic, not for each message.
        if not limits.control_characters and not router.cache.knows(topic) and has_control(topic.decode()):
            raise MalformedPacket("a topic name with a control character")
        if is_reserved(topic, session.link, router, session):
            self._why = "the topic is the broker's own"
            return reasons.NOT_AUTHORIZED
        access_control = router.access_control
        if (
            access_control is not None
            and not session.own
            and not access_control.may_publish(session.principal, topic.decode(), qos, retain)
        ):
            router.counters.denied_publishes += 1
            return reasons.NOT_AUTHORIZED
        return 0

    def _reason(self, count: int) -> int:
        """What the publisher is told of a message that was for so many sessions and groups (`Fanout.forward`)."""
        if not self._v5:
            return reasons.SUCCESS
        if count == 0:
            return reasons.NO_MATCHING_SUBSCRIBERS
        if count == REFUSED_BY_ALL and self._router.limits.tell_publisher:
            return reasons.QUOTA_EXCEEDED
        return reasons.SUCCESS

    def _on_publish(self, publish: Publish, now: float) -> None:
        """Judge a PUBLISH, route it, and answer by its QoS: nothing, PUBACK or PUBREC [MQTT-3.3.4-1]."""
        session = self._session
        assert session is not None
        router = self._router
        limits = router.limits
        qos = publish.qos
        if qos > limits.max_qos:
            raise Refused(f"QoS {qos} is not supported", reasons.QOS_NOT_SUPPORTED)  # [MQTT-3.2.2-11]
        if publish.retain and not limits.retain_available:
            raise Refused("retained messages are not supported", reasons.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-14]
        topic = publish.topic
        router.work += DECODE_WORK + (len(publish.properties) >> PROPERTY_WORK)
        if publish.topic_alias > 0:
            topic = self._aliased(topic, publish.topic_alias)
        if self._mount:
            topic = self._mounted(topic, publish)
        packet_id = publish.packet_id
        acknowledger = self._acknowledger
        if qos > 0:
            if acknowledger.holds(packet_id):
                # It came again before it was acknowledged: the answer that it waits for is for both.
                return
            if qos == 2 and acknowledger.knows(packet_id):
                # Known already: acknowledged again, not routed again [MQTT-4.3.3-10].
                acknowledger.comes_again(packet_id)
                acknowledger.answer_again(packet_id)
                return
            acknowledger.begin()
            if self._v5 and acknowledger.full():
                # [MQTT-3.3.4-7]
                raise ReceiveMaximumExceeded(f"more than {limits.receive_maximum} publishes in flight")
        # 3.1.1 has no code for a refusal: the message goes nowhere and is acknowledged as usual [MQTT3-3.3.5-2].
        why = ""
        if topic:
            reason = self._judge(topic, session, qos, publish.retain)
            why = self._why
        else:
            reason, why = reasons.NOT_AUTHORIZED, MOUNT
            topic = publish.topic
        if 0 < limits.max_payload_size < len(publish.payload):
            router.counters.oversized += 1
            reason, why = reasons.QUOTA_EXCEEDED, "limits.max_payload_size"
        if qos > 0 and reason < 0x80 and router.commits is not None and router.commits.refuses(limits.store_refuses):
            if not self._v5:
                raise Refused(STORE, reasons.QUOTA_EXCEEDED)
            reason, why = reasons.QUOTA_EXCEEDED, STORE
        if reason >= 0x80:
            self._refused(session, publish, topic, reason, why, now)
        else:
            # One that has been here is accepted: whoever sent it has done nothing wrong, and everybody has had it.
            if publish.properties and has_looped(visited(publish.properties), router.broker_id, limits.hop_limit):
                router.counters.looped += 1
                # A request has reached nobody this way: whoever asked is told by the other ways.
                if publish.request:
                    reason = reasons.NO_MATCHING_SUBSCRIBERS
            else:
                expires_at = now + publish.message_expiry if publish.message_expiry >= 0 else 0.0
                message = Message(
                    topic, publish.payload, qos, publish.retain, publish.properties, expires_at, session.client_id
                )
                hook = router.message_hook
                if hook is not None:
                    changed = hook.publish(session.principal, message, False)
                    if changed is None:
                        self._refused(session, publish, topic, hook.reason_code, "a plug-in", now)
                        if qos > 0:
                            acknowledger.answer(qos, packet_id, hook.reason_code)
                        return
                    message = changed
                if qos > 0 and publish.request:
                    request = Request(packet_id, qos)
                    count = router.publisher.ask(message, session, request)
                    peer = self._outbox.peer
                    if peer is not None and request.waits(peer, count):
                        acknowledger.hold(request, now + limits.answer_timeout)
                        return
                else:
                    count = router.publisher.publish(message, session)
                reason = self._reason(count)
        if qos > 0:
            acknowledger.answer(qos, packet_id, reason)

    def _refused(
        self, session: Session, publish: Publish, topic: bytes, reason_code: int, why: str, now: float
    ) -> None:
        """Remember that a publish was refused: 3.1.1 has no way to tell its client."""
        self._router.counters.refusals.note(
            session.ledger,
            session.principal,
            PUBLISH,
            topic.decode(),
            reason_code,
            now,
            why,
            publish.qos,
            publish.retain,
        )

    def _mounted(self, topic: bytes, publish: Publish) -> bytes:
        """The broker's name of a mounted client's topic, and of its Response Topic; empty: it may not go there."""
        outer = outer_topic(self._mount, topic)
        properties = outer_properties(self._mount, publish.properties)
        if outer is None or properties is None:
            self._router.counters.denied_publishes += 1
            return b""
        publish.properties = properties
        return outer

    def _aliased(self, topic: bytes, alias: int) -> bytes:
        aliases = self._aliases
        if aliases is None:
            aliases = TopicAliases(self._router, self._max_aliases)
            self._aliases = aliases
        return aliases.resolve(topic, alias)


ALIAS_BYTES: Final = 160
"""What an alias counts for beside its topic name: the table's place, and two objects' heads."""


def plenty(router: Router) -> bool:
    """Whether a client that connects now may set aliases: a quarter of the bound over all is left."""
    bound = router.limits.max_alias_bytes
    return bound == 0 or router.alias_bytes < bound - bound // 4


class TopicAliases:
    """Alias to topic name, for the life of one connection."""

    def __init__(self, router: Router, maximum: int) -> None:
        """`maximum`: the Topic Alias Maximum that the client was told."""
        self._router = router
        self._maximum = maximum
        self._topics: dict[int, bytes] = {}
        self._bytes: i64 = 0

    def resolve(self, topic: bytes, alias: int) -> bytes:
        """The topic name of an alias: set when `topic` is not empty, used when it is.

        Any from 1 (the decoder refuses 0) to the maximum that was announced is taken [MQTT-3.3.2-12], and none above
        it [MQTT-3.2.2-17]: with a maximum of 0, which is announced by saying nothing, none at all [MQTT-3.2.2-18].

        Raises:
            TopicAliasInvalid: the alias is above the maximum.
            ProtocolViolation: it was never set.
            Refused: 0x97: the aliases of this client, or of all, would take more bytes than the settings allow.
        """
        if alias > self._maximum:
            raise TopicAliasInvalid(f"topic alias {alias} is above the maximum")  # [MQTT-3.3.2-9]
        known = self._topics.get(alias)
        if topic:
            grown: i64 = len(topic) + ALIAS_BYTES if known is None else len(topic) - len(known)
            self._charge(grown)
            self._topics[alias] = topic
            return topic
        if known is None:
            raise ProtocolViolation(f"topic alias {alias} was never set")
        return known

    def _charge(self, grown: i64) -> None:
        router = self._router
        limits = router.limits
        if grown > 0:
            if 0 < limits.max_alias_bytes_per_client < self._bytes + grown:
                raise Refused(
                    f"topic aliases of more than {limits.max_alias_bytes_per_client} bytes", reasons.QUOTA_EXCEEDED
                )
            if 0 < limits.max_alias_bytes < router.alias_bytes + grown:
                raise Refused("the broker has no room for more topic aliases", reasons.QUOTA_EXCEEDED)
        self._bytes += grown
        router.alias_bytes += grown

    def forget(self) -> None:
        """The connection is over, and its aliases with it [MQTT-3.3.2-7]."""
        self._topics = {}
        self._router.alias_bytes -= self._bytes
        self._bytes = 0
