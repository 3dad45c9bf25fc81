"""Finds the fields of a PUBLISH in its bytes, and puts them together (section 3.3).

The only parser and builder of that layout for code that works on the bytes: it returns positions, not objects. Frames
are complete, and `body` is where their variable header begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.primitives import BYTE, MAX_FIELD, string, two_bytes, varint

if TYPE_CHECKING:
    from mypy_extensions import i64

LONGEST_REMAINING: Final = 268_435_455
"""The largest Remaining Length (section 2.1.4)."""


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


def build(header: int, topic: bytes, packet_id: int, section: bytes, payload: bytes) -> bytes:
    """A PUBLISH. `header`: the first byte, QoS in it; `packet_id` 0: none; `section`: the properties with their length.

    Raises:
        ValueError: it would be longer than a packet can be.
    """
    identifier = two_bytes(packet_id) if packet_id > 0 else b""
    length: i64 = len(topic)
    if length > MAX_FIELD:
        raise ValueError(f"a topic of {length} bytes: at most {MAX_FIELD} can be written")
    size = 2 + length + len(identifier) + len(section) + len(payload)
    start = BYTE[header] + (BYTE[size] if size < 128 else varint(size))
    return b"".join((start, BYTE[length >> 8], BYTE[length & 255], topic, identifier, section, payload))


def head(header: int, topic: bytes, behind: int) -> bytes:
    """A PUBLISH up to its packet identifier, where this number of bytes follows it."""
    return BYTE[header] + varint(4 + len(topic) + behind) + string(topic)
