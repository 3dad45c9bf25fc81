"""What all plots are made of: the shape of one, colours, lines and bars.

Owns: ``Plot``, and how a second's figures become points.

Promises: text from outside goes through ``label``, which escapes it for plotly, that reads HTML tags in its texts.

Where nothing was measured there is no line: a gap stays a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from loadtest.load.report.result import Second
from loadtest.load.report.wording import plain

BLUE: Final = "#3d84c6"
GREEN: Final = "#2f9e6e"
AMBER: Final = "#cf8a1c"
RED: Final = "#d2455b"
VIOLET: Final = "#8b68d0"
GREY: Final = "#85909c"
"""Of a middle lightness: they have to do before black and white."""

SHADE: Final = "rgba(61, 132, 198, 0.09)"

Data = dict[str, Any]


@dataclass
class Plot:
    """One plot, or the reason why there is none (`absent`)."""

    key: str
    title: str
    about: str
    """A sentence under the title: what is drawn, and how to read it."""
    traces: list[Data] = field(default_factory=list)
    layout: Data = field(default_factory=dict)
    absent: str = ""


POWERS: Final[Data] = {"dtick": 1, "tickformat": ",~g"}
"""Ticks of a logarithmic axis: the powers of ten."""


def label(text: str, at_most: int = 40) -> str:
    """A text from outside, as plotly shows it and not as plotly would obey it."""
    shown = plain(text)
    return escape(shown if len(shown) <= at_most else shown[: at_most - 1] + "…")


def line(
    name: str, points: Sequence[Second], value: Callable[[Second], float | None], colour: str, dash: str = "solid"
) -> Data:
    """A line through the middles of the points, with a gap where two points do not follow each other."""
    at: list[float | None] = []
    values: list[float | None] = []
    for position, point in enumerate(points):
        if position and point.start > points[position - 1].start + points[position - 1].seconds + 1e-3:
            at.append(None)
            values.append(None)
        found = value(point)
        at.append(round(point.start + point.seconds / 2, 3))
        values.append(None if found is None else float(f"{found:.5g}"))
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": name,
        "x": at,
        "y": values,
        "line": {"color": colour, "width": 1.6, "dash": dash},
        "marker": {"color": colour},
        "hovertemplate": "%{y:,.4~g}",
    }


def bars(name: str, points: Sequence[Second], value: Callable[[Second], int], colour: str) -> Data:
    """Bars at the middles of the points."""
    return {
        "type": "bar",
        "name": name,
        "x": [round(point.start + point.seconds / 2, 3) for point in points],
        "y": [value(point) for point in points],
        "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": "%{y:,}",
    }


def each_second(amount: int, second: Second) -> float | None:
    """An amount of a second that may have been shorter or longer, as a rate."""
    return amount / second.seconds if second.seconds > 0 else None


def milliseconds(value: Callable[[Second], float | None]) -> Callable[[Second], float | None]:
    """The same in milliseconds; at least 1 µs, as a logarithmic axis needs."""

    def converted(second: Second) -> float | None:
        found = value(second)
        return None if found is None else max(found, 1.0) / 1e3

    return converted
