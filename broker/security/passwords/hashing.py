"""Threads that hash passwords, and the bounded list of those that wait for them.

Owns the order: addresses have their turn one after the other, so that one that sends a thousand passwords delays
nobody but itself. Promises: at most `most` jobs wait; where the list is full, the address that has most in it gives
way. A job whose caller has given up is not done. The event loop goes before the threads.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

THREAD_NAME: Final = "canopy-hashing"

NICENESS: Final = 10
"""How far the threads stand back behind the event loop where processors are short: it gets about nine times as much."""


class Busy(Exception):
    """Too many passwords wait to be hashed."""


class _Job:
    __slots__ = ("answer", "work")

    def __init__(self, work: Callable[[], bool], answer: asyncio.Future[bool]) -> None:
        self.work = work
        self.answer = answer


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
        self._most = most
        self._executor: ThreadPoolExecutor | None = None
        # By address, in the order in which they have their turn.
        self._waiting: dict[str, deque[_Job]] = {}
        self.waiting = 0
        self.running = 0
        self.done = 0
        """Jobs that were done."""
        self.refused = 0
        """Jobs that found the list full, or gave way."""

    def bound(self, threads: int, most: int) -> None:
        """Other bounds. Fewer threads are kept to when those at work are done."""
        self._threads = threads
        self._most = most
        executor, self._executor = self._executor, None
        if executor is not None:
            # Those at work finish.
            executor.shutdown(wait=False)

    async def run(self, host: str, work: Callable[[], bool]) -> bool:
        """Have `work` done in a thread, for a client at that address; its answer.

        Raises:
            Busy: the list is full, at once or by an address that has fewer in it.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        job = _Job(work, answer)
        if self.running < self._threads:
            self._begin(job)
        else:
            self._line_up(host, job)
        try:
            return await answer
        except asyncio.CancelledError:
            self._forget(host, job)
            raise

    async def close(self) -> None:
        """Wait for what is at work; what waits is refused."""
        for jobs in list(self._waiting.values()):
            for job in jobs:
                if not job.answer.done():
                    job.answer.set_exception(Busy())
        self._waiting.clear()
        self.waiting = 0
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)

    def _line_up(self, host: str, job: _Job) -> None:
        mine = self._waiting.get(host)
        if self.waiting >= self._most:
            self.refused += 1
            longest = max(self._waiting.values(), key=len)
            if mine is longest or len(longest) <= (0 if mine is None else len(mine)) + 1:
                raise Busy
            given_way = longest.pop()
            self.waiting -= 1
            if not given_way.answer.done():
                given_way.answer.set_exception(Busy())
        if mine is None:
            mine = self._waiting[host] = deque()
        mine.append(job)
        self.waiting += 1

    def _begin(self, job: _Job) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, THREAD_NAME, _step_back)
        self.running += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, job.work)
        future.add_done_callback(lambda done: self._finish(job, done))

    def _finish(self, job: _Job, done: asyncio.Future[bool]) -> None:
        self.running -= 1
        self.done += 1
        if not job.answer.done():
            error = done.exception()
            if error is not None:
                job.answer.set_exception(error)
            else:
                job.answer.set_result(done.result())
        elif not done.cancelled():
            done.exception()
        while self.running < self._threads and self._waiting:
            host, jobs = next(iter(self._waiting.items()))
            del self._waiting[host]
            following = jobs.popleft()
            self.waiting -= 1
            if jobs:
                self._waiting[host] = jobs
            if not following.answer.done():
                self._begin(following)

    def _forget(self, host: str, job: _Job) -> None:
        """A caller has given up: if its job still waits, it waits no more."""
        jobs = self._waiting.get(host)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            self.waiting -= 1
            if not jobs:
                del self._waiting[host]
