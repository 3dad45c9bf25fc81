"""Draws how the costs grow: one SVG from what ``make bench-routing ARGS="--growth --json FILE"`` wrote.

Owns the look of it: small panels, one for each cost, the count on a logarithmic axis, the cost from zero, a line for
each layout with its name at its end. Standard library only.

    python -m benchmarks.routing.plot growth.json docs/growth.svg
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import ceiling, short_count

Points = Mapping[str, Sequence[Mapping[str, float]]]

WIDTH: Final = 900
COLUMNS: Final = 4
CELL_WIDTH: Final = 219
CELL_HEIGHT: Final = 190
TOP: Final = 52
LEFT: Final = 12
# Inside a cell: room for the title, the ticks, and the lines' names.
HEAD: Final = 40
FOOT: Final = 34
SCALE: Final = 34
NAMES: Final = 60
LINE_GAP: Final = 13
FONT: Final = 'font-family="system-ui, sans-serif" font-size="12" fill="#24292f"'
QUIET: Final = 'fill="#57606a" font-size="10"'
COLOURS: Final = ("#1b7f5c", "#a85b00")
NOTE: Final = "nanoseconds of one operation, from zero; the count of filters or subscribers is logarithmic"
PANELS: Final = (
    ("filters", "insert_ns", "insert", "ns, by filters in the trie"),
    ("filters", "match_ns", "match, uncached", "ns, by filters in the trie"),
    ("filters", "remove_ns", "remove", "ns, by filters in the trie"),
    ("filters", "bytes", "memory", "bytes each, by filters"),
    ("subscribers", "add_ns", "one more subscriber", "ns, by subscribers of the filter"),
    ("subscribers", "discard_ns", "any subscriber leaves", "ns, by subscribers of the filter"),
    ("subscribers", "deliver_ns", "one delivery", "ns, by subscribers of the filter"),
)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights for labels near the wanted ones, none closer than ``gap`` to the next."""
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    placed = list(wanted)
    for before, after in itertools.pairwise(order):
        short_of = gap - (placed[after] - placed[before])
        if short_of > 0:
            placed[before] -= short_of / 2
            placed[after] += short_of / 2
    return placed


def panel(points: Points, figure: str, title: str, unit: str) -> list[str]:
    """One panel, drawn at the origin: a line for each layout in ``points``."""
    width, height = CELL_WIDTH - SCALE - NAMES, CELL_HEIGHT - HEAD - FOOT
    counts = sorted({point["count"] for series in points.values() for point in series})
    low, high = math.log10(counts[0]), math.log10(counts[-1])
    top = ceiling(max(point[figure] for series in points.values() for point in series))

    def x(count: float) -> float:
        return SCALE + (math.log10(count) - low) / ((high - low) or 1.0) * width

    def y(value: float) -> float:
        return HEAD + height - value / top * height

    parts = [
        f'<text x="0" y="12" font-weight="600">{escape(title)}</text>',
        f'<text x="0" y="26" {QUIET}>{escape(unit)}</text>',
    ]
    for tick in (0.0, top / 2, top):
        at = y(tick)
        parts.append(f'<line x1="{SCALE}" y1="{at:.1f}" x2="{SCALE + width}" y2="{at:.1f}" stroke="#e4e7ea"/>')
        parts.append(f'<text x="{SCALE - 5}" y="{at + 3:.1f}" text-anchor="end" {QUIET}>{tick:,.4g}</text>')
    for count in counts:
        foot = HEAD + height + 15
        parts.append(f'<text x="{x(count):.1f}" y="{foot}" text-anchor="middle" {QUIET}>{short_count(count)}</text>')
    ends = spread([y(series[-1][figure]) for series in points.values()], LINE_GAP)
    for at, (layout, series) in enumerate(points.items()):
        colour = COLOURS[at % len(COLOURS)]
        line = " ".join(f"{x(point['count']):.1f},{y(point[figure]):.1f}" for point in series)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in series:
            parts.append(f'<circle cx="{x(point["count"]):.1f}" cy="{y(point[figure]):.1f}" r="2.5" fill="{colour}"/>')
        place = f'x="{SCALE + width + 6}" y="{ends[at] + 4:.1f}"'
        parts.append(f'<text {place} font-size="11" fill="{colour}">{escape(layout)}</text>')
    return parts


def draw(data: Mapping[str, Any]) -> str:
    """The picture as SVG text; KeyError where the data is not that of ``--growth``."""
    found: Mapping[str, Points] = data["growth"]
    height = TOP + -(-len(PANELS) // COLUMNS) * CELL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="600">How the costs of routing grow</text>',
        f'<text x="{LEFT}" y="38" fill="#57606a">{NOTE}; core {escape(str(data["core"]))}</text>',
    ]
    for at, (series, figure, title, unit) in enumerate(PANELS):
        across, down = LEFT + at % COLUMNS * CELL_WIDTH, TOP + at // COLUMNS * CELL_HEIGHT
        parts.append(f'<g transform="translate({across},{down})">')
        parts += panel(found[series], figure, title, unit)
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    """``plot GROWTH_JSON SVG``; 0, or 2 with one line about what is wrong with them."""
    if len(arguments) != 2:
        print("usage: python -m benchmarks.routing.plot GROWTH.json OUT.svg", file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    try:
        picture = draw(json.loads(source.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError) as error:
        print(f"{source} is not what --growth --json writes: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    target.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
