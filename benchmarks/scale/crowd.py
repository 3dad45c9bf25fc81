"""Very many connected clients that do nothing but keep themselves alive.

Owns: opening them from several source addresses, and their PINGREQ packets, spread evenly over the keep alive.

Promises: each client sends PINGREQ once every keep alive, in the order of the connects, and every PINGRESP is counted.
There is no task, thread or timer for a client: one turn of the loop sends what is due.

A client that is sent another packet, or is disconnected, is an error.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.network import links
from benchmarks.network.links import LoadError, Loop, receive
from benchmarks.network.paced import Clocked
from benchmarks.network.streams import Ledger
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, raise_file_limit

PER_ADDRESS: Final = 10_000  # clients on one source address; Linux has some 28,000 ports for each
ADDRESSES: Final = 250  # 127.0.0.2 up to 127.0.0.251
SPARE_FILES: Final = 100


def source_address(number: int) -> str:
    """The address of this machine that client ``number`` (0..2,499,999) connects from."""
    return f"127.0.0.{2 + number // PER_ADDRESS}"


def why_not(clients: int) -> str | None:
    """Why so many connections cannot be held, or None; raises the soft limit of open files as far as it may go."""
    if clients > PER_ADDRESS * ADDRESSES:
        return f"more than {PER_ADDRESS * ADDRESSES:,} clients have no address to come from"
    needed = clients + SPARE_FILES
    if raise_file_limit(needed):
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (
        f"{needed:,} open files are needed in the broker and in the generator, and the hard limit is {hard:,} "
        f"(ulimit -Hn; raise it, or ask for fewer clients)"
    )


def open_crowd(port: int, count: int, keep_alive: int) -> list[socket.socket]:
    """So many clients, connected and ready for a loop."""
    names = [f"crowd-{number}" for number in range(count)]
    socks = links.open_clients(HOST, port, names, keep_alive=keep_alive, source=source_address)
    for sock in socks:
        sock.setblocking(False)
    return socks


class Crowd(Clocked):
    """A load (see ``benchmarks.network.measure``) of PINGREQ packets; ``ledger.delivered`` counts the answers."""

    def __init__(self, loop: Loop, socks: list[socket.socket], keep_alive: int) -> None:
        super().__init__(keep_alive / len(socks))
        self.ledger = Ledger()
        self._socks = socks
        self._buffer = loop.buffer
        self._turn = 0
        self._asked = 0
        for sock in socks:
            reader: Callable[[], None] = partial(self._read, sock)
            loop.add(sock, reader)

    def start(self) -> None:
        """Go on with the next client's ping, now."""
        self._stopped = False
        super().start()

    def missing(self) -> int:
        """Pings that were not answered yet."""
        return self._asked - self.ledger.delivered

    def _send(self) -> None:
        number = self._turn
        self._turn = (number + 1) % len(self._socks)
        try:
            self._socks[number].send(frames.PINGREQ)
        except OSError as error:
            raise LoadError(f"idle client {number} cannot ping ({error})") from error
        self._asked += 1

    def _read(self, sock: socket.socket) -> None:
        size = receive(sock, self._buffer)
        if size % 2 or self._buffer[:size] != frames.PINGRESP * (size // 2):
            raise LoadError(f"the broker sent {frames.packet_name(self._buffer[0])} to an idle client")
        self.ledger.delivered += size // 2
