"""The percentile spectrum: the whole distribution of a run, its far end drawn widest.

Owns: the scale of percentiles: 90 %, 99 %, 99.9 % stand at even distances.

Promises: read from the whole run's histogram, not from a sample. A histogram that cannot be read costs this plot, not
the page.

Nothing is drawn beyond the last delivery: the line ends where one in `count` does.
"""

from __future__ import annotations

import math
from typing import Final

from hdrh.histogram import HdrHistogram

from canopy_pages import BLUE, GREY, POWERS, Data, Plot, line
from loadtest.load.report.result import Latency, Result

STEPS: Final = 10
"""Points for each halving of what is left above."""


def spectrum(result: Result) -> Plot:
    """Deliveries, and the generator's own lateness where it was measured."""
    plot = Plot(
        "spectrum",
        "Percentile spectrum",
        "The whole run: how many deliveries took at most how long. Each mark from 90 % leaves a tenth as many above.",
    )
    lines = [("deliveries", result.latency, BLUE, "solid"), ("generator late", result.late, GREY, "dot")]
    plot.traces = [trace for name, of, colour, dash in lines if (trace := _line_of(name, of, colour, dash)) is not None]
    if not plot.traces:
        plot.absent = "No distribution of latencies was kept, so there is no spectrum."
        return plot
    furthest = max(max(trace["x"]) for trace in plot.traces)
    ticks = [2, *(10**power for power in range(1, max(2, math.ceil(math.log10(furthest)) + 1)))]
    plot.layout = {
        "xaxis": {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [f"{100 * (1 - 1 / tick):.10g} %" for tick in ticks],
            "range": [0, max(math.log10(furthest), 1.0) * 1.02],
        },
        "yaxis": {"title": {"text": "ms"}, **POWERS},
    }
    return plot


def _line_of(name: str, of: Latency, colour: str, dash: str) -> Data | None:
    if not of.histogram:
        return None
    try:
        histogram = HdrHistogram.decode(of.histogram)
        total = histogram.get_total_count()
        steps = [
            (step.percentile_level_iterated_to, step.value_iterated_to)
            for step in histogram.get_percentile_iterator(STEPS)
        ]
    except Exception:  # whatever the decoder stumbles over (it has no error of its own): there is no line
        return None
    if not total:
        return None
    # The last step is "100 %", infinitely far to the right: one in `total` is all that is known of it.
    places = [min(1 / max(1 - percentile / 100, 1e-12), float(total)) for percentile, _ in steps]
    return line(
        name,
        [float(f"{place:.6g}") for place in places],
        [float(f"{max(value, 1) / 1e3:.5g}") for _, value in steps],
        colour,
        line={"dash": dash, "shape": "hv", "width": 1.8},
    )
