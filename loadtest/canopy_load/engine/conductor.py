"""The processes of a run: the conductor starts them, leads them through their phases, and ends them.

Owns: the order of a run: processes are made, clients connect, stages run by a clock that all share, what is under way
is waited for, everybody leaves. ``play`` is the one way in.

Promises: every process that was started is ended, whatever happens. An interruption (`stop`) ends the stages at once;
the rest goes its way, so that there is always a result. ``report.assemble`` puts the
pieces together.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from canopy_load.brokers.registry import python_module
from canopy_load.checks import broker_usage
from canopy_load.checks.broker_statistics import MAX_WAIT, SHORT_WAIT, Listener
from canopy_load.checks.expected import Sent, Subscriptions
from canopy_load.engine.clients.connection import clock
from canopy_load.engine.job import Audience, Job
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
from canopy_load.errors import LoadError
from canopy_load.report import assemble
from canopy_load.report.result import Result
from canopy_load.scenario.plan import SECOND, Plan
from canopy_mqtt.words import counted

NO_PROGRESS: Final = 10.0
"""Seconds without a client coming up, after which the stages begin without the missing ones."""
ALL_TRIED: Final = 1.5
"""The same, when all of them have failed at least once."""
LEAD: Final = 50_000
"""Microseconds from an order to the time it is for."""
SETTLE: Final = 0.15
"""Seconds to wait for copies, after everything that was expected has come."""
EXACT: Final = 20_000
"""Streams up to which the expected deliveries are computed, so that the drain can end as soon as they are there."""
LOOK: Final = 0.1
"""Seconds between two looks at the broker's CPU and memory."""
GRACE: Final = 10.0
"""Seconds a process has to end."""
LAST: Final[dict[type, str]] = {Draining: "draining", Up: "up", Over: "over", ProcessOutcome: "outcome"}
"""The attributes of a `_Process` that hold its last message of each of these kinds."""


class RunError(LoadError):
    """A run that could not take place."""


@dataclass
class _Process:
    """One process and its last messages."""

    child: subprocess.Popen[bytes]
    channel: ProcessChannel | None = None
    up: Up | None = None
    over: Over | None = None
    draining: Draining | None = None
    outcome: ProcessOutcome | None = None
    exhausted: bool = False
    intervals: list[Interval] = field(default_factory=list)


async def play(job: Job, *audience: Audience, stop: asyncio.Event | None = None) -> Result:
    """Play a scenario. When `stop` is set, the stages end at once and the result says so.

    Raises:
        LoadError: the scenario cannot be played, or one of the processes failed.
    """
    plan = await asyncio.to_thread(job.plan, secrets.token_hex(4))
    conductor = Conductor(job, plan, audience, stop or asyncio.Event())
    try:
        return await conductor.run()
    finally:
        await asyncio.shield(conductor.close())


class Conductor:
    def __init__(self, job: Job, plan: Plan, audience: Sequence[Audience], stop: asyncio.Event) -> None:
        self._job = job
        self._plan = plan
        self._run = plan.run
        self._audience = audience
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._processes: list[_Process] = []
        self._heard = asyncio.Event()
        self._failure = ""
        self._told = 0
        self._trace: list[tuple[int, float | None, int | None]] = []
        self._watch: broker_usage.ProcessUsage | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._interrupted = False
        self._start_at = 0

    async def run(self) -> Result:
        job = self._job
        begun = datetime.now(UTC)
        target = job.targets[0]
        pid = job.broker_pid
        if pid is None:
            pid = await asyncio.to_thread(broker_usage.find, target.host, target.port)
        self._watch = broker_usage.ProcessUsage(pid) if pid is not None else None
        self._phase(f"starting {counted(job.processes, 'process', 'processes')}")
        listener = Listener(f"load-{self._run}-listener", *self._plan.any_credentials())
        opening = asyncio.create_task(listener.open(target))
        try:
            await self._spawn()
            await self._until(lambda: all(each.up is not None for each in self._processes))
            heard = await opening
            before = listener.dropped() if heard else None
            self._look()
            await self._connect()
            await self._stages()
            complete = await self._drain()
            after = listener.dropped() if heard and await self._figures(listener, complete) else None
        finally:
            opening.cancel()
            await listener.close()
        self._say(Finish())
        await self._until(lambda: all(each.outcome is not None for each in self._processes))
        result = assemble.assemble(
            self._job,
            self._plan,
            assemble.RunMessages(
                run=self._run,
                begun=begun,
                interrupted=self._interrupted,
                start_at=self._start_at,
                intervals=[each.intervals for each in self._processes],
                outcomes=[each.outcome for each in self._processes if each.outcome is not None],
                unsent=[each.over.unsent for each in self._processes if each.over is not None],
                trace=self._trace,
                before=before,
                after=after,
                version=listener.values.get("version", ""),
            ),
        )
        self._phase("interrupted" if self._interrupted else "over")
        return result

    # -- processes -----------------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        job = self._job
        wall = time.time_ns() // 1000 - clock()
        for index in range(job.processes):
            ours, process = _begin()
            self._processes.append(process)
            channel = process.channel = await ProcessChannel.open(
                ours, partial(self._hear, process), partial(self._gone, process)
            )
            core = job.cores[index % len(job.cores)] if job.cores else None
            channel.send(Assignment(job, self._run, index, core, wall))

    def _gone(self, process: _Process) -> None:
        process.channel = None
        if process.outcome is None and not self._failure:
            self._failure = "a process of the load generator ended by itself"
        self._heard.set()

    def _hear(self, process: _Process, message: object) -> None:
        if isinstance(message, Interval):
            process.intervals.append(message)
            self._tell_seconds()
        elif (name := LAST.get(type(message))) is not None:
            setattr(process, name, message)
        elif isinstance(message, Failed):
            self._failure = message.why
        elif isinstance(message, Exhausted):
            process.exhausted = True
            if all(each.exhausted for each in self._processes):
                self._say(Stop(clock() + LEAD))
        self._heard.set()

    def _say(self, message: object) -> None:
        for process in self._processes:
            if process.channel is not None:
                process.channel.send(message)

    async def _until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a message of a process; return False when the time is over or the run is interrupted."""
        try:
            async with asyncio.timeout(seconds):
                while not true():
                    if self._failure:
                        raise RunError(self._failure)
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        for process in self._processes:
            if process.channel is not None:
                process.channel.abort()
        await asyncio.to_thread(_reap, self._processes)

    # -- phases --------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        wanted = sum(
            count for group, count in zip(self._plan.groups, self._plan.counts, strict=True) if group.joins is None
        )
        self._phase(f"connecting {wanted:,} clients")
        self._say(Connect(clock() + LEAD))
        ramp = max(
            count / group.connect_rate if group.connect_rate and group.joins is None else 0.0
            for group, count in zip(self._plan.groups, self._plan.counts, strict=True)
        )
        best, since = -1, clock()
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    self._heard.clear()
                    await self._heard.wait()
            if self._failure:
                raise RunError(self._failure)
            states = [each.up for each in self._processes]
            up = sum(state.up for state in states if state is not None)
            for each in self._audience:
                each.clients(up, wanted)
            if up >= wanted:
                return
            if up > best or clock() < since + ramp * SECOND:
                best, since = up, (clock() if up > best else since)
                continue
            tried = all(state is not None and state.unsettled == 0 for state in states)
            if clock() - since > (ALL_TRIED if tried else NO_PROGRESS) * SECOND:
                if not up:
                    trouble = next((state.trouble for state in states if state is not None and state.trouble), "")
                    where = ", ".join(str(target) for target in self._job.targets)
                    raise RunError(f"{where}: no client could connect: {trouble or 'the broker does not answer'}")
                return

    async def _stages(self) -> None:
        self._start_at = clock() + LEAD
        self._say(Start(self._start_at))
        begin = self._start_at
        timers = []
        for stage in self._plan.scenario.stages:
            timers.append(self._loop.call_at(begin / 1e6, self._phase, f"stage {stage.name}"))
            begin += int(stage.seconds * SECOND)
        stopping = asyncio.create_task(self._wait_for_stop())
        try:
            await self._until(lambda: all(each.over is not None for each in self._processes))
        finally:
            stopping.cancel()
            for timer in timers:
                timer.cancel()

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()
        self._interrupted = True
        self._say(Stop(clock() + LEAD))

    async def _figures(self, listener: Listener, complete: bool) -> bool:
        """Wait for the broker's own figures; return True if they came before an interruption."""
        self._phase("waiting for the broker's own figures")
        fresh = asyncio.create_task(
            listener.fresh(complete, SHORT_WAIT if complete and not self._job.strict else MAX_WAIT)
        )
        # One signal that ended the stages is not one against this.
        stopping = asyncio.create_task(asyncio.Event().wait() if self._interrupted else self._stop.wait())
        try:
            await asyncio.wait({fresh, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return fresh.done() and fresh.result()
        finally:
            for task in (fresh, stopping):
                task.cancel()
            await asyncio.wait({fresh, stopping})

    async def _drain(self) -> bool:
        """Wait for messages under way; return True if all expected deliveries have come, as far as that is quickly
        computed."""
        self._phase("waiting for what is under way")
        scenario = self._plan.scenario
        expected = self._expected()
        end = clock() + int(scenario.drain * SECOND)
        complete_at = 0
        while clock() < end:
            await self._until(lambda: all(each.draining is not None for each in self._processes), 1.0)
            states = [each.draining for each in self._processes if each.draining is not None]
            for each in self._processes:
                each.draining = None
            under_way = sum(state.under_way for state in states)
            received = sum(state.received for state in states)
            idle = min((state.idle for state in states), default=0.0)
            if idle >= scenario.quiet and (under_way == 0 or idle >= 3 * scenario.quiet):
                return expected is not None and received >= expected
            if expected is not None and received >= expected and under_way == 0:
                complete_at = complete_at or clock()
                if clock() - complete_at >= SETTLE * SECOND and idle >= SETTLE:
                    return True
        return False

    def _expected(self) -> int | None:
        """Return the number of expected deliveries, if that is quickly computed."""
        sent = Sent()
        for process in self._processes:
            if process.over is not None:
                sent.streams.update(process.over.sent.streams)
        if len(sent.streams) > EXACT or any(group.cycle or group.churn for group in self._plan.groups):
            return None
        subscriptions = Subscriptions(self._plan, assemble.everybody(self._plan))
        total = 0
        for stream, count in sent.streams.items():
            total += count * len(subscriptions.hear(self._plan.topic(stream), self._plan.publisher(stream)))
        return total

    # -- seconds -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        found = self._watch
        if found is not None:
            self._trace.append((clock(), found.cpu_seconds(), found.memory()))
        self._looking = self._loop.call_later(LOOK, self._look)

    def _phase(self, text: str) -> None:
        for each in self._audience:
            each.phase(text)

    def _tell_seconds(self) -> None:
        """Tell the audience of every second that all processes have reported."""
        while all(len(each.intervals) > self._told for each in self._processes):
            parts = [each.intervals[self._told] for each in self._processes]
            self._told += 1
            second = assemble.second(self._plan, parts, self._start_at, self._trace)
            for each in self._audience:
                each.second(second)


def _begin() -> tuple[socket.socket, _Process]:
    """Start a process; return it with this end of its channel."""
    ours, theirs = socket.socketpair()
    with theirs:
        return ours, _Process(start_worker(theirs.fileno()))


def start_worker(channel: int) -> subprocess.Popen[bytes]:
    """Start a process that inherits its end of a channel, and serves the conductor at it."""
    return subprocess.Popen(
        [*python_module("canopy_load.engine.worker"), str(channel)], stdin=subprocess.DEVNULL, pass_fds=[channel]
    )


def _reap(processes: list[_Process]) -> None:
    """Wait a while for processes to end, and end the others."""
    for process in processes:
        try:
            process.child.wait(GRACE if process.outcome is not None else 0.5)
        except subprocess.TimeoutExpired:
            process.child.kill()
            process.child.wait()
