"""The interface of a store, whatever it writes to.

Owns the interface `Store`, its one error, and `Times`, which converts the core's times into such as survive a restart.
Promises: a store is told of changes through its `journal` (`core.persistence.journal`) on the event loop's thread, in
order, and never waited for; `load` returns everything before the first client connects. A store that commits later says
so through the journal's `commits` (`core.persistence.commits`), also on the event loop; only then are the
acknowledgements sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final

from broker.core.histogram import Histogram
from broker.core.persistence.journal import Journal, Saved
from broker.store.damage import Damages

IN_USE: Final = "the store is in use by another broker of this process"
"""What opening says of a store that is open."""


class StoreError(Exception):
    """Why a store cannot be opened, read or written, in one line for the operator."""


class StoreListener(ABC):
    """Who is told that an open store cannot keep what it is told, and that it can again. Called on the event loop."""

    @abstractmethod
    def failed(self, reason: str) -> None:
        """What was told last cannot be kept, for this reason, in one line. Told again after each vain attempt."""

    @abstractmethod
    def recovered(self) -> None:
        """Everything that was told before is kept now."""

    def replaced(self) -> None:  # noqa: B027 (not everybody ends then)
        """Another broker has the tables: nothing can be kept here any more."""

    def damaged(self, damages: Damages) -> None:
        """Rows could not be used when they were read: what they held is lost."""
        del damages

    def set_aside(self, where: str, lost: dict[str, int], kept: dict[str, int]) -> None:
        """A damaged file is now at `where`, and a new one has what was whole in it: rows by table."""
        del where, lost, kept

    def noticed(self, line: str) -> None:
        """Something about the store that an operator should know, and that it has seen to."""
        del line


class Store(ABC):
    """Keeps what outlives a broker. One broker at a time: open, load, be told, close; then the next broker.

    Attributes:
        journal: what the core tells. It only takes notes: no call of it blocks, waits or raises.
        listener: who is told of failures while it is open.
        commit_times: seconds from a change to its commit; None for a store that does not say.
    """

    commit_times: Histogram | None = None

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.listener: StoreListener | None = None

    def figures(self) -> Iterator[tuple[str, object]]:
        """What is to be seen of it below `$SYS/broker/store/`: topic and value. Nothing by default.

        `path`; `groups` and `rows`, written since `open`; `bytes` on disk; `paged/messages` and `paged/bytes`, as
        queues count bytes, that wait there alone; `waiting`, changes not committed yet.
        """
        return iter(())

    @abstractmethod
    async def open(self, clock: Callable[[], float]) -> None:
        """A broker begins to use this store; `clock` is its monotonic clock, in seconds, which all times told refer to.

        A broker object that was stopped and is started again, its sessions still in memory, opens it without `load`; no
        other broker may have used the store in between.

        Raises:
            StoreError: it is in use by another broker, or cannot be opened.
        """

    @abstractmethod
    async def load(self) -> Saved:
        """Everything that was kept, with its times counted from now. Changes nothing.

        Raises:
            StoreError: what is there cannot be read.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything that was told before this call is kept as safely as this store can.

        Raises:
            StoreError: it cannot be kept.
        """

    @abstractmethod
    async def close(self) -> None:
        """The broker has stopped: flush, and let go of files and threads. Closing a closed store does nothing.

        Raises:
            StoreError: what was told last cannot be kept.
        """


BELIEVED: Final = 366 * 86_400.0
"""Seconds that the system's clock may be found ahead or behind, from one broker to the next or while one runs. Beyond
it the clock was wrong, such as one without a battery that begins at 1970, and no time has passed."""

NOTED: Final = 3_600.0
"""Seconds after which it is noted again how late it is: a year is to be told from less, and the disk spared."""


class Times:
    """Two clocks: the broker's monotonic one, and a lasting one that goes on while no broker runs.

    Times are turned over when they are told, not when the store was opened, so that a wall clock that is set while the
    broker runs moves what is told afterwards only. One that jumps by more than `BELIEVED` moves nothing: `ahead` makes
    up for it until it jumps back.
    """

    def __init__(self, lasting: Callable[[], float]) -> None:
        """`lasting`: the wall clock in seconds, `time.time` where processes come and go."""
        self._wall = lasting
        self._clock = lasting
        # What both said when they were looked at last, and what is to be added to the wall clock.
        self._seen: float | None = None
        self._seen_clock = 0.0
        self.ahead = 0.0
        self.jumped = 0.0
        """Seconds of the last jump that was not believed, until somebody takes it; 0: none."""
        self._noted = (0.0, 0.0)

    def start(self, clock: Callable[[], float], note: tuple[float, float] | None = None) -> None:
        """From now on `clock` is the broker's. `note`: the last one of the brokers before; None: this object's own."""
        self._clock = clock
        self._seen_clock = clock()
        if note is not None:
            self._seen, self.ahead = self._noted = note
        self.now()

    def now(self) -> float:
        """The lasting time."""
        wall, clock = self._wall(), self._clock()
        jump = 0.0 if self._seen is None else (wall - self._seen) - (clock - self._seen_clock)
        self._seen, self._seen_clock = wall, clock
        if not -BELIEVED <= jump <= BELIEVED:
            self.ahead -= jump
            self.jumped = jump
        return wall + self.ahead

    def note(self) -> tuple[float, float] | None:
        """What the next broker is to `start` with, where that is to be written: the wall clock, and `ahead` of it."""
        wall = self.now() - self.ahead
        noted_wall, noted_ahead = self._noted
        if abs(wall - noted_wall) < NOTED and abs(self.ahead - noted_ahead) < 1.0:
            return None
        self._noted = (wall, self.ahead)
        return self._noted

    def lasting(self, when: float) -> float:
        """The lasting time of a point of the broker's clock."""
        return self.now() + (when - self._clock())

    def broker(self) -> float:
        """The broker's clock."""
        return self._clock()

    def left(self, until: float) -> float:
        """Seconds until a lasting time; negative when it has passed."""
        return until - self.now()
