"""Draws how the costs grow: one SVG from what ``make bench-routing ARGS="--growth --json FILE"`` wrote.

Owns which costs are drawn (``PANELS``), a line for each layout; `benchmarks.charts` draws them.

    python -m benchmarks.routing.plot growth.json docs/growth.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.charts import COLOURS, Chart, Line, Section, picture

Points = Mapping[str, Sequence[Mapping[str, float]]]

COLUMNS: Final = 4
HEADING: Final = "How the costs of routing grow"
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


def chart(points: Points, figure: str, title: str, unit: str) -> Chart:
    """One cost: a line for each layout in ``points``."""
    drawn = [
        Line(layout, COLOURS[at % len(COLOURS)], tuple((point["count"], point[figure]) for point in series))
        for at, (layout, series) in enumerate(points.items())
    ]
    return Chart(title, unit, drawn)


def draw(data: Mapping[str, Any]) -> str:
    """The picture as SVG text; KeyError where the data is not that of ``--growth``."""
    found: Mapping[str, Points] = data["growth"]
    charts = [chart(found[series], figure, title, unit) for series, figure, title, unit in PANELS]
    return picture([Section(HEADING, charts, f"{NOTE}; core {data['core']}")], COLUMNS)


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
