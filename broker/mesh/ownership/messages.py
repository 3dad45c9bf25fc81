"""What nodes say to each other about sessions, and how it stands in bytes: many of them in one message of the bus.

Owns the kinds of messages. Promises: what is read was looked at; anything else raises ProtocolFault. A time is that of
a claim: microseconds of the clock of all nodes (`claims`), which with the node that made it names the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from broker.core.routing.remote.publish_numbers import HEARD
from broker.mesh.bus import UNREADABLE, ProtocolFault

LATEST: Final = 1 << 62
"""The last point of the clock; what lies far ahead of all clocks would stop them."""

Time = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Number = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]

MOST: Final = 1_024
"""Messages that go as one, at most."""

NONE: Final = 0
"""Answer to a claim: there is no session here, or none any more."""
LOST: Final = 1
"""A claim of the same client identifier that was made here is later."""
REFUSED: Final = 2
"""The session here is another user's."""
LATER: Final = -1
"""The answer follows when what goes on with the session is over. It is said to nobody."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """The first message. `clock`: no claim of this node was later; `sessions`: how many are here."""

    clock: Time
    sessions: Count


class Ask(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A client with this identifier is here: who has its session is to end the connection and hand it over.

    `clean`: to end the session. `user`: whom the client has proved to be. `merges`: its session is there, and what is
    here comes into it.
    """

    client_id: Name
    user: str | None
    clean: bool
    merges: bool
    time: Time


class Answer(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """What there is to say to a claim; where the session comes, its parts are the answer."""

    client_id: Name
    time: Time
    outcome: Annotated[int, msgspec.Meta(ge=NONE, le=REFUSED)]


class Part(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A part of a session (`records`). `rest`: of what came to it since the first parts were made."""

    client_id: Name
    time: Time
    rest: bool
    data: bytes


class Took(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """So many bytes of parts were taken: as many more may follow."""

    size: Count


class Ready(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """The session's subscriptions stand here, and all nodes know it but those of `without`: the rest may follow."""

    client_id: Name
    time: Time
    without: list[Name] = []


class Taken(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """All of the session is kept here: the node that had it may forget it."""

    client_id: Name
    time: Time


class Held(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """Sessions that are here: the client identifier, and when it was claimed (0: never)."""

    sessions: list[tuple[Name, Time]]


class Compared(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The answer to that. `older`: sessions of these that are here too, claimed at an earlier time than there."""

    older: list[tuple[Name, Time]]


class Flush(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The other node is to answer with `Flushed`, behind all that it has sent so far. `numbers`: with those."""

    number: Count
    numbers: bool = False


class Flushed(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """The answer to that.

    `numbers`: of QoS 2 publishes that may come again (`publish_numbers`), but for those that the node was told before.
    """

    number: Count
    numbers: Annotated[list[Number], msgspec.Meta(max_length=HEARD)] = []


class Offer(msgspec.Struct, array_like=True, frozen=True, tag=11):
    """This node is about to go: the other one is to claim the session, as of the time at which it was claimed here."""

    client_id: Name
    user: str | None
    time: Time


class Source(msgspec.Struct, array_like=True, frozen=True):
    """A node in whose queue messages wait for a session that was there.

    `move`: by which it came there, and of which the node that has them may not have heard; "": all of them are for it.
    `giver`: from where it came so. `asked`: whether `node` has told of the move. `received`: packet identifiers
    of QoS 2 messages that `node` has had of the node that has them.
    """

    node: Name
    move: str = ""
    giver: str = ""
    asked: bool = False
    received: list[Annotated[int, msgspec.Meta(ge=1, le=65_535)]] = []


class Missed(msgspec.Struct, array_like=True, frozen=True):
    """A node that has messages for a session which have come to neither node of its move (`gates`).

    `sources`: where they wait, the node that gave the session first, then the one that gave it to that, and so on.
    """

    node: Name
    sources: list[Source]


class Without(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """Of a session whose rest follows: what it has not had of other nodes yet."""

    client_id: Name
    time: Time
    missed: list[Missed]


class Late(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """A session with these topic filters has moved to a node; without filters, several with any.

    The other node is to hand over what it has for the session, and then make its mark.
    """

    name: Name
    to: Name
    missed: Missed
    filters: list[Name]


class Noted(msgspec.Struct, array_like=True, frozen=True, tag=14):
    """The answer to that, where the session has moved from here."""

    name: Name


class Knows(msgspec.Struct, array_like=True, frozen=True, tag=15):
    """Other nodes for which something may wait here, besides those that were named before. `given_up`: no more so."""

    nodes: list[Name]
    given_up: list[Name] = []


class Abort(msgspec.Struct, array_like=True, frozen=True, tag=16):
    """A session comes no further by this claim: what each of the two nodes has of it stays there, and is compared.

    `giver`: the node says it that gave the session, also as the answer where the other one has said it.
    """

    client_id: Name
    time: Time
    giver: bool


class Comes(msgspec.Struct, array_like=True, frozen=True, tag=17):
    """A session that was claimed is here, and follows when its turn has come (`turns`)."""

    client_id: Name
    time: Time


Message = (
    Hello
    | Ask
    | Answer
    | Part
    | Took
    | Ready
    | Taken
    | Held
    | Compared
    | Flush
    | Flushed
    | Offer
    | Without
    | Late
    | Noted
    | Knows
    | Abort
    | Comes
)

_encode = msgspec.msgpack.Encoder().encode
_decode: Final[msgspec.msgpack.Decoder[list[Message]]] = msgspec.msgpack.Decoder(
    Annotated[list[Message], msgspec.Meta(max_length=MOST)]
)


def encode(messages: Sequence[Message]) -> bytes:
    """Some messages as one, no more than `MOST`."""
    return _encode(messages)


def decode(data: bytes) -> list[Message]:
    """The messages in one. Raises ProtocolFault."""
    try:
        return _decode.decode(data)
    except UNREADABLE as error:
        raise ProtocolFault(f"a message about sessions that nobody wrote: {error}") from error
