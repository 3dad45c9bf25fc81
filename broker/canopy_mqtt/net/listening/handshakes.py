"""Handshakes in progress on all listeners: their number, and their work in one turn.

Everything between a socket and the client's first packet (TLS, the PROXY header) counts here from the connection's
arrival until it is complete. One that has failed counts until its socket is closed, for which the client has some time.
If there are too many, a failed one is closed, or else one in progress: the oldest of the address (IPv6: /64) that has
most, so that connections that send nothing, or nothing valid, keep no client of another address out. The expensive
steps, a signature each, wait in one queue; other connections continue after each `STEPS` of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

from mypy_extensions import mypyc_attr

from canopy_mqtt.net.connections.by_account import ByAccount, account_of
from canopy_mqtt.net.timers import WheelItem

STEPS: Final = 4
"""Steps of handshakes in one turn of the event loop: some milliseconds with the largest keys."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Handshake(WheelItem):
    """A connection whose handshake is not complete."""

    def __init__(self) -> None:
        super().__init__()
        # The IP address that it counts for ("": none). Set before `Handshakes.begin`.
        self.host = ""
        # True while it waits in the line of `Handshakes`, which sets it.
        self.in_line = False

    def step(self) -> None:
        """Do the next expensive step. If it raises, `check_failed` is called."""
        raise NotImplementedError

    def evict(self) -> None:
        """End this connection: there are too many. Must not raise."""
        raise NotImplementedError


class Handshakes:
    """The handshakes of one broker. A `limit` of 0 is none."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self._loop = loop
        self._under_way = ByAccount()
        self._failed = ByAccount()
        self._line: deque[Handshake] = deque()
        self._turning = False
        # Handshakes that ended because of the limit, since the server last set this to 0; steps taken in all.
        self.evicted = 0
        self.steps = 0

    def __len__(self) -> int:
        """Return how many are under way, or have failed and whose sockets are open."""
        return len(self._under_way) + len(self._failed)

    def begin(self, handshake: Handshake) -> None:
        """Count a new connection until `failed` or `end`."""
        if 0 < self.limit <= len(self):
            if len(self._failed) > 0:
                oldest = next(iter(self._failed.largest().held))
            else:
                oldest = next(iter(self._under_way.largest().held))
                self.evicted += 1
            self._close(cast("Handshake", oldest))
        self._under_way.set(handshake, 1, account_of(handshake.host))

    def failed(self, handshake: Handshake) -> None:
        """Mark a handshake as failed; its socket is to close. It counts until `end`."""
        self._under_way.remove(handshake)
        self._failed.set(handshake, 1, account_of(handshake.host))

    def end(self, handshake: Handshake) -> None:
        """Count a handshake no more: it is complete, or its connection is over. May be called more than once."""
        self._under_way.remove(handshake)
        self._failed.remove(handshake)

    def close(self) -> None:
        """End all of them: the broker stops."""
        for handshake in [*self._under_way.accounts, *self._failed.accounts]:
            self._close(cast("Handshake", handshake))

    def _close(self, handshake: Handshake) -> None:
        self.end(handshake)
        handshake.evict()

    def ready(self, handshake: Handshake) -> None:
        """Queue a handshake for its next `step`, unless it ends before its turn."""
        if handshake.in_line:
            return
        handshake.in_line = True
        self._line.append(handshake)
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        line = self._line
        for _ in range(min(STEPS, len(line))):
            handshake = line.popleft()
            handshake.in_line = False
            if handshake in self._under_way.accounts:
                self.steps += 1
                try:
                    handshake.step()
                except Exception as error:
                    # Its fault holds up no other one.
                    handshake.check_failed(error)
        self._turning = len(line) > 0
        if self._turning:
            self._loop.call_soon(self._turn)
