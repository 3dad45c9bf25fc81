"""The topic-filter trie: the index that finds the filters which match a topic name, in one of two layouts.

Owns the two layouts and the choice between them (`create`): the node layout, a tree with one node for each distinct
prefix of a wildcard filter, and the compact one. Filters and topics are taken as they come: the caller validates them.
A shared subscription's filter comes without its `$share/name/`. Filters that begin with a wildcard do not see topics
that begin with `$` [MQTT-4.7.2-1]. An unknown layout is a ValueError; the settings refuse it before.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.topics.subscription import MAX_BYTES, MAX_SPELLINGS, FilterEntry, entry_bytes, text_bytes

NODES: Final = "nodes"
COMPACT: Final = "compact"
UNCOMPACTED: Final = "uncompacted"
LAYOUTS: Final[tuple[str, ...]] = (COMPACT, NODES, UNCOMPACTED)

NODE_BYTES: Final = 352
"""Bytes that are counted for a node of the trie, with a dict for one child and the string of its level."""


PREFIX_BYTES: Final = 256
"""Bytes that are counted for a prefix: its record and its place in the table; without its spelling."""

SHAPE_BYTES: Final = 128
"""Bytes that are counted for another shape that follows a prefix."""

# How a segment ends. A shape is its number of literal levels × 4 + one of these.
ENDS: Final = 0  # with the filter, at a literal level
PLUS_LAST: Final = 1  # with "+", and the filter with it
PLUS_ON: Final = 2  # with "+", and there is more of the filter
HASH: Final = 3  # with "#", and the filter with it
KINDS: Final = 4
KIND_BITS: Final = 2
KIND_MASK: Final = 3


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


class Shapes:
    """The shapes of the segments that follow one prefix, with how many filters have each.

    Nearly every prefix has one shape, so that the first one needs no dict.
    """

    def __init__(self, shape: int) -> None:
        self.shape = shape
        self.count: int = 0  # of `shape`
        self.more: dict[int, int] | None = None  # of the others

    @property
    def kinds(self) -> int:
        """Return how many shapes there are."""
        return 1 if self.more is None else 1 + len(self.more)

    def add(self, shape: int) -> None:
        if shape == self.shape:
            self.count += 1
            return
        more = self.more
        if more is None:
            more = {}
            self.more = more
        more[shape] = more.get(shape, 0) + 1

    def discard(self, shape: int) -> bool:
        """Take one away; whether none at all are left."""
        more = self.more
        if shape == self.shape:
            self.count -= 1
            if self.count > 0:
                return False
            if more is None:
                return True
            self.shape, self.count = more.popitem()
        elif more is not None:
            left = more[shape] - 1
            if left > 0:
                more[shape] = left
                return False
            del more[shape]
        if not more:
            self.more = None
        return False

    def others(self, limit: int) -> list[int]:
        """The shapes below `limit` beside `shape`; never looks at more of them than that."""
        found: list[int] = []
        more = self.more
        if more is not None:
            if len(more) <= limit:
                for shape in more:
                    if shape < limit:
                        found.append(shape)
            else:  # filters deeper than this topic must not make it expensive
                for shape in range(limit):
                    if shape in more:
                        found.append(shape)
        return found


class CompactTrie:
    """The trie without nodes: two tables instead of nodes and edges. `NodeTrie` documents the methods of both.

    One table has every filter as a string. The other has, for each prefix of a wildcard filter that has something after
    it, what may follow. To match a topic, it forms the filters that could exist and looks them up.

    With `compaction` (the default) a filter is cut after each wildcard only: "a/b/+/c/d/#" is the segments "a/b/+" and
    "c/d/#", and its one inner prefix is "a/b/+". A prefix remembers the *shapes* of the segments that follow it, as
    pairs of how many literal levels a segment has and how it ends: by `+`, by `#`, or with the filter itself. How a
    shape would be spelt follows from the topic, and each takes one probe of a table.

    Without, every level ends a segment, and a prefix remembers only how many filters go through it. That is simpler and
    larger, and there to be compared with.

    Promises (with compaction):
    - From one prefix there are at most 2r + 3 probes, r being the levels of the topic that are left, and never more
      than the shapes that the filters there have. Where all filters share one fixed beginning
      (`device/{id}/+/{num}/#`), a match takes one probe for each segment and one for the filter without wildcards, and
      at the very worst levels × 2 + 2 in all.
    - Each prefix is visited at most once for a topic, so that the number of `+` prefixes that filters really have
      bounds a match, as it does in the node layout.
    - No recursion.

    A key is as long as the prefix it spells, so that a filter of n levels can cost memory in n²: `bytes` counts it, and
    the router's limits bound that.
    """

    def __init__(self, compaction: bool = True) -> None:
        self.compaction = compaction
        self._filters: dict[str, FilterEntry] = {}
        self._shapes: dict[str, Shapes] = {}  # with compaction: what follows a prefix, which ends with "/"; "" the root
        self._counts: dict[str, int] = {}  # without: filters through a prefix
        # Filters, and prefixes.
        self.count: i64 = 0
        self.nodes: i64 = 0
        # Bytes counted for both, and for further shapes.
        self.bytes: i64 = 0
        # Look-ups made by `match` since the start.
        self.probes: int = 0

    def insert(self, topic_filter: str) -> FilterEntry:
        entry = self._filters.get(topic_filter)
        if entry is not None:
            return entry
        entry = FilterEntry(topic_filter, self.cost(topic_filter))
        self._filters[topic_filter] = entry
        self.count += 1
        self.bytes += entry_bytes(topic_filter)
        if "+" in topic_filter or "#" in topic_filter:
            if self.compaction:
                self._add_segments(topic_filter)
            else:
                self._add_prefixes(topic_filter)
        return entry

    def find(self, topic_filter: str) -> FilterEntry | None:
        return self._filters.get(topic_filter)

    def remove(self, entry: FilterEntry) -> None:
        topic_filter = entry.topic_filter
        if entry.only is not None or entry.many is not None:
            raise ValueError(f"{topic_filter!r} has subscriptions")
        entry.topic_filter = ""
        del self._filters[topic_filter]
        self.count -= 1
        self.bytes -= entry_bytes(topic_filter)
        if "+" in topic_filter or "#" in topic_filter:
            if self.compaction:
                self._discard_segments(topic_filter)
            else:
                self._discard_prefixes(topic_filter)

    def cost(self, topic_filter: str) -> i64:
        size: i64 = entry_bytes(topic_filter)
        if not ("+" in topic_filter or "#" in topic_filter):
            return size
        # A prefix after each "+", or after each level, none of them longer than the filter.
        prefixes: i64 = topic_filter.count("+") + 1 if self.compaction else max(topic_filter.count("/"), 1)
        return size + prefixes * (PREFIX_BYTES + text_bytes(topic_filter))

    def max_cost(self, filters: i64, characters: i64) -> i64:
        return (
            filters * MAX_BYTES
            + MAX_SPELLINGS * characters
            + (filters + characters) * PREFIX_BYTES
            + 4 * characters * (characters + 1)
        )

    def match(self, topic: str) -> list[FilterEntry]:
        found: list[FilterEntry] = []
        self.probes += 1
        entry = self._filters.get(topic)
        if entry is not None:
            found.append(entry)
        if self.compaction:
            self._match_segments(topic, found)
        else:
            self._match_prefixes(topic, found)
        return found

    def __len__(self) -> int:
        return self.count

    # With compaction.

    def _add_segments(self, topic_filter: str) -> None:
        shapes = self._shapes
        for prefix, shape in _cut(topic_filter):
            known = shapes.get(prefix)
            if known is None:
                known = Shapes(shape)
                shapes[prefix] = known
                self.nodes += 1
                self.bytes += PREFIX_BYTES + text_bytes(prefix)
            before = known.kinds
            known.add(shape)
            self.bytes += (known.kinds - before) * SHAPE_BYTES

    def _discard_segments(self, topic_filter: str) -> None:
        shapes = self._shapes
        for prefix, shape in _cut(topic_filter):
            known = shapes[prefix]
            before = known.kinds
            if known.discard(shape):
                del shapes[prefix]
                self.nodes -= 1
                self.bytes -= PREFIX_BYTES + text_bytes(prefix)
            self.bytes -= (before - known.kinds) * SHAPE_BYTES

    def _match_segments(self, topic: str, found: list[FilterEntry]) -> None:
        filters = self._filters
        shapes = self._shapes
        probes = 0
        known = shapes.get("")
        if known is None:
            return
        # starts[i] is where level i begins; one more for where a level after the last one would.
        starts: list[int] = [0]
        at = topic.find("/")
        while at >= 0:
            starts.append(at + 1)
            at = topic.find("/", at + 1)
        starts.append(len(topic) + 1)
        levels = len(starts) - 1
        reserved = topic.startswith("$")  # no leading wildcard sees it [MQTT-4.7.2-1]
        prefix = ""
        depth = 0
        # The prefix to go on with, what may follow it, and how many levels it covers; and others after that one. Most
        # topics need no others.
        next_prefix = ""
        next_known: Shapes | None = None
        next_depth = 0
        later: list[tuple[str, Shapes, int]] | None = None
        while True:
            start = starts[depth]
            limit = (levels - depth + 1) * KINDS
            others = known.others(limit) if known.more is not None else None
            left = 0 if others is None else len(others)
            shape = known.shape
            while True:
                if shape < limit and not (shape < KINDS and reserved and depth == 0):
                    literals = shape >> KIND_BITS
                    kind = shape & KIND_MASK
                    end = depth + literals
                    head = ""
                    if kind == HASH:
                        if literals == 0:
                            head = f"{prefix}#"
                        elif end < levels:
                            head = f"{prefix}{topic[start : starts[end]]}#"
                        else:
                            head = f"{prefix}{topic[start:]}/#"
                    elif kind == PLUS_ON:
                        if end + 1 < levels:
                            head = f"{prefix}{topic[start : starts[end]]}+/"
                            probes += 1
                            follow = shapes.get(head)
                            if follow is not None:
                                if next_known is None:
                                    next_prefix = head
                                    next_known = follow
                                    next_depth = end + 1
                                elif later is None:
                                    later = [(head, follow, end + 1)]
                                else:
                                    later.append((head, follow, end + 1))
                            head = ""
                        elif end < levels:  # only "#" can follow what the last level matches
                            head = f"{prefix}{topic[start : starts[end]]}+/#"
                    elif kind == PLUS_LAST:
                        if end + 1 == levels:
                            head = f"{prefix}{topic[start : starts[end]]}+"
                    elif end == levels:
                        head = prefix + topic[start:]
                    if head:
                        probes += 1
                        entry = filters.get(head)
                        if entry is not None:
                            found.append(entry)
                if left == 0 or others is None:
                    break
                left -= 1
                shape = others[left]
            if next_known is not None:
                prefix = next_prefix
                known = next_known
                depth = next_depth
                next_known = None
            elif later:
                prefix, known, depth = later.pop()
            else:
                break
        self.probes += probes

    # Without compaction.

    def _add_prefixes(self, topic_filter: str) -> None:
        counts = self._counts
        at = topic_filter.find("/")
        while at >= 0:
            prefix = topic_filter[:at]
            count = counts.get(prefix, 0)
            if count == 0:
                self.nodes += 1
                self.bytes += PREFIX_BYTES + text_bytes(prefix)
            counts[prefix] = count + 1
            at = topic_filter.find("/", at + 1)

    def _discard_prefixes(self, topic_filter: str) -> None:
        counts = self._counts
        at = topic_filter.find("/")
        while at >= 0:
            prefix = topic_filter[:at]
            left = counts[prefix] - 1
            if left > 0:
                counts[prefix] = left
            else:
                del counts[prefix]
                self.nodes -= 1
                self.bytes -= PREFIX_BYTES + text_bytes(prefix)
            at = topic_filter.find("/", at + 1)

    def _match_prefixes(self, topic: str, found: list[FilterEntry]) -> None:
        filters = self._filters
        counts = self._counts
        probes = 0
        levels = topic.split("/")
        end = len(levels)
        # Paths to go on with: a spelt prefix, whether it has a "+", and how many levels it covers.
        later: list[str] = []
        later_wild: list[bool] = []
        later_depth: list[int] = []
        if not topic.startswith("$"):  # [MQTT-4.7.2-1]
            probes += 1
            entry = filters.get("#")
            if entry is not None:
                found.append(entry)
            later.append("+")
            later_wild.append(True)
            later_depth.append(1)
        later.append(levels[0])
        later_wild.append(False)
        later_depth.append(1)
        while later:
            path = later.pop()
            wild = later_wild.pop()
            depth = later_depth.pop()
            if depth == end and wild:
                probes += 1
                entry = filters.get(path)
                if entry is not None:
                    found.append(entry)
            probes += 1
            if path not in counts:
                continue
            probes += 1
            entry = filters.get(path + "/#")
            if entry is not None:
                found.append(entry)
            if depth < end:
                path += "/"
                later.append(path + "+")
                later_wild.append(True)
                later_depth.append(depth + 1)
                later.append(path + levels[depth])
                later_wild.append(wild)
                later_depth.append(depth + 1)
        self.probes += probes


def _cut(topic_filter: str) -> list[tuple[str, int]]:
    """The prefixes of a wildcard filter, from "" on, each ending with "/", and the shape that follows each."""
    found: list[tuple[str, int]] = []
    literals = 0
    begin = 0
    prefix = ""
    size = len(topic_filter)
    while True:
        at = topic_filter.find("/", begin)
        end = size if at < 0 else at
        if end - begin == 1:
            sign = topic_filter[begin:end]
            if sign == "#":
                found.append((prefix, literals * KINDS + HASH))
                return found
            if sign == "+":
                found.append((prefix, literals * KINDS + (PLUS_LAST if at < 0 else PLUS_ON)))
                if at < 0:
                    return found
                begin = at + 1
                prefix = topic_filter[:begin]
                literals = 0
                continue
        literals += 1
        if at < 0:
            found.append((prefix, literals * KINDS + ENDS))
            return found
        begin = at + 1


Trie = NodeTrie | CompactTrie
"""Either layout: both have the same methods and counts."""
