"""A face that writes down what a ledger declares and withdraws, and a small world of topics to hold it against.

Owns `Recorder`, which holds each filter's calls against each other, and `WORLD`: the topics that the tests of the
ledgers know. There a filter is the set of topics that it matches, and every question about filters is one about sets.
"""

from __future__ import annotations

import functools
import itertools

from canopy_mqtt.links.filters.aggregated import UpstreamSubscriptions
from tests.core import naive

# Every name of three levels at most. No filter of the tests spells "zz".
WORLD = tuple(
    "/".join(levels) for depth in range(1, 4) for levels in itertools.product(("a", "b", "$x", "zz"), repeat=depth)
)


@functools.cache
def matched(topic_filter: str) -> frozenset[str]:
    """The topics of the world that a filter matches."""
    return frozenset(naive.matched(topic_filter, WORLD))


def covers(wide: str, topic_filter: str) -> bool:
    """Return whether every topic of the one is a topic of the other. For filters of three levels at most, `#` aside."""
    return matched(wide) >= matched(topic_filter)


def overlaps(one: str, other: str) -> bool:
    """Return whether they have a topic in common."""
    return not matched(one).isdisjoint(matched(other))


class Recorder(UpstreamSubscriptions):
    """The upstream has `held`. `calls`: what it was told, in order, "+" before what was declared, "-" withdrawn."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.calls: list[str] = []

    def declare(self, topic_filter: str) -> None:
        assert topic_filter not in self.held, f"{topic_filter} is declared twice"
        self.held.add(topic_filter)
        self.calls.append("+" + topic_filter)

    def withdraw(self, topic_filter: str) -> None:
        assert topic_filter in self.held, f"{topic_filter} is withdrawn and was not declared"
        self.held.remove(topic_filter)
        self.calls.append("-" + topic_filter)

    def told(self) -> list[str]:
        """The calls since the last look."""
        calls, self.calls = self.calls, []
        return calls
