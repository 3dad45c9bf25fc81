"""The recorder of a broker: a tap in the routing, a queue with bounds, and a thread that writes segments.

Owns the thread, the rotation of segments, and what happens when they cannot be written: the recorder gives up, says so
in the log and under `$SYS/broker/recorder`, and the broker goes on without it.

Promises: the event loop never waits for a disk. What is lost is named: by a `gap` event when the queue is full, by the
next start when the process died or the recorder gave up. A finished segment is never touched again.

`core.tap` knows what is recorded, and in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from broker.core.routing.router import Router
from broker.core.tap import Sink, Tap
from broker.record.batches import batch
from broker.record.bundles import bundle
from broker.record.drafts import Draft
from broker.record.folder import ENDED, GAVE_UP, Folder, Left, RecorderError, reason
from broker.record.segment import Segment
from broker.record.snapshots import Snapshot
from broker.record.unpack import Rows

if TYPE_CHECKING:
    from broker.record.delta import Follower

TURN: Final = 0.1
"""Seconds between two hand-overs to the thread, where little happens."""

ROWS: Final = 2_048
"""Rows that are taken apart in one go: half a millisecond, for which the interpreter's lock is held."""

CLOCK_STEP: Final = 1_000
"""Microseconds that the wall clock may drift from the monotonic one before the times of events follow it."""


@dataclass(frozen=True)
class Options:
    """What is recorded, and where. Sizes in bytes, times in seconds."""

    directory: Path
    filters: Sequence[str] = ("#",)
    payloads: bool = True
    deliveries: bool = False
    segment_bytes: int = 134_217_728
    segment_seconds: float = 60.0
    queue_events: int = 200_000
    queue_bytes: int = 67_108_864
    snapshot_seconds: float = 3_600.0
    draft_seconds: float = 1.0
    table: str = "files"
    """`files`, or `delta`: the segments are a table of Delta Lake, too."""


class Recorder(Sink):
    """Records one run of a broker, from `start` to `stop`."""

    def __init__(self, options: Options, router: Router, log: Any) -> None:
        self.options = options
        self.run_id = ""
        self.tap: Tap | None = None
        # Why it gave up, or did not begin; empty while it records.
        self.failure = ""
        # Why the table lacks segments; empty where it does not.
        self.table_failure = ""
        # Who is told when it gives up while it records.
        self.gave_up: Callable[[str], None] | None = None
        # Events of earlier runs, and of the one that was given up, that did not fit into the queue.
        self._lost = 0
        # What is in finished segments.
        self.segments = 0
        self.events = 0
        self.bytes = 0
        self._router = router
        self._log = log
        self._folder = Folder(options.directory)
        # What was handed over, and the account of the tap up to there; None: it is the end.
        self._inbox: SimpleQueue[tuple[list[tuple[Any, ...]], int, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The walk that is under way, and when the next one begins (monotonic).
        self._snapshot: Snapshot | None = None
        self._next_snapshot = 0.0
        self._loop: asyncio.AbstractEventLoop
        # The thread's own.
        self._segment: Segment | None = None
        self._draft: Draft | None = None
        self._hour = ""
        self._offset = 0
        self._table: Follower | None = None

    @property
    def recording(self) -> bool:
        """Whether what happens now is being recorded."""
        return self.tap is not None

    @property
    def lost(self) -> int:
        """Events of this run that did not fit into the queue."""
        return self._lost + (0 if self.tap is None else self.tap.lost)

    # -- the event loop's side -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. A folder that cannot be written to is told in the log, and nothing is recorded."""
        self._loop = asyncio.get_running_loop()
        self.failure = ""
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
            self.failure = str(error)
            self._log.error("recorder not started", reason=self.failure)
            return
        options = self.options
        tap = Tap(
            time.monotonic_ns, self, self._folder.memo, options.queue_events, options.queue_bytes, options.deliveries
        )
        tap.seq = left.last_seq
        self.tap = tap
        for made in left.recovered:
            self._log.warning("recorder recovered events", from_seq=made.from_seq, to_seq=made.to_seq, events=made.rows)
        if left.missing is not None:
            first, last = left.missing
            self._log.warning("recorder lost events", reason=left.why, from_seq=first, to_seq=last)
            tap.gap(first, last, left.why)
        self._router.record(tap, options.filters)
        self._snapshot = None
        self._next_snapshot = self._loop.time() + options.snapshot_seconds
        self._thread = threading.Thread(target=self._run, args=(tap,), name="canopy-recorder", daemon=True)
        self._thread.start()
        self._log.info("recording", directory=str(options.directory), run_id=self.run_id, first_seq=left.last_seq + 1)
        self._turn()

    def _unwanted(self, opening: asyncio.Future[Left]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._folder.close(ended=None)

    def hand_over(self) -> None:
        """Give the thread what has come together."""
        tap = self.tap
        if tap is not None and not tap.empty:
            self._inbox.put((tap.take(False), tap.put_events, tap.put_bytes))

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

    def _tell_table(self, why: str) -> None:
        if why and why != self.table_failure:
            self._log.error("recorder's table is behind", reason=why, the_record_goes_on=True)
        elif self.table_failure and not why:
            self._log.info("recorder's table has caught up")
        self.table_failure = why

    # -- the thread's side ---------------------------------------------------------------------------------------------

    def _run(self, tap: Tap) -> None:
        try:
            if self.options.table == "delta":
                from broker.record.delta import Follower

                self._table = Follower(self.options.directory)
                self._follow(None)
            while self._work(tap):
                pass
            self._finish()
        except Exception as error:
            # A full disk, or a fault of ours: the broker goes on either way, and says what it goes on without.
            if self._segment is not None:
                self._segment.abandon()
                self._segment = None
            if self._draft is not None:
                self._draft.discard()
                self._draft = None
            said = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {reason(error)}"
            why = f"{self.options.directory}: cannot be written to ({said})"
            try:
                self._loop.call_soon_threadsafe(self._give_up, tap, why)
            except RuntimeError:
                # The loop is gone, and the broker with it.
                self.failure = why

    def _work(self, tap: Tap) -> bool:
        """Write what was handed over, or finish a segment whose time has come. False at the end."""
        try:
            given = self._inbox.get(timeout=self._patience())
        except Empty:
            self._tend()
            return True
        if given is None:
            return False
        entries, events, size = given
        at = 0
        while at < len(entries):
            rows = Rows(self.options.payloads)
            at = rows.fill(entries, at, ROWS)
            self._write(rows)
        # So much has left the queue: the event loop reads these.
        tap.done_events = events
        tap.done_bytes = size
        self._tend()
        return True

    def _follow(self, segment: Segment | None) -> None:
        """Bring the table up to date, with a segment that was finished; the record does not depend on it."""
        table = self._table
        if table is None:
            return
        before, why = table.behind, ""
        try:
            table.follow(None if segment is None else segment.manifest)
        except Exception as error:
            # Whatever it is: the segment is whole, and its manifest beside it.
            why = reason(error)
        if why or before:
            with contextlib.suppress(RuntimeError):
                # The loop may be gone, and with it who would read this.
                self._loop.call_soon_threadsafe(self._tell_table, why)

    def _patience(self) -> float | None:
        """Seconds until the open segment has to be finished or its draft written; None without one."""
        segment = self._segment
        if segment is None:
            return None
        left = max(0.0, segment.opened_at + self.options.segment_seconds - time.monotonic())
        waits = None if self._draft is None else self._draft.patience()
        return left if waits is None else min(left, waits)

    def _tend(self) -> None:
        """Finish the open segment, or write its draft, where it is time to."""
        segment, draft = self._segment, self._draft
        if segment is not None and time.monotonic() >= segment.opened_at + self.options.segment_seconds:
            self._finish()
        elif draft is not None and draft.patience() == 0.0:
            draft.write()

    def _write(self, rows: Rows) -> None:
        made = batch(rows, self.run_id, self._wall_offset())
        segment = self._segment
        if segment is None:
            first_ts = int(rows.recv_ns[0]) // 1000 + self._offset
            segment = self._segment = Segment(self.options.directory, self.run_id, int(rows.seq[0]), first_ts)
            if segment.folder != self._hour:
                # No more segments come to the hour before.
                if self._hour:
                    bundle(self.options.directory, self._hour)
                self._hour = segment.folder
            if self.options.draft_seconds:
                self._draft = Draft(segment.path, self.options.draft_seconds)
        segment.add(made)
        if self._draft is not None:
            self._draft.add(made)
        if segment.size >= self.options.segment_bytes:
            self._finish()

    def _wall_offset(self) -> int:
        """What the wall clock is ahead of the monotonic one (µs); the same until somebody sets the clock."""
        offset = (time.time_ns() - time.monotonic_ns()) // 1000
        if abs(offset - self._offset) > CLOCK_STEP:
            self._offset = offset
        return self._offset

    def _finish(self) -> None:
        segment = self._segment
        if segment is not None:
            segment.finish()
            self._segment = None
            if self._draft is not None:
                self._draft.discard()
                self._draft = None
            self._follow(segment)
            self.segments += 1
            self.events += segment.rows
            self.bytes += segment.path.stat().st_size
