"""Handshakes in progress on all listeners: their number, and their work in one turn.

Everything between a socket and the client's first packet (TLS, the PROXY header) counts here from the connection's
arrival until it is complete. One that has failed counts until its socket is closed, which the client is left some time
for. If there are too many, the oldest failed one is closed, or else the oldest in progress, so connections that send
nothing, or nothing good, keep nobody out. The expensive steps, a signature each, wait in one queue, of which `STEPS`
are made before other connections continue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from broker.net.scheduling.timers import Checked

STEPS: Final = 4
"""Steps of handshakes in one turn of the event loop: some milliseconds with the largest keys."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Handshake(Checked):
    """A connection that has not said yet what has to be said first."""

    def __init__(self) -> None:
        super().__init__()
        # It waits in the line of `Handshakes`. The line's to change.
        self.in_line = False

    def step(self) -> None:
        """Its turn has come. Where it raises, `check_failed` is told."""
        raise NotImplementedError

    def evict(self) -> None:
        """There are too many, and it has been under way for longest: its connection ends. Must not raise."""
        raise NotImplementedError


class Handshakes:
    """Those of one broker. A `limit` of 0 is none."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self._loop = loop
        # The oldest first.
        self._under_way: dict[Handshake, None] = {}
        self._failed: dict[Handshake, None] = {}
        self._line: deque[Handshake] = deque()
        self._turning = False
        # Handshakes that ended because of the limit, since somebody last asked (and set it to 0); steps taken in all.
        self.evicted = 0
        self.steps = 0

    def __len__(self) -> int:
        """How many are under way, or have failed and whose sockets are open."""
        return len(self._under_way) + len(self._failed)

    def begin(self, handshake: Handshake) -> None:
        """A connection has arrived. It is under way until `failed` or `end`."""
        if 0 < self.limit <= len(self):
            if self._failed:
                oldest = next(iter(self._failed))
                del self._failed[oldest]
            else:
                oldest = next(iter(self._under_way))
                del self._under_way[oldest]
                self.evicted += 1
            oldest.evict()
        self._under_way[handshake] = None

    def failed(self, handshake: Handshake) -> None:
        """It has failed, and its socket is to close. It counts until `end`."""
        self._under_way.pop(handshake, None)
        self._failed[handshake] = None

    def end(self, handshake: Handshake) -> None:
        """It is through, or its connection is over; it may be called more than once."""
        self._under_way.pop(handshake, None)
        self._failed.pop(handshake, None)

    def close(self) -> None:
        """End all of them: the broker stops."""
        for handshake in [*self._under_way, *self._failed]:
            handshake.evict()
        self._under_way.clear()
        self._failed.clear()

    def ready(self, handshake: Handshake) -> None:
        """It has something to work on: `step` is called when its turn comes, unless it has ended by then."""
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
            if handshake in self._under_way:
                self.steps += 1
                try:
                    handshake.step()
                except Exception as error:
                    # One that is at fault holds up no other.
                    handshake.check_failed(error)
        self._turning = len(line) > 0
        if self._turning:
            self._loop.call_soon(self._turn)
