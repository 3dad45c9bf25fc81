"""A store on disk: one SQLite file in a folder, written by one thread, in groups (`GroupCommitter`).

Owns the file and the thread while it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from canopy_mqtt.core.persistence.journal import DeliveryRecord
from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.store.base import IN_USE, StoreError
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.group_commit.records import Loaded
from canopy_mqtt.store.group_commit.store import GroupStore
from canopy_mqtt.store.sqlite.opening import REFUSE, SET_ASIDE, Opened, close_unused, open_for_broker, told
from canopy_mqtt.store.sqlite.reading import discard, is_damage, read, read_on_disk
from canopy_mqtt.store.sqlite.writer import Writer, Written

_Value = TypeVar("_Value")


class SqliteStore(GroupStore):
    """Keeps everything in `canopy.db` of a directory."""

    def __init__(self, directory: str | Path, *, on_damage: str = REFUSE, **terms: Any) -> None:
        """`on_damage`: whether a file whose pages are damaged is refused, or set aside; `terms`: see `GroupStore`."""
        super().__init__(str(Path(directory)), **terms)
        self.directory = Path(directory)
        self._on_damage = on_damage
        # While it is open.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: Opened | None = None
        self._writer: Writer | None = None

    # -- a broker's life -----------------------------------------------------------------------------------------------

    async def open(self, clock: Callable[[], float]) -> None:
        """Open the store. Raises StoreError: the file cannot be used; it says why and what to do, and nothing was
        written."""
        if self._opened is not None:
            raise StoreError(IN_USE)
        loop = self._loop = asyncio.get_running_loop()
        beginning = loop.run_in_executor(None, open_for_broker, self.directory, self._synchronous, self._on_damage)
        try:
            opened, highest, note = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread goes on: whoever starts next is to find the lock free.
            beginning.add_done_callback(close_unused)
            raise
        self._times.start(clock, note)
        self._opened = opened
        for line in opened.notices:
            self._committer.notice(line)
        if opened.rebuilt is not None and self.listener is not None:
            self.listener.set_aside(str(opened.rebuilt.aside), opened.rebuilt.lost, opened.rebuilt.kept)
        self._writer = Writer(opened, self._principals)
        self._writer.start()
        self._committer.start(loop, highest)

    async def _load(self, now: float) -> Loaded:
        """Read in the writer's thread."""
        opened = self._opened
        assert opened is not None

        def work() -> Loaded:
            loaded = read(opened.db, now, self._principals, self._pages.page)
            discard(opened.db, loaded)
            return loaded

        try:
            return await self._call(work)
        except sqlite3.Error as error:
            raise StoreError(told(opened.path, error)) from error
        except asyncio.CancelledError:
            # Nobody wants to know any more, and `close` waits for the thread.
            opened.db.interrupt()
            raise

    async def close(self) -> None:
        opened, writer = self._opened, self._writer
        if opened is None or writer is None:
            return
        try:
            await self._committer.finish()
        finally:
            self._committer.rest()
            writer.end()
            ended = await asyncio.to_thread(writer.join, self._stall_timeout or None)
            self._committer.stop()
            self._opened = self._writer = self._loop = None
            if ended:
                await asyncio.to_thread(opened.close)
            else:
                # It is in the middle of a call of the system: file and lock are let go of with the process.
                raise StoreError(self._stall_reason(opened))

    def _size(self) -> int:
        return 0 if self._writer is None else self._writer.bytes

    # -- the thread's work ---------------------------------------------------------------------------------------------

    def discard(self, numbers: list[int]) -> None:
        writer = self._writer
        if writer is not None:
            writer.put(lambda: writer.discard(numbers))

    def stalled(self) -> str:
        return "" if self._opened is None else self._stall_reason(self._opened)

    def _stall_reason(self, opened: Opened) -> str:
        remedy = "the disk does not answer: look at the system's log"
        return f"{opened.path}: {remedy} (a write takes more than {self._stall_timeout:g} s)"

    def write(self, batch: Batch) -> None:
        writer, loop = self._writer, self._loop
        assert writer is not None
        assert loop is not None

        def job() -> None:
            written = writer.write(batch)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
                loop.call_soon_threadsafe(self._written, written)

        writer.put(job)

    def _written(self, written: Written) -> None:
        error, opened = written.error, self._opened
        if error is None:
            self._committer.written(written.batch)
        elif opened is not None:
            reason = (
                told(opened.path, error) if isinstance(error, sqlite3.Error) else f"{type(error).__name__}: {error}"
            )
            ruined = isinstance(error, sqlite3.Error) and is_damage(error) and self._on_damage == SET_ASIDE
            self._committer.failed(written.batch, reason, for_good=ruined)
            if ruined and self.listener is not None:
                # Its next start sets the file aside.
                self.listener.replaced()

    def read(self, fetch: Fetch, session: int) -> None:
        writer, loop, opened = self._writer, self._loop, self._opened
        if writer is None or loop is None or opened is None:
            return
        now = self._times.now()

        def job() -> None:
            found: tuple[list[DeliveryRecord], Damages] | Exception = ([], Damages())
            try:
                if not fetch.over:
                    found = read_on_disk(opened.db, session, fetch.first, fetch.last, now)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # see `write`
                loop.call_soon_threadsafe(self._found, fetch, found)

        writer.put(job)

    def _found(self, fetch: Fetch, found: tuple[list[DeliveryRecord], Damages] | Exception) -> None:
        """Pass on what the thread has read, or why it could not."""
        opened, fetches = self._opened, self._committer.fetches
        if opened is None:
            return
        if isinstance(found, Exception):
            fetches.unread(fetch, told(opened.path, found))
        else:
            fetches.found(fetch, *found)

    async def _call(self, function: Callable[[], _Value]) -> _Value:
        """Return the result of a function in the writer's thread."""
        writer = self._writer
        assert writer is not None
        outcome: Future[_Value] = Future()

        def job() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(function())
                except Exception as error:
                    outcome.set_exception(error)

        writer.put(job)
        return await asyncio.wrap_future(outcome)
