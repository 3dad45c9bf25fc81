"""Until the broker is at rest again, and how long it was deaf on the way.

Owns: ``Pulse``, a client that pings and waits for the answer until nothing is left to do.

Promises: the longest wait is that of a client that has nothing to do with the work under way. The end of the work is
known to ``STEP`` seconds.

The pings do not count as work: what they cost an idle broker is measured first, and taken off.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.network import links
from benchmarks.network.measure import Clocks, Spent
from canopy_load.brokers import frames
from canopy_load.brokers.process import BrokerProcess

STEP: Final = 0.05  # seconds between two looks at the broker's CPU
PAUSE: Final = 0.01  # seconds between an answer and the next ping
CALIBRATION: Final = 30  # pings to an idle broker
QUIET: Final = 1_000_000  # nanoseconds of CPU within a step, without the pings', that still count as rest
LIMIT: Final = 300.0  # seconds after which a broker is metered although it is not at rest
DEAF_LIMIT: Final = 120.0  # seconds a PINGRESP may take


@dataclass(frozen=True)
class Aftermath:
    """The cost of a piece of work from its beginning to its end, and the longest answer to a ping meanwhile, in
    seconds.

    Work of less than a step has no end that could be seen: it is taken to last as long as it used the CPU."""

    spent: Spent
    deaf: float


class Pulse:
    """One connected client (a blocking socket) that pings the broker and times the answer; the broker must be at
    rest."""

    def __init__(self, process: BrokerProcess, sock: socket.socket) -> None:
        sock.settimeout(DEAF_LIMIT)
        self._process = process
        self._sock = sock
        begin = process.cpu()
        for _ in range(CALIBRATION):
            self._beat()
        self._cost = (process.cpu() - begin) // CALIBRATION

    def _beat(self) -> float:
        begin = time.monotonic()
        self._sock.sendall(frames.PINGREQ)
        links.expect(self._sock, frames.PINGRESP[0])
        waited = time.monotonic() - begin
        time.sleep(PAUSE)
        return waited

    def aftermath(self, act: Callable[[], None]) -> Aftermath:
        """Do something, then wait until the broker is at rest again."""
        process = self._process
        clocks, start = Clocks(process), process.cpu()
        act()
        spent, deaf, beats = clocks.read(), 0.0, 0
        while spent.wall < LIMIT:
            before, until, already = process.cpu(), time.monotonic() + STEP, beats
            while time.monotonic() < until:
                deaf = max(deaf, self._beat())
                beats += 1
            if process.cpu() - before - (beats - already) * self._cost < QUIET:
                break
            spent = clocks.read()
        broker = max(0, process.cpu() - start - beats * self._cost) / 1e9
        return Aftermath(replace(spent, wall=max(spent.wall, broker), broker=broker), deaf)
