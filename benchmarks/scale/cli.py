"""The command: ``python -m benchmarks.scale filters|clients|start``.

Owns: the flags, the order of sizes and brokers, what is printed while they run.

Promises: the exit code is 0 when every size was measured on every broker, 1 when one failed or could not be run, 2 for
wrong flags, 130 after Ctrl-C or SIGTERM, which end the broker that runs and print what there is.

It runs on Linux only (epoll, /proc, processor affinity).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.network.cli import host, names
from benchmarks.network.links import LoadError
from benchmarks.scale import clients, filters, start
from benchmarks.scale.clients import ClientPlan
from benchmarks.scale.filters import FilterPlan
from benchmarks.scale.phases import Outcome
from benchmarks.scale.report import table
from benchmarks.scale.start import PATIENCE, StartOn, StartPlan
from loadtest.brokers.frames import FrameError
from loadtest.brokers.process import BrokerFailed, BrokerProcess, Cores, at_work, free_port
from loadtest.brokers.registry import FILTERS, PEERS, Peer


@dataclass(frozen=True)
class Job:
    """What is asked for, after the flags: ``plans`` by size."""

    what: str
    plans: dict[int, FilterPlan | ClientPlan | StartPlan]
    brokers: list[Peer]
    settings: list[str]
    json: Path | None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="How a broker's costs grow with what it holds."
    )
    kinds = parser.add_subparsers(dest="what", required=True, metavar="filters|clients|start")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--sizes", metavar="N,N,…", help="several sizes in turn, each on a fresh broker")
    shared.add_argument("--brokers", default="canopy", help=f"of: {', '.join(PEERS)}")
    shared.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, for canopy alone")
    shared.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write everything measured to this file"
    )
    many = kinds.add_parser("filters", parents=[shared], help="very many wildcard subscriptions")
    many.add_argument("--filters", type=int, default=2_000_000, help="in all (2,000,000)")
    many.add_argument("--clients", type=int, default=200, help="that share them (200)")
    many.add_argument("--seconds", type=float, default=2.0, help="measured seconds of each load (2)")
    crowd = kinds.add_parser("clients", parents=[shared], help="very many clients, most of them idle")
    crowd.add_argument("--clients", type=int, default=50_000, help="idle ones (50,000)")
    crowd.add_argument("--keep-alive", type=int, default=60, metavar="SECONDS", help="of each idle client (60)")
    crowd.add_argument("--pairs", type=int, default=1000, help="of a publisher and a subscriber, beside them (1,000)")
    crowd.add_argument("--rate", type=float, default=10_000.0, help="messages a second of all pairs together (10,000)")
    crowd.add_argument("--seconds", type=float, default=5.0, help="measured seconds of each step (5)")
    kept = kinds.add_parser("start", parents=[shared], help="a start with what a store kept")
    kept.add_argument("--sessions", type=int, default=100_000, help="of clients that are away (100,000)")
    kept.add_argument("--filters", type=int, default=10, help="of each session (10)")
    kept.add_argument("--retained", type=int, default=1_000_000, help="retained messages (1,000,000)")
    kept.set_defaults(seconds=1.0)
    return parser


def parse(arguments: Sequence[str] | None = None) -> Job:
    """The job for these flags; SystemExit(2) with a message where they are wrong."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    brokers = names(flags.brokers)
    for name in brokers:
        if name not in PEERS:
            parser.error(f"no broker {name!r}; there are: {', '.join(PEERS)}")
    if not brokers:
        parser.error("at least one broker is needed")
    if not 0 < flags.seconds <= 600:
        parser.error("--seconds must be above 0 and at most 600")
    if flags.json is not None and not flags.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no directory {flags.json.absolute().parent}")
    single = {"filters": "filters", "clients": "clients", "start": "sessions"}[flags.what]
    plans: dict[int, FilterPlan | ClientPlan | StartPlan] = {}
    try:
        for size in [int(text) for text in names(flags.sizes)] if flags.sizes else [getattr(flags, single)]:
            plans[size] = _plan(flags, size)
    except ValueError as error:
        parser.error(str(error))
    return Job(flags.what, plans, [PEERS[name] for name in brokers], flags.set, flags.json)


def _plan(flags: argparse.Namespace, size: int) -> FilterPlan | ClientPlan | StartPlan:
    if flags.what == "start":
        return StartPlan(size, flags.filters, flags.retained)
    if flags.what == "clients":
        return ClientPlan(size, flags.keep_alive, flags.pairs, flags.rate, flags.seconds)
    holders = min(flags.clients, size)
    return FilterPlan(size, holders, min(64, holders), seconds=flags.seconds)


def starter(peer: Peer, settings: Sequence[str], cores: Cores) -> Callable[[], AbstractContextManager[BrokerProcess]]:
    """Starts this broker; ``settings`` (NAME=VALUE) are given to Canopy alone."""

    @contextmanager
    def start() -> Iterator[BrokerProcess]:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            port = free_port()
            command = peer.command(port, Path(name), settings=settings)
            with BrokerProcess(command, port, cores.broker) as process:
                yield process

    return start


def on_store(settings: Sequence[str], cores: Cores) -> StartOn:
    """Starts Canopy on the store of a folder, with room for all that is kept there."""

    @contextmanager
    def start_on(folder: Path) -> Iterator[BrokerProcess]:
        port = free_port()
        room = ["retained.max_messages=0", "retained.max_bytes=0", "limits.max_client_bytes=0"]
        kept = [f"store.path={folder / 'store'}", *room, *settings]
        command = PEERS["canopy"].command(port, folder, settings=kept)
        with BrokerProcess(command, port, cores.broker, PATIENCE) as process:
            yield process

    return start_on


def measure_size(
    outcome: Outcome, plan: FilterPlan | ClientPlan | StartPlan, peer: Peer, job: Job, cores: Cores
) -> None:
    """One size on one broker; what goes wrong becomes the outcome's failure."""
    begin = starter(peer, job.settings, cores)
    reason = peer.missing()
    if reason is None and isinstance(plan, ClientPlan):
        reason = plan.why_not()
    if reason is None and isinstance(plan, FilterPlan) and FILTERS in peer.lacks:
        reason = f"{peer.name} lacks {FILTERS}"
    if reason is None and isinstance(plan, StartPlan) and peer.name != "canopy":
        reason = "it has no store in this bench"
    if reason is not None:
        outcome.failure = f"not run: {reason}"
        return
    try:
        if isinstance(plan, FilterPlan):
            filters.run(outcome, plan, begin)
        elif isinstance(plan, ClientPlan):
            clients.run(outcome, plan, begin)
        else:
            with tempfile.TemporaryDirectory(prefix="bench-") as name:
                start.run(outcome, plan, on_store(job.settings, cores), Path(name))
    except (BrokerFailed, LoadError, FrameError, OSError) as error:
        outcome.failure = f"FAILED: {error}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code."""
    job = parse(arguments)
    started = time.time()
    with at_work() as cores:
        return _run(job, cores, started)


def _run(job: Job, cores: Cores, started: float) -> int:
    versions: dict[str, str] = {}
    for peer in job.brokers:
        reason = peer.missing()
        versions[peer.name] = peer.version() if reason is None else f"missing: {reason}"
        print(f"{peer.name}: {versions[peer.name]}")
    settings = f"; set: {', '.join(job.settings)}" if job.settings else ""
    print(f"{cores}; {job.what}: {', '.join(f'{size:,}' for size in job.plans)}; each size once{settings}", flush=True)
    outcomes: list[Outcome] = []
    interrupted = False
    try:
        for size, plan in job.plans.items():
            for peer in job.brokers:
                outcome = Outcome(peer.name, size)
                outcomes.append(outcome)
                measure_size(outcome, plan, peer, job, cores)
                print(f"{size:,} {job.what}, {peer.name}: {outcome.failure or 'measured'}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    print("\n" + table(outcomes))
    if interrupted:
        print("Interrupted: the lines above are what was measured.")
    if job.json is not None:
        data = {
            "what": job.what,
            "started": started,
            "host": host(),
            "brokers": versions,
            "settings": job.settings,
            "plans": [asdict(plan) for plan in job.plans.values()],
            "interrupted": interrupted,
            "outcomes": [outcome.as_dict() for outcome in outcomes],
        }
        job.json.write_text(json.dumps(data, indent=1) + "\n")
        print(f"Everything measured is in {job.json}.")
    return 130 if interrupted else int(any(outcome.failure for outcome in outcomes))
