"""What nodes say to each other about wills, and how it stands in bytes.

Owns the kinds of messages. Promises: what is read was looked at; anything else raises ProtocolFault. A *process* is one
run of a node: the number says which; a *serial* number names a will among those of a process.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from broker.core.codec.packets import NEVER, Will
from broker.core.codec.properties import decode_forward
from broker.core.codec.topic_names import validate_topic
from broker.core.principal import Principal
from broker.mesh.bus import UNREADABLE, UNUSABLE, ProtocolFault
from broker.store.groups.principals import Principals

LATEST: Final = 1 << 62
MILLISECONDS: Final = 1_000

Number = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=NEVER * MILLISECONDS)]

MOST: Final = 1_024
"""Wills in one message, at most."""

GONE: Final = 0
"""How a node stands to a process: it holds nothing of it."""
THERE: Final = 1
"""The process is there."""
HELD: Final = 2
"""It has gone, and its wills are held."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """The first message: the process that speaks. All its wills follow, those that are known already among them."""

    process: Number


class WillCopy(msgspec.Struct, array_like=True, frozen=True):
    """A will of a client of the node that speaks, as `encode_will` writes it; without data: it has none any more.

    `delay`: from the end of its connection, its Will Delay Interval or that of its session's expiry. `running`: its
    connection has ended, and so much is left.
    """

    client_id: Name
    serial: Number
    delay: Milliseconds
    running: bool
    data: bytes


class Copies(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Some wills. It is answered with `Took`."""

    wills: Annotated[list[WillCopy], msgspec.Meta(max_length=MOST)]


class Complete(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """All wills have been sent: what was known from before and was not named is none any more."""


class Took(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """So many bytes of `Copies` and `Over` were taken: as many more may follow."""

    size: Number


class ProcessState(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """How the node that speaks stands to a process of another one: GONE, THERE, HELD."""

    node: Name
    process: Number
    state: Annotated[int, msgspec.Meta(ge=GONE, le=HELD)]


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """A will that is not to be published any more: it has been; or `moved`: its client has come to another node."""

    client_id: Name
    serial: Number
    moved: bool


class Over(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """What has become of wills of a process. It is answered with `Took`."""

    node: Name
    process: Number
    wills: Annotated[list[Ended], msgspec.Meta(max_length=MOST)]


class Stops(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The node that speaks stops. It has published the wills of its clients; those whose delay runs are left."""


Message = Hello | Copies | Complete | Took | ProcessState | Over | Stops


class _Will(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    payload: bytes
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)]
    retain: bool
    message_expiry: Annotated[int, msgspec.Meta(ge=-1, le=NEVER)]
    properties: bytes
    principal: str


_encode = msgspec.msgpack.Encoder().encode
_decode: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)
_decode_will = msgspec.msgpack.Decoder(_Will).decode


def encode(message: Message) -> bytes:
    """Its bytes."""
    return _encode(message)


def decode(data: bytes) -> Message:
    """A message. Raises ProtocolFault."""
    try:
        return _decode.decode(data)
    except UNREADABLE as error:
        raise ProtocolFault(f"a message about wills that nobody wrote: {error}") from error


def encode_will(will: Will, principal: str) -> bytes:
    """A will, and its client's principal as `Principals` writes it. The delay is not among it."""
    message_expiry, properties = will.message_expiry, will.properties
    return _encode(_Will(will.topic, will.payload, will.qos, will.retain, message_expiry, properties, principal))


def decode_will(data: bytes, client_id: str, principals: Principals) -> tuple[Will, Principal]:
    """The same again. Raises ProtocolFault."""
    try:
        read = _decode_will(data)
        validate_topic(read.topic)
        decode_forward(read.properties)
        principal = principals.read(read.principal, client_id)
    except UNUSABLE as error:
        raise ProtocolFault(f"a will that nobody wrote: {error}") from error
    will = Will(read.topic, read.payload, read.qos, read.retain, 0, read.message_expiry, read.properties)
    return will, principal
