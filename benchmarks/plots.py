"""The pictures of the documentation, drawn by matplotlib from the figures that are published (docs/figures/).

Owns what is drawn: CPU of brokers as bars on a logarithmic scale (`network`), and small charts of growth, sizes on a
logarithmic scale and costs from zero (`scale`, `growth`). The files are what ``--json`` of the benchmarks writes; a
size that failed leaves a gap. Every picture has a light ground, so that it reads the same on a dark page.

    python -m benchmarks plots [NAME FILE.json …]
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
COLOURS: Final = ("#1b7f5c", "#a85b00", "#5a6b80", "#9a5b8f")
FAINT: Final = "#8c959f"
"""The colour of a line that is there to be compared with."""
INK: Final = "#24292f"
GRID: Final = "#e4e7ea"
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "canopy",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Panel:
    """One cost: a figure of a step of a row, by size; ``without`` is the step to compare it with."""

    row: str
    step: str
    figure: str
    title: str
    without: str = ""


SCALE: Final = (
    Panel("filters", "SUBSCRIBE", "CPU µs", "SUBSCRIBE: CPU µs a filter"),
    Panel("filters", "SUBSCRIBE", "B each", "Memory: bytes a filter"),
    Panel("filters", "UNSUBSCRIBE of half", "CPU µs", "UNSUBSCRIBE: CPU µs a filter"),
    Panel(
        "filters",
        "publish, few topics",
        "CPU µs",
        "Publish, few topics: CPU µs a message",
        "publish, few topics, without the filters",
    ),
    Panel(
        "filters",
        "publish, very many topics",
        "CPU µs",
        "Publish, many topics: CPU µs a message",
        "publish, very many topics, without the filters",
    ),
    Panel("filters", "the other half leave", "CPU µs", "Disconnect: CPU µs a filter"),
    Panel("clients", "connect", "CPU µs", "Connect: CPU µs a client"),
    Panel("clients", "connect", "B each", "Memory: bytes a client"),
    Panel("clients", "keep alive", "broker %", "Keep alive: % of a core"),
    Panel("clients", "pairs beside them", "CPU µs", "Paced pairs: CPU µs a message", "pairs, no idle clients"),
    Panel("clients", "pairs beside them", "p99 µs", "Paced pairs: p99 latency, µs", "pairs, no idle clients"),
    Panel("clients", "leave", "CPU µs", "Disconnect: CPU µs a client"),
)
GROWTH: Final = (
    Panel("filters", "", "insert ns", "Insert, ns"),
    Panel("filters", "", "match ns", "Match, uncached, ns"),
    Panel("filters", "", "remove ns", "Remove, ns"),
    Panel("filters", "", "B each", "Memory, bytes a filter"),
    Panel("subscribers", "", "add ns", "One more subscriber, ns"),
    Panel("subscribers", "", "discard ns", "Any subscriber leaves, ns"),
    Panel("subscribers", "", "deliver ns", "One delivery, ns"),
)


def short(value: float, _: object = None) -> str:
    """A figure beside an axis or a point: 500, 1k, 17.8k, 2M; three digits that matter."""
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def points(results: Sequence[Mapping[str, Any]], broker: str, step: str, panel: Panel) -> list[tuple[float, float]]:
    """Return size and figure of each size that was measured, by size."""
    found = []
    for result in results:
        if result["row"] == panel.row and result["broker"] == broker:
            value = result["steps"].get(step, {}).get(panel.figure)
            if value is not None:
                found.append((result["size"], value))
    return sorted(found)


def lines(results: Sequence[Mapping[str, Any]], panel: Panel) -> dict[str, list[tuple[float, float]]]:
    """The lines of a panel by name: one for each broker, and for one alone also its cost without the load."""
    brokers = list(dict.fromkeys(result["broker"] for result in results))
    found = {broker: points(results, broker, panel.step, panel) for broker in brokers}
    if len(brokers) == 1 and panel.without:
        found = {"with": found[brokers[0]], "without": points(results, brokers[0], panel.without, panel)}
    return {name: line for name, line in found.items() if line}


def _draw(axes: Axes, drawn: Mapping[str, Sequence[tuple[float, float]]], panel: Panel) -> None:
    axes.set_title(panel.title)
    axes.set_xscale("log")
    axes.grid(axis="y", color=GRID)
    highest = max(line[-1][1] for line in drawn.values())
    for at, (name, line) in enumerate(drawn.items()):
        sizes, values = zip(*line, strict=True)
        colour = FAINT if name == "without" else COLOURS[at % len(COLOURS)]
        axes.plot(sizes, values, color=colour, marker="o", markersize=3, linewidth=1.6, label=name)
        place = (4, 2 if values[-1] == highest else -8)
        axes.annotate(short(values[-1]), (sizes[-1], values[-1]), place, textcoords="offset points", color=colour)
    axes.set_ylim(bottom=0, top=1.15 * max(value for line in drawn.values() for _, value in line))
    axes.set_xticks(sorted({size for line in drawn.values() for size, _ in line}))
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    if len(drawn) > 1:
        axes.legend(frameon=False, loc="best")


def grown(files: Sequence[Mapping[str, Any]], panels: Sequence[Panel], columns: int) -> Figure:
    """Charts of growth, side by side in so many columns; a panel without figures is left out."""
    results = [result for data in files for result in data["results"]]
    shown = [(panel, drawn) for panel in panels if (drawn := lines(results, panel))]
    height = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(3.1 * columns, 2.1 * height), layout="constrained")
    every = list(figure.subplots(height, columns, squeeze=False).flat)
    for axes in every:
        axes.set_visible(False)
    for axes, (panel, drawn) in zip(every, shown, strict=False):
        axes.set_visible(True)
        _draw(axes, drawn, panel)
    return figure


def bars(data: Mapping[str, Any]) -> Figure:
    """CPU of each broker for each row that has run; the factor between the first two stands beside a row."""
    brokers = list(data["brokers"])
    rows: dict[str, dict[str, float]] = {}
    for each in data["results"]:
        if value := each["steps"].get("", {}).get("CPU µs"):
            rows.setdefault(each["title"], {})[each["broker"]] = value
    figure = Figure(figsize=(9.4, 0.42 * len(rows) + 0.9), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(brokers)
    for at, broker in enumerate(brokers):
        places = [(place, row[broker]) for place, row in enumerate(rows.values()) if broker in row]
        number = re.search(r"\d+(\.\d+)+", data["brokers"][broker])
        label = f"{broker} {number[0]}" if number else broker
        drawn = axes.barh(
            [place + (at - (len(brokers) - 1) / 2) * width for place, _ in places],
            [value for _, value in places],
            height=width * 0.9,
            color=FAINT if at == 1 else COLOURS[at % len(COLOURS)],
            label=label,
        )
        axes.bar_label(drawn, [f"{value:.3g}" for _, value in places], padding=3, fontsize=7)
    for place, row in enumerate(rows.values()):
        if len(brokers) > 1 and row.keys() >= set(brokers[:2]):
            factor = row[brokers[1]] / row[brokers[0]]
            text = f"{factor:.0f}×" if factor >= 10 else f"{factor:.2g}×"
            axes.text(1.0, place, text, transform=axes.get_yaxis_transform(), ha="right", va="center", weight="bold")
    axes.set_xscale("log")
    axes.set_xlim(right=4 * max(value for row in rows.values() for value in row.values()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.set_title("CPU µs of the broker for each delivered message (client, filter), logarithmic; shorter is better")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, -0.09), ncols=len(brokers))
    return figure


def picture(name: str, files: Sequence[Mapping[str, Any]]) -> str:
    """The picture of that name as SVG, the same for the same figures; places to a hundredth of a point.

    Raises:
        KeyError: there is none of that name, or the files are not what it is drawn from.
    """
    with mpl.rc_context(STYLE):
        if name == "network":
            figure = bars(files[0])
        else:
            figure = grown(files, *{"scale": (SCALE, 3), "growth": (GROWTH, 4)}[name])
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), drawn.getvalue())
    return re.sub(r"[ \t]+$", "", re.sub(r"\n *<!-- .* -->(?=\n)", "", text), flags=re.MULTILINE)


PICTURES: Final = {"network": "benchmarks.svg", "scale": "scale.svg", "growth": "growth.svg"}


def main(arguments: Sequence[str]) -> int:
    """Draw all pictures from docs/figures/, or one from these files; 2 with one line where that cannot be done."""
    wanted = {arguments[0]: list(map(Path, arguments[1:]))} if arguments else {}
    for name, sources in (wanted or {name: [DOCS / "figures" / f"{name}.json"] for name in PICTURES}).items():
        try:
            files = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
            text = picture(name, files)
        except (OSError, ValueError, KeyError, IndexError) as error:
            print(f"usage: plots [NAME FILE.json …] of {', '.join(PICTURES)}: {error!r}", file=sys.stderr)
            return 2
        (DOCS / PICTURES[name]).write_text(text, encoding="utf-8")
    return 0
