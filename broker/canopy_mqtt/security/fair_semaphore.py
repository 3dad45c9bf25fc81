"""A fair semaphore: a bounded number of places, and a bounded queue for them.

Owns the order: addresses take turns, so that an address with a thousand CONNECTs delays only itself. Promises: at most
`max_waiting` callers wait; if the queue is full, the address with the most callers in it loses one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

_Waiter: TypeAlias = "asyncio.Future[bool]"


class QueueFull(Exception):
    """The queue for a place is full."""


class FairSemaphore:
    """A semaphore of `places` with a fair queue of `max_waiting` callers (0: no limit). For one event loop."""

    def __init__(self, places: int, max_waiting: int) -> None:
        self._places = places
        self._max_waiting = max_waiting
        # By address, in the order in which they have their turn. True: has a place; False: gave way.
        self._waiting: dict[str, deque[_Waiter]] = {}
        self.waiting = 0
        self.taken = 0
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()

    async def take(self, host: str) -> None:
        """Wait for a place; the caller has to call `give_back` afterwards.

        Raises:
            QueueFull: the list is full, at once or by an address that has fewer in it.
        """
        if self.taken < self._places:
            self.taken += 1
            self._empty.clear()
            return
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._line_up(host, waiter)
        try:
            if not await waiter:
                raise QueueFull
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.give_back()
            else:
                self._forget(host, waiter)
            raise

    def give_back(self) -> None:
        """Return a place: the next address gets it, unless the bound was lowered."""
        self.taken -= 1
        while self._waiting and self.taken < self._places:
            host, waiters = next(iter(self._waiting.items()))
            del self._waiting[host]
            waiter = waiters.popleft()
            self.waiting -= 1
            if waiters:
                # Behind the others.
                self._waiting[host] = waiters
            if not waiter.done():
                self.taken += 1
                waiter.set_result(True)
        if self.taken == 0:
            self._empty.set()

    def bound(self, places: int, max_waiting: int) -> None:
        """Set other bounds. A lower number of places is reached when callers return theirs."""
        self._places = places
        self._max_waiting = max_waiting

    def refuse_all(self) -> None:
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(False)
        self._waiting.clear()
        self.waiting = 0

    async def emptied(self) -> None:
        """Wait until no place is taken and no caller waits."""
        await self._empty.wait()

    def _line_up(self, host: str, waiter: _Waiter) -> None:
        mine = self._waiting.get(host)
        if 0 < self._max_waiting <= self.waiting:
            longest = max(self._waiting.values(), key=len)
            if mine is longest or len(longest) <= (0 if mine is None else len(mine)) + 1:
                raise QueueFull
            given_way = longest.pop()
            self.waiting -= 1
            if not given_way.done():
                given_way.set_result(False)
        if mine is None:
            mine = self._waiting[host] = deque()
        mine.append(waiter)
        self.waiting += 1

    def _forget(self, host: str, waiter: _Waiter) -> None:
        waiters = self._waiting.get(host)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            self.waiting -= 1
            if not waiters:
                del self._waiting[host]
