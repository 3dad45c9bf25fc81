"""The mark of a message between nodes of a cluster: the last of its user properties.

Only nodes write and read marks. A node marks what has something to be said about it, and each message whose bytes hold
the name of the mark already: so of what a client, an upstream broker or a bridge has written nothing is ever last, and
all of it goes on to subscribers as it came. A node that gets a message takes the mark off. Retained messages have
their marks in a store, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.primitives import text
from canopy_mqtt.core.queues.message import Message, MessageCopy

if TYPE_CHECKING:
    from mypy_extensions import i64

NAME: Final = "canopy-mark"

DIGITS: Final = 17
"""Digits of a time in a mark, in microseconds since 1970: enough for 3,000 years."""

MAX_TIME: Final = 10**DIGITS - 1

VALUE_SIZE: Final = 2 + DIGITS
"""Bytes of the value of a mark: the QoS, whether the topic is cleared, and the time, in digits."""

_HEAD: Final = b"\x26" + text(NAME) + text("0" * VALUE_SIZE)[:2]
"""The encoded property up to its value, section 2.2.2.2."""

MARK_SIZE: Final = len(_HEAD) + VALUE_SIZE
"""Bytes of an encoded mark."""


class Mark:
    """The facts that a node tells of a message.

    `qos`: 1 of a message with QoS 1, which goes with QoS 2 between nodes: one that came twice would come twice to
    subscribers with QoS 0, and to two members of a share group. `at`: the time at which its node retained it, in
    microseconds since 1970; 0: it did not, or was in no cluster then. `clears`: the node has cleared the topic instead.
    """

    def __init__(self, qos: int, at: i64, clears: bool) -> None:
        self.qos = qos
        self.at: i64 = at
        self.clears = clears


_QOS1: Final = _HEAD + b"10" + b"0" * DIGITS
"""The mark of most messages that have one: of QoS 1, and not retained."""

_QOS1_READ: Final = Mark(1, 0, False)


def read_mark(properties: bytes) -> Mark | None:
    """Return the mark at the end of encoded properties (`Message.properties`); None: there is none."""
    if properties.endswith(_QOS1):
        return _QOS1_READ
    start = len(properties) - MARK_SIZE
    if start < 0 or not properties.startswith(_HEAD, start):
        return None
    value = properties[start + len(_HEAD) :]
    if not value.isdigit():
        return Mark(0, 0, False)
    return Mark(value[0] - 48, int(value[2:]), value[1] == 49)


def marked(properties: bytes, qos: int, at: i64 = 0, clears: bool = False) -> bytes:
    """Return encoded properties with a mark, where one is needed: see `Mark`."""
    if qos != 1 and at == 0 and not clears and (not properties or properties.find(_HEAD) < 0):
        return properties
    if qos == 1 and at == 0 and not clears:
        return properties + _QOS1
    return properties + _HEAD + f"{qos}{int(clears)}{min(int(at), MAX_TIME):0{DIGITS}d}".encode()


class TimedMessage(MessageCopy):
    """A copy of a message that knows when a node retained it: see `Mark.at`."""

    def __init__(self, message: Message, at: i64) -> None:
        super().__init__(message)
        self.at: i64 = at


class NodeMessage(TimedMessage):
    """A message of another node that is to be retained here as well. `clears`: see `Mark`."""

    def __init__(self, message: Message, mark: Mark) -> None:
        super().__init__(message, mark.at)
        self.clears = mark.clears
