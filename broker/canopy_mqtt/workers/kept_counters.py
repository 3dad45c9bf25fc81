"""The counters of all workers, kept from falling: those who read them take a fall for a start of the whole broker.

Owns the last counters of each worker, and what workers that have ended had counted. Bounded by the catalogue of figures
and the number of workers. It begins anew with the worker that keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.catalogue import FIGURES, Found
from canopy_mqtt.observe.figures.figure import Kind
from canopy_mqtt.observe.figures.merging import by_worker

COUNTERS: Final = frozenset(
    figure.name for figure in FIGURES if figure.kind in (Kind.COUNTER, Kind.HISTOGRAM) and figure.merge is not by_worker
)
"""The figures that only grow, and that are not told worker by worker."""


class KeptCounters:
    """Counters by worker and name of the figure."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Found]] = {}
        self._ended: dict[str, dict[str, Found]] = {}

    def settle(self, found: Mapping[str, Mapping[str, Found]], missing: Collection[str]) -> dict[str, dict[str, Found]]:
        """Return what workers have answered, with what they counted before they began anew; and the last counters of
        those that have not answered."""
        made: dict[str, dict[str, Found]] = {}
        for worker in (*found, *missing):
            last, ended = self._last.setdefault(worker, {}), self._ended.setdefault(worker, {})
            answered = found.get(worker)
            if answered is not None:
                for name in COUNTERS & answered.keys():
                    if name in last:
                        ended[name] = _grown(ended.get(name), _lost(last[name], answered[name]))
                    last[name] = answered[name]
            made[worker] = dict(answered or {}) | {name: _grown(ended.get(name), each) for name, each in last.items()}
        return made


def _lost(last: Found, now: Found) -> Found:
    """Return what is in the last value and was not counted by the process that has told the present one."""
    if isinstance(last, Histogram):
        return last if isinstance(now, Histogram) and now.count < last.count else Histogram()
    present = _numbers(now)
    return [(labels, value) for labels, value in _numbers(last).items() if value > present.get(labels, value)]


def _grown(before: Found | None, more: Found) -> Found:
    """Return a sum, with the labels of both."""
    if isinstance(more, Histogram):
        total = Histogram()
        total.add_all(more)
        if isinstance(before, Histogram):
            total.add_all(before)
        return total
    values = _numbers(before)
    for labels, value in _numbers(more).items():
        values[labels] = values.get(labels, 0) + value
    return list(values.items())


def _numbers(found: Found | None) -> dict[tuple[str, ...], int | float]:
    samples = found if isinstance(found, list) else []
    return {labels: value for labels, value in samples if not isinstance(value, str)}
