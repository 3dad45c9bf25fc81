"""The times of which the recorder lost events: for charts, in which they are neither empty nor without messages."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from canopy_mqtt.pages import Stage


def gap_times(gaps: Iterable[int], told: Container[int]) -> list[tuple[int, int]]:
    """Return the first and the last piece of each time of which the recorder lost events: those in which it says so
    (`gaps`), and the ones before in which nothing is recorded (not in `told`). Pieces of time count from 0."""
    found = []
    for last in sorted(gaps):
        first = last
        while first > 0 and first - 1 not in told:
            first -= 1
        found.append((first, last))
    return found


def shaded(times: Sequence[tuple[int, int]], start: float, step: float) -> list[Stage]:
    """Return these times for a chart, whose pieces begin at `start` and have `step` seconds."""
    return [Stage("gap", start + first * step, start + (last + 1) * step, shaded=True) for first, last in times]


def unknown(times: Iterable[tuple[int, int]], told: Container[int]) -> set[int]:
    """Return the pieces of these times of which nothing is known: the others have at least what is counted in them."""
    return {at for first, last in times for at in range(first, last + 1) if at not in told}
