"""The recorder of a broker: a tap in the routing, a bounded queue, and a thread that writes.

Owns the thread, and the reaction to a failed write: the recorder gives up, reports it in the log and under
`$SYS/broker/recorder`, and tries every `RETRY` s to begin again. Until then events are numbered, and not kept.

Promises: the event loop never waits for a disk. Lost events are reported: by a `gap` event if the queue is full, by the
next run if the process died or the recorder gave up. A gap never reports fewer than were lost. `tap` numbers the
events; `writer` writes them.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.record.files.folder import ENDED, Folder, Left, RecorderError
from canopy_mqtt.record.left_parts import settle_left_parts
from canopy_mqtt.record.tap import Sink, Tap
from canopy_mqtt.record.unpack import FILL_BYTES, Rows
from canopy_mqtt.record.writer import Options, TableLog, Writer, batch

STEP: Final = 512
"""Subscriptions, and visited sessions, in one turn: a millisecond."""


class Snapshot:
    def __init__(self, router: Router, tap: Tap) -> None:
        self._router = router
        self._tap = tap
        self._first = tap.seq + 1
        self._recorded = 0
        # Whom the walk has still to come to, the next one last; of one session, what of it is left.
        self._sessions: list[Session] = list(router.sessions.values())
        self._left: list[Subscription] = []
        self._of: Session | None = None

    def turn(self, limit: int = STEP) -> bool:
        """Record up to `limit` subscriptions, of up to `limit` sessions. Returns True after the last one."""
        looked = recorded = 0
        while recorded < limit:
            if self._left:
                subscription = self._left.pop()
                # Taken back or replaced meanwhile: that was recorded at the time.
                if self._of is not None and self._of.subscriptions.get(subscription.topic_filter) is subscription:
                    self._tap.subscribed(subscription, True)
                    recorded += 1
                continue
            if looked == limit:
                break
            if not self._sessions:
                self._recorded += recorded
                self._tap.snapshot(self._first, self._recorded)
                return True
            looked += 1
            self._of = session = self._sessions.pop()
            # Of one that is over, the ends of its subscriptions are being recorded.
            if self._router.sessions.get(session.client_id) is session:
                self._left = list(session.subscriptions.values())
        self._recorded += recorded
        return False


TURN: Final = 0.1
"""Seconds between two deliveries to the thread when there are few events."""

ROWS: Final = 2_048
"""Rows that are unpacked at a time: half a millisecond, during which the interpreter's lock is held."""

BATCH: Final = 32_768
"""Rows of one batch, at most. Arrow releases the interpreter's lock some forty times for a batch of any size,
and a busy event loop keeps it for 5 ms each time: small batches could not keep up."""

RETRY: Final = 15.0
"""Seconds after which a recorder that could not write begins again."""

HOLD: Final = "hold"
"""The value of `Options.when_full` that makes publishers wait."""

STOPPED: Final = "stopped"
"""The reason of a gap: writing was impossible."""

CLOCK_STEP: Final = 1_000
"""Microseconds of drift between wall clock and monotonic clock after which the times of events follow the wall
clock."""


class Recorder(Sink):
    """Records a broker from `start` to `stop`: one run, and another one after each failure to write."""

    def __init__(self, options: Options, router: Router, log: Any, workers: int = 1, worker: int = 0) -> None:
        """`worker`: the index of the broker among `workers`; 1 worker: it is the whole broker."""
        self.options = options
        self.run_id = ""
        self.tap: Tap | None = None
        # Why it gave up, or did not begin; empty while it records.
        self.failure = ""
        self.table = TableLog(log)
        # Called when it gives up while it records; it does not begin again then.
        self.gave_up: Callable[[str], None] | None = None
        self.retry = RETRY
        # What numbers events while nothing is recorded, and the number from which on no folder has a note of them.
        self._counting: Tap | None = None
        self._unnoted = 0
        # What begins again, as long as it is not stopping.
        self._retry_timer: asyncio.TimerHandle | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._stopping = False
        # Events of earlier runs, and of the one that was given up, that did not fit into the queue.
        self._lost = 0
        self._router = router
        self._log = log
        self._among = workers, worker
        self._folder = Folder(options.directory)
        self._output = Writer(options, self._table_told)
        # What was handed over, when, and the account of the tap up to there; None: it is the end.
        self._inbox: SimpleQueue[tuple[list[tuple[Any, ...]], int, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The walk that is under way, and when the next one begins (monotonic).
        self._snapshot: Snapshot | None = None
        self._next_snapshot = 0.0
        self._loop: asyncio.AbstractEventLoop
        # The thread's own; of a small queue a batch is a part, or nothing would come in while it is written.
        self._offset = 0
        self._batch = max(ROWS, min(BATCH, options.queue_events // 8)) if options.queue_events else BATCH

    @property
    def recording(self) -> bool:
        return self.tap is not None

    @property
    def lost(self) -> int:
        """Events that did not fit into the queue, or came while nothing was recorded."""
        tap = self.tap or self._counting
        return self._lost + (0 if tap is None else tap.lost)

    @property
    def behind(self) -> int:
        """Events for which publishers wait; 0: none wait."""
        tap = self.tap
        return int(tap.waiting) if tap is not None and tap.half_full else 0

    @property
    def segments(self) -> int:
        return self._output.segments

    @property
    def events(self) -> int:
        return self._output.events

    @property
    def bytes(self) -> int:
        return self._output.bytes

    # -- the event loop's side -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start. A folder that cannot be written to is reported in the log, and is tried again later."""
        self._loop = asyncio.get_running_loop()
        self.failure = ""
        self._stopping = False
        await self._loop.run_in_executor(None, settle_left_parts, self.options, *self._among, self._log)
        await self._begin()

    async def _begin(self) -> None:
        self.run_id = secrets.token_hex(4)
        self._inbox = SimpleQueue()
        counting = self._counting
        kept = counting is not None and self._folder.memo is not None
        if counting is not None and kept and await self._loop.run_in_executor(None, self._folder.gone):
            # Another disk, or an empty folder: what was lost until then belongs to the record that is gone.
            counting.keep_number(bytearray(8))
            self._unnoted = counting.seq
            self._folder.close(ended=None)
        opening = self._loop.run_in_executor(None, self._folder.open)
        try:
            left = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The caller has given up: the folder must not stay locked.
            opening.add_done_callback(self._unwanted)
            raise
        except RecorderError as error:
            before, self.failure = self.failure, str(error)
            if self.failure != before:
                self._log.error("recorder not started", reason=self.failure)
            if self._counting is None and not self._stopping:
                tap = self._tap(bytearray(8))
                self._router.record(tap, self.options.filters)
                # Subscriptions that were there before are no events.
                tap.seq = self._unnoted = 0
                self._count(tap)
            self._begin_later()
            return
        self.failure = ""
        self._end_turns()
        options = self.options
        tap = self._tap(self._folder.memo)
        tap.seq = left.last_seq
        left.tell(self._log)
        gaps = [] if left.missing is None else [(*left.missing, left.why)]
        counting, self._counting = self._counting, None
        if counting is not None:
            # What happened while nothing was recorded has its numbers.
            counting.take(False)
            self._lost += counting.lost
            tap.seq = counting.seq if left.held else left.last_seq + counting.seq - self._unnoted
            if left.held and left.missing is not None:
                gaps = [(left.missing[0], tap.seq, STOPPED)]
            elif tap.seq > left.last_seq:
                gaps.append((left.last_seq + 1, tap.seq, STOPPED))
        self.tap = tap
        first = tap.seq + 1
        for begin, end, why in gaps:
            tap.gap(begin, end, why)
        if options.when_full == HOLD and options.hold_timeout:
            tap.hold_publishers(self._router.counters.totals, options.hold_timeout)
        self._router.record(tap, options.filters)
        tap.note_number()
        self._snapshot = None
        self._next_snapshot = self._loop.time() + options.snapshot_seconds
        self._thread = threading.Thread(target=self._run, args=(tap,), name="canopy-recorder", daemon=True)
        self._thread.start()
        self._log.info("recording", directory=str(options.directory), run_id=self.run_id, first_seq=first)
        self._turn()

    def _tap(self, memo: Any) -> Tap:
        options = self.options
        return Tap(time.monotonic_ns, self, memo, options.queue_events, options.queue_bytes, options.deliveries)

    def _count(self, tap: Tap) -> None:
        tap.shut()
        self._counting = tap
        self._end_turns()
        self._turn()

    def _begin_later(self) -> None:
        if not self._stopping:
            self._retry_timer = self._loop.call_later(self.retry, self._begin_again)

    def _begin_again(self) -> None:
        self._retry_timer = None
        self._beginning = self._loop.create_task(self._begin())

    def _unwanted(self, opening: asyncio.Future[Left]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._folder.close(ended=None)

    def hand_over(self) -> None:
        tap = self.tap
        if tap is not None and not tap.empty:
            self._inbox.put((tap.take(False), tap.put_events, tap.put_bytes))

    def _turn(self) -> None:
        tap, counting = self.tap, self._counting
        if tap is None and counting is None:
            return
        # First: whatever happens, there is another turn.
        self._timer = self._loop.call_later(TURN, self._turn)
        if tap is not None:
            self._tell_subscriptions(tap)
            self.hand_over()
            tap.note_number()
        elif counting is not None:
            # Losses get their numbers.
            counting.take(False)
            counting.note_number()

    def _tell_subscriptions(self, tap: Tap) -> None:
        """Continue the snapshot of the subscriptions, or begin a new one when it is due."""
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
        """Write the queued events, finish the segment, unlock the folder."""
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
            self._inbox.put((entries, tap.put_events, tap.put_bytes))
        if self._thread is not None:
            self._inbox.put(None)
            await self._loop.run_in_executor(None, self._thread.join)
            self._thread = None
        if tap is not None and self.tap is tap:
            self.tap = None
            self._lost += tap.lost
            await self._loop.run_in_executor(None, self._folder.close, ENDED)
            self._log.info("recorder stopped", segments=self.segments, events=self.events)
        self._end_turns()
        counting, self._counting = self._counting, None
        if counting is not None:
            self._router.record(None, ())
            counting.take(False)
            counting.note_number()
            self._lost += counting.lost
            await self._loop.run_in_executor(None, self._folder.close, None)

    def _end_turns(self) -> None:
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry_timer = None

    def _give_up(self, tap: Tap, why: str) -> None:
        """Stop recording after a failed write of the thread; nothing else changes."""
        if self.tap is not tap:
            return
        self.failure = why
        self.tap = None
        # What waits will not be written.
        self._inbox = SimpleQueue()
        tap.note_number()
        self._folder.give_up()
        self._count(tap)
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
        """Write the delivered events, or finish a segment that is due. Returns False at the end."""
        output = self._output
        try:
            given = self._inbox.get(timeout=output.seconds_left())
        except Empty:
            output.finish_due()
            return True
        if given is None:
            return False
        entries, events, size = given
        ended = False
        # No more than that: the queue has room again when it is written.
        while events - tap.done_events < self._batch and not ended:
            try:
                given = self._inbox.get_nowait()
            except Empty:
                break
            if given is None:
                ended = True
            else:
                more, events, size = given
                entries += more
        at = 0
        while at < len(entries):
            rows = Rows(self.options.payloads)
            while at < len(entries) and rows.count < self._batch and rows.bytes < FILL_BYTES:
                at = rows.fill(entries, at, rows.count + ROWS)
            output.write(batch(rows, self.run_id, self._wall_offset()))
            # So much has left the queue: the event loop reads these.
            tap.done_events += rows.count
        tap.done_events = events
        tap.done_bytes = size
        output.finish_due()
        return not ended

    def _wall_offset(self) -> int:
        """Return the wall clock's offset from the monotonic one (µs); it changes only when the clock is set."""
        offset = (time.time_ns() - time.monotonic_ns()) // 1000
        if abs(offset - self._offset) > CLOCK_STEP:
            self._offset = offset
        return self._offset
