"""Frames: payload comes out whole and in order however it is cut, control frames are found, and rules are held."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from canopy_mqtt.net.websocket import frames
from canopy_mqtt.net.websocket.frames import FrameReader
from tests.net.websocket.framing import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, close, frame
from tests.net.websocket.framing import frames as read_frames
from tests.support.runs import for_each

MANY = 1_000_000
"""Frames: all that there are."""

masks = st.binary(min_size=4, max_size=4)


def read(reader: FrameReader, data: bytes) -> bytes:
    """Process a read to its end, and return the payload."""
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        at = reader.read(data, at, MANY, parts)
    return b"".join(parts)


@given(st.binary(max_size=2000), masks, st.integers(0, 20), st.integers(0, 20))
@example(bytes(range(256)) * 4, b"\x01\x02\x03\x04", 6, 0)
@example(b"\x80" * 15, b"\xff\xfe\xfd\xfc", 0, 0)
def test_unmasking_is_the_exclusive_or(data: bytes, mask: bytes, before: int, behind: int) -> None:
    read = b"\x82" * before + data + b"\x82" * behind
    plain = frames.unmask(read, before, before + len(data), int.from_bytes(mask, "little"))
    assert plain == bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Binary messages in any fragments with pings in between: what they carry, and the bytes on the wire."""
    carried, wire = b"", b""
    for _ in range(draw(st.integers(1, 4))):
        pieces = draw(st.lists(st.binary(max_size=200) | st.just(bytes(70_000)), min_size=1, max_size=4))
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            wire += frame(piece, CONTINUATION if index else BINARY, fin=last, mask=draw(masks))
            if draw(st.booleans()):
                wire += frame(b"?", draw(st.sampled_from([PING, PONG])), mask=draw(masks))
            carried += piece
    return carried, wire


@given(messages(), st.data())
def test_packets_need_not_line_up_with_frames_nor_frames_with_reads(
    sent: tuple[bytes, bytes], data: st.DataObject
) -> None:
    """[MQTT-6.0.0-2]: the stream is what the frames carry, and next to nothing is kept between reads."""
    carried, wire = sent
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=12)))
    reader = FrameReader(0)
    found = b""
    for start, end in pairwise([0, *cuts, len(wire)]):
        found += read(reader, wire[start:end])
        assert len(reader._head) + len(reader._control) <= 139
    assert found == carried
    assert not reader.over
    assert len(reader._head) + len(reader._control) == 0


@for_each("step", [1, 2, 1000])
def test_the_latest_ping_is_the_one_to_answer(step: int) -> None:
    reader = FrameReader(0)
    wire = frame(b"one", PING) + frame(b"", PING) + frame(b"x" * 125, PING) + frame(b"late", PONG)
    for start in range(0, len(wire), step):
        assert read(reader, wire[start : start + step]) == b""
    assert reader.ping == b"x" * 125


CLOSES = [
    (close(None), 1005),
    (close(1000), 1000),
    (close(1001, "tab closed"), 1001),
    (close(3000), 3000),
    (close(4999, "x" * 123), 4999),
]


@for_each(("wire", "code"), CLOSES)
@for_each("step", [1, 1000])
def test_a_close_frame_ends_it_behind_the_data_before_it(wire: bytes, code: int, step: int) -> None:
    reader = FrameReader(0)
    whole = frame(b"before") + wire + frame(b"behind")
    found = b""
    for start in range(0, len(whole), step):
        if not reader.over:
            found += read(reader, whole[start : start + step])
    assert (found, reader.close_code, reader.error) == (b"before", code, 0)


BROKEN = [
    (frame(b"text", TEXT), 1003, "text frame"),
    (frame(b"", TEXT), 1003, "text frame"),
    (frame(b"x", mask=None), 1002, "not masked"),
    (frame(b"x", rsv=4), 1002, "extension"),
    (frame(b"x", rsv=1), 1002, "extension"),
    (frame(b"x", 0x3), 1002, "unknown kind"),
    (frame(b"x", 0xB), 1002, "unknown kind"),
    (frame(b"x", PING, fin=False), 1002, "control frame"),
    (frame(b"x" * 126, PING), 1002, "control frame"),
    (frame(b"x", CONTINUATION), 1002, "without its message"),
    (frame(b"x", fin=False) + frame(b"y"), 1002, "within another"),
    (b"\x82\xfe" + struct.pack("!H", 125) + bytes(4), 1002, "more bytes than it needs"),
    (b"\x82\xff" + struct.pack("!Q", 65_535) + bytes(4), 1002, "more bytes than it needs"),
    (b"\x82\xff" + struct.pack("!Q", 1 << 63) + bytes(4), 1002, "63 bits"),
    (frame(b"x" * 1001), 1009, "1001 bytes"),
    (b"\x82\xff" + struct.pack("!Q", (1 << 63) - 1), 1009, "at most 1000"),
    (close(999), 1002, "valid code"),
    (close(1005), 1002, "valid code"),
    (close(1006), 1002, "valid code"),
    (close(1015), 1002, "valid code"),
    (close(2999), 1002, "valid code"),
    (close(5000), 1002, "valid code"),
    (frame(b"\x03", CLOSE), 1002, "valid code"),
    (frame(b"\x03\xe8\xff", CLOSE), 1002, "no text"),
]


@for_each(("wire", "code", "why"), BROKEN)
@for_each("step", [1, 2, 5000])
def test_a_broken_rule_has_its_close_code(wire: bytes, code: int, why: str, step: int) -> None:
    """A text frame is answered with 1003 [MQTT-6.0.0-1], a giant one before its first byte is there."""
    reader = FrameReader(1000)
    whole = frame(b"before") + wire
    found = b""
    for start in range(0, len(whole), step):
        if not reader.over:
            found += read(reader, whole[start : start + step])
    assert reader.error == code
    assert why in reader.error_text
    assert found[:6] == b"before"


@for_each("payload", [b"", b"x"])
def test_no_call_acts_on_more_frames_than_it_may(payload: bytes) -> None:
    """However small they are: the rest is for another call, from where the first one stopped."""
    wire = frame(payload) * 35
    reader = FrameReader(0)
    size = len(frame(payload))
    parts: list[bytes] = []
    stops = []
    at = 0
    while at < len(wire):
        at = reader.read(wire, at, 10, parts)
        stops.append((at, reader.frames))
    assert stops == [(10 * size, 10), (20 * size, 10), (30 * size, 10), (35 * size, 5)]
    assert b"".join(parts) == payload * 35


@given(st.binary(max_size=400), st.integers(1, 50))
def test_whatever_comes_is_bounded(data: bytes, step: int) -> None:
    """Garbage raises nothing and is not kept."""
    reader = FrameReader(1000)
    for start in range(0, len(data), step):
        if not reader.over:
            read(reader, data[start : start + step])
            assert len(reader._head) + len(reader._control) <= 139


@for_each("size", [0, 1, 125, 126, 65_535, 65_536, 70_000])
@for_each("opcode", [BINARY, PONG, CLOSE])
def test_a_header_has_the_shortest_length(size: int, opcode: int) -> None:
    found, rest = read_frames(frames.header(opcode, size) + bytes(size))
    assert [(one.opcode, len(one.payload)) for one in found] == [(opcode, size)]
    assert rest == b""
    assert len(frames.header(opcode, size)) == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_the_text_of_a_close_frame_is_cut_to_whole_characters() -> None:
    found, _ = read_frames(frames.close_frame(1008, "ä" * 100))
    assert found[0].code == 1008
    assert found[0].payload[2:].decode() == "ä" * 61
