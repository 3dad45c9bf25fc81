"""A store on disk: one SQLite file in a directory, written by one thread, in groups.

Owns when a group ends, which is being written, and what happens when the disk fails. Promises: the event loop never
waits for the disk; one group is being written at most; `journal.commits` advances when what was told is in the file,
and not before. A group that is large ends, whatever is being written, and waits for its turn: none takes the event loop
long to put together. One that cannot be written stays, is tried again after a while, and everything waits behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from broker.core.histogram import Histogram
from broker.core.persistence.journal import DeliveryRecord, Fetch, Saved
from broker.core.persistence.pages import Pages
from broker.store.base import Store, StoreError, Times
from broker.store.sqlite.beginning import begin, damaged, let_go
from broker.store.sqlite.group import Batch
from broker.store.sqlite.journal import SqliteJournal
from broker.store.sqlite.opening import SYNCHRONOUS, Opened, told
from broker.store.sqlite.principals import Principals, RuleTexts
from broker.store.sqlite.reading import Damaged, Loaded, read, read_on_disk
from broker.store.sqlite.schema import DELIVERIES, PLAIN, RETAINED
from broker.store.sqlite.shell import Shell
from broker.store.sqlite.writer import Writer, Written

WINDOW: Final = 0.002
"""Seconds from a group's first note to its end: what an acknowledgement may wait beyond the disk's time."""

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes at which a group does not wait for its window."""

FULL: Final = 16
"""Times the size of a group that are noted while the disk fails; beyond it QoS 1 and 2 are refused. 64 MiB."""

FIRST_RETRY: Final = 0.1
LAST_RETRY: Final = 5.0
"""Seconds until a group that could not be written is tried again; twice as many each time."""

STALL_TIMEOUT: Final = 10.0
"""Seconds without an outcome of the group that is being written, after which the disk counts as one that fails."""

_Value = TypeVar("_Value")


class SqliteStore(Store):
    """Keeps everything in `canopy.db` of a directory."""

    def __init__(
        self,
        directory: str | Path,
        *,
        synchronous: str = "full",
        commit_window: float = WINDOW,
        commit_bytes: int = GROUP_BYTES,
        stall_timeout: float = STALL_TIMEOUT,
        memory_messages: int = 0,
        memory_bytes: int = 0,
        memory_total_bytes: int = 0,
        disk_bytes: int = 0,
        lasting: Callable[[], float] = time.time,
        rules: RuleTexts | None = None,
    ) -> None:
        """`synchronous`: full, normal or off; `commit_window` in seconds; `stall_timeout`: seconds that a group may
        take to be written, 0: any; `memory_messages`, `memory_bytes`, `memory_total_bytes`, `disk_bytes`: what waits in
        memory for one session, in all queues, and on disk alone at most (`Pages`); `lasting`: the clock that goes on
        between two brokers, in seconds since the epoch; `rules`: who writes and reads the rules of principals.

        Raises:
            ValueError: `synchronous` is none of the three.
        """
        if synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self.directory = Path(directory)
        self._synchronous = synchronous
        self._window = commit_window
        self._group_bytes = commit_bytes
        self._stall_timeout = stall_timeout
        self._principals = Principals(rules)
        self._times = Times(lasting)
        self._pages = Pages(memory_messages, memory_bytes, memory_total_bytes, disk_bytes)
        self._journal = SqliteJournal(self._times, _Ends(self), commit_bytes, self._pages)
        self._commits = self._journal.commits_kept()
        super().__init__(self._journal)
        # While it is open.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: Opened | None = None
        self._writer: Writer | None = None
        # The open group: when it began, the timer of its window or its next turn, whether it may end.
        self._began = 0.0
        self._timer: asyncio.Handle | None = None
        self._soon: asyncio.Handle | None = None
        self._ease: asyncio.Handle | None = None
        self._ripe = False
        # The group that is being written, large ones that wait behind it, and, after a failure, when it is tried again.
        self._air: Batch | None = None
        self._line: deque[Batch] = deque()
        # Since when the writer has it, and the timer that looks whether it comes down: one for many groups.
        self._given = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._pause = FIRST_RETRY
        # What is to be read, and of which session; what of it is not written yet, or could not be read, and when the
        # latter is tried again; and the last delivery that has come to the file.
        self._fetches: dict[Fetch, int] = {}
        self._unread: list[Fetch] = []
        self._last = 0
        # Up to which note the file has everything.
        self._filed = 0
        self._reread: asyncio.TimerHandle | None = None
        # Those who wait for the next outcome of a group.
        self._flushing: list[asyncio.Future[str]] = []
        self._groups = 0
        self._rows = 0
        self.commit_times: Histogram = Histogram()

    # -- a broker's life -----------------------------------------------------------------------------------------------

    async def open(self, clock: Callable[[], float]) -> None:
        """Begin. Raises StoreError: the file cannot be used; it says why and what to do, and nothing was written."""
        if self._opened is not None:
            raise StoreError("the store is in use by another broker of this process")
        self._loop = asyncio.get_running_loop()
        beginning = self._loop.run_in_executor(None, begin, self.directory, self._synchronous)
        try:
            opened, highest, note = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread goes on: whoever starts next is to find the lock free.
            beginning.add_done_callback(let_go)
            raise
        self._journal.begin_at(*highest)
        self._last = highest[1]
        self._times.start(clock, note)
        self._opened = opened
        for line in opened.notices:
            self._notice(line)
        self._notice_jump()
        self._writer = Writer(opened, self._principals)
        self._writer.start()
        # What could not be written when the store was closed, and what was told since.
        if self._air is not None:
            self._write()
        if self._journal.noted:
            self.begun()
        self._unread = list(self._fetches)
        self._read_again()

    async def load(self) -> Saved:
        """Everything that the file has; in the writer's thread."""
        await self.flush()
        opened = self._opened
        assert opened is not None
        now = self._times.now()
        try:
            loaded: Loaded = await self._call(lambda: read(opened.db, now, self._principals, self._pages.page))
        except sqlite3.Error as error:
            raise StoreError(told(opened.path, error)) from error
        except Damaged as error:
            raise StoreError(damaged(opened.path, error)) from error
        except asyncio.CancelledError:
            # Nobody wants to know any more, and `close` waits for the thread.
            opened.db.interrupt()
            raise
        for kept in loaded.kept:
            self._journal.kept.setdefault(kept.client_id, kept)
        for broadcast in loaded.saved.broadcasts:
            self._journal.under_way[broadcast.number] = None
        return loaded.saved

    async def flush(self) -> None:
        """Return when what was told is in the file."""
        number = self._commits.told
        # Acknowledged deliveries, too, go from the file, for which nobody waits.
        while self._filed < number:
            loop = self._loop
            if loop is None:
                raise StoreError("the store is closed")
            outcome: asyncio.Future[str] = loop.create_future()
            self._flushing.append(outcome)
            if self._retry is not None:
                self._retry.cancel()
                self._try_again()
            elif self._air is None:
                self._end_group()
            reason = await outcome
            if reason:
                raise StoreError(reason)

    async def close(self) -> None:
        """Flush, end the thread, and let go of the file."""
        opened, writer = self._opened, self._writer
        if opened is None or writer is None:
            return
        try:
            await self.flush()
        finally:
            for handle in (self._timer, self._soon, self._ease, self._retry, self._watch, self._reread):
                if handle is not None:
                    handle.cancel()
            self._timer = self._soon = self._ease = self._retry = self._watch = self._reread = None
            writer.end()
            ended = await asyncio.to_thread(writer.join, self._stall_timeout or None)
            self._opened = self._writer = self._loop = None
            if ended:
                await asyncio.to_thread(opened.close)
            else:
                # It is in the middle of a call of the system: file and lock are let go of with the process.
                raise StoreError(self._stall_reason(opened))

    def figures(self) -> Iterator[tuple[str, object]]:
        """See `Store.figures`."""
        writer = self._writer
        yield "path", str(self.directory)
        yield "groups", self._groups
        yield "rows", self._rows
        yield "bytes", 0 if writer is None else writer.bytes
        yield "paged/messages", self._pages.messages
        yield "paged/bytes", self._pages.bytes
        yield "waiting", self._commits.told - self._commits.committed

    # -- groups --------------------------------------------------------------------------------------------------------

    def begun(self) -> None:
        """The first note of a group came."""
        loop = self._loop
        if loop is None:
            return
        self._began = loop.time()
        if self._window > 0.0:
            self._timer = loop.call_later(self._window, self._window_over)
        else:
            self._timer = loop.call_soon(self._window_over)

    def due(self) -> None:
        """The group may end."""
        loop = self._loop
        if loop is None:
            return
        if self._commits.failed and self._noted_bytes() >= FULL * self._group_bytes:
            self._commits.full = True
        if self._soon is None:
            self._soon = loop.call_soon(self._window_over)

    def eased(self) -> None:
        """Deliveries are over: perhaps nobody need wait for the open group."""
        loop = self._loop
        if loop is not None and self._ease is None:
            self._ease = loop.call_soon(self._let_go)

    def _let_go(self) -> None:
        """Let those go on who wait for what nothing is left to keep of, with no group before that they wait for."""
        if self._ease is not None:
            self._ease.cancel()
            self._ease = None
        number = self._journal.safe()
        if not self._line and (self._air is None or not self._air.awaited):
            self._commits.advance(number)

    def _window_over(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._journal.noted:
            self._ripe = True
            if self._air is None:
                self._end_group()
            elif self._journal.size() >= self._group_bytes and not self._commits.failed:
                self._line.append(self._take())

    def _noted_bytes(self) -> int:
        """What waits for the disk, but for the group that is being written."""
        return self._journal.size() + sum(batch.size for batch in self._line)

    def _take(self) -> Batch:
        """End the open group."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ripe = False
        batch = self._journal.take()
        batch.began = self._began
        batch.clock = self._times.note()
        self._notice_jump()
        if self._journal.noted:
            # Young deliveries: their window begins.
            self.begun()
        return batch

    def _end_group(self) -> None:
        """Write the open group; no other is being written."""
        batch = self._take()
        if batch.empty():
            self._last = batch.last
            self._filed = batch.number
            self._commits.advance(batch.number)
            self._let_go()
            self._tell("")
            self._read_again()
            return
        self._air = batch
        self._write()

    def _write(self) -> None:
        writer, loop, batch = self._writer, self._loop, self._air
        assert writer is not None
        assert loop is not None
        assert batch is not None

        def job() -> None:
            written = writer.write(batch)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
                loop.call_soon_threadsafe(self._written, written)

        self._given = loop.time()
        if self._watch is None and self._stall_timeout > 0.0:
            self._watch = loop.call_later(self._stall_timeout, self._look)
        writer.put(job)

    def _look(self) -> None:
        """Whether the group that is being written takes too long."""
        loop, opened = self._loop, self._opened
        self._watch = None
        if loop is None or opened is None or self._air is None or self._retry is not None:
            return
        left = self._given + self._stall_timeout - loop.time()
        self._watch = loop.call_later(left if left > 0.0 else self._stall_timeout, self._look)
        if left <= 0.0:
            self._tell_failure(self._stall_reason(opened))

    def _stall_reason(self, opened: Opened) -> str:
        remedy = "the disk does not answer: look at the system's log"
        return f"{opened.path}: {remedy} (a write takes more than {self._stall_timeout:g} s)"

    def _written(self, written: Written) -> None:
        """A group came down."""
        batch = written.batch
        if batch is not self._air or self._loop is None:
            return
        if written.error is not None:
            self._failed(written.error)
            return
        self._air = None
        self._last = batch.last
        self._filed = batch.number
        self._pause = FIRST_RETRY
        self._groups += 1
        self._rows += _rows(batch)
        self.commit_times.add(self._loop.time() - batch.began)
        if self._commits.failed:
            self._commits.recover()
            if self.listener is not None:
                self.listener.recovered()
        self._commits.advance(batch.number)
        self._let_go()
        self._tell("")
        if self._line:
            self._air = self._line.popleft()
            self._write()
        elif self._ripe:
            self._end_group()
        self._read_again()

    def _failed(self, error: Exception) -> None:
        """The group stays, and is tried again."""
        opened, loop = self._opened, self._loop
        assert opened is not None
        assert loop is not None
        reason = told(opened.path, error) if isinstance(error, sqlite3.Error) else f"{type(error).__name__}: {error}"
        self._retry = loop.call_later(self._pause, self._try_again)
        self._pause = min(self._pause * 2, LAST_RETRY)
        self._tell_failure(reason)

    def _tell_failure(self, reason: str) -> None:
        self._commits.fail()
        if self.listener is not None:
            self.listener.failed(reason)
        self._tell(reason)

    def _notice(self, line: str) -> None:
        if self.listener is not None:
            self.listener.noticed(line)

    def _notice_jump(self) -> None:
        """Tell that the system's clock is not believed."""
        jump = self._times.jumped
        if jump:
            self._times.jumped = 0.0
            found = f"{abs(jump) / 86_400:,.0f} days {'ahead' if jump > 0 else 'back'}"
            self._notice(f"the system's clock has jumped {found}: for sessions and messages no time has passed")

    def _try_again(self) -> None:
        self._retry = None
        self._write()

    def _tell(self, reason: str) -> None:
        """Those who flush: a group is over, or failed for this reason."""
        flushing, self._flushing = self._flushing, []
        for outcome in flushing:
            if not outcome.done():
                outcome.set_result(reason)

    # -- what waits on disk alone --------------------------------------------------------------------------------------

    def fetch(self, session: int, fetch: Fetch) -> None:
        """Have the writer's thread read it, after the group that is being written."""
        self._fetches[fetch] = session
        self._read(fetch)

    def _read(self, fetch: Fetch) -> None:
        writer, loop, opened = self._writer, self._loop, self._opened
        if writer is None or loop is None or opened is None:
            return
        session, now = self._fetches[fetch], self._times.now()

        def job() -> None:
            found: list[DeliveryRecord] | Exception = []
            try:
                if not fetch.over:
                    found = read_on_disk(opened.db, session, fetch.first, fetch.last, now)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # see `_write`
                loop.call_soon_threadsafe(self._found, fetch, found)

        writer.put(job)

    def _found(self, fetch: Fetch, found: list[DeliveryRecord] | Exception) -> None:
        """What the thread has read, or why it could not."""
        loop, opened = self._loop, self._opened
        if loop is None or opened is None or fetch not in self._fetches:
            return
        if isinstance(found, sqlite3.Error):
            self._notice(told(opened.path, found))
            self._unread.append(fetch)
            if self._reread is None:
                self._reread = loop.call_later(LAST_RETRY, self._read_again)
            return
        if isinstance(found, Exception):
            self._notice(damaged(opened.path, found))
            found = []
        elif len(found) < fetch.messages and fetch.last > self._last and not fetch.over:
            self._unread.append(fetch)
            return
        del self._fetches[fetch]
        if not fetch.over:
            fetch.records = found
            self._commits.hand(fetch)

    def _read_again(self) -> None:
        if self._reread is not None:
            self._reread.cancel()
            self._reread = None
        unread, self._unread = self._unread, []
        for fetch in unread:
            self._read(fetch)

    async def _call(self, function: Callable[[], _Value]) -> _Value:
        """The result of a function in the writer's thread."""
        writer, loop = self._writer, self._loop
        assert writer is not None
        assert loop is not None
        outcome: asyncio.Future[_Value] = loop.create_future()

        def tell(value: _Value | None, error: Exception | None) -> None:
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(value)  # type: ignore[arg-type]

        def job() -> None:
            value: _Value | None = None
            failure: Exception | None = None
            try:
                value = function()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, value, failure)

        writer.put(job)
        return await outcome


class _Ends(Shell):
    """The store as its journal knows it."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def begun(self) -> None:
        self._store.begun()

    def due(self) -> None:
        self._store.due()

    def eased(self) -> None:
        self._store.eased()

    def fetch(self, session: int, fetch: Fetch) -> None:
        self._store.fetch(session, fetch)


def _rows(batch: Batch) -> int:
    """Messages and changes of a group, about: what is written of them."""
    return (
        len(batch.plain) // PLAIN.columns
        + len(batch.deliveries) // DELIVERIES.columns
        + len(batch.retained) // RETAINED.columns
        + len(batch.finished)
        + len(batch.changed)
        + len(batch.released)
    )
