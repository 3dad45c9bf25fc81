"""The recorder of several workers: takes their events, and writes them as one record.

Owns the folder, the thread that writes, and for each worker a thread that reads what its recorder sends (`sending`).

Promises: one counter for all; the events of different workers are in the order of their time, unless one of them is
later than `LATE`. What a killed worker had numbered and not sent is named by a gap. Bounded: a worker that sends faster
than can be written waits, and what its own queue does not hold is a gap that it names. A full disk ends the record, and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.record.files.folder import ENDED, GAVE_UP, Folder, Left, RecorderError
from broker.record.workers.numbering import Numbering, Places, Walks
from broker.record.workers.pages import Page
from broker.record.workers.sending import BUFFER, LAST, OVER, UNTIL
from broker.record.writer import Options, TableLog, Writer

TURN: Final = 0.1
"""Seconds after which the thread looks at what has come, at the latest."""

LATE: Final = 2_000_000_000
"""Nanoseconds for which a worker that says nothing is waited for."""

LEAST_BYTES: Final = 1_048_576
"""Bytes that may wait of each worker, at least: it sends some thousand events at a time."""

KILLED: Final = "crash+state"
"""Why events of a killed worker are missing: among them are the ends of its connections and subscriptions."""

_ALL: Final = 1 << 62


class Lane:
    """What comes from one process of a worker."""

    def __init__(self, worker: int, page: Page, sock: socket.socket) -> None:
        self.worker = worker
        self.page = page
        self.sock = sock
        # Under the lock: what waits, with the worker's last number up to it; its bytes; up to when all is here.
        self.waiting: deque[tuple[Any, int]] = deque()
        self.bytes = 0
        self.until: int | None = None
        self.in_order = False
        """Its recorder has said that it was all."""
        self.gone = False
        # The writing thread's: the last number that was taken, and where its numbers came to stand.
        self.taken = 0
        self.places = Places()

    def put(self, batch: Any, about: Any) -> None:
        """Something has come."""
        self.waiting.append((batch, int(about[LAST])))
        self.bytes += batch.nbytes
        if UNTIL in about:
            self.until = int(about[UNTIL])
        if OVER in about:
            self.in_order = True

    def take(self, until: int) -> list[Any]:
        """What has come up to a time."""
        found = []
        while self.waiting:
            batch, last = self.waiting[0]
            times = batch.column("recv_ns")
            if batch.num_rows and times[-1].as_py() > until:
                count = pc.sum(pc.less_equal(times, until)).as_py()
                if count:
                    part, rest = batch.slice(0, count), batch.slice(count)
                    self.waiting[0] = rest, last
                    self.bytes -= batch.nbytes - rest.nbytes
                    self.taken = part.column("seq")[-1].as_py()
                    found.append(part)
                break
            self.waiting.popleft()
            self.bytes -= batch.nbytes
            self.taken = last
            if batch.num_rows:
                found.append(batch)
        return found


class Gathering:
    """Records one run of several workers, from `start` to `stop`."""

    def __init__(self, options: Options, workers: int, log: Any, gave_up: Callable[[str], None]) -> None:
        """`workers`: how many there are. `gave_up` is called when it gives up while it records."""
        self.options = options
        # Bytes that may wait of each.
        self._most = max(options.queue_bytes // workers, LEAST_BYTES) if options.queue_bytes else _ALL
        self.failure = ""
        """Why it gave up, or did not begin; empty while it records."""
        self._log = log
        self._gave_up = gave_up
        self._folder = Folder(options.directory)
        self._writer = Writer(options, self._table_told)
        self._table = TableLog(log)
        self._news = threading.Condition()
        # Under its lock.
        self._lanes: list[Lane] = []
        self._ending = self._over = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        # The thread's.
        self._numbering: Numbering
        self._walks = Walks()

    async def start(self) -> None:
        """Begin. A folder that cannot be written to is told in the log, and nothing is recorded."""
        self._loop = asyncio.get_running_loop()
        try:
            left = await self._loop.run_in_executor(None, self._folder.open)
        except RecorderError as error:
            self.failure = str(error)
            self._log.error("recorder not started", reason=self.failure)
            return
        run_id = secrets.token_hex(4)
        self._numbering = Numbering(left.last_seq, run_id)
        left.tell(self._log)
        self._thread = threading.Thread(target=self._run, args=(run_id, left), name="canopy-recorder", daemon=True)
        self._thread.start()
        self._log.info("recording", directory=str(self.options.directory), run_id=run_id, first_seq=left.last_seq + 1)

    async def open(self, worker: int) -> tuple[socket.socket, str] | None:
        """Take the events of a worker's new process: its end of the socket, and the path of its page. None: nothing is
        recorded."""
        return await self._loop.run_in_executor(None, self._open, worker)

    def _open(self, worker: int) -> tuple[socket.socket, str] | None:
        with self._news:
            # Until what the process before it left is settled, its page is needed.
            while any(lane.worker == worker for lane in self._lanes) and not self._over:
                self._news.wait()
            if self._thread is None or self._over:
                return None
            try:
                page = Page.make(self.options.directory, worker)
            except (OSError, ValueError) as error:
                self._log.error("worker not recorded", worker=f"w{worker}", reason=str(error))
                return None
            mine, its = socket.socketpair()
            lane = Lane(worker, page, mine)
            self._lanes.append(lane)
        threading.Thread(target=self._read, args=(lane,), name="canopy-recorder-reads", daemon=True).start()
        return its, str(page.path)

    async def stop(self) -> None:
        """Write what there is, finish the segment, let the folder go. The workers have ended."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._news:
            self._ending = True
            self._news.notify_all()
        await self._loop.run_in_executor(None, thread.join)
        if not self.failure:
            await self._loop.run_in_executor(None, self._folder.close, ENDED)
            self._log.info("recorder stopped", segments=self._writer.segments, events=self._writer.events)

    def _give_up(self, why: str) -> None:
        if self.failure:
            return
        self.failure = why
        self._folder.close(GAVE_UP)
        self._log.error("recorder gave up", reason=why, lost_from_the_segment_on=True)
        self._gave_up(why)

    def _table_told(self, why: str) -> None:
        self._loop.call_soon_threadsafe(self._table.tell, why)

    # -- a thread for each worker --------------------------------------------------------------------------------------

    def _read(self, lane: Lane) -> None:
        ends = (StopIteration, OSError, ValueError, pa.ArrowException)
        with contextlib.suppress(*ends), lane.sock.makefile("rb", BUFFER) as file:
            reader = pa.ipc.open_stream(file)
            while True:
                batch, about = reader.read_next_batch_with_custom_metadata()
                with self._news:
                    while lane.bytes > self._most and not self._over:
                        self._news.wait()
                    lane.put(batch, about)
                    self._news.notify_all()
        with self._news:
            lane.gone = True
            self._news.notify_all()

    # -- the thread that writes ----------------------------------------------------------------------------------------

    def _run(self, run_id: str, left: Left) -> None:
        try:
            self._writer.begin(run_id)
            if left.missing is not None:
                first, last = left.missing
                self._numbering.last = first - 1
                self._write([self._numbering.gap(last - first + 1, left.why, time.monotonic_ns(), _offset())])
            while self._round():
                pass
            self._writer.finish()
        except Exception as error:
            # A full disk, or a fault of ours: the workers go on either way.
            self._writer.abandon()
            why = self._writer.why_not(error)
            self._loop.call_soon_threadsafe(self._give_up, why)
        finally:
            with self._news:
                self._over = True
                lanes, self._lanes = self._lanes, []
                for lane in lanes:
                    # Its recorder gives up; what it has numbered by then, the next start names.
                    with contextlib.suppress(OSError):
                        lane.sock.shutdown(socket.SHUT_RDWR)
                    lane.sock.close()
                    lane.page.close()
                self._news.notify_all()

    def _round(self) -> bool:
        """Write what has come. False at the end."""
        with self._news:
            patience = self._writer.patience()
            self._news.wait_for(self._presses, TURN if patience is None else min(TURN, patience))
            lanes = list(self._lanes)
            until = self._ripe(lanes)
            taken = [(lane, lane.take(until)) for lane in lanes]
            over = [lane for lane in lanes if lane.gone and not lane.waiting]
            ending = self._ending
            # Who waited for room.
            self._news.notify_all()
        batches = self._note(taken)
        if batches:
            self._write(self._numbering.give(batches, sum(bool(found) for _, found in taken) > 1))
        for lane in lanes:
            lane.page.take(lane.taken)
        for lane in over:
            self._settle(lane)
        told = self._walks.all_of([lane for lane in lanes if lane not in over])
        if told is not None:
            self._write([self._numbering.snapshot(*told, time.monotonic_ns(), _offset())])
        self._writer.tend()
        self._tell_totals(lanes)
        return not ending or len(over) < len(lanes)

    def _presses(self) -> bool:
        """Whether there is something to do before the turn is over."""
        return self._ending or any(lane.gone or lane.bytes > self._most // 2 for lane in self._lanes)

    def _ripe(self, lanes: list[Lane]) -> int:
        """The time up to which all has come, as far as that is waited for."""
        open_lanes = [lane for lane in lanes if not lane.gone and lane.until is not None]
        if not open_lanes or any(lane.bytes > self._most // 2 for lane in lanes):
            return _ALL
        longest = time.monotonic_ns() - LATE
        return min(max(lane.until or 0, longest) for lane in open_lanes)

    def _note(self, taken: list[tuple[Lane, list[Any]]]) -> list[Any]:
        """The batches, without the snapshots of single workers; and where their numbers are going to stand."""
        now, first = time.monotonic_ns(), self._numbering.last + 1
        kept = []
        for lane, found in taken:
            for batch in found:
                lane.places.note(batch.column("seq")[0].as_py(), first, now)
                is_walk = pc.equal(batch.column("kind"), "snapshot")
                if not pc.any(is_walk).as_py():
                    kept.append(batch)
                    continue
                for row in batch.filter(is_walk).to_pylist():
                    self._walks.note(lane, lane.places.of(row["ref_seq"]), row["n"])
                kept.append(batch.filter(pc.invert(is_walk)))
        return [batch for batch in kept if batch.num_rows]

    def _settle(self, lane: Lane) -> None:
        """A worker's process is gone: name what it did not come to send."""
        missing = lane.page.given - lane.taken
        if not lane.in_order and lane.page.given:
            self._write([self._numbering.gap(max(missing, 1), KILLED, time.monotonic_ns(), _offset())])
            self._walks.lost(self._numbering.last)
        self._walks.forget(lane)
        lane.page.remove()
        lane.sock.close()
        with self._news:
            self._lanes.remove(lane)
            self._news.notify_all()

    def _write(self, batches: list[Any]) -> None:
        for batch in batches:
            self._writer.write(batch)
        self._folder.note(self._numbering.last)

    def _tell_totals(self, lanes: list[Lane]) -> None:
        writer = self._writer
        for lane in lanes:
            if lane.worker == 0 and lane in self._lanes:
                lane.page.tell(writer.segments, writer.events, writer.bytes)


def _offset() -> int:
    """What the wall clock is ahead of the monotonic one (µs)."""
    return (time.time_ns() - time.monotonic_ns()) // 1000
