"""The mark by which the generator recognises each message: its run, stream, number and intended time of sending.

Owns: the layout of the mark, its form in text, and the filler behind it. Compiled, like everything on the way of a
message.

    bytes 0..1   run        1..32,767, so that messages of an earlier run are foreign
    bytes 2..7   time       microseconds of the system's monotonic clock; 0: unknown (a will)
    bytes 8..11  stream     one publisher's one topic, counted through the whole scenario
    bytes 12..15 sequence   counts up from 0 in each stream

Promises: reading never fails, it answers whether there is a mark of this run.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

SIZE: Final = 16
MAX_FILLERS: Final = 64_000_000
"""Bytes of filler that are kept, of all sizes together."""
TEXT: Final = b"mark:"
TEXT_SIZE: Final = 37

_TWO: Final = struct.Struct(">QQ")
_PERIOD: Final = bytes(range(97, 123)) + bytes(range(48, 58)) + b"\n"


class Mark:
    """The mark read last; one object serves for any number of payloads.

    The filler behind a mark says the payload's size, last digit first, and goes on in one endless pattern, so that a
    payload that was changed or cut short is noticed. In a template the mark stands as "mark:" and 32 hexadecimal
    digits. The run's second byte is above 127 and its first is not (``run_number``): no text in UTF-8 begins like that,
    and none is taken for a mark of the other form.
    """

    def __init__(self, run: int) -> None:
        self.run: i64 = run
        self.time: i64 = 0
        self.stream: i64 = 0
        self.sequence: i64 = 0
        self.end: i64 = 0
        """The end of the mark in the payload that was read."""

    def read(self, payload: bytes) -> bool:
        """Read the mark of a payload; False when it has none, or another run's."""
        if len(payload) < SIZE:
            return False
        if (payload[0] << 8 | payload[1]) == self.run:
            self.time = (
                payload[2] << 40 | payload[3] << 32 | payload[4] << 24 | payload[5] << 16 | payload[6] << 8 | payload[7]
            )
            self.stream = payload[8] << 24 | payload[9] << 16 | payload[10] << 8 | payload[11]
            self.sequence = payload[12] << 24 | payload[13] << 16 | payload[14] << 8 | payload[15]
            self.end = SIZE
            return True
        return self._read_text(payload)

    def _read_text(self, payload: bytes) -> bool:
        # The template may say "mark:" itself.
        at = payload.find(TEXT)
        while at >= 0 and at + TEXT_SIZE <= len(payload):
            try:
                raw = bytes.fromhex(payload[at + 5 : at + TEXT_SIZE].decode("ascii"))
            except ValueError:
                raw = b""
            if len(raw) == SIZE and (raw[0] << 8 | raw[1]) == self.run and self.read(raw):
                self.end = 0
                return True
            at = payload.find(TEXT, at + 1)
        return False


def run_number(identifier: str) -> int:
    """Return the number in the marks of a run whose identifier is 8 hexadecimal digits."""
    return int(identifier, 16) & 0x7F7F | 0x80


def pack(run: int, time: int, stream: int, sequence: int) -> bytes:
    """The 16 bytes of a mark; `time` in microseconds of the monotonic clock."""
    return _TWO.pack(run << 48 | time, stream << 32 | sequence)


def pack_text(run: int, time: int, stream: int, sequence: int) -> bytes:
    """Return the mark in its form for templates."""
    return TEXT + pack(run, time, stream, sequence).hex().encode()


_fillers: Final[dict[int, bytes]] = {}
_kept = 0


def filler(size: int) -> bytes:
    """The bytes behind the mark of a payload of `size` bytes."""
    found = _fillers.get(size)
    if found is None:
        length = max(size - SIZE, 0)
        said = str(size)[::-1].encode() + b" "
        found = (said + _PERIOD * (length // len(_PERIOD) + 1))[:length]
        global _kept
        if _kept + length <= MAX_FILLERS and len(_fillers) < 65_536:
            _fillers[size] = found
            _kept += length
    return found
