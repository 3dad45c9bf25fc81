"""An event loop in a thread of its own, whose clock can be put forward.

Owns the thread and the loop. Everything of the broker that falls due stands in this loop's timers or is compared with
its clock, so that one jump moves all of it. Promises: `close` leaves neither thread nor socket behind, or says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 30.0
"""Seconds after which the loop's thread counts as stuck. Nothing that it is asked takes so long."""


class ClockLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; `ahead` is by how many seconds its clock is before the system's monotonic one.

    uvloop cannot do this: its timers are those of libuv.
    """

    ahead = 0.0

    def time(self) -> float:
        """Seconds."""
        return super().time() + self.ahead


class LoopThread:
    """Runs a `ClockLoop`. Its methods are called from other threads."""

    def __init__(self) -> None:
        self.loop = ClockLoop()
        self._thread = threading.Thread(target=self._run, name="canopy-testing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            asyncio.set_event_loop(None)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the loop; what it returns or raises."""
        answer: Future[T] = Future()

        def act() -> None:
            try:
                answer.set_result(function(*args))
            except BaseException as error:
                answer.set_exception(error)

        self.loop.call_soon_threadsafe(act)
        return answer.result(PATIENCE)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the tasks, the loop and the thread.

        Raises:
            RuntimeError: the thread does not end.
        """
        self.submit(self._clear()).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise RuntimeError(f"the thread of the broker did not end within {PATIENCE:g} s")
        self.loop.close()

    async def _clear(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()
