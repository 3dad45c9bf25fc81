"""The node layout of the topic-filter trie: a tree with one node for each distinct prefix of a wildcard filter.

A node has a dict of literal children, a field for `+` and a field for `#`: wildcards are fields and never keys, so a
level cannot be mistaken for one. `#` is always the last level of a filter, so its field has the entry itself. Filters
without wildcards are in one plain dict. See `Trie` for its assumptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.topics.filter_bytes import FILTER_NODE_BYTES, entry_bytes, spelt_entry_bytes, text_bytes
from broker.core.topics.subscription import FilterEntry
from broker.core.topics.trie_base import Trie

if TYPE_CHECKING:
    from mypy_extensions import i64


class Node:
    """One prefix of at least one wildcard filter."""

    def __init__(self) -> None:
        self.children: dict[str, Node | FilterEntry] | None = None
        self.plus: Node | None = None
        self.hash: FilterEntry | None = None  # the filter that ends here with "#"
        self.entry: FilterEntry | None = None  # the filter that ends here without

    def is_bare(self) -> bool:
        """Whether nothing needs this node any more."""
        return self.children is None and self.plus is None and self.hash is None and self.entry is None

    def folded(self) -> FilterEntry | None:
        """The entry that can stand in this node's place: the only thing in it."""
        if self.children is not None or self.plus is not None:
            return None
        if self.hash is None:
            return self.entry
        return self.hash if self.entry is None else None


def unfold(entry: FilterEntry) -> Node:
    """A node with what a folded child stood for."""
    node = Node()
    if entry.topic_filter.endswith("#"):
        node.hash = entry
    else:
        node.entry = entry
    return node


class NodeTrie(Trie):
    """The trie with nodes: see the top of this file.

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

    A filter costs memory for each of its levels, some 300 bytes where nobody else has them: `bytes` counts them, and
    the router's limits bound that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, FilterEntry] = {}
        self._root = Node()
        self._wildcards: int = 0
        self._nodes: int = 0
        # The beginning, up to a "/", of the filter that came last, and the node that it leads to.
        self._way = ""
        self._way_node = self._root
        self._way_levels: i64 = 0

    def insert(self, topic_filter: str) -> FilterEntry:
        if not ("+" in topic_filter or "#" in topic_filter):
            entry = self._exact.get(topic_filter)
            if entry is None:
                entry = self._new(topic_filter, 0)
                self._exact[topic_filter] = entry
            return entry
        node = self._root
        way = self._way
        if way and topic_filter.startswith(way):
            # The last filter led here too: its siblings often come one after the other.
            node = self._way_node
            levels = topic_filter[len(way) :].split("/")
            before: i64 = self._way_levels
        else:
            levels = topic_filter.split("/")
            before = 0
        last: i64 = len(levels) - 1
        ends_with_hash = levels[last] == "#"
        parent: i64 = last - 1 if ends_with_hash else last
        index: i64 = -1
        while index < last:
            index += 1
            if index == parent and index > 0:
                self._remember(topic_filter, levels, index, node)
                self._way_levels = before + index
            level = levels[index]
            if level == "#":
                entry = node.hash
                if entry is None:
                    entry = self._new(topic_filter, before + last + 1)
                    node.hash = entry
                    self._wildcards += 1
                return entry
            if level == "+":
                plus = node.plus
                if plus is None:
                    plus = Node()
                    node.plus = plus
                    self._count_nodes(1)
                node = plus
                continue
            children = node.children
            if children is None:
                children = {}
                node.children = children
            child = children.get(level)
            if child is None:
                if index == last or (index == last - 1 and ends_with_hash):
                    entry = self._new(topic_filter, before + last + 1)
                    children[level] = entry
                    self._wildcards += 1
                    return entry
                child = Node()
                children[level] = child
                self._count_nodes(1)
            elif isinstance(child, FilterEntry):
                if child.topic_filter == topic_filter:
                    return child
                child = unfold(child)
                children[level] = child
                self._count_nodes(1)
            node = child
        entry = node.entry
        if entry is None:
            entry = self._new(topic_filter, before + last + 1)
            node.entry = entry
            self._wildcards += 1
        return entry

    def cost(self, topic_filter: str) -> i64:
        if not ("+" in topic_filter or "#" in topic_filter):
            return entry_bytes(topic_filter)
        return entry_bytes(topic_filter) + (topic_filter.count("/") + 1) * FILTER_NODE_BYTES

    def most_cost(self, length: i64) -> i64:
        return spelt_entry_bytes(4 * length, True) + (length + 1) * FILTER_NODE_BYTES

    def _new(self, topic_filter: str, levels: i64) -> FilterEntry:
        """The entry of a filter that is new; `levels`: 0 where it has no wildcard, and so no nodes."""
        text: i64 = text_bytes(topic_filter)
        size: i64 = spelt_entry_bytes(text, levels > 0)
        self.bytes += size
        self.made += 1
        return FilterEntry(topic_filter, text, size + levels * FILTER_NODE_BYTES)

    def _count_nodes(self, change: int) -> None:
        self._nodes += change
        self.bytes += change * FILTER_NODE_BYTES

    def _remember(self, topic_filter: str, levels: list[str], count: int, node: Node) -> None:
        """The last of `levels` from `count` on hang below `node`: so may what comes next."""
        size = 0
        for index in range(count, len(levels)):
            size += len(levels[index]) + 1
        self._way = topic_filter[: len(topic_filter) - size + 1]
        self._way_node = node

    def find(self, topic_filter: str) -> FilterEntry | None:
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

    def remove(self, topic_filter: str) -> bool:
        if not ("+" in topic_filter or "#" in topic_filter):
            exact = self._exact.get(topic_filter)
            if exact is None:
                return False
            exact.retire()
            del self._exact[topic_filter]
            self.bytes -= spelt_entry_bytes(exact.text, False)
            return True
        # The node may be one of those that go.
        self._way = ""
        self._way_node = self._root
        levels = topic_filter.split("/")
        # The nodes above `node`, from the root: levels[i] leads from path[i] to the next one.
        path: list[Node] = []
        node = self._root
        for level in levels:
            if level == "#":
                entry = node.hash
                if entry is None:
                    return False
                entry.retire()
                node.hash = None
                break
            path.append(node)
            if level == "+":
                plus = node.plus
                if plus is None:
                    return False
                node = plus
                continue
            children = node.children
            if children is None:
                return False
            child = children.get(level)
            if child is None:
                return False
            if isinstance(child, FilterEntry):
                if child.topic_filter != topic_filter:
                    return False
                entry = child
                entry.retire()
                path.pop()
                _drop_child(node, children, level)
                break
            node = child
        else:
            entry = node.entry
            if entry is None:
                return False
            entry.retire()
            node.entry = None
        self._wildcards -= 1
        self.bytes -= spelt_entry_bytes(entry.text, True)
        self._tidy(node, path, levels)
        return True

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
                    self._count_nodes(-1)
                    return
                if not node.is_bare():
                    return
                _drop_child(parent, children, level)
            self._count_nodes(-1)
            node = parent

    def match(self, topic: str) -> list[FilterEntry]:
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

    def filters(self) -> list[str]:
        names = list(self._exact)
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.hash is not None:
                names.append(node.hash.topic_filter)
            if node.entry is not None:
                names.append(node.entry.topic_filter)
            if node.plus is not None:
                stack.append(node.plus)
            if node.children is not None:
                for child in node.children.values():
                    if isinstance(child, FilterEntry):
                        names.append(child.topic_filter)
                    else:
                        stack.append(child)
        return names

    def __len__(self) -> int:
        return len(self._exact) + self._wildcards

    @property
    def node_count(self) -> int:
        return self._nodes


def _drop_child(node: Node, children: dict[str, Node | FilterEntry], level: str) -> None:
    del children[level]
    if not children:
        node.children = None
