"""A process full of simulated clients: ``python -m canopy_load.engine.worker FD``.

Owns: the process, its event loop, the clock of its stages, and its end of the channel to the conductor.

Promises: seconds and stages begin at the same times in all processes. When the conductor is gone, so is this process.

``conductor`` decides when a run begins and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import sys
import time
from typing import Any, Final

from canopy_load.brokers.process import waited
from canopy_load.engine.clients.client_pool import ClientPool
from canopy_load.engine.clients.connection import clock
from canopy_load.engine.event_loop import loop_factory
from canopy_load.engine.kernel_timer import KernelTimer
from canopy_load.engine.process_channel import ProcessChannel
from canopy_load.engine.process_messages import (
    Assignment,
    Connect,
    Draining,
    Exhausted,
    Failed,
    Finish,
    Interval,
    Over,
    ProcessOutcome,
    Start,
    Stop,
    Up,
)
from canopy_load.engine.schedule import NEVER
from canopy_load.errors import LoadError
from canopy_load.scenario.plan import SECOND
from canopy_load.scenario.scenario_schema import Stage

LOAD_STEP: Final = 100_000
"""Microseconds between two changes of the load where it rises or falls."""

LOOK: Final = 0.05
"""Seconds between two looks at the connected clients, and at the drain."""

MIN_DELAY: Final = 50.0
"""Microseconds to the next waking at the least: at high rates several messages are due by then, and go in one write."""

STRANDED: Final = 10
"""Seconds without a connection after which a replay as fast as it goes is given up: it has no end of its own."""

CONNECTING: Final = "connect"
DRAINING: Final = "drain"


class Worker:
    def __init__(self, channel: ProcessChannel, assignment: Assignment) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        job = assignment.job
        self._plan = job.plan(assignment.run)
        self._plan.wall = assignment.wall
        self._pool = ClientPool(self._plan, job, assignment.index)
        self._alarm = KernelTimer(self._loop, self._due)
        self._pool.wake = self._due
        self._done = asyncio.Event()
        self._phase = ""
        self._begin = 0
        self._cpu = time.process_time()
        self._waited = waited(os.getpid())
        self._received = 0
        self._answered = 0
        self._last_received = 0
        self._last_at = 0
        self._looked = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._looking: asyncio.TimerHandle | None = None
        self._over = False
        self._ends_at: float = NEVER
        """When the stages end, as far as is known."""
        self._hurried = job.replay is not None and math.isinf(job.speed)
        """True if the conductor waits to be told that everything is sent."""
        self._stranded = 0
        """Seconds without a connected client that has something left to send."""

    async def run(self) -> None:
        """Serve the conductor until the run is over or the conductor gone."""
        self._say(Up(0, self._pool.unsettled(), ""))
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        try:
            await self._done.wait()
            # What the last packets need to leave.
            await asyncio.sleep(LOOK)
        finally:
            self._alarm.close()

    def _say(self, message: object) -> None:
        self._channel.send(message)

    def hang_up(self) -> None:
        self._done.set()

    def order(self, message: object) -> None:
        if isinstance(message, Connect):
            self._connect(message.at)
        elif isinstance(message, Start):
            self._start(message.at)
        elif isinstance(message, Stop):
            # One that hears of it late has told of seconds that are over.
            self._end_at(max(message.at, self._begin))
        elif isinstance(message, Finish):
            self._finish()

    # -- seconds -------------------------------------------------------------------------------------------------------

    def _at(self, time: int, call: Any, *arguments: Any) -> None:
        """Call at a time of the monotonic clock, which is the event loop's too."""
        self._timers.append(self._loop.call_at(time / 1e6, call, *arguments))

    def _enter(self, phase: str, at: int) -> None:
        """Begin a phase: the seconds of the last one end."""
        if self._phase:
            # A process that is late has the same seconds as the others.
            while self._begin + SECOND < at:
                self._report(self._begin + SECOND)
            self._report(at)
        self._phase = phase
        self._begin = at
        if phase != CONNECTING:
            for tally in self._pool.tallies:
                tally.enter(at)
        self._next_second(at + SECOND)

    def _next_second(self, end: int) -> None:
        self._at(end, self._second, self._phase, end)

    def _second(self, phase: str, end: int) -> None:
        # A phase that is over has reported.
        if phase != self._phase or self._begin >= end or self._done.is_set():
            return
        self._report(end)
        self._pool.unstick()
        self._stranded = self._stranded + 1 if self._pool.running and self._pool.stranded() else 0
        if self._hurried and self._stranded >= STRANDED:
            self._exhausted()
        self._next_second(end + SECOND)

    def _report(self, end: int) -> None:
        if end <= self._begin:
            return
        cpu, kept_waiting = time.process_time(), waited(os.getpid())
        groups = [tally.take() for tally in self._pool.tallies]
        received = sum(group["received"] for group in groups)  # type: ignore[misc]
        self._received += received
        self._answered += sum(group["answered"] for group in groups)  # type: ignore[misc]
        self._say(
            Interval(
                self._phase,
                self._begin,
                end,
                self._pool.up,
                self._pool.overdue(end) if not self._over else 0,
                cpu - self._cpu,
                (kept_waiting - self._waited) / 1e9,
                groups,
                self._pool.given_up,
            )
        )
        self._pool.given_up = 0
        self._cpu, self._waited = cpu, kept_waiting
        self._begin = end

    # -- phases --------------------------------------------------------------------------------------------------------

    def _connect(self, at: int) -> None:
        self._enter(CONNECTING, at)
        self._pool.connect(at, [number for number, group in enumerate(self._plan.groups) if group.joins is None])
        self._look_who_is_up()

    def _look_who_is_up(self) -> None:
        if self._phase == CONNECTING:
            self._say(Up(self._pool.up, self._pool.unsettled(), self._pool.trouble()))
            self._looking = self._loop.call_later(LOOK, self._look_who_is_up)

    def _start(self, at: int) -> None:
        self._pool.start(at)
        begin = at
        for stage in self._plan.scenario.stages:
            self._at(begin, self._stage, stage, begin)
            begin += int(stage.seconds * SECOND)
        self._end_at(begin)

    def _end_at(self, time: int) -> None:
        """End the stages at that time, if they have not ended before."""
        self._ends_at = min(self._ends_at, time)
        self._at(time, self._finish_stages, time)

    def _stage(self, stage: Stage, at: int) -> None:
        if self._over:
            return
        self._pool.scheduler.run(at)
        self._enter(stage.name, at)
        joining = [number for number, group in enumerate(self._plan.groups) if group.joins == stage.name]
        if joining:
            self._pool.connect(at, joining)
        end = at + int(stage.seconds * SECOND)
        if stage.to is None or stage.to == stage.load:
            self._load(stage.name, stage.load, at)
            return
        steps = max(1, (end - at) // LOAD_STEP)
        for step in range(steps):
            share = step / max(1, steps - 1)
            self._at(at + step * LOAD_STEP, self._load, stage.name, stage.load + (stage.to - stage.load) * share, 0)

    def _load(self, stage: str, load: float, at: int) -> None:
        if not self._over and self._phase == stage:
            # What is due up to here goes by the old rate.
            self._pool.scheduler.run(at or clock())
            self._pool.set_load(stage, load, at or clock())
            self._due()

    def _due(self) -> None:
        """Let every sender send whose time has come, and set the timer for the next."""
        now = clock()
        if now >= self._ends_at:
            return  # what is due up to the end goes when the stages are finished, and nothing that is due after it
        after = self._pool.scheduler.run(now)
        self._alarm.set(after if after == NEVER else max(after, clock() + MIN_DELAY))
        if self._hurried and self._pool.exhausted():
            self._exhausted()

    def _exhausted(self) -> None:
        self._hurried = False
        self._say(Exhausted())

    def _finish_stages(self, at: int) -> None:
        if self._over:
            return
        # What is due up to here goes still, and what cannot go is overdue in the last second.
        self._pool.scheduler.run(at)
        self._enter(DRAINING, at)
        self._over = True
        unsent = self._pool.finish_stages(at)
        self._alarm.set(NEVER)
        self._say(Over(self._pool.sent(), unsent))
        self._last_at = self._looked = clock()
        self._look_at_the_drain()

    def _look_at_the_drain(self) -> None:
        if self._done.is_set():
            return
        received = self._received + sum(int(tally.received) for tally in self._pool.tallies)
        now = clock()
        # One who had no core in between has not looked at its sockets either: that was no quiet time.
        late = now - self._looked > 3 * LOOK * SECOND
        self._looked = now
        came = received + self._answered + sum(int(tally.answered) for tally in self._pool.tallies)
        if came != self._last_received or late:
            self._last_received, self._last_at = came, now
        self._say(Draining(received, self._pool.under_way(), (now - self._last_at) / 1e6))
        self._looking = self._loop.call_later(LOOK, self._look_at_the_drain)

    def _finish(self) -> None:
        pool = self._pool
        self._enter("", clock())
        for timer in [*self._timers, *([self._looking] if self._looking else [])]:
            timer.cancel()
        sent, accounts = pool.sent(), pool.accounts()
        for client in pool.clients:
            client.end()
        outcome = ProcessOutcome(
            sent,
            accounts,
            pool.group_sent(),
            pool.failed_connects,
            pool.lost_connections,
            pool.refused_subscribes,
            int(pool.streams.foreign),
            pool.all_errors(),
        )
        self._say(outcome)
        self._done.set()


class _Line:
    """This end of the channel: it passes messages on once there is a worker."""

    def __init__(self) -> None:
        self.assignment: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
        self.worker: Worker | None = None

    def message(self, message: object) -> None:
        if self.worker is not None:
            self.worker.order(message)
        elif isinstance(message, Assignment) and not self.assignment.done():
            self.assignment.set_result(message)

    def closed(self) -> None:
        if self.worker is not None:
            self.worker.hang_up()
        elif not self.assignment.done():
            self.assignment.cancel()


async def work(sock: socket.socket) -> int:
    end = _Line()
    channel = await ProcessChannel.open(sock, end.message, end.closed)
    try:
        assignment = await end.assignment
    except asyncio.CancelledError:
        return 1
    if assignment.core is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {assignment.core})
    try:
        worker = end.worker = Worker(channel, assignment)
        await worker.run()
    except LoadError as error:
        channel.send(Failed(str(error)))
        return 1
    finally:
        await channel.close()
    return 0


def main() -> int:
    """``python -m canopy_load.engine.worker FD``: the file descriptor of a socket."""
    # Ctrl-C reaches every process of the terminal; the conductor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    # Nothing is left to tidy up, and an interpreter's own tidying takes its time when thousands of clients are in it.
    os._exit(main())
