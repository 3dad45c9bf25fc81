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

SHARE: Final = "canopy-share"
"""The user property before the mark of a message that is for one share group alone: `$share/NAME/FILTER`."""

DIGITS: Final = 17
"""Digits of a time in a mark, in microseconds since 1970: enough for 3,000 years."""

MAX_TIME: Final = 10**DIGITS - 1

VALUE_SIZE: Final = 2 + DIGITS
"""Bytes of the value of a mark: the QoS, one of `PLAIN` and those below it, and the time, in digits."""

PLAIN: Final = 0
CLEARS: Final = 1
FOR_GROUP: Final = 2
RETAINED: Final = 1
AWAY: Final = 2
"""The second digit of a value. `FOR_GROUP`: the message is for a group; `RETAINED` is added if it came with RETAIN, and
`AWAY` as `Mark.away` says."""

_HEAD: Final = b"\x26" + text(NAME) + text("0" * VALUE_SIZE)[:2]
"""The encoded property up to its value, section 2.2.2.2."""

MARK_SIZE: Final = len(_HEAD) + VALUE_SIZE
"""Bytes of an encoded mark."""

_SHARE_HEAD: Final = b"\x26" + text(SHARE) + b"\0\0"
"""The encoded property with a share group up to its value, whose length is in the last two bytes."""


class Mark:
    """The facts that a node tells of a message.

    `qos`: 1 of a message with QoS 1, which goes with QoS 2 between nodes: one that came twice would come twice to
    subscribers with QoS 0, and to two members of a share group. `at`: the time at which its node retained it, in
    microseconds since 1970; 0: it did not, or was in no cluster then. `clears`: the node has cleared the topic instead;
    without payload: and no subscriber is told.

    `share`: the share group for which alone the message is; empty: it is for all who subscribe. Of such a one `qos` is
    that of the message in any case, and `retain` whether it came with RETAIN; `away`: it is for a member that is not
    connected. `size`: bytes of all that nodes have added to the properties.
    """

    def __init__(self, qos: int, at: i64, clears: bool) -> None:
        self.qos = qos
        self.at: i64 = at
        self.clears = clears
        self.share = ""
        self.retain = False
        self.away = False
        self.size = MARK_SIZE


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
    says, number = value[1] - 48, int(value[2:])
    if says < FOR_GROUP:
        return Mark(value[0] - 48, number, says == CLEARS)
    mark = Mark(value[0] - 48, 0, False)
    # In place of a time there are the bytes of the property with the group.
    mark.share = properties[start - number + len(_SHARE_HEAD) : start].decode()
    says -= FOR_GROUP
    mark.retain, mark.away = says & RETAINED > 0, says & AWAY > 0
    mark.size += number
    return mark


def marked(properties: bytes, qos: int, at: i64 = 0, clears: bool = False) -> bytes:
    """Return encoded properties with a mark, where one is needed: see `Mark`."""
    if qos != 1 and at == 0 and not clears and (not properties or properties.find(_HEAD) < 0):
        return properties
    if qos == 1 and at == 0 and not clears:
        return properties + _QOS1
    return properties + _mark(qos, CLEARS if clears else PLAIN, at)


def _mark(qos: int, says: int, number: i64) -> bytes:
    return _HEAD + f"{qos}{says}{min(int(number), MAX_TIME):0{DIGITS}d}".encode()


def for_group(message: Message, qos: int, name: str, away: bool = False) -> Message:
    """Return a message as another node gets it for one share group alone, `$share/NAME/FILTER`. `away`: see `Mark`."""
    share = _SHARE_HEAD[:-2] + text(name)
    mark = _mark(qos, FOR_GROUP + (RETAINED if message.retain else 0) + (AWAY if away else 0), len(share))
    properties = message.properties + share + mark
    return Message(message.topic, message.payload(), qos, False, properties, message.expires_at, message.publisher)


def from_group(message: Message) -> Message:
    """Return a message of `for_group` as it was before."""
    mark = read_mark(message.properties)
    if mark is None or not mark.share:
        return message
    properties = message.properties[: -mark.size]
    return Message(
        message.topic, message.payload(), mark.qos, mark.retain, properties, message.expires_at, message.publisher
    )


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


class GroupMessage(MessageCopy):
    """A message of another node that is for one share group alone, `$share/NAME/FILTER`. `away`: see `Mark`."""

    def __init__(self, message: Message, share: str, away: bool = False) -> None:
        super().__init__(message)
        self.share = share
        self.away = away
