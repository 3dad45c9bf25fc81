"""The command: ``python -m benchmarks.network``.

Owns: the flags, the order of runs, what is printed while they go.

Promises: brokers take turns (A B A B) in every row and every run has a fresh broker process. The exit code is 0 when
every row that was asked for was measured on every broker that can run it, 1 when a broker failed a row, 2 for wrong
flags; losses do not change it: they are figures. Ctrl-C and SIGTERM end the broker that runs and print what there is.

It runs on Linux only (epoll, /proc, processor affinity).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.certificates import certificate
from benchmarks.network.links import LoadError
from benchmarks.network.measure import Meter, Sample
from benchmarks.network.report import Result, RowResult, table
from benchmarks.network.rows import ROWS, Bench, Row
from canopy_load.brokers.frames import FrameError
from canopy_load.brokers.listeners import TLS, Listener
from canopy_load.brokers.process import BrokerFailed, BrokerProcess, Cores, at_work, free_port, raise_file_limit
from canopy_load.brokers.registry import PEERS, Peer

DEFAULT_BROKERS: Final = ("canopy", "mosquitto")
LIMIT_ROWS: Final = ("one-to-one", "pairs", "fan-out")
# What is measured besides where a row has a listener of its own.
LIMIT_LISTENERS: Final = {"tls": ("pairs-tls", "fan-out-tls"), "ws": ("pairs-ws",)}
QUICK_SECONDS: Final = 0.3
QUICK_DIVIDE: Final = 10
SPARE_FILES: Final = 100


@dataclass(frozen=True)
class Plan:
    """What is asked for, after the flags."""

    rows: list[Row]
    brokers: list[Peer]
    repeats: int
    seconds: float
    divide: int
    limit: bool
    json: Path | None


def names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse(arguments: Sequence[str] | None = None) -> Plan:
    """The plan for these flags; SystemExit(2) with a message where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network", description="The same MQTT loads on several brokers in one run."
    )
    parser.add_argument("--brokers", default=",".join(DEFAULT_BROKERS), help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of: {', '.join(ROWS)}")
    parser.add_argument("--repeats", type=int, default=None, help="runs of each row on each broker (3; quick: 1)")
    parser.add_argument("--seconds", type=float, default=None, help="measured seconds of a run (2; quick: 0.3)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write every run to this file")
    parser.add_argument("--quick", action="store_true", help="one short run, counts of 150 and more by a tenth")
    parser.add_argument("--no-limit", action="store_true", help="do not measure the generator's own limit first")
    flags = parser.parse_args(arguments)
    rows, brokers = names(flags.rows), names(flags.brokers)
    for name in rows:
        if name not in ROWS:
            parser.error(f"no row {name!r}; there are: {', '.join(ROWS)}")
    for name in brokers:
        if name not in PEERS:
            parser.error(f"no broker {name!r}; there are: {', '.join(PEERS)}")
    repeats = flags.repeats if flags.repeats is not None else (1 if flags.quick else 3)
    seconds = flags.seconds if flags.seconds is not None else (QUICK_SECONDS if flags.quick else 2.0)
    if not rows or not brokers:
        parser.error("at least one row and one broker are needed")
    if repeats < 1 or not 0 < seconds <= 600:
        parser.error("--repeats must be 1 or more, --seconds above 0 and at most 600")
    if flags.json is not None and not flags.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no directory {flags.json.absolute().parent}")
    return Plan(
        [ROWS[name] for name in rows],
        [PEERS[name] for name in brokers],
        repeats,
        seconds,
        QUICK_DIVIDE if flags.quick else 1,
        not flags.no_limit,
        flags.json,
    )


def run_once(row: Row, peer: Peer, cores: Cores, seconds: float, divide: int = 1) -> Sample:
    """One run of one row on a fresh broker; BrokerFailed, LoadError or FrameError where that goes wrong."""
    base = run_once(row.base, peer, cores, seconds, divide) if row.base is not None else None
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        port = free_port()
        listener = None
        if row.listener:
            listener = Listener(row.listener, free_port(), *(certificate() if row.listener == TLS else ()))
        command = peer.command(port, directory, row.waiting, row.settings, listener=listener)
        with BrokerProcess(command, port, cores.broker) as process:
            if listener is not None:
                process.wait_listening(listener.port)
            sample = row.run(Bench(Meter(process, max(0.1, seconds / 4), seconds), divide, listener))
    return sample if base is None else replace(sample, without=base)


def attempt(result: Result, row: Row, peer: Peer, cores: Cores, plan: Plan) -> None:
    """One run into ``result``; what goes wrong becomes its failure, and a broker that failed is not asked again."""
    if result.failure:
        return
    lacking = sorted(row.needs & peer.lacks)
    if lacking:
        result.failure = f"not run: {peer.name} lacks {', '.join(lacking)}"
    elif not raise_file_limit(row.files + SPARE_FILES):
        result.failure = f"not run: {row.files} open files are not allowed (ulimit -n)"
    else:
        try:
            result.samples.append(run_once(row, peer, cores, plan.seconds, plan.divide))
        except (BrokerFailed, LoadError, FrameError, OSError) as error:
            result.failure = f"FAILED: {error}"


def host() -> dict[str, object]:
    """What the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; the exit code."""
    plan = parse(arguments)
    started = time.time()
    with at_work() as cores:
        return _run(plan, cores, started)


def _run(plan: Plan, cores: Cores, started: float) -> int:
    versions: dict[str, str] = {}
    for peer in list(plan.brokers):
        reason = peer.missing()
        versions[peer.name] = peer.version() if reason is None else f"missing: {reason}"
        print(f"{peer.name}: {versions[peer.name]}")
    print(f"{cores}; {plan.repeats} runs of {plan.seconds:g} s, medians; 64 B payload unless said", flush=True)
    results: list[RowResult] = []
    limits: list[RowResult] = []
    interrupted = False
    try:
        if plan.limit:
            _measure_limit(plan, cores, limits)
        for row in plan.rows:
            _measure_row(row, plan, cores, results)
    except KeyboardInterrupt:
        interrupted = True
    print("\n" + table(results))
    if plan.divide > 1:
        print(f"Quick run: counts of 150 and more are divided by {plan.divide}; not for comparison with full runs.")
    if interrupted:
        print("Interrupted: the rows above are those that were measured.")
    if plan.json is not None:
        data = {
            "started": started,
            "host": host(),
            "brokers": versions,
            "repeats": plan.repeats,
            "seconds": plan.seconds,
            "divided_by": plan.divide,
            "interrupted": interrupted,
            "generator_limit": [result.as_dict() for result in limits],
            "rows": [result.as_dict() for result in results],
        }
        plan.json.write_text(json.dumps(data, indent=1) + "\n")
        print(f"Every run is in {plan.json}.")
    failed = any((each.failure or "").startswith("FAILED") for result in results for each in result.results)
    return 130 if interrupted else int(failed)


def _measure_limit(plan: Plan, cores: Cores, limits: list[RowResult]) -> None:
    relay = PEERS["relay"]
    print("\nThe generator's own limit, on a process that only copies bytes:")
    kinds = dict.fromkeys(row.listener for row in plan.rows if row.listener)
    for row in (ROWS[name] for name in (*LIMIT_ROWS, *(name for kind in kinds for name in LIMIT_LISTENERS[kind]))):
        # By itself: what it costs over TCP stands in a line of its own.
        row = replace(row, base=None)
        result = Result(relay.name)
        limits.append(RowResult(row, [result]))
        attempt(result, row, relay, cores, plan)
        for sample in result.samples:
            print(
                f"  {row.title}: {sample.rate:,.0f} msg/s, generator {100 * sample.generator_share:.0f} % busy, "
                f"relay {sample.cpu_us:.3f} µs/msg"
            )
        for note in result.notes():
            print(f"  {row.title}: {note}")
        sys.stdout.flush()


def _measure_row(row: Row, plan: Plan, cores: Cores, results: list[RowResult]) -> None:
    outcome = RowResult(row, [Result(peer.name, beside_what=row.beside) for peer in plan.brokers])
    results.append(outcome)
    for peer, result in zip(plan.brokers, outcome.results, strict=True):
        reason = peer.missing()
        if reason is not None:
            result.failure = f"not run: {reason}"
    for number in range(plan.repeats):
        for peer, result in zip(plan.brokers, outcome.results, strict=True):
            _progress(f"{row.title}: {peer.name}, run {number + 1} of {plan.repeats}")
            attempt(result, row, peer, cores, plan)
    _progress("")


def _progress(text: str) -> None:
    """What runs now, on one line that is written over, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
