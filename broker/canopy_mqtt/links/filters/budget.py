"""Chooses the topic filters of a link if their number is limited.

Owns `BudgetedFilters`: the filters of the local clients, counted, and a cover of them that it finds and updates itself:
at most `max_filters` filters that match every topic to which a local client subscribes. It replaces `AggregatedFilters`
if there is no list of aggregates. `folding` chooses the folds, and says how. Callers pass the times, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from canopy_mqtt.links.filters.aggregated import UpstreamSubscriptions, is_unfolded
from canopy_mqtt.links.filters.declared_filters import DeclaredFilters
from canopy_mqtt.links.filters.filter_tree import CoverSet, FilterTree
from canopy_mqtt.links.filters.folding import FilterFolder, FilterNode, absorb, prune

RETRIED: Final = 1_000
"""Refused filters that are tried together when there is room again: this bounds the cost of a filter that goes."""

SORTED_OUT: Final = 1_000
"""Parts of a fold that is opened that are sorted in one tick."""


class BudgetedFilters:
    """The filters of the local clients within a budget.

    `subscriptions`: how many ask, in all. `outside`: how many distinct filters are outside of all roots.

    Promises, `max_filters` being K:

    - At every moment, also between two calls of `UpstreamSubscriptions`, at most K filters are declared.
    - Every filter that is asked for, within the roots, is covered by a declared one, or counted in `refused`. What is
      outside of all roots is not asked for upstream, and counted in `outside`. Nothing declared is wider than the roots
      allow: a root covers it.
    - A filter that another demanded filter covers needs no declaration of its own.
    - A filter that overlaps one of `unfolded` has a declaration of its own, spelled as it is; no other one covers it.
    - No gap: a fold is declared before what it covers is withdrawn, and its parts are declared before it is withdrawn.
      For that one of the K stays free. It is lent when something would be refused otherwise, that is, when nothing can
      be folded any more. While it is lent, a fold that then becomes possible is declared after one of those under it is
      withdrawn, and for the moment between the upstream has neither. With K = 1 the only one is always lent: a second
      filter, or the opening of a fold, goes that way, since there is no other.
    - When the K are not enough, an eighth of them is made free, so that the next folding is some filters away. Folding
      costs in proportion to K; a filter that finds room, or is covered, costs a walk along its levels.
    - Folds do not flap. One stays while anything is under it, and so does a wide filter that no client subscribes to
      any more; they go when nothing is. Only `tick` opens one: when for `hold` seconds it was not made, nor took in a
      filter that is new, and everything would fit into three quarters of K (into 1 where K = 1) without it. Where its
      parts are too many, they are folded, narrower than the fold was, if that makes them fit. The widest are opened
      first.
    - What is refused comes in the order in which it was asked for, as soon as there is room. Nothing gives way to it.
    """

    def __init__(
        self,
        upstream: UpstreamSubscriptions,
        max_filters: int,
        roots: Sequence[str] = (),
        unfolded: Sequence[str] = (),
        hold: float = 30.0,
    ) -> None:
        """Valid topic filters in the upstream's terms; no roots allow everything. `max_filters`: at least 1."""
        self._max_filters = max_filters
        self._roots = list(roots)
        self._wides = CoverSet(roots)
        self._unfolded = list(unfolded)
        self.subscriptions = 0
        self.outside = 0
        # How many subscriptions ask for each filter; the entries of those within the roots, and of the folds.
        self._counts: dict[str, int] = {}
        self._entries: dict[str, FilterNode] = {}
        # What the upstream has.
        self._declared = DeclaredFilters(upstream, hold)
        # What has no room, first come first; a plain dict would find the first slowly when many before it have gone.
        # The tree holds what could be under another.
        self._refused: OrderedDict[str, FilterNode] = OrderedDict()
        self._refused_tree = FilterTree()

    @property
    def demanded(self) -> int:
        """The number of distinct filters that clients ask for, declared or refused."""
        return len(self._counts)

    @property
    def refused(self) -> int:
        """The number of distinct filters within the roots for which there is no room upstream."""
        return len(self._refused)

    @property
    def declared(self) -> list[str]:
        """The filters that the upstream has to hold now, each once; made anew at each call."""
        return list(self._declared.declared)

    def children(self, topic_filter: str) -> int:
        """Return the number of filters that a declared one stands for, itself among them; 0: it is not declared."""
        entry = self._declared.declared.get(topic_filter)
        return 0 if entry is None else entry.size

    def add(self, topic_filter: str, now: float = 0.0) -> None:
        self.subscriptions += 1
        count = self._counts.get(topic_filter, 0)
        self._counts[topic_filter] = count + 1
        if count > 0:
            return
        if not self._is_inside(topic_filter):
            self.outside += 1
            return
        alone = is_unfolded(topic_filter, self._unfolded)
        entry = self._entries.get(topic_filter)
        if entry is None:
            entry = FilterNode(topic_filter, demanded=True, alone=alone, used=now)
            self._entries[topic_filter] = entry
            self._place(entry, now)
            return
        # A client asks for a filter that is a fold already.
        entry.demanded = True
        entry.alone = alone
        entry.grow(1)
        above = entry.parent
        if above is None:
            return
        entry.top().used = now
        if alone:
            # The entry cannot stay below another one; its parts can.
            for part in list(entry.parts.values()):
                part.leave()
                above.take(part)
            entry.leave()
            self._place(entry, now)

    def remove(self, topic_filter: str, now: float = 0.0) -> None:
        """One subscription less at a topic filter.

        Raises:
            ValueError: the filter has no subscription, so the caller miscounts.
        """
        count = self._counts.get(topic_filter, 0)
        if count == 0:
            raise ValueError(f"nobody asks for {topic_filter!r}")
        self.subscriptions -= 1
        if count > 1:
            self._counts[topic_filter] = count - 1
            return
        del self._counts[topic_filter]
        entry = self._entries.get(topic_filter)
        if entry is None:
            self.outside -= 1
            return
        was_alone = entry.alone
        entry.demanded = False
        entry.alone = False
        entry.grow(-1)
        self._declared.something_went(now)
        if topic_filter in self._refused:
            self._forget_refused(entry)
            del self._entries[topic_filter]
            return
        if entry.parts:
            # Something rests on it: from now on it is a fold, made now.
            entry.used = now
            if entry.parent is None:
                self._declared.look_at(entry, now)
            if was_alone:
                # The entry can be under another from now on, which may free a slot for a filter that waits.
                self._fit_refused(now)
                self._retry(now)
            return
        self._drop(entry, now)

    def _drop(self, entry: FilterNode, now: float) -> None:
        # No other filter rests on this one. If no client asks for it either, it goes.
        gone = prune(entry, self._entries)
        if gone is not None:
            self._declared.withdraw(gone.topic_filter)
            self._retry(now)

    def tick(self, now: float) -> None:
        """Time has passed: folds that are needed no more are opened. May be called at any time."""
        opened = True
        while opened:
            opened = False
            for entry in self._declared.ripe(now):
                if self._open(entry, now):
                    opened = True
        self._declared.look_again(now)

    def next_tick(self) -> float:
        """When `tick` has something to do; 0.0: never. It may find nothing, if what was there has gone meanwhile."""
        return self._declared.due

    def _is_inside(self, topic_filter: str) -> bool:
        return not self._roots or self._wides.first(topic_filter) is not None

    def _capacity(self) -> int:
        # How many are declared at most when none is lent.
        return self._max_filters - 1

    def _place(self, entry: FilterNode, now: float) -> None:
        # A new entry: under what covers it, or declared, or fitted in.
        topic_filter = entry.topic_filter
        if not entry.alone:
            above = self._declared.covering(topic_filter)
            if above is not None:
                above.take(entry)
                above.used = now
                return
        count = len(self._declared.declared)
        if not self._declared.covers_some(topic_filter):
            if count < self._capacity():
                self._declared.declare(entry, now)
                return
            if entry.alone and count == self._max_filters:
                self._refuse(entry)  # that all are taken says that nothing can be folded
                return
        self._settle([entry], now)
        self._retry(now)

    def _retry(self, now: float) -> None:
        # Each round fills the room, or empties the queue.
        while self._refused and len(self._declared.declared) < self._max_filters:
            first = next(iter(self._refused.values()))
            if first.alone and not self._declared.covers_some(first.topic_filter):
                self._serve_refused({first.topic_filter: first})
                self._declared.declare(first, now)
            else:
                self._fit_refused(now)

    def _fit_refused(self, now: float) -> None:
        # Filters that can be folded may fit in any case; of the others as many fit as there is room for.
        room = self._max_filters - len(self._declared.declared)
        pending: list[FilterNode] = []
        for entry in islice(self._refused.values(), RETRIED):
            if entry.alone:
                if room < 1:
                    continue
                room -= 1
            pending.append(entry)
        for entry in pending:
            self._forget_refused(entry)
        self._settle(pending, now)

    def _settle(self, pending: list[FilterNode], now: float) -> None:
        # Fit new entries in with what is declared.
        tops = dict(self._declared.declared)
        for entry in pending:
            tops[entry.topic_filter] = entry
        self._arrange(tops, now)

    def _arrange(self, tops: dict[str, FilterNode], now: float) -> None:
        # Fold until all of these fit, refuse what cannot, and declare the rest.
        absorb(tops)
        folder = FilterFolder(tops, self._entries, self._roots, "", now)
        while len(tops) > self._capacity():
            # An eighth of what can be folded at all: else a few that are alone would have the rest folded ever wider.
            slack = max(self._max_filters - sum(entry.alone for entry in tops.values()), 0) // 8
            folder.shrink(self._capacity() - slack)
            if len(tops) <= self._max_filters:
                break
            loose = self._cut(tops, folder.barred)
            if not loose:
                break
            tops.update(loose)
            absorb(tops)
        if self._refused:
            self._serve_refused(tops)
        self._declared.move(tops, self._max_filters, now)

    def _serve_refused(self, tops: dict[str, FilterNode]) -> None:
        # What was refused is needed for a fold after all, or covered, and then needs no room.
        for topic_filter, top in tops.items():
            if topic_filter in self._refused:
                self._forget_refused(top)
            for each in self._refused_tree.inside(topic_filter):
                entry = self._refused[each]
                self._forget_refused(entry)
                top.take(entry)

    def _cut(self, tops: dict[str, FilterNode], barred: set[str]) -> dict[str, FilterNode]:
        # When not all fit, those stay that serve a client now, then those on which others rest, then the first, and
        # those that are to be alone last. Filters that rested on one that goes can be folded under another: returned.
        serving = self._serving()
        order = list(tops.values())
        order.sort(key=lambda entry: (entry.topic_filter not in serving, not entry.parts, entry.alone))
        loose: dict[str, FilterNode] = {}
        for entry in order[self._max_filters :]:
            del tops[entry.topic_filter]
            if entry.alone:
                for part in list(entry.parts.values()):
                    part.leave()
                    loose[part.topic_filter] = part
                barred.add(entry.topic_filter)
            self._refuse(entry)
        return loose

    def _serving(self) -> set[str]:
        # The tops that are declared, or have something under them that is.
        serving: set[str] = set()
        for topic_filter in self._declared.declared:
            entry = self._entries.get(topic_filter)
            if entry is not None:
                serving.add(entry.top().topic_filter)
        return serving

    def _refuse(self, top: FilterNode) -> None:
        # One by one: refused filters have no order, and folds that no client asks for are none of them.
        left = [top]
        while left:
            entry = left.pop()
            left.extend(entry.parts.values())
            entry.parts = {}
            entry.parent = None
            if not entry.demanded:
                del self._entries[entry.topic_filter]
                continue
            entry.size = 1
            self._refused[entry.topic_filter] = entry
            if not entry.alone:
                self._refused_tree.add(entry.topic_filter)

    def _forget_refused(self, entry: FilterNode) -> None:
        del self._refused[entry.topic_filter]
        self._refused_tree.discard(entry.topic_filter)

    def _open(self, fold: FilterNode, now: float) -> bool:
        # Have its parts declared instead of it, if there is room for them; whether there was.
        topic_filter = fold.topic_filter
        room = max(self._max_filters * 3 // 4, 1) - (len(self._declared.declared) - 1)
        if room < 1 or (len(fold.parts) > room and len(fold.parts) <= 2 * fold.tried):
            return False  # with about as many parts it has been tried
        # Those first that hold others: the rest may find its place there.
        parts = sorted(fold.parts.values(), key=lambda entry: not entry.parts)[: max(SORTED_OUT, 2 * room)]
        fold.again = len(parts) < len(fold.parts)
        tops: dict[str, FilterNode] = {}
        for entry in parts:
            entry.leave()
            above = self._declared.covering(entry.topic_filter, beside=topic_filter)
            if above is None:
                tops[entry.topic_filter] = entry
            else:
                above.take(entry)
        absorb(tops)
        if len(tops) > room:
            FilterFolder(tops, self._entries, (), topic_filter, now).shrink(room)
        if fold.again or len(tops) > room:
            for entry in tops.values():
                fold.take(entry)
            # Where little could be folded, the next ones will not be much different.
            fold.again = fold.again and len(tops) <= len(parts) // 2
            fold.tried = 0 if fold.again else len(fold.parts)
            return False
        del self._entries[topic_filter]
        for each, entry in self._declared.declared.items():
            if each != topic_filter:
                tops[each] = entry
        self._declared.move(tops, self._max_filters, now)
        return True
