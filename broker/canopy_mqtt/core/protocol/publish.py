"""Takes a connected client's PUBLISH packets: the hot path in.

Owns the decision whether a PUBLISH is routed, and with which reason code it is acknowledged; `acknowledge` sends that.
A QoS 0 PUBLISH of the common form is forwarded as the bytes that arrived: only the position of its topic is decoded. A
QoS 2 PUBLISH is routed once until its PUBREL, even if it is sent again [MQTT-4.3.3-10]. A message that has already been
here, or has crossed too many links, is acknowledged and not routed (`routing.links`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET, alike, plain_payload, topic_end
from canopy_mqtt.core.codec.framing import head as frame_head
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.core.codec.properties import mount_properties
from canopy_mqtt.core.codec.reason_codes import (
    MalformedPacket,
    ProtocolViolation,
    ReceiveMaximumExceeded,
    Refused,
    TopicAliasInvalid,
)
from canopy_mqtt.core.codec.topic_names import DOLLAR, has_control, mount_topic
from canopy_mqtt.core.hooks import SAMPLE_SHARE, Permissions, PublishSampler
from canopy_mqtt.core.jobs import ASK_PUBLISH_WORK, DECODE_WORK, NEXT_WORK, PROPERTY_SHIFT
from canopy_mqtt.core.protocol import acknowledge
from canopy_mqtt.core.protocol.identity import is_reserved
from canopy_mqtt.core.queues.message import OVERHEAD, Message
from canopy_mqtt.core.queues.requests import Request
from canopy_mqtt.core.refusals import MOUNT, PUBLISH, STORE
from canopy_mqtt.core.routing.broadcast import MAX_DIRECT_QOS0_SUBSCRIPTIONS
from canopy_mqtt.core.routing.bursts import Run
from canopy_mqtt.core.routing.fanout import REFUSED_BY_ALL
from canopy_mqtt.core.routing.links import has_looped, visited
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import Route

if TYPE_CHECKING:
    from canopy_mqtt.core.protocol.server_protocol import ServerProtocol

MAX_RUN: Final = 64
MAX_RUN_BYTES: Final = 16_384
"""Publishes of QoS 1 or 2 that are routed and acknowledged together, at most, and their bytes: what a receiver is sent
in one piece."""

MIN_PIECE: Final = 6
"""Publishes in a row from which on one piece of all their frames costs less than each frame by itself."""

MAX_PAYLOAD_SIZE: Final = "limits.max_payload_size"
"""The setting that refuses a payload."""

ALIAS_BYTES: Final = 160
"""Bytes that an alias counts for beside its topic name: the table's place, and two objects' heads."""


def start(protocol: ServerProtocol, max_aliases: int) -> None:
    """Begin to take publishes: the client was accepted. `max_aliases`: the Topic Alias Maximum that it was told."""
    session = protocol.session
    assert session is not None
    router = protocol.router
    protocol.max_aliases = max_aliases
    protocol.mount = session.principal.mount.encode()
    # On the hot path a message is neither refused for its payload nor does it get another QoS.
    if not (router.limits.upgrade_outgoing_qos or protocol.mount or router.counters.totals.message_hook is not None):
        protocol.max_plain_payload = router.limits.max_payload_size or MAX_PACKET


# -- the hot path ------------------------------------------------------------------------------------------------------


def on_publish(protocol: ServerProtocol, now: float) -> bool:
    """Take the decoder's current frame, a PUBLISH, and those that go the same way. Return False if no more may follow.

    The hot path: a PUBLISH without retain, DUP and properties, to a topic that was routed before. With QoS 0 it goes on
    as the bytes it came in. Everything else is decoded in full, by `_decoded`.
    """
    decoder = protocol.decoder
    router = protocol.router
    if router.fanout.broadcasting and _comes_later(protocol):
        decoder.end = decoder.start
        router.counters.packets_received -= 1
        return False
    taken: i64 = 0
    header: i64 = decoder.header
    buffer = decoder.buffer
    body: i64 = decoder.body
    stop: i64 = decoder.end
    permissions = router.permissions
    if (
        (header == 0x30 or header == 0x32 or header == 0x34)
        and (permissions is None or permissions.steady)
        and body + 2 < stop
        and buffer[body + 2] != DOLLAR
    ):
        payload_at: i64 = plain_payload(buffer, body, stop, header & 6, protocol.v5)
        if payload_at > 0 and stop - payload_at <= protocol.max_plain_payload:
            # Between topic and payload: a packet identifier, and the length of no properties.
            topic_stop: i64 = payload_at
            if header != 0x30:
                topic_stop -= 2
            if protocol.v5:
                topic_stop -= 1
            topic = buffer[body + 2 : topic_stop]
            route = router.fanout.route(topic)
            # What is in the cache has been validated.
            if route is not None and (permissions is None or _may(protocol, route, topic, header, permissions)):
                if header == 0x30:
                    session = protocol.session
                    assert session is not None
                    taken = route_plain(router, session, decoder, protocol.v5, route, topic, payload_at)
                else:
                    taken = _qos12(protocol, route, topic, topic_stop, payload_at)
    if taken == 0:
        _decoded(protocol, decoder.publish(), now)
        taken = 1
    # They are routed. What follows counts them.
    size: i64 = decoder.end - decoder.start
    counters = router.counters
    counters.messages_received += taken
    counters.publish_bytes_received += size
    if header & 2:
        counters.received_qos1 += taken
    elif header & 4:
        counters.received_qos2 += taken
    if taken > 1:
        counters.packets_received += taken - 1
        router.budget.used += NEXT_WORK * (taken - 1)
    sampler = router.sampler
    sampler.until -= size + taken * SAMPLE_SHARE
    if sampler.until < 0:
        _sample(protocol, sampler, taken)
    limit = protocol.publish_limit
    if limit is not None:
        # Another turn even when nothing more has come yet: until then the client is not read from.
        protocol.held_until = limit.published(taken, size, now)
        return protocol.held_until == 0.0
    return True


def _may(protocol: ServerProtocol, route: Route, topic: bytes, header: i64, permissions: Permissions) -> bool:
    """Return whether access control lets the client publish so. Its answer is remembered twice, and no more:

    with the topic, about the client that published there last, and with the connection, about its last topic.
    """
    session = protocol.session
    assert session is not None
    if session.internal:
        return True
    principal = session.principal
    key = permissions.publish_key(header)
    if route.publish_key == key and route.publisher is principal:
        return True
    if protocol.allowed_key != key or protocol.allowed_as is not principal or protocol.allowed_topic != topic:
        protocol.router.budget.used += ASK_PUBLISH_WORK + permissions.source.ask_work
        allowed = permissions.asked.may_publish(principal, topic.decode(), (header & 6) >> 1, False)
        protocol.router.budget.look()
        if not allowed:
            return False
        protocol.allowed_key = key
        protocol.allowed_as = principal
        protocol.allowed_topic = topic
    route.publisher = principal
    route.publish_key = key
    return True


def _comes_later(protocol: ServerProtocol) -> bool:
    """Return whether a message waits: while one is on its way to very many, others that are for very many do."""
    publish = protocol.decoder.publish()
    topic = publish.topic
    if publish.topic_alias > 0:
        topic = _aliased(protocol, topic, publish.topic_alias)
    return protocol.router.fanout.would_wait(protocol.mount + topic)


def route_plain(
    router: Router, session: Session, decoder: Decoder, v5: bool, route: Route, topic: bytes, payload_at: i64
) -> i64:
    """Route the decoder's current frame, a plain one of QoS 0, and those behind it that go the same way to one filter.

    `session`: that of the publisher; `v5`: the layout of the frames. Return how many there were.
    """
    tap = router.tap if route.tapped else None
    silent = route.listeners == 0 and not route.groups
    if silent and tap is None:
        return 1
    data = decoder.buffer
    first: i64 = decoder.start
    stop: i64 = decoder.end
    largest: i64 = stop - first
    count: i64 = 1
    key = route.run_key
    if tap is not None and tap.deliveries:
        # Told message by message.
        key = None
    if (
        key is not None
        and stop < len(data)
        and data[stop] == 0x30
        and route.listeners <= MAX_DIRECT_QOS0_SUBSCRIPTIONS
        and not router.fanout.broadcasting  # each has its topic looked at: see `_comes_later`
    ):
        # No rule is about the broker's own.
        router.runs.permit(None if session.internal else router.permissions, session.principal)
        count, largest = router.runs.find(decoder, payload_at, key, v5, route.tapped)
        stop = decoder.end
    if first > 0 or stop < len(data):
        data = data[first:stop]
    if tap is not None and (key is not None or silent):
        tap.frames(data, count, v5, session.client_id)
        if silent:
            return 1
    sole = route.sole
    if (
        sole is not None
        and (key is not None or tap is None)
        and router.fanout.offer_plain(sole, data, count, largest, v5, session)
    ):
        return count
    if count > 1:
        router.fanout.forward_run(Run(data, count, largest, v5, session.client_id), route, session)
        return count
    message = Message(topic, b"", 0, False, b"", 0.0, session.client_id)
    message.adopt_frame(data, v5, payload_at - first)
    router.fanout.deliver(route, message, session, key is None)
    return 1


def _qos12(protocol: ServerProtocol, route: Route, topic: bytes, id_at: i64, payload_at: i64) -> i64:
    """Route a QoS 1 or 2 PUBLISH on the hot path, and those behind it that have the same topic and length.

    Return how many there were; 0 when it is not the common case after all.
    """
    session = protocol.session
    assert session is not None
    router = protocol.router
    decoder = protocol.decoder
    buffer = decoder.buffer
    first: i64 = decoder.start
    stop: i64 = decoder.end
    packet_id: i64 = (buffer[id_at] << 8) | buffer[id_at + 1]
    qos: i64 = 1 if decoder.header == 0x32 else 2
    room: i64 = acknowledge.quota_left(protocol)
    if packet_id == 0 or room <= 0 or qos > router.limits.max_qos:
        return 0
    if router.commits is not None:
        if router.shared is not None or router.commits.refuses(router.limits.store_refuses):
            return 0
        acknowledge.publish_came(protocol)
    head = buffer[first:id_at]
    receiver: Session | None = None
    sole = route.sole
    if (
        sole is not None
        and sole.plain
        and i64(sole.qos) >= qos
        and not sole.no_local
        and not route.tapped
        and sole.session.send_buffer is not None
    ):
        # One client alone gets it, and nothing in it is decided for that client.
        receiver = sole.session
        count: i64 = 1
        if stop < len(buffer):
            if room > protocol.max_run:
                room = protocol.max_run
            count = alike(buffer, head, first, stop, payload_at, protocol.v5, room, first + MAX_RUN_BYTES)
        count = receiver.sendable(count, OVERHEAD + len(topic) + stop - payload_at)
        if count > 1:
            return _qos12_run(protocol, receiver, topic, head, count, payload_at - first)
        if count == 0:
            receiver = None
    if qos == 2:
        if acknowledge.is_duplicate(protocol, packet_id):
            return 0
        acknowledge.remember(protocol, packet_id)
    message = Message(topic, buffer[payload_at:stop], qos, False, b"", 0.0, session.client_id)
    message.adopt_head(head, protocol.v5)
    reached = 1
    if receiver is not None:
        receiver.send_now(message, qos)
        router.budget.used += 1
    else:
        reached = router.fanout.deliver(route, message, session)
    if reached > 0:
        acknowledge.answer_run(protocol, qos, [buffer[id_at : id_at + 2]])
    else:
        acknowledge.answer(protocol, qos, packet_id, _reason(protocol, reached))
    return 1


def _qos12_run(
    protocol: ServerProtocol, receiver: Session, topic: bytes, head: bytes, count: i64, payload_at: i64
) -> i64:
    """Route up to `count` frames that are alike, from the current one on, to the one session that gets them.

    `head`: the bytes of the first before its packet identifier; `payload_at`: where its payload begins in it. Return
    how many there were: fewer, and perhaps none, where an identifier is in use.
    """
    session = protocol.session
    assert session is not None
    decoder = protocol.decoder
    buffer = decoder.buffer
    qos: i64 = 1 if decoder.header == 0x32 else 2
    first: i64 = decoder.start
    length: i64 = decoder.end - first
    id_at: i64 = len(head)
    v5 = session.v5
    sent_v5 = receiver.v5
    sent_head = head
    if sent_v5 != v5:
        sent_head = frame_head(decoder.header, topic, length - payload_at + (1 if sent_v5 else 0))
    messages: list[Message] = []
    packet_ids: list[bytes] = []
    at: i64 = first
    while count > 0:
        if qos == 2:
            packet_id: i64 = (buffer[at + id_at] << 8) | buffer[at + id_at + 1]
            if acknowledge.is_duplicate(protocol, packet_id):
                break
            acknowledge.remember(protocol, packet_id)
        message = Message(topic, buffer[at + payload_at : at + length], qos, False, b"", 0.0, session.client_id)
        message.adopt_head(sent_head, sent_v5)
        messages.append(message)
        packet_ids.append(buffer[at + id_at : at + id_at + 2])
        at += length
        count -= 1
    count = len(messages)
    if count > 0:
        decoder.end = at
        protocol.router.budget.used += count
        if count < MIN_PIECE:
            for message in messages:
                receiver.send_now(message, qos)
            acknowledge.answer_run(protocol, qos, packet_ids)
            return count
        if sent_v5 == v5:
            frames = bytearray(buffer[first:at])
        else:
            # The packet identifiers follow; 5.0 has the length of no properties behind them.
            glue = sent_head + (b"\0\0\0" if sent_v5 else b"\0\0")
            frames = bytearray(glue + glue.join([message.payload() for message in messages]))
        receiver.send_run(messages, qos, frames, len(sent_head))
        acknowledge.answer_run(protocol, qos, packet_ids)
    return count


def _sample(protocol: ServerProtocol, sampler: PublishSampler, taken: i64) -> None:
    """Show the sampler the current frame, or the run that begins there. They are routed already."""
    decoder = protocol.decoder
    session = protocol.session
    if session is None or decoder.end <= decoder.start:
        sampler.skip()
        return
    topic = b""
    body: i64 = decoder.body
    if taken == 1 and topic_end(decoder.buffer, body) == body + 2:
        topic = _aliased(protocol, b"", decoder.publish().topic_alias)
    sampler.take(decoder.buffer, decoder.start, decoder.end, taken, topic, protocol.mount, session.client_id)


# -- decoded in full ---------------------------------------------------------------------------------------------------


def _decoded(protocol: ServerProtocol, publish: Publish, now: float) -> None:
    """Judge a PUBLISH, route it, and answer by its QoS: nothing, PUBACK or PUBREC [MQTT-3.3.4-1]."""
    session = protocol.session
    assert session is not None
    router = protocol.router
    limits = router.limits
    qos = publish.qos
    topic = publish.topic
    router.budget.used += DECODE_WORK + (len(publish.properties) >> PROPERTY_SHIFT)
    if publish.topic_alias > 0:
        topic = _aliased(protocol, topic, publish.topic_alias)
    if protocol.mount:
        topic = _mounted(protocol, topic, publish)
    packet_id = publish.packet_id
    if qos > 0:
        if acknowledge.waits_for_links(protocol, packet_id):
            # The same PUBLISH came again before it was acknowledged: the answer that it waits for is for both.
            return
        if qos == 2 and acknowledge.is_duplicate(protocol, packet_id):
            # Acknowledged again, not routed again [MQTT-4.3.3-10].
            acknowledge.answer_duplicate(protocol, packet_id)
            return
        acknowledge.publish_came(protocol)
        if acknowledge.quota_left(protocol) <= 0:
            if protocol.v5:  # [MQTT-3.3.4-7]
                raise ReceiveMaximumExceeded(f"more than {limits.receive_maximum} publishes in flight")
            if qos == 2:
                acknowledge.check_unreleased(protocol)
    # 3.1.1 has no code for a refusal: the message goes nowhere and is acknowledged as usual [MQTT3-3.3.5-2].
    reason, why = refusal(router, session, topic, qos, publish.retain, len(publish.payload))
    permissions = router.permissions
    if permissions is not None and not permissions.steady:
        # A hook was asked: how long it takes is not known.
        router.budget.look()
    if reason >= 0x80:
        if not why:
            router.counters.denied_publishes += 1
        elif why == MAX_PAYLOAD_SIZE:
            router.counters.oversized += 1
        session.refused(PUBLISH, (topic or publish.topic).decode(), reason, why, publish.qos, publish.retain)
    # A message that has been here is accepted: its sender has done nothing wrong, and each receiver has had it.
    elif publish.properties and has_looped(visited(publish.properties), router.broker_id, limits.hop_limit):
        router.counters.looped += 1
        # A request has reached nothing this way: its client is told by the other ways.
        if publish.request:
            reason = reason_codes.NO_MATCHING_SUBSCRIBERS
    else:
        expires_at = now + publish.message_expiry if publish.message_expiry >= 0 else 0.0
        message = Message(
            topic, publish.payload, qos, publish.retain, publish.properties, expires_at, session.client_id
        )
        hook = router.counters.totals.message_hook
        if hook is not None:
            changed = hook.publish(session.principal, message, False)
            router.budget.look()
            if changed is None:
                session.refused(PUBLISH, topic.decode(), hook.reason_code, "a plug-in", publish.qos, publish.retain)
                if qos > 0:
                    acknowledge.answer(protocol, qos, packet_id, hook.reason_code)
                return
            message = changed
        once = packet_id if qos == 2 else 0
        if qos > 0 and publish.request:
            request = Request(packet_id, qos)
            count = router.ask(message, session, request, once)
            if protocol.send_buffer.peer is not None and request.waits(protocol, count):
                acknowledge.wait_for_links(protocol, request, now + limits.answer_timeout)
                return
        else:
            count = router.publish(message, session, False, once)
        reason = _reason(protocol, count)
    if qos > 0:
        acknowledge.answer(protocol, qos, packet_id, reason)


def refusal(router: Router, session: Session, topic: bytes, qos: int, retain: bool, size: int) -> tuple[int, str]:
    """Return the reason code with which a publish of this client is refused, or 0, and what refuses it.

    It changes nothing. `topic`: the broker's name; empty: the client's mount has no such topic. `size`: bytes of the
    payload. Access control is what refuses it if no other is named.

    Raises:
        MalformedPacket: the topic holds control characters, and the settings let none in (section 1.5.4).
        Refused: the settings do not allow this QoS or RETAIN; or the store refuses it, and 3.1.1 has no code for that.
    """
    limits = router.limits
    if qos > limits.max_qos:
        raise Refused(f"QoS {qos} is not supported", reason_codes.QOS_NOT_SUPPORTED)  # [MQTT-3.2.2-11]
    if retain and not limits.retain_available:
        raise Refused("retained messages are not supported", reason_codes.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-14]
    if not topic:
        return reason_codes.NOT_AUTHORIZED, MOUNT
    reason, why = topic_refusal(router, topic, session.is_link, session)
    if reason == reason_codes.MALFORMED_PACKET:
        raise MalformedPacket(why)
    if 0 < limits.max_payload_size < size and reason != reason_codes.TOPIC_NAME_INVALID:
        return reason_codes.QUOTA_EXCEEDED, MAX_PAYLOAD_SIZE
    if reason > 0:
        return reason, why
    access_control = router.access_control
    if (
        access_control is not None
        and not session.internal
        and not access_control.may_publish(session.principal, topic.decode(), qos, retain)
    ):
        return reason_codes.NOT_AUTHORIZED, ""
    if qos > 0 and router.commits is not None and router.commits.refuses(limits.store_refuses):
        if not session.v5:
            raise Refused(STORE, reason_codes.QUOTA_EXCEEDED)
        return reason_codes.QUOTA_EXCEEDED, STORE
    return 0, ""


def topic_refusal(router: Router, topic: bytes, link: bool, session: Session | None = None) -> tuple[int, str]:
    """Return the reason code with which a publish to a topic name (UTF-8) is refused, or 0, and what refuses it.

    The publisher is a client, a link (`link`), or the program. `session`: as `is_reserved` takes it.
    """
    limits = router.limits
    if limits.max_topic_levels > 0 and topic.count(b"/") >= limits.max_topic_levels:
        return reason_codes.TOPIC_NAME_INVALID, "limits.max_topic_levels"
    # No topic in the cache holds any: it is asked once for a topic, not for each message.
    if not limits.control_characters and topic not in router.cache.routes and has_control(topic.decode()):
        return reason_codes.MALFORMED_PACKET, "a topic name with a control character"
    if is_reserved(topic, link, router, session):
        return reason_codes.NOT_AUTHORIZED, "the topic is the broker's own"
    return 0, ""


def _reason(protocol: ServerProtocol, count: int) -> int:
    """Return the reason code for a message that reached this number of sessions and groups (`Fanout.deliver`)."""
    if not protocol.v5:
        return reason_codes.SUCCESS
    if count == 0:
        return reason_codes.NO_MATCHING_SUBSCRIBERS
    if count == REFUSED_BY_ALL and protocol.router.limits.tell_publisher:
        return reason_codes.QUOTA_EXCEEDED
    return reason_codes.SUCCESS


def _mounted(protocol: ServerProtocol, topic: bytes, publish: Publish) -> bytes:
    """Return the broker's name of a mounted client's topic, and rename its Response Topic; empty: it has none."""
    mounted = mount_topic(protocol.mount, topic)
    properties = mount_properties(protocol.mount, publish.properties)
    if mounted is None or properties is None:
        protocol.router.counters.denied_publishes += 1
        return b""
    publish.properties = properties
    return mounted


# -- topic aliases -----------------------------------------------------------------------------------------------------


def _aliased(protocol: ServerProtocol, topic: bytes, alias: int) -> bytes:
    """Return the topic of a PUBLISH with a topic alias; see `TopicAliases.resolve`."""
    aliases = protocol.aliases
    if aliases is None:
        aliases = TopicAliases(protocol.router, protocol.max_aliases)
        protocol.aliases = aliases
    return aliases.resolve(topic, alias)


def aliases_have_room(router: Router) -> bool:
    """Return whether a client that connects now may set aliases: a quarter of the bound over all is free."""
    bound = router.limits.max_alias_bytes
    return bound == 0 or router.alias_bytes < bound - bound // 4


class TopicAliases:
    """Maps topic aliases to topic names, for the life of one connection."""

    def __init__(self, router: Router, maximum: i64) -> None:
        """`maximum`: the Topic Alias Maximum that the client was told."""
        self._router = router
        self._maximum: i64 = maximum
        self._topics: dict[int, bytes] = {}
        self._bytes: i64 = 0

    def resolve(self, topic: bytes, alias: int) -> bytes:
        """Return the topic name of an alias, which is set when `topic` is not empty, used when it is.

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
        """Count bytes for this client and for all. Raises Refused: see `resolve`."""
        router = self._router
        limits = router.limits
        if grown > 0:
            if 0 < limits.max_alias_bytes_per_client < self._bytes + grown:
                raise Refused(
                    f"topic aliases of more than {limits.max_alias_bytes_per_client} bytes", reason_codes.QUOTA_EXCEEDED
                )
            if 0 < limits.max_alias_bytes < router.alias_bytes + grown:
                raise Refused("the broker has no room for more topic aliases", reason_codes.QUOTA_EXCEEDED)
        self._bytes += grown
        router.alias_bytes += grown

    def discard(self) -> None:
        """Forget all aliases: the connection is over [MQTT-3.3.2-7]."""
        self._topics = {}
        self._router.alias_bytes -= self._bytes
        self._bytes = 0
