"""A run from a command that is not asynchronous: signals, the event loop, the generator's own limit.

Owns: what Ctrl-C and SIGTERM do: the first asks the work to stop, the second cancels it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from loadtest.brokers.process import BrokerFailed
from loadtest.load.compare.generator_limit import LimitError, measure
from loadtest.load.engine import conductor
from loadtest.load.engine.conductor import RunError
from loadtest.load.engine.event_loop import loop_factory
from loadtest.load.engine.job import Audience, Job
from loadtest.load.report.result import Result

if TYPE_CHECKING:
    from rich.console import Console

Outcome = TypeVar("Outcome")

EARLY: Final = "ended by a signal before the run began; there is no report"

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class PlayError(Exception):
    """A run could not take place; the message is for people."""


def run(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, Outcome]], on_stop: Callable[[], None] | None = None
) -> Outcome:
    """Run a coroutine function on uvloop, where that is installed; its event is set by the first signal.

    Raises:
        CancelledError: there was a second signal.
    """

    async def main() -> Outcome:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        task = asyncio.create_task(work(stop))

        def interrupt() -> None:
            if stop.is_set():
                task.cancel()
                return
            stop.set()
            if on_stop is not None:
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


def play(job: Job, audience: Audience) -> Result:
    """Play a job. After the first signal the stages end and there is a result all the same.

    Raises:
        PlayError: it could not be played, or was ended by a second signal.
    """
    try:
        return run(
            lambda stop: conductor.play(job, audience, stop),
            lambda: audience.phase("interrupted: ending the stages (once more ends everything)"),
        )
    except RunError as error:
        raise PlayError(str(error)) from error
    except asyncio.CancelledError:
        raise PlayError("ended by a second signal; there is no report") from None


def own_limit(console: Console) -> float | None:
    """The generator's own limit on this machine; None, with a line for people, where it could not be measured.

    Raises:
        PlayError: there was a signal.
    """
    stopped = False

    def note() -> None:
        nonlocal stopped
        stopped = True

    with console.status("measuring the generator's own limit"):
        try:
            return run(lambda stop: measure(0.5, stop=stop), note).rate
        except asyncio.CancelledError:
            raise PlayError(EARLY) from None
        except (LimitError, RunError, BrokerFailed) as error:
            if stopped:
                raise PlayError(EARLY) from None
            console.print(f"the generator's own limit could not be measured: {error}")
            return None
