"""When a group of changes ends, which one is being written, and what happens if it cannot be.

Promises: the event loop never waits for a disk; at most one group is being written; `journal.commits` advances when a
group is stored, and not before. A large group ends, whatever is being written, and waits for its turn, so that none
takes the event loop long to put together. One that cannot be written stays, is tried again after a while, and the
others wait behind it. It writes nothing itself: a `Medium` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from canopy_mqtt.core.queues.disk_queue import Fetch, Pages
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.store.base import StoreError, StoreListener
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.group_commit.fetching import Fetches
from canopy_mqtt.store.group_commit.journal import GroupJournal
from canopy_mqtt.store.group_commit.journal_listener import JournalListener
from canopy_mqtt.store.group_commit.medium import Medium
from canopy_mqtt.store.times import Times

WINDOW: Final = 0.002
"""Seconds from a group's first note to its end: what an acknowledgement may wait beyond the disk's time."""

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes at which a group does not wait for its window."""

FULL: Final = 16
"""Times the size of a group that are noted while writing fails; beyond it QoS 1 and 2 are refused. 64 MiB."""

FIRST_RETRY: Final = 0.1
LAST_RETRY: Final = 5.0
"""Seconds until a group that could not be written is tried again; twice as many each time."""

CLOCK_LOOKS: Final = 1.0
"""Seconds between two looks at whether the system's clock was set."""

STALL_TIMEOUT: Final = 10.0
"""Seconds without an outcome of the group that is being written, after which writing counts as failed."""


class GroupCommitter(JournalListener):
    """Commits the groups of one store, whose journal it owns."""

    def __init__(
        self,
        times: Times,
        pages: Pages,
        medium: Medium,
        listener: Callable[[], StoreListener | None],
        *,
        window: float = WINDOW,
        size: int = GROUP_BYTES,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        """`window`: seconds; `size`: bytes; `stall_timeout`: seconds that a group may take to be written, 0: any."""
        self._times = times
        self._medium = medium
        self._listener = listener
        self._window = window
        self._size = size
        self._stall_timeout = stall_timeout
        self.journal = GroupJournal(times, self, size, pages)
        self._commits = self.journal.commits_kept()
        self.fetches = Fetches(self._commits, medium, self.notice, self.damaged)
        self._loop: asyncio.AbstractEventLoop | None = None
        # The open group: when it began, the timer of its window or its next turn, whether it may end.
        self._began = 0.0
        self._timer: asyncio.Handle | None = None
        self._soon: asyncio.Handle | None = None
        self._ease: asyncio.Handle | None = None
        self._ripe = False
        # The group that is being written, large ones that wait behind it, and, after a failure, when it is tried again.
        self._air: Batch | None = None
        self._line: deque[Batch] = deque()
        # Since when the medium has it, and the timer that looks whether it comes down: one for many groups.
        self._given = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        # What is there was read: from then on clocks are watched, and how they stand is noted without other changes.
        self._clocks_watched = False
        self._clock_look: asyncio.TimerHandle | None = None
        self._pause = FIRST_RETRY
        # Up to which note everything is written.
        self._filed = 0
        # Those who wait for the next outcome of a group.
        self._flushing: list[asyncio.Future[str]] = []
        self.count = 0
        """Groups that were written."""
        self.rows = 0
        self.commit_times = Histogram()

    # -- a broker's life -----------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, highest: tuple[int, int, int]) -> None:
        """Start, on an open medium with these highest numbers of a session, a delivery and a message."""
        self._loop = loop
        self.journal.begin_at(*highest)
        self.fetches.last = highest[1]
        # What could not be written when the store was closed, and what was told since.
        if self._air is not None:
            self._write()
        if self.journal.noted:
            self.begun()
        self.fetches.start(loop)
        if self._clocks_watched:
            self._see_clocks()

    def rest(self) -> None:
        """Begin nothing by time any more, since the medium will be closed."""
        for handle in (self._timer, self._soon, self._ease, self._retry, self._watch, self._clock_look):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = self._ease = self._retry = self._watch = self._clock_look = None
        self.fetches.rest()

    def stop(self) -> None:
        """Stop, since the medium is closed: what is not written stays."""
        self.rest()
        self.fetches.stop()
        self._loop = None

    async def flush(self) -> None:
        """Return when what was told is written. Raises StoreError."""
        number = self._commits.journal_position
        # Acknowledged deliveries, too, go from there, for which nobody waits.
        while self._filed < number:
            if self._commits.incomplete and self._loop is not None:
                raise StoreError("changes could not be noted: see the log for the error")
            await self._outcome(self._end_group)

    async def finish(self) -> None:
        """Flush, and note how the clocks stand: the broker stops. Raises StoreError."""
        if self._clocks_watched:
            self._times.want_note()
        await self.flush()
        while self._clocks_watched and self._loop is not None and self._times.see():
            await self._outcome(self.beat)

    async def _outcome(self, begin: Callable[[], None]) -> None:
        """Wait for the next outcome of a group. `begin` one, unless one is being written. Raises StoreError."""
        loop = self._loop
        if loop is None:
            raise StoreError("the store is closed")
        outcome: asyncio.Future[str] = loop.create_future()
        self._flushing.append(outcome)
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        elif self._air is None:
            begin()
        if reason := await outcome:
            raise StoreError(reason)

    def waiting(self) -> int:
        return self._commits.journal_position - self._commits.committed

    def unfinished(self) -> bool:
        """Return whether a group was given to the medium and its outcome is not known yet."""
        return self._air is not None

    # -- groups --------------------------------------------------------------------------------------------------------

    def fetch(self, session: int, fetch: Fetch) -> None:
        self.fetches.want(session, fetch)

    def begun(self) -> None:
        loop = self._loop
        if loop is None:
            return
        self._began = loop.time()
        if self._window > 0.0:
            self._timer = loop.call_later(self._window, self._window_over)
        else:
            self._timer = loop.call_soon(self._window_over)

    def due(self) -> None:
        loop = self._loop
        if loop is None:
            return
        if self._commits.failed and self._noted_bytes() >= FULL * self._size:
            self._commits.full = True
        if self._soon is None:
            self._soon = loop.call_soon(self._window_over)

    def eased(self) -> None:
        """Deliveries are over: perhaps no client has to wait for the open group."""
        loop = self._loop
        if loop is not None and self._ease is None:
            self._ease = loop.call_soon(self._let_go)

    def _let_go(self) -> None:
        """Release the acknowledgements for which nothing is left to write, in this group and in those before."""
        if self._ease is not None:
            self._ease.cancel()
            self._ease = None
        number = self.journal.safe()
        if not self._line and (self._air is None or not self._air.awaited):
            self._commits.advance(number)

    def _window_over(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._commits.incomplete:
            self._later(FIRST_RETRY)
        elif self.journal.noted:
            self._ripe = True
            if self._air is None:
                self._end_group()
            elif self.journal.size() >= self._size and not self._commits.failed:
                batch = self._take()
                if batch is not None:
                    self._line.append(batch)

    def _later(self, seconds: float) -> None:
        """Try the open group again later, since it cannot end now."""
        if self._loop is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(seconds, self._window_over)

    def _noted_bytes(self) -> int:
        """Return the bytes that wait to be written, without the group that is being written."""
        return self.journal.size() + sum(batch.size for batch in self._line)

    def _take(self) -> Batch | None:
        """End the open group. None: its rows could not be made; it stays open, no acknowledgement is released, and it
        is tried again."""
        try:
            batch = self.journal.take()
        except Exception as error:
            self._later(self._pause)
            self._pause = min(self._pause * 2, LAST_RETRY)
            self.tell_failure(f"a group of changes cannot be written: {type(error).__name__}: {error}")
            return None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ripe = False
        batch.began = self._began
        batch.clock = self._times.note()
        if self.journal.noted:
            # Young deliveries: their window begins.
            self.begun()
        return batch

    def _end_group(self) -> None:
        """Write the open group; no other is being written."""
        batch = self._take()
        if batch is None:
            return
        if batch.empty() and batch.clock is None:
            self._recover()
            self._filed = batch.number
            self.fetches.last = batch.last
            self._commits.advance(batch.number)
            self._let_go()
            self._tell("")
            self.fetches.again()
            return
        self._air = batch
        self._write()

    def beat(self) -> None:
        """Write a group, even an empty one, unless one is being written: this shows whether the medium can write."""
        loop = self._loop
        if loop is None or self._air is not None:
            return
        if not self.journal.noted:
            self._began = loop.time()
        batch = None if self._commits.incomplete else self._take()
        if batch is None:
            # What there is to write cannot be written yet.
            batch = Batch(self._filed)
            batch.last = self.fetches.last
        self._air = batch
        self._write()

    def _write(self) -> None:
        loop, batch = self._loop, self._air
        assert loop is not None
        assert batch is not None
        self._given = loop.time()
        if self._watch is None and self._stall_timeout > 0.0:
            self._watch = loop.call_later(self._stall_timeout, self._look)
        self._medium.write(batch)

    def _look(self) -> None:
        """Report a failure if the group that is being written takes too long; look again later."""
        loop = self._loop
        self._watch = None
        if loop is None or self._air is None or self._retry is not None:
            return
        left = self._given + self._stall_timeout - loop.time()
        self._watch = loop.call_later(left if left > 0.0 else self._stall_timeout, self._look)
        if left <= 0.0:
            self.tell_failure(self._medium.stalled())

    def written(self, batch: Batch) -> None:
        loop = self._loop
        if batch is not self._air or loop is None:
            return
        self._air = None
        self._filed = batch.number
        self.fetches.last = batch.last
        self._pause = FIRST_RETRY
        if not batch.empty():
            self.count += 1
            self.rows += batch.rows()
            self.commit_times.add(loop.time() - batch.began)
        self._recover()
        self._commits.advance(batch.number)
        self._let_go()
        self._tell("")
        if self._line:
            self._air = self._line.popleft()
            self._write()
        elif self._ripe and not self._commits.incomplete:
            self._end_group()
        self.fetches.again()

    def _recover(self) -> None:
        if self._commits.failed:
            self._commits.recover()
            listener = self._listener()
            if listener is not None and not self._commits.incomplete:
                listener.recovered()

    def failed(self, batch: Batch, reason: str, *, for_good: bool = False) -> None:
        """Keep a group that was not written, for this reason, and try it again. `for_good`: no group can be written any
        more, and publishers are told so."""
        loop = self._loop
        if batch is not self._air or loop is None:
            return
        self._retry = loop.call_later(self._pause, self._try_again)
        self._pause = min(self._pause * 2, LAST_RETRY)
        self.tell_failure(reason)
        if for_good:
            self._commits.full = True

    def tell_failure(self, reason: str) -> None:
        self._commits.fail()
        listener = self._listener()
        if listener is not None:
            listener.failed(reason)
        self._tell(reason)

    def damaged(self, damages: Damages, session: int = 0) -> None:
        """Tell the operator of rows that could not be used. `session`: of which it is, where that is known."""
        listener = self._listener()
        if damages.counts and listener is not None:
            if session:
                damages.of(next((each.client_id for each in self.journal.kept.values() if each.id == session), ""))
            listener.damaged(damages)

    def notice(self, line: str) -> None:
        listener = self._listener()
        if listener is not None:
            listener.noticed(line)

    def watch_clocks(self) -> None:
        """Watch the clocks from now on: the content of the medium was read and is whole, so notes may be written to
        it."""
        self._clocks_watched = True
        self._see_clocks()

    def _see_clocks(self) -> None:
        """Note the clocks if the last note is not true any more, and tell of what was seen."""
        loop = self._loop
        if loop is None:
            return
        if self._clock_look is not None:
            self._clock_look.cancel()
        self._clock_look = loop.call_later(CLOCK_LOOKS, self._see_clocks)
        if self._times.see():
            self.beat()
        for line in self._times.lines():
            self.notice(line)

    def _try_again(self) -> None:
        self._retry = None
        self._write()

    def _tell(self, reason: str) -> None:
        """Answer those who flush: a group is over, or failed for this reason."""
        flushing, self._flushing = self._flushing, []
        for outcome in flushing:
            if not outcome.done():
                outcome.set_result(reason)
