"""Connections on their way to the workers: a line for each worker, in which they wait while it is away.

Owns their sockets until the worker has said that it has them. Promises: what waits in a line is bounded, in number,
bytes and time, and each has a part that no other line can take; beyond, a client is told that the server is unavailable
(0x88). A connection that a worker had not taken when it ended goes to the next process of that worker, with all that
was read of it, and no connection goes to two.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import Final, NamedTuple

from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.net.websocket.frames import BINARY, header
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
    """A connection on its way. `until`: loop time."""

    arrival: Arrival
    sock: socket.socket
    until: float


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


class Room:
    """The room that all lines have in common."""

    def __init__(self, left: int) -> None:
        self.left = left
        """Connections that may still come beyond the parts of their lines."""


class Line:
    """The connections for one worker. Made on the event loop."""

    def __init__(self, room: Room, part: int, most_bytes: int = MAX_BYTES) -> None:
        """`part`: connections that fit whatever the other lines take of the room; `most_bytes`: what was read of large
        ones that wait, and about as much of those that are on their way; one always fits."""
        self._room = room
        self._part = part
        self._most_bytes = most_bytes
        self._closed = False
        # Of those that wait.
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Newcomer] = deque()
        # Those that were sent, and that the worker has not taken yet.
        self._sent: deque[Newcomer] = deque()
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many connections the worker has not taken."""
        return len(self._waiting) + len(self._sent)

    @property
    def open(self) -> bool:
        """Return whether its worker takes connections now."""
        return self._channel is not None

    def add(self, newcomer: Newcomer) -> None:
        """Pass a connection on, now or as soon as there is a worker; or refuse it."""
        size = _size(newcomer)
        beyond = len(self) >= self._part
        full = (beyond and self._room.left <= 0) or (self._bytes and size and self._bytes + size > self._most_bytes)
        if self._closed or full:
            refuse(newcomer)
            return
        self._room.left -= beyond
        self._bytes += size
        self._waiting.append(newcomer)
        self._send()

    def begin(self, channel: Channel) -> None:
        """Pass connections on to a worker that serves."""
        self._channel = channel
        self._send()

    def end(self) -> list[Newcomer]:
        """Keep connections from now on: the worker is gone. Those that it did not take are the first for the next.

        Returns those that any other worker can have, which do not wait.
        """
        self._channel = None
        all_of_them = [*self._sent, *self._waiting]
        self._room.left += max(0, len(all_of_them) - self._part)
        others = [each for each in all_of_them if each.arrival.worker == ANY]
        self._waiting = deque(each for each in all_of_them if each.arrival.worker != ANY)
        self._sent.clear()
        self._room.left -= max(0, len(self) - self._part)
        self._bytes = sum(map(_size, self._waiting))
        if self._closed:
            self.close()
        self._watch()
        return others

    def taken(self, count: int) -> None:
        """The worker has the first of those that were sent to it."""
        for _ in range(count):
            self._sent.popleft().sock.close()
            self._room.left += len(self) >= self._part
        self._send()

    def close(self) -> None:
        """Refuse all that wait, and all that come: the broker stops."""
        self._closed = True
        while self._waiting:
            refuse(self._leave())
        self._watch()

    def _send(self) -> None:
        channel = self._channel
        while channel is not None and self._waiting and len(self._sent) < UNTAKEN:
            if sum(map(_size, self._sent)) >= self._most_bytes:
                break
            newcomer = self._waiting.popleft()
            self._bytes -= _size(newcomer)
            self._sent.append(newcomer)
            channel.send(newcomer.arrival.frame(newcomer.sock))
        self._watch()

    def _leave(self) -> Newcomer:
        """Take out the first of those that wait."""
        newcomer = self._waiting.popleft()
        self._bytes -= _size(newcomer)
        self._room.left += len(self) >= self._part
        return newcomer

    def _watch(self) -> None:
        """Have the timer run while connections wait."""
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_at(self._waiting[0].until, self._look)
        elif not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0].until <= now:
            refuse(self._leave())
        self._watch()
