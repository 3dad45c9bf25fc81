"""The bench's own frames: known bytes, and shapes read back from what was built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_load.brokers import frames
from canopy_load.brokers.frames import FrameError, PublishShape
from tests.support.runs import for_each


@for_each(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ],
)
def test_variable_byte_integer_at_its_bounds(value: int, encoded: bytes) -> None:
    """The bounds of each length in table 1-1 of MQTT 5.0."""
    assert frames.variable_byte_integer(value) == encoded
    assert frames.read_variable_byte_integer(encoded, 0) == (value, len(encoded))
    for cut in range(len(encoded)):
        assert frames.read_variable_byte_integer(encoded[:cut], 0) == (0, 0)


@for_each("value", [-1, 268_435_456])
def test_variable_byte_integer_refuses_what_does_not_fit(value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        frames.variable_byte_integer(value)


def test_an_overlong_variable_byte_integer_is_the_brokers_fault() -> None:
    with pytest.raises(FrameError):
        frames.read_variable_byte_integer(b"\x80\x80\x80\x80\x01", 0)


def test_known_bytes() -> None:
    assert frames.connect("a") == b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"
    assert frames.connect("a", frames.MQTT_5) == b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a"
    assert frames.subscribe(7, [("a/#", 1), ("b", 0)]) == b"\x82\x0c\x00\x07\x00\x03a/#\x01\x00\x01b\x00"
    assert frames.subscribe(7, [("b", 2)], frames.MQTT_5) == b"\x82\x07\x00\x07\x00\x00\x01b\x02"
    assert frames.unsubscribe(8, ["b"]) == b"\xa2\x05\x00\x08\x00\x01b"
    assert frames.publish("t", b"hi") == b"\x30\x05\x00\x01thi"
    assert frames.publish("t", b"hi", 1, 9) == b"\x32\x07\x00\x01t\x00\x09hi"
    assert frames.publish("t", b"hi", 2, 9, frames.MQTT_5) == b"\x34\x08\x00\x01t\x00\x09\x00hi"


def test_payload_layout() -> None:
    assert frames.payload(0x0102, 0x0304, 18, 5) == b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0\0\0\0\x05xx"
    with pytest.raises(ValueError, match="16"):
        frames.payload(0, 0, 15)


@given(
    topic=st.text("abc/é", min_size=1, max_size=300),
    size=st.integers(frames.MIN_PAYLOAD, 20_000),
    qos=st.integers(0, 2),
    level=st.sampled_from([frames.MQTT_3_1_1, frames.MQTT_5]),
    before=st.binary(max_size=5),
)
def test_a_shape_finds_every_part(topic: str, size: int, qos: int, level: int, before: bytes) -> None:
    body = frames.payload(3, 4, size)
    frame = frames.publish(topic, body, qos, 0x1234, level)
    data = before + frame + b"\x30"
    shape = PublishShape.read(data, len(before), level)
    assert shape.size == frames.packet_size(data, len(before)) == len(frame)
    assert (shape.topic, shape.qos) == (topic, qos)
    assert frame[shape.payload :] == body
    if qos:
        assert frame[shape.packet_id : shape.packet_id + 2] == b"\x12\x34"
    else:
        assert shape.packet_id == 0


def test_a_shape_skips_properties_the_broker_added() -> None:
    body = frames.payload(0, 0, 16)
    inner = b"\x00\x01t" + b"\x05\x02\x00\x00\x00\x09" + body
    shape = PublishShape.read(b"\x30" + bytes((len(inner),)) + inner, 0, frames.MQTT_5)
    assert (shape.payload, shape.size) == (2 + 3 + 6, 2 + len(inner))


def test_another_packet_is_named() -> None:
    with pytest.raises(FrameError, match="DISCONNECT"):
        PublishShape.read(b"\xe0\x00", 0, frames.MQTT_5)


@given(st.binary(max_size=40), st.sampled_from([frames.MQTT_3_1_1, frames.MQTT_5]), st.integers(0, 2))
def test_whatever_a_publish_holds_is_read_or_refused(body: bytes, level: int, qos: int) -> None:
    frame = bytes((frames.PUBLISH | qos << 1, len(body))) + body
    try:
        shape = PublishShape.read(frame, 0, level)
    except FrameError:
        return
    assert shape.size == len(frame)
    assert shape.payload + frames.MIN_PAYLOAD <= shape.size


def test_a_foreign_publish_is_refused() -> None:
    with pytest.raises(FrameError, match="'t'"):
        PublishShape.read(frames.publish("t", b"short"), 0, frames.MQTT_3_1_1)
