"""What nodes tell each other about retained messages, as bytes.

Owns the five messages of this room and their layout; numbers are big-endian. Promises: what is read is of that form,
its topics and properties are such as MQTT allows, or ProtocolFault is raised.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.core.codec.errors import ProtocolError
from broker.core.codec.packets import PUBLISH
from broker.core.codec.primitives import utf8
from broker.core.codec.properties import ForwardScan
from broker.core.codec.topic_names import is_system, validate_topic
from broker.core.queues.message import Message
from broker.mesh.bus import ProtocolFault
from broker.mesh.retained.clock import Stamp
from broker.mesh.retained.stamps import BUCKETS, EXPIRED, KEPT

# The first byte of each message.

DIGEST: Final = 1
"""Version, the sender's clock (ms since 1970), the sum of each bucket. It asks which of them differ."""

DIFFERENT: Final = 2
"""The numbers of the buckets whose sums differ, ascending."""

WANT: Final = 3
"""For some of these, ascending, the digests of the writes that the sender has; it wants the others."""

ENTRIES: Final = 4
"""Writes of topics, with the messages, and whether with them all is there that was wanted."""

TAKEN: Final = 5
"""ENTRIES have been taken."""

VERSION: Final = 1
"""Of this layout. Nodes with different ones do not speak with each other."""

TAKEN_MESSAGE: Final = bytes((TAKEN,))

MOST_NAMES: Final = 0xFFFF
"""Nodes that one message can name: each is named once, and has a number of two bytes in its entries."""

_DIGEST: Final = struct.Struct(">BBQ")
_BUCKET: Final = struct.Struct(">HI")
_HEAD: Final = struct.Struct(">BBH")
_ENTRY: Final = struct.Struct(">BQHHHIIQ")
_CORRECTS: Final = struct.Struct(">QH")

_QOS_SHIFT: Final = 2
_HAS_CORRECTS: Final = 0x10
_EXPIRES: Final = 0x20
_FLAGS: Final = 0x3F


class Change:
    """A write of a topic, as it goes from node to node.

    `left`: milliseconds until the message expires, or until nothing needs to be known of a topic without one; -1: it
    does not expire. `corrects`: this is in place of the write with that stamp, though its own may be lower.
    """

    def __init__(
        self, topic: str, stamp: Stamp, state: int, message: Message | None, left: int, corrects: Stamp | None
    ) -> None:
        self.topic = topic
        self.stamp = stamp
        self.state = state
        self.message = message
        self.left = left
        self.corrects = corrects


class Batch:
    """An ENTRIES message in the making. `size`: its bytes so far, about; `count`: its entries."""

    def __init__(self) -> None:
        self.size = _HEAD.size
        self.count = 0
        self._names: dict[str, int] = {}
        self._parts: list[bytes] = []

    @property
    def full(self) -> bool:
        """Whether it can name no more nodes."""
        return len(self._names) + 2 > MOST_NAMES

    def add(self, change: Change) -> None:
        """One more entry. Its message has at most 4 GiB."""
        topic = change.topic.encode()
        time, node = change.stamp
        flags = change.state
        publisher = properties = payload = b""
        if change.message is not None:
            message = change.message
            publisher, properties, payload = message.publisher.encode(), message.properties, message.payload()
            flags |= message.qos << _QOS_SHIFT
        if change.left >= 0:
            flags |= _EXPIRES
        if change.corrects is not None:
            flags |= _HAS_CORRECTS
        number, left = self._number(node), max(change.left, 0)
        sizes = len(topic), len(publisher), len(properties), len(payload)
        self._add(_ENTRY.pack(flags, time, number, *sizes, left))
        if change.corrects is not None:
            self._add(_CORRECTS.pack(change.corrects[0], self._number(change.corrects[1])))
        for part in (topic, publisher, properties, payload):
            if part:
                self._add(part)
        self.count += 1

    def message(self, done: bool) -> bytes:
        """The whole message. `done`: all is there that was wanted."""
        head = [_HEAD.pack(ENTRIES, done, len(self._names))]
        for name in self._names:
            encoded = name.encode()
            head.append(bytes((len(encoded),)) + encoded)
        return b"".join(head + self._parts)

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self.size += len(part)

    def _number(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = len(self._names)
            self.size += len(name) + 1
        return number


def digest_message(milliseconds: int, sums: list[int]) -> bytes:
    """DIGEST."""
    return _DIGEST.pack(DIGEST, VERSION, milliseconds) + struct.pack(f">{BUCKETS}Q", *sums)


def different_message(buckets: list[int]) -> bytes:
    """DIFFERENT."""
    return bytes((DIFFERENT,)) + struct.pack(f">{len(buckets)}H", *buckets)


def want_message(wanted: list[tuple[int, list[int]]]) -> bytes:
    """WANT: buckets, each with the digests of what is there."""
    parts = [bytes((WANT,))]
    for bucket, digests in wanted:
        parts.append(_BUCKET.pack(bucket, len(digests)))
        parts.append(struct.pack(f">{len(digests)}Q", *digests))
    return b"".join(parts)


def read_digest(data: bytes) -> tuple[int, list[int]]:
    """The sender's clock, and its sums. Raises ProtocolFault."""
    if len(data) < 2 or data[1] != VERSION:
        raise ProtocolFault(f"it speaks another version of retained messages than {VERSION}")
    if len(data) != _DIGEST.size + 8 * BUCKETS:
        raise ProtocolFault("a digest of retained messages has the wrong length")
    milliseconds = int(_DIGEST.unpack_from(data)[2])
    return milliseconds, list(struct.unpack_from(f">{BUCKETS}Q", data, _DIGEST.size))


def read_different(data: bytes) -> list[int]:
    """The numbers of buckets, ascending. Raises ProtocolFault."""
    if len(data) % 2 != 1:
        raise ProtocolFault("a list of buckets has the wrong length")
    buckets = list(struct.unpack_from(f">{len(data) // 2}H", data, 1))
    _check_ascending(buckets)
    return buckets


def read_want(data: bytes) -> list[tuple[int, list[int]]]:
    """Buckets, ascending, each with digests. Raises ProtocolFault."""
    wanted: list[tuple[int, list[int]]] = []
    at, size = 1, len(data)
    while at < size:
        if at + _BUCKET.size > size:
            raise _short()
        bucket, count = _BUCKET.unpack_from(data, at)
        at += _BUCKET.size
        if at + 8 * count > size:
            raise _short()
        wanted.append((int(bucket), list(struct.unpack_from(f">{count}Q", data, at))))
        at += 8 * count
    _check_ascending([bucket for bucket, _ in wanted])
    return wanted


def read_entries(data: bytes, scan: ForwardScan) -> tuple[bool, list[Change]]:
    """Whether all is there that was wanted, and what came. Raises ProtocolFault."""
    size = len(data)
    if size < _HEAD.size:
        raise _short()
    _, done, count = _HEAD.unpack_from(data)
    if done > 1:
        raise ProtocolFault("unknown flags of retained messages")
    at = _HEAD.size
    names: list[str] = []
    for _ in range(count):
        if at >= size or at + 1 + data[at] > size:
            raise _short()
        names.append(_text(data[at + 1 : at + 1 + data[at]]))
        at += 1 + data[at]
    changes: list[Change] = []
    while at < size:
        at = _read_entry(data, at, names, scan, changes)
    return done == 1, changes


def _read_entry(data: bytes, at: int, names: list[str], scan: ForwardScan, changes: list[Change]) -> int:
    if at + _ENTRY.size > len(data):
        raise _short()
    flags, time, number, topic_size, publisher_size, properties_size, payload_size, left = _ENTRY.unpack_from(data, at)
    at += _ENTRY.size
    state, qos = flags & 3, flags >> _QOS_SHIFT & 3
    if flags > _FLAGS or state > EXPIRED or qos > 2:
        raise ProtocolFault("unknown flags of a retained message")
    corrects: Stamp | None = None
    if flags & _HAS_CORRECTS:
        if at + _CORRECTS.size > len(data):
            raise _short()
        other_time, other_number = _CORRECTS.unpack_from(data, at)
        corrects = int(other_time), _name(names, other_number)
        at += _CORRECTS.size
    stamp: Stamp = int(time), _name(names, number)
    end = int(at + topic_size + publisher_size + properties_size + payload_size)
    if end > len(data):
        raise _short()
    raw_topic = data[at : at + topic_size]
    at += topic_size
    topic = _text(raw_topic)
    if is_system(raw_topic):
        raise ProtocolFault("a retained message of the broker's own topics")
    message: Message | None = None
    if state == KEPT:
        publisher = _text(data[at : at + publisher_size])
        at += publisher_size
        properties = data[at : at + properties_size]
        at += properties_size
        if at == end:
            raise ProtocolFault("a retained message without a payload")
        _check(topic, properties, scan)
        message = Message(raw_topic, data[at:end], qos, True, properties, 0.0, publisher)
    elif publisher_size + properties_size + payload_size or not flags & _EXPIRES:
        raise ProtocolFault("a cleared topic with a message, or for ever")
    else:
        _check(topic, b"", scan)
    changes.append(Change(topic, stamp, state, message, int(left) if flags & _EXPIRES else -1, corrects))
    return end


def _check(topic: str, properties: bytes, scan: ForwardScan) -> None:
    try:
        validate_topic(topic)
        if properties:
            scan.run(properties, 0, len(properties), PUBLISH)
            if scan.forward != properties:
                raise ProtocolFault("a retained message has properties of one hop")
    except ProtocolError as error:
        raise ProtocolFault(f"a retained message is none: {error}") from None


def _text(data: bytes) -> str:
    try:
        return utf8(data)
    except ProtocolError as error:
        raise ProtocolFault(str(error)) from None


def _name(names: list[str], number: int) -> str:
    if number >= len(names):
        raise ProtocolFault("a node has a number and no name")
    return names[number]


def _check_ascending(buckets: list[int]) -> None:
    last = -1
    for bucket in buckets:
        if not last < bucket < BUCKETS:
            raise ProtocolFault("buckets of retained messages are out of order or out of range")
        last = bucket


def _short() -> ProtocolFault:
    return ProtocolFault("a message about retained messages is too short")
