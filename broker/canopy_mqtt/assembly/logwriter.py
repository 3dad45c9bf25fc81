"""Writes log lines from a thread, because their stream may block.

Owns a bounded queue and one thread. Promises: `write` never waits, whatever blocks behind the stream (a paused
terminal, a pipe to a collector that hangs): at most `limit` lines are queued, and the number of lost ones is written as
a line as soon as the stream moves again. Lines leave in batches, since to wake a thread costs more than to build them:
the first at once, others within `PAUSE` seconds or when `BATCH` characters wait; while nothing is logged, the thread
sleeps. It does not outlive the process: the last lines get `close`'s time-out and no more.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Final, TextIO

LIMIT: Final = 10_000
"""Queued lines: some megabytes at most."""

PAUSE: Final = 0.05
"""Seconds between two batches: what a process that is killed (SIGKILL) can lose."""

BATCH: Final = 65_536
"""Queued characters for which the thread ends its pause: as many as a pipe holds."""


class BackgroundWriter:
    """A text stream that hands its lines to a thread. Give it whole lines."""

    def __init__(self, stream: TextIO, limit: int = LIMIT, pause: float = PAUSE) -> None:
        self._lines: list[str] = []
        self._limit = limit
        self._characters = 0
        # The thread sleeps until more characters than these are queued.
        self._sleeps_until = sys.maxsize
        self._stream = stream
        self._pause = pause
        self._lost = 0
        # Reentrant: a collection of garbage in the middle of a line may log another one.
        self._lock = threading.RLock()
        self._more = threading.Condition(self._lock)
        self._closing = False
        self._writer = threading.Thread(target=self._run, name="canopy-log", daemon=True)
        self._writer.start()

    def write(self, text: str) -> int:
        """Queue a line, or count it as lost; returns its length either way.

        Several threads call this without a lock. The line is in the queue before it counts, and it counts before the
        thread's sleep is looked at (see `_run`, `_sleep`). Of two additions at once one may be lost, but not both: the
        count only has to be above 0 while a line waits.
        """
        if len(self._lines) >= self._limit:
            with self._lock:
                self._lost += 1
        else:
            self._lines.append(text)
            self._characters += len(text)
            if self._characters > self._sleeps_until:
                with self._lock:
                    self._sleeps_until = sys.maxsize
                    self._more.notify()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def close(self, timeout: float = 1.0) -> None:
        """Write the queued lines, for at most `timeout` seconds, and end the thread."""
        with self._lock:
            self._closing = True
            self._more.notify()
        self._writer.join(timeout)

    def _run(self) -> None:
        ending = False
        while not ending:
            with self._lock:
                self._sleep(0, None)
                ending = self._closing
                lost, self._lost = self._lost, 0
            # First the count: a line that comes now counts for the next batch, and is at worst in this one.
            self._characters = 0
            lines = self._lines[:]
            del self._lines[: len(lines)]
            if lost:
                lines.append(self._lost_line(lost))
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                # The stream is gone.
                pass
            with self._lock:
                self._sleep(BATCH, self._pause)

    def _sleep(self, characters: int, seconds: float | None) -> None:
        """Wait until more characters than these are queued, or the writer closes, or the seconds are over."""
        self._sleeps_until = characters
        if self._characters <= characters and not self._closing:
            self._more.wait(seconds)
        self._sleeps_until = sys.maxsize

    def _lost_line(self, lost: int) -> str:
        if self._stream.isatty():
            return f"{lost} log lines were lost: nobody read them in time\n"
        return json.dumps({"event": "log lines lost", "count": lost, "level": "warning"}) + "\n"
