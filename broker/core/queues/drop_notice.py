"""Losses reported in band: the user property that tells a 5.0 subscriber what it did not get.

Owns the property's form, `canopy-lost` = `count;cause`, one for each cause, and its insertion into a PUBLISH that is
ready to be written. Promises: the message is otherwise the same, byte for byte, with the publisher's own user
properties first and in their order [MQTT-3.3.2-18]; no packet exceeds the client's Maximum Packet Size [MQTT-3.1.2-24]:
what does not fit is reported with a later, smaller message.

3.1.1 has no user properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.framing import frame_body, frame_end
from broker.core.codec.primitives import Reader, string, varint
from broker.core.codec.properties import USER_PROPERTY
from broker.core.codec.publish_layout import LONGEST_REMAINING, fields_end
from broker.core.counters import DROP_CAUSES
from broker.core.queues.drop_ledger import Ledger

if TYPE_CHECKING:
    from mypy_extensions import i64

NAME: Final = b"canopy-lost"

PREFIX: Final = bytes((USER_PROPERTY,)) + string(NAME)

TRIES: Final = 8
"""Messages of a batch that are tried, where the client takes only small ones."""


def tell(batch: list[bytes], ledger: Ledger, max_packet: i64) -> None:
    """Put what the client has not been told into the first PUBLISH of a batch that takes it, if there is one.

    As many causes as it takes; the others are told later.
    """
    untold = ledger.untold
    if untold is None:
        return
    sections = [each for each in [property_of(cause, count) for cause, count in enumerate(untold)] if each]
    tries = TRIES
    at: i64 = 0
    while at < len(batch):
        piece = batch[at]
        # Not in one that is sent again: the client may know it, and look at nothing of it.
        if piece[0] & 0xF8 == 0x30:
            if tries == 0:
                return
            tries -= 1
            end: i64 = frame_end(piece, 0, len(piece))
            frame = piece if end == len(piece) else piece[:end]
            count = len(sections)
            while count > 0:
                noted = with_properties(frame, b"".join(sections[:count]))
                if noted and len(noted) <= max_packet:
                    batch[at] = noted if end == len(piece) else noted + piece[end:]
                    _told(ledger, count)
                    return
                count -= 1
        at += 1


def _told(ledger: Ledger, count: int) -> None:
    """The client was told of the first `count` causes for which it has not been."""
    untold = ledger.untold
    assert untold is not None
    for cause, lost in enumerate(untold):
        if lost > 0 and count > 0:
            untold[cause] = 0
            count -= 1
    if not any(untold):
        ledger.untold = None


def property_of(cause: int, count: int) -> bytes:
    """The user property that tells of losses for one cause; empty where there are none."""
    return PREFIX + string(f"{count};{DROP_CAUSES[cause]}".encode()) if count > 0 else b""


def with_properties(frame: bytes, section: bytes) -> bytes:
    """A whole 5.0 PUBLISH with more properties behind those that it has; empty where none can be so large."""
    body: i64 = frame_body(frame, 0)
    at: i64 = fields_end(frame, body, frame[0] & 0x06)
    reader = Reader(frame, at, len(frame))
    length: i64 = reader.varint()
    start: i64 = at
    at = reader.position
    size = varint(length + len(section))
    remaining: i64 = len(frame) - body + len(size) - (at - start) + len(section)
    if remaining > LONGEST_REMAINING:
        return b""
    return b"".join(
        (frame[:1], varint(remaining), frame[body:start], size, frame[at : at + length], section, frame[at + length :])
    )
