"""Connections on their way to the workers: a line for each worker, in which they wait while it is away.

Owns their sockets until the worker has said that it has them. Promises: what waits is bounded, in number, bytes and
time; beyond, a client is told that the server is unavailable (0x88). A connection that a worker had not taken when it
ended goes to the next process of that worker, with all that was read of it, and no connection goes to two.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import Final, NamedTuple

from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.net.websocket.frames import BINARY, header
from canopy_mqtt.workers.wire import Arrival, Channel

UNTAKEN: Final = 64
"""Connections that are on their way to a worker at a time. The rest stays here: the kernel passes on few more, and
those it holds are lost with the worker."""

MAX_BYTES: Final = 67_108_864
"""Bytes that were read of all connections that wait."""

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


def refuse(newcomer: Newcomer) -> None:
    """Tell a client that the server is unavailable, and close its connection."""
    version = newcomer.arrival.version
    if version:
        answer = UNAVAILABLE_V5 if version == V5 else UNAVAILABLE_V3
        if newcomer.arrival.upgraded:
            answer = header(BINARY, len(answer)) + answer
        with contextlib.suppress(OSError):
            newcomer.sock.send(answer)
    newcomer.sock.close()


class Room:
    """What may wait in all lines together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.bytes = 0
        self.refused = 0
        """Connections that were told that the server is unavailable."""

    def takes(self, newcomer: Newcomer) -> bool:
        """Count a newcomer; False: there is no room for it."""
        if self.count >= self.most or (self.count and self.bytes + len(newcomer.arrival.data) > MAX_BYTES):
            return False
        self.count += 1
        self.bytes += len(newcomer.arrival.data)
        return True

    def left(self, newcomer: Newcomer) -> None:
        self.count -= 1
        self.bytes -= len(newcomer.arrival.data)

    def refuse(self, newcomer: Newcomer) -> None:
        self.refused += 1
        refuse(newcomer)


class Line:
    """The connections for one worker. Made on the event loop."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Newcomer] = deque()
        # Those that were sent, and that the worker has not taken yet.
        self._sent: deque[Newcomer] = deque()
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Return whether its worker takes connections now."""
        return self._channel is not None

    def add(self, newcomer: Newcomer) -> None:
        """Pass a connection on, now or as soon as there is a worker; or refuse it."""
        if not self._room.takes(newcomer):
            self._room.refuse(newcomer)
            return
        self._waiting.append(newcomer)
        self._send()

    def begin(self, channel: Channel) -> None:
        """Pass connections on to a worker that serves."""
        self._channel = channel
        self._send()

    def end(self) -> None:
        """Keep connections from now on: the worker is gone. Those that it did not take are the first for the next."""
        self._channel = None
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._watch()

    def taken(self) -> None:
        """The worker has the first of those that were sent to it."""
        newcomer = self._sent.popleft()
        self._room.left(newcomer)
        newcomer.sock.close()
        self._send()

    def close(self) -> None:
        """Refuse all that wait: the broker stops."""
        self.end()
        while self._waiting:
            self._give_up()
        self._watch()

    def _send(self) -> None:
        channel = self._channel
        while channel is not None and self._waiting and len(self._sent) < UNTAKEN:
            newcomer = self._waiting.popleft()
            self._sent.append(newcomer)
            channel.send(newcomer.arrival.frame(newcomer.sock))
        self._watch()

    def _give_up(self) -> None:
        newcomer = self._waiting.popleft()
        self._room.left(newcomer)
        self._room.refuse(newcomer)

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
            self._give_up()
        self._watch()
