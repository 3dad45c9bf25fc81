"""The layout of a PUBLISH: what is found in the bytes, and what is built, held against decoder and encoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode, publish_properties
from canopy_mqtt.core.codec.framing import alike, build, fields_end, head, plain_payload, topic_end
from canopy_mqtt.core.codec.packets import V5, V311, Publish
from tests.core.strategies import publishes
from tests.support.runs import for_each

ROOM = b"before"


def _decoded(frame: bytes, version: int) -> tuple[Decoder, Publish]:
    decoder = Decoder(1 << 20, True, version)
    decoder.feed(frame)
    assert decoder.next_frame()
    return decoder, decoder.publish()


@given(st.sampled_from((V311, V5)).flatmap(lambda version: st.tuples(st.just(version), publishes(version))))
def test_places(drawn: tuple[int, Publish]) -> None:
    """Wherever the frame stands in its buffer [MQTT-3.3.2-1]."""
    version, packet = drawn
    frame = encode(packet, version)
    decoder, found = _decoded(frame, version)
    assert found == packet
    data, body, end = ROOM + frame + b"behind", decoder.body + len(ROOM), len(ROOM) + len(frame)
    assert data[body + 2 : topic_end(data, body)] == packet.topic
    at = fields_end(data, body, packet.qos)
    assert at - topic_end(data, body) == (2 if packet.qos else 0)
    section = publish_properties(
        packet.properties, packet.topic_alias, packet.message_expiry, packet.subscription_ids
    ) if version == V5 else b""  # fmt: skip
    assert data[at:end] == section + packet.payload
    payload_at = plain_payload(data, body, end, packet.qos, version == V5)
    if section in (b"", b"\0"):
        assert data[payload_at:end] == packet.payload
    else:
        assert payload_at == -1


@given(st.binary(max_size=12), st.sampled_from((0, 1, 2)), st.booleans())
def test_no_payload_behind_the_end(body: bytes, qos: int, v5: bool) -> None:
    """Whatever the bytes say: a place within the frame, or none."""
    found = plain_payload(body + b"\0" * 70_000, 0, len(body), qos, v5)
    assert found == -1 or 2 <= found <= len(body)


@for_each(
    ("behind", "most", "limit", "count"),
    [
        ((), 9, 99, 1),
        ((2, 3, 3), 9, 99, 4),
        ((2, 3, 3), 2, 99, 2),
        ((2, 3, 3), 9, 3 * 11 + len(ROOM), 3),
        ((2, 3, 3), 9, 3 * 11 + len(ROOM) - 1, 2),
        ((2, 0, 3), 9, 99, 2),
        ((2, b"u"), 9, 99, 2),
        ((2, b"tt"), 9, 99, 2),
    ],
)
@for_each("version", [V311, V5])
def test_what_is_alike(version: int, behind: tuple[int | bytes, ...], most: int, limit: int, count: int) -> None:
    """Packet identifiers and payloads may differ; topic, length and flags may not."""
    payload = b"pay" if version == V5 else b"load"  # eleven bytes in both

    def frame(packet_id: int, topic: bytes = b"t") -> bytes:
        return build(0x32, topic, packet_id or 1, b"\0" if version == V5 else b"", payload)

    first = frame(7)
    id_at = topic_end(first, 2)
    data = ROOM + first
    for each in behind:
        made = frame(8, each) if isinstance(each, bytes) else frame(each)
        data += made[:id_at] + b"\0\0" + made[id_at + 2 :] if each == 0 else made
    start, end = len(ROOM), len(ROOM) + len(first)
    payload_at = plain_payload(data, start + 2, end, 1, version == V5)
    assert len(first) == 11
    assert alike(data, first[:id_at], start, end, payload_at, version == V5, most, limit) == count


def test_properties_are_not_alike() -> None:
    """A frame of that head and length whose property length is not 0 is no such one."""
    first = build(0x32, b"t", 7, b"\0", b"load")
    other = build(0x32, b"t", 8, b"\2\1\0", b"ad")
    data = first + other
    assert len(first) == len(other)
    assert alike(data, first[:5], 0, len(first), 8, True, 9, 99) == 1
    assert alike(data, first[:5], 0, len(first), 7, False, 9, 99) == 2


@given(st.sampled_from((V311, V5)).flatmap(lambda version: st.tuples(st.just(version), publishes(version))))
def test_building(drawn: tuple[int, Publish]) -> None:
    """What is built is read back as it was; in one piece, or head by head for a fanout."""
    version, packet = drawn
    section = b""
    if version == V5:
        section = publish_properties(
            packet.properties, packet.topic_alias, packet.message_expiry, packet.subscription_ids
        )
    header = 0x30 | packet.qos << 1 | packet.retain | packet.dup << 3
    frame = build(header, packet.topic, packet.packet_id, section, packet.payload)
    assert _decoded(frame, version)[1] == packet
    if packet.qos:
        tail = section + packet.payload
        assert head(header, packet.topic, len(tail)) + packet.packet_id.to_bytes(2, "big") + tail == frame


def test_too_long() -> None:
    """Beyond the largest Remaining Length, or the longest topic name, there is no PUBLISH (section 2.1.4)."""
    with pytest.raises(ValueError, match="268435456"):
        build(0x30, b"t", 0, b"", bytes(268_435_456 - 3))
    with pytest.raises(ValueError, match="65536"):
        build(0x30, bytes(65_536), 0, b"", b"")
