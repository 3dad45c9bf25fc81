"""One measurement: a load, run for a while on one broker, and what it cost.

Owns: ``Sample`` (what came of one run) and the order of a run: warm up, measure, stop, drain.

Promises: CPU, time and deliveries are read at the same two moments; the garbage collector of the generator does not run
between them; messages that have not come when the drain ends are lost.

A run in which nothing was delivered is an error.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
    lateness_p99_us: float | None = None
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

    def as_dict(self) -> dict[str, object]:
        """Everything measured and derived, for JSON."""
        data: dict[str, object] = asdict(self)
        data["without"] = self.without.as_dict() if self.without else None
        data["rate"] = self.rate
        data["cpu_us"] = self.cpu_us
        data["broker_share"] = self.broker_share
        data["generator_share"] = self.generator_share
        data["waited_share"] = self.waited_share
        data["generator_bound"] = self.generator_bound
        return data


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
    measured interval begins."""

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
    lost = load.ledger.lost + load.missing()
    return Sample(units, spent, resident, lost, load.ledger.doubled)


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


def add_latency(sample: Sample, latencies: list[int], lateness: list[int]) -> None:
    """Put percentiles of nanoseconds into a sample, in microseconds."""
    latencies.sort()
    lateness.sort()
    middle, high, late = percentile(latencies, 0.5), percentile(latencies, 0.99), percentile(lateness, 0.99)
    sample.p50_us = None if middle is None else middle / 1e3
    sample.p99_us = None if high is None else high / 1e3
    sample.lateness_p99_us = None if late is None else late / 1e3
