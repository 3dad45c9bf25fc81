"""Threads that hash passwords, and the bounded list of those that wait for them.

Owns the threads; whose turn it is, and who gives way, is `fair_places`'s business: one address that sends a thousand
passwords delays nobody but itself. Promises: at most `most` jobs wait. A job whose caller has given up is not done. The
event loop goes before the threads.
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

from broker.security.fair_places import FairPlaces, Full

THREAD_NAME: Final = "canopy-hashing"

NICENESS: Final = 10
"""How far the threads stand back behind the event loop where processors are short: it gets about nine times as much."""


class Busy(Exception):
    """Too many passwords wait to be hashed."""


def _step_back() -> None:
    """Give this thread less of a processor than the event loop gets. On Linux alone threads have a priority each."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            # A process that was started with less keeps it.
            os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), NICENESS))


class HashingPool:
    """`threads` threads and a list of at most `most` jobs that wait. Called in the event loop."""

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._places = FairPlaces(threads, most)
        self._executor: ThreadPoolExecutor | None = None
        self.done = 0
        """Jobs that were done."""
        self.refused = 0
        """Jobs that found the list full, or gave way."""

    @property
    def waiting(self) -> int:
        return self._places.waiting

    @property
    def running(self) -> int:
        """Jobs that are at work, those among them that nobody waits for any more."""
        return self._places.taken

    def bound(self, threads: int, most: int) -> None:
        """Other bounds. Fewer threads are kept to when those at work are done."""
        self._threads = threads
        self._places.bound(threads, most)
        executor, self._executor = self._executor, None
        if executor is not None:
            # Those at work finish.
            executor.shutdown(wait=False)

    async def run(self, host: str, work: Callable[[], bool]) -> bool:
        """Have `work` done in a thread, for a client at that address; its answer.

        Raises:
            Busy: the list is full, at once or by an address that has fewer in it.
        """
        try:
            await self._places.take(host)
        except Full:
            self.refused += 1
            raise Busy from None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, THREAD_NAME, _step_back)
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        # The thread has its place for as long as it works, whether its caller has given up or not.
        future.add_done_callback(self._finish)
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Wait for what is at work; what waits is refused."""
        self._places.refuse_all()
        # Whoever has just been given a place begins yet.
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
