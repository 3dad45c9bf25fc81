"""A run from a command that is not asynchronous: signals and the event loop.

Owns: what Ctrl-C and SIGTERM do: the first asks the work to stop, the second cancels it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from canopy_load.engine import conductor
from canopy_load.engine.conductor import RunError
from canopy_load.engine.event_loop import loop_factory
from canopy_load.engine.job import Audience, Job
from canopy_load.report.result import Result

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], on_stop: Callable[[], None] = lambda: None) -> T:
    """Run a coroutine function on uvloop, where that is installed; its event is set by the first signal.

    Raises:
        CancelledError: there was a second signal.
    """

    async def main() -> T:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        task = asyncio.create_task(work(stop))

        def interrupt() -> None:
            if stop.is_set():
                task.cancel()
                return
            stop.set()
            on_stop()

        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
        try:
            return await task
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main())


def play(job: Job, *audience: Audience) -> Result:
    """Play a job. After the first signal the stages end and there is a result all the same.

    Raises:
        LoadError: it could not be played, or was ended by a second signal.
    """

    def tell() -> None:
        for each in audience:
            each.phase("interrupted: ending the stages (once more ends everything)")

    try:
        return run(lambda stop: conductor.play(job, *audience, stop=stop), tell)
    except asyncio.CancelledError:
        raise RunError("ended by a second signal; there is no report") from None
