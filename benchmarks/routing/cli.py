"""The command: ``python -m benchmarks.routing``.

Owns: the flags, the order of runs, what is printed while they go.

Promises: the layouts take turns in every row, and each run begins with a new table and nothing to collect. The exit
code is 0 when everything that was asked for ran, 1 when a row failed, 2 for wrong flags, 130 after Ctrl-C, which prints
what there is. A missed bar does not change it: that depends on the clock.

A wrong flag is told in one line.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from benchmarks.network.cli import host
from benchmarks.routing import growth
from benchmarks.routing.loops import WrongRoute
from benchmarks.routing.measure import COMPILED, GC_THRESHOLDS, broker_gc, core_kind, empty_loop
from benchmarks.routing.memory import MemoryFailed
from benchmarks.routing.report import Result, bars, growth_table, table
from benchmarks.routing.row import LAYOUTS, Case, Row
from benchmarks.routing.rows import ROWS

PROGRAM: Final = "python -m benchmarks.routing"
REPEATS: Final = 5
QUICK_DIVIDE: Final = 10


@dataclass(frozen=True)
class Plan:
    """What is asked for, after the flags."""

    rows: list[Row]
    layouts: list[str]
    repeats: int
    divide: int
    growth: bool
    json: Path | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parse(arguments: Sequence[str] | None = None) -> Plan:
    """The plan for these flags; SystemExit(2) with one line where they are wrong."""
    parser = _Parser(prog=PROGRAM, description="The broker's routing, without a network, beside the seeds' figures.")
    parser.add_argument("--rows", default=None, help=f"of: {', '.join(ROWS)}")
    parser.add_argument("--layout", default=",".join(LAYOUTS), help=f"of: {', '.join(LAYOUTS)}")
    parser.add_argument("--repeats", type=int, default=None, help=f"runs of each row ({REPEATS}; quick: 1)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write every run to this file")
    parser.add_argument("--quick", action="store_true", help="one run, counts by a tenth; no bar is judged")
    parser.add_argument("--growth", action="store_true", help="how the costs grow, instead of the rows")
    flags = parser.parse_args(arguments)
    rows = list(ROWS) if flags.rows is None else _names(flags.rows)
    layouts = _names(flags.layout)
    for name in rows:
        if name not in ROWS:
            parser.error(f"no row {name!r}; there are: {', '.join(ROWS)}")
    for name in layouts:
        if name not in LAYOUTS:
            parser.error(f"no layout {name!r}; there are: {', '.join(LAYOUTS)}")
    if not rows or not layouts:
        parser.error("at least one row and one layout are needed")
    if flags.growth and flags.rows is not None:
        parser.error("--growth measures no rows: leave out one of --growth and --rows")
    repeats = flags.repeats if flags.repeats is not None else (1 if flags.quick else REPEATS)
    if repeats < 1:
        parser.error("--repeats must be 1 or more")
    if flags.json is not None and not flags.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no directory {flags.json.absolute().parent}")
    divide = QUICK_DIVIDE if flags.quick else 1
    return Plan([ROWS[name] for name in rows], layouts, repeats, divide, flags.growth, flags.json)


def attempt(result: Result, divide: int) -> None:
    """One run into ``result``; what goes wrong becomes its failure, and a row that failed is not run again."""
    if result.failure:
        return
    gc.collect()
    try:
        result.samples.append(result.row.run(Case(result.layout, divide)))
    except (WrongRoute, MemoryFailed) as error:
        result.failure = str(error)
    except Exception as error:  # whatever the broker raised is this row's end and not the run's
        result.failure = f"{type(error).__name__}: {error}"


def _measure(plan: Plan, results: list[Result]) -> None:
    for row in plan.rows:
        pair = [Result(row, layout, plan.divide == 1) for layout in plan.layouts]
        results += pair
        for turn in range(plan.repeats):
            for result in pair:
                _progress(f"{row.title}: {result.layout}, run {turn + 1} of {plan.repeats}")
                attempt(result, plan.divide)
    _progress("")


def _progress(text: str) -> None:
    """What runs now, on one line that is written over, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    plan = parse(arguments)
    data: dict[str, object] = {
        "started": time.time(),
        "host": host(),
        "core": core_kind(),
        "gc_thresholds": GC_THRESHOLDS,
        "repeats": plan.repeats,
        "divided_by": plan.divide,
    }
    with broker_gc():
        loop = empty_loop().each_ns
        data["empty_loop_ns"] = loop
        print(f"core {core_kind()}; {plan.repeats} runs, medians; the garbage collector as in the daemon")
        print(f"an empty turn of the measuring loop takes {loop:.1f} ns, which nothing here is reduced by", flush=True)
        code = _grow(plan, data) if plan.growth else _run(plan, data)
    if plan.divide > 1:
        print(f"Quick run: counts are divided by {plan.divide}, so that no bar is judged.")
    if plan.json is not None:
        plan.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        print(f"Every run is in {plan.json}.")
    return code


def _run(plan: Plan, data: dict[str, object]) -> int:
    results: list[Result] = []
    code = 0
    try:
        _measure(plan, results)
    except KeyboardInterrupt:
        code = 130
    print("\n" + table(results))
    print("\n" + bars(results))
    if core_kind() != COMPILED:
        print("The bars are for the compiled core, and this one is interpreted.")
    if code:
        print("Interrupted: the rows above are those that were measured.")
    data["rows"] = [result.as_dict() for result in results]
    return code or int(any(result.failure for result in results))


def _grow(plan: Plan, data: dict[str, object]) -> int:
    try:
        found = growth.measure(plan.layouts, plan.repeats, plan.divide, _progress)
    except (WrongRoute, MemoryFailed) as error:
        print(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        print("Interrupted.")
        return 130
    _progress("")
    print(growth_table(found))
    data["growth"] = found
    return 0
