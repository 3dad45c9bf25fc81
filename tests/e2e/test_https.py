"""TLS handshakes of clients in another process at a broker that listens with https."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from canopy_load.brokers.process import free_port
from tests.support.certificates import Authority
from tests.support.daemon import Daemon

AT_ONCE: Final = 25
"""Connections that wait for the broker together."""

REQUEST: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[tuple[Daemon, int, ssl.SSLContext]]:
    """A broker with https, its port, and the context of a client that trusts it."""
    authority, port = Authority(folder), free_port()
    certificate, key = authority.issue("localhost")
    settings = folder / "canopy.toml"
    settings.write_text(
        f'[http]\nlisten = ["https://127.0.0.1:{port}"]\ncertificate = "{certificate}"\nkey = "{key}"\ntimeout = 5.0\n'
    )
    with Daemon("--config", str(settings)) as daemon:
        yield daemon, port, ssl.create_default_context(cafile=authority.file)


class Client:
    """A client that sends its ClientHello with the connection."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.socket = socket.create_connection(("127.0.0.1", port), 20.0)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.socket.sendall(self.outgoing.read())

    def answer(self) -> bytes:
        """Read the broker's answer to a request up to the end of the connection; empty: the handshake failed."""
        got, asked = b"", False
        while data := self.socket.recv(65_536):
            self.incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                if not asked:
                    self.tls.do_handshake()
                    asked = True
                    self.tls.write(REQUEST)
                while piece := self.tls.read(65_536):
                    got += piece
            if self.outgoing.pending:
                with contextlib.suppress(ConnectionError):
                    self.socket.sendall(self.outgoing.read())
        self.socket.close()
        return got


def answered(daemon: Daemon, port: int, context: ssl.SSLContext) -> int:
    """How many clients of some get an answer whose ClientHellos are there before the broker accepts them."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        clients = [Client(port, context) for _ in range(AT_ONCE)]
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    return sum(client.answer().endswith(b"ok\n") for client in clients)


def test_a_client_hello_may_come_with_the_connection(tmp_path: Path) -> None:
    with listening(tmp_path) as (daemon, port, context):
        assert sum(answered(daemon, port, context) for _ in range(4)) == 4 * AT_ONCE
