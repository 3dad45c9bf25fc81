"""The data representations of MQTT (section 1.5): integers, strings, binary data.

Owns the cursor for all decoding outside the hot path (`Reader`), and the functions that write the same representations.
Promises: a `Reader` never reads past its `end`, whatever a length field says; a longer field is a `MalformedPacket`.
Writing a value that cannot be encoded raises `ValueError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.reason_codes import MalformedPacket

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_VARINT: Final = 268_435_455
"""Largest Variable Byte Integer, and so the largest Remaining Length, section 1.5.5."""

MAX_FIELD: Final = 65_535
"""Most bytes that a UTF-8 string or binary data can have: its length is a two byte integer, section 1.5.4."""


BYTE: Final[list[bytes]] = [bytes((value,)) for value in range(256)]
"""Every byte by itself. Two of them joined cost a quarter of `bytes((high, low))`, which goes through a tuple."""


def utf8(raw: bytes) -> str:
    """The text of a UTF-8 encoded string without its length prefix, section 1.5.4.

    Refuses surrogates and anything else that is not well-formed [MQTT-1.5.4-1], and U+0000 [MQTT-1.5.4-2]. U+FEFF is an
    ordinary character wherever it stands and is kept [MQTT-1.5.4-3]. Control and non-characters are let through:
    refusing them is optional.

    Raises:
        MalformedPacket: the bytes are not such a string.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedPacket("a string is not well-formed UTF-8") from None
    if "\0" in text:
        raise MalformedPacket("a string holds U+0000")
    return text


def varint(value: int) -> bytes:
    """A Variable Byte Integer in the fewest bytes, section 1.5.5 [MQTT-1.5.5-1].

    Raises:
        ValueError: outside 0..268,435,455.
    """
    number: i64 = value
    if number < 0 or number > MAX_VARINT:
        raise ValueError(f"no variable byte integer can hold {value}")
    if number < 128:
        return BYTE[number]
    if number < 16_384:
        return BYTE[number & 127 | 128] + BYTE[number >> 7]
    if number < 2_097_152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21))


def two_bytes(value: int) -> bytes:
    """A Two Byte Integer, section 1.5.2. Raises ValueError outside 0..65,535."""
    if value < 0 or value > 65_535:
        raise ValueError(f"{value} does not fit into two bytes")
    number: i64 = value
    return BYTE[number >> 8] + BYTE[number & 255]


def four_bytes(value: int) -> bytes:
    """A Four Byte Integer, section 1.5.3. Raises ValueError outside 0..4,294,967,295."""
    if value < 0 or value > 4_294_967_295:
        raise ValueError(f"{value} does not fit into four bytes")
    return bytes((value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255))


def string(raw: bytes) -> bytes:
    """Bytes behind their two byte length: binary data, or a string that is UTF-8 already (sections 1.5.4, 1.5.6).

    Raises:
        ValueError: more than 65,535 bytes.
    """
    size = len(raw)
    if size > MAX_FIELD:
        raise ValueError(f"a field of {size} bytes: at most {MAX_FIELD} can be written")
    return two_bytes(size) + raw


def text(value: str) -> bytes:
    """A UTF-8 encoded string with its length, section 1.5.4.

    Raises:
        ValueError: it holds a surrogate [MQTT-1.5.4-1] or U+0000 [MQTT-1.5.4-2], or is longer than 65,535 bytes.
    """
    if "\0" in value:
        raise ValueError("a string with U+0000 cannot be written")
    return string(value.encode("utf-8"))


class Reader:
    """A cursor over `data` from `position` to `end` (exclusive); each read advances it.

    Every method raises `MalformedPacket` when the field runs past `end`.
    """

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data: bytes = data
        self.position: i64 = position
        self.end: i64 = end

    def byte(self) -> int:
        """One byte, 0..255."""
        position: i64 = self.position
        if position >= self.end:
            raise MalformedPacket("a field runs past the end of the packet")
        self.position = position + 1
        return self.data[position]

    def two_bytes(self) -> int:
        """A Two Byte Integer, section 1.5.2."""
        position: i64 = self.position
        if position + 2 > self.end:
            raise MalformedPacket("a field runs past the end of the packet")
        self.position = position + 2
        data = self.data
        return data[position] << 8 | data[position + 1]

    def four_bytes(self) -> int:
        """A Four Byte Integer, section 1.5.3."""
        high = self.two_bytes()
        return high << 16 | self.two_bytes()

    def varint(self) -> int:
        """A Variable Byte Integer of at most four bytes and no more than it needs, section 1.5.5 [MQTT-1.5.5-1]."""
        position: i64 = self.position
        end: i64 = self.end
        data = self.data
        value: i64 = 0
        shift: i64 = 0
        while True:
            if position >= end:
                raise MalformedPacket("a field runs past the end of the packet")
            digit: i64 = data[position]
            position += 1
            value |= (digit & 127) << shift
            if digit < 128:
                break
            shift += 7
            if shift > 21:
                raise MalformedPacket("a variable byte integer has more than four bytes")
        if digit == 0 and shift > 0:
            raise MalformedPacket("a variable byte integer is longer than it needs to be")
        self.position = position
        return value

    def binary(self) -> bytes:
        """Binary data: a two byte length and that many bytes, section 1.5.6."""
        length: i64 = self.two_bytes()
        position: i64 = self.position
        stop = position + length
        if stop > self.end:
            raise MalformedPacket("a field runs past the end of the packet")
        self.position = stop
        return self.data[position:stop]

    def string(self) -> str:
        """A UTF-8 encoded string, section 1.5.4."""
        return utf8(self.binary())
