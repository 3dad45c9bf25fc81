"""``python -m benchmarks.mesh [PART ...] [--quick] [--rounds N] [--page FILE]``: the tables, one for each part.

Of several rounds a figure is the median; the entrants take turns within a round. With ``--page`` the tables also take
the place of those in docs/benchmarks-mesh.md, each between the lines of its part there.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.mesh import cores, crossing, interest, joining, paper
from benchmarks.mesh.crossing import LOCAL, MESH, Result
from benchmarks.network.cli import host
from benchmarks.network.links import LoadError
from loadtest.brokers.process import BrokerFailed, at_work, raise_file_limit
from loadtest.brokers.registry import PEERS

QUICK: Final = 20
"""Counts of a quick run are divided by this."""

GROWS_BY: Final = "pairs"
"""The load whose costs `growth` reckons with."""


@dataclass
class Run:
    """How much is measured, and what was found on the way that a later part reckons with."""

    rounds: int
    seconds: float
    divide: int
    rows: list[str]
    core: int | None = None
    crossed: dict[str, dict[str, Result]] = field(default_factory=dict)
    figures: interest.Figures | None = None


def _crossing(run: Run) -> str:
    rows = [crossing.ROWS[name] for name in run.rows]
    text, found = crossing.table(rows, run.rounds, run.seconds, run.core, progress)
    run.crossed |= found
    return text


def _workers(run: Run) -> str:
    return cores.table(run.rounds, run.seconds, progress)


def _interest(run: Run) -> str:
    text, run.figures = interest.measure(interest.FILTERS // run.divide, run.seconds, run.core, progress)
    return text


def _join(run: Run) -> str:
    return joining.table(joining.RETAINED // run.divide, run.core, progress)


def _growth(run: Run) -> str:
    if GROWS_BY not in run.crossed:
        rows = [crossing.ROWS[GROWS_BY]]
        run.crossed |= crossing.table(rows, run.rounds, run.seconds, run.core, progress)[1]
    if run.figures is None:
        _interest(run)
    crossed = run.crossed[GROWS_BY]
    local, over = crossed[LOCAL].median("cpu_us"), crossed[MESH].median("cpu_us")
    if local is None or over is None or run.figures is None:
        raise LoadError("no message crossed: there is nothing to reckon with")
    return paper.text(paper.Constants(run.figures, local, over))


PARTS: Final[dict[str, Callable[[Run], str]]] = {
    "crossing": _crossing,
    "workers": _workers,
    "interest": _interest,
    "join": _join,
    "growth": _growth,
}
PINNED: Final = frozenset(PARTS) - {"workers"}
"""Those in which brokers have one core, and this process another."""


def fill(page: str, part: str, text: str) -> str:
    """A page with a part's table in place of the one that it has. LookupError: it has no place for one."""
    place = re.compile(rf"(<!-- {part} -->\n```text\n).*?(```\n)", re.DOTALL)
    filled, count = place.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page)
    if count != 1:
        raise LookupError(f"the page has {count} places for the table {part}")
    return filled


def progress(text: str) -> None:
    """What runs now, on one line that is written over, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\r", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags; SystemExit(2) with a message where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh", description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="*", metavar="PART", choices=[*PARTS, []], default=[], help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help=f"one short run, counts by a {QUICK}th")
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is put on each entrant")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured seconds of a run")
    parser.add_argument(
        "--rows", default=",".join(crossing.ROWS), help=f"loads that cross, of: {', '.join(crossing.ROWS)}"
    )
    parser.add_argument("--page", type=Path, default=None, help="a page whose tables are to be those of this run")
    flags = parser.parse_args(arguments)
    for name in flags.rows.split(","):
        if name not in crossing.ROWS:
            parser.error(f"no load {name!r}; there are: {', '.join(crossing.ROWS)}")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; all of them when none is."""
    flags = parse(arguments)
    rows = flags.rows.split(",")
    run = Run(1, 0.3, QUICK, rows) if flags.quick else Run(flags.rounds, flags.seconds, 1, rows)
    raise_file_limit(2_000)
    about = {
        name: peer.version() for name, peer in PEERS.items() if name in ("canopy", "mosquitto") and not peer.missing()
    }
    print(f"{', '.join(f'{key} {value}' for key, value in host().items())}; {'; '.join(about.values())}", flush=True)
    failed = False
    for name in flags.part or PARTS:
        try:
            if name in PINNED:
                with at_work() as pinned:
                    run.core = pinned.broker
                    text = PARTS[name](run)
            else:
                text = PARTS[name](run)
        except (BrokerFailed, LoadError, OSError) as error:
            print(f"\n{name}: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        print(f"\n{text}", flush=True)
        if flags.page is not None:
            flags.page.write_text(fill(flags.page.read_text(encoding="utf-8"), name, text), encoding="utf-8")
    return int(failed)
