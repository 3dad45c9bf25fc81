"""A row of an author's benchmark: both layouts of the trie in turn, the author's figure, and the bar to be reached.

A bar is judged on the median of the runs, by wall time, as it is printed beside it. On smaller counts than the author's
no bar is judged.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.routing.measure import Reading
from benchmarks.runner import Case, Figures, Line, Row
from canopy_mqtt.core.topics.trie import COMPACT, NODES

LAYOUTS: Final = (NODES, COMPACT)

RATE: Final = "routes/s"
CHANGES: Final = "ops/s"
NANOSECONDS: Final = "ns"
MILLISECONDS: Final = "ms"
MEGABYTES: Final = "MB"
PROBES: Final = "probes"
TIMES: Final = "×"

OURS: Final = "ours"
"""The figure that stands beside the author's, in the unit of the row."""
CPU: Final = "CPU ns"
"""Of one operation."""

Scaled = Callable[[int], int]
"""Makes an author's count that of this run."""
Run = Callable[[str, Scaled], dict[str, float | None]]
"""The figures for a layout of the trie."""


def row(
    source: str,
    title: str,
    unit: str,
    run: Run,
    differs: str,
    theirs: str | Mapping[str, str] = "",
    *,
    least: float | None = None,
    most: Mapping[str, float] | float | None = None,
) -> Row:
    """A row of the runner. ``theirs``: the author's figure, and ``most``: a bar, for both layouts or by layout.

    ``differs`` says in one line why the figures are no race.
    """
    author = dict.fromkeys(LAYOUTS, theirs) if isinstance(theirs, str) else theirs
    bars = most if isinstance(most, Mapping) else dict.fromkeys(LAYOUTS, most if least is None else least)

    def judge(layout: str, figures: Figures, full: bool) -> Iterable[str]:
        if author.get(layout):
            yield f"{source}: {author[layout]}"
        value, limit = figures.get(OURS), bars.get(layout)
        if limit is not None and value is not None:
            reached = value <= limit if least is None else value >= limit
            verdict = "not judged" if not full else "reached" if reached else "MISSED"
            yield f"{'≤' if least is None else '≥'} {limit:,.10g} {unit}: {verdict}"
        if layout == LAYOUTS[0]:
            yield differs

    return Row(f"{title}, {unit}", partial(_measured, run), LAYOUTS, columns=(OURS, CPU), judge=judge)


def _measured(run: Run, case: Case) -> Iterator[Line]:
    gc.collect()
    yield Line("", run(case.entrant.name, partial(case.scaled, least=4)))


def rate(reading: Reading) -> dict[str, float | None]:
    """Operations a second."""
    return {OURS: reading.rate, CPU: reading.each_cpu_ns}


def nanoseconds(reading: Reading) -> dict[str, float | None]:
    """Wall nanoseconds of one operation."""
    return {OURS: reading.each_ns, CPU: reading.each_cpu_ns}


def milliseconds(reading: Reading) -> dict[str, float | None]:
    """Wall milliseconds of one operation."""
    return {OURS: reading.each_ns / 1e6, CPU: reading.each_cpu_ns}
