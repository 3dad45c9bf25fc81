"""Decodes a kept packet into plain values, for lines of text and for JSON.

Promises: never raises, whatever a client sent; if a packet cannot be decoded, `malformed` says why. Numbers that the
specification names stand beside their names.
"""

from __future__ import annotations

from typing import Any, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET, frame_body
from canopy_mqtt.core.codec.packets import (
    NAMES,
    V5,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from canopy_mqtt.core.codec.primitives import varint
from canopy_mqtt.core.codec.properties import TABLE, Properties, decode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.net.connections.connection_log import VERSIONS
from canopy_mqtt.observe.trace.entries import Entry

MASKED: Final = "***"

_CONNACK_NAMES: Final = (
    "Connection Accepted",
    "unacceptable protocol version",
    "identifier rejected",
    "Server unavailable",
    "bad user name or password",
    "not authorized",
)
"""Return codes of 3.1.1 (section 3.2.2.3)."""


def shortened(data: bytes, size: int) -> bytes:
    """Make a whole, shorter packet of one that is cut off, with the fields that are there."""
    if len(data) == size or len(data) < 5 or min(data[1:5]) >= 128:
        return data
    body = data[frame_body(data, 0) :]
    return data[:1] + varint(len(body)) + body


def name(entry: Entry) -> str:
    """Return the kind of packet."""
    return NAMES[entry.data[0] >> 4] if entry.data else "RESERVED"


def fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of a packet by name, in the order of the specification."""
    try:
        decoder = Decoder(MAX_PACKET, entry.inward, entry.version)
        decoder.feed(shortened(entry.data, entry.size))
        if not decoder.next_frame():
            return {"malformed": "not a whole packet"}
        return _fields(decoder.packet(), entry.version)
    except ProtocolError as error:
        return {"malformed": str(error)}
    except (IndexError, ValueError) as error:
        return {"malformed": type(error).__name__}


def _fields(packet: Packet, version: int) -> dict[str, Any]:
    if isinstance(packet, Publish):
        return _publish(packet)
    if isinstance(packet, Connect):
        known = _connect(packet)
    elif isinstance(packet, Connack):
        why = _connack_name(packet.reason_code, version)
        known = {"session_present": packet.session_present, **_reason(packet.reason_code, why, True)}
    elif isinstance(packet, Ack):
        why = reason_codes.name(packet.reason_code)
        known = {"packet_id": packet.packet_id, **_reason(packet.reason_code, why, version >= V5)}
    elif isinstance(packet, Subscribe):
        known = {"packet_id": packet.packet_id, "filters": [_request(each) for each in packet.requests]}
    elif isinstance(packet, Unsubscribe):
        known = {"packet_id": packet.packet_id, "filters": list(packet.topic_filters)}
    elif isinstance(packet, (Suback, Unsuback)):
        known = {"packet_id": packet.packet_id}
        if packet.reason_codes:
            granted = "Granted QoS 0" if isinstance(packet, Suback) else reason_codes.name(0)
            names = [reason_codes.name(code) if code else granted for code in packet.reason_codes]
            known |= {"reason_codes": list(packet.reason_codes), "reasons": names}
    elif isinstance(packet, Disconnect):
        why = "Normal disconnection" if packet.reason_code == 0 else reason_codes.name(packet.reason_code)
        known = _reason(packet.reason_code, why, version >= V5)
    elif isinstance(packet, Auth):
        known = _reason(packet.reason_code, reason_codes.name(packet.reason_code), True)
    else:
        return {}
    return {**known, **_properties(packet.properties)}


def _request(request: SubscriptionRequest) -> dict[str, Any]:
    known: dict[str, Any] = {"topic_filter": request.topic_filter, "qos": request.qos}
    for option in ("no_local", "retain_as_published", "retain_handling"):
        if getattr(request, option):
            known[option] = getattr(request, option)
    return known


def _connack_name(code: int, version: int) -> str:
    if version >= V5 or code >= len(_CONNACK_NAMES):
        return reason_codes.name(code)
    return _CONNACK_NAMES[code]


def _reason(code: int, text: str, there: bool) -> dict[str, Any]:
    return {"reason_code": code, "reason": text} if there else {}


def _publish(packet: Publish) -> dict[str, Any]:
    known: dict[str, Any] = {
        "topic": packet.topic.decode("utf-8", "backslashreplace"),
        "qos": packet.qos,
        "retain": packet.retain,
        "dup": packet.dup,
    }
    if packet.qos:
        known["packet_id"] = packet.packet_id
    held: dict[str, Any] = {}
    if packet.topic_alias:
        held["topic_alias"] = packet.topic_alias
    if packet.message_expiry >= 0:
        held["message_expiry_interval"] = packet.message_expiry
    if packet.subscription_ids:
        held["subscription_identifier"] = list(packet.subscription_ids)
    held |= _properties(decode_forward(packet.properties)).get("properties", {})
    if held:
        known["properties"] = held
    return {**known, **_payload(packet.payload)}


def _payload(payload: bytes) -> dict[str, Any]:
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_hex": payload.hex()}


def _connect(packet: Connect) -> dict[str, Any]:
    known: dict[str, Any] = {
        "version": VERSIONS.get(packet.version, str(packet.version)),
        "client_id": packet.client_id,
        "clean_start": packet.clean_start,
        "keep_alive": packet.keep_alive,
    }
    if packet.user_name is not None:
        known["user_name"] = packet.user_name
    if packet.password is not None:
        known["password"] = MASKED
    if packet.will is not None:
        known["will"] = _will(packet.will)
    return known


def _will(will: Will) -> dict[str, Any]:
    held: dict[str, Any] = {}
    if will.delay:
        held["will_delay_interval"] = will.delay
    if will.message_expiry >= 0:
        held["message_expiry_interval"] = will.message_expiry
    held |= _properties(decode_forward(will.properties)).get("properties", {})
    known: dict[str, Any] = {"topic": will.topic, "qos": will.qos, "retain": will.retain}
    if held:
        known["properties"] = held
    return {**known, **_payload(will.payload)}


def _properties(held: Properties) -> dict[str, Any]:
    """Return the properties under their names, if there are any."""
    found: dict[str, Any] = {}
    for identifier, number in held.integers.items():
        found[_key(identifier)] = number
    for identifier, text in held.strings.items():
        found[_key(identifier)] = text
    for identifier, raw in held.binaries.items():
        found[_key(identifier)] = raw.hex()
    if held.user:
        found["user_properties"] = [list(pair) for pair in held.user]
    return {"properties": found} if found else {}


def _key(identifier: int) -> str:
    return TABLE[identifier].name.lower().replace(" ", "_")
