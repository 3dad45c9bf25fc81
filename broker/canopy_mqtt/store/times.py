"""The time in which a store counts, which no step of the system's clock moves.

A store keeps its times in seconds of its own time. That begins as the system's clock when the store is new, and passes
as the broker's clock while a broker runs; between two brokers of one boot as the kernel says; and across a reboot, or
on another machine, as the system's clock says, but never back, and by `BELIEVED` at most. No row is written anew
because a clock was set. Owns that conversion, what is noted of clocks, and what the operator is told of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from struct import pack
from typing import Any, Final, NamedTuple
from zlib import crc32

BELIEVED: Final = 366 * 86_400.0
"""Seconds that the system's clock may be found ahead across a reboot. Beyond it that clock was wrong, such as one
without a battery that begins at 1970, and no time has passed."""

NOTED_WITH_DATA: Final = 10.0
"""Seconds after which a group of changes has a note again: so much is not known if the system's clock is wrong after a
loss of power."""

NOTED_ALONE: Final = 3_600.0
"""Seconds after which there is a note of its own: the disk of a broker with nothing to write is spared."""

STEP: Final = 1.0
"""Seconds between the system's clock and the broker's that are a step and not a drift."""

TOLD: Final = 60.0
"""Seconds of a step of which the operator is told, and between two such lines of a broker that runs."""

_KERNEL: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> float:
    """Seconds since the system was started, those in which it was suspended included where the platform counts them."""
    return time.clock_gettime(_KERNEL)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


BOOT: Final = _boot_id()
"""Linux's identifier of this boot of the system; empty: the platform has none."""


class Clocks(NamedTuple):
    """The clocks of a system: `wall` in seconds since the epoch, which may be set; `uptime` in seconds since it was
    started; `boot` names that start, empty where none is known."""

    wall: Callable[[], float]
    uptime: Callable[[], float]
    boot: str

    @classmethod
    def of_system(cls) -> Clocks:
        return cls(time.time, uptime, BOOT)


class Note(NamedTuple):
    """How the clocks stood at one moment: the store's time, the system's clock, the uptime, and the boot.

    It stays true until a clock is set. The store writes it at the start and the end, with a group of changes if the
    last note is `NOTED_WITH_DATA` old, after `NOTED_ALONE` in any case, and as soon as a step is seen.
    """

    time: float
    wall: float
    uptime: float
    boot: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> Note | None:
        """Return the note of a row; None: nothing was noted, or no broker wrote it."""
        *times, boot, checksum = row
        if not isinstance(boot, str) or not all(isinstance(each, float) and isfinite(each) for each in times):
            return None
        note = cls(times[0], times[1], times[2], boot)
        return note if checksum == note.row()[-1] else None

    def row(self) -> tuple[float, float, float, str, int]:
        """The values of the note in a store, with a checksum: all times of the store depend on it."""
        return (*self, crc32(pack("<3d", *self[:3]) + self.boot.encode()))

    @property
    def ahead(self) -> float:
        """Seconds by which the store's times are ahead of the system's clock of then."""
        return self.time - self.wall


class Times:
    """The store's time, beside the broker's clock."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        """`clocks`: None: those of this machine."""
        self._clocks = Clocks.of_system() if clocks is None else clocks
        self._clock: Callable[[], float] = self._clocks.uptime
        # What is to be added to the broker's clock.
        self._offset = 0.0
        self._noted: Note | None = None
        # The next note is wanted whatever the time of the last one.
        self._wanted = False
        self._told_at = 0.0
        # Seconds of the steps of which the operator was not told yet, and lines for the operator.
        self._stepped = 0.0
        self._lines: list[str] = []

    def start(self, clock: Callable[[], float], note: Note | None = None) -> None:
        """Count from `clock`, the broker's, from now on. `note`: the last one of the brokers before; None: this
        object's own."""
        self._clock = clock
        before = self._noted if note is None else note
        now = self._clocks.wall() if before is None else self._since(before)
        self._offset = now - clock()
        self._told_at = clock() - TOLD
        self._stepped = 0.0
        # Before anything else: until it is written, another boot is not known from this one.
        self._noted = self._present()
        self._wanted = True

    def _since(self, note: Note) -> float:
        wall, up = self._clocks.wall(), self._clocks.uptime()
        step = wall - note.wall
        if note.boot and note.boot == self._clocks.boot and up >= note.uptime:
            passed = up - note.uptime
            self._tell(step - passed)
            return note.time + passed
        if step < -STEP:
            self._lines.append(
                f"the system's clock is {span(step)} behind the newest data of the store: until now no time has passed"
                " for sessions and messages"
            )
            return note.time
        if step > BELIEVED:
            self._tell(step)
            return note.time
        return note.time + max(step, 0.0)

    def _tell(self, step: float) -> None:
        if abs(step) >= TOLD:
            found = f"{span(step)} {'ahead' if step > 0.0 else 'back'}"
            self._lines.append(f"the system's clock has jumped {found}: for sessions and messages no time has passed")

    def _present(self) -> Note:
        return Note(self.now(), self._clocks.wall(), self._clocks.uptime(), self._clocks.boot)

    # -- notes ---------------------------------------------------------------------------------------------------------

    def want_note(self) -> None:
        """Make the next group take a note, since the broker stops."""
        self._wanted = True

    def see(self) -> bool:
        """Look at the clocks, about once a second: whether a note is to be written now, be there data or not."""
        noted = self._noted
        if noted is None:
            return True
        return self._wanted or self._has_stepped(noted) or not 0.0 <= self.now() - noted.time < NOTED_ALONE

    def note(self) -> Note | None:
        """Return the note that the next broker has to `start` with, if one is to be written with a group of changes."""
        noted, now = self._noted, self.now()
        stepped = noted is not None and self._has_stepped(noted)
        if noted is not None and not self._wanted and not stepped and 0.0 <= now - noted.time < NOTED_WITH_DATA:
            return None
        present = self._present()
        if noted is not None and stepped:
            self._stepped += noted.ahead - present.ahead
        self._wanted = False
        self._noted = present
        return present

    def _has_stepped(self, noted: Note) -> bool:
        return abs(self.now() - self._clocks.wall() - noted.ahead) >= STEP

    def lines(self) -> list[str]:
        """Return the lines for the operator about clocks since the last call; a step is reported at most once in `TOLD`
        seconds."""
        if self._stepped != 0.0 and self._clock() - self._told_at >= TOLD:
            self._told_at = self._clock()
            self._tell(self._stepped)
            self._stepped = 0.0
        lines, self._lines = self._lines, []
        return lines

    # -- conversion ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._clock() + self._offset

    def lasting(self, when: float) -> float:
        """The store's time of a point of the broker's clock."""
        return when + self._offset

    def left(self, until: float) -> float:
        """Seconds until a point of the store's time; negative when it has passed."""
        return until - self.now()


def ahead_of_wall(note: Note | None, clocks: Clocks | None = None) -> float:
    """Seconds by which the times of a store are ahead of the system's clock, also where that was set after the note.
    0.0: no more than clocks drift."""
    if note is None:
        return 0.0
    clocks = Clocks.of_system() if clocks is None else clocks
    times = Times(clocks)
    times.start(clocks.uptime, note)
    now = times.now() - clocks.wall()
    if abs(now) < STEP:
        return 0.0
    return note.ahead if abs(now - note.ahead) < STEP else now


def span(seconds: float) -> str:
    seconds = abs(seconds)
    for unit, length in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} seconds"
