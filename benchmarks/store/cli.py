"""``python -m benchmarks.store [ROW ...] [--quick] [--rounds N] [--directory DIR]``: the tables, one for each row.

Of several rounds a cell is the median; the brokers take turns within a round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import aligned, number
from benchmarks.store import disk, filling
from benchmarks.store.clients import LoadError
from benchmarks.store.entrants import ENTRANTS
from benchmarks.store.rows import ROWS, Row
from loadtest.brokers.process import BrokerFailed, at_work, raise_file_limit

QUICK = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; all of them when none is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "row",
        nargs="*",
        metavar="ROW",
        choices=[*ROWS, filling.NAME, []],
        default=[],
        help=", ".join([*ROWS, filling.NAME]),
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the messages, one round")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--broker", action="append", help="only brokers whose names begin so; repeatable")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the stores stand; the disk is measured",
    )
    wanted = parser.parse_args(arguments)
    rounds, scale = (1, QUICK) if wanted.quick else (wanted.rounds, 1.0)
    raise_file_limit(1_000)
    entrants = [one for one in ENTRANTS if not wanted.broker or one.name.startswith(tuple(wanted.broker))]
    with at_work() as cores:
        print(f"{os.cpu_count()} cores, {cores}", flush=True)
        for name in wanted.row or [*ROWS, filling.NAME]:
            print(f"\n{disk.about(wanted.directory)}", flush=True)
            if name == filling.NAME:
                print(filling.table(scale, wanted.directory, cores.broker), flush=True)
                continue
            row = ROWS[name]
            print(f"{row.title}\n", flush=True)
            body: dict[str, list[list[str]]] = {one.name: [] for one in entrants}
            for _ in range(rounds):
                for one in entrants:
                    try:
                        body[one.name].append(row.measure(one, scale, wanted.directory, cores.broker))
                    except (BrokerFailed, LoadError, OSError) as error:
                        print(f"{one.name}: {error}", file=sys.stderr, flush=True)
            print(aligned(("", *row.headings), [[one, *_median(row, found)] for one, found in body.items()], {""}))
    return 0


def _median(row: Row, rounds: Sequence[Sequence[str]]) -> list[str]:
    """The cells of the rounds as one."""
    if not rounds:
        return ["failed", *[""] * (len(row.headings) - 1)]
    found: list[str] = []
    for column in zip(*rounds, strict=True):
        if len(set(column)) == 1:
            found.append(column[0])
        else:
            found.append(number(median(float(cell.replace(",", "")) for cell in column if cell != "–")))
    return found
