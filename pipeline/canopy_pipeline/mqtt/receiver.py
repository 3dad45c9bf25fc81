"""The thread that takes messages from the broker into the spool, and acknowledges them when they are there.

Owns: one connection with a persistent session. Messages are gathered in memory, written as a segment when there are
`segment_rows` of them, after `segment_ms`, or when nothing has come for `segment_idle_ms` (the broker may be waiting
for acknowledgements: its window can be small), and acknowledged after that, from the same thread.

Promises: nothing is acknowledged that is not on disk. A full spool (`spool_bytes`) stops the acknowledgements, so the
broker keeps the messages; when `receive_maximum` of them wait in memory, nothing more is read from the connection. A
lost connection is made again for ever, with back-off; what cannot heal ends the thread and stands in ``error``.

A message whose acknowledgement was lost comes again, and is a row again: at least once.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from canopy_mqtt.client.failures import ClientError, backoff
from canopy_mqtt.core.codec.packets import Publish
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.mqtt.link import broker_client, failed, subscribe
from canopy_pipeline.mqtt.mqtt_options import StreamOptions
from canopy_pipeline.mqtt.rows import MAX_LOST, Read, batch, told_lost
from canopy_pipeline.mqtt.spool import Spool

TICK: Final = 0.05
"""Seconds after which the thread looks whether it is to stop, and whether a full spool has room again."""
PATIENCE: Final = 5.0
"""Seconds that ``stop`` waits for the thread."""
MAX_WAITS: Final = 10
"""If messages never cease, ``settle`` waits so many times as long as it would for silence."""

_log = logging.getLogger("canopy_pipeline.mqtt")


class Receiver:
    """Begins with ``start``. The spool is the caller's, and must outlive it."""

    def __init__(self, options: StreamOptions, spool: Spool) -> None:
        self.error: PipelineError | None = None
        self._options = options
        self.spool = spool
        self.lost = spool.lost
        """Messages that the broker said it lost, over all runs."""
        self._pending: list[Publish] = []
        self._reads: list[Read] = []
        """The time and the session of the pending messages."""
        self._first = self._last = 0.0
        """The time of the first pending row, and of the last message; on the monotonic clock."""
        self._subscribed = 0.0
        self._granted = False
        """True once this process has had a SUBACK in the present session."""
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        """Notified when there is a connection, when a segment is written, and at the end."""
        self._was_full = False
        self._link = broker_client(
            options,
            options.client_id,
            session_expiry=options.session_expiry,
            receive_maximum=options.receive_maximum,
            hold=True,
        )
        self._link.on_message = self._arrived
        # A daemon: Spark may end the process without a word.
        self._thread = threading.Thread(target=self._run, name="mqtt-receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the pending rows, acknowledge them, disconnect. The session stays at the broker.

        The thread may outlive this where the network does not answer; it sends nothing any more then, and what it
        wrote a closed spool would refuse.
        """
        self._stopping.set()
        self._link.abandoned = True
        self._thread.join(PATIENCE)

    @property
    def subscribed(self) -> bool:
        """True once it has had a SUBACK, or found its session with the subscriptions."""
        return self._subscribed > 0

    @property
    def full(self) -> bool:
        """True while the spool has reached its bound."""
        return self.spool.bytes >= self._options.spool_bytes

    def settle(self, silence: float) -> bool:
        """Wait until nothing has come for `silence` seconds after this call and after SUBACK, and what came is on disk.

        Ends earlier when the spool is full, or the thread has ended (``error``); and where messages never cease, after
        `MAX_WAITS` times as long. False: the spool is full, so that there may be more.
        """
        # What a full spool kept out comes when there is room, however long ago SUBACK was.
        called = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._subscribed > 0 or self.error is not None or self._stopping.is_set())
            begun = max(called, self._subscribed)
            end = begun + MAX_WAITS * silence
            while self.error is None and not self._stopping.is_set():
                if self.full:
                    return False
                now = time.monotonic()
                quiet = max(self._last, begun) + silence
                if now >= end or (now >= quiet and not self._pending):
                    break
                self._changed.wait(min(max(quiet - now, 0.001), TICK))
        return True

    def _run(self) -> None:
        try:
            self._serve()
        except PipelineError as error:
            self.error = error
        except ClientError as error:
            self.error = failed(error)
        except Exception as error:
            # Nobody would see it in a thread; the query must end with it.
            self.error = PipelineError(f"the receiver failed: {type(error).__name__}: {error}")
        finally:
            try:
                self._link.disconnect()
            finally:
                self._tell()

    def _serve(self) -> None:
        # The first array takes 0.3 s, in which pyarrow imports what it needs: not while a broker's queue fills.
        batch([Publish(b"t", b"")], [Read(1, 0, 0, 1)])
        self._connect(first=True)
        while not self._stopping.is_set():
            try:
                self._turn()
            except ClientError as error:
                if error.lasting:
                    raise
                self._write()
                _log.warning("%s; connecting again", error)
                self._connect(first=False)
        self._write()

    def _connect(self, first: bool) -> None:
        deadline = time.monotonic() + self._options.connect_timeout
        attempt = 0
        while not self._stopping.is_set():
            try:
                before = len(self._pending)
                try:
                    self._link.connect()
                finally:
                    self._stamp(before)
                if self._stopping.is_set():
                    # It took its time: the spool may be another's.
                    return
                self._subscribe()
            except ClientError as error:
                if error.lasting:
                    raise
                # A stream that never had a connection is more likely to have a wrong url than a broker that restarts.
                if first and time.monotonic() >= deadline and not self._stopping.is_set():
                    raise
            else:
                self._subscribed = time.monotonic()
                self._tell()
                return
            self._stopping.wait(backoff(attempt))
            attempt += 1

    def _subscribe(self) -> None:
        present = self._link.machine.session_present
        if not present:
            self.spool.note("session", self.spool.session + 1)
        if present and self._granted:
            # The subscriptions are there; with 3.1.1 a new SUBSCRIBE would bring every retained message again.
            return
        self._granted = False
        wanted = self._options.filters
        gone = [each for each in self.spool.filters if each not in wanted] if present else []
        if set(self.spool.filters) != set(wanted):
            # Noted before it is done: what may be subscribed must be known to the next start.
            self.spool.note("filters", [*wanted, *gone])
        before = len(self._pending)
        try:
            subscribe(self._link, wanted, self._options.qos, gone)
        finally:
            self._stamp(before)
        self._granted = True
        if gone:
            self.spool.note("filters", wanted)

    def _turn(self) -> None:
        """Wait for a message, and write the rows that are due."""
        full = self.full
        if full:
            self._note_full()
            if len(self._pending) > self._options.receive_maximum:
                # QoS 0, or a broker of 3.1.1 with a large window: only not reading holds them back.
                self._link.stay()
                self._stopping.wait(TICK)
                return
        wait = TICK
        if self._pending and not full:
            wait = max(min(self._due() - time.monotonic(), TICK), 0.0)
        self._receive(wait)
        rows = len(self._pending)
        # Half the window: the broker sends on while the first half is being written.
        most = min(self._options.segment_rows, max(self._options.receive_maximum // 2, 1))
        if rows >= most or (rows and time.monotonic() >= self._due()):
            self._write()

    def _due(self) -> float:
        return min(self._first + self._options.segment_ms / 1000, self._last + self._options.segment_idle_ms / 1000)

    def _write(self) -> None:
        """Write the pending rows as a segment, and acknowledge them. A full spool leaves everything as it is."""
        if not self._pending or self.full:
            return
        self.spool.append(batch(self._pending, self._reads))
        self._note_loss()
        written, self._pending, self._reads = self._pending, [], []
        self._tell()
        self._link.acknowledge(written)
        if self._was_full:
            self._was_full = False
            _log.warning("%s: the spool has room again", self.spool.folder)

    def _note_full(self) -> None:
        if not self._was_full:
            self._was_full = True
            _log.warning(
                "%s: the spool is full (%d bytes): nothing is acknowledged until the query has caught up",
                self.spool.folder,
                self.spool.bytes,
            )

    def _receive(self, wait: float) -> None:
        before = len(self._pending)
        try:
            self._link.step(wait)
        finally:
            self._stamp(before)

    def _stamp(self, before: int) -> None:
        arrived = len(self._pending) - before
        if arrived:
            now = time.monotonic_ns()
            self._last = now / 1e9
            if not before:
                self._first = self._last
            self._reads.append(Read(arrived, time.time_ns() // 1000, now, self.spool.session))

    def _arrived(self, packet: Publish) -> None:
        self._pending.append(packet)

    def _note_loss(self) -> None:
        lost = sum(told_lost(each) for each in self._pending if each.properties)
        if lost:
            self.lost = min(self.lost + lost, MAX_LOST)
            self.spool.note("lost", self.lost)
            _log.warning("%s: the broker lost %d messages for this client", self._options.url, lost)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
