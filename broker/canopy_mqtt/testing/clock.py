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

MAX_ROUNDS: Final = 1_000
"""Rounds of the loop after which `settle` gives up: a client that never stops sending keeps the loop busy for ever."""

QUIET_ROUNDS: Final = 2
"""Idle rounds in a row after which nothing is left to do: in the first, a socket may have been written to."""


class ClockLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; `ahead` is by how many seconds its clock is before the system's monotonic one.

    uvloop cannot do this: its timers are those of libuv.
    """

    ahead = 0.0

    def time(self) -> float:
        """Seconds."""
        return super().time() + self.ahead

    @property
    def idle(self) -> bool:
        """True if there is nothing to call now: only the caller runs, and no timer is due."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due = bool(timers) and timers[0].when() <= self.time() and not timers[0].cancelled()
        return not due and not self._ready  # type: ignore[attr-defined]

    async def settle(self) -> None:
        """Let the loop do what is due now, and what follows from it, including what the sockets have received by
        now."""
        quiet = 0
        for _ in range(MAX_ROUNDS):
            await asyncio.sleep(0)
            # What was written to a socket in this round is seen in the next.
            quiet = quiet + 1 if self.idle else 0
            if quiet == QUIET_ROUNDS:
                return


class LoopThread:
    """Runs a `ClockLoop`. Its methods are called from other threads."""

    def __init__(self) -> None:
        self.loop = ClockLoop()
        self.closed = False
        self._thread = threading.Thread(target=self._run, name="canopy-testing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            asyncio.set_event_loop(None)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the loop, and return or raise its outcome.

        Raises:
            RuntimeError: the thread has ended.
        """
        self._check_open()
        answer: Future[T] = Future()

        def act() -> None:
            try:
                answer.set_result(function(*args))
            except BaseException as error:
                answer.set_exception(error)

        self.loop.call_soon_threadsafe(act)
        return answer.result(PATIENCE)

    def submit(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> Future[T]:
        """Run a coroutine function in the loop.

        Raises:
            RuntimeError: the thread has ended.
        """
        self._check_open()
        return asyncio.run_coroutine_threadsafe(work(*args, **options), self.loop)

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("this broker is closed: it cannot be asked or started any more; make another")

    def close(self) -> None:
        """End the tasks, the loop and the thread.

        Raises:
            RuntimeError: the thread does not end.
        """
        self.submit(self._clear).result(PATIENCE)
        self.closed = True
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
