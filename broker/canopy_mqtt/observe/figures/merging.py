"""Makes one figure of those of several workers, which are one broker (`canopy_mqtt.workers`).

Each row of the catalogue names the function of these that says what the figure means for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

Value: TypeAlias = int | float | str
Sample: TypeAlias = tuple[tuple[str, ...], Value]
"""The values of the labels, in their order, and the number."""

Merge: TypeAlias = Callable[[Mapping[str, list[Sample]]], list[Sample]]
"""Gets the samples of each worker, by its name."""


def added(found: Mapping[str, list[Sample]]) -> list[Sample]:
    """Return sums; of texts that differ, all of them, each with its worker."""
    return _each(found, _sum)


def greatest(found: Mapping[str, list[Sample]]) -> list[Sample]:
    return _each(found, max)


def least(found: Mapping[str, list[Sample]]) -> list[Sample]:
    return _each(found, min)


def alike(found: Mapping[str, list[Sample]]) -> list[Sample]:
    """Return the samples of the first: all have the same."""
    return next(iter(found.values()), [])


def by_worker(found: Mapping[str, list[Sample]]) -> list[Sample]:
    """Return all, each with the name of its worker as a label behind the others."""
    return [((*labels, name), value) for name, samples in found.items() for labels, value in samples]


def but_copies(rooms: Collection[str]) -> Merge:
    """Return the function that adds, except for these values of the first label: each worker has a copy of that."""

    def merge(found: Mapping[str, list[Sample]]) -> list[Sample]:
        most = dict(greatest(found))
        return [(labels, most[labels] if labels[0] in rooms else value) for labels, value in added(found)]

    return merge


def _each(found: Mapping[str, list[Sample]], one: Callable[[list[Any]], Value]) -> list[Sample]:
    values: dict[tuple[str, ...], list[Value]] = {}
    names: dict[tuple[str, ...], list[str]] = {}
    for name, samples in found.items():
        for labels, value in samples:
            values.setdefault(labels, []).append(value)
            names.setdefault(labels, []).append(name)
    return [
        (labels, _told(names[labels], some) if any(isinstance(each, str) for each in some) else one(some))
        for labels, some in values.items()
    ]


def _sum(values: list[Any]) -> Value:
    total: int | float = sum(values)
    return total


def _told(names: list[str], texts: list[Value]) -> str:
    if len(set(texts)) == 1:
        return str(texts[0])
    return "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))
