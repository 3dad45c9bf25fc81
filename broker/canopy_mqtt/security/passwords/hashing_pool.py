"""The threads that hash passwords, and the bounded queue for them.

Owns the threads; `fair_semaphore` owns the order, so that an address with a thousand passwords delays only itself.
Promises: at most `max_waiting` jobs wait. A job whose caller has given up is skipped. The event loop has priority over
the threads.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from canopy_mqtt.security.fair_semaphore import FairSemaphore, QueueFull

THREAD_NAME: Final = "canopy-hashing"

NICENESS: Final = 10
"""The nice value of the threads: the event loop gets about nine times as much of a busy processor."""


class Busy(Exception):
    """The queue of passwords is full."""


def _step_back() -> None:
    """Lower the priority of this thread below the event loop's. Only Linux has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            # A process that was started with less keeps it.
            os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), NICENESS))


class HashingPool:
    """`threads` threads, and a queue of at most `max_waiting` jobs. Called in the event loop."""

    def __init__(self, threads: int, max_waiting: int) -> None:
        self._threads = threads
        self._places = FairSemaphore(threads, max_waiting)
        self._executor: ThreadPoolExecutor | None = None
        self.done = 0
        """Finished jobs."""
        self.refused = 0
        """Jobs that were refused because the queue was full, or pushed out of it."""

    @property
    def waiting(self) -> int:
        return self._places.waiting

    @property
    def running(self) -> int:
        """The number of running jobs, including those whose callers have given up."""
        return self._places.taken

    def bound(self, threads: int, max_waiting: int) -> None:
        """Set other bounds. A lower number of threads is reached when jobs end."""
        self._threads = threads
        self._places.bound(threads, max_waiting)
        executor, self._executor = self._executor, None
        if executor is not None:
            # Those at work finish.
            executor.shutdown(wait=False)

    async def run(self, host: str, work: Callable[[], bool]) -> bool:
        """Run `work` in a thread for a client at that address, and return its answer.

        Raises:
            Busy: the list is full, at once or by an address that has fewer in it.
        """
        try:
            await self._places.take(host)
        except QueueFull:
            self.refused += 1
            raise Busy from None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, THREAD_NAME, _step_back)
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        # The thread has its place for as long as it works, whether its caller has given up or not.
        future.add_done_callback(self._finish)
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Refuse the queued jobs, and wait for the running ones."""
        self._places.refuse_all()
        # A job that has just been given a place still begins.
        await self._places.emptied()
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)

    def _finish(self, done: asyncio.Future[bool]) -> None:
        self.done += 1
        if not done.cancelled():
            # Its caller may have given up, and hears of no exception.
            done.exception()
        self._places.give_back()
