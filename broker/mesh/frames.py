"""What goes from one node to another in one piece: greetings, and numbered frames of messages.

Owns their bytes. A greeting has the same layout for all time: by it nodes agree on the version of everything else.
Numbers are big-endian.

    greeting: 1, lowest version, highest version, ASKS, THERE or REFUSES; then of 8 bytes each: incarnation, epoch,
              epoch of the other (0: unknown)
    frame:    2; of 8 bytes each: epoch, epoch of the other, number; then messages: kind (1), length (4), data
"""

from __future__ import annotations

import struct
from typing import Final

from broker.mesh.bus import ProtocolFault

LOWEST: Final = 1
HIGHEST: Final = 3
"""The versions of frames and of what all rooms say that this program understands. 2: nodes tell each other of wills. 3:
of sessions that have moved without them; and QoS 2 publishes have numbers."""

GREETING: Final = 1
FRAME: Final = 2

CONTROL: Final = 0
"""The kind of messages that are for the bus itself. Without data: the node leaves."""

LARGEST: Final = 262_144
"""Bytes of messages in one frame. A larger message has a frame of its own: a frame costs the same whatever its size."""

_GREETING: Final = struct.Struct("!BBBBQQQ")
_FRAME: Final = struct.Struct("!BQQQ")
_MESSAGE: Final = struct.Struct("!BI")

OVERHEAD: Final = _MESSAGE.size
"""Bytes that a message takes beside its data."""


ASKS: Final = 0
THERE: Final = 1
REFUSES: Final = 2
"""How who greets stands to the other: it waits for an answer; it has one; it understands no version of the other."""


class Greeting:
    """What a node says first, and again until it has been heard."""

    __slots__ = ("echo", "epoch", "highest", "incarnation", "lowest", "stand")

    def __init__(self, lowest: int, highest: int, stand: int, incarnation: int, epoch: int, echo: int) -> None:
        self.lowest = lowest
        self.highest = highest
        self.stand = stand
        self.incarnation = incarnation
        """When the process began; of two with one node id the larger is the later."""
        self.epoch = epoch
        """Names what is said from here on, until the node begins anew with the other; later ones are larger."""
        self.echo = echo
        """The epoch of the other one that this node has heard; 0: none."""

    def encode(self) -> bytes:
        """Its bytes."""
        return _GREETING.pack(GREETING, self.lowest, self.highest, self.stand, self.incarnation, self.epoch, self.echo)


def decode_greeting(data: bytes) -> Greeting:
    """A greeting. A later version may add to it. Raises ProtocolFault."""
    try:
        _, lowest, highest, stand, incarnation, epoch, echo = _GREETING.unpack_from(data)
    except struct.error:
        raise ProtocolFault("a greeting is too short") from None
    if lowest > highest or not epoch or not incarnation:
        raise ProtocolFault("a greeting without versions, incarnation or epoch")
    return Greeting(lowest, highest, stand, incarnation, epoch, echo)


def message(kind: int, data: bytes) -> bytes:
    """A message as it stands in a frame."""
    return b"".join((_MESSAGE.pack(kind, len(data)), data))


def encode_frame(epoch: int, echo: int, number: int, messages: list[bytes]) -> bytes:
    """A frame of what `message` made."""
    return b"".join((_FRAME.pack(FRAME, epoch, echo, number), *messages))


def decode_frame(data: bytes) -> tuple[int, int, int]:
    """Epoch, echo and number of a frame. Raises ProtocolFault."""
    try:
        _, epoch, echo, number = _FRAME.unpack_from(data)
    except struct.error:
        raise ProtocolFault("a frame is too short") from None
    return epoch, echo, number


def decode_messages(data: bytes) -> list[tuple[int, bytes]]:
    """Kinds and data of a frame's messages. Raises ProtocolFault."""
    found = []
    at = _FRAME.size
    size = len(data)
    while at < size:
        if at + _MESSAGE.size > size:
            raise ProtocolFault("a frame ends within a message")
        kind, length = _MESSAGE.unpack_from(data, at)
        at += _MESSAGE.size
        if at + length > size:
            raise ProtocolFault("a frame ends within a message")
        if size > _FRAME.size + LARGEST and at + length < size:
            # Small messages take many times their bytes once they are read.
            raise ProtocolFault(f"a frame of several messages has {size} bytes")
        found.append((kind, data[at : at + length]))
        at += length
    return found
