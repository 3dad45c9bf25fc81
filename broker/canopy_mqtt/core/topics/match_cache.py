"""The match cache: the trie's results for recently published topics.

`MatchCache` is in front of a trie, and filters are added to and removed from the trie through it. Its results are
`Route` objects, which list the recipients of a topic: `routing.recipients` fills them, and the fan-out reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.topic_names import has_control, is_within
from canopy_mqtt.core.topics.subscription import FilterEntry, Recipient, SharedGroup, Subscription
from canopy_mqtt.core.topics.topic_tree import TopicCursor, TopicTree
from canopy_mqtt.core.topics.trie import Trie

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.principal import Principal
    from canopy_mqtt.core.routing.verdicts import Barred, Verdicts
    from canopy_mqtt.core.session.session import Session

# Topics longer than this are looked up in the trie each time: 10,000 of the longest names would be 655 MB of keys.
MAX_TOPIC: Final = 1024

# The doorkeeper (as in TinyLFU) remembers one byte of a hash in each of these places for each route. A byte that is
# equal by chance (1 in 255) admits a newcomer early, and nothing worse. Two topics that share a place could keep each
# other out for ever, so that one in this number of newcomers is admitted at random.
DOORKEEPER_PLACES: Final = 4
MAX_DOORKEEPER_BYTES: Final = 1 << 20  # bytes
RANDOM_ADMISSION: Final = 32


# Routes of at most this many entries are swept of retired ones whenever they grow.
MIN_SWEPT_ENTRIES: Final = 8

# Cached topics that a new filter matches are found in batches of this size; a cursor bounds what it does for each.
STEP: Final = 16

# A new filter is added to no more than about this number of routes, found in about this number of steps (levels looked
# at): less than half a millisecond compiled. A client can send 10,000 such filters in one read. A filter beyond these
# bounds is wide: each route is matched by the trie again when it is next looked up (0.5 us).
MAX_EXTENDED: Final = 1024
MAX_WALKED: Final = 4096

# References (to filters, and to recipients) that all routes together may hold. Without this bound, 10,000
# topics that 4,000 subscribers of "#" see would hold 40 million.
MAX_WEIGHT: Final = 2_000_000

# What a level of the tree of cached topics weighs, in references of 8 bytes. Measured: 100 to 200 bytes compiled, 180
# to 280 interpreted. Without it, 16,384 topics of 128 levels would take 350 MB.
NODE_WEIGHT: Final = 20


MAX_CHANGES_KEPT: Final = 256
"""Changes of subscriptions that are remembered, the latest, while there are routes to mend; twice as many at most."""

NAME_BYTES: Final = 2
"""Bytes of a topic name, beyond the first ones, that weigh as much as a reference: the name is kept as a key and, level
by level, in the tree. Without it, 16,384 topics of 1,000 bytes would take 58 MB. What is counted is what one client can
make of it, which is also what it may grow the process by: 16 MB."""

SHORT_NAME_BYTES: Final = 64
"""Bytes of a topic name that the weight of a level has room for."""

NO_RECIPIENTS: Final[list[Recipient]] = []
NO_GROUPS: Final[list[SharedGroup]] = []


class Changes:
    """Counts the changes of all subscriptions and filters; remembers the latest while a route may be mended by them."""

    def __init__(self) -> None:
        self.count: i64 = 0
        # How many new filters were so wide that routes are matched again when they are next looked up.
        self.wide: i64 = 0
        self.kept = False
        # The changes after the first `_begin`: where, and whose subscription; None: nothing that a recipient shows.
        self.entries: list[FilterEntry | None] = []
        self.sessions: list[Session | None] = []
        self._begin: i64 = 0

    def remember(self, entry: FilterEntry | None, session: Session | None) -> None:
        """Remember the change that was counted last, of this session's subscription to a filter if it is of one.

        Call it while changes are `kept`.
        """
        self.entries.append(entry)
        self.sessions.append(session)
        if len(self.sessions) > 2 * MAX_CHANGES_KEPT:
            self._begin += MAX_CHANGES_KEPT
            del self.entries[:MAX_CHANGES_KEPT]
            del self.sessions[:MAX_CHANGES_KEPT]

    def keep(self) -> None:
        """Remember the changes from now on."""
        if not self.kept:
            self.kept = True
            self._begin = self.count

    def forget(self) -> None:
        """Remember none any more."""
        self.kept = False
        self.entries = []
        self.sessions = []

    def since(self, count: i64) -> i64:
        """Return the index in `entries` and `sessions` of the first change after this count; -1: it is forgotten."""
        if not self.kept or count < self._begin:
            return -1
        return count - self._begin


class Route:
    """The recipients of one topic, and what they were computed from: its filters, at a count of changes and a stamp.

    `Fanout.route` is the way to one that is up to date.
    """

    def __init__(self, topic: bytes, entries: list[FilterEntry], changes: Changes) -> None:
        # What each message reads. The recipients are right while `as_of` is the count of all changes (`Changes.count`)
        # and `stamp` that of the permissions; else `Fanout.route` has them looked at, and computed anew if `built_of`
        # is not `version` any more.
        self.as_of: i64 = -1
        self.stamp: i64 = -1
        # The one filter of a topic whose messages all of its subscribers may have, if it has no share group: bursts to
        # topics with the same key go on as one run.
        self.run_key: FilterEntry | None = None
        self.sole: Recipient | None = None  # the only receiver, if nothing else is to be done for a message
        # Those who may have the messages, without `sole`; to be read only: it may be a filter's own list.
        self.receivers: list[Recipient] = NO_RECIPIENTS
        self.groups: list[SharedGroup] = NO_GROUPS
        self.barred: Barred | None = None  # who may not have the messages
        self.listeners: i64 = 0  # ordinary subscriptions at the filters
        # Who may publish here, by the last answer: a principal, and the key of what was asked.
        self.publisher: Principal | None = None
        self.publish_key: i64 = -1
        self.topic = topic
        self.tapped = False  # whether messages of the topic are recorded
        self.used = False  # since the cache's clock hand last came by
        # False: `everyone` was not computed, since the filters have very many subscriptions.
        self.built = False
        self.own_list = False  # whether `everyone` is a list of its own, and not a filter's
        # All who subscribe, whatever they may have; empty where one filter has one subscription.
        self.everyone: list[Recipient] = NO_RECIPIENTS
        self.places: dict[Session, int] | None = None  # in `everyone`; made when it is first mended
        self.verdicts: Verdicts | None = None
        self.built_of: i64 = -1  # the version of the entries that `everyone` was computed from
        self.list_references: i64 = 0  # held by `everyone`, `places` and `groups`
        self.references: i64 = 0  # held by all this; set by `MatchCache.charge`
        # The cache's.
        self.entries = entries  # to be read only; retired ones may be among them until the route is looked up again
        self.place: int = -1  # on the clock; -1 when it is not cached (any more)
        # The sum of the entries' versions when they were last found to be those that match: as long as it stands still,
        # no entry changed.
        self.version: i64 = 0
        self.wide_seen: i64 = changes.wide  # how many wide filters there had been when it was last matched
        # What its topic weighs, here and in the tree that finds it, and the references held; see `MatchCache.charge`.
        self.name_weight: i64 = 1 + max(len(topic) - SHORT_NAME_BYTES, 0) // NAME_BYTES
        self.weight: i64 = self.name_weight + len(entries)
        self.past: i64 = 0  # the versions of entries that are no longer held, and how many there were
        self.swept: i64 = len(entries)  # how many were left when retired ones were last taken out

    def recipients(self) -> list[Recipient]:
        """Return those who may have the messages, in a list to be read only."""
        return self.receivers if self.sole is None else [self.sole]

    def sweep(self) -> None:
        """Take out the retired entries. The version grows with each: what was computed with it is not used again."""
        alive: list[FilterEntry] = []
        for entry in self.entries:
            if entry.retired:
                self.past += entry.version + 1
            else:
                alive.append(entry)
        if len(alive) < len(self.entries):
            self.entries = alive
        self.swept = len(alive)


class MatchCache:
    """A trie with a cache of its results. Subscriptions, and with them filters, come and go here, not in the trie.

    Promises:
    - An answer is always what the trie would say now. A route holds live entries: subscribers that come and go at a
      filter change the entry's version and never touch the cache. A filter that is new to the trie is added to the
      routes of the topics it matches, and no others are looked at: a tree of the cached topics leads to them, so that
      the cost follows what matches and not the size of the cache. A wide one, which matches more than `MAX_EXTENDED` of
      them or makes the search longer than `MAX_WALKED`, comes to the others when they are next looked up; no route is
      forgotten for it.
    - A look-up leaves no trace of a filter that has left: its entry leaves the route, and what was computed with it
      goes too. This costs one comparison while no client subscribes or unsubscribes. The same filter coming back is
      a new filter with a new entry.
    - Bounded: at most `max_topics` routes, and at most `max_weight` references held by them all, their recipients
      included, and the names and the levels of the tree of topics as what they weigh; none for a topic name longer than
      `MAX_TOPIC` bytes.
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
        self.outdated: i64 = 0  # to be matched again at the next look-up, because of a wide filter
        self.turned_away: int = 0  # by the doorkeeper of the full cache, those admitted at random counted with them
        self.routes: dict[bytes, Route] = {}  # as they stand, by topic: see `renew`
        self._index = TopicTree()
        self._clock: list[Route | None] = []
        self._free: list[int] = []  # places on the clock that dropped routes left
        self._hand: int = 0
        self._doorkeeper = bytearray(min(max(max_topics, 1) * DOORKEEPER_PLACES, MAX_DOORKEEPER_BYTES))

    def __len__(self) -> int:
        """Return how many routes are remembered."""
        return len(self.routes)

    def lookup(self, topic: bytes) -> Route | None:
        """Return the cached route of a topic (UTF-8) as it stands, or None: see `renew`."""
        route = self.routes.get(topic)
        if route is not None:
            route.used = True
            self.hits += 1
        return route

    def peek(self, topic: bytes) -> Route:
        """Match a topic for `observe.explain`: nothing is counted, cached or mended."""
        probes = self.trie.probes
        route = self._match(topic, str(topic, "utf-8"))
        self.trie.probes = probes
        return route

    def _match(self, topic: bytes, name: str) -> Route:
        route = Route(topic, self.trie.match(name), self.changes)
        if self.taps is not None:
            route.tapped = len(self.taps.match(name)) > 0
        return route

    def store(self, topic: bytes) -> Route:
        """Match a topic that `lookup` did not know, and cache the result if the limits allow it.

        The topic is a valid name in valid UTF-8.
        """
        self.misses += 1
        name = str(topic, "utf-8")
        route = self._match(topic, name)
        if self.max_topics <= 0 or len(topic) > MAX_TOPIC or self._alone(route) > self.max_weight:
            return route
        if (self.guarded and is_within(topic, self.guarded)) or (not self.controls and has_control(name)):
            return route
        if len(self.routes) < self.max_topics or self._admits(topic):
            self._remember(name, route)
        return route

    def route(self, topic: bytes) -> Route:
        """Return the route of a topic with the filters that match now, from the cache or from the trie."""
        route = self.lookup(topic)
        if route is None:
            route = self.store(topic)
        self.renew(route)
        return route

    def renew(self, route: Route) -> None:
        """Set the entries of a route to those that match now, and its version to the sum of theirs."""
        if route.wide_seen != self.changes.wide:
            # The route lacks a wide filter. What has left goes first, so that the version does not go back.
            route.sweep()
            route.entries = self.trie.match(str(route.topic, "utf-8"))
            route.wide_seen = self.changes.wide
        # Each entry's version only grows, so that an equal sum means that nothing changed. A new filter's entry comes
        # in with version 0 and no subscriber, and so changes nothing by itself.
        version: i64 = route.past
        retired: i64 = 0
        for entry in route.entries:
            version += entry.version
            if not entry.topic_filter:  # `retired`
                retired += 1
        if retired > 0:
            route.sweep()
        route.version = version + retired
        if route.weight != route.name_weight + len(route.entries) + route.references:
            self.charge(route, route.references)

    def charge(self, route: Route, references: i64) -> None:
        """Count the references that a route's recipients hold against the cache's limit.

        Others make room. A route that is too heavy by itself is forgotten: its recipients serve once.
        """
        route.references = references
        weight: i64 = route.name_weight + len(route.entries) + references
        if route.weight == weight or self.routes.get(route.topic) is not route:
            return
        self.weight += weight - route.weight
        route.weight = weight
        if self._alone(route) > self.max_weight:
            self._forget(route)
            self.evicted += 1
            return
        route.used = True
        while self.weight > self.max_weight:
            self._evict(route)

    def add(self, topic_filter: str, subscription: Subscription, group_name: str = "") -> FilterEntry:
        """Hang a subscription at its filter (`FilterEntry.add`), and count the change; return the filter's entry.

        A filter that is new comes into the trie, and into the routes that it matches.
        """
        trie = self.trie
        before: i64 = trie.count
        entry = trie.insert(topic_filter)
        if trie.count != before and self._index.leads_to(topic_filter):
            self._extend(entry)
        entry.add(subscription, group_name)
        changes = self.changes
        changes.count += 1
        if changes.kept:
            changes.remember(entry, None if group_name else subscription.session)
        return entry

    def discard(self, entry: FilterEntry, subscription: Subscription) -> None:
        """Take a subscription away from its entry (`FilterEntry.discard`), and count the change.

        The filter leaves the trie with its last subscription.
        """
        changes = self.changes
        changes.count += 1
        if changes.kept:
            changes.remember(entry, subscription.session if subscription.group is None else None)
        entry.discard(subscription)
        if entry.only is None and entry.many is None:
            self.trie.remove(entry)

    def touch(self, entry: FilterEntry, subscription: Subscription) -> None:
        """Count a change of a subscription's options in place."""
        entry.version += 1
        changes = self.changes
        changes.count += 1
        if changes.kept:
            changes.remember(entry, subscription.session if subscription.group is None else None)

    def clear(self) -> None:
        """Discard all routes. 16,384 take some milliseconds: for what an operator does, not for what a client can."""
        self.routes = {}
        self._index = TopicTree()
        self._clock = []
        self._free = []
        self._hand = 0
        self.weight = 0
        self.changes.forget()

    def _admits(self, topic: bytes) -> bool:
        """Return whether a topic may get into the full cache; from now on the doorkeeper remembers it."""
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
        """Return what the cache would weigh with nothing but this route in it."""
        return route.weight + (route.topic.count(b"/") + 1) * NODE_WEIGHT

    def _remember(self, name: str, route: Route) -> None:
        clock = self._clock
        routes = self.routes
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
        del self.routes[route.topic]
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
        cursor = TopicCursor(self._index, entry.topic_filter, self._index.youngest)
        found: i64 = 0
        while not cursor.done:
            if found >= MAX_EXTENDED or cursor.steps >= MAX_WALKED:
                # The filter is wide.
                changes = self.changes
                changes.count += 1
                if changes.kept:
                    changes.remember(None, None)
                changes.wide += 1
                self.outdated += len(self.routes)
                break
            for node in cursor.take(STEP):
                route = node.value
                assert isinstance(route, Route)
                before: i64 = len(route.entries)
                # A filter that comes and goes all the time must not pile up retired entries on a topic that no client
                # publishes to.
                if 0 < before <= MIN_SWEPT_ENTRIES or before > 2 * route.swept:
                    route.sweep()
                route.entries.append(entry)
                grown: i64 = len(route.entries) - before
                route.weight += grown
                self.weight += grown
                found += 1
        self.extended += found
        self.walked += cursor.steps
        while self.weight > self.max_weight:
            self._evict(None)
