"""The place of one worker: its process, or the next one, and how its starts went."""

from __future__ import annotations

import asyncio

from broker.workers.process import WorkerProcess


class Slot:
    """The place of one worker."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"w{number}"
        self.process: WorkerProcess | None = None
        """The process that serves; None: there is none, or one that starts."""
        self.generation = 0
        """How often it has been started."""
        self.failures = 0
        """Failed starts, and ends soon after one, in a row."""
        self.failed_starts = 0
        """Failed starts in a row."""
        self.restarts = 0
        """How often it was started again after it had ended by itself."""
        self.turn = asyncio.Lock()
        """Held by whoever starts or ends it."""
        self.meets = asyncio.Event()
        """It has got so far that it waits for the others."""
        self.over = False
        """There is no next process."""

    @property
    def pid(self) -> int:
        """Its process; 0: there is none that serves."""
        return 0 if self.process is None else self.process.pid
