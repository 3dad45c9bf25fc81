"""Splits the incoming bytes of one network connection into packets (section 2.1), and finds the fields of a PUBLISH.

Owns the unparsed bytes of a connection, and the rules of the fixed header; `decoder.Decoder` decodes the packets. A
read is parsed without a copy if no bytes of the previous read are left. Nothing is allocated for a declared length: a
packet above `max_packet_size` is refused as soon as its fixed header has arrived. A packet that arrives in many reads
costs time and memory in proportion to its size. The functions work on bytes and return positions, not objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec.primitives import BYTE, string, varint
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, PacketTooLarge

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_PACKET: Final = 268_435_460
"""Bytes of the largest packet: a fixed header of five, and the largest Remaining Length (section 2.1.4)."""

DECODED: Final = 4
"""Each byte counts this often of a packet that was decoded and waits for a decision: a text of which one character is
beyond U+FFFF takes four bytes for each."""

# Packets whose fixed header flags must be 0b0010 (section 2.1.3), as a mask of `1 << kind`.
_FLAGS_0010: Final = 1 << packets.PUBREL | 1 << packets.SUBSCRIBE | 1 << packets.UNSUBSCRIBE

# By first byte, 1 for those that are right in every version: PUBLISH with a QoS, and the other types with their flags.
_RIGHT: Final = bytes(
    [
        header & 6 != 6
        if header >> 4 == packets.PUBLISH
        else header >> 4 not in (0, packets.AUTH) and header & 15 == (_FLAGS_0010 >> (header >> 4) & 1) << 1
        for header in range(256)
    ]
)


class Frames:
    """Splits incoming bytes into packets.

    The current frame, valid until the next call of `next_frame` or `feed`: `buffer[start:end]`, with its variable
    header at `body` and the first byte of its fixed header in `header`. `version` is the protocol level in force, 0
    when not known yet. `max_packet_size` counts whole packets in bytes and may be changed between frames.
    """

    def __init__(self, max_packet_size: int, version: int) -> None:
        # The current frame; `end` is also where the next one begins.
        self.buffer: bytes = b""
        self.header: i64 = 0
        self.start: i64 = 0
        self.body: i64 = 0
        self.end: i64 = 0
        # The connection.
        self.version: i64 = version
        self.max_packet_size: i64 = max_packet_size
        # An incomplete packet: `_tail` after the read in which it began, `_held` once a second read did not complete
        # it; `need` is the size to wait for, 0: there is none. A bytearray, and not a list of reads, so that a packet
        # that trickles in by twos and threes takes no more memory than its size.
        self._tail: bytes = b""
        self._held: bytearray = bytearray()
        self.need: i64 = 0
        # Bytes of a packet that was decoded and waits for a decision.
        self._undecided: i64 = 0

    @property
    def held_size(self) -> i64:
        """Bytes kept for what has not been acted on: an incomplete packet, the read that an unfinished turn left, and a
        packet that waits for a decision (`undecided`)."""
        held: i64 = len(self.buffer) + self._undecided
        if self.need > 0:
            held += len(self._tail) + len(self._held)
        return held

    def begun(self) -> bytes:
        """Return a copy of the bytes that were fed and are no part of a frame yet, for a watcher that begins here."""
        if self.need > 0:
            return self._tail + bytes(self._held)
        return self.buffer[self.end :]

    def undecided(self) -> None:
        """The packet of the current frame, which is decoded, is kept until `decided`; the bytes it came in are not."""
        self._undecided = DECODED * (self.end - self.start)
        self.buffer = self.buffer[self.end :]
        self.start = self.body = self.end = 0

    def decided(self, max_packet_size: int) -> None:
        """It is kept no longer; how large packets may be from now on."""
        self._undecided = 0
        self.max_packet_size = max_packet_size

    def clear(self) -> None:
        """The connection is over: keep nothing."""
        self.buffer = b""
        self._tail = b""
        self._held = bytearray()
        self.need = 0
        self._undecided = 0
        self.start = self.body = self.end = 0

    def feed(self, data: bytes) -> None:
        """Add one read."""
        if self.need == 0:
            # Where the owner stopped before the last read was through, its rest comes first.
            self.buffer = data if self.end >= len(self.buffer) else self.buffer[self.end :] + data
        elif self._held:
            self._held += data
            if len(self._held) < self.need:
                return
            self.buffer = bytes(self._held)
            self._held = bytearray()
            self.need = 0
        elif len(self._tail) + len(data) < self.need:
            self._held += self._tail
            self._held += data
            self._tail = b""
            return
        else:
            self.buffer = self._tail + data
            self._tail = b""
            self.need = 0
        self.start = self.body = self.end = 0

    def next_frame(self) -> bool:
        """Advance to the next whole packet; False when there is none yet.

        Raises:
            MalformedPacket: a packet type or flags that do not exist, or a bad Remaining Length.
            PacketTooLarge: the packet will be longer than `max_packet_size`.
        """
        data = self.buffer
        size: i64 = len(data)
        start: i64 = self.end
        if start == size:
            # The usual end of a read: nothing has begun.
            self.buffer = b""
            self.start = self.body = self.end = 0
            return False
        if start + 1 == size:
            self._hold(start, 2)
            return False
        header: i64 = data[start]
        length: i64 = data[start + 1]
        body: i64 = start + 2
        if length >= 128:
            length &= 127
            shift: i64 = 7
            while True:
                if body >= size:
                    self._hold(start, size - start + 1)
                    return False
                digit: i64 = data[body]
                body += 1
                length |= (digit & 127) << shift
                if digit < 128:
                    break
                shift += 7
                if shift > 21:
                    raise MalformedPacket("a remaining length of more than four bytes")
            if digit == 0:  # [MQTT-1.5.5-1]
                raise MalformedPacket("a remaining length that is longer than it needs to be")
        kind: i64 = header >> 4
        if _RIGHT[header] == 0:
            self._check_header(header)
        end: i64 = body + length
        if end - start > self.max_packet_size:  # [MQTT-3.2.2-15]
            raise PacketTooLarge(
                f"{packets.NAMES[kind]} of {end - start} bytes, at most {self.max_packet_size} are accepted"
            )
        if end > size:
            self._hold(start, end - start)
            return False
        self.header = header
        self.start = start
        self.body = body
        self.end = end
        return True

    def _check_header(self, header: i64) -> None:
        """Check the first byte of a packet against section 2.1. Raises MalformedPacket."""
        kind: i64 = header >> 4
        if kind == 3:
            if header & 6 == 6:  # [MQTT-3.3.1-4]
                raise MalformedPacket("a PUBLISH with QoS 3")
        elif (
            header & 15 != (_FLAGS_0010 >> kind & 1) << 1
            and self.version != 3
            and not (kind == packets.CONNECT and self.version == 0)
        ):
            # [MQTT-2.1.3-1] [MQTT3-2.2.2-2], which is [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1]
            # [MQTT-3.15.1-1]. MQTT 3.1 leaves these bits unused or puts QoS and DUP there; a CONNECT has to be read
            # before that is known.
            raise MalformedPacket(f"fixed header flags {header & 15:#06b} in {packets.NAMES[kind]}")
        if kind == 0 or (kind == 15 and (self.version == 4 or self.version == 3)):
            raise MalformedPacket(f"packet type {kind} is reserved")

    def begun_kind(self) -> i64:
        """Return the type of the packet that has begun and is not whole: only while `need` is above 0."""
        begun: i64 = self._tail[0] if self._tail else self._held[0]
        return begun >> 4

    def _hold(self, start: int, need: int) -> None:
        """Keep the incomplete packet that begins at `start` until `need` bytes of it are there.

        Raises:
            MalformedPacket: it is none, by its first byte: no more of it is waited for.
        """
        self._check_header(self.buffer[start])
        self._tail = self.buffer[start:]
        self.need = need
        self.buffer = b""
        self.start = self.body = self.end = 0


def frame_body(data: bytes, start: i64) -> i64:
    """Return where the variable header begins of the whole frame that begins at `start`."""
    at: i64 = start + 1
    while data[at] >= 128:
        at += 1
    return at + 1


def frame_end(data: bytes, start: i64, limit: i64) -> i64:
    """Return where the frame that begins at `start` ends; -1: it is not whole before `limit`, or its length is bad."""
    if start + 2 > limit:
        return -1
    at: i64 = start + 1
    digit: i64 = data[at]
    length: i64 = digit & 127
    shift: i64 = 7
    while digit >= 128:
        at += 1
        if at >= limit or shift > 21:
            return -1
        digit = data[at]
        if digit == 0:
            return -1
        length |= (digit & 127) << shift
        shift += 7
    end: i64 = at + 1 + length
    if end > limit:
        return -1
    return end


def frame_count(data: bytes) -> int:
    """Return how many frames stand side by side in `data`, all of them whole."""
    size: i64 = len(data)
    at: i64 = 0
    count: i64 = 0
    while at < size:
        at = frame_end(data, at, size)
        count += 1
    return count


# -- the fields of a PUBLISH (section 3.3) in the bytes of a whole frame; `body`: where its variable header begins -----


def topic_end(data: bytes, body: i64) -> i64:
    """Return where the topic name ends, which begins at `body + 2`. It may lie behind the end of the frame."""
    high: i64 = data[body]
    low: i64 = data[body + 1]
    return body + 2 + (high << 8) + low


def fields_end(data: bytes, body: i64, qos: i64) -> i64:
    """Return where topic name and packet identifier end: there the properties of 5.0 begin, or the payload of 3.1.1."""
    at: i64 = topic_end(data, body)
    return at + 2 if qos > 0 else at


def plain_payload(data: bytes, body: i64, end: i64, qos: i64, v5: bool) -> i64:
    """Return where the payload of a PUBLISH without properties begins; -1: it has some, or its fields pass `end`."""
    at: i64 = body + 2
    if at > end:
        return -1
    # `topic_end`, spelled out: this is asked for every message.
    high: i64 = data[body]
    low: i64 = data[body + 1]
    at += (high << 8) + low
    if qos > 0:
        at += 2
    if v5:
        # The property length, which is 0 here.
        if at >= end or data[at] != 0:
            return -1
        at += 1
    # In one expression the two would meet as an object.
    if at > end:
        return -1
    return at


def alike(data: bytes, head: bytes, start: i64, end: i64, payload_at: i64, v5: bool, most: i64, limit: i64) -> i64:
    """Count the PUBLISH of QoS 1 or 2 side by side with the length and the `head` of the one from `start` to `end`.

    `head`: its bytes up to the packet identifier; `payload_at`: where its payload begins, behind no properties. Counted
    are only such as have no properties either, and an identifier: at most `most`, and none that ends behind `limit`.
    """
    length: i64 = end - start
    id_at: i64 = len(head)
    behind: i64 = payload_at - start - 1
    if limit > len(data):
        limit = len(data)
    room: i64 = (limit - start) // length
    if most > room:
        most = room
    count: i64 = 1
    while (
        count < most
        and data[end : end + id_at] == head
        and (data[end + id_at] != 0 or data[end + id_at + 1] != 0)
        and (not v5 or data[end + behind] == 0)
    ):
        count += 1
        end += length
    return count


def head(header: int, topic: bytes, behind: int) -> bytes:
    """A PUBLISH up to its packet identifier, where this number of bytes follows it."""
    return BYTE[header] + varint(4 + len(topic) + behind) + string(topic)
