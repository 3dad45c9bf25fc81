"""Counts the local clients' topic filters for a link, and folds some of them into configured aggregates.

Owns `AggregatedFilters`: the number of subscriptions to each filter, and the folding under configured aggregates. A
filter that an aggregate includes is a child of it: the first child declares the aggregate, the last withdraws it. Each
other filter is declared once, however many subscriptions share it. And `UpstreamSubscriptions`, the interface to which
`AggregatedFilters` reports: the part that sends packets, or a test.

`budget` replaces it if the number of declared filters is limited.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec.topic_names import overlaps
from canopy_mqtt.links.filters.filter_tree import CoverSet


@mypyc_attr(allow_interpreted_subclasses=True)
class UpstreamSubscriptions:
    """Hears which filters the upstream has to hold. The default ignores it."""

    def declare(self, topic_filter: str) -> None:
        """Subscribe to this filter upstream from now on."""

    def withdraw(self, topic_filter: str) -> None:
        """Unsubscribe from this filter upstream."""


class AggregatedFilters:
    """The filters of the local clients, folded under the aggregates. `subscriptions`: how many ask, in all.

    Filters are in the upstream's terms and without `$share/name/`: a share group subscribes to its filter like a
    client. `$SYS` is left out by the caller. The rules:

    - An aggregate takes in a filter when it matches every topic that the filter matches (`topics.covers`); one that
      begins with a wildcard takes in nothing that begins with `$` [MQTT-4.7.2-1].
    - Of several the widest takes it: an aggregate that another one includes is useless, and ignored. Where none is the
      widest, the first in the list.
    - A filter that has a topic in common with one of `unfolded` is forwarded as it is.
    - A filter that is spelled like an aggregate is a child of it, so nothing is ever declared twice.

    Promises: for each filter, `UpstreamSubscriptions.declare` and `UpstreamSubscriptions.withdraw` alternate, beginning
    with `declare`. What is declared depends on what is asked for now and on nothing that was: coming and going leaves
    nothing behind. Both cost the same however many filters are asked for: a look-up, and for a filter that is new a
    walk along its levels, however many aggregates there are, and a look at each of `unfolded`. Without aggregates a
    filter costs one entry in one table.
    """

    def __init__(
        self, upstream: UpstreamSubscriptions, aggregates: Sequence[str] = (), unfolded: Sequence[str] = ()
    ) -> None:
        """Valid topic filters, in the upstream's terms. Nothing is declared before the first `add`."""
        self._upstream = upstream
        self._aggregates = CoverSet(aggregates)
        self._unfolded = list(unfolded)
        self.subscriptions = 0
        # How many subscriptions ask for each filter, folded or not; the aggregate of each folded one; how many distinct
        # filters each declared aggregate stands for.
        self._counts: dict[str, int] = {}
        self._under: dict[str, str] = {}
        self._children: dict[str, int] = {}

    def add(self, topic_filter: str, now: float = 0.0) -> None:
        del now
        self.subscriptions += 1
        counts = self._counts
        count = counts.get(topic_filter, 0)
        counts[topic_filter] = count + 1
        if count > 0:
            return
        aggregate = self._aggregate_of(topic_filter) if self._aggregates.kept else None
        if aggregate is None:
            self._upstream.declare(topic_filter)
            return
        self._under[topic_filter] = aggregate
        children = self._children.get(aggregate, 0)
        self._children[aggregate] = children + 1
        if children == 0:
            self._upstream.declare(aggregate)

    def remove(self, topic_filter: str, now: float = 0.0) -> None:
        """One subscription less at a topic filter.

        Raises:
            ValueError: the filter has no subscription, so the caller miscounts.
        """
        del now
        counts = self._counts
        count = counts.get(topic_filter, 0)
        if count == 0:
            raise ValueError(f"nobody asks for {topic_filter!r}")
        self.subscriptions -= 1
        if count > 1:
            counts[topic_filter] = count - 1
            return
        del counts[topic_filter]
        aggregate = self._under.pop(topic_filter, None) if self._under else None
        if aggregate is None:
            self._upstream.withdraw(topic_filter)
            return
        children = self._children[aggregate] - 1
        if children > 0:
            self._children[aggregate] = children
            return
        del self._children[aggregate]
        self._upstream.withdraw(aggregate)

    def tick(self, now: float) -> None:
        """Do nothing: nothing here depends on the time."""

    def next_tick(self) -> float:
        """Return when `tick` has something to do: 0.0, never."""
        return 0.0

    @property
    def demanded(self) -> int:
        return len(self._counts)

    @property
    def declared(self) -> list[str]:
        """The filters that the upstream has to hold now, each once; made anew at each call."""
        under = self._under
        forwarded = [topic_filter for topic_filter in self._counts if topic_filter not in under]
        return [*forwarded, *self._children]

    def children(self, topic_filter: str) -> int:
        """Return the number of filters that a declared one stands for; 1: it is forwarded as it is; 0: unknown."""
        if topic_filter in self._children:
            return self._children[topic_filter]
        return 1 if topic_filter in self._counts and topic_filter not in self._under else 0

    def _aggregate_of(self, topic_filter: str) -> str | None:
        aggregate = self._aggregates.first(topic_filter)
        # One that is spelled like its aggregate is declared as what it is, either way.
        if aggregate is None or (aggregate != topic_filter and is_unfolded(topic_filter, self._unfolded)):
            return None
        return aggregate


def is_unfolded(topic_filter: str, unfolded: Sequence[str]) -> bool:
    """Return whether the filter has a topic in common with one of those that are never folded."""
    return any(overlaps(each, topic_filter) for each in unfolded)
