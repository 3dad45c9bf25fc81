"""The catalogue lists every figure of the broker once.

`$SYS` (`canopy_mqtt.observe.systopics`), `/metrics` and the API (`canopy_mqtt.admin`), the table in docs/sys.md and the
alarms read it. To add a figure, add a row to one of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.broker import (
    BROKER,
    CLUSTER,
    HTTP,
    OTHER,
    PROCESS,
    RECORDER,
    STORE,
    UPSTREAM,
    WORKERS,
)
from canopy_mqtt.observe.figures.clients import CLIENTS
from canopy_mqtt.observe.figures.figure import Figure, Topic
from canopy_mqtt.observe.figures.merging import Sample, by_worker
from canopy_mqtt.observe.figures.process import Process
from canopy_mqtt.observe.figures.sources import Reading
from canopy_mqtt.observe.figures.traffic import TRAFFIC

GROUPS: Final[dict[str, tuple[Figure, ...]]] = {
    "The broker": BROKER,
    "Clients": CLIENTS,
    "Messages": TRAFFIC,
    "The store": STORE + OTHER,
    "The recorder": RECORDER,
    "Links to upstream brokers": UPSTREAM,
    "The other nodes of the cluster": CLUSTER,
    "Several workers": WORKERS,
    "HTTP": HTTP,
    "The process": PROCESS,
}

FIGURES: Final[tuple[Figure, ...]] = tuple(figure for group in GROUPS.values() for figure in group)


Found: TypeAlias = list[Sample] | Histogram
"""What was read of a figure."""


def read(reading: Reading, wanted: Callable[[Figure], object]) -> Iterator[tuple[Figure, Found]]:
    """Yield the figures that are wanted, and that this broker has."""
    for figure in FIGURES:
        if wanted(figure):
            found = figure.read(reading)
            if found is not None:
                yield figure, found if isinstance(found, Histogram) else list(found)


def of_process(process: Process) -> dict[str, Found]:
    """Return the figures of a process that has no broker, by name."""
    reading: Any = SimpleNamespace(process=process)
    return {figure.name: list(figure.samples(reading)) for figure in FIGURES if figure.process}


def merged(answers: Mapping[str, Mapping[str, Found]]) -> Iterator[tuple[Figure, Found]]:
    """Yield the figures of several workers as those of one broker. `answers`: by worker, and name of the figure."""
    made: dict[str, Found] = {}
    for figure in FIGURES:
        if found := {worker: some[figure.name] for worker, some in answers.items() if figure.name in some}:
            made[figure.name] = _merged(figure, found)
    for figure in FIGURES:
        if figure.name not in made:
            continue
        if figure.parts:
            parts = [made[name] for name in figure.parts]
            value = sum(
                value for part in parts if isinstance(part, list) for _, value in part if not isinstance(value, str)
            )
            yield figure, [((), value)]
        else:
            labels = (*figure.labels, "worker") if figure.merge is by_worker else figure.labels
            yield replace(figure, labels=labels), made[figure.name]


def _merged(figure: Figure, found: Mapping[str, Found]) -> Found:
    histograms = [each for each in found.values() if isinstance(each, Histogram)]
    if not histograms:
        return figure.merge({worker: each for worker, each in found.items() if isinstance(each, list)})
    total = Histogram()
    for each in histograms:
        total.add_all(each)
    return total


def topics(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield the topic below `$SYS/broker/` and the payload of each figure."""
    return topics_of(read(reading, lambda figure: figure.topics))


def topics_of(figures: Iterable[tuple[Figure, Found]]) -> Iterator[tuple[str, str]]:
    """Yield the topic below `$SYS/broker/` and the payload of each of these figures."""
    for figure, found in figures:
        if isinstance(found, list):
            for topic in figure.topics:
                yield from _payloads(figure, topic, found)


def _payloads(figure: Figure, topic: Topic, samples: list[Sample]) -> Iterator[tuple[str, str]]:
    if "{" not in topic.path and figure.labels:
        yield topic.path, topic.show(sum(value for _, value in samples if not isinstance(value, str)))
        return
    for labels, value in samples:
        path = topic.path
        for label, text in zip(figure.labels, labels, strict=True):
            path = path.replace(f"{{{label}}}", text)
        yield path, topic.show(value)
