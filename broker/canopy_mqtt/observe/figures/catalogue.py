"""The catalogue lists every figure of the broker once.

`$SYS` (`canopy_mqtt.observe.systopics`), `/metrics` and the API (`canopy_mqtt.admin`), the table in docs/sys.md and the
alarms read it. To add a figure, add a row to one of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from canopy_mqtt.observe.figures.broker import BROKER, CLUSTER, HTTP, OTHER, PROCESS, RECORDER, STORE, UPSTREAM
from canopy_mqtt.observe.figures.clients import CLIENTS
from canopy_mqtt.observe.figures.figure import Figure, Sample, Topic
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
    "HTTP": HTTP,
    "The process": PROCESS,
}

FIGURES: Final[tuple[Figure, ...]] = tuple(figure for group in GROUPS.values() for figure in group)


def topics(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield the topic below `$SYS/broker/` and the payload of each figure."""
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
