"""Log lines on their way to a stream that may not take them.

Owns a bounded queue and one thread. Promises: `write` never waits, whatever stands still behind the stream (a
terminal that was paused, a pipe to a collector that hangs): the broker goes on, at most `limit` lines wait, and what
does not fit is counted and told in a line of its own as soon as the stream moves again.

It does not outlive the process: the last lines get `close`'s time-out and no more.
"""

from __future__ import annotations

import json
import threading
from typing import Final, TextIO

LIMIT: Final = 10_000
"""Lines that may wait: some megabytes at the most."""


class BackgroundWriter:
    """A text stream that hands its lines to a thread. Give it whole lines."""

    def __init__(self, stream: TextIO, limit: int = LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._lines: list[str] = []
        self._lost = 0
        self._closing = False
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="canopy-log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue a line, or count it as lost; returns its length either way."""
        with self._ready:
            if len(self._lines) >= self._limit:
                self._lost += 1
            else:
                self._lines.append(text)
                self._ready.notify()
        return len(text)

    def flush(self) -> None:
        """Nothing to do here: the thread flushes."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for at most `timeout` seconds, and end the thread."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._lines and not self._closing:
                    self._ready.wait()
                lines, lost = self._lines, self._lost
                self._lines, self._lost = [], 0
                ending = self._closing
            if lost:
                lines.append(self._told(lost))
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                # Nobody is there to be told.
                pass
            if ending:
                return

    def _told(self, lost: int) -> str:
        if self._stream.isatty():
            return f"{lost} log lines were lost: nobody read them in time\n"
        return json.dumps({"event": "log lines lost", "count": lost, "level": "warning"}) + "\n"
