"""TLS on one connection: a protocol for the socket's transport, and a transport for the connection above it.

A connection counts from its acceptance, because the connection above joins before the handshake. What the socket's
transport says about its room is passed on, so that a peer that does not read is noticed as over TCP; and each read is
passed on in one piece. `RECORDS` and `AT_ONCE` limit the work of one read, `Handshakes` that of handshakes.

Python's own TLS for event loops is not used: it reports a connection only after its handshake, and uvloop's allocates
256 KiB for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from mypy_extensions import i64

from broker.net.listening.handshakes import Handshake, Handshakes
from broker.net.scheduling.timers import Wheel
from broker.net.stream import FULL_READ, LINGER

RECORD: Final = 16_384
"""Bytes that one record of TLS holds at most (RFC 8446, section 5.1)."""

SLICE: Final = 32_768
"""Bytes of a read that TLS is given at a time, and of a write."""

STEP_BYTES: Final = 4_096
"""Bytes of a handshake that TLS is given in one step. Few have more; and a read may hold 40,000 fragments of a byte."""

AT_ONCE: Final = 64
"""Records that TLS is given at a time. It works off in one call whatever of them is its own, and new keys, which a
client may have us make as often as it likes, take 20 µs."""

OWN_RECORD: Final = 8
"""Records for which one counts besides that brought no message, and may be TLS's own."""

RECORDS: Final = 512
"""Records of one read that are taken in one turn: a read of 256 KiB may have 11,000 of a byte each."""

HEADER: Final = 5
"""Bytes of a record's header, the last two of which are the size of the rest (RFC 8446, section 5.1)."""

OWN_BYTES: Final = 16_384
"""Bytes that a client may have TLS itself answer on an open connection while it takes nothing. Each request for a new
handshake (TLS 1.2) or for new keys (1.3) has an answer about as long as itself, and a read may hold 8,000 of them."""

HANDSHAKE: Final = 0
OPEN: Final = 1
# We have said that nothing more comes from us; what comes is not looked at.
CLOSING: Final = 2
LOST: Final = 3

NOTHING: Final = ssl.MemoryBIO()
"""Stands for both BIOs of a connection on which nothing more is read or written. It stays empty."""


class TlsTransport(Handshake):
    """An `asyncio.Protocol` and an `asyncio.Transport` by its methods. Times in seconds of the loop's clock."""

    def __init__(
        self,
        upper: Any,
        secured: Callable[[TlsTransport], None],
        failed: Callable[[TlsTransport, Exception | None], None],
        context: ssl.SSLContext,
        handshakes: Handshakes,
        wheel: Wheel,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
    ) -> None:
        """`upper` is the protocol of the connection above; the handshake may take `timeout`.

        `secured` is called when the handshake is through, before anything is read; what it raises ends the connection.
        `failed` is called when it came to nothing, with what TLS says of it, or None: it took too long.
        """
        super().__init__()
        # What each message passes stands side by side: of many quiet clients none is in the processor's cache.
        self.state = HANDSHAKE
        # Of the record that TLS has been given a part of: bytes that it still has, or the beginning of its header.
        self._left: i64 = 0
        self._head = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # None as soon as nothing more is read or written: it takes 50 KB.
        self.tls: ssl.SSLObject | None = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # The C object behind it, where it is known: the way there costs a tenth of a call.
        self._inner: Any = getattr(self.tls, "_sslobj", self.tls)
        self.upper: Any = upper
        # Set by connection_made.
        self.raw: asyncio.Transport
        # Whether the connection above wants to be read for.
        self._reading = True
        # A read waits for another turn; what of it, or of a handshake's, TLS has not been given yet.
        self._behind = False
        self._rest = b""
        # Bytes that TLS itself has answered since the peer has last taken everything.
        self._unheard = 0
        self._secured: Callable[[TlsTransport], None] | None = secured
        self._failed: Callable[[TlsTransport, Exception | None], None] | None = failed
        self._handshakes = handshakes
        self._wheel = wheel
        self._loop = loop
        self._timeout = timeout

    # -- what the socket's transport calls -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast(asyncio.Transport, transport)  # uvloop has its own class
        # First, so that it counts; it may not be let in at all.
        self.upper.connection_made(self)
        if self.raw.is_closing():
            return
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
            self._rest = data
            # Nothing more until its turn: what an unauthenticated client can have us hold is one read.
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
            # In TLS 1.3 the client has all it needs: its ticket goes with the first packet that it is sent.
            if self._inner.version() != "TLSv1.3":
                self._flush()
            if self._secured is not None:
                self._secured(self)
        except Exception as error:
            self._fail(error)
            return
        self._begin()

    def _begin(self) -> None:
        """The handshake is through: read on, and first what the client has sent behind its last word of it."""
        rest = self._incoming.read() + self._rest
        self._rest = b""
        if rest and self.state == OPEN:
            # Not in one call: it may be a whole read of TLS's own records.
            self._read(rest)
        self._listen()

    def _fail(self, error: Exception | None) -> None:
        """Say why in an alert, as far as TLS does, and close."""
        self._handshakes.failed(self)
        self._wheel.remove(self)
        self.state = CLOSING
        self._rest = b""
        failed = self._failed
        if failed is not None:
            failed(self, error)
        self._flush()
        self._free()
        if not self.raw.can_write_eof():
            self.raw.close()
            return
        # What the client has sent meanwhile would have the system reset the connection, and our alert be lost.
        try:
            self.raw.write_eof()
        except OSError:
            # The client has reset it; only asyncio's own loop tells.
            self.raw.abort()
            return
        self.raw.resume_reading()
        self._wheel.add(self, self._loop.time() + LINGER)

    def check(self, now: float) -> float:  # noqa: ARG002 (the wheel's interface)
        """Called by the wheel: the handshake has taken too long, or the client does not close after a failed one."""
        if self.state == HANDSHAKE:
            self._handshakes.end(self)
            if self._failed is not None:
                self._failed(self, None)
        self.raw.abort()
        return 0.0

    def check_failed(self, error: Exception) -> None:
        failed = self._failed
        if failed is not None:
            failed(self, error)
        self.raw.abort()

    def evict(self) -> None:
        self.raw.abort()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read_one(self, data: bytes) -> None:
        """The same for one whole record, the commonest read: nothing can be behind it, and nothing has to be asked."""
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
            self._end()
            self.raw.close()

    def _read(self, data: bytes) -> None:
        """Hand what has come to the connection above, as one piece."""
        incoming, inner = self._incoming, self._inner
        size: i64 = len(data)
        at: i64 = 0
        left: i64 = RECORDS
        # What TLS was given last: records, and the pieces that there were before.
        records: i64 = 0
        before: i64 = 0
        pieces: list[bytes] = []
        ended = False
        try:
            while True:
                # Asking when there is nothing raises, which costs as much as all the rest. A record is read whole.
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
            # Forged, or no TLS any more; what came before it is good.
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
            self._end()
            self.raw.close()

    def _cut(self, data: bytes, at: i64) -> tuple[i64, i64]:
        """What TLS is given next of a read: its end, and how many records begin in it. A buffer of OpenSSL's stays as
        large as it once was: so many bytes at most, too."""
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
        """Send what TLS itself answers. False: that is too much for a peer that does not take it; it is over."""
        if self.raw.get_write_buffer_size() == 0:
            self._unheard = 0
        self._unheard += self._outgoing.pending
        if self._unheard > OWN_BYTES:
            self.raw.abort()
            return False
        self._flush()
        return True

    def _read_on(self) -> None:
        """The rest of a read that has been too much for one turn."""
        if self.state != OPEN or not self._behind or not self._reading or self.raw.is_closing():
            return
        self._behind = False
        rest, self._rest = self._rest, b""
        self._read(rest)
        self._listen()

    def _listen(self) -> None:
        """Read from the socket, as far as nothing speaks against it."""
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

    def writelines(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def set_protocol(self, protocol: Any) -> None:
        """Hand what comes to another protocol from now on, as any transport does."""
        self.upper = protocol

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
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
        """From how many bytes on that wait the connection above is to stop writing."""
        self.raw.set_write_buffer_limits(high=high)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent."""
        return self.raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self.tls
        if name == "sslcontext" and self.tls is not None:
            return self.tls.context
        return self.raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether the connection is over, or about to be."""
        return self.state == LOST or self.raw.is_closing()

    def can_write_eof(self) -> bool:
        return self.state == OPEN and self.raw.can_write_eof()

    def write_eof(self) -> None:
        """Say that nothing more comes, and close our half. What still comes is not looked at."""
        self._end()
        self.raw.write_eof()

    def close(self) -> None:
        """Say that nothing more comes, send what waits, and close."""
        if self.state == HANDSHAKE:
            self.raw.abort()
            return
        if self.state == OPEN:
            self._end()
        self.raw.close()

    def abort(self) -> None:
        """Close the socket at once; what was not sent is lost."""
        self.raw.abort()

    # ------------------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """TLS's own last word, so that the peer knows that nobody has cut something off."""
        self.state = CLOSING
        # It wants to wait for the peer's; nobody does.
        with contextlib.suppress(ssl.SSLError, OSError):
            if self.tls is not None:
                self.tls.unwrap()
        self._flush()
        self._free()

    def _free(self) -> None:
        """Give the memory of TLS back: of very many failed handshakes, a lingering socket each would keep it."""
        self.tls = self._inner = None
        self._incoming = self._outgoing = NOTHING

    def _flush(self) -> None:
        if self._outgoing.pending > 0:
            self.raw.write(self._outgoing.read())
