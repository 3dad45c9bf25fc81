"""WebSocket frames (RFC 6455 section 5): unmasks what a client sends, and adds headers to what it is sent.

Owns `FrameReader`. Sans-IO: reads in, the payload of binary frames out, whatever their division [MQTT-6.0.0-2].

Promises: it does not wait for complete data frames, so a frame, or a message of any number of fragments, costs at most
the bytes of one read. It keeps only an incomplete frame header (14 bytes) and an incomplete control frame (125 bytes).
One call processes a limited number of frames, whatever a read contains.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64

MAX_CONTROL_BYTES: Final = 125
"""Bytes of a control frame's payload (section 5.5)."""

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

# Close codes (section 7.4.1).
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
NO_STATUS: Final = 1005
"""Stands for a close frame without a code, and is never sent."""
POLICY_VIOLATION: Final = 1008
TOO_LARGE: Final = 1009
INTERNAL_ERROR: Final = 1011

_RESERVED_CODES: Final = (1004, 1005, 1006, 1015)
_WHOLE: Final = 0x80 | BINARY
"""The first byte of a binary frame that is a message by itself."""
_HEAD: Final = 14
"""Bytes of the longest header of a client's frame."""
_COMPILED: Final = not __file__.endswith(".py")


def unmask(data: bytes, start: i64, end: i64, mask: i64) -> bytes:
    """Return the bytes from `start` to `end`, which must be within the data, each XOR the next byte of `mask`.

    `mask`: the four bytes of section 5.3 as a little-endian integer.
    """
    if not _COMPILED:
        # One exclusive or: a loop takes ten times as long where nothing is compiled.
        size = int(end - start)
        repeated = (int(mask).to_bytes(4, "little") * (size // 4 + 1))[:size]
        return (int.from_bytes(data[start:end], "little") ^ int.from_bytes(repeated, "little")).to_bytes(size, "little")
    # Eight bytes at a time, on native integers: a seventh of what two large integers of Python's cost.
    out = BytesWriter()
    pattern: i64 = mask | (mask << 32)
    at: i64 = start
    while end - at >= 8:
        write_i64_le(out, read_i64_le(data, at) ^ pattern)
        at += 8
    while at < end:
        out.append(data[at] ^ (pattern & 0xFF))
        pattern >>= 8
        at += 1
    return out.getvalue()


def _mask_at(data: bytes, at: i64) -> i64:
    """Return four bytes as a little-endian integer."""
    return data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)


_SHORT: Final = tuple(bytes([0x80 | BINARY, size]) for size in range(MAX_CONTROL_BYTES + 1))
"""The headers of short binary frames."""


def header(opcode: i64, size: i64) -> bytes:
    """Return the header of a server's frame with `size` bytes: whole, and not masked."""
    if size <= MAX_CONTROL_BYTES:
        return _SHORT[size] if opcode == BINARY else bytes([0x80 | opcode, size])
    if size < 65_536:
        return struct.pack("!BBH", 0x80 | opcode, 126, size)
    return struct.pack("!BBQ", 0x80 | opcode, 127, size)


def close_frame(code: int, text: str = "") -> bytes:
    """Return a close frame; the text is cut to the room for it."""
    payload = struct.pack("!H", code) + text.encode()[: MAX_CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return header(CLOSE, len(payload)) + payload


class FrameReader:
    """The frames of one client. After each `read`, look at `error`, `close_code` and `ping`, in this order."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of one frame; 0: no limit. The owner may change it."""
        self.limit: i64 = limit
        # The code of our close frame, and the reason as a clause; 0: there was no fault.
        self.error = 0
        self.error_text = ""
        # The code of the client's close frame; 0: there was none.
        self.close_code = 0
        # The payload of the latest PING without an answer; None: there is none.
        self.ping: bytes | None = None
        # Frames of the last call.
        self.frames: i64 = 0
        # An incomplete header; the missing bytes of the frame's payload, and their mask.
        self._head = b""
        self._left: i64 = 0
        self._mask: i64 = 0
        self._opcode: i64 = CONTINUATION
        # True from the first fragment of a message to its last one.
        self._in_message = False
        # The payload of an incomplete control frame.
        self._control = b""

    @property
    def over(self) -> bool:
        """True if further bytes are ignored: a frame was invalid, or the client has closed."""
        return self.error != 0 or self.close_code != 0

    def read(self, data: bytes, start: i64, most: i64, parts: list[bytes]) -> i64:
        """Act on at most `most` frames of a read from `start` on; append the payload of binary ones to `parts`.

        Returns where the next call has to begin; the end of the data if the connection is `over`.
        """
        size: i64 = len(data)
        at: i64 = start
        self.frames = 0
        while at < size:
            if data[at] == _WHOLE and self._left == 0 and not self._head and not self._in_message and size - at > 6:
                # Nearly all frames: a short message in one piece.
                length: i64 = data[at + 1] - 0x80
                end: i64 = at + 6 + length
                if 0 < length <= MAX_CONTROL_BYTES and end <= size and (self.limit == 0 or length <= self.limit):
                    if self.frames >= most:
                        return at
                    self.frames += 1
                    parts.append(unmask(data, at + 6, end, _mask_at(data, at + 2)))
                    at = end
                    continue
            if self._left > 0:
                at = self._payload(data, at, size, parts)
                if self._left > 0:
                    break
                if self._opcode >= CLOSE:
                    self._act()
                    if self.close_code != 0 or self.error != 0:
                        return size
                continue
            if self.frames >= most:
                return at
            self.frames += 1
            at = self._header(data, at, size)
            if self.error != 0:
                return size
            if self._left == 0 and self._opcode >= CLOSE and len(self._head) == 0:
                self._act()
                if self.close_code != 0 or self.error != 0:
                    return size
        return at

    def _payload(self, data: bytes, at: i64, size: i64, parts: list[bytes]) -> i64:
        end: i64 = at + self._left
        if end > size:
            end = size
        count: i64 = end - at
        plain = unmask(data, at, end, self._mask)
        if self._opcode >= CLOSE:
            self._control += plain
        else:
            parts.append(plain)
        self._left -= count
        if self._left > 0:
            turn: i64 = 8 * (count & 3)
            self._mask = (self._mask >> turn) | ((self._mask << (32 - turn)) & 0xFFFFFFFF)
        return end

    def _header(self, data: bytes, at: i64, size: i64) -> i64:
        """Read the next frame's header. An incomplete one is kept: then `_head` is not empty."""
        held: i64 = len(self._head)
        if held > 0:
            # Reads have cut it, which is rare.
            head = self._head + data[at : at + _HEAD - held]
            end = self._parse(head, 0, len(head))
            if end == 0:
                if self.error == 0:
                    self._head = head
                return size
            self._head = b""
            return at + end - held
        end = self._parse(data, at, size)
        if end == 0:
            if self.error == 0:
                self._head = data[at:]
            return size
        return end

    def _parse(self, data: bytes, at: i64, size: i64) -> i64:
        """Take the header that begins at `at`. Returns where the payload begins; 0: it is not complete, or has a fault,
        which is found in its first two bytes where they show it.
        """
        if size - at < 2:
            return 0
        first: i64 = data[at]
        second: i64 = data[at + 1]
        opcode = first & 0x0F
        length: i64 = second & 0x7F
        if first & 0x70 != 0:
            return self._fail(PROTOCOL_ERROR, "a frame of an extension that was not agreed on")
        if second & 0x80 == 0:
            return self._fail(PROTOCOL_ERROR, "a frame that is not masked")
        if opcode >= CLOSE:
            if opcode > PONG:
                return self._fail(PROTOCOL_ERROR, "a frame of an unknown kind")
            if first & 0x80 == 0 or length > MAX_CONTROL_BYTES:
                return self._fail(PROTOCOL_ERROR, "a control frame in fragments, or longer than 125 bytes")
        elif opcode == TEXT:
            # A data frame other than a binary one closes the connection [MQTT-6.0.0-1].
            return self._fail(UNSUPPORTED_DATA, "a text frame; MQTT travels in binary frames")
        elif opcode > BINARY:
            return self._fail(PROTOCOL_ERROR, "a frame of an unknown kind")
        elif self._in_message != (opcode == CONTINUATION):
            return self._fail(PROTOCOL_ERROR, "a fragment without its message, or a message within another")
        at += 2
        if length == 126:
            if size - at < 2:
                return 0
            length = (data[at] << 8) | data[at + 1]
            at += 2
            if length < 126:
                return self._fail(PROTOCOL_ERROR, "a length in more bytes than it needs")
        elif length == 127:
            if size - at < 8:
                return 0
            if data[at] & 0x80 != 0:
                return self._fail(PROTOCOL_ERROR, "a length of more than 63 bits")
            length = int.from_bytes(data[at : at + 8], "big")
            at += 8
            if length < 65_536:
                return self._fail(PROTOCOL_ERROR, "a length in more bytes than it needs")
        if self.limit > 0 and length > self.limit:
            return self._fail(TOO_LARGE, f"a frame of {length} bytes; at most {self.limit} are taken here")
        if size - at < 4:
            return 0
        self._mask = _mask_at(data, at)
        self._left = length
        self._opcode = opcode
        if opcode < CLOSE:
            self._in_message = first & 0x80 == 0
        return at + 4

    def _act(self) -> None:
        payload = self._control
        self._control = b""
        opcode = self._opcode
        # Of several PINGs, only the latest needs an answer (section 5.5.3); a PONG without a PING is ignored.
        if opcode == PING:
            self.ping = payload
        elif opcode == CLOSE:
            self._closed(payload)

    def _closed(self, payload: bytes) -> None:
        if not payload:
            self.close_code = NO_STATUS
            return
        code = int.from_bytes(payload[:2], "big")
        allowed = 3000 <= code < 5000 or (1000 <= code < 1015 and code not in _RESERVED_CODES)
        if len(payload) < 2 or not allowed:
            self._fail(PROTOCOL_ERROR, "a close frame without a valid code")
            return
        try:
            payload[2:].decode()
        except UnicodeDecodeError:
            self._fail(PROTOCOL_ERROR, "a close frame whose reason is no text")
            return
        self.close_code = code

    def _fail(self, code: int, text: str) -> i64:
        self.error = code
        self.error_text = text
        return 0
