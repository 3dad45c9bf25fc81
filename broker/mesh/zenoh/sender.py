"""Frames on their way to one node: a queue, and the thread that hands them to Zenoh, which may make it wait.

Owns the queue and the thread. The event loop offers, clears and stops; the thread alone takes. Each count is changed by
one of the two only, so that neither needs a lock.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final

import zenoh

STOP: Final = None
"""Ends the thread."""


class Sender:
    """The way to one node. `publisher` makes what sends; it is called by the thread, since it may have to wait."""

    def __init__(self, name: str, publisher: Callable[[], zenoh.Publisher]) -> None:
        self._publisher = publisher
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Bytes: the event loop's counts, and the thread's.
        self._offered = 0
        self._cleared = 0
        self._sent = 0
        self._stopped = False
        # What had been sent at the last look at its progress, and when that was more than before.
        self._seen = 0
        self._moved_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"canopy mesh to {name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Bytes that have not been handed to Zenoh."""
        return self._offered - self._cleared - self._sent

    def offer(self, frame: bytes) -> None:
        """Send a frame behind the others."""
        self._offered += len(frame)
        self._queue.put(frame)

    def stalled_since(self, now: float) -> float:
        """Since when Zenoh has taken nothing of what waits, as far as was seen by calls of this; `now`: it does."""
        if not self.waiting or self._sent != self._seen:
            self._seen = self._sent
            self._moved_at = now
        return self._moved_at

    def clear(self) -> None:
        """Forget what waits."""
        while True:
            try:
                frame = self._queue.get_nowait()
            except queue.Empty:
                return
            if frame is STOP:
                self._queue.put(STOP)
                return
            self._cleared += len(frame)

    def stop(self) -> None:
        """Send what waits, and end the thread."""
        if not self._stopped:
            self._stopped = True
            self._queue.put(STOP)

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; whether it has come. Not for an event loop."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        publisher: zenoh.Publisher | None = None
        while (frame := self._queue.get()) is not STOP:
            # What Zenoh refuses is lost; the node sees the gap, or the bus that the session is closed.
            with contextlib.suppress(zenoh.ZError):
                if publisher is None:
                    publisher = self._publisher()
                publisher.put(frame)
            self._sent += len(frame)
