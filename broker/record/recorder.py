"""The recorder of a broker: a tap in the routing, a queue with bounds, and a thread that writes.

Owns the thread, and what happens when it cannot write: the recorder gives up, says so in the log and under
`$SYS/broker/recorder`, and the broker goes on without it, until the recorder can begin again: it tries every `RETRY` s.

Promises: the event loop never waits for a disk. What is lost is named: by a `gap` event when the queue is full, by the
next run when the process died or the recorder gave up.

`core.tap` knows what is recorded, and in which order; `writer` where it goes.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from broker.core.routing.router import Router
from broker.core.tap import Sink, Tap
from broker.record.batches import batch
from broker.record.files.folder import ENDED, GAVE_UP, Folder, Left, RecorderError
from broker.record.snapshots import Snapshot
from broker.record.unpack import Rows
from broker.record.writer import Options, TableLog, Writer

TURN: Final = 0.1
"""Seconds between two hand-overs to the thread, where little happens."""

ROWS: Final = 2_048
"""Rows that are taken apart in one go: half a millisecond, for which the interpreter's lock is held."""

RETRY: Final = 15.0
"""Seconds after which a recorder that could not write tries to begin again."""

CLOCK_STEP: Final = 1_000
"""Microseconds that the wall clock may drift from the monotonic one before the times of events follow it."""


class Recorder(Sink):
    """Records a broker, from `start` to `stop`: a run, and another one whenever it could not write for a while."""

    def __init__(self, options: Options, router: Router, log: Any) -> None:
        self.options = options
        self.run_id = ""
        self.tap: Tap | None = None
        # Why it gave up, or did not begin; empty while it records.
        self.failure = ""
        self.table = TableLog(log)
        # Who is told when it gives up while it records; it does not begin again then.
        self.gave_up: Callable[[str], None] | None = None
        self.retry = RETRY
        # What begins again, as long as it is not stopping.
        self._beginning: asyncio.Task[None] | None = None
        self._stopping = False
        # Events of earlier runs, and of the one that was given up, that did not fit into the queue.
        self._lost = 0
        self._router = router
        self._log = log
        self._folder = Folder(options.directory)
        self._output = Writer(options, self._table_told)
        # What was handed over, when, and the account of the tap up to there; None: it is the end.
        self._inbox: SimpleQueue[tuple[list[tuple[Any, ...]], int, int, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The walk that is under way, and when the next one begins (monotonic).
        self._snapshot: Snapshot | None = None
        self._next_snapshot = 0.0
        self._loop: asyncio.AbstractEventLoop
        # The thread's own.
        self._offset = 0

    @property
    def recording(self) -> bool:
        """Whether what happens now is being recorded."""
        return self.tap is not None

    @property
    def lost(self) -> int:
        """Events of this run that did not fit into the queue."""
        return self._lost + (0 if self.tap is None else self.tap.lost)

    @property
    def segments(self) -> int:
        """Finished segments."""
        return self._output.segments

    @property
    def events(self) -> int:
        """Events in them."""
        return self._output.events

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return self._output.bytes

    # -- the event loop's side -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. A folder that cannot be written to is told in the log, and nothing is recorded until it can be."""
        self._loop = asyncio.get_running_loop()
        self.failure = ""
        self._stopping = False
        await self._begin()

    async def _begin(self) -> None:
        self.run_id = secrets.token_hex(4)
        self._inbox = SimpleQueue()
        opening = self._loop.run_in_executor(None, self._folder.open)
        try:
            left = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Nobody waits for it any more: the folder shall not stay taken.
            opening.add_done_callback(self._unwanted)
            raise
        except RecorderError as error:
            before, self.failure = self.failure, str(error)
            if self.failure != before:
                self._log.error("recorder not started", reason=self.failure)
            self._begin_later()
            return
        self.failure = ""
        options = self.options
        tap = Tap(
            time.monotonic_ns, self, self._folder.memo, options.queue_events, options.queue_bytes, options.deliveries
        )
        tap.seq = left.last_seq
        self.tap = tap
        left.tell(self._log)
        if left.missing is not None:
            first, last = left.missing
            tap.gap(first, last, left.why)
        self._router.record(tap, options.filters)
        self._snapshot = None
        self._next_snapshot = self._loop.time() + options.snapshot_seconds
        self._thread = threading.Thread(target=self._run, args=(tap,), name="canopy-recorder", daemon=True)
        self._thread.start()
        first = left.last_seq + 1
        self._log.info("recording", directory=str(options.directory), run_id=self.run_id, first_seq=first)
        self._turn()

    def _begin_later(self) -> None:
        if not self._stopping:
            self._timer = self._loop.call_later(self.retry, self._begin_again)

    def _begin_again(self) -> None:
        self._timer = None
        self._beginning = self._loop.create_task(self._begin())

    def _unwanted(self, opening: asyncio.Future[Left]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._folder.close(ended=None)

    def hand_over(self) -> None:
        """Give the thread what has come together."""
        tap = self.tap
        if tap is not None and not tap.empty:
            self._inbox.put((tap.take(False), time.monotonic_ns(), tap.put_events, tap.put_bytes))

    def _turn(self) -> None:
        tap = self.tap
        if tap is None:
            return
        # First: whatever happens, there is another turn.
        self._timer = self._loop.call_later(TURN, self._turn)
        self._tell_subscriptions(tap)
        self.hand_over()
        tap.note_number()

    def _tell_subscriptions(self, tap: Tap) -> None:
        """Go on with the snapshot of the subscriptions, or begin one whose time has come."""
        options = self.options
        now = self._loop.time()
        if self._snapshot is None:
            if not options.snapshot_seconds or now < self._next_snapshot:
                return
            self._snapshot = Snapshot(self._router, tap)
        # A slow disk is not to lose more because of it.
        if options.queue_events and tap.waiting * 2 > options.queue_events:
            return
        if self._snapshot.turn():
            self._snapshot = None
            self._next_snapshot = now + options.snapshot_seconds

    async def stop(self) -> None:
        """Write what there is, finish the segment, let the folder go."""
        self._stopping = True
        self._end_turns()
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            # Whatever comes of it: the folder shall not stay taken.
            await asyncio.wait([beginning])
            self._end_turns()
        tap = self.tap
        if tap is not None:
            self._router.record(None, ())
            entries = tap.take(True)
            tap.note_number()
            self._inbox.put((entries, time.monotonic_ns(), tap.put_events, tap.put_bytes))
        if self._thread is not None:
            self._inbox.put(None)
            await self._loop.run_in_executor(None, self._thread.join)
            self._thread = None
        if tap is not None and self.tap is tap:
            self.tap = None
            self._lost += tap.lost
            await self._loop.run_in_executor(None, self._folder.close, ENDED)
            self._log.info("recorder stopped", segments=self.segments, events=self.events)

    def _end_turns(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, tap: Tap, why: str) -> None:
        """The thread could not write: nothing is recorded any more, and nothing but that changes."""
        if self.tap is not tap:
            return
        self.failure = why
        self._end_turns()
        self._router.record(None, ())
        tap.note_number()
        self.tap = None
        self._lost += tap.lost
        # What waits will not be written.
        self._inbox = SimpleQueue()
        self._folder.close(GAVE_UP)
        self._log.error("recorder gave up", reason=why, lost_from_the_segment_on=True)
        if self.gave_up is not None:
            self.gave_up(why)
        else:
            self._begin_later()

    # -- the thread's side ---------------------------------------------------------------------------------------------

    def _table_told(self, why: str) -> None:
        self._loop.call_soon_threadsafe(self.table.tell, why)

    def _run(self, tap: Tap) -> None:
        output = self._output
        try:
            output.begin(self.run_id)
            while self._work(tap):
                pass
            output.finish()
        except Exception as error:
            # A full disk, or a fault of ours: the broker goes on either way, and says what it goes on without.
            output.abandon()
            why = output.why_not(error)
            try:
                self._loop.call_soon_threadsafe(self._give_up, tap, why)
            except RuntimeError:
                # The loop is gone, and the broker with it.
                self.failure = why

    def _work(self, tap: Tap) -> bool:
        """Write what was handed over, or finish a segment whose time has come. False at the end."""
        output = self._output
        try:
            given = self._inbox.get(timeout=output.patience())
        except Empty:
            output.tend()
            return True
        if given is None:
            return False
        entries, until, events, size = given
        at = 0
        while at < len(entries):
            rows = Rows(self.options.payloads)
            at = rows.fill(entries, at, ROWS)
            output.write(batch(rows, self.run_id, self._wall_offset()))
        output.told_until(until)
        # So much has left the queue: the event loop reads these.
        tap.done_events = events
        tap.done_bytes = size
        output.tend()
        return True

    def _wall_offset(self) -> int:
        """What the wall clock is ahead of the monotonic one (µs); the same until somebody sets the clock."""
        offset = (time.time_ns() - time.monotonic_ns()) // 1000
        if abs(offset - self._offset) > CLOCK_STEP:
            self._offset = offset
        return self._offset
