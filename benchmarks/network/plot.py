"""Draws the picture of the numbers: one SVG from what `make bench ARGS="--json FILE"` wrote.

Owns the look of it. Bars are CPU time for each delivered message on a logarithmic scale, shorter is better; the factor
between the first two brokers stands beside each row. Standard library only.

    python -m benchmarks.network.plot bench.json docs/benchmarks.svg
"""

from __future__ import annotations

import json
import math
import re
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

WIDTH: Final = 900
LABEL: Final = 310
BAR: Final = 13
GAP: Final = 16
TOP: Final = 58
FONT: Final = 'font-family="system-ui, sans-serif" font-size="12" fill="#24292f"'
NOTE: Final = "microseconds (for each client or filter where the row says so), logarithmic; shorter is better"
COLOURS: Final = ("#1b7f5c", "#b0b7bd", "#d9a441", "#7c8ea3")


def medians(data: dict[str, Any]) -> dict[str, dict[str, float]]:
    """CPU µs for each delivery by row title and broker; rows that did not run are left out."""
    found: dict[str, dict[str, float]] = {}
    for row in data["rows"]:
        figures = {name: each["medians"]["cpu_us"] for name, each in row["brokers"].items()}
        known = {name: figure for name, figure in figures.items() if figure}
        if known:
            found[row["title"]] = known
    return found


def _with_version(broker: str, says: str) -> str:
    """A broker's name with the number in what it says of its version, if there is one."""
    number = re.search(r"\d+(\.\d+)+", says)
    return f"{broker} {number[0]}" if number else broker


def draw(data: dict[str, Any]) -> str:
    """The picture as SVG text."""
    rows = medians(data)
    brokers = list(data["brokers"])
    figures = [value for by_broker in rows.values() for value in by_broker.values()]
    low = math.floor(math.log10(min(figures)))
    high = math.ceil(math.log10(max(figures)))
    scale = (WIDTH - LABEL - 90) / (high - low)
    height = TOP + len(rows) * (BAR * len(brokers) + GAP) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="20" font-size="15" font-weight="600">CPU of the broker for each delivered message</text>',
        f'<text x="12" y="38" fill="#57606a">{NOTE}</text>',
    ]
    x = WIDTH - 20
    for at, broker in reversed(list(enumerate(brokers))):
        name = _with_version(broker, data["brokers"][broker])
        x -= 18 + 7 * len(name)
        parts.append(f'<rect x="{x}" y="10" width="10" height="10" fill="{COLOURS[at % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="20">{escape(name)}</text>')
    for decade in range(low, high + 1):
        at_x = LABEL + (decade - low) * scale
        parts.append(f'<line x1="{at_x:.1f}" y1="{TOP - 8}" x2="{at_x:.1f}" y2="{height - 20}" stroke="#e4e7ea"/>')
        parts.append(
            f'<text x="{at_x:.1f}" y="{height - 6}" text-anchor="middle" fill="#57606a">{10.0**decade:g}</text>'
        )
    y = TOP
    for title, by_broker in rows.items():
        middle = y + BAR * len(brokers) / 2 + 4
        parts.append(f'<text x="{LABEL - 10}" y="{middle:.1f}" text-anchor="end">{escape(title)}</text>')
        for at, broker in enumerate(brokers):
            value = by_broker.get(broker)
            if value is not None:
                length = max(2.0, (math.log10(value) - low) * scale)
                top = y + at * BAR
                colour = COLOURS[at % len(COLOURS)]
                parts.append(f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR - 2}" fill="{colour}"/>')
                parts.append(f'<text x="{LABEL + length + 5:.1f}" y="{top + 10}" font-size="10">{value:.3g}</text>')
        if len(brokers) > 1 and brokers[0] in by_broker and brokers[1] in by_broker:
            factor = by_broker[brokers[1]] / by_broker[brokers[0]]
            parts.append(
                f'<text x="{WIDTH - 12}" y="{middle:.1f}" text-anchor="end" font-weight="600">{_factor(factor)}×</text>'
            )
        y += BAR * len(brokers) + GAP
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _factor(value: float) -> str:
    """Two digits, and never an exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def main() -> None:
    """``python -m benchmarks.network.plot BENCH.json OUT.svg``."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m benchmarks.network.plot BENCH.json OUT.svg")
    data = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(draw(data), encoding="utf-8")


if __name__ == "__main__":
    main()
