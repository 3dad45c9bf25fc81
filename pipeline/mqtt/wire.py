"""The bytes of one connection: a socket, TLS, and what waits to be written.

Owns: one socket that never blocks. Nothing happens between two calls, and no thread runs.

Promises: ``write`` keeps what the socket does not take; ``exchange`` reads at most `MOST` bytes and writes what it can.
A closed or broken connection is an ``OSError`` with the reason.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Final

MOST: Final = 1 << 18
"""Bytes of one read: what a socket's buffer holds, so that a fast broker costs few calls."""


class Wire:
    """Connects at once, in at most `timeout` seconds, TLS included.

    Raises:
        OSError: there is nobody, or TLS fails (``ssl.SSLError``).
    """

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None) -> None:
        made = socket.create_connection((host, port), timeout)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = made if tls is None else tls.wrap_socket(made, server_hostname=host)
            self._socket.setblocking(False)
        except BaseException:
            made.close()
            raise
        self._tls = self._socket if isinstance(self._socket, ssl.SSLSocket) else None
        self._out = bytearray()

    @property
    def unwritten(self) -> int:
        """Bytes that wait to be written."""
        return len(self._out)

    def write(self, data: bytes) -> None:
        """Write, or keep what cannot be written now. A failure shows at the next ``exchange``."""
        self._out += data

    def exchange(self, timeout: float) -> bytes:
        """Write what waits, and give what has come; empty when nothing came within `timeout` seconds.

        Raises:
            OSError: the connection is over.
        """
        self.flush()
        if self._tls is None or not self._tls.pending():
            ready = select.poll()
            ready.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
            found = ready.poll(max(timeout, 0) * 1000)
            if not found:
                return b""
            if found[0][1] & select.POLLOUT:
                self.flush()
            if not found[0][1] & ~select.POLLOUT:
                return b""
        try:
            data = self._socket.recv(MOST)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        if not data:
            raise ConnectionResetError("closed by the broker")
        return data

    def flush(self) -> None:
        """Write what the socket takes now.

        Raises:
            OSError: the connection is over.
        """
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def close(self) -> None:
        """At once."""
        self._socket.close()
