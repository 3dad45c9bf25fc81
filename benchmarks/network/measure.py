"""One measurement: a load, run for a while on one broker, and what it cost.

Owns: ``Sample`` (what came of one run), the order of a run (warm up, measure, stop, drain), and the cost of work that
is not measured by time (``settled``).

Promises: CPU, time and deliveries are read at the same two moments; the garbage collector of the generator does not run
between them; messages that have not come when the drain ends are lost.

A run in which nothing was delivered is an error.
"""

from __future__ import annotations

import gc
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from benchmarks.network.links import LoadError, Loop
from benchmarks.network.streams import Ledger
from canopy_load.brokers.process import waited
from canopy_load.brokers.stats import percentile

DRAIN_QUIET: Final = 1.0  # seconds without a delivery after which the rest counts as lost
DRAIN_LIMIT: Final = 15.0  # seconds a drain may last in all
FIRST_LIMIT: Final = 10.0  # seconds a measurement is prolonged for a broker that has not delivered anything yet
BUSY: Final = 0.95  # share of wall time above which a process is its core's limit


class Load(Protocol):
    """What a measurement needs of a load."""

    ledger: Ledger

    def start(self) -> None:
        """Begin to send."""

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing is."""

    def stop(self) -> None:
        """Send nothing more."""

    def missing(self) -> int:
        """Deliveries under way."""


class Timed:
    """A load that knows how long each delivery took, in nanoseconds."""

    def __init__(self) -> None:
        self.latencies = array("q")

    def forget(self) -> None:
        """Drop the times measured so far: the measured interval begins."""
        del self.latencies[:]


class Metered(Protocol):
    """What a measurement needs of a broker: one process, or several that are one broker."""

    @property
    def port(self) -> int:
        """Where clients connect."""

    @property
    def pid(self) -> int:
        """The process of which is told how long it waited for its core."""

    def cpu(self) -> int:
        """Nanoseconds of user and system time used so far."""

    def resident(self) -> int:
        """Bytes of resident memory."""

    def settle(self) -> None:
        """Wait until it is idle."""


@dataclass(frozen=True)
class Meter:
    """The broker that is measured, and for how long: seconds of warm-up and of measurement."""

    process: Metered
    warmup: float
    seconds: float


@dataclass(frozen=True)
class Spent:
    """Seconds of an interval: by the wall clock, of CPU by the broker and by the generator, and how long either was
    ready to run while something else had its core."""

    wall: float
    broker: float
    generator: float
    broker_waited: float = 0.0
    generator_waited: float = 0.0


@dataclass(frozen=True)
class Missed:
    """What ``clients`` that did not read have missed of a load: so many messages, all together.

    ``cut``: how many of them the broker disconnected. ``full``: whether the queues of the others were full for the
    whole of the measured interval."""

    clients: int
    messages: int
    cut: int
    full: bool


@dataclass
class Sample:
    """One run. ``units`` are delivered messages, or clients, or filters; memory in bytes."""

    units: int
    spent: Spent
    resident: int
    lost: int = 0
    doubled: int = 0
    bytes_each: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    skipped: int = 0
    missed: Missed | None = None
    without: Sample | None = None

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.units / self.spent.wall

    @property
    def cpu_us(self) -> float:
        """Microseconds of the broker's CPU for each unit."""
        return self.spent.broker / self.units * 1e6

    @property
    def broker_share(self) -> float:
        """CPU time of the broker by wall time; above 1 when several threads work."""
        return self.spent.broker / self.spent.wall

    @property
    def generator_share(self) -> float:
        """CPU time of the generator by wall time."""
        return self.spent.generator / self.spent.wall

    @property
    def waited_share(self) -> float:
        """Wall time for which the broker or the generator was kept from its core by others: the machine was busy."""
        return max(self.spent.broker_waited, self.spent.generator_waited) / self.spent.wall

    @property
    def generator_bound(self) -> bool:
        """Whether the generator was at its limit while the broker was not: the rate is then not the broker's."""
        return self.generator_share > BUSY >= self.broker_share


class Clocks:
    """What an interval costs, from the moment this is made."""

    def __init__(self, process: Metered) -> None:
        self._process = process
        self._begin = self._now()

    def read(self) -> Spent:
        """What was spent so far."""
        begin, now = self._begin, self._now()
        return Spent(
            now.wall - begin.wall,
            now.broker - begin.broker,
            now.generator - begin.generator,
            now.broker_waited - begin.broker_waited,
            now.generator_waited - begin.generator_waited,
        )

    def _now(self) -> Spent:
        pid = self._process.pid
        broker = self._process.cpu() / 1e9
        return Spent(time.monotonic(), broker, time.process_time(), waited(pid) / 1e9, waited(os.getpid()) / 1e9)


def measure(
    meter: Meter,
    loop: Loop,
    load: Load,
    beside: Callable[[float], float] | None = None,
    at_begin: Callable[[], None] | None = None,
) -> Sample:
    """Run a load on a broker; ``beside`` is the tick of something that runs beside it, ``at_begin`` is called when the
    measured interval begins. Of a load that is ``Timed``, the sample has the latencies since then."""

    def both(now: float) -> float:
        other = load.tick(now)
        return other if beside is None else min(other, beside(now))

    tick = load.tick if beside is None else both
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        load.start()
        loop.run_until(time.monotonic() + meter.warmup, tick)
        if isinstance(load, Timed):
            load.forget()
        if at_begin is not None:
            at_begin()
        before = load.ledger.delivered
        clocks = Clocks(meter.process)
        loop.run_until(time.monotonic() + meter.seconds, tick)
        while load.ledger.delivered == before and clocks.read().wall < FIRST_LIMIT:
            loop.run_until(time.monotonic() + meter.seconds, tick)
        spent = clocks.read()
        units = load.ledger.delivered - before
        resident = meter.process.resident()
        load.stop()
        drain(loop, load)
    finally:
        gc.enable()
        gc.unfreeze()
    if not units:
        raise LoadError(f"the broker delivered nothing in {spent.wall:.1f} s")
    sample = Sample(units, spent, resident, load.ledger.lost + load.missing(), load.ledger.doubled)
    if isinstance(load, Timed):
        latencies = sorted(each / 1e3 for each in load.latencies)
        sample.p50_us, sample.p99_us = percentile(latencies, 0.5), percentile(latencies, 0.99)
    return sample


def drain(loop: Loop, load: Load) -> None:
    """Take what is still under way, until all is there or nothing more comes."""
    limit = time.monotonic() + DRAIN_LIMIT
    while load.missing() and time.monotonic() < limit:
        before = load.missing()
        quiet = time.monotonic() + DRAIN_QUIET
        while load.missing() == before and (now := time.monotonic()) < quiet:
            loop.run_until(min(now + 0.01, quiet))
        if load.missing() == before:
            return


def settled(process: Metered, clocks: Clocks, answered: Spent, count: int, memory: int) -> Sample:
    """The cost of ``count`` units, each of which needs memory: the time until all were ``answered``, CPU and memory
    once the broker is at rest. ``memory``: its bytes before."""
    process.settle()
    spent = replace(answered, broker=clocks.read().broker)
    resident = process.resident()
    return Sample(count, spent, resident, bytes_each=(resident - memory) / count)
