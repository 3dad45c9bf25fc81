"""A run from a command that is not asynchronous: signals, the event loop, the generator's own limit.

Owns: what Ctrl-C and SIGTERM do: the first ends the stages, and the report is written all the same; the second ends the
command at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from loadtest.bench.process import BrokerFailed
from loadtest.load import conductor
from loadtest.load.conductor import RunError
from loadtest.load.job import Audience, Job
from loadtest.load.limit import LimitError, measure
from loadtest.load.loops import loop_factory
from loadtest.load.result import Result

if TYPE_CHECKING:
    from rich.console import Console

Outcome = TypeVar("Outcome")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PlayError(Exception):
    """A run could not take place; the message is for people."""


def play(job: Job, audience: Audience) -> Result:
    """Play a job.

    Raises:
        PlayError: it could not be played, or was ended by a second signal.
    """

    async def work() -> Result:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        running = asyncio.current_task()
        assert running is not None

        def interrupt() -> None:
            if stop.is_set():
                running.cancel()
            else:
                audience.phase("interrupted: ending the stages (once more ends everything)")
                stop.set()

        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
        try:
            return await conductor.play(job, audience, stop)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    try:
        return run(work())
    except RunError as error:
        raise PlayError(str(error)) from error
    except asyncio.CancelledError:
        raise PlayError("ended by a second signal; there is no report") from None


def own_limit(console: Console) -> float | None:
    """The generator's own limit on this machine; None, with a line for people, where it could not be measured."""
    with console.status("measuring the generator's own limit") if console.is_terminal else _Quiet():
        try:
            found = run(measure(conductor.play, 0.5))
        except (LimitError, RunError, BrokerFailed) as error:
            console.print(f"the generator's own limit could not be measured: {error}")
            return None
    return found.rate


def run(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine on uvloop, where that is installed."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


class _Quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
