"""The topic-filter trie: the index that finds the filters which match a topic name, in one of two layouts.

Owns the choice of layout (`create`) and the node layout: a tree with one node for each distinct prefix of a wildcard
filter. `trie_compact` has the other one. Filters and topics are taken as they come: the caller validates them. A shared
subscription's filter comes without its `$share/name/`. Filters that begin with a wildcard do not see topics that begin
with `$` [MQTT-4.7.2-1]. An unknown layout is a ValueError; the settings refuse it before.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.topics.subscription import MAX_BYTES, MAX_SPELLINGS, FilterEntry, entry_bytes
from canopy_mqtt.core.topics.trie_compact import CompactTrie

NODES: Final = "nodes"
COMPACT: Final = "compact"
UNCOMPACTED: Final = "uncompacted"
LAYOUTS: Final[tuple[str, ...]] = (COMPACT, NODES, UNCOMPACTED)

NODE_BYTES: Final = 352
"""Bytes that are counted for a node of the trie, with a dict for one child and the string of its level."""


def create(layout: str) -> Trie:
    """Make an empty trie of the layout of that name, one of `LAYOUTS`.

    Raises:
        ValueError: there is no such layout.
    """
    if layout == NODES:
        return NodeTrie()
    if layout in (COMPACT, UNCOMPACTED):
        return CompactTrie(layout == COMPACT)
    raise ValueError(f"no trie layout {layout!r}: there are {', '.join(LAYOUTS)}")


class Node:
    """One prefix of at least one wildcard filter."""

    def __init__(self) -> None:
        self.children: dict[str, Node | FilterEntry] | None = None
        self.plus: Node | None = None
        self.hash: FilterEntry | None = None  # the filter that ends here with "#"
        self.entry: FilterEntry | None = None  # the filter that ends here without

    def is_bare(self) -> bool:
        """Return whether nothing needs this node any more."""
        return self.children is None and self.plus is None and self.hash is None and self.entry is None

    def folded(self) -> FilterEntry | None:
        """The entry that can stand in this node's place: the only thing in it."""
        if self.children is not None or self.plus is not None:
            return None
        if self.hash is None:
            return self.entry
        return self.hash if self.entry is None else None


class NodeTrie:
    """The trie with nodes.

    A node has a dict of literal children, a field for `+` and a field for `#`: wildcards are fields and never keys, so
    a level cannot be mistaken for one. `#` is always the last level of a filter, so its field has the entry itself.
    Filters without wildcards are in one plain dict.

    A literal level that leads to a single filter, which ends there or with "#" right after, gets no node: its parent's
    dict holds the entry (a *folded* child). Two million filters `device/{id}/+/{n}/#` are then two million entries and
    no more nodes than there are devices. A folded child becomes a node when a second filter needs it, and is folded
    again when that one has left: what the tree looks like depends on the filters in it, and not on the way they came.

    Promises:
    - `match` walks with a loop and a stack of untried `+` branches, never by recursion: a topic of 65,536 levels needs
      no more of the C stack than one of two.
    - Its cost: each node is visited at most once for a topic, and at most 2^d nodes at depth d. So a match never visits
      more nodes than the filters of its depth put there: a topic "a/a/a/..." can be made expensive only by
      subscribing to as many mixtures of "a" and "+" first, and limits on subscriptions bound it.
    - `remove` takes the branch away up to the first node that something else needs.
    """

    def __init__(self) -> None:
        self._exact: dict[str, FilterEntry] = {}
        self._root = Node()
        # Filters, and nodes below the root; an empty trie has none.
        self.count: i64 = 0
        self.nodes: i64 = 0
        # Bytes counted for both: a filter costs some 300 for each level that no other filter has.
        self.bytes: i64 = 0
        # Look-ups made by `match` since the start: its cost, for the charge of a turn and for benchmarks.
        self.probes: int = 0

    def insert(self, topic_filter: str) -> FilterEntry:
        """Return the entry of a filter, created if it does not exist."""
        if not ("+" in topic_filter or "#" in topic_filter):
            entry = self._exact.get(topic_filter)
            if entry is None:
                entry = FilterEntry(topic_filter, entry_bytes(topic_filter))
                self._exact[topic_filter] = entry
                self.count += 1
                self.bytes += entry.cost
            return entry
        levels = topic_filter.split("/")
        count: i64 = len(levels)
        # How many literal levels at the end need no node of their own, if no other filter does.
        foldable: i64 = count - 2 if levels[count - 1] == "#" else count - 1
        # The children in whose place the entry itself stands.
        folds: dict[str, Node | FilterEntry] | None = None
        node = self._root
        level = ""
        for index in range(len(levels)):
            level = levels[index]
            if level == "#":
                if node.hash is not None:
                    return node.hash
                break
            if level == "+":
                plus = node.plus
                if plus is None:
                    plus = self._new_node()
                    node.plus = plus
                node = plus
                continue
            children = node.children
            if children is None:
                children = {}
                node.children = children
            child = children.get(level)
            if child is None:
                if index >= foldable:
                    folds = children
                    break
                child = self._new_node()
                children[level] = child
            elif isinstance(child, FilterEntry):
                if child.topic_filter == topic_filter:
                    return child
                folded = child
                child = self._new_node()
                children[level] = child
                if folded.topic_filter.endswith("#"):
                    child.hash = folded
                else:
                    child.entry = folded
            node = child
        else:
            if node.entry is not None:
                return node.entry
        size: i64 = entry_bytes(topic_filter)
        self.count += 1
        self.bytes += size
        entry = FilterEntry(topic_filter, size + count * NODE_BYTES)
        if folds is not None:
            folds[level] = entry
        elif level == "#":
            node.hash = entry
        else:
            node.entry = entry
        return entry

    def _new_node(self) -> Node:
        self.nodes += 1
        self.bytes += NODE_BYTES
        return Node()

    def cost(self, topic_filter: str) -> i64:
        """Return by how much `bytes` may grow with a filter at most: where it shares nothing with others."""
        size: i64 = entry_bytes(topic_filter)
        if not ("+" in topic_filter or "#" in topic_filter):
            return size
        return size + (topic_filter.count("/") + 1) * NODE_BYTES

    def max_cost(self, filters: i64, characters: i64) -> i64:
        """Return the maximum cost of this number of subscriptions, whose names have this number of characters together.

        A client with this much room has room for all of them: then none is looked at by itself.
        """
        return filters * (MAX_BYTES + NODE_BYTES) + characters * (MAX_SPELLINGS + NODE_BYTES)

    def find(self, topic_filter: str) -> FilterEntry | None:
        """Return the entry of a filter, or None. The filter is looked up as a string, not matched."""
        if not ("+" in topic_filter or "#" in topic_filter):
            return self._exact.get(topic_filter)
        node = self._root
        for level in topic_filter.split("/"):
            if level == "#":
                return node.hash
            if level == "+":
                plus = node.plus
                if plus is None:
                    return None
                node = plus
                continue
            children = node.children
            if children is None:
                return None
            child = children.get(level)
            if child is None:
                return None
            if isinstance(child, FilterEntry):
                return child if child.topic_filter == topic_filter else None
            node = child
        return node.entry

    def remove(self, entry: FilterEntry) -> None:
        """Take a filter of this trie out, with everything that only it needed, and retire its entry.

        Raises:
            ValueError: it has subscriptions. Nothing has changed then.
        """
        topic_filter = entry.topic_filter
        if entry.only is not None or entry.many is not None:
            raise ValueError(f"{topic_filter!r} has subscriptions")
        # Routes that are cached may refer to it for a long time.
        entry.topic_filter = ""
        self.count -= 1
        if not ("+" in topic_filter or "#" in topic_filter):
            del self._exact[topic_filter]
            self.bytes -= entry.cost
            return
        self.bytes -= entry_bytes(topic_filter)
        levels = topic_filter.split("/")
        # The nodes above `node`, from the root: levels[i] leads from path[i] to the next one.
        path: list[Node] = []
        node = self._root
        for level in levels:
            if node.hash is entry:
                node.hash = None
                break
            child = node.plus
            if level != "+":
                children = node.children
                assert children is not None
                found = children[level]
                if found is entry:
                    _drop_child(node, children, level)
                    break
                assert isinstance(found, Node)
                child = found
            assert child is not None
            path.append(node)
            node = child
        else:
            node.entry = None
        self._tidy(node, path, levels)

    def _tidy(self, node: Node, path: list[Node], levels: list[str]) -> None:
        """Take away, or fold, what a removal left of `node` and of the nodes above it."""
        for index in range(len(path) - 1, -1, -1):
            parent = path[index]
            level = levels[index]
            if level == "+":
                if not node.is_bare():
                    return
                parent.plus = None
            else:
                children = parent.children
                if children is None:
                    return
                entry = node.folded()
                if entry is not None:
                    children[level] = entry
                    self.nodes -= 1
                    self.bytes -= NODE_BYTES
                    return
                if not node.is_bare():
                    return
                _drop_child(parent, children, level)
            self.nodes -= 1
            self.bytes -= NODE_BYTES
            node = parent

    def match(self, topic: str) -> list[FilterEntry]:
        """Return the entries of all filters that match a topic name, each once, in no order; a new list each time."""
        found: list[FilterEntry] = []
        exact = self._exact.get(topic)
        if exact is not None:
            found.append(exact)
        node = self._root
        if node.is_bare():
            return found
        levels = topic.split("/")
        end = len(levels)
        depth = 0
        visited = 0
        if topic.startswith("$"):
            # [MQTT-4.7.2-1]: the root's own wildcards do not see this topic.
            children = node.children
            if children is None:
                return found
            first = children.get(levels[0])
            if first is None:
                return found
            if isinstance(first, FilterEntry):
                found.append(first)  # a wildcard filter of one literal level ends with "#"
                return found
            node = first
            depth = 1
        # Branches to come back to: a node, and how many levels lead to it. Most topics need none.
        later: list[Node] | None = None
        later_depth: list[int] | None = None
        while True:
            visited += 1
            entry = node.hash
            if entry is not None:
                found.append(entry)
            if depth == end:
                entry = node.entry
                if entry is not None:
                    found.append(entry)
            else:
                plus = node.plus
                children = node.children
                if children is not None:
                    child = children.get(levels[depth])
                    if isinstance(child, Node):
                        depth += 1
                        if plus is not None:
                            if later is None or later_depth is None:
                                later = [plus]
                                later_depth = [depth]
                            else:
                                later.append(plus)
                                later_depth.append(depth)
                        node = child
                        continue
                    if child is not None and (depth + 1 == end or child.topic_filter.endswith("#")):
                        found.append(child)
                if plus is not None:
                    depth += 1
                    node = plus
                    continue
            if later is None or later_depth is None or not later:
                break
            node = later.pop()
            depth = later_depth.pop()
        self.probes += visited
        return found

    def __len__(self) -> int:
        """Return how many filters there are."""
        return self.count


def _drop_child(node: Node, children: dict[str, Node | FilterEntry], level: str) -> None:
    del children[level]
    if not children:
        node.children = None


Trie = NodeTrie | CompactTrie
"""Either layout: both have the same methods and counts."""
