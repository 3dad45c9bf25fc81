"""Merges topic filters into wider ones.

Owns `FilterNode`, a filter with the narrower ones below it, and the choice of folds. Entries form trees; the upstream
has the top of each, or will have it. A *fold* is an entry to which no client subscribes: it was made here, of at least
two entries, and replaces those below it.

`budget` knows what is declared, when, and how many may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from canopy_mqtt.core.codec.topic_names import SENSIBLE_LEVELS, covers, has_wildcard
from canopy_mqtt.links.filters.filter_tree import FilterTree


class FilterNode:
    """A topic filter and the filters below it.

    `demanded`: a client subscribes to this very filter; else it is a fold. `alone`: it is never put under another.
    `size`: how many demanded filters are here, with all below. `used`: when it was made, or last took in a filter, if
    it is a fold. `tried`: how many parts it had when they were found too many to stand without it; 0: not yet. `again`:
    not all of them were looked at then.
    """

    def __init__(self, topic_filter: str, demanded: bool, alone: bool, used: float) -> None:
        self.topic_filter = topic_filter
        self.demanded = demanded
        self.alone = alone
        self.used = used
        self.size = 1 if demanded else 0
        self.tried = 0
        self.again = False
        self.parent: FilterNode | None = None
        self.parts: dict[str, FilterNode] = {}

    def top(self) -> FilterNode:
        entry = self
        while True:
            parent = entry.parent
            if parent is None:
                return entry
            entry = parent

    def take(self, entry: FilterNode) -> None:
        entry.parent = self
        self.parts[entry.topic_filter] = entry
        self.grow(entry.size)

    def leave(self) -> None:
        """Leave the parent, if there is one; that stays, even when it is empty now."""
        parent = self.parent
        if parent is not None:
            del parent.parts[self.topic_filter]
            parent.grow(-self.size)
            self.parent = None

    def grow(self, by: int) -> None:
        """Change the number of demanded filters here and in all above."""
        entry: FilterNode | None = self
        while entry is not None:
            entry.size += by
            entry = entry.parent


def prune(entry: FilterNode, entries: dict[str, FilterNode]) -> FilterNode | None:
    """Remove a fold that holds nothing, and above it those that hold nothing then; return the top, if that went too."""
    at: FilterNode | None = entry
    while at is not None and not at.demanded and not at.parts:
        del entries[at.topic_filter]
        parent = at.parent
        if parent is None:
            return at
        at.leave()
        at = parent
    return None


def absorb(tops: dict[str, FilterNode]) -> None:
    """Put each top that another one covers under that one, but for those that are to be alone."""
    tree = FilterTree()
    some = False
    for topic_filter in tops:
        if has_wildcard(topic_filter):
            tree.add(topic_filter)
            some = True
    if not some:
        return
    covers_of: dict[str, str] = {}
    for topic_filter, entry in tops.items():
        if not entry.alone:
            cover = tree.covering(topic_filter)
            if cover is not None:
                covers_of[topic_filter] = cover
    # A cover may have one itself.
    under = {topic_filter: tops.pop(topic_filter) for topic_filter in covers_of}
    for topic_filter, entry in under.items():
        cover = covers_of[topic_filter]
        (tops[cover] if cover in tops else under[cover]).take(entry)


class FilterFolder:
    """Makes folds of tops, but of those that are to be alone. `tops` is changed in place, and `entries`, all that there
    are, learns of each fold.

    `allowed`: a fold is included by one of these; empty: everything is allowed. `beneath`: and is narrower than this
    one, if it is not empty.

    Promises, for `shrink`: every fold stays within what is allowed. They are made deepest first, that is, where filters
    share most literal levels at their beginning: what a fold takes in besides is then as little as can be. Of one
    depth:

    1. first one level generalised, where filters differ in nothing else ("a/b/c" and "a/d/c" become "a/+/c"),
    2. then everything below ("a/b/c" and "a/d" become "a/#");

    of these those that save most, then by the alphabet. When even depth 0 does not do, the allowed filters themselves
    are folds: the widest that there can be. What begins with `$` is folded with what begins with the same level only:
    no wildcard stands for that [MQTT-4.7.2-1].
    """

    def __init__(
        self,
        tops: dict[str, FilterNode],
        entries: dict[str, FilterNode],
        allowed: Sequence[str],
        beneath: str,
        now: float,
    ) -> None:
        self._tops = tops
        self._entries = entries
        self._allowed = list(allowed)
        self._beneath = beneath
        self._now = now
        # Filters that are no folds, whichever clients ask for them.
        self.barred: set[str] = set()

    def shrink(self, goal: int) -> None:
        """Fold until at most `goal` tops are left, or nothing can be folded."""
        tops = self._tops
        depth = shared_depth(self._foldable()) if len(tops) > goal else -1
        while depth >= 0 and len(tops) > goal:
            # A level that is generalised can make two filters alike but for one more.
            while self._make(one_level(self._foldable(), depth), goal):
                absorb(tops)
            self._make(all_below(self._foldable(), depth), goal)
            depth = min(depth - 1, shared_depth(self._foldable()))
        if len(tops) > goal:
            widest: dict[str, list[str]] = {}
            for each in self._allowed:
                widest[each] = [topic_filter for topic_filter in self._foldable() if covers(each, topic_filter)]
            self._make(widest, goal)

    def _foldable(self) -> list[str]:
        return [topic_filter for topic_filter, entry in self._tops.items() if not entry.alone]

    def _make(self, folds: dict[str, list[str]], goal: int) -> bool:
        """Make the folds that are worth it, the best first, and none when there is no need; return whether any was
        made."""
        tops = self._tops
        made = False
        for fold in sorted(folds, key=lambda each: (-len(folds[each]), each)):
            if len(tops) <= goal:
                return made
            # Some may have gone under another fold in the meantime.
            members = [topic_filter for topic_filter in folds[fold] if topic_filter in tops]
            if len(members) < 2 or not self._allows(fold):
                continue
            entry = self._entries.get(fold)
            if entry is None:
                entry = FilterNode(fold, demanded=False, alone=False, used=self._now)
                self._entries[fold] = entry
            for topic_filter in members:
                entry.take(tops.pop(topic_filter))
            tops[fold] = entry
            made = True
        return made

    def _allows(self, fold: str) -> bool:
        if fold in self.barred:
            return False
        if self._beneath:
            if fold in self._entries or covers(fold, self._beneath) or not covers(self._beneath, fold):
                return False
        else:
            # A client may have asked for this very filter and been refused; the fold serves it, too.
            there = self._entries.get(fold)
            if there is not None and there.parent is not None:
                return False
        return not self._allowed or any(covers(each, fold) for each in self._allowed)


def literal_depth(levels: list[str]) -> int:
    depth = 0
    for level in levels:
        if level == "+" or level == "#":
            break
        depth += 1
    return depth


def shared_depth(topic_filters: Iterable[str]) -> int:
    """Return how many literal levels at their beginning any two filters share at most; -1 if there are no two."""
    prefixes: list[list[str]] = []
    for topic_filter in topic_filters:
        levels = topic_filter.split("/")
        prefixes.append(levels[: literal_depth(levels)])
    # Those that share most are neighbours in this order.
    prefixes.sort()
    most = -1
    for at in range(1, len(prefixes)):
        one, other = prefixes[at - 1], prefixes[at]
        depth = 0
        while depth < len(one) and depth < len(other) and one[depth] == other[depth]:
            depth += 1
        most = max(most, depth)
    return most


def one_level(topic_filters: Iterable[str], depth: int) -> dict[str, list[str]]:
    """Group the filters that become one of this depth when one of their levels is generalised to `+`, by that
    filter."""
    folds: dict[str, list[str]] = {}
    for topic_filter in topic_filters:
        levels = topic_filter.split("/")
        if len(levels) > SENSIBLE_LEVELS:
            continue  # each of its levels would be a filter as long as it is
        literal = literal_depth(levels)
        if literal > depth:
            _generalise(levels, depth, topic_filter, folds)
        elif literal == depth:
            for at in range(depth + 1, len(levels)):
                if levels[at] != "+" and levels[at] != "#":
                    _generalise(levels, at, topic_filter, folds)
    return folds


def _generalise(levels: list[str], at: int, topic_filter: str, folds: dict[str, list[str]]) -> None:
    if at == 0 and topic_filter.startswith("$"):
        return  # [MQTT-4.7.2-1]
    fold = "/".join([*levels[:at], "+", *levels[at + 1 :]])
    if fold == "+/#":
        return  # which is "#" with more words
    members = folds.get(fold)
    if members is None:
        folds[fold] = [topic_filter]
    else:
        members.append(topic_filter)


def all_below(topic_filters: Iterable[str], depth: int) -> dict[str, list[str]]:
    """Group the filters that begin with the same `depth` literal levels, by the filter that matches everything below
    these."""
    folds: dict[str, list[str]] = {}
    for topic_filter in topic_filters:
        levels = topic_filter.split("/")
        if literal_depth(levels) < depth or (depth == 0 and topic_filter.startswith("$")):
            continue
        fold = "/".join([*levels[:depth], "#"])
        members = folds.get(fold)
        if members is None:
            folds[fold] = [topic_filter]
        else:
            members.append(topic_filter)
    return folds
