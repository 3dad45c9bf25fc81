"""The picture of growth: one SVG of small panels, from what ``--json FILE`` wrote.

    python -m benchmarks.scale.plot filters.json clients.json docs/scale.svg

Owns: which costs are drawn (``PANELS``) and how they look. Sizes are on a logarithmic scale, costs on a linear one that
begins at zero: a cost that does not grow is a flat line.

Promises: standard library only. A size that failed leaves a gap, not a guess; figures of one panel share one scale.

Refuses: to draw what was measured on different machines into one line: one file of a kind is one run.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import ceiling, short_count

WIDTH: Final = 900
COLUMNS: Final = 3
PANEL: Final = 150  # height of a panel's axes, pixels
HEAD: Final = 46  # above the axes: title and unit
FOOT: Final = 34  # below: the scale of sizes
TOP: Final = 30  # of each section: its heading
MARGIN: Final = 12
LEFT: Final = 34  # of a panel: the scale of costs
RIGHT: Final = 84  # of a panel: the names of the lines
LABEL: Final = 13  # height of a line's name
FONT: Final = 'font-family="system-ui, sans-serif" font-size="11" fill="#24292f"'
MUTED: Final = "#57606a"
GRID: Final = "#e4e7ea"
WITHOUT: Final = "#b0b7bd"
COLOURS: Final = ("#1b7f5c", "#d9a441", "#7c8ea3", "#9a5b8f")


@dataclass(frozen=True)
class Panel:
    """One cost: attribute ``figure`` of a phase's sample, times ``factor``."""

    what: str
    phase: str
    figure: str
    title: str
    unit: str
    factor: float = 1.0


PANELS: Final = (
    Panel("filters", "subscribe", "cpu_us", "SUBSCRIBE", "CPU µs for each filter"),
    Panel("filters", "subscribe", "bytes_each", "Memory", "resident bytes for each filter"),
    Panel("filters", "unsubscribe", "cpu_us", "UNSUBSCRIBE", "CPU µs for each filter"),
    Panel("filters", "hot", "cpu_us", "Publish, few topics", "CPU µs for each message"),
    Panel("filters", "cold", "cpu_us", "Publish, very many topics", "CPU µs for each message"),
    Panel("filters", "leave", "cpu_us", "Disconnect with filters", "CPU µs for each filter"),
    Panel("clients", "connect", "cpu_us", "Connect", "CPU µs for each client"),
    Panel("clients", "connect", "bytes_each", "Memory", "resident bytes for each client"),
    Panel("clients", "keep-alive", "broker_share", "Keep alive", "% of a core", 100.0),
    Panel("clients", "paced", "cpu_us", "Paced pairs beside them", "CPU µs for each message"),
    Panel("clients", "paced", "p99_us", "Paced pairs beside them", "p99 latency, ms", 1e-3),
    Panel("clients", "leave", "cpu_us", "Disconnect", "CPU µs for each client"),
)
HEADINGS: Final = {
    "filters": "How costs grow with the number of filters device/%c/+/%n/#",
    "clients": "How costs grow with the number of connected, idle clients",
}


@dataclass(frozen=True)
class Line:
    """One line of a panel: its name, colour, and points (size, cost) by size."""

    name: str
    colour: str
    points: tuple[tuple[int, float], ...]


def _points(data: dict[str, Any], broker: str, phase: str, panel: Panel) -> tuple[tuple[int, float], ...]:
    found: list[tuple[int, float]] = []
    for outcome in data["outcomes"]:
        for each in outcome["phases"] if outcome["broker"] == broker else ():
            value = each["sample"][panel.figure]
            if each["name"] == phase and value is not None:
                found.append((outcome["size"], value * panel.factor))
    return tuple(sorted(found))


def lines(data: dict[str, Any], panel: Panel) -> list[Line]:
    """The lines of a panel: one for each broker, and for one broker alone also its cost without the load."""
    brokers = list(data["brokers"])
    drawn = [
        Line(name, COLOURS[at % len(COLOURS)], _points(data, name, panel.phase, panel))
        for at, name in enumerate(brokers)
    ]
    if len(brokers) == 1:
        without = _points(data, brokers[0], f"{panel.phase}-without", panel)
        if without:
            drawn = [Line("without", WITHOUT, without), Line("with", drawn[0].colour, drawn[0].points)]
    return [line for line in drawn if line.points]


def number(value: float) -> str:
    """A figure as it stands beside its point: three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _panel(panel: Panel, drawn: Sequence[Line], x: float, y: float, width: float) -> list[str]:
    sizes = sorted({size for line in drawn for size, _ in line.points})
    top = ceiling(max((value for line in drawn for _, value in line.points), default=1.0) or 1.0)
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    left, right, bottom = x + LEFT, x + width - RIGHT, y + HEAD + PANEL

    def across(size: int) -> float:
        return (left + right) / 2 if high == low else left + (math.log10(size) - low) / (high - low) * (right - left)

    def up(value: float) -> float:
        return bottom - value / top * PANEL

    parts = [
        f'<text x="{x:.0f}" y="{y + 16:.0f}" font-size="13" font-weight="600">{escape(panel.title)}</text>',
        f'<text x="{x:.0f}" y="{y + 31:.0f}" fill="{MUTED}">{escape(panel.unit)}</text>',
    ]
    for value in (0.0, top / 2, top):
        parts.append(
            f'<line x1="{left:.1f}" y1="{up(value):.1f}" x2="{right:.1f}" y2="{up(value):.1f}" stroke="{GRID}"/>'
        )
        parts.append(_text(left - 5, up(value) + 4, number(value), "end", MUTED))
    for size in sizes:
        parts.append(_text(across(size), bottom + 16, short_count(size), "middle", MUTED))
    ordered = sorted(drawn, key=lambda line: -line.points[-1][1])
    for line in ordered:
        path = " ".join(f"{across(size):.1f},{up(value):.1f}" for size, value in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
        for size, value in line.points:
            parts.append(f'<circle cx="{across(size):.1f}" cy="{up(value):.1f}" r="2.5" fill="{line.colour}"/>')
    for line, at in zip(ordered, apart([up(line.points[-1][1]) for line in ordered], bottom), strict=True):
        size, value = line.points[-1]
        shade = MUTED if line.colour == WITHOUT else line.colour
        name = f'<tspan dx="4" font-size="10" font-weight="400">{escape(line.name)}</tspan>' if len(drawn) > 1 else ""
        place = f'x="{across(size) + 7:.1f}" y="{at + 4:.1f}" fill="{shade}" font-weight="600"'
        parts.append(f"<text {place}>{number(value)}{name}</text>")
    return parts


def apart(wanted: Sequence[float], bottom: float) -> list[float]:
    """Heights (downwards, in ascending order) near the wanted ones, a label's height apart and not below ``bottom``."""
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + LABEL) if placed else at)
    limit = bottom
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - LABEL
    return placed


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def draw(files: Sequence[dict[str, Any]]) -> str:
    """The picture as SVG text; one section for each file."""
    body: list[str] = []
    y, width = float(MARGIN), (WIDTH - 2 * MARGIN) / COLUMNS
    for data in files:
        shown = [(panel, lines(data, panel)) for panel in PANELS if panel.what == data["what"]]
        shown = [(panel, drawn) for panel, drawn in shown if drawn]
        heading = escape(HEADINGS[data["what"]])
        body.append(f'<text x="{MARGIN}" y="{y + 16:.0f}" font-size="15" font-weight="600">{heading}</text>')
        y += TOP
        for at, (panel, drawn) in enumerate(shown):
            row, column = divmod(at, COLUMNS)
            body += _panel(panel, drawn, MARGIN + column * width, y + row * (HEAD + PANEL + FOOT), width)
        y += math.ceil(len(shown) / COLUMNS) * (HEAD + PANEL + FOOT) + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}" {FONT}>',
        f'<rect width="{WIDTH}" height="{y:.0f}" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def main() -> None:
    """``python -m benchmarks.scale.plot FILE.json [FILE.json …] OUT.svg``."""
    if len(sys.argv) < 3:
        raise SystemExit("usage: python -m benchmarks.scale.plot FILE.json [FILE.json …] OUT.svg")
    *sources, target = map(Path, sys.argv[1:])
    files = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    target.write_text(draw(files), encoding="utf-8")


if __name__ == "__main__":
    main()
