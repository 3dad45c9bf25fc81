"""The match cache: the trie's results for recently published topics.

`MatchCache` is in front of a trie, and filters are added to and removed from the trie through it. Its results are
`Route` objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.topic_names import has_control, is_within, matches
from broker.core.topics.route import Changes, Route
from broker.core.topics.subscription import FilterEntry, Subscription
from broker.core.topics.topic_tree import RetainedTree
from broker.core.topics.trie_base import Trie

if TYPE_CHECKING:
    from mypy_extensions import i64

# Topics longer than this are looked up in the trie each time: 10,000 of the longest names would be 655 MB of keys.
LONGEST_TOPIC: Final = 1024

# The doorkeeper (as in TinyLFU) remembers one byte of a hash in each of so many places for each route. A byte that is
# equal by chance (1 in 255) admits a newcomer early, and nothing worse. Two topics that share a place could keep each
# other out for ever, so that one in so many newcomers is admitted at random.
DOORKEEPER_PLACES: Final = 4
DOORKEEPER_MOST: Final = 1 << 20  # bytes
RANDOM_ADMISSION: Final = 32


# Cached topics that a new filter matches are found in batches of so many; a cursor bounds what it does for each.
STEP: Final = 16

# A new filter is added to no more than about so many routes, found in about so many steps (levels looked at): less than
# half a millisecond compiled. A client can send 10,000 such filters in one read. A filter beyond these bounds is wide:
# each route compares its topic with it when it is next looked up (0.3 us).
EXTEND_MOST: Final = 1024
WALK_MOST: Final = 4096

# Wide filters that the cache remembers for routes that were not looked up since. A route that lacks an earlier one is
# matched by the trie again.
MAX_WIDE: Final = 16

# Routes that are forgotten all at once are let go of at once when they are so few (0.2 ms), and else some of them with
# each topic that is remembered: 100,000 are 20 ms in one call.
FORGET_AT_ONCE: Final = 1_024
LET_GO: Final = 4

# References (to filters, and to subscribers in plans) that all routes together may hold. Without this bound, 10,000
# topics that 4,000 subscribers of "#" see would hold 40 million.
MAX_WEIGHT: Final = 2_000_000

# What a level of the tree of cached topics weighs, in references of 8 bytes. Measured: 100 to 200 bytes compiled, 180
# to 280 interpreted. Without it, 16,384 topics of 128 levels would take 350 MB.
NODE_WEIGHT: Final = 20


class Remains:
    """Routes of a discarded cache that are not freed yet."""

    def __init__(self, routes: dict[bytes, Route], index: RetainedTree, clock: list[Route | None]) -> None:
        self.routes = routes
        self._index = index
        self._clock = clock

    def let_go(self, most: i64) -> bool:
        """Let go of so many, about; True when there is nothing left."""
        clock = self._clock
        while clock and most > 0:
            most -= 1
            route = clock.pop()
            if route is not None:
                del self.routes[route.topic]
                self._index.remove(str(route.topic, "utf-8"))
        return not clock


class MatchCache:
    """A trie with a cache of its results. Insert and remove filters here, not in the trie behind it.

    Promises:
    - An answer is always what the trie would say now. A route holds live entries: subscribers that come and go at a
      filter change the entry's version and never touch the cache. A filter that is new to the trie is added to the
      routes of the topics it matches, and no others are looked at: a tree of the cached topics leads to them, so that
      the cost follows what matches and not the size of the cache. A wide one, which matches more than `EXTEND_MOST` of
      them or makes the search longer than `WALK_MOST`, is added to the others when they are next looked up: a new
      filter costs no more than that, whatever is remembered, and no route is forgotten for it.
    - A look-up leaves no trace of a filter that has left: its entry leaves the route, and what was computed with it
      goes too. This costs one comparison while nobody subscribes or unsubscribes. The same filter coming back is a new
      filter with a new entry.
    - What is forgotten all at once (`clear`) leaves the memory as others come, `LET_GO` for each: there is never more
      in it than there was.
    - Bounded: at most `max_topics` routes, and at most `max_weight` references held by them all, the router's plans
      included, and the names and the levels of the tree of topics as what they weigh; none for a topic name longer than
      `LONGEST_TOPIC` bytes.
    - A flood of topics that never come back costs little and evicts nothing that is used. When the cache is full, a
      topic gets in on its second miss, if the doorkeeper still remembers the first; and the routes stand on a clock,
      whose hand passes over a route that was used since it last came by, once, and evicts the first that was not.
    """

    def __init__(self, trie: Trie, max_topics: int, max_weight: int = MAX_WEIGHT) -> None:
        """`max_topics`: how many topics to remember; 0 turns the cache off. `max_weight`: see `charge`."""
        self.trie = trie
        self.max_topics = max_topics
        self.max_weight = max_weight
        # No topic at or below this one is remembered ("": any is). What is remembered any client may publish to, as far
        # as access control lets it; who may publish here is asked about each message.
        self.guarded = b""
        # Whether names with control characters are.
        self.controls = True
        # What is recorded: filters that are not subscriptions. Set while nothing is remembered.
        self.taps: Trie | None = None
        self.weight: int = 0  # of all remembered routes and of the tree that finds them
        # As long as the count stands still, no version of an entry needs to be looked at.
        self.changes = Changes()
        # Counters since the start.
        self.hits: i64 = 0
        self.misses: int = 0
        self.evicted: int = 0  # to make room
        self.extended: i64 = 0  # because of a new filter
        self.walked: i64 = 0  # levels looked at to find them
        self.outdated: i64 = 0  # to be compared with a wide filter at the next look-up
        self.turned_away: int = 0  # by the doorkeeper of the full cache, those admitted at random counted with them
        self._routes: dict[bytes, Route] = {}
        self._index = RetainedTree()
        self._clock: list[Route | None] = []
        self._free: list[int] = []  # places on the clock that dropped routes left
        self._hand: int = 0
        self._remains: list[Remains] = []
        # Wide filters by their number, and the number of the last one that was left out for a newer one.
        self._wide: dict[i64, FilterEntry] = {}
        self._wide_lost: i64 = 0
        self._doorkeeper = bytearray(min(max(max_topics, 1) * DOORKEEPER_PLACES, DOORKEEPER_MOST))

    def __len__(self) -> int:
        """How many routes are remembered."""
        return len(self._routes)

    def lookup(self, topic: bytes) -> Route | None:
        """The cached route of a topic (UTF-8), or None."""
        route = self._routes.get(topic)
        if route is not None:
            route.used = True
            self.hits += 1
            if route.as_of != self.changes.count:
                self._refresh(route)
        return route

    def held(self, topic: bytes) -> Route | None:
        """The remembered route of a topic as it stands: no use, no hit, and perhaps out of date."""
        return self._routes.get(topic)

    def knows(self, topic: bytes) -> bool:
        """Whether the route of a topic is cached. It counts as no use and no hit."""
        return topic in self._routes

    def peek(self, topic: bytes) -> Route:
        """The route of a topic, for inspection: no use, no hit, nothing is cached or mended.

        It is the remembered one while that is as a look-up would leave it, else one of its own.
        """
        remembered = self._routes.get(topic)
        if remembered is not None and remembered.as_of == self.changes.count:
            return remembered
        probes = self.trie.probes
        name = str(topic, "utf-8")
        route = Route(topic, self.trie.match(name), self.changes)
        self.trie.probes = probes
        if remembered is not None:
            # What is known of the members of share groups goes on.
            route.reach = remembered.reach
        if self.taps is not None:
            route.tapped = len(self.taps.match(name)) > 0
        return route

    def store(self, topic: bytes) -> Route:
        """Match a topic that `lookup` did not know, and cache the result if the limits allow it.

        The topic is a valid name in valid UTF-8.
        """
        self.misses += 1
        name = str(topic, "utf-8")
        route = Route(topic, self.trie.match(name), self.changes)
        if self.taps is not None:
            route.tapped = len(self.taps.match(name)) > 0
        if self.max_topics <= 0 or len(topic) > LONGEST_TOPIC or self._alone(route) > self.max_weight:
            return route
        if (self.guarded and is_within(topic, self.guarded)) or (not self.controls and has_control(name)):
            return route
        if len(self._routes) < self.max_topics or self._admits(topic):
            self._remember(name, route)
        return route

    def route(self, topic: bytes) -> Route:
        """The route of a topic, from the cache or from the trie."""
        route = self.lookup(topic)
        return self.store(topic) if route is None else route

    def charge(self, route: Route, references: int) -> None:
        """The route's plan now holds this many references, which count against the cache's limit.

        Others make room. A route that is too heavy by itself is forgotten: its plan serves once.
        """
        if self._routes.get(route.topic) is not route:
            return
        self._weigh(route, route.name_weight + len(route.entries) + references)

    def _weigh(self, route: Route, weight: int) -> None:
        """Have a remembered route weigh so much; see `charge`."""
        self.weight += weight - route.weight
        route.weight = weight
        if self._alone(route) > self.max_weight:
            self._forget(route)
            self.evicted += 1
            return
        route.used = True
        while self.weight > self.max_weight:
            self._evict(route)

    def insert(self, topic_filter: str) -> FilterEntry:
        """The entry of a filter, created if it does not exist; the routes that it matches get it too."""
        trie = self.trie
        before = trie.made
        entry = trie.insert(topic_filter)
        if trie.made != before and self._routes:
            self._extend(entry)
        return entry

    def add(self, entry: FilterEntry, subscription: Subscription, group_name: str = "") -> None:
        """`FilterEntry.add`, and the plans made of the entry are checked again."""
        entry.add(subscription, group_name)
        self.changes.count += 1

    def discard(self, entry: FilterEntry, subscription: Subscription) -> bool:
        """`FilterEntry.discard`, in the same way."""
        self.changes.count += 1
        return entry.discard(subscription)

    def touch(self, entry: FilterEntry, subscription: Subscription) -> None:
        """`FilterEntry.touch`, in the same way: the options of a subscription have changed in place."""
        entry.touch(subscription)
        self.changes.count += 1

    def remove(self, topic_filter: str) -> bool:
        """Remove a filter from the trie; False if it is not there.

        Raises:
            ValueError: somebody still listens at it.
        """
        removed = self.trie.remove(topic_filter)
        self.changes.count += 1
        for number, entry in list(self._wide.items()):
            if entry.retired:
                del self._wide[number]
        return removed

    @property
    def left(self) -> int:
        """How many routes are forgotten and still in memory."""
        return sum([len(remains.routes) for remains in self._remains])

    def clear(self) -> None:
        """Discard all routes."""
        if len(self._clock) > FORGET_AT_ONCE:
            self._remains.append(Remains(self._routes, self._index, self._clock))
        self._routes = {}
        self._index = RetainedTree()
        self._clock = []
        self._free = []
        self._hand = 0
        self._wide = {}
        self.weight = 0

    def _admits(self, topic: bytes) -> bool:
        """Whether a topic may get into the full cache; from now on the doorkeeper remembers it."""
        doorkeeper = self._doorkeeper
        number = hash(topic)
        place = number % len(doorkeeper)
        mark = (number >> 32) % 255 + 1
        if doorkeeper[place] == mark:
            return True
        doorkeeper[place] = mark
        self.turned_away += 1
        return self.turned_away % RANDOM_ADMISSION == 0

    def _alone(self, route: Route) -> int:
        """What the cache would weigh with nothing but this route in it."""
        return route.weight + (route.topic.count(b"/") + 1) * NODE_WEIGHT

    def _remember(self, name: str, route: Route) -> None:
        clock = self._clock
        routes = self._routes
        if self._remains and self._remains[-1].let_go(LET_GO):
            self._remains.pop()
        while len(routes) >= self.max_topics:
            self._evict(None)
        if self._free:
            place = self._free.pop()
            clock[place] = route
        else:
            place = len(clock)
            clock.append(route)
        route.place = place
        routes[route.topic] = route
        index = self._index
        levels = index.node_count
        index.set(name, route)
        # Only now is it known how many levels it does not share with others.
        self.weight += route.weight + (index.node_count - levels) * NODE_WEIGHT
        while self.weight > self.max_weight:
            self._evict(route)

    def _evict(self, spared: Route | None) -> None:
        """Forget one route, not the spared one. The hand clears, once, each mark that a hit set."""
        clock = self._clock
        place = self._hand
        while True:
            if place >= len(clock):
                place = 0
            route = clock[place]
            place += 1
            if route is None or route is spared:
                continue
            if not route.used:
                break
            route.used = False
        self._hand = place
        self._forget(route)
        self.evicted += 1

    def _forget(self, route: Route) -> None:
        del self._routes[route.topic]
        index = self._index
        levels = index.node_count
        index.remove(str(route.topic, "utf-8"))
        place = route.place
        self._clock[place] = None
        self._free.append(place)
        route.place = -1
        self.weight -= route.weight + (levels - index.node_count) * NODE_WEIGHT

    def _extend(self, entry: FilterEntry) -> None:
        """Add the entry of a new filter to the routes of the topics that it matches."""
        topic_filter = entry.topic_filter
        if not ("+" in topic_filter or "#" in topic_filter):
            route = self._routes.get(topic_filter.encode())
            if route is not None:
                self._extend_route(route, entry)
        else:
            cursor = self._index.walk(topic_filter)
            found = 0
            while not cursor.done:
                if found >= EXTEND_MOST or cursor.steps >= WALK_MOST:
                    self._put_off(entry)
                    break
                for node in cursor.take(STEP):
                    cached = node.value
                    if isinstance(cached, Route):
                        self._extend_route(cached, entry)
                        found += 1
            self.walked += cursor.steps
        while self.weight > self.max_weight:
            self._evict(None)

    def _extend_route(self, route: Route, entry: FilterEntry) -> None:
        grown = route.extend(entry)
        route.weight += grown
        self.weight += grown
        self.extended += 1

    def _put_off(self, entry: FilterEntry) -> None:
        """Have each route be compared with the entry of a wide filter when it is next looked up."""
        wide = self._wide
        if len(wide) >= MAX_WIDE:
            oldest = next(iter(wide))
            del wide[oldest]
            self._wide_lost = oldest
        self.changes.count += 1
        self.changes.wide += 1
        self.outdated += len(self._routes)
        wide[self.changes.wide] = entry

    def _refresh(self, route: Route) -> None:
        """Have a remembered route hold the filters that match now, and nothing that was computed with other ones."""
        before = len(route.entries)
        if route.wide_seen != self.changes.wide:
            self._compare(route)
        route.version()
        if route.as_of != self.changes.count:
            route.sweep()
            route.version()
        count = len(route.entries)
        weight = route.weight + count - before
        if count < before and count < 2:
            # A plan is for several filters.
            route.plan = None
            weight = route.name_weight + count
        if weight != route.weight:
            self._weigh(route, weight)

    def _compare(self, route: Route) -> None:
        """Add the wide filters that a route lacks and that match its topic."""
        name = str(route.topic, "utf-8")
        if route.wide_seen < self._wide_lost:
            route.sweep()
            # What is left is among these, so that the version does not go back.
            route.entries = self.trie.match(name)
        else:
            for number, entry in self._wide.items():
                if number > route.wide_seen and matches(entry.topic_filter, name) and entry not in route.entries:
                    route.entries.append(entry)
        route.wide_seen = self.changes.wide
