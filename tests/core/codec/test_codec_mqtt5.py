"""A second opinion on the bytes of MQTT 5.0: the codec of the `mqtt5` package, which nobody here wrote.

What this project encodes is read by `mqtt5`, and what `mqtt5` writes is decoded here; both sides' packets are brought
into one form and compared. `mqtt5` does not tell an absent property from one at its default, so defaults are dropped on
both sides. It is lax where the specification is not (wildcards in topic names, packet identifier 0, DUP with QoS 0), so
only valid packets are compared, and its own panic on bad input, which is no `Exception`, never comes into play.
"""

from __future__ import annotations

from typing import Any

import mqtt5
from hypothesis import given

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec import properties as pr
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import Packet, Publish
from canopy_mqtt.core.codec.properties import Properties
from tests.core.strategies import client_packets, connects, server_packets
from tests.support.frames import pending_size

# Their attribute name of each property, and the value that stands for "absent" besides None.
NAMES: dict[int, tuple[str, object]] = {
    pr.PAYLOAD_FORMAT_INDICATOR: ("payload_format_indicator", 0),
    pr.MESSAGE_EXPIRY_INTERVAL: ("message_expiry_interval", None),
    pr.CONTENT_TYPE: ("content_type", None),
    pr.RESPONSE_TOPIC: ("response_topic", None),
    pr.CORRELATION_DATA: ("correlation_data", None),
    pr.SUBSCRIPTION_IDENTIFIER: ("subscription_id", None),
    pr.SESSION_EXPIRY_INTERVAL: ("session_expiry_interval", 0),
    pr.ASSIGNED_CLIENT_IDENTIFIER: ("assigned_client_id", None),
    pr.SERVER_KEEP_ALIVE: ("server_keep_alive", None),
    pr.AUTHENTICATION_METHOD: ("authentication_method", None),
    pr.AUTHENTICATION_DATA: ("authentication_data", None),
    pr.REQUEST_PROBLEM_INFORMATION: ("request_problem_info", 1),
    pr.WILL_DELAY_INTERVAL: ("will_delay_interval", 0),
    pr.REQUEST_RESPONSE_INFORMATION: ("request_response_info", 0),
    pr.RESPONSE_INFORMATION: ("response_info", None),
    pr.SERVER_REFERENCE: ("server_reference", None),
    pr.REASON_STRING: ("reason_str", None),
    pr.RECEIVE_MAXIMUM: ("receive_max", 65_535),
    pr.TOPIC_ALIAS_MAXIMUM: ("topic_alias_max", 0),
    pr.TOPIC_ALIAS: ("topic_alias", None),
    pr.MAXIMUM_QOS: ("max_qos", 2),
    pr.RETAIN_AVAILABLE: ("retain_available", 1),
    pr.MAXIMUM_PACKET_SIZE: ("max_packet_size", None),
    pr.WILDCARD_SUBSCRIPTION_AVAILABLE: ("wildcard_subscription_available", 1),
    pr.SUBSCRIPTION_IDENTIFIER_AVAILABLE: ("subscription_id_available", 1),
    pr.SHARED_SUBSCRIPTION_AVAILABLE: ("shared_subscription_available", 1),
}

Form = dict[str, object]


def ours_properties(bag: Properties) -> Form:
    values: dict[int, object] = {**bag.integers, **bag.strings, **bag.binaries}
    form: Form = {}
    for identifier, value in values.items():
        name, default = NAMES[identifier]
        if value != default:
            form[name] = value
    form["user"] = list(bag.user)
    return form


def theirs_properties(packet: Any) -> Form:
    form: Form = {}
    for name, default in NAMES.values():
        value = getattr(packet, name, None)
        if value is not None and value != default:
            form[name] = value
    form["user"] = list(packet.user_properties)
    return form


def ours(packet: Packet) -> Form:
    """One of our packets in the common form."""
    form: Form = {"kind": packet.kind}
    if isinstance(packet, Publish):
        form |= ours_properties(pr.decode_forward(packet.properties))
        form |= {"topic": packet.topic.decode(), "payload": packet.payload, "qos": packet.qos, "retain": packet.retain}
        form |= {"dup": packet.dup, "packet_id": packet.packet_id or None}
        form["subscription_ids"] = list(packet.subscription_ids)
        if packet.topic_alias:
            form["topic_alias"] = packet.topic_alias
        if packet.message_expiry >= 0:
            form["message_expiry_interval"] = packet.message_expiry
        return form
    form |= ours_properties(getattr(packet, "properties", Properties()))
    for name in ("packet_id", "session_present", "reason_code", "reason_codes"):
        if hasattr(packet, name):
            form[name] = getattr(packet, name)
    if isinstance(packet, p.Subscribe):
        form["filters"] = [
            (r.topic_filter, r.qos, r.no_local, r.retain_as_published, r.retain_handling) for r in packet.requests
        ]
    elif isinstance(packet, p.Unsubscribe):
        form["filters"] = packet.topic_filters
    elif isinstance(packet, p.Connect):
        form |= {"client_id": packet.client_id, "clean": packet.clean_start, "keep_alive": packet.keep_alive}
        form |= {"user_name": packet.user_name, "password": packet.password, "will": None}
        if packet.will is not None:
            will = packet.will
            inner = ours_properties(pr.decode_forward(will.properties))
            inner |= {"topic": will.topic, "payload": will.payload, "qos": will.qos, "retain": will.retain}
            if will.delay:
                inner["will_delay_interval"] = will.delay
            if will.message_expiry >= 0:
                inner["message_expiry_interval"] = will.message_expiry
            form["will"] = inner
    return form


KINDS: dict[type, int] = {
    mqtt5.ConnectPacket: p.CONNECT,
    mqtt5.ConnAckPacket: p.CONNACK,
    mqtt5.PublishPacket: p.PUBLISH,
    mqtt5.PubAckPacket: p.PUBACK,
    mqtt5.PubRecPacket: p.PUBREC,
    mqtt5.PubRelPacket: p.PUBREL,
    mqtt5.PubCompPacket: p.PUBCOMP,
    mqtt5.SubscribePacket: p.SUBSCRIBE,
    mqtt5.SubAckPacket: p.SUBACK,
    mqtt5.UnsubscribePacket: p.UNSUBSCRIBE,
    mqtt5.UnsubAckPacket: p.UNSUBACK,
    mqtt5.PingReqPacket: p.PINGREQ,
    mqtt5.PingRespPacket: p.PINGRESP,
    mqtt5.DisconnectPacket: p.DISCONNECT,
    mqtt5.AuthPacket: p.AUTH,
}


def theirs(packet: Any) -> Form:
    """One of their packets in the common form."""
    kind = KINDS[type(packet)]
    form: Form = {"kind": kind}
    if kind in (p.PINGREQ, p.PINGRESP):
        return form | {"user": []}
    form |= theirs_properties(packet)
    if kind == p.PUBLISH:
        form |= {"topic": packet.topic, "payload": packet.payload, "qos": packet.qos, "retain": packet.retain}
        form |= {"dup": packet.duplicate, "packet_id": packet.packet_id}
        form["subscription_ids"] = list(packet.subscription_ids)
        return form
    for name in ("packet_id", "session_present", "reason_code", "reason_codes"):
        if hasattr(packet, name):
            form[name] = getattr(packet, name)
    if kind == p.SUBSCRIBE:
        form["filters"] = [
            (f.pattern, f.max_qos, f.no_local, f.retain_as_published, f.retain_handling) for f in packet.topic_filters
        ]
    elif kind == p.UNSUBSCRIBE:
        form["filters"] = list(packet.patterns)
    elif kind == p.CONNECT:
        form |= {"client_id": packet.client_id, "clean": packet.clean_start, "keep_alive": packet.keep_alive}
        form |= {"user_name": packet.username, "password": packet.password, "will": None}
        if packet.will is not None:
            will = packet.will
            inner = theirs_properties(will)
            inner |= {"topic": will.topic, "payload": will.payload or b"", "qos": will.qos, "retain": will.retain}
            form["will"] = inner
    return form


def agree(packet: Packet, server: bool) -> None:
    """Both codecs read the other's bytes as the same packet."""
    raw = encode(packet, p.V5)
    read, size = mqtt5.read(memoryview(raw))
    assert size == len(raw)
    assert theirs(read) == ours(packet)
    decoder = Decoder(268_435_460, server, 0 if packet.kind == p.CONNECT else p.V5)
    decoder.feed(read.write())
    assert decoder.next_frame()
    back = decoder.packet()
    assert pending_size(decoder) == 0
    assert ours(back) == ours(packet)


@given(client_packets(p.V5))
def test_what_clients_send(packet: Packet) -> None:
    agree(packet, server=True)


@given(server_packets(p.V5))
def test_what_servers_send(packet: Packet) -> None:
    agree(packet, server=False)


@given(connects(p.V5))
def test_connect(packet: p.Connect) -> None:
    agree(packet, server=True)
