"""The picture of growth: one SVG of small panels, from what ``--json FILE`` wrote.

    python -m benchmarks.scale.plot filters.json clients.json docs/scale.svg

Owns which costs are drawn (``PANELS``); `benchmarks.charts` draws them. A size that failed leaves a gap, not a guess.
One file of a kind is one run: what was measured on different machines does not become one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.charts import COLOURS, FAINT, Chart, Line, Section, picture

COLUMNS: Final = 3


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


def _points(data: dict[str, Any], broker: str, phase: str, panel: Panel) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
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
            drawn = [Line("without", FAINT, without), Line("with", drawn[0].colour, drawn[0].points)]
    return [line for line in drawn if line.points]


def draw(files: Sequence[dict[str, Any]]) -> str:
    """The picture as SVG text; one section for each file."""
    sections = []
    for data in files:
        shown = [(panel, lines(data, panel)) for panel in PANELS if panel.what == data["what"]]
        charts = [Chart(panel.title, panel.unit, drawn) for panel, drawn in shown if drawn]
        sections.append(Section(HEADINGS[data["what"]], charts))
    return picture(sections, COLUMNS)


def main() -> None:
    """``python -m benchmarks.scale.plot FILE.json [FILE.json …] OUT.svg``."""
    if len(sys.argv) < 3:
        raise SystemExit("usage: python -m benchmarks.scale.plot FILE.json [FILE.json …] OUT.svg")
    *sources, target = map(Path, sys.argv[1:])
    files = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    target.write_text(draw(files), encoding="utf-8")


if __name__ == "__main__":
    main()
