"""The latency heat map: when which latencies were how frequent.

Owns: the grid: columns of time, rows of latency (`PER_DECADE` of them for each power of ten), and the scale of colours.

Promises: the colour is a rate, so that a short column is not a pale one; nothing measured and nothing delivered are
both left blank. Data only; the page gives the colours.

Nothing is blurred: a single slow delivery is a cell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from canopy_pages import POWERS, Plot
from loadtest.load.report.drawing import each_second
from loadtest.load.report.fold import fold
from loadtest.load.report.result import Second

COLUMNS: Final = 400
PER_DECADE: Final = 15


def heat_map(seconds: Sequence[Second]) -> Plot:
    plot = Plot(
        "heat",
        "Latency heat map",
        "Each column is a stretch of time, each row a range of latency; the stronger the colour, the more "
        "deliveries a second (on a logarithmic scale).",
        tall=True,
    )
    columns = fold(seconds, COLUMNS)
    rows = [Counter[int]() for _ in columns]
    for row, column in zip(rows, columns, strict=True):
        for us, count in column.latencies.items():
            row[math.floor(math.log10(max(us, 1)) * PER_DECADE + 1e-9)] += count
    bins = [at for row in rows for at in row]
    if not bins:
        plot.absent = "No latency was measured, so there is no heat map."
        return plot
    low, high = min(bins), max(bins)
    edges: list[float] = []
    rates: list[list[float | None]] = [[] for _ in range(low, high + 1)]
    for column, row in zip(columns, rows, strict=True):
        if edges and column.start > edges[-1] + 1e-3:
            edges.append(round(column.start, 3))  # nothing is known of the time between: an empty column
            for line in rates:
                line.append(None)
        elif not edges:
            edges.append(round(column.start, 3))
        for at, line in enumerate(rates, low):
            line.append(each_second(row[at], column) if row[at] else None)
        edges.append(round(column.start + column.seconds, 3))
    levels = [[None if rate is None else round(math.log10(rate), 2) for rate in line] for line in rates]
    known = [level for line in levels for level in line if level is not None]
    low_power, high_power = math.floor(min(known)), math.ceil(max(known))
    steps = (1, 2, 5) if high_power - low_power <= 3 else (1,)
    ticks = [step * 10.0**power for power in range(low_power, high_power + 1) for step in steps]
    plot.traces = [
        {
            "type": "heatmap",
            "x": edges,
            "y": [float(f"{10 ** (at / PER_DECADE) / 1e3:.4g}") for at in range(low, high + 2)],
            "z": levels,
            "zmin": min(known) if min(known) < max(known) else min(known) - 1,
            "zmax": max(known),
            "customdata": rates,
            "colorbar": {
                "title": {"text": "/s"},
                "tickvals": [round(math.log10(tick), 3) for tick in ticks],
                "ticktext": [f"{tick:,g}" for tick in ticks],
            },
        }
    ]
    plot.layout = {"yaxis": {"title": {"text": "ms"}, **POWERS}}
    return plot
