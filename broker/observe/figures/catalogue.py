"""The catalogue: every figure of the broker, once.

`$SYS` (`broker.observe.systopics`), `/metrics` and the API (`broker.admin`), the table in docs/sys.md and the alarms
read it. To add a figure, add a row to one of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.observe.figures.clients import CLIENTS
from broker.observe.figures.figure import Figure, Sample, Topic
from broker.observe.figures.rooms import BROKER, HTTP, OTHER, PROCESS, RECORDER, STORE, UPSTREAM
from broker.observe.figures.sources import Reading
from broker.observe.figures.traffic import TRAFFIC

GROUPS: Final[dict[str, tuple[Figure, ...]]] = {
    "The broker": BROKER,
    "Clients": CLIENTS,
    "Messages": TRAFFIC,
    "The store": STORE + OTHER,
    "The recorder": RECORDER,
    "Links to upstream brokers": UPSTREAM,
    "HTTP": HTTP,
    "The process": PROCESS,
}

FIGURES: Final[tuple[Figure, ...]] = tuple(figure for group in GROUPS.values() for figure in group)


def topics(reading: Reading) -> Iterator[tuple[str, str]]:
    """Topic below `$SYS/broker/` and payload of everything that these figures say."""
    for figure in FIGURES:
        if figure.topics:
            samples = figure.samples(reading)
            for topic in figure.topics:
                yield from _payloads(figure, topic, samples)


def _payloads(figure: Figure, topic: Topic, samples: list[Sample]) -> Iterator[tuple[str, str]]:
    if "{" not in topic.path and figure.labels:
        yield topic.path, topic.show(sum(value for _, value in samples if not isinstance(value, str)))
        return
    for labels, value in samples:
        path = topic.path
        for label, text in zip(figure.labels, labels, strict=True):
            path = path.replace(f"{{{label}}}", text)
        yield path, topic.show(value)
