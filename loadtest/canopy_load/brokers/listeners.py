"""The layers below MQTT on a connection of the benchmarks: TLS 1.3 or WebSocket, at both ends.

Owns: `Listener`, a second listener of a measured broker, and the sockets that speak through it as others speak TCP.

Promises: a socket from here sends, reads and blocks as a TCP socket does. Where it has nothing for its caller, or
cannot take all of a piece, it raises one of `WANTS`, and wants the same piece again.

Refuses: to check certificates; text, control and compressed frames; masks other than zero, which brokers take off too.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

TLS: Final = "tls"
WEBSOCKET: Final = "ws"

WANTS: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""The errors that a non-blocking socket raises instead of blocking."""

HANDSHAKE_TIMEOUT: Final = 20.0  # seconds for the handshakes of all sockets that are handed over together
REQUEST: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
ACCEPTED: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
BINARY: Final = 0x82  # a whole message in one frame (RFC 6455, section 5.2)
DATA: Final = frozenset({BINARY, 0x02, 0x00, 0x80})  # and the parts of one
HEAD: Final = 14  # bytes of the longest header
READ: Final = 1 << 16


@dataclass(frozen=True)
class Listener:
    """A listener on 127.0.0.1 beside a broker's first: its kind, its port, and the PEM files that TLS shows."""

    kind: str
    port: int
    certificate: str = ""
    key: str = ""


class HandshakeError(OSError):
    """A handshake failed; the message says why in a line."""


class WebSocket(socket.socket):
    """A TCP socket whose bytes travel in binary frames. It takes the place of `plain`, which is closed by that."""

    def __init__(self, plain: socket.socket, masked: bool) -> None:
        """`masked`: this end is the client, whose frames have a mask."""
        timeout = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, plain.detach())
        self.settimeout(timeout)
        self._masked = masked
        # The frame under way, as far as it was not sent, and the size of its payload.
        self._frame = memoryview(b"")
        self._size = 0
        # Bytes that the frame which is being read still has; the beginning of a header; payload nobody has asked for.
        self._left = 0
        self._head = b""
        self._ready = b""

    def header(self, size: int) -> bytes:
        """Return the frame header of a payload of `size` bytes."""
        mask = 0x80 if self._masked else 0
        if size < 126:
            head = bytes((BINARY, mask | size))
        elif size < 1 << 16:
            head = struct.pack("!BBH", BINARY, mask | 126, size)
        else:
            head = struct.pack("!BBQ", BINARY, mask | 127, size)
        return head + bytes(4) if mask else head

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Send all of it in one frame. BlockingIOError: call again with the same bytes in front."""
        if not self._frame:
            self._size = memoryview(data).nbytes
            self._frame = memoryview(b"".join((self.header(self._size), data)))
        sent = super().send(self._frame, flags)
        self._frame = self._frame[sent:]
        if self._frame:
            raise BlockingIOError
        return self._size

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        """Send all of it in one frame, however long it takes."""
        super().sendall(b"".join((self.header(memoryview(data).nbytes), data)), flags)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Read a part of the next payload; return nothing if the other end has closed."""
        while not self._ready:
            space = memoryview(bytearray(READ))
            size = super().recv_into(space, 0, flags)
            if not size:
                return b""
            self._ready = bytes(space[: self._strip(space, size)])
        found, self._ready = self._ready[:bufsize], self._ready[bufsize:]
        return found

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Read once, and put the payload at the beginning of the buffer."""
        view = memoryview(buffer)
        if self._ready:
            found = self.recv(nbytes or len(view))
            view[: len(found)] = found
            return len(found)
        size = super().recv_into(view, nbytes, flags)
        if not size:
            return 0
        size = self._strip(view, size)
        if not size:
            raise BlockingIOError
        return size

    def _strip(self, view: memoryview, end: int) -> int:
        """Move the payload of a read to its beginning; return its size."""
        at = out = 0
        left = self._left
        while at < end:
            if not left:
                used, left = self._header_at(view, at, end)
                at += used
                continue
            size = min(left, end - at)
            if out != at:
                view[out : out + size] = view[at : at + size]
            out += size
            at += size
            left -= size
        self._left = left
        return out

    def _header_at(self, view: memoryview, at: int, end: int) -> tuple[int, int]:
        """Return the length of the header here, and the size of its payload; 0 if it is not complete."""
        known = len(self._head)
        head = self._head + bytes(view[at : min(end, at + HEAD)])
        need = 2
        if len(head) >= 2:
            if head[0] not in DATA:
                raise HandshakeError(f"the other end sent a WebSocket frame of the kind 0x{head[0]:02x}")
            size = head[1] & 0x7F
            need += (2 if size == 126 else 8 if size == 127 else 0) + (4 if head[1] & 0x80 else 0)
        if len(head) < need:
            self._head = head
            return end - at, 0
        self._head = b""
        if size == 126:
            size = head[2] << 8 | head[3]
        elif size == 127:
            (size,) = struct.unpack_from("!Q", head, 2)
        return need - known, size


def client_context() -> ssl.SSLContext:
    """Make the context of clients: TLS 1.3, whatever certificate the broker shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_handshakes(listener: Listener, socks: Sequence[socket.socket]) -> list[socket.socket]:
    """Make the handshakes of connected, blocking sockets side by side; return the blocking sockets that take their
    places.

    Raises:
        OSError: one of them was not let through. All are closed then.
    """
    made: list[socket.socket] = []
    try:
        if listener.kind == WEBSOCKET:
            made += [WebSocket(sock, True) for sock in socks]
            for sock in made:
                socket.socket.sendall(sock, REQUEST)
            for sock in made:
                _read_head(sock, b"HTTP/1.1 101 ")
            return made
        context = client_context()
        secured = [context.wrap_socket(sock, do_handshake_on_connect=False) for sock in socks]
        made += secured
        _shake_hands(secured)
    except BaseException:
        for sock in (*socks, *made):
            sock.close()
        raise
    return made


def server_handshake(listener: Listener, sock: socket.socket) -> socket.socket:
    """Make the handshake of an accepted, blocking socket; return the socket that takes its place. OSError: it
    failed."""
    if listener.kind == WEBSOCKET:
        web = WebSocket(sock, False)
        _read_head(web, b"GET ")
        socket.socket.sendall(web, ACCEPTED)
        return web
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(listener.certificate, listener.key)
    return context.wrap_socket(sock, server_side=True)


def _read_head(sock: socket.socket, begin: bytes) -> None:
    """Read a request or an answer of HTTP, and not a byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        more = socket.socket.recv(sock, 1)
        if not more:
            break
        head += more
    if not head.startswith(begin):
        raise HandshakeError(f"the other end does not speak WebSocket: {head[:40]!r}")


def _shake_hands(socks: Sequence[ssl.SSLSocket]) -> None:
    """Make the handshakes of all, side by side."""
    poller = select.poll()
    waiting: dict[int, ssl.SSLSocket] = {}
    timeouts = [sock.gettimeout() for sock in socks]
    for sock in socks:
        sock.setblocking(False)
        # A quick broker may have answered by now, and then says nothing more until it is told something.
        if not _step(sock):
            waiting[sock.fileno()] = sock
            poller.register(sock.fileno(), select.POLLIN)
    while waiting:
        ready = poller.poll(HANDSHAKE_TIMEOUT * 1e3)
        if not ready:
            raise TimeoutError(f"{len(waiting)} handshakes were not over in time")
        for number, _ in ready:
            if _step(waiting[number]):
                poller.unregister(number)
                del waiting[number]
    for sock, timeout in zip(socks, timeouts, strict=True):
        sock.settimeout(timeout)


def _step(sock: ssl.SSLSocket) -> bool:
    """Make one step of a handshake; return True if it is through."""
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
