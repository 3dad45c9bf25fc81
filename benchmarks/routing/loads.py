"""The filters, the topics, and which of the ones match which of the others.

Owns: ``Load``, and a function for each load that an author describes. RabbitMQ's are for an AMQP topic exchange and
stand here translated: ``.`` is ``/``, ``*`` is ``+``, and ``#`` stays. Of the names in them only what the author tells
is known; the rest is ours.

Promises: a load says for each topic which filters match it, from how it was built and not by asking a trie. Everything
is the same in every run.

Filters and topics have not been used before: ``fresh`` makes strings without a cached hash, as they come out of a
packet.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SEED: Final = 20_210_419
LEVELS: Final = 6
"""Levels of the topics in ``many_wildcards``; 2 to the power of it are the filters that match each."""


@dataclass(frozen=True)
class Load:
    """One filter for each subscription, in the order in which they come; the topics; and what matches each topic."""

    filters: list[str]
    topics: list[str]
    matches: list[list[str]]
    each: int = 1
    """How many filters one client subscribes to."""

    def destinations(self) -> list[int]:
        """How many subscriptions each topic has to reach."""
        counts = Counter(self.filters)
        return [sum(counts[name] for name in names) for names in self.matches]


def fresh(names: Sequence[str]) -> list[str]:
    """Copies that share nothing with the names, their hash least of all."""
    return [name.encode().decode() for name in names]


def churn(count: int) -> Load:
    """``count`` bindings of clients that have four each: two of their own, two that all share."""
    filters: list[str] = []
    for client in range(count // 4):
        filters += [f"client/{client}/inbox", f"client/{client}/+/set", "broadcast/#", "group/+/all"]
    clients = range(count // 4)
    return Load(filters, [f"client/{at}/inbox" for at in clients], [[f"client/{at}/inbox"] for at in clients], 4)


def devices(count: int) -> Load:
    """``count`` devices with one binding each, on what they are told."""
    filters = [f"device/{number}/command/+" for number in range(count)]
    return Load(filters, [f"device/{number}/command/go" for number in range(count)], [[name] for name in filters])


def same_key(count: int, rooms: int = 1) -> Load:
    """``count`` subscribers of one filter, or of each of several, who come in turn."""
    names = [f"room/{number}/temperature" for number in range(rooms)]
    return Load(names * count, names, [[name] for name in names])


def unicast(count: int) -> Load:
    """``count`` queues with an exact binding and ``broadcast/#`` each; the topics are the exact ones."""
    own = [f"queue/{number}" for number in range(count)]
    filters = [name for pair in zip(own, ["broadcast/#"] * count, strict=True) for name in pair]
    return Load(filters, own, [[name] for name in own], 2)


def broadcast(count: int) -> Load:
    """The same bindings; the topic is one that all of the queues see."""
    return Load(unicast(count).filters, ["broadcast/news"], [["broadcast/#"]], 2)


def exact(count: int) -> Load:
    """``count`` filters without wildcards, and nothing else."""
    filters = [f"site/{number}/state" for number in range(count)]
    return Load(filters, filters, [[name] for name in filters])


def plus(count: int) -> Load:
    """``count`` filters that end with ``+``."""
    filters = [f"site/{number}/+" for number in range(count)]
    return Load(filters, [f"site/{number}/state" for number in range(count)], [[name] for name in filters])


def hashes(count: int) -> Load:
    """``count`` filters that end with ``#``."""
    filters = [f"site/{number}/#" for number in range(count)]
    return Load(filters, [f"site/{number}/state/now" for number in range(count)], [[name] for name in filters])


def mixed(count: int) -> Load:
    """``count`` filters, a third of them of each kind; each topic is matched by one of each."""
    sites = range(max(1, count // 3))
    matches = [[f"site/{number}/state", f"site/{number}/+", f"site/{number}/#"] for number in sites]
    filters = [name for names in matches for name in names]
    return Load(filters, [f"site/{number}/state" for number in sites], matches)


def many_wildcards() -> Load:
    """Every mixture of a literal level and ``+`` over six levels: 64 filters, and one topic that all of them match."""
    letters = "abcdef"[:LEVELS]
    filters = [
        "/".join("+" if number >> at & 1 else letter for at, letter in enumerate(letters))
        for number in range(1 << LEVELS)
    ]
    return Load(filters, ["/".join(letters)], [filters])


def emqx(clients: int, each: int, most: int = 0) -> Load:
    """``clients`` with ``each`` filters ``device/{id}/+/{num}/#``; a topic for every filter, or for ``most`` of them.

    Topics come in an arbitrary order, so that neighbours in the index are not asked for one after the other.
    """
    pairs = [(client, number) for client in range(clients) for number in range(each)]
    filters = [f"device/{client}/+/{number}/#" for client, number in pairs]
    random.Random(SEED).shuffle(pairs)
    asked = pairs[:most] if most else pairs
    return Load(
        filters,
        [f"device/{client}/foo/{number}/bar" for client, number in asked],
        [[f"device/{client}/+/{number}/#"] for client, number in asked],
        each,
    )
