"""Connections on their way to the workers: a line for each worker, in which they wait while it is away.

Owns their sockets until the worker has said that it has them. Promises: what waits in a line is bounded, in number,
bytes and time, and each has a part that no other line can take; beyond, the oldest client of the address that has most,
or the new one, is told that the server is unavailable (0x88). A connection that a worker had not taken when it ended
goes to the next process of that worker, with all that was read of it, and no connection goes to two.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from canopy_mqtt.core.codec.packets import CONNECT, V5
from canopy_mqtt.core.principal import network
from canopy_mqtt.net.websocket.frames import BINARY, header
from canopy_mqtt.workers.by_address import ByAddress
from canopy_mqtt.workers.first_packet import IncompleteError, length_at
from canopy_mqtt.workers.wire import ANY, Arrival, Channel

UNTAKEN: Final = 64
"""Connections that are on their way to a worker at a time. The rest stays here: the kernel passes on few more, and
those it holds are lost with the worker."""

MAX_BYTES: Final = 67_108_864
"""Bytes that were read of the connections that wait in all lines."""

SMALL: Final = 4_096
"""Bytes that were read of a connection which count as none: in bytes, it always fits."""

MAX_WAIT: Final = 60.0
"""Seconds that a connection waits where no time limit is set for its CONNECT."""

UNAVAILABLE_V5: Final = b"\x20\x03\x00\x88\x00"
UNAVAILABLE_V3: Final = b"\x20\x02\x00\x03"
"""CONNACK: server unavailable (section 3.2.2.2; 3.1.1 section 3.2.2.3)."""


class Newcomer(NamedTuple):
    """A connection on its way. `host`: its client's IP address, "": it has none, None: no client comes with it, since
    what it says of its proxy is wrong."""

    arrival: Arrival
    sock: socket.socket
    host: str | None = ""


def unavailable(version: int, upgraded: bool) -> bytes:
    """Return what tells a client that the server is unavailable; nothing if its protocol level, 0, is not known."""
    if not version:
        return b""
    answer = UNAVAILABLE_V5 if version == V5 else UNAVAILABLE_V3
    return header(BINARY, len(answer)) + answer if upgraded else answer


def refuse(newcomer: Newcomer) -> None:
    """Tell a client that the server is unavailable, and close its connection."""
    if answer := unavailable(newcomer.arrival.version, newcomer.arrival.upgraded):
        with contextlib.suppress(OSError):
            newcomer.sock.send(answer)
    newcomer.sock.close()


def _size(newcomer: Newcomer) -> int:
    size = len(newcomer.arrival.data)
    return size if size > SMALL else 0


def _address(newcomer: Newcomer) -> Hashable:
    """Return what a connection is counted under; without an IP address each is by itself."""
    return network(newcomer.host) if newcomer.host else newcomer.sock


def has_left(newcomer: Newcomer) -> bool:
    """Return whether a client has sent its CONNECT alone, and closed its connection: there is no client to serve.

    What it has sent behind its CONNECT is served, whether it is still there or not.
    """
    data = newcomer.arrival.data
    if not data or data[0] != CONNECT << 4:
        # A header of a proxy, a WebSocket, or TLS: its end is not looked for.
        return False
    try:
        size, at = length_at(data, 1)
        return 0 <= size == len(data) - at and not newcomer.sock.recv(1, socket.MSG_PEEK)
    except (IncompleteError, BlockingIOError):
        return False
    except OSError:
        return True


class Room:
    """The room that all lines have in common."""

    def __init__(self, left: int) -> None:
        self.left = left
        """Connections that may still come beyond the parts of their lines."""


class Line:
    """The connections for one worker. Made on the event loop."""

    def __init__(
        self,
        room: Room,
        part: int,
        most_bytes: int = MAX_BYTES,
        passes: Callable[[Newcomer], Newcomer | None] = lambda newcomer: newcomer,
    ) -> None:
        """`part`: connections that fit whatever the other lines take of the room; `most_bytes`: what was read of large
        ones that wait, and about as much of those that are on their way; one always fits. `passes` returns a connection
        as the worker is to have it, None: it is to be closed."""
        self._passes = passes
        self._room = room
        self._part = part
        self._most_bytes = most_bytes
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # The oldest first: those that wait, with what they are counted under; how much was read of the large ones; both
        # by their addresses; and the ends of their times, for those that do not go at once.
        self._waiting: dict[Newcomer, Hashable] = {}
        self._bytes = 0
        self._by_address = ByAddress[Newcomer]()
        self._large = ByAddress[Newcomer]()
        self._timers: dict[Newcomer, asyncio.TimerHandle] = {}
        # Those that were sent, and that the worker has not taken yet.
        self._sent: deque[Newcomer] = deque()
        self._channel: Channel | None = None

    def __len__(self) -> int:
        """Return how many connections the worker has not taken."""
        return len(self._waiting) + len(self._sent)

    @property
    def open(self) -> bool:
        """Return whether its worker takes connections now."""
        return self._channel is not None

    def add(self, newcomer: Newcomer) -> None:
        """Pass a connection on, now or as soon as there is a worker; or refuse it.

        Where there is no room, the oldest of the address that has most makes place, if it has more than this one's.
        """
        if self._closed or not self._make_room(newcomer):
            refuse(newcomer)
            return
        self._room.left -= len(self) >= self._part
        self._wait(newcomer)
        self._send()
        if newcomer in self._waiting:
            self._watch(newcomer)

    def _make_room(self, newcomer: Newcomer) -> bool:
        """Return whether a connection fits, once others have made place."""
        size = _size(newcomer)
        address = _address(newcomer)
        while size and self._bytes and self._bytes + size > self._most_bytes:
            if not self._give_way(self._large, address):
                return False
        return len(self) < self._part or self._room.left > 0 or self._give_way(self._by_address, address)

    def _give_way(self, among: ByAddress[Newcomer], address: Hashable) -> bool:
        """Refuse the oldest connection of the address that has most, if that has two more than this one."""
        if among.most < among.count(address) + 2:
            return False
        refuse(self._leave(among.oldest_of_fullest()))
        return True

    def _wait(self, newcomer: Newcomer) -> None:
        address = self._waiting[newcomer] = _address(newcomer)
        self._by_address.add(newcomer, address)
        if size := _size(newcomer):
            self._bytes += size
            self._large.add(newcomer, address)

    def _forget(self, newcomer: Newcomer) -> None:
        """Take a connection out of those that wait."""
        address = self._waiting.pop(newcomer)
        if (timer := self._timers.pop(newcomer, None)) is not None:
            timer.cancel()
        self._by_address.remove(newcomer, address)
        if size := _size(newcomer):
            self._bytes -= size
            self._large.remove(newcomer, address)

    def begin(self, channel: Channel) -> None:
        """Pass connections on to a worker that serves."""
        self._channel = channel
        self._send()

    def pause(self) -> None:
        """Keep connections from now on: the worker is to end. It still takes those that are on their way to it."""
        self._channel = None

    def end(self) -> list[Newcomer]:
        """Keep connections from now on: the worker is gone. Those that it did not take are the first for the next.

        Returns those that any other worker can have, which do not wait.
        """
        self._channel = None
        all_of_them = [*self._sent, *self._waiting]
        self._room.left += max(0, len(all_of_them) - self._part)
        others = [each for each in all_of_them if each.arrival.worker == ANY]
        for each in list(self._waiting):
            self._forget(each)
        self._sent.clear()
        for each in all_of_them:
            if each.arrival.worker != ANY:
                self._wait(each)
                self._watch(each)
        self._room.left -= max(0, len(self) - self._part)
        if self._closed:
            self.close()
        return others

    def taken(self) -> None:
        """The worker has the first of those that were sent to it."""
        self._sent.popleft().sock.close()
        self._room.left += len(self) >= self._part
        self._send()

    def close(self) -> None:
        """Refuse all that wait, and all that come: the broker stops."""
        self._closed = True
        for each in list(self._waiting):
            refuse(self._leave(each))

    def _send(self) -> None:
        channel = self._channel
        while channel is not None and self._waiting and len(self._sent) < UNTAKEN:
            if sum(map(_size, self._sent)) >= self._most_bytes:
                break
            newcomer = next(iter(self._waiting))
            passed = None if has_left(newcomer) else self._passes(newcomer)
            if passed is None:
                self._leave(newcomer).sock.close()
                continue
            self._forget(newcomer)
            self._sent.append(newcomer)
            channel.send("connection", passed.arrival, sock=newcomer.sock)

    def _leave(self, newcomer: Newcomer) -> Newcomer:
        """Take out one of those that wait, which does not go to the worker."""
        self._forget(newcomer)
        self._room.left += len(self) >= self._part
        return newcomer

    def _watch(self, newcomer: Newcomer) -> None:
        """Refuse a connection if it still waits when its time is over."""
        self._timers[newcomer] = self._loop.call_at(newcomer.arrival.until, self._time_is_over, newcomer)

    def _time_is_over(self, newcomer: Newcomer) -> None:
        refuse(self._leave(newcomer))
