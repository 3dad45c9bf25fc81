"""One runner for every benchmark that describes itself as rows: brokers in turn, medians, one table, one JSON.

Owns: the command line, the order of runs, how a broker is started for a run, and the table.

Promises: brokers take turns within a row and a size, and a run gets a fresh broker process whenever it asks for one. A
run that failed is told with its reason and not repeated. The exit code is 0 when every row was measured on every broker
that was asked for, 1 when one failed or could not be run, 2 for wrong flags, 130 after Ctrl-C or SIGTERM, which end the
broker that runs and print what there is.

It runs on Linux only (epoll, /proc, processor affinity).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import aligned, number
from benchmarks.network.links import LoadError
from benchmarks.network.measure import Meter, Metered, Sample
from canopy_load.brokers.frames import FrameError
from canopy_load.brokers.listeners import Listener
from canopy_load.brokers.process import HOST, START_TIMEOUT, BrokerFailed, BrokerProcess, Cores, at_work, free_port
from canopy_load.brokers.registry import PEERS
from canopy_load.brokers.stats import median, ratio
from canopy_load.checks.broker_usage import environment

QUICK: Final = 10
"""The divisor of counts and sizes in a quick run."""
QUICK_SECONDS: Final = 0.3
SUMMED: Final = ("lost", "missed")
DISTURBED: Final = 0.05
"""The share of wall time waited for a core above which the table says so."""

Figures = Mapping[str, float | None]


class NotRun(Exception):
    """Why a row is not run here."""


@dataclass(frozen=True)
class Line:
    """The result of one step of a run: figures by their headings, and what a reader must know about them."""

    step: str
    figures: Figures
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entrant:
    """A broker of `canopy_load.brokers`, and how it is set besides; without a ``peer`` no broker is started.

    ``settings`` are NAME=VALUE for Canopy and lines of its configuration file for mosquitto; FOLDER in them is the
    folder of the run.
    """

    name: str
    peer: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One run of a row: who takes part, at which size (0: the row has none), and for how long.

    ``divide`` is what counts are divided by, ``settings`` are for Canopy alone, and folders are made in ``parent``.
    """

    entrant: Entrant
    size: int = 0
    divide: int = 1
    seconds: float = 2.0
    settings: tuple[str, ...] = ()
    parent: Path | None = None
    cores: Cores = field(default_factory=lambda: Cores(None, ()))

    def scaled(self, count: int, least: int = 2) -> int:
        """A count for this run."""
        return max(least, count // self.divide)

    def meter(self, process: Metered) -> Meter:
        """What is measured, for as long as this run is to last."""
        return Meter(process, self.seconds / 4, self.seconds)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder that goes with the block; a broker that gives up its privileges may write there."""
        with tempfile.TemporaryDirectory(prefix="bench-", dir=self.parent) as name:
            Path(name).chmod(0o777)
            yield Path(name)

    @contextmanager
    def broker(
        self,
        *settings: str,
        folder: Path | None = None,
        pinned: bool = True,
        patience: float = START_TIMEOUT,
        statistics: int = 0,
        waiting: int = 0,
        listener: Listener | None = None,
    ) -> Iterator[BrokerProcess]:
        """A fresh process of the entrant, ended with the block; ``settings`` as an entrant has them, and the rest as
        ``Peer.command`` and ``BrokerProcess`` have it."""
        with nullcontext(folder) if folder is not None else self.folder() as place:
            port = free_port()
            asked = [each.replace("FOLDER", str(place)) for each in (*self.entrant.settings, *settings)]
            command = self.command(port, place, asked, statistics=statistics, waiting=waiting, listener=listener)
            with BrokerProcess(command, port, self.cores.broker if pinned else None, patience) as process:
                yield process

    def command(self, port: int, folder: Path, settings: Sequence[str], **order: Any) -> list[str]:
        """Return the command that starts the entrant on a port of 127.0.0.1; ``order`` as ``Peer.command`` has it."""
        own = self.settings if self.entrant.peer.startswith("canopy") else ()
        return PEERS[self.entrant.peer].command(port, folder, settings=(*settings, *own), **order)


@dataclass(frozen=True)
class Row:
    """One measurement: ``run`` yields a line for each step, as soon as it is measured.

    It runs on ``brokers`` (entrants' names) unless others are asked for, which must not lack what it ``needs``, and at
    each of ``sizes``. ``columns`` are the figures with a column, all of them if none is named; the others stand in the
    notes. ``against``: the figure that is also told as a multiple of the first broker's. ``judge`` says what is to be
    noted of an entrant's medians, and is told whether the counts are the full ones. ``about``: what ``--list`` says.
    """

    title: str
    run: Callable[[Case], Iterable[Line]]
    brokers: tuple[str, ...] = ("canopy",)
    sizes: tuple[int, ...] = (0,)
    needs: frozenset[str] = frozenset()
    against: str = ""
    columns: tuple[str, ...] = ()
    judge: Callable[[str, Figures, bool], Iterable[str]] | None = None
    about: str = ""


@dataclass(frozen=True)
class Bench:
    """Rows by name under one command. ``around`` is entered for the whole of it."""

    name: str
    about: str
    rows: Mapping[str, Row]
    entrants: Mapping[str, Entrant]
    repeats: int = 3
    seconds: float = 2.0
    around: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class Result:
    """All runs of one row at one size on one broker; ``failure`` says why there is none, or why there are fewer."""

    name: str
    row: Row
    size: int
    entrant: Entrant
    full: bool = True
    runs: list[list[Line]] = field(default_factory=list)
    failure: str = ""

    def steps(self) -> list[str]:
        """The steps that any run has come to, in order."""
        return list(dict.fromkeys(line.step for run in self.runs for line in run))

    def values(self, step: str, figure: str) -> list[float]:
        """A figure of each run that has it."""
        found = [line.figures.get(figure) for run in self.runs for line in run if line.step == step]
        return [value for value in found if value is not None]

    def figures(self, step: str) -> dict[str, float | None]:
        """The medians of a step; what was lost, of all runs together."""
        headings = dict.fromkeys(
            name for run in self.runs for line in run if line.step == step for name in line.figures
        )
        found = {name: median(self.values(step, name)) for name in headings}
        return found | {name: sum(self.values(step, name)) for name in SUMMED if name in found}

    def notes(self, step: str) -> list[str]:
        """Return the notes on a step: those of its runs, and the row's verdict on its medians."""
        said = [note for run in self.runs for line in run if line.step == step for note in line.notes]
        figures, columns = self.figures(step), self.row.columns
        judged = [] if self.row.judge is None else self.row.judge(self.entrant.name, figures, self.full)
        others = [f"{name} {number(value)}" for name, value in figures.items() if columns and name not in columns]
        return list(dict.fromkeys([*said, *judged, *others]))

    def as_dict(self) -> dict[str, object]:
        """Medians and every run, for JSON."""
        return {
            "row": self.name,
            "title": self.row.title,
            "size": self.size,
            "broker": self.entrant.name,
            "failure": self.failure,
            "steps": {step: self.figures(step) for step in self.steps()},
            "runs": [[asdict(line) for line in run] for run in self.runs],
        }


def line_of(step: str, sample: Sample, more: Figures | None = None, beside: str = "without") -> Line:
    """A measurement of ``benchmarks.network`` as a line; ``more`` are further figures, and ``beside`` is what the
    sample without is called."""
    figures: dict[str, float | None] = {
        "rate/s": sample.rate,
        "CPU µs": sample.cpu_us,
        "RSS MB": sample.resident / 1e6,
        "p50 µs": sample.p50_us,
        "p99 µs": sample.p99_us,
        "lost": float(sample.lost),
        "broker %": 100 * sample.broker_share,
        "gen %": 100 * sample.generator_share,
        **(more or {}),
    }
    if sample.bytes_each is not None:
        figures.setdefault("B each", sample.bytes_each)
    notes = []
    if (without := sample.without) is not None:
        figures[f"CPU × of {beside}"] = ratio(sample.cpu_us, without.cpu_us)
        figures[f"rate × of {beside}"] = ratio(sample.rate, without.rate)
        if sample.p99_us is not None and without.p99_us is not None:
            figures[f"p99 × of {beside}"] = ratio(sample.p99_us, without.p99_us)
    if (missed := sample.missed) is not None:
        figures["missed"] = float(missed.messages)
        notes.append(f"{missed.clients:,} frozen")
        if missed.cut:
            notes.append(f"{missed.cut:,} of the frozen disconnected")
        if not missed.full:
            notes.append("the queues of the frozen were not full")
    if sample.doubled:
        notes.append(f"{sample.doubled:,} doubled")
    if sample.generator_bound:
        notes.append("generator-bound")
    if sample.waited_share > DISTURBED:
        notes.append(f"cores busy elsewhere {100 * sample.waited_share:.0f} %")
    if sample.skipped:
        notes.append(f"{sample.skipped:,} SUBSCRIBE skipped: the broker fell behind")
    return Line(step, figures, tuple(notes))


def names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def attempt(result: Result, case: Case) -> None:
    """One run into the result; what goes wrong becomes its failure, after which it is not run again."""
    if result.failure:
        return
    lacking = result.row.needs & PEERS[case.entrant.peer].lacks if case.entrant.peer else frozenset()
    reason = PEERS[case.entrant.peer].missing() if case.entrant.peer else None
    if reason is None and lacking:
        reason = f"{case.entrant.name} lacks {', '.join(sorted(lacking))}"
    if reason is not None:
        result.failure = f"not run: {reason}"
        return
    lines: list[Line] = []
    result.runs.append(lines)
    try:
        lines.extend(result.row.run(case))
    except NotRun as error:
        result.failure = f"not run: {error}"
    except (BrokerFailed, LoadError, FrameError, OSError) as error:
        result.failure = f"FAILED: {error}"
    except Exception as error:  # what the broker raised in this process is this row's end and not that of the others
        result.failure = f"FAILED: {type(error).__name__}: {error}"


def table(results: Sequence[Result]) -> str:
    """One table for each stretch of rows with the same headings."""
    parts = []
    for headings, group in groupby(results, _headings):
        parts.append(_part(list(group), headings))
    return "\n\n".join(parts)


def _headings(result: Result) -> tuple[str, ...]:
    found = dict.fromkeys(name for step in result.steps() for name in result.figures(step))
    return result.row.columns or tuple(found)


def _part(results: Sequence[Result], headings: Sequence[str]) -> str:
    sized, stepped = any(result.size for result in results), any(any(result.steps()) for result in results)
    against = any(result.row.against for result in results)
    repeated = any(len(result.runs) > 1 for result in results)
    head = ["row", *["size"] * sized, "broker", *["step"] * stepped, *headings]
    head += [*["×"] * against, *[f"{name}: min–max" for name in headings[:1] if repeated], "notes"]
    body: list[list[str]] = []
    for result in results:
        first = next(each for each in results if (each.row, each.size) == (result.row, result.size))
        steps = result.steps()
        for step in steps if not result.failure or "" in steps else [*steps, ""]:
            figures = result.figures(step)
            line = [result.row.title, *[f"{result.size:,}"] * sized, result.entrant.name, *[step] * stepped]
            line += [_cell(figures[name]) if name in figures else "" for name in headings]
            if against:
                name = result.row.against
                times = ratio(figures.get(name), first.figures(step).get(name)) if result is not first else None
                line.append("" if times is None else f"{times:.3f}")
            if repeated and headings:
                values = result.values(step, headings[0])
                line.append(f"{number(min(values))}–{number(max(values))}" if values else "")
            failure = [result.failure] if result.failure and step == "" else []
            line.append("; ".join([*failure, *(result.notes(step) if step in steps else [])]))
            body.append(line)
    return aligned(head, body, {"row", "broker", "step", "notes"})


def _cell(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None and float(value).is_integer() else number(value)


def _parser(bench: Bench) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {bench.name}", description=bench.about)
    parser.add_argument("row", nargs="*", metavar="ROW", help="or a part of its name; without any: all (see --list)")
    parser.add_argument("--list", action="store_true", help="list the rows and run none")
    parser.add_argument("--brokers", metavar="NAME,NAME,…", help=f"of: {', '.join(bench.entrants)}")
    parser.add_argument("--sizes", metavar="N,N,…", help="in turn, in place of the rows' own")
    parser.add_argument("--repeats", type=int, default=None, help=f"runs of each ({bench.repeats}; quick: 1)")
    parser.add_argument(
        "--seconds", type=float, default=None, help=f"measured, where it is by time ({bench.seconds:g})"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, for Canopy alone")
    parser.add_argument("--directory", type=Path, default=None, help="where folders of brokers are made")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write every run to this file")
    parser.add_argument("--quick", action="store_true", help=f"one short run, counts and sizes by {QUICK}")
    return parser


def _results(bench: Bench, parser: argparse.ArgumentParser, flags: argparse.Namespace) -> list[list[Result]]:
    """Return the requested runs, the brokers of one row and size together; SystemExit(2) if a flag is wrong."""
    chosen = {} if flags.row else dict.fromkeys(bench.rows)
    for name in flags.row:
        found = [name] if name in bench.rows else [row for row in bench.rows if name in row]
        if not found:
            parser.error(f"no row {name!r}; there are: {', '.join(bench.rows)}")
        chosen.update(dict.fromkeys(found))
    brokers = names(flags.brokers) if flags.brokers is not None else None
    for name in brokers or ():
        if name not in bench.entrants:
            parser.error(f"no broker {name!r}; there are: {', '.join(bench.entrants)}")
    if brokers == []:
        parser.error("at least one broker is needed")
    if flags.repeats < 1 or not 0 < flags.seconds <= 600:
        parser.error("--repeats must be 1 or more, --seconds above 0 and at most 600")
    if flags.json is not None and not flags.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no directory {flags.json.absolute().parent}")
    try:
        sizes = None if flags.sizes is None else [int(text) for text in names(flags.sizes)]
    except ValueError as error:
        parser.error(f"--sizes: {error}")
    divide = QUICK if flags.quick else 1
    wanted = []
    for name in chosen:
        row = bench.rows[name]
        own = [size // divide for size in row.sizes]
        for size in own if sizes is None or row.sizes == (0,) else sizes:
            turns = row.brokers if brokers is None else brokers
            wanted.append([Result(name, row, size, bench.entrants[each], divide == 1) for each in turns])
    return wanted


def main(bench: Bench, arguments: Sequence[str] | None = None) -> int:
    """Measure what the flags ask for, and print it; the exit code."""
    parser = _parser(bench)
    flags = parser.parse_args(arguments)
    flags.repeats = flags.repeats if flags.repeats is not None else (1 if flags.quick else bench.repeats)
    flags.seconds = flags.seconds if flags.seconds is not None else (QUICK_SECONDS if flags.quick else bench.seconds)
    wanted = _results(bench, parser, flags)
    if flags.list:
        for name, row in {group[0].name: group[0].row for group in wanted}.items():
            print(f"{name}: {row.about or row.title}")
        return 0
    started, interrupted = time.time(), False
    with at_work() as cores, bench.around():
        brokers = {}
        for each in dict.fromkeys(result.entrant.peer for group in wanted for result in group if result.entrant.peer):
            reason = PEERS[each].missing()
            brokers[each] = PEERS[each].version() if reason is None else f"missing: {reason}"
            print(f"{each}: {brokers[each]}")
        said = f"; set: {', '.join(flags.set)}" if flags.set else ""
        print(f"{cores}; Python {platform.python_version()}; {flags.repeats} runs, medians{said}", flush=True)
        divide = QUICK if flags.quick else 1
        try:
            for group in wanted:
                for turn in range(flags.repeats):
                    for result in group:
                        where = f"{result.name}{f' {result.size:,}' if result.size else ''}, {result.entrant.name}"
                        _progress(f"{where}, run {turn + 1} of {flags.repeats}")
                        settings = tuple(flags.set)
                        attempt(
                            result,
                            Case(result.entrant, result.size, divide, flags.seconds, settings, flags.directory, cores),
                        )
        except KeyboardInterrupt:
            interrupted = True
    _progress("")
    results = [result for group in wanted for result in group if result.runs or result.failure]
    print("\n" + table(results))
    if flags.quick:
        print(f"Quick run: counts and sizes are divided by {QUICK}; not for comparison with full runs.")
    if interrupted:
        print("Interrupted: the lines above are what was measured.")
    if flags.json is not None:
        data = {
            "bench": bench.name,
            "started": started,
            "host": environment(),
            "brokers": brokers,
            "settings": flags.set,
            "divided_by": divide,
            "interrupted": interrupted,
            "results": [result.as_dict() for result in results],
        }
        flags.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        print(f"Every run is in {flags.json}.")
    return 130 if interrupted else int(any(result.failure for result in results))


def _progress(text: str) -> None:
    """Show what runs now, on one line that is written over, if the output is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def peers(*chosen: str) -> dict[str, Entrant]:
    """Brokers as they are, by name; all of them when none is named."""
    return {name: Entrant(name, name) for name in chosen or PEERS}


__all__ = ["HOST", "Bench", "Case", "Entrant", "Figures", "Line", "NotRun", "Result", "Row", "line_of", "main", "peers"]
