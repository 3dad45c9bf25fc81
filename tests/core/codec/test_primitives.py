"""`canopy_mqtt.core.codec.primitives`: the data representations of section 1.5 at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import primitives
from canopy_mqtt.core.codec.primitives import Reader, utf8, varint
from canopy_mqtt.core.codec.reason_codes import MalformedPacket
from tests.support.runs import for_each

# The table of section 1.5.5: each length's first and last value.
VARINTS = [
    (0, b"\x00"),
    (127, b"\x7f"),
    (128, b"\x80\x01"),
    (16_383, b"\xff\x7f"),
    (16_384, b"\x80\x80\x01"),
    (2_097_151, b"\xff\xff\x7f"),
    (2_097_152, b"\x80\x80\x80\x01"),
    (268_435_455, b"\xff\xff\xff\x7f"),
]


class TestVarint:
    """Variable byte integers."""

    @for_each(("value", "raw"), VARINTS)
    def test_edges(self, value: int, raw: bytes) -> None:
        """[MQTT-1.5.5-1]"""
        assert varint(value) == raw
        reader = Reader(raw + b"\xff", 0, len(raw))
        assert reader.varint() == value
        assert reader.position == len(raw)

    @given(st.integers(0, 268_435_455))
    def test_round_trip(self, value: int) -> None:
        raw = varint(value)
        assert Reader(raw, 0, len(raw)).varint() == value

    @for_each("value", [-1, 268_435_456, 1 << 40])
    def test_refused(self, value: int) -> None:
        with pytest.raises(ValueError, match=r"variable byte integer"):
            varint(value)

    @for_each(
        "raw",
        [b"", b"\x80", b"\xff\xff\xff", b"\x80\x80\x80\x80\x01", b"\x80\x00", b"\x81\x80\x00", b"\xff\xff\xff\x00"],
    )
    def test_malformed(self, raw: bytes) -> None:
        """[MQTT-1.5.5-1]"""
        with pytest.raises(MalformedPacket):
            Reader(raw, 0, len(raw)).varint()


class TestFixedWidth:
    """Two and four byte integers, big-endian."""

    def test_written(self) -> None:
        assert primitives.two_bytes(0x0102) == b"\x01\x02"
        assert primitives.two_bytes(65_535) == b"\xff\xff"
        assert primitives.four_bytes(0x01020304) == b"\x01\x02\x03\x04"
        assert primitives.four_bytes(4_294_967_295) == b"\xff\xff\xff\xff"

    @for_each("value", [-1, 65_536])
    def test_two_bytes_refused(self, value: int) -> None:
        with pytest.raises(ValueError, match="two bytes"):
            primitives.two_bytes(value)

    @for_each("value", [-1, 4_294_967_296])
    def test_four_bytes_refused(self, value: int) -> None:
        with pytest.raises(ValueError, match="four bytes"):
            primitives.four_bytes(value)

    def test_read(self) -> None:
        reader = Reader(b"\x01\x02\x03\xff\xff\xff\xff", 0, 7)
        assert (reader.byte(), reader.two_bytes(), reader.four_bytes()) == (1, 0x0203, 4_294_967_295)

    @for_each("size", [0, 1, 2, 3])
    def test_end_is_respected(self, size: int) -> None:
        """More bytes lie behind `end`; they are not this packet's."""
        data = b"\x00\x01abcdefgh"
        with pytest.raises(MalformedPacket):
            Reader(data, 0, size).four_bytes()
        if size < 2:
            with pytest.raises(MalformedPacket):
                Reader(data, 0, size).two_bytes()
        if size < 1:
            with pytest.raises(MalformedPacket):
                Reader(data, 0, size).byte()
        if size < 3:
            with pytest.raises(MalformedPacket):
                Reader(data, 0, size).binary()


class TestStrings:
    """Strings and binary data."""

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
    def test_round_trip(self, value: str) -> None:
        raw = primitives.text(value)
        reader = Reader(raw, 0, len(raw))
        assert reader.string() == value
        assert reader.position == len(raw)

    @for_each(
        "raw",
        [
            b"\xff",  # no UTF-8 at all
            b"\xc3",  # cut off
            b"\xc0\xaf",  # overlong
            b"\xe0\x80\xaf",
            b"\xed\xa0\x80",  # U+D800
            b"\xed\xbf\xbf",  # U+DFFF
            b"\xed\xa0\xbd\xed\xb8\x80",  # a surrogate pair
            b"\xf4\x90\x80\x80",  # above U+10FFFF
            b"a\x00b",
        ],
    )
    def test_refused(self, raw: bytes) -> None:
        """[MQTT-1.5.4-1] [MQTT-1.5.4-2]"""
        with pytest.raises(MalformedPacket):
            utf8(raw)

    @for_each("value", ["\ufeff", "a\ufeffb", "\uffff", "\x01\x1f\x7f\x9f", "\U0010ffff"])
    def test_kept(self, value: str) -> None:
        """[MQTT-1.5.4-3], and what a receiver may refuse but need not."""
        assert utf8(value.encode()) == value

    @for_each("value", ["\0", "a\0", "\ud800", "x" * 65_536, "é" * 32_768])
    def test_cannot_be_written(self, value: str) -> None:
        with pytest.raises(ValueError, match=r".+"):
            primitives.text(value)

    def test_longest(self) -> None:
        raw = primitives.string(b"x" * 65_535)
        assert Reader(raw, 0, len(raw)).binary() == b"x" * 65_535
        with pytest.raises(ValueError, match="65536"):
            primitives.string(b"x" * 65_536)
