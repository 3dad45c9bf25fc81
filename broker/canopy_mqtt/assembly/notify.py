"""Tells systemd the state of the process: ready, reloading, stopping, alive (sd_notify(3)).

Owns the datagrams to `NOTIFY_SOCKET`. Promises: without that variable nothing is sent; a receiver that is slow or gone
neither blocks nor ends the broker. The event loop feeds the watchdog: a loop that hangs does not.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_USEC: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"

MAX_STATUS_LENGTH: Final = 1_024
"""Characters of a status, which `systemctl status` shows in one line."""

WATCHDOG_SHARE: Final = 0.5
"""The part of the watchdog's time after which it is fed, as sd_watchdog_enabled(3) recommends."""


class Supervisor:
    """The supervisor that receives notifications, such as systemd; often there is none."""

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        """`address`: of the datagram socket, a path or @ and an abstract name; empty: there is none.

        `watchdog`: seconds after which a silent process is restarted. 0: never.
        """
        # An abstract address has a null byte in place of the @; vsock: and other forms are for virtual machines.
        self._address = "\0" + address[1:] if address.startswith("@") else address if address.startswith("/") else ""
        self._watchdog = watchdog
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Supervisor:
        spelt = environ.get(WATCHDOG_USEC, "")
        mine = environ.get(WATCHDOG_PID, str(os.getpid())) == str(os.getpid())
        watchdog = int(spelt) / 1e6 if mine and spelt.isascii() and spelt.isdigit() else 0.0
        return cls(environ.get(NOTIFY_SOCKET, ""), watchdog)

    def ready(self, status: str) -> None:
        """Report that the broker serves; also after `reloading`. The event loop feeds the watchdog from now on."""
        self._send("READY=1", f"STATUS={_one_line(status)}")
        if self._timer is None and self._address and self._watchdog > 0.0:
            self._feed()

    def reloading(self) -> None:
        """Report that the settings are being reloaded; `ready` reports the end."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}", "STATUS=reading the settings again")

    def stopping(self) -> None:
        """Report that the broker is stopping. The watchdog is fed until `close`."""
        self._send("STOPPING=1", "STATUS=stopping: the queues of its clients drain")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _feed(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._watchdog * WATCHDOG_SHARE, self._feed)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            # The supervisor has gone, or does not read: the broker serves all the same.
            pass


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_STATUS_LENGTH]
