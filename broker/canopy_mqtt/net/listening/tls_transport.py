"""TLS on one connection: a protocol for the socket's transport, and a transport for the connection above it.

A connection counts from its acceptance, because the connection above joins before the handshake. It hears when the
socket's transport is full and when it has room, so that it notices a peer that does not read as over TCP; and it gets
each read in one piece. `RECORDS` and `AT_ONCE` limit the work of one read, `Handshakes` that of handshakes.

Python's own TLS for event loops is not used: it reports a connection only after its handshake, and uvloop's allocates
256 KiB for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from mypy_extensions import i64

from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.net.listening.handshakes import Handshake, Handshakes
from canopy_mqtt.net.stream import FULL_READ, LINGER, close_half
from canopy_mqtt.net.timers import TimerWheel

RECORD: Final = 16_384
"""Bytes that one record of TLS holds at most (RFC 8446, section 5.1)."""

SLICE: Final = 32_768
"""Bytes of a read, or of a write, that OpenSSL gets in one call."""

STEP_BYTES: Final = 4_096
"""Bytes of a handshake that OpenSSL gets in one step. Few have more; and a read may hold 40,000 fragments of a byte."""

AT_ONCE: Final = 64
"""Records that OpenSSL gets in one call. It handles all of TLS's own among them in that call, and new keys, for which a
client may ask as often as it likes, take 20 µs."""

OWN_RECORD: Final = 8
"""Records as which a record counts in addition if it brought no message, and so may be TLS's own."""

RECORDS: Final = 512
"""Records of one read in one turn: a read of 256 KiB may have 11,000 of a byte each."""

HEADER: Final = 5
"""Bytes of a record's header, the last two of which are the size of the rest (RFC 8446, section 5.1)."""

OWN_BYTES: Final = 16_384
"""Bytes of TLS's own answers to a client on an open connection that reads nothing. Each request for a new handshake
(TLS 1.2) or for new keys (1.3) has an answer about as long as itself, and a read may hold 8,000 of them."""

HANDSHAKE: Final = 0
OPEN: Final = 1
# Our closing alert was sent; the transport ignores what comes.
CLOSING: Final = 2
LOST: Final = 3

NOTHING: Final = ssl.MemoryBIO()
"""The BIO of a connection on which nothing more is read or written. It stays empty."""


class TlsTransport(Handshake):
    """An `asyncio.Protocol` and an `asyncio.Transport` by its methods. Times in seconds of the loop's clock."""

    def __init__(
        self,
        upper: Any,
        secured: Callable[[TlsTransport], None],
        failed: Callable[[TlsTransport, Exception | None], None],
        context: ssl.SSLContext,
        handshakes: Handshakes,
        wheel: TimerWheel,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        origin: Origin | None = None,
    ) -> None:
        """`upper` is the protocol of the connection above; the handshake may take `timeout`. It counts for the
        address in `origin`, which is there once the connection above has begun.

        `secured` is called after the handshake, before anything is read; what it raises ends the connection. `failed`
        is called if the handshake fails, with the error of TLS, or None: it took too long.
        """
        super().__init__()
        # First what each message touches: of many quiet clients none is in the processor's cache.
        self.state = HANDSHAKE
        # Of the record of which OpenSSL has a part: bytes that are missing, or the beginning of its header.
        self._left: i64 = 0
        self._head = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # None from the end of reading and writing on: it takes 50 KB.
        self.tls: ssl.SSLObject | None = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # Its C object, if it has one: to look it up costs a tenth of a call.
        self._inner: Any = getattr(self.tls, "_sslobj", self.tls)
        self.upper: Any = upper
        # Set by connection_made.
        self.raw: asyncio.Transport
        # True while the connection above reads.
        self._reading = True
        # True if a read waits for another turn; the bytes of it, or of a handshake's read, that OpenSSL does not have.
        self._behind = False
        self._rest = b""
        # Bytes of TLS's own answers since the peer last took everything.
        self._unheard = 0
        self._secured: Callable[[TlsTransport], None] | None = secured
        self._failed: Callable[[TlsTransport, Exception | None], None] | None = failed
        self._handshakes = handshakes
        self._wheel = wheel
        self._loop = loop
        self._timeout = timeout
        self._origin = origin

    # -- what the socket's transport calls -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast(asyncio.Transport, transport)  # uvloop has its own class
        # First, so that it counts; it may not be let in at all.
        self.upper.connection_made(self)
        if self.raw.is_closing():
            return
        if self._origin is not None:
            self.host = self._origin.host
        self._handshakes.begin(self)
        self._wheel.add(self, self._loop.time() + self._timeout)

    def data_received(self, data: bytes) -> None:
        if self.state == OPEN:
            if self._behind:
                self._rest += data
                return
            size: i64 = len(data)
            whole = self._left == 0 and not self._head and size >= HEADER
            if whole and size == HEADER + (data[3] << 8 | data[4]):
                self._read_one(data)
                return
            self._read(data)
            if size >= FULL_READ and self._reading and not self.raw.is_closing():
                # There is more: uvloop would read on, up to 32 times, before it looks at any other connection.
                self.raw.pause_reading()
                self._loop.call_soon(self._listen)
        elif self.state == HANDSHAKE:
            self._rest += data
            # The broker holds one step, and a read, of an unauthenticated client at most. A handshake is read on while
            # it waits for its turn: to stop and go on are two system calls, and to have more than a step is rare.
            if len(self._rest) > STEP_BYTES:
                self.raw.pause_reading()
            self._handshakes.ready(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.upper.pause_writing()

    def resume_writing(self) -> None:
        self.upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = LOST
        self._handshakes.end(self)
        self._wheel.remove(self)
        upper = self.upper
        # No cycles: the connection above refers to this object for as long as it lives.
        self.upper = None
        self._free()
        self._secured = self._failed = None
        upper.connection_lost(exc)

    # -- the handshake -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.state != HANDSHAKE or self.raw.is_closing():
            return
        rest = self._rest
        self._incoming.write(rest if len(rest) <= STEP_BYTES else rest[:STEP_BYTES])
        self._rest = rest[STEP_BYTES:]
        try:
            self._inner.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._rest:
                self._handshakes.ready(self)
            else:
                self.raw.resume_reading()
            return
        except Exception as error:
            self._fail(error)
            return
        self._handshakes.end(self)
        self._wheel.remove(self)
        self.state = OPEN
        try:
            if self._secured is not None:
                self._secured(self)
        except Exception as error:
            self._fail(error)
            return
        self._begin()

    def _begin(self) -> None:
        """Read on after the handshake, first what the client sent after its last message of it."""
        rest = self._incoming.read() + self._rest
        self._rest = b""
        if rest and self.state == OPEN:
            # In turns: it may be a whole read of TLS's own records.
            self.data_received(rest)
        # The ticket, unless it went with an answer. Without TCP_NODELAY the client keeps its CONNECT until the last
        # message of its handshake is acknowledged, and the system takes 40 ms for that if it has nothing to send.
        if self.state == OPEN:
            self._flush()
        self._listen()

    def _fail(self, error: Exception | None) -> None:
        """Send an alert with the reason, as far as TLS does, and close."""
        self._handshakes.failed(self)
        self._wheel.remove(self)
        self.state = CLOSING
        self._rest = b""
        self._report(error)
        self._flush()
        self._free()
        # Unread bytes of the client would make the system reset the connection, and our alert would be lost.
        if close_half(self.raw):
            self._wheel.add(self, self._loop.time() + LINGER)

    def check(self, now: float) -> float:  # noqa: ARG002 (the wheel's interface)
        """Called by the wheel: the handshake has taken too long, or the client does not close after a failed one."""
        if self.state == HANDSHAKE:
            self._handshakes.end(self)
            self._report(None)
        self.raw.abort()
        return 0.0

    def check_failed(self, error: Exception) -> None:
        self._report(error)
        self.raw.abort()

    def _report(self, error: Exception | None) -> None:
        if self._failed is not None:
            self._failed(self, error)

    def evict(self) -> None:
        self.raw.abort()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read_one(self, data: bytes) -> None:
        """Read one whole record, the commonest read: nothing can follow it."""
        self._incoming.write(data)
        try:
            piece = self._inner.read(len(data))
        except ssl.SSLWantReadError:
            # One of TLS's own.
            if self._outgoing.pending > 0:
                self._answer()
            return
        except ssl.SSLError:
            piece = b""
        if piece:
            self.upper.data_received(piece)
        elif self.state == OPEN:
            self.close()

    def _read(self, data: bytes) -> None:
        """Decrypt a read, and pass it to the connection above in one piece."""
        incoming, inner = self._incoming, self._inner
        size: i64 = len(data)
        at: i64 = 0
        left: i64 = RECORDS
        # The records of the last call of OpenSSL, and the number of pieces before it.
        records: i64 = 0
        before: i64 = 0
        pieces: list[bytes] = []
        ended = False
        try:
            while True:
                # Reading when there is nothing raises, which costs as much as all the rest. A record is read whole.
                if incoming.pending == 0:
                    own: i64 = records + before - len(pieces)
                    if own > 0:
                        left -= OWN_RECORD * own
                    if at >= size or left <= 0:
                        break
                    end, records = self._cut(data, at)
                    left -= records
                    before = len(pieces)
                    incoming.write(data if end - at == size else data[at:end])
                    at = end
                try:
                    piece = inner.read(RECORD)
                except ssl.SSLWantReadError:
                    # The rest of a record has not come, or these were records of TLS's own.
                    if self._outgoing.pending > OWN_BYTES:
                        break
                    continue
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
        except ssl.SSLError:
            # Forged, or not TLS; the records before it are good.
            ended = True
        if self._outgoing.pending > 0 and not self._answer():
            return
        if at < size and not ended:
            self._rest = data[at:]
            self.raw.pause_reading()
            self._loop.call_soon(self._read_on)
            self._behind = True
        if pieces:
            self.upper.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended and self.state == OPEN:
            self.close()

    def _cut(self, data: bytes, at: i64) -> tuple[i64, i64]:
        """Return where the next piece of a read for TLS ends, and how many records begin in it. Its bytes are limited
        too, since a buffer of OpenSSL's stays as large as it once was."""
        size: i64 = len(data)
        end: i64 = min(size, at + SLICE)
        left: i64 = self._left
        records: i64 = 0
        while at < end:
            if left == 0:
                if records == AT_ONCE:
                    break
                known: i64 = len(self._head)
                if known == 0 and size - at >= HEADER:
                    left = HEADER + (data[at + 3] << 8 | data[at + 4])
                else:
                    # Reads have cut it.
                    head = self._head + data[at : at + HEADER - known]
                    if len(head) < HEADER:
                        self._head = head
                        at = size
                        break
                    self._head = b""
                    left = HEADER - known + (head[3] << 8 | head[4])
                records += 1
            step: i64 = min(left, end - at)
            at += step
            left -= step
        self._left = left
        return at, records

    def _answer(self) -> bool:
        """Send TLS's own answers. False: the peer does not read them, and the connection is over."""
        if self.raw.get_write_buffer_size() == 0:
            self._unheard = 0
        self._unheard += self._outgoing.pending
        if self._unheard > OWN_BYTES:
            self.raw.abort()
            return False
        self._flush()
        return True

    def _read_on(self) -> None:
        """Continue a read that was too much for one turn."""
        if self.state != OPEN or not self._behind or not self._reading or self.raw.is_closing():
            return
        self._behind = False
        rest, self._rest = self._rest, b""
        self._read(rest)
        self._listen()

    def _listen(self) -> None:
        """Read from the socket if nothing prevents it."""
        if not self._behind and self._reading and self.state == OPEN and not self.raw.is_closing():
            self.raw.resume_reading()

    # -- what the connection above calls -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self.state != OPEN or not data:
            return
        try:
            if len(data) <= SLICE:
                self._inner.write(data)
                self.raw.write(self._outgoing.read())
                return
            pieces: list[bytes] = []
            for at in range(0, len(data), SLICE):
                self._inner.write(data[at : at + SLICE])
                pieces.append(self._outgoing.read())
        except ssl.SSLError:
            self.raw.abort()
            return
        self.raw.write(b"".join(pieces))

    def set_protocol(self, protocol: Any) -> None:
        self.upper = protocol

    def pause_reading(self) -> None:
        self._reading = False
        if self.state == OPEN and not self.raw.is_closing():
            self.raw.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self.state == HANDSHAKE or self.state == LOST or self.raw.is_closing():
            return
        if self._behind and self.state == OPEN:
            self._loop.call_soon(self._read_on)
        else:
            self.raw.resume_reading()

    def set_write_buffer_limits(self, high: int) -> None:
        self.raw.set_write_buffer_limits(high=high)

    def get_write_buffer_size(self) -> int:
        return self.raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self.tls
        return self.raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.state == LOST or self.raw.is_closing()

    def can_write_eof(self) -> bool:
        return self.state == OPEN and self.raw.can_write_eof()

    def write_eof(self) -> None:
        """Send the closing alert, and close our half. The transport ignores what still comes."""
        self._end()
        self.raw.write_eof()

    def close(self) -> None:
        """Send what waits and the closing alert, and close."""
        if self.state == HANDSHAKE:
            self.raw.abort()
            return
        if self.state == OPEN:
            self._end()
        self.raw.close()

    def abort(self) -> None:
        self.raw.abort()

    def _end(self) -> None:
        """Send the closing alert, which tells the peer that nothing was cut off."""
        self.state = CLOSING
        # OpenSSL would wait for the peer's, which need not come.
        with contextlib.suppress(ssl.SSLError, OSError):
            if self.tls is not None:
                self.tls.unwrap()
        self._flush()
        self._free()

    def _free(self) -> None:
        """Free the memory of TLS, which else each lingering socket of a failed handshake would keep."""
        self.tls = self._inner = None
        self._incoming = self._outgoing = NOTHING

    def _flush(self) -> None:
        if self._outgoing.pending > 0:
            self.raw.write(self._outgoing.read())
