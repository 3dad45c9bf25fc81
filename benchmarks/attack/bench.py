"""Each attack as a row of the runner: a fresh broker, the well-behaved clients beside it, and the attack in a process.

The broker is the installed one with its default settings, but for more listeners, the log (JSON, read here), `$SYS`
(each second) and, for some attacks, authenticators or a store. An attack's process gives way to the well-behaved
clients. A row fails when the broker or its clients did not stand it, and when a bar was missed.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.attack import (
    attacked_broker,
    guessing,
    handshakes,
    other_protocols,
    publishing,
    stored_state,
    subscribing,
)
from benchmarks.attack.field import ATTACKS, Attack, Field, Refused
from benchmarks.attack.pairs import Measured, Pairs, p99
from benchmarks.clients import heard
from benchmarks.network import links
from benchmarks.network.links import LoadError
from benchmarks.runner import HOST, Bench, Case, Line, Row, peers
from canopy_load.brokers.process import BrokerProcess, peak_resident, raise_file_limit

MODULES: Final = (other_protocols, handshakes, guessing, subscribing, publishing, stored_state)
"""The modules of the attacks; their import enters the attacks in the list."""
SETTINGS: Final = ("log.level=info", "log.format=json")
SYS_INTERVAL: Final = 1  # seconds between two accounts that the broker gives of itself
FILES: Final = 8_192  # that an attack and the broker may each have open
PAIRS: Final = 100
CALM: Final = 1 / 3  # seconds without an attack, for each second of it
WARM_UP: Final = 0.2  # seconds of messages that nobody counts
STEP: Final = 0.02  # seconds between two looks at the broker's memory
PATIENCE: Final = 60.0  # seconds in which a broker must have started
GRACE: Final = 20.0  # seconds that an attack's process may take beyond its time, its start included
NICE: Final = 5  # what the attacks give way to the well-behaved clients
SHOWN: Final = 5  # bounds that are shown of an attack, the most frequent ones
LOST: Final = "connection-lost"  # the cause of a client's own end, which is no bound of the broker's
DROPPED: Final = "$SYS/broker/messages/dropped/"
HELD: Final = "$SYS/broker/publishers/held"

RATIO: Final = 3.0
"""The pairs' 99th percentile may be so many times that without an attack."""
FLOOR: Final = 0.01
"""Seconds up to which it passes all the same, since one call of 10 ms is allowed; so it does where the broker has done
no more than that for others meanwhile, for then it was the machine that had no time."""
LOGGED: Final = 2_000_000
"""Bytes that the broker may log."""


@dataclass
class AttackReport:
    """The report of an attack's process."""

    sent: int = 0
    connections: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    error: str = ""


@dataclass
class Outcome:
    """One attack, metered: what it says, what the well-behaved clients had before and under it, and what it cost.

    `growth` and `logged` in bytes, `cpu` in seconds; `bounds`: what the broker's log and its drops say of the bounds
    that held; `held`: how often it has held a publisher back for a subscriber.
    """

    told: AttackReport
    calm: Measured
    under: Measured
    growth: int = 0
    cpu: float = 0.0
    logged: int = 0
    held: int = 0
    bounds: Counter[str] = field(default_factory=Counter)

    def missed(self, attack: Attack) -> list[str]:
        """Return the bars that were missed, in words."""
        found: list[str] = []
        if self.told.error:
            found.append(f"the attack failed: {self.told.error}")
        if self.growth > attack.growth:
            found.append(f"grew by {self.growth >> 20} MiB, {attack.growth >> 20} are allowed")
        if self.under.wait_work > attack.wait:
            found.append(f"a PING waited for {self.under.wait_work * 1e3:.0f} ms of other work")
        high, calm = p99(self.under.latencies), p99(self.calm.latencies)
        if high > max(RATIO * calm, FLOOR) and p99(self.under.works) > FLOOR:
            found.append(f"p99 {high * 1e3:.1f} ms, and {calm * 1e3:.1f} without the attack")
        if self.logged > LOGGED:
            found.append(f"logged {self.logged / 1e6:.1f} MB, {LOGGED / 1e6:.1f} are allowed")
        if attack.steady and self.held:
            found.append(f"a publisher was held back {self.held} times")
        if self.under.lost or self.under.cut:
            found.append(f"well-behaved clients lost {self.under.lost} messages, {self.under.cut} connections")
        return found

    def line(self) -> Line:
        """Return the figures, and the bounds that held most often."""
        under = self.under
        figures: dict[str, float | None] = {
            "sent MB": self.told.sent / 1e6,
            "grew MB": self.growth / 1e6,
            "PING ms": under.wait * 1e3,
            "work ms": under.wait_work * 1e3,
            "p99 ms": p99(under.latencies) * 1e3,
            "p99 work ms": p99(under.works) * 1e3,
            "calm p99 ms": p99(self.calm.latencies) * 1e3,
            "connections": self.told.connections,
            "messages": under.sent,
            "CPU s": self.cpu,
        }
        held = [f"{text} ×{count:,}" for text, count in (self.told.answers + self.bounds).most_common(SHOWN)]
        return Line("", figures, tuple(held or ["nothing was refused"]))


def run(attack: Attack, case: Case) -> Iterator[Line]:
    """Measure the pairs alone for a while, and then under the attack. Raises LoadError: a bar was missed."""
    raise_file_limit(FILES)
    with case.folder() as folder:
        ports = attacked_broker.listeners()
        settings = [*SETTINGS, *attacked_broker.settings(ports), *attack.settings]
        settings += attacked_broker.guards(folder) if attack.guarded else ()
        settings += ["store.path=FOLDER/store"] if attack.stored else ()
        with case.broker(*settings, folder=folder, patience=PATIENCE, statistics=SYS_INTERVAL) as broker:
            outcome = uvloop.run(_metered(attack, broker, ports, case))
            if attack.steady:
                time.sleep(SYS_INTERVAL + STEP)
            outcome.bounds, outcome.held = _sys(broker.port)
            broker.end()
            outcome.bounds += warnings(broker.output())
            outcome.logged = len(broker.output())
    yield outcome.line()
    if missed := outcome.missed(attack):
        raise LoadError("; ".join(missed))


async def _metered(attack: Attack, broker: BrokerProcess, ports: Mapping[str, int], case: Case) -> Outcome:
    async with Pairs(broker.port, broker.pid, case.scaled(PAIRS)) as pairs:
        await asyncio.sleep(WARM_UP)
        await pairs.measure()
        await asyncio.sleep(case.seconds * CALM)
        calm = await pairs.measure()
        resident = broker.resident()
        _forget_peak(broker.pid)
        began = broker.cpu()
        told, peak = await _attacked(attack, broker, ports, case)
        under = await pairs.measure()
        broker.check()
        growth = max(peak, peak_resident(broker.pid)) - resident
        return Outcome(told, calm, under, max(0, growth), (broker.cpu() - began) / 1e9)


def _forget_peak(pid: int) -> None:
    """Reset the kernel's record of the highest resident size of the process."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


async def _attacked(
    attack: Attack, broker: BrokerProcess, ports: Mapping[str, int], case: Case
) -> tuple[AttackReport, int]:
    """Run the attack in its process; return its report, and the highest memory seen of the broker."""
    name = next(name for name, each in ATTACKS.items() if each is attack)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, name, broker.port, dict(ports), case.seconds, case.divide)
    process = context.Process(target=_hostile, args=arguments, daemon=True)
    process.start()
    theirs.close()
    peak, told = 0, AttackReport(error="it was not over in time")
    end = time.monotonic() + case.seconds + GRACE
    try:
        while time.monotonic() < end:
            # In a thread: to add up the pages of a process takes its time, and the pairs are not to wait for it.
            peak = max(peak, await asyncio.to_thread(broker.resident))
            if ours.poll():
                told = ours.recv()
                break
            await asyncio.sleep(STEP)
    except EOFError:
        told = AttackReport(error="its process ended")
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
        ours.close()
    return told, peak


def _hostile(pipe: Connection, name: str, port: int, ports: Mapping[str, int], seconds: float, divide: float) -> None:
    """Run an attack in its own process. It holds its connections until it has reported."""
    os.nice(NICE)
    ground = Field(port, time.monotonic() + seconds, ports, divide)
    error = ""
    try:
        ATTACKS[name].run(ground)
    except Refused as refused:
        ground.answers[str(refused)] += 1
    except Exception as unexpected:
        error = f"{type(unexpected).__name__}: {unexpected}"
    pipe.send(AttackReport(ground.sent, ground.connections, ground.answers, error))
    ground.close()


def _sys(port: int) -> tuple[Counter[str], int]:
    """Read from `$SYS` the dropped messages by cause, and how often a publisher was held back."""
    found: Counter[str] = Counter()
    held = 0
    monitor = links.open_clients(HOST, port, ["attack-monitor"])
    links.subscribe_all(monitor, lambda _: [(DROPPED + "#", 0), (HELD, 0)])
    for topic, payload in heard(monitor[0], 0.3):
        if topic == HELD:
            held = int(payload)
        elif topic.startswith(DROPPED) and int(payload):
            found[f"dropped: {topic[len(DROPPED) :]}"] = int(payload)
    links.close_all(monitor)
    return found, held


def warnings(output: str) -> Counter[str]:
    """Count the warnings and errors of a log, by their text and cause."""
    found: Counter[str] = Counter()
    for line in output.splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if event.get("level") in ("warning", "error", "critical") and (cause := event.get("cause")) != LOST:
                found[f"{event.get('event')}{f' ({cause})' if cause else ''}"] += 1
    return found


COLUMNS: Final = ("sent MB", "grew MB", "PING ms", "work ms", "p99 ms", "p99 work ms", "calm p99 ms")

BENCH: Final = Bench(
    "attack",
    "Hostile clients of every kind beside clients that behave well.",
    {
        name: Row(name.replace("-", " "), partial(run, each), columns=COLUMNS, about=each.about)
        for name, each in ATTACKS.items()
    },
    peers("canopy"),
    repeats=1,
    seconds=1.2,
)
