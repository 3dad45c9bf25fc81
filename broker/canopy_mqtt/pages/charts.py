"""The charts of a page: charts over an axis of numbers, which `page.js` gives to uPlot, and bars of plain HTML.

Owns `Chart` with its `Series` and `Stage`s, `Bar`, and the colours.

Promises: all series of a chart share its axis; None is a gap. On an axis of powers of ten, values that are not above
zero are gaps too. Names may come from outside: `page` escapes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from canopy_mqtt.pages.markup import plain

BLUE: Final = "#3d84c6"
GREEN: Final = "#2f9e6e"
AMBER: Final = "#cf8a1c"
RED: Final = "#d2455b"
VIOLET: Final = "#8b68d0"
GREY: Final = "#85909c"
"""A middle lightness that fits light and dark backgrounds."""
COLOURS: Final = (BLUE, AMBER, GREEN, RED, VIOLET, "#3d8a99", "#a85b00", GREY)

TIME: Final = "UTC"
"""The unit of an axis of seconds since 1970."""


@dataclass(frozen=True)
class Series:
    """A line or bars: one value for each place of the chart's axis."""

    name: str
    values: Sequence[float | None]
    colour: str
    bars: bool = False
    dashed: bool = False
    steps: bool = False
    """True if a value lasts until the next one: the line has steps."""
    right: bool = False
    """True if it uses the axis at the right."""


@dataclass(frozen=True)
class Stage:
    """A named interval of the axis."""

    name: str
    begin: float
    end: float
    shaded: bool = False


@dataclass
class Chart:
    """One chart, or the reason why there is none (`absent`)."""

    key: str
    title: str
    about: str
    """A sentence under the title that explains the chart."""
    x: Sequence[float] = ()
    """The places of the values, ascending."""
    series: list[Series] = field(default_factory=list)
    unit: str = ""
    """The unit of the values."""
    right_unit: str = ""
    x_unit: str = "s"
    """`TIME`: seconds since 1970."""
    powers: bool = False
    """True if the axis of the values has powers of ten."""
    x_powers: bool = False
    stacked: bool = False
    joined: bool = False
    """True if lines continue over gaps: each series has its own places on the axis."""
    view: tuple[float, float] | None = None
    """The initial range; a double click shows everything."""
    stages: Sequence[Stage] = ()
    named: bool = False
    """True if the chart shows the names of its stages."""
    absent: str = ""
    broad: bool = True
    """True for a chart over the whole width; the others stand side by side if there is room."""

    def data(self) -> dict[str, Any]:
        """Return the data for `page.js`.

        Raises:
            ValueError: a series has another number of values than the axis has places, or the axis does not ascend.
        """
        if any(later <= earlier for earlier, later in zip(self.x, self.x[1:], strict=False)):
            raise ValueError(f"chart {self.key}: the axis does not ascend")
        for each in self.series:
            if len(each.values) != len(self.x):
                raise ValueError(f"chart {self.key}: {each.name} has {len(each.values)} values at {len(self.x)} places")
        return {
            "key": self.key,
            "x": [_short(value) for value in self.x],
            "series": [
                {
                    "name": label(each.name),
                    "values": [_short(value, powers=self.powers) for value in each.values],
                    "colour": each.colour,
                    "kind": "bars" if each.bars else "steps" if each.steps else "line",
                    "dashed": each.dashed,
                    "scale": "right" if each.right else "y",
                }
                for each in self.series
            ],
            "unit": self.unit,
            "right": self.right_unit,
            "xUnit": self.x_unit,
            "time": self.x_unit == TIME,
            "powers": self.powers,
            "xPowers": self.x_powers,
            "stacked": self.stacked,
            "joined": self.joined,
            "view": self.view,
            "stages": [[label(each.name), each.begin, each.end, each.shaded] for each in self.stages],
            "named": self.named,
        }

    def place(self, value: float) -> str:
        """Format a place of the axis for people."""
        if self.x_unit == TIME:
            return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"
        return f"{value:,.10g}"


@dataclass(frozen=True)
class Bar:
    """A bar with a name: a broker, a branch of a tree."""

    name: str
    value: float
    text: str
    """The value, for people."""
    colour: str = BLUE
    low: float | None = None
    high: float | None = None
    """The ends of the whisker."""
    depth: int = 0
    """The indentation of the name."""


def label(text: str, at_most: int = 40) -> str:
    """Return a text from outside in a form for display: one line, at most `at_most` characters."""
    shown = plain(text)
    return shown if len(shown) <= at_most else shown[: at_most - 1] + "…"


def over(lines: Mapping[str, Mapping[float, float]]) -> tuple[list[float], dict[str, list[float | None]]]:
    """Merge lines with places of their own to one axis, and return the values of each on it, with gaps: see
    `Chart.joined`.
    """
    x = sorted({place for values in lines.values() for place in values})
    return x, {name: [values.get(place) for place in x] for name, values in lines.items()}


def _short(value: float | None, powers: bool = False) -> float | None:
    """Round to at most 5 figures behind those of seconds since 1970: pages stay small."""
    if value is None or (powers and value <= 0):
        return None
    return value if isinstance(value, int) else round(value, 3) if abs(value) >= 1e5 else float(f"{value:.5g}")
