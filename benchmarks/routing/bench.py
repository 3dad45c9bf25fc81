"""The rows of all authors as rows of the runner: both layouts of the trie in turn, the author's figure, the bar."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.routing import emqx, rabbitmq, zmq
from benchmarks.routing.measure import broker_gc, core_kind, empty_loop
from benchmarks.routing.row import LAYOUTS, Case, Measured
from benchmarks.runner import Bench, Entrant, Figures, Line, Row
from benchmarks.runner import Case as Run

ROWS: Final[dict[str, Measured]] = {row.name: row for row in (*rabbitmq.ROWS, *emqx.ROWS, *zmq.ROWS)}
OURS: Final = "ours"


def _run(row: Measured, case: Run) -> Iterator[Line]:
    gc.collect()
    sample = row.run(Case(case.entrant.name, case.divide))
    yield Line("", {OURS: sample.value, "CPU ns": sample.cpu_ns, **sample.details})


def judge(row: Measured, layout: str, figures: Figures, full: bool) -> Iterable[str]:
    """The author's figure, whether the bar is reached with the author's counts, and why it is no race."""
    if author := row.author.get(layout):
        yield f"{row.source}: {author}"
    bar, value = row.bars.get(layout), figures.get(OURS)
    if bar is not None and value is not None:
        yield f"{bar.text(row.unit)}: {'not judged' if not full else 'reached' if bar.reached(value) else 'MISSED'}"
    if layout == LAYOUTS[0]:
        yield row.differs


@contextmanager
def as_the_daemon() -> Iterator[None]:
    """The garbage collector as a broker has it; what was measured, and what measuring costs, is printed."""
    with broker_gc():
        print(f"core {core_kind()}; an empty turn of the measuring loop takes {empty_loop().each_ns:.1f} ns")
        yield


BENCH: Final = Bench(
    "routing",
    "The broker's routing, without a network, beside the figures of those whose ideas it uses.",
    {
        name: Row(
            f"{row.title}, {row.unit}",
            partial(_run, row),
            LAYOUTS,
            columns=(OURS, "CPU ns"),
            judge=partial(judge, row),
        )
        for name, row in ROWS.items()
    },
    {layout: Entrant(layout) for layout in LAYOUTS},
    repeats=5,
    around=as_the_daemon,
)
