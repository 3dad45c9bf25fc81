"""The thread that writes the groups of a store, one after another, each in one transaction.

Owns the connection to the file while it is open. Promises: a group is written completely or not at all; the event loop
is told of each, and waits for none. Between groups, in bounded pieces: it removes what ended sessions left, writes back
the write-ahead log, and returns empty pages to the system. If the disk fails, `store` decides: the writer reports it,
and writes the same group again when asked to.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Final

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store.group_commit import checksums
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.sqlite import schema
from canopy_mqtt.store.sqlite.opening import Opened
from canopy_mqtt.store.sqlite.reading import discard_deliveries
from canopy_mqtt.store.sqlite.sweeping import Sweep

LOG_PAGES: Final = 4_000
"""Pages of the log, about, from which on it is written back to the file after the next commit: 16 MB."""

IDLE_LOG_PAGES: Final = 1_000
"""The same when nothing else is to be done: a few pages are not worth the disk's time, and a flash disk's life."""

PAGE: Final = 4096

PAGE_ROWS: Final = 256
"""Deliveries of a page of a queue, at most."""

IDLE: Final = 0.05
"""Seconds without work after which the next piece of the background's is done."""

BETWEEN: Final = 0.25
"""Seconds between two pieces of it where groups leave no idle time."""

SWEPT_PAGES: Final = 100
"""Pages of the log for what ended sessions left, about, in a piece."""

VACUUM_PAGES: Final = 128
"""Pages that the file gives back in a piece, while nothing else is to be done. Each is a step, which gives up the
interpreter's lock."""

VACUUM_ABOVE: Final = 1_000
"""Empty pages below which none are given back: the next messages need them."""


class Written:
    """The outcome of writing a group. `error` None: it is in the file."""

    def __init__(self, batch: Batch, error: Exception | None) -> None:
        self.batch = batch
        self.error = error


Job = Callable[[], None]


class Writer:
    """One thread and its queue of jobs."""

    def __init__(self, opened: Opened, principals: Principals) -> None:
        self._opened = opened
        self._principals = principals
        self._db = opened.db
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A process that ends without closing its store is not kept alive by it: the file is whole at any point.
        self._thread = threading.Thread(target=self._run, name="canopy-store", daemon=True)
        # Of the file and its log, as of the last look.
        self.bytes = 0
        # Pages that the log has grown by since it was written back, about.
        self._log_pages = 0
        self._sweep = Sweep(opened.db)
        # Whether the background may have anything to do, and whether it has taken pages out of the file.
        self._untidy = True
        self._shrunk = False
        self._tidied = perf_counter()
        # Deliveries that cannot be used, to be removed when there is time: all messages are counted anew then.
        self._damaged: list[int] = []

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job for the thread, behind all earlier ones. It must not raise."""
        self._jobs.put(job)

    def discard(self, numbers: list[int]) -> None:
        """Delete deliveries that cannot be used, when there is nothing else to do; on the thread."""
        self._damaged += numbers

    def end(self) -> None:
        """End the thread after all earlier jobs. Does not wait."""
        self._jobs.put(None)

    def join(self, timeout: float | None) -> bool:
        """Wait for the end of the thread, for so many seconds at most; False: it is still at work."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE if self._busy() else None)
            except Empty:
                self._tidy(True)
                continue
            if job is None:
                self._tidy_damage()
                return
            job()
            if self._log_pages >= LOG_PAGES:
                self._write_back("PASSIVE")
            if perf_counter() - self._tidied >= BETWEEN:
                self._tidy(False)

    # -- groups; on the thread -----------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> Written:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            self._statements(batch)
            db.execute("COMMIT")
        except Exception as error:  # whatever it is: whoever waits for the group is to be told
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            return Written(batch, error)
        if batch.gone or batch.finished or batch.unpaged or batch.retained_cleared:
            self._untidy = True
        # What changes in place costs a page each, at most.
        self._log_pages += 4 + 2 * batch.size // PAGE + (_finished(batch) + len(batch.changed)) // 8
        return Written(batch, None)

    def _statements(self, batch: Batch) -> None:
        execute = self._db.execute
        if batch.clock is not None:
            execute(schema.FORGET_CLOCK)
            execute(schema.CLOCK_NOTED, batch.clock.row())
        if batch.gone:
            gone = json.dumps(batch.gone)
            execute(schema.SESSION_GONE, (gone,))
            execute(schema.REMEMBER_GONE, (json.dumps([(each, checksums.of_gone(each)) for each in batch.gone]),))
            self._sweep.ended(batch.gone)
            execute(schema.FORGET_READ_BACK, (gone,))
        if batch.wills_gone:
            execute(schema.SESSION_GONE, (_numbers(batch.wills_gone),))
        if batch.sessions:
            values = batch.sessions
            for at in range(2, len(values), schema.SESSIONS.columns):
                principal = values[at]
                if isinstance(principal, Principal):  # it is a text when the group is written again
                    values[at] = self._principals.write(principal)
            self._insert("session", schema.SESSIONS, values)
        if batch.streamed:
            execute(schema.STREAMED, (json.dumps(batch.streamed),))
        if batch.subscriptions:
            self._insert("subscription", schema.SUBSCRIPTIONS, batch.subscriptions)
        if batch.unsubscribed:
            execute(schema.MARK_UNSUBSCRIBED, (json.dumps(batch.unsubscribed),))
            execute(schema.FORGET_MARKED)
        if batch.finished:
            execute(schema.FINISHED, (_numbers(batch.finished),))
        for page in batch.unpaged:
            execute(schema.UNPAGED, page)
        if batch.read_back:
            rows = [(*each, checksums.of_read_back(*each)) for each in batch.read_back]
            execute(schema.READ_BACK, (json.dumps(rows),))
        if batch.messages:
            self._insert("message", schema.MESSAGES, batch.messages)
        if batch.plain:
            checksums.fill_plain(batch.plain)
            self._execute(schema.QUEUED_DELIVERIES, batch.plain)
        if batch.deliveries:
            self._insert("delivery", schema.DELIVERIES, batch.deliveries)
        if batch.changed:
            execute(schema.CHANGED, (json.dumps([(*each, checksums.state_of(*each)) for each in batch.changed]),))
        if batch.released:
            execute(
                schema.RELEASED, (json.dumps([(each[0], checksums.of_released(*each)) for each in batch.released]),)
            )
        if batch.received:
            execute(schema.RECEIVED, (json.dumps([(*each, *checksums.of_received(each)) for each in batch.received]),))
        if batch.completed:
            execute(schema.COMPLETED, (json.dumps(batch.completed),))
        if batch.retained_cleared:
            execute(schema.RETAINED_CLEARED, (json.dumps(batch.retained_cleared),))
        if batch.retained:
            self._insert("retained", schema.RETAINED, batch.retained)
        if batch.broadcasts:
            self._insert("broadcast", schema.BROADCASTS, batch.broadcasts)
        if batch.passed:
            execute(schema.PASSED, (json.dumps([(*each, *checksums.of_passed(each)) for each in batch.passed]),))
        if batch.broadcasts_over:
            over = _numbers(batch.broadcasts_over)
            execute(schema.BROADCAST_OVER, (over,))
            execute(schema.FORGET_PASSED, (over,))

    def _insert(self, table: str, rows: schema.Insert, values: list[object]) -> None:
        checksums.fill(table, values, rows.columns)
        self._execute(rows, values)

    def _execute(self, rows: schema.Insert, values: list[object]) -> None:
        for text, part in rows.statements(values):
            self._db.execute(text, part)

    # -- the background; on the thread ---------------------------------------------------------------------------------

    def _busy(self) -> bool:
        return self._untidy or bool(self._damaged) or self._log_pages >= IDLE_LOG_PAGES

    def _tidy(self, idle: bool) -> None:
        """Do one piece. An error is not reported: the piece is tried again, and groups report the disk."""
        self._tidied = perf_counter()
        self._measure()
        if not self._busy():
            return
        try:
            if self._untidy and self._sweep.piece():
                self._log_pages += SWEPT_PAGES
                return
            if idle:
                self._tidy_damage()
            if not idle or (self._untidy and self._shrink()):
                return
            self._untidy = False
            if self._shrunk or self._log_pages >= IDLE_LOG_PAGES:
                # Only so does the file itself get shorter.
                self._shrunk = False
                self._write_back("TRUNCATE")
                self._measure()
        except Exception:  # of whatever kind: the thread goes on
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            # With the next group.
            self._untidy = False
            self._log_pages = 0

    def _tidy_damage(self) -> None:
        """Remove deliveries that cannot be used. One that stays in the file for an error is found again later."""
        numbers, self._damaged = self._damaged, []
        if numbers:
            with contextlib.suppress(sqlite3.Error):
                discard_deliveries(self._db, numbers)
                self._log_pages += SWEPT_PAGES

    def _shrink(self) -> bool:
        """Give back some empty pages; False: there are few."""
        db = self._db
        free = db.execute("PRAGMA freelist_count").fetchone()[0]
        if free <= VACUUM_ABOVE:
            return False
        # A page a step: `execute` would take one step.
        db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        self._shrunk = True
        self._log_pages += VACUUM_PAGES
        if self._log_pages >= LOG_PAGES:
            self._write_back("PASSIVE")
        return True

    def _write_back(self, how: str) -> None:
        """Write the log back to the file, as far as no reader needs it."""
        self._log_pages = 0
        with contextlib.suppress(sqlite3.Error):
            self._db.execute(f"PRAGMA wal_checkpoint({how})").fetchall()

    def _measure(self) -> None:
        path = self._opened.path
        total = 0
        for each in (path, path.with_name(path.name + "-wal")):
            with contextlib.suppress(OSError):
                total += each.stat().st_size
        self.bytes = total


def _finished(batch: Batch) -> int:
    """Return how many deliveries are over, about."""
    return len(batch.finished) + PAGE_ROWS * len(batch.unpaged)


def _numbers(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
