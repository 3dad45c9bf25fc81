"""A tree of topic names with a value for each, searched by topic filter.

The retained messages are in a `TopicTree` (section 3.3.1.3), and the match cache has another one to find the cached
topics that a new filter matches. Values are opaque. Topics and filters are valid, and the caller handles expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

# Steps of a walk for each node asked for, and at least: what `take` may look at without finding anything.
STEPS_EACH: Final = 16
STEPS_LEAST: Final = 256

# What a level of the tree costs. Measured, with names of its own: 100 bytes in a chain of only children and up to 270
# with several children everywhere, compiled; 180 and 380 interpreted. A topic of 255 bytes can have 128 of them.
NODE_BYTES: Final = 256

# A node with this many dead children among the ordered ones, and more dead than alive, has them ordered afresh.
DEAD_LEAST: Final = 16


class TopicNode:
    """One topic, or a level above topics. Readers use `topic`, `value`, `level`, `published`, and the number below."""

    def __init__(self, level: str, born: i64, reserved: bool) -> None:
        self.topic: str = ""  # set with the first value
        self.value: object | None = None
        # The number of the publish that set the value and went to subscribers as well; 0: none did.
        self.published: i64 = 0
        self.level = level
        self.born: i64 = born
        self.reserved = reserved  # the first level of topics that begin with "$"
        # One child stands here itself: most levels of most trees have one ("device/{id}/state").
        self.below: TopicNode | Children | None = None

    def is_bare(self) -> bool:
        """Return whether nothing needs this node any more."""
        return self.value is None and self.below is None

    def child(self, level: str) -> TopicNode | None:
        below = self.below
        if isinstance(below, TopicNode):
            return below if below.level == level else None
        if isinstance(below, Children):
            return below.children.get(level)
        return None

    def children(self) -> list[TopicNode]:
        """All children, in no particular order: a list of its own."""
        below = self.below
        if isinstance(below, TopicNode):
            return [below]
        if isinstance(below, Children):
            return list(below.children.values())
        return []

    def child_count(self) -> int:
        """Return how many children there are."""
        below = self.below
        if isinstance(below, Children):
            return len(below.children)
        return 0 if below is None else 1

    def insert(self, child: TopicNode) -> None:
        below = self.below
        if below is None:
            self.below = child
            return
        if isinstance(below, TopicNode):
            only = below
            below = Children()
            below.insert(only)
            self.below = below
        below.insert(child)

    def remove(self, child: TopicNode) -> None:
        below = self.below
        if isinstance(below, Children):
            below.remove(child)
            if len(below.children) == 1:
                # The node stands here itself, as if it never had one beside it. A cursor knows its place by number.
                self.below = next(iter(below.children.values()))
        else:
            self.below = None


class Children:
    """The children of a node that has several: by level, and, once a cursor visits it, in the order of creation."""

    def __init__(self) -> None:
        self.children: dict[str, TopicNode] = {}
        # In order of birth, dead ones perhaps among them. The list only grows, until it is replaced.
        self.ordered: list[TopicNode] | None = None
        self.dead: int = 0

    def insert(self, child: TopicNode) -> None:
        self.children[child.level] = child
        if self.ordered is not None:
            self.ordered.append(child)

    def remove(self, child: TopicNode) -> None:
        del self.children[child.level]
        ordered = self.ordered
        if ordered is not None:
            self.dead += 1
            if self.dead >= DEAD_LEAST and self.dead * 2 > len(ordered):
                self.ordered = None


class TopicTree:
    """Topics with a value each: see the top of this file.

    Promises:
    - `set`, `get` and `remove` cost one dict look-up a level. `remove` takes away every level that leads nowhere else.
    - A walk descends only where the filter can match; it never looks at the rest of the tree.
    - A walk is a cursor: take a few, do something else, take more. The tree may change in any way between: nothing is
      raised, no topic comes twice, and a topic that had a value from the first step to the last comes. One that was set
      or cleared meanwhile may come or not, at most once. One that came and is cleared before it is read has value None.
    - A step is bounded too: a filter that matches little in a wide tree gives short or empty batches, not a long stall.

    How a walk survives changes: nodes are numbered as they are created, and the children of a node stand in that order,
    so that a cursor's place among them is a number and not a position. Nodes younger than the cursor are passed over:
    they can hold only topics that were not there when it began, or were taken out and came back. A node that was taken
    out has no value and no children, so that a walk that still meets it finds nothing.
    """

    def __init__(self) -> None:
        self.root = TopicNode("", 0, False)
        self.youngest: i64 = 0  # the number of the node that was created last, for a walk that begins later (`walk`)
        self.published: i64 = 0  # the number of the last publish that set a value (`TopicNode.published`)
        self.node_count: int = 0  # levels; 0 when it has no topics
        self._values: int = 0

    def __len__(self) -> int:
        """Return how many topics have a value."""
        return self._values

    def missing(self, topic: str) -> int:
        """Return how many levels `set` would add for a topic."""
        node = self.root
        levels = topic.split("/")
        for there, level in enumerate(levels):
            child = node.child(level)
            if child is None:
                return len(levels) - there
            node = child
        return 0

    def _node(self, topic: str) -> TopicNode | None:
        node = self.root
        for level in topic.split("/"):
            child = node.child(level)
            if child is None:
                return None
            node = child
        return node

    def get(self, topic: str) -> object | None:
        """The value of a topic, or None."""
        node = self._node(topic)
        return None if node is None else node.value

    def below(self, topic: str | None) -> list[TopicNode]:
        """The levels right below a topic, or the first levels (None), in no particular order: a list of its own.

        It costs as much as there are. The nodes are good until something is set or removed.
        """
        node = self.root if topic is None else self._node(topic)
        return [] if node is None else node.children()

    def set(self, topic: str, value: object, published: bool = False) -> object | None:
        """Give a topic a value; the one it had before, or None. `published`: subscribers were sent it as well."""
        root = self.root
        node = root
        for level in topic.split("/"):
            child = node.child(level)
            if child is None:
                self.youngest += 1
                self.node_count += 1
                child = TopicNode(level, self.youngest, node is root and level.startswith("$"))
                node.insert(child)
            node = child
        previous = node.value
        if previous is None:
            self._values += 1
            node.topic = topic
        node.value = value
        if published:
            self.published += 1
            node.published = self.published
        else:
            node.published = 0
        return previous

    def sent(self, topic: str, published: i64) -> None:
        """Say that the value of a topic was sent to subscribers, as the publish of this number."""
        node = self._node(topic)
        if node is not None:
            node.published = published

    def remove(self, topic: str) -> object | None:
        """Take a topic's value away; the value, or None where there was none."""
        path: list[TopicNode] = []
        node = self.root
        for level in topic.split("/"):
            child = node.child(level)
            if child is None:
                return None
            path.append(node)
            node = child
        previous = node.value
        if previous is None:
            return None
        node.value = None
        self._values -= 1
        # Up, as long as a level has neither a value nor children.
        while path and node.is_bare():
            parent = path.pop()
            parent.remove(node)
            self.node_count -= 1
            node = parent
        return previous

    def leads_to(self, topic_filter: str) -> bool:
        """False where no topic can match a filter: the levels before its first wildcard lead nowhere."""
        if self._values == 0:
            return False
        node = self.root
        size: i64 = len(topic_filter)
        at: i64 = 0
        # Level by level, and not all of them at once: most filters lead nowhere with their first.
        while at <= size:
            end: i64 = topic_filter.find("/", at)
            if end < 0:
                end = size
            level = topic_filter[at:end]
            below = node.below
            if level == "+" or level == "#":
                return below is not None or node.value is not None
            child: TopicNode | None = None
            if isinstance(below, TopicNode):
                if below.level == level:
                    child = below
            elif below is not None:
                child = below.children.get(level)
            if child is None:
                return False
            node = child
            at = end + 1
        return node.value is not None

    def walk(self, topic_filter: str) -> TopicCursor:
        """A cursor over the topics that match a well-formed filter, in no particular order."""
        return TopicCursor(self, topic_filter, self.youngest)

    def matching(self, topic_filter: str) -> list[TopicNode]:
        """All nodes that match a filter, at once. For short answers; a client's subscription wants `walk`."""
        found: list[TopicNode] = []
        cursor = self.walk(topic_filter)
        while not cursor.done:
            found.extend(cursor.take(1_000_000))
        return found


class Frame:
    """A cursor's position among the children of one node."""

    def __init__(self, node: TopicNode, at: int, deep: bool) -> None:
        self.node = node
        self.at = at  # the index of the filter level that the children have met
        self.deep = deep  # under "#": everything below counts
        self.index: int = 0  # a guess, right as long as the ordered list is the same
        self.after: i64 = 0  # the number of the last child seen; 0 for none


class TopicCursor:
    """A search in progress. It holds no lock and needs no closing: drop it when it is no longer needed.

    `youngest`: it passes over what was created after that node, as if it had begun then. `reserved`: a leading wildcard
    sees topics that begin with `$`, too.
    """

    def __init__(self, tree: TopicTree, topic_filter: str, youngest: i64, reserved: bool = False) -> None:
        self.topic_filter = topic_filter
        self.done: bool = False
        self.steps: int = 0  # nodes looked at so far
        self._levels = topic_filter.split("/")
        self._youngest = youngest
        self._reserved = reserved
        self._frames: list[Frame] = []
        self._ready: list[TopicNode] = []
        # Where the walk begins; None once it has begun.
        self._root: TopicNode | None = tree.root

    def take(self, limit: int) -> list[TopicNode]:
        """Return at most `limit` nodes (≥ 1) with values, none of which came before; `done` says if more may come.

        A batch can be short or empty with more to come, because the work of one call is bounded: go on until `done`.
        """
        found: list[TopicNode] = []
        budget = limit * STEPS_EACH
        if budget < STEPS_LEAST:
            budget = STEPS_LEAST
        frames = self._frames
        ready = self._ready
        levels = self._levels
        # A node that the filter's first `at` levels lead to, from where the walk goes on.
        entered = self._root
        at = 0
        self._root = None
        while True:
            while entered is not None:
                # Literal levels of the filter are followed without a frame for each.
                self.steps += 1
                budget -= 1
                node = entered
                entered = None
                if at == len(levels):
                    ready.append(node)
                    break
                level = levels[at]
                below = node.below
                if level == "#":
                    if at > 0:
                        ready.append(node)  # "a/#" matches "a"
                    if below is not None:
                        frames.append(Frame(node, 0, True))
                elif level == "+":
                    if below is not None:
                        frames.append(Frame(node, at, False))
                elif isinstance(below, TopicNode):
                    if below.level == level:
                        entered = below
                elif below is not None:
                    entered = below.children.get(level)
                at += 1
            while ready:
                if len(found) >= limit:
                    return found
                node = ready.pop()
                if node.value is not None:
                    found.append(node)
            if not frames:
                self.done = True
                return found
            if budget <= 0 or len(found) >= limit:
                return found
            budget -= 1
            frame = frames[-1]
            # The next child of the frame's node, found without a call for each.
            child: TopicNode | None = None
            below = frame.node.below
            if isinstance(below, TopicNode):
                if frame.after < below.born <= self._youngest and (self._reserved or not below.reserved):
                    frame.after = below.born
                    child = below
            elif below is not None:
                ordered = below.ordered
                if ordered is None:
                    # A dict keeps the order of insertion, which is that of birth.
                    ordered = list(below.children.values())
                    below.ordered = ordered
                    below.dead = 0
                index = frame.index
                after = frame.after
                if index > len(ordered) or (index > 0 and ordered[index - 1].born != after) or (index == 0 < after):
                    index = _first_after(ordered, after)
                while index < len(ordered):
                    candidate = ordered[index]
                    if candidate.born > self._youngest:
                        break
                    index += 1
                    # [MQTT-4.7.2-1]: a leading wildcard sees no topic that begins with $.
                    if self._reserved or not candidate.reserved:
                        frame.index = index
                        frame.after = candidate.born
                        child = candidate
                        break
            if child is None:
                frames.pop()
            elif frame.deep:
                self.steps += 1
                ready.append(child)
                if child.below is not None:
                    frames.append(Frame(child, 0, True))
            else:
                entered = child
                at = frame.at + 1


def _first_after(ordered: list[TopicNode], born: i64) -> int:
    """The index of the first node younger than that; the list is in order of birth."""
    low = 0
    high = len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle].born <= born:
            low = middle + 1
        else:
            high = middle
    return low
