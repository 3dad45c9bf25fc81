"""How a second's figures become points of a plot: lines and bars over the time of a run.

Where nothing was measured there is no line: a gap stays a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from canopy_pages import Data, bars, line
from loadtest.load.report.result import Second


def course(
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
    return line(name, at, values, colour, line={"dash": dash}, mode="lines" if len(points) > 1 else "markers")


def counts(name: str, points: Sequence[Second], value: Callable[[Second], int], colour: str) -> Data:
    """Bars at the middles of the points."""
    middles = [round(point.start + point.seconds / 2, 3) for point in points]
    return bars(name, middles, [value(point) for point in points], colour)


def each_second(amount: int, second: Second) -> float | None:
    """An amount of a second that may have been shorter or longer, as a rate."""
    return amount / second.seconds if second.seconds > 0 else None


def milliseconds(value: Callable[[Second], float | None]) -> Callable[[Second], float | None]:
    """The same in milliseconds; at least 1 µs, as a logarithmic axis needs."""

    def converted(second: Second) -> float | None:
        found = value(second)
        return None if found is None else max(found, 1.0) / 1e3

    return converted
