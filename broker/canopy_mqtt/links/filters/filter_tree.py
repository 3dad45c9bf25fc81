"""A tree of topic filters that finds which of them cover a filter, and which a filter covers.

Owns `FilterTree`. It gives the results of `topics.covers` without comparing all filters, with one exception: "+/#" does
not cover "#" here, though both match the same topics. So no two filters cover each other, and "under" is an order.

And `CoverSet`, a fixed list of filters, which finds the first one that includes another filter, exactly by
`topics.covers`.

Promises: a search visits the levels of the filter and the branches that can answer, not all filters. No recursion,
however deep a filter is.
"""

from __future__ import annotations

from collections.abc import Sequence


class Level:
    """A node: the filters that begin with the same levels. `topic_filter`: the filter that ends here, if there is
    one."""

    def __init__(self) -> None:
        self.below: dict[str, Level] = {}
        self.topic_filter: str | None = None


class FilterTree:
    """A set of valid topic filters without `$share/name/`."""

    def __init__(self) -> None:
        self._root = Level()

    def add(self, topic_filter: str) -> None:
        """Add a filter; one that is there stays."""
        level = self._root
        for name in topic_filter.split("/"):
            below = level.below.get(name)
            if below is None:
                below = Level()
                level.below[name] = below
            level = below
        level.topic_filter = topic_filter

    def discard(self, topic_filter: str) -> None:
        """Remove a filter, with the levels that no other filter needs; one that is not there is no error."""
        level = self._root
        # The lowest level that stays, and what goes of it.
        stays = level
        goes = ""
        for name in topic_filter.split("/"):
            below = level.below.get(name)
            if below is None:
                return
            if goes == "" or len(level.below) > 1 or level.topic_filter is not None:
                stays, goes = level, name + "/"
            level = below
        level.topic_filter = None
        if not level.below:
            del stays.below[goes[:-1]]

    def covering(self, topic_filter: str) -> str | None:
        """Return one of the others that matches every topic which the filter matches; None if there is none."""
        for wide in self.above(topic_filter):
            if wide != topic_filter:
                return wide
        return None

    def above(self, topic_filter: str) -> list[str]:
        """All that match every topic which the filter matches, in no order; itself among them, if it is there."""
        names = topic_filter.split("/")
        found: list[str] = []
        branches = [(self._root, 0)]
        while branches:
            level, at = branches.pop()
            # [MQTT-4.7.2-1]: a leading wildcard sees no topic that begins with $.
            sees = at > 0 or not topic_filter.startswith("$")
            if sees:
                rest = level.below.get("#")
                if rest is not None and rest.topic_filter is not None:
                    found.append(rest.topic_filter)
            if at == len(names):
                if level.topic_filter is not None:
                    found.append(level.topic_filter)
                continue
            name = names[at]
            if name == "#":
                continue
            if sees and name != "+":
                below = level.below.get("+")
                if below is not None:
                    branches.append((below, at + 1))
            below = level.below.get(name)
            if below is not None:
                branches.append((below, at + 1))
        return found

    def inside(self, topic_filter: str) -> list[str]:
        """The filters all of whose topics the given one matches; itself among them, if it is there."""
        names = topic_filter.split("/")
        found: list[str] = []
        branches = [(self._root, 0)]
        while branches:
            level, at = branches.pop()
            if at == len(names):
                if level.topic_filter is not None:
                    found.append(level.topic_filter)
                continue
            name = names[at]
            if name != "#" and name != "+":
                below = level.below.get(name)
                if below is not None:
                    branches.append((below, at + 1))
                continue
            if name == "#" and level.topic_filter is not None:
                found.append(level.topic_filter)  # "a/#" matches "a" (section 4.7.1.2)
            # `#` stays what is asked for on every level below; `+` is done with one, and does not stand for `#`.
            following = at if name == "#" else at + 1
            for key, below in level.below.items():
                if level is self._root and key.startswith("$"):
                    continue  # [MQTT-4.7.2-1]
                if name == "#" or key != "#":
                    branches.append((below, following))
        return found


class CoverSet:
    """Topic filters in an order. `kept`: those that no other one includes; of two that include each other, the first.

    Valid topic filters without `$share/name/`.
    """

    def __init__(self, topic_filters: Sequence[str]) -> None:
        # By how the tree has them spelled: their place among those that are kept.
        self._places: dict[str, int] = {}
        self.kept: list[str] = []
        self._tree = FilterTree()
        for topic_filter in topic_filters:
            self._tree.add(_spelled(topic_filter))
        for topic_filter in topic_filters:
            spelled = _spelled(topic_filter)
            if spelled not in self._places and self._tree.covering(spelled) is None:
                self._places[spelled] = len(self.kept)
                self.kept.append(topic_filter)

    def first(self, topic_filter: str) -> str | None:
        """Return the first of those kept that matches every topic which the filter matches; None if there is none.

        A walk along the levels of the filter, however many are kept.
        """
        first = len(self.kept)
        for wide in self._tree.above(_spelled(topic_filter)):
            place = self._places.get(wide, first)
            if place < first:
                first = place
        return self.kept[first] if first < len(self.kept) else None


def _spelled(topic_filter: str) -> str:
    """Spell "+/#" as "#": every topic name has a first level, so that these two match the same."""
    return "#" if topic_filter == "+/#" else topic_filter
