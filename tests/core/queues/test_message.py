"""A message's frames: each layout is right, made once where it can be, and its size never changes."""

from __future__ import annotations

import tracemalloc
from types import FunctionType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mypy_extensions import i32

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import V5, V311, Publish
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.in_flight import InFlight
from canopy_mqtt.core.queues.message import Message

FORWARD = encode_forward(1, "text/plain", "a/b", b"\x01\x02", [("k", "v"), ("k", "w")])
payloads = st.one_of(st.binary(max_size=40), st.sampled_from((b"x" * 127, b"x" * 128, b"x" * 16_384)))


def message(payload: bytes = b"p", properties: bytes = b"", expires_at: float = 0.0, qos: int = 0) -> Message:
    """A message on topic `t/ü`."""
    return Message("t/ü".encode(), payload, qos, False, properties, expires_at, "publisher")


def read(frame: bytes, v5: bool) -> Publish:
    """The one PUBLISH of a frame."""
    decoder = Decoder(1 << 28, server=False, version=V5 if v5 else V311)
    decoder.feed(frame)
    assert decoder.next_frame()
    assert decoder.end == len(frame)
    return decoder.publish()


@given(
    v5=st.booleans(),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    dup=st.booleans(),
    packet_id=st.integers(1, 65_535),
    identifiers=st.lists(st.integers(1, 268_435_455), max_size=40),
    expiry=st.sampled_from((-1, 0, 1, 0xFFFFFFFF)),
    alias=st.sampled_from((0, 1, 65_535)),
    payload=payloads,
)
def test_any_frame(
    v5: bool,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    identifiers: list[int],
    expiry: int,
    alias: int,
    payload: bytes,
) -> None:
    """What is asked for stands in the frame, and its size is what was worked out [MQTT-3.3.1-1] [MQTT-3.3.4-4]."""
    made = message(payload, FORWARD)
    frame = made.frame(v5, qos, retain, dup and qos > 0, packet_id, tuple(identifiers), expiry, alias, True)
    packet = read(frame, v5)
    assert (packet.topic, packet.payload, packet.qos, packet.retain) == ("t/ü".encode(), payload, qos, retain)
    assert packet.dup == (dup and qos > 0)
    assert packet.packet_id == (packet_id if qos else 0)
    if v5:
        assert packet.subscription_ids == tuple(identifiers)
        assert (packet.message_expiry, packet.topic_alias) == (expiry, alias)
        assert packet.properties == FORWARD
    plain = made.frame(v5, qos, retain, dup and qos > 0, packet_id, tuple(identifiers), expiry, 0, True)
    assert len(plain) == made.frame_size(v5, qos, tuple(identifiers), expiry >= 0)


@pytest.mark.parametrize("v5", [False, True])
def test_adopted_frame(v5: bool) -> None:
    """The frame that came in is the one that goes out; the payload is cut out of it for other layouts."""
    frame = b"\x30\x09\x00\x01t\x00hello" if v5 else b"\x30\x08\x00\x01thello"
    made = Message(b"t", b"", 0, False, b"", 0.0, "p")
    made.adopt_frame(frame, v5, len(frame) - 5)
    size = made.size
    assert made.qos0_frame(v5) is frame
    assert read(made.qos0_frame(not v5), not v5).payload == b"hello"
    assert made.payload() == b"hello"
    assert made.qos0_frame(v5) is frame
    assert read(made.qos12_frame(v5, 2, 9), v5).payload == b"hello"
    assert made.size == size == Message(b"t", b"hello", 0, False, b"", 0.0, "p").size


def test_frames_are_not_larger_than_counted() -> None:
    """Bounds in bytes are bounds: no plain frame is larger than `size()`."""
    for length in (0, 1, 127, 128, 16_383, 16_384, 70_000):
        made = message(b"x" * length, FORWARD)
        for v5 in (False, True):
            assert len(made.qos0_frame(v5)) <= made.size
            assert len(made.qos12_frame(v5, 1, 1)) <= made.size


@pytest.mark.parametrize("interval", [1, 60, 86_400, 4_294_967_295])
def test_a_message_expiry_never_grows(interval: int) -> None:
    """[MQTT-3.3.2-6]: (now + interval) - now is not always the interval, in binary fractions."""
    for turn in range(2_000):
        now = 1_000 + turn * 17.123
        message = Message(b"t", b"", 0, False, b"", now + interval, "")
        assert message.remaining_expiry(now) == interval
        assert message.remaining_expiry(now + 0.5) == interval
        assert message.remaining_expiry(now + interval) == 0
        assert Message(b"t", b"", 0, False, b"", 0.0, "").remaining_expiry(now) == -1
        message.frame(True, 0, False, False, 0, (), message.remaining_expiry(now), 0, True)


@pytest.mark.parametrize("length", [0, 50, 1_000])
def test_what_one_client_alone_gets_counts_for_what_it_takes(length: int) -> None:
    """With its delivery, and its places in a queue and in flight: a bound in bytes is one on memory."""
    count = 4_000
    ring, queue = InFlight(), list[Delivery]()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        counted = 0
        for number in range(count):
            message = Message(b"sensors/%06d" % number, bytes([number & 255]) * length, 1, False, b"", 0.0, "p")
            delivery = Delivery(message, 1, False, (), None)
            delivery.packet_id = i32(ring.next_id())
            ring.add(delivery)
            queue.append(delivery)
            counted += message.size
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # Interpreted objects have dictionaries. What the allocator rounds up, tracemalloc does not see.
    most = 5 * counted if isinstance(Message.payload, FunctionType) else counted
    assert 0.7 * counted < taken + 20 * count <= most
