"""The addresses of `[http]`: the supervisor accepts connections there, and one worker has all of them.

It is always the same worker while that serves, so that limits, streams and wrong passwords are counted at one place, by
the code of a broker of one process; if it ends, or does not answer, the next one has the connections that come then.
TLS, authentication and answers are there (`http_server`): here no byte is read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from canopy_mqtt.settings import Http
from canopy_mqtt.workers.acceptor import Acceptor, Address
from canopy_mqtt.workers.wire import Channel

UNSENT: Final = 16
"""Connections that are on their way at a time; others wait in the system. Clients' go the same way."""


class HttpDoor(Acceptor):
    """The listening sockets of `[http]`."""

    def __init__(self, settings: Http, log: Any, worker: Callable[[], Channel | None]) -> None:
        """`worker` returns the way to the worker that answers; None: there is none, and a connection is closed."""
        self.addresses = [Address(each, settings.socket_mode) for each in settings.endpoints]
        super().__init__(self.addresses, log, self._pass_on)
        self._guarded = settings.guarded
        self._worker = worker
        self._unsent = 0

    def open(self) -> None:
        super().open()
        if self.addresses:
            self._log.info("http listens", urls=self.urls, guarded=self._guarded)

    def _pass_on(self, number: int, sock: socket.socket, host: str) -> None:
        del host
        channel = self._worker()
        if channel is None:
            sock.close()
            return
        self._unsent += 1
        if self._unsent >= UNSENT:
            self.rest()
        channel.send("http", number, sock=sock, then=lambda: self._sent(sock))

    def _sent(self, sock: socket.socket) -> None:
        """The worker has it, or it is lost with its worker."""
        sock.close()
        self._unsent -= 1
        self.resume()
