"""Pictures of growth as SVG: small charts of lines, sizes on a logarithmic scale, costs on a linear one from zero.

A cost that does not grow is a flat line. All lines of a chart share one scale; each has its last figure, and its name
where there are several, at its end. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.figures import ceiling, short_count

WIDTH: Final = 900
AXES: Final = 150  # height of a chart's axes, pixels
HEAD: Final = 46  # above the axes: title and unit
FOOT: Final = 34  # below: the scale of sizes
TOP: Final = 30  # of each section: its heading; as much again for a note
MARGIN: Final = 12
LEFT: Final = 34  # of a chart: the scale of costs
RIGHT: Final = 84  # of a chart: the names of the lines
LABEL: Final = 13  # height of a line's name
FONT: Final = 'font-family="system-ui, sans-serif" font-size="11" fill="#24292f"'
MUTED: Final = "#57606a"
GRID: Final = "#e4e7ea"
COLOURS: Final = ("#1b7f5c", "#d9a441", "#7c8ea3", "#9a5b8f")
"""Of the lines of a chart, in order."""
FAINT: Final = "#b0b7bd"
"""Of a line that is there to be compared with."""


@dataclass(frozen=True)
class Line:
    """One line of a chart: its name, colour, and points (size, cost) by size; at least one."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """One cost; at least one line."""

    title: str
    unit: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Section:
    """Charts under a heading, and a note below that, if there is one."""

    heading: str
    charts: Sequence[Chart]
    note: str = ""


def number(value: float) -> str:
    """A figure as it stands beside its point: three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def picture(sections: Sequence[Section], columns: int) -> str:
    """The picture as SVG text: the sections one below the other, so many charts side by side."""
    body: list[str] = []
    y, width = float(MARGIN), (WIDTH - 2 * MARGIN) / columns
    for section in sections:
        heading = (
            f'<text x="{MARGIN}" y="{y + 16:.0f}" font-size="15" font-weight="600">{escape(section.heading)}</text>'
        )
        body.append(heading)
        y += TOP
        if section.note:
            body.append(_text(MARGIN, y + 6, section.note, "start", MUTED))
            y += TOP
        for at, chart in enumerate(section.charts):
            row, column = divmod(at, columns)
            place = f"{MARGIN + column * width:.0f},{y + row * (HEAD + AXES + FOOT):.0f}"
            body += [f'<g transform="translate({place})">', *_chart(chart, width), "</g>"]
        y += math.ceil(len(section.charts) / columns) * (HEAD + AXES + FOOT) + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}" {FONT}>',
        f'<rect width="{WIDTH}" height="{y:.0f}" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def _chart(chart: Chart, width: float) -> list[str]:
    """One chart, drawn at the origin."""
    drawn = chart.lines
    sizes = sorted({size for line in drawn for size, _ in line.points})
    top = ceiling(max(value for line in drawn for _, value in line.points) or 1.0)
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    left, right, bottom = float(LEFT), width - RIGHT, float(HEAD + AXES)

    def across(size: float) -> float:
        return (left + right) / 2 if high == low else left + (math.log10(size) - low) / (high - low) * (right - left)

    def up(value: float) -> float:
        return bottom - value / top * AXES

    parts = [
        f'<text x="0" y="16" font-size="13" font-weight="600">{escape(chart.title)}</text>',
        f'<text x="0" y="31" fill="{MUTED}">{escape(chart.unit)}</text>',
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
        shade = MUTED if line.colour == FAINT else line.colour
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
