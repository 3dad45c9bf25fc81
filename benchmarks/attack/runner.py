"""One attack at a time: a fresh broker, the well-behaved clients beside it, and the attack in a process of its own.

The broker is the installed one with its default settings, but for more `listeners`, the log (JSON, read here), `$SYS`
(each second) and, for some attacks, authenticators (`guards`) or a store; it is pinned to one core and everything else
to the other. An attack's process gives way to the well-behaved clients.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.attack import guards
from benchmarks.attack.attacks import LIST
from benchmarks.attack.attacks.registry import Attack
from benchmarks.attack.field import Field, Refused
from benchmarks.attack.listeners import Listeners
from benchmarks.attack.pairs import Measured, World
from benchmarks.clients import heard
from benchmarks.network import links
from loadtest.brokers.process import HOST, BrokerProcess, Cores, free_port, peak_resident
from loadtest.brokers.registry import python_module

SYS_INTERVAL: Final = 1  # seconds between two accounts that the broker gives of itself
SETTINGS: Final = ("log.level=info", "log.format=json", f"sys.interval={SYS_INTERVAL}")
WARM_UP: Final = 0.2  # seconds of messages that nobody counts
STEP: Final = 0.02  # seconds between two looks at the broker's memory
GRACE: Final = 8.0  # seconds that an attack's process may take beyond its time
NICE: Final = 5  # what the attacks give way to the well-behaved clients
LOST: Final = "connection-lost"  # the cause of a client's own end, which is no bound of the broker's
DROPPED: Final = "$SYS/broker/messages/dropped/"
HELD: Final = "$SYS/broker/publishers/held"


@dataclass(frozen=True)
class Told:
    """What an attack's process says of itself."""

    sent: int
    connections: int
    answers: Counter[str]
    error: str = ""


@dataclass(frozen=True)
class Result:
    """One attack, metered. Sizes in bytes, times in seconds."""

    attack: Attack
    told: Told
    growth: int
    calm: Measured
    under: Measured
    # The broker's processor time while the attack ran.
    cpu: float
    # What its log and its drops say of the bounds that held: a text and how often.
    log: Counter[str]
    drops: Counter[str]
    broken: str = ""
    # Bytes that it has logged since its start.
    logged: int = 0
    # How often it has held a publisher back for a subscriber.
    held: int = 0


def run(attack: Attack, world: World, cores: Cores, seconds: float, calm: float, scale: float) -> Result:
    """Start a broker, let the pairs be calm for a while, and then attack."""
    port = free_port()
    listen = f"mqtt://{HOST}:{port}"
    settings = [part for setting in (*SETTINGS, *attack.settings) for part in ("--set", setting)]
    listeners = Listeners.free()
    guarding = guards.options() if attack.guarded else []
    command = [*python_module("broker"), "serve", "--listen", listen, *listeners.options(), *guarding, *settings]
    with tempfile.TemporaryDirectory(prefix="canopy-attack-") as store:
        if attack.stored:
            command += ["--set", f'store.path="{store}"']
        return _run(attack, world, BrokerProcess(command, port, cores.broker), listeners, seconds, calm, scale)


def _run(
    attack: Attack,
    world: World,
    process: BrokerProcess,
    listeners: Listeners,
    seconds: float,
    calm: float,
    scale: float,
) -> Result:
    with process as broker:
        port = broker.port
        world.open(port, broker.pid)
        time.sleep(WARM_UP)
        world.measure()
        time.sleep(calm)
        before = world.measure()
        resident = broker.resident()
        _forget_peak(broker.pid)
        started = broker.cpu()
        told, peak = _attack(attack, broker, listeners, seconds, scale)
        broken = ""
        try:
            under = world.measure()
            cpu = (broker.cpu() - started) / 1e9
            peak = max(peak, peak_resident(broker.pid))
            broker.check()
            if attack.steady:
                time.sleep(SYS_INTERVAL + STEP)
            drops, held = _sys(port)
            world.close()
        except Exception as error:
            # A broker, or a world, that did not stand it: the worst result there is, and no reason to stop.
            broken = f"{type(error).__name__}: {error}"[:300]
            under, cpu, drops, held = before, 0.0, Counter(), 0
        broker.end()
        output = broker.output()
    log, logged = _log(output), len(output)
    return Result(attack, told, max(0, peak - resident), before, under, cpu, log, drops, broken, logged, held)


def _attack(
    attack: Attack, broker: BrokerProcess, listeners: Listeners, seconds: float, scale: float
) -> tuple[Told, int]:
    """Have the attack run in its process; what it tells, and the highest that the broker's memory was seen at."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_hostile, args=(theirs, attack.name, broker.port, listeners, seconds, scale), daemon=True
    )
    process.start()
    theirs.close()
    peak = 0
    told = Told(0, 0, Counter(), "it was not over in time")
    end = time.monotonic() + seconds + GRACE
    try:
        while time.monotonic() < end:
            peak = max(peak, broker.resident())
            if ours.poll(STEP):
                told = ours.recv()
                break
    except EOFError:
        told = Told(0, 0, Counter(), "its process ended")
    finally:
        process.kill()
        process.join()
        ours.close()
    return told, peak


def _hostile(pipe: Connection, name: str, port: int, listeners: Listeners, seconds: float, scale: float) -> None:
    """The attack's process. It holds its connections until it has told."""
    os.nice(NICE)
    field = Field(port, time.monotonic() + seconds, scale, listeners)
    error = ""
    try:
        LIST[name].run(field)
    except Refused as refused:
        field.answers[str(refused)] += 1
    except Exception as unexpected:
        error = f"{type(unexpected).__name__}: {unexpected}"
    pipe.send(Told(field.sent, field.connections, field.answers, error))
    field.close()


def _forget_peak(pid: int) -> None:
    """Have the kernel forget the highest resident size that the process has had."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _sys(port: int) -> tuple[Counter[str], int]:
    """What `$SYS` says of dropped messages, by cause, and how often a publisher was held back."""
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


def _log(output: str) -> Counter[str]:
    """The warnings and errors of a log, by what they say."""
    found: Counter[str] = Counter()
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("level") in ("warning", "error", "critical"):
            cause = event.get("cause")
            if cause == LOST:
                continue
            found[f"{event.get('event')}{f' ({cause})' if cause else ''}"] += 1
    return found
