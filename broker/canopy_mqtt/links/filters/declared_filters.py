"""The filters that a limited link has declared upstream, and the steps to another set.

Owns `DeclaredFilters`: the declared entries, the order of the calls when they change, and the time at which the next
fold may be opened.

Promises: a new filter is declared before those that it covers are withdrawn, as long as there is room for both; there
are never more than the caller's limit. `due` costs nothing.

`budget` chooses what is declared, with `folding`.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec.topic_names import covers, has_wildcard, overlaps
from canopy_mqtt.links.filters.aggregated import UpstreamSubscriptions
from canopy_mqtt.links.filters.filter_tree import FilterTree
from canopy_mqtt.links.filters.folding import FilterNode, literal_depth

# A fold that had to stay is looked at again this many seconds after something has gone: that bounds what churn costs.
LOOK_AGAIN: Final = 1.0


class DeclaredFilters:
    """`declared`: what the upstream has. `hold`: seconds. `due`: no fold can be opened before; 0.0: there is none."""

    def __init__(self, upstream: UpstreamSubscriptions, hold: float) -> None:
        self._upstream = upstream
        self.hold = hold
        self.declared: dict[str, FilterNode] = {}
        # The same filters.
        self._tree = FilterTree()
        self.due = 0.0
        # Whether a fold has to stay although its time has come.
        self._overdue = False

    def covering(self, topic_filter: str, beside: str = "") -> FilterNode | None:
        """Return a declared entry that covers the filter, other than itself and the one that is spelled `beside`."""
        if not beside:
            cover = self._tree.covering(topic_filter)
        else:
            self._tree.discard(beside)
            cover = self._tree.covering(topic_filter)
            self._tree.add(beside)
        return None if cover is None else self.declared[cover]

    def covers_some(self, topic_filter: str) -> bool:
        """Return whether a declared filter could be put under this one."""
        if not has_wildcard(topic_filter):
            return False
        return any(not self.declared[each].alone for each in self._tree.inside(topic_filter))

    def declare(self, entry: FilterNode, now: float) -> None:
        """Declare one more entry. The caller has counted it."""
        self.declared[entry.topic_filter] = entry
        self._tree.add(entry.topic_filter)
        if not entry.demanded:
            self.look_at(entry, now)
        self._upstream.declare(entry.topic_filter)

    def withdraw(self, topic_filter: str) -> None:
        del self.declared[topic_filter]
        self._tree.discard(topic_filter)
        self._upstream.withdraw(topic_filter)

    def move(self, tops: dict[str, FilterNode], limit: int, now: float) -> None:
        """Change the declared entries to `tops`, which are at most `limit`; no more are declared at any moment."""
        leaving: list[str] = []
        for topic_filter in self.declared:
            top = tops.get(topic_filter)
            if top is None:
                leaving.append(topic_filter)
            else:
                self.declared[topic_filter] = top
        waiting = [entry for entry in tops.values() if entry.topic_filter not in self.declared]
        # Those first that make room.
        waiting.sort(key=lambda entry: not any(covers(entry.topic_filter, each) for each in leaving))
        for at, entry in enumerate(waiting):
            if len(self.declared) >= limit:
                gone = _least_missed(leaving, waiting[at:])
                leaving.remove(gone)
                self.withdraw(gone)
            self.declare(entry, now)
            stays: list[str] = []
            for topic_filter in leaving:
                if covers(entry.topic_filter, topic_filter):
                    self.withdraw(topic_filter)
                else:
                    stays.append(topic_filter)
            leaving = stays
        for topic_filter in leaving:
            self.withdraw(topic_filter)

    def ripe(self, now: float) -> list[FilterNode]:
        """The folds that have been there for long enough, the widest first."""
        ripe = [entry for entry in self.declared.values() if not entry.demanded and entry.used + self.hold <= now]
        ripe.sort(key=lambda each: (literal_depth(each.topic_filter.split("/")), len(each.parts), each.topic_filter))
        return ripe

    def look_at(self, fold: FilterNode, now: float) -> None:
        """Schedule the opening of a declared fold. One whose time has come and that must stay is looked at from time to
        time."""
        due = fold.used + self.hold
        if due <= now:
            due = now + (LOOK_AGAIN if fold.again else max(self.hold, LOOK_AGAIN))
            self._overdue = True
        if self.due == 0.0 or due < self.due:
            self.due = due

    def look_again(self, now: float) -> None:
        """Find out when the next fold may be opened."""
        self.due = 0.0
        self._overdue = False
        for entry in self.declared.values():
            if not entry.demanded:
                self.look_at(entry, now)

    def something_went(self, now: float) -> None:
        """A filter is no longer demanded: there may be room for the parts of a fold that had to stay."""
        if self._overdue:
            self.due = min(self.due, now + LOOK_AGAIN)


def _least_missed(leaving: list[str], waiting: list[FilterNode]) -> str:
    # To make room for the first that waits, a filter goes that no client needs any more, or that the first one covers.
    for topic_filter in leaving:
        if not any(overlaps(entry.topic_filter, topic_filter) for entry in waiting):
            return topic_filter
    for topic_filter in leaving:
        if covers(waiting[0].topic_filter, topic_filter):
            return topic_filter
    return leaving[0]
