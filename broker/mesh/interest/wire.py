"""The messages of the interest tables: what they mean, and their bytes.

Owns the layout. The first byte says which message it is; larger numbers are variable byte integers (MQTT 5.0,
section 1.5.5) or eight bytes, strings are MQTT's. A *key* is a topic filter, or `$share/name/filter`; its *state* says
who wants it. Promises: `decode` returns a message or raises ProtocolFault, whatever the bytes; each key is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from broker.core.codec.errors import ProtocolError
from broker.core.codec.primitives import BYTE, MAX_FIELD, Reader, text, varint
from broker.core.codec.topic_names import SHARE_PREFIX, parse_shared, validate_filter
from broker.mesh.bus import ProtocolFault

HELLO: Final = 1
"""From the recipient: so many keys, and bytes of them, are taken from you at most. The first message after `joined`."""

DECLARE: Final = 2
"""From who declares: states of keys, in their order; with `begins` a full set begins. The version says that the
recipient has everything up to there now; 0: more has to come before that is so."""

CONFIRM: Final = 3
"""From the recipient: the DECLARE with that version is applied, one for each. Until then no other one is sent."""

DIGEST: Final = 4
"""From who declares: so many keys have a state now, with this sum of marks. It takes the place of a DECLARE."""

ANSWER: Final = 5
"""From the recipient: whether the digest is the same here. If it is not, a full set begins."""

ABSENT: Final = 0
"""The state of a key that nobody wants any more."""

WANTED: Final = 1
"""The state of a topic filter. That of a share group is how many members are connected, up to MOST_CONNECTED."""

MOST_CONNECTED: Final = 255

AWAY: Final = 256
"""The state of a share group of whose members none is connected."""

DECLARE_BYTES: Final = 32_768
"""Bytes of keys after which a DECLARE takes no more: it bounds what is laid out, sent and taken apart at once."""

DECLARE_KEYS: Final = 1_024
"""Keys that a DECLARE has at most."""

MOST_BYTES: Final = DECLARE_BYTES + MAX_FIELD + 32
"""Bytes that a message has at most: the last key may be as long as a topic filter can be."""

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
"""Sums of marks have 64 bits."""

_BEGINS: Final = 1


class Message:
    """One message. Which fields have a meaning depends on `kind`.

    `keys`, `states`: of a DECLARE, one state for each key. `version`: of a DECLARE or CONFIRM. `begins`: of a DECLARE.
    `most`: keys of a HELLO or DIGEST. `most_bytes`: of a HELLO. `digest`: of a DIGEST. `same`: of an ANSWER.
    """

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.keys: list[str] = []
        self.states: list[int] = []
        self.version = 0
        self.begins = False
        self.most = 0
        self.most_bytes = 0
        self.digest = 0
        self.same = False


def mark(key: str, state: int) -> int:
    """64 bits that stand for a key in a state. They are added, so that the order in which keys came is no matter."""
    return int.from_bytes(blake2b(varint(state) + key.encode(), digest_size=8).digest(), "big")


def is_group(key: str) -> bool:
    """Whether a key is that of a share group."""
    return key.startswith(SHARE_PREFIX)


def hello(most: int, most_bytes: int) -> bytes:
    """So many keys and bytes are taken."""
    return BYTE[HELLO] + _eight(most) + _eight(most_bytes)


def declare(keys: Sequence[str], states: Sequence[int], version: int, begins: bool) -> bytes:
    """States of keys."""
    parts = [BYTE[DECLARE], BYTE[_BEGINS if begins else 0], _eight(version)]
    for at, key in enumerate(keys):
        parts.append(varint(states[at]))
        parts.append(text(key))
    return b"".join(parts)


def confirm(version: int) -> bytes:
    """A DECLARE is applied."""
    return BYTE[CONFIRM] + _eight(version)


def digest(count: int, marks: int) -> bytes:
    """What the recipient has to have by now."""
    return BYTE[DIGEST] + _eight(count) + _eight(marks)


def answer(same: bool) -> bytes:
    """Whether it has."""
    return BYTE[ANSWER] + BYTE[1 if same else 0]


def decode(data: bytes) -> Message:
    """Take a message apart. Raises ProtocolFault."""
    if len(data) > MOST_BYTES:
        raise ProtocolFault(f"a message of the interest of {len(data)} bytes; at most {MOST_BYTES} are sent")
    try:
        return _decode(data)
    except ProtocolError as error:
        raise ProtocolFault(f"a message of the interest cannot be read: {error}") from error


def _decode(data: bytes) -> Message:
    reader = Reader(data, 0, len(data))
    message = Message(reader.byte())
    kind = message.kind
    if kind == DECLARE:
        flags = reader.byte()
        if flags > _BEGINS:
            raise ProtocolFault(f"a DECLARE has flags {flags}")
        message.begins = flags == _BEGINS
        message.version = _read_eight(reader)
        while reader.position < reader.end:
            _read_key(reader, message)
    elif kind == HELLO:
        message.most = _read_eight(reader)
        message.most_bytes = _read_eight(reader)
    elif kind == CONFIRM:
        message.version = _read_eight(reader)
    elif kind == DIGEST:
        message.most = _read_eight(reader)
        message.digest = _read_eight(reader)
    elif kind == ANSWER:
        same = reader.byte()
        if same > 1:
            raise ProtocolFault(f"an ANSWER is {same}")
        message.same = same == 1
    else:
        raise ProtocolFault(f"a message of the interest is of kind {kind}")
    if reader.position != reader.end:
        raise ProtocolFault(f"a message of the interest of kind {kind} goes on after its end")
    return message


def _read_key(reader: Reader, message: Message) -> None:
    if len(message.keys) >= DECLARE_KEYS:
        raise ProtocolFault(f"a DECLARE has more than {DECLARE_KEYS} keys")
    state = reader.varint()
    key = reader.string()
    group, topic_filter = parse_shared(key)
    validate_filter(topic_filter)
    if state > AWAY or (not group and state > WANTED):
        raise ProtocolFault(f"a key has state {state}")
    message.keys.append(key)
    message.states.append(state)


def _eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _read_eight(reader: Reader) -> int:
    high = reader.four_bytes()
    return high << 32 | reader.four_bytes()
