"""The terms of queues: policies, the operator's rules, a client's own options, and the accounts of one subscription.

Owns `QueueTerms` (of one client's queues), `QueueRule` (changes for some clients), `RequestedTerms` and
`RequestedDelays` (asked for by a 5.0 client in user properties), what is granted of them, and `MessageTerms`.
Promises: a value without a meaning, an unknown name and a repeated name are reported and not ignored; a request above
the operator's limits is reduced to them, and the SUBACK says so. Other user properties are ignored.
"""

from __future__ import annotations

import fnmatch
import re
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.topic_names import covers
from canopy_mqtt.core.queue_totals import bound

if TYPE_CHECKING:
    from canopy_mqtt.core.limits import Limits
    from canopy_mqtt.core.queues.delivery import Delivery
    from canopy_mqtt.core.session.session import Session

DROP_NEWEST: Final = 0
"""A message that comes and does not fit is dropped."""
DROP_OLDEST: Final = 1
"""The messages that have waited longest make room. Messages in flight stay."""
DISCONNECT: Final = 2
"""The peer is told 0x97 and disconnected; its session keeps what a session keeps."""
LATEST: Final = 3
"""Of each topic only the newest waits, in the place where its first one stood. Full of topics: as `DROP_NEWEST`."""

POLICIES: Final[tuple[str, ...]] = ("drop-newest", "drop-oldest", "disconnect", "latest")
"""Their names in settings and user properties; the index is the policy."""

UNSET: Final = -1
"""A value that a rule, or a client in its queue options, does not set."""


OPTION_PREFIX: Final = "canopy-"
QUEUE_OPTION: Final = "canopy-queue"
MAX_AGE_OPTION: Final = "canopy-max-age"
DEPTH_OPTION: Final = "canopy-depth"
DELAY_OPTION: Final = "canopy-delay"

MAX_OPTION: Final = 4_294_967_295
"""The largest number of seconds, or messages, that may be asked for."""

MAX_DELAY_MS: Final = 1_000
"""The longest delay that a client may ask for, in milliseconds. Some hundreds are the most that is useful."""

MAX_NUMBER_LENGTH: Final = 16
"""Characters of a number."""

MAX_SHOWN: Final = 40
"""Characters of a bad name or value that the reason string repeats."""


MAX_STALE_PLACES: Final = 64
"""Entries of the order of age that may be stale before it is made anew."""


SHORT_AGE: Final = MAX_DELAY_MS / 1_000
"""A message that may wait for this number of seconds only waits for no others: a delay must not make it too old."""


class QueueTerms:
    """The terms of one client's queues. `max_age` in seconds; 0 is unlimited for all but `policy`."""

    def __init__(self, limits: Limits) -> None:
        """Begin with what the settings say for all clients."""
        self.policy = limits.queue_policy
        self.max_age = limits.queue_max_age
        self.live_messages = limits.live_messages
        self.live_bytes = limits.live_bytes
        self.session_messages = limits.session_messages
        self.session_bytes = limits.session_bytes


class QueueRule:
    """One rule. Patterns are shell patterns for the whole text; an empty one matches anything.

    `topic_filter`: the rule is for subscriptions whose filter this one covers. Times in seconds; 0 is unlimited, and
    `UNSET` leaves what earlier rules or the settings say.
    """

    def __init__(
        self,
        client_id: str = "",
        user: str = "",
        topic_filter: str = "",
        policy: int = UNSET,
        max_age: float = -1.0,
        depth: int = UNSET,
        live_messages: int = UNSET,
        live_bytes: int = UNSET,
        session_messages: int = UNSET,
        session_bytes: int = UNSET,
        max_delay: float = -1.0,
    ) -> None:
        self.client_id = re.compile(fnmatch.translate(client_id)) if client_id else None
        self.user = re.compile(fnmatch.translate(user)) if user else None
        self.topic_filter = topic_filter
        self.policy = policy
        self.max_age = max_age
        self.depth = depth
        self.live_messages = live_messages
        self.live_bytes = live_bytes
        self.session_messages = session_messages
        self.session_bytes = session_bytes
        self.max_delay = max_delay

    def applies_to(self, client_id: str, user_name: str | None) -> bool:
        """Return whether the client matches the patterns. One without a user name matches no user pattern."""
        if self.client_id is not None and self.client_id.match(client_id) is None:
            return False
        return self.user is None or (user_name is not None and self.user.match(user_name) is not None)


class SubscriptionTerms:
    """The terms of one subscription's messages. `max_age` in seconds, `depth` in messages; 0: unlimited."""

    def __init__(self, policy: int, max_age: float, depth: int = 0) -> None:
        self.policy = policy
        self.max_age = max_age
        self.depth = depth


class RequestedTerms:
    """The options that a subscriber requested (`read_options`). `UNSET`, or -1.0 for `max_age`: not requested.

    `delay` is in milliseconds, and about its connection.
    """

    def __init__(self, policy: int = UNSET, max_age: float = -1.0, depth: int = UNSET) -> None:
        self.policy = policy
        self.max_age = max_age
        self.depth = depth
        self.delay = UNSET

    def of_queue(self) -> RequestedTerms | None:
        """Return these options if any of them is about the subscription's own queue."""
        return None if self.policy == UNSET and self.max_age < 0.0 and self.depth == UNSET else self


class RequestedDelays:
    """The delays that the client of one connection requested, for its subscriptions and in its CONNECT.

    In milliseconds. The smallest holds for the whole connection, because its packets leave in one order.
    """

    def __init__(self) -> None:
        self.smallest: i64 = UNSET
        # Of each topic filter ("": of the CONNECT), and how many request each delay.
        self.of_filters: dict[str, int] = {}
        self._counts: dict[int, int] = {}

    @property
    def acknowledgements(self) -> bool:
        """Return whether the CONNECT requested one: then PUBACKs may wait as well."""
        return "" in self.of_filters

    def request(self, topic_filter: str, delay: int) -> None:
        """Note the delay that is requested for a topic filter from now on. `UNSET`: none."""
        counts = self._counts
        before = self.of_filters.pop(topic_filter, UNSET)
        if before != UNSET:
            counts[before] -= 1
            if counts[before] == 0:
                del counts[before]
        if delay != UNSET:
            self.of_filters[topic_filter] = delay
            counts[delay] = counts.get(delay, 0) + 1
        if self.smallest not in counts or 0 <= delay < self.smallest:
            self.smallest = min(counts) if counts else UNSET


class BadQueueOptions(Exception):
    """Queue options that cannot be understood; the text is for the client."""


def read_options(user: list[tuple[str, str]]) -> RequestedTerms | None:
    """Return the queue options among a packet's user properties; None when there is none.

    Raises:
        BadQueueOptions: a value, or a name, that means nothing.
    """
    options: RequestedTerms | None = None
    seen: list[str] = []
    for name, value in user:
        if not name.startswith(OPTION_PREFIX):
            continue
        if options is None:
            options = RequestedTerms()
        if name in seen:
            raise BadQueueOptions(f"{name} stands there twice")
        seen.append(name)
        if name == QUEUE_OPTION:
            if value not in POLICIES:
                raise BadQueueOptions(f"{QUEUE_OPTION}: {_shown(value)} is none of {', '.join(POLICIES)}")
            options.policy = POLICIES.index(value)
        elif name == MAX_AGE_OPTION:
            options.max_age = _number(name, value, True)
        elif name == DEPTH_OPTION:
            options.depth = int(_number(name, value, False))
        elif name == DELAY_OPTION:
            options.delay = _delay(value)
        else:
            known = f"{QUEUE_OPTION}, {MAX_AGE_OPTION}, {DEPTH_OPTION}, {DELAY_OPTION}"
            raise BadQueueOptions(f"{_shown(name)} is none of {known}")
    return options


def read_delay(user: list[tuple[str, str]]) -> int:
    """Return the delay among the user properties of a CONNECT, in milliseconds; `UNSET` if there is none.

    Raises:
        BadQueueOptions: it means nothing, or stands there twice.
    """
    delay = UNSET
    for name, value in user:
        if name == DELAY_OPTION:
            if delay != UNSET:
                raise BadQueueOptions(f"{name} stands there twice")
            delay = _delay(value)
    return delay


def _delay(value: str) -> int:
    digits = value[:-2]
    good = value.endswith("ms") and digits.isascii() and digits.isdigit() and len(digits) <= MAX_NUMBER_LENGTH
    if not good or int(digits) > MAX_DELAY_MS:
        raise BadQueueOptions(f"{DELAY_OPTION}: {_shown(value)} is not 0ms to {MAX_DELAY_MS}ms")
    return int(digits)


def _number(name: str, value: str, fraction: bool) -> float:
    whole, point, rest = value.partition(".")
    digits = whole + rest
    good = digits.isascii() and digits.isdigit() and len(value) <= MAX_NUMBER_LENGTH
    if not good or not whole or (point and (not fraction or not rest)) or float(value) > MAX_OPTION:
        kind = "a number of seconds" if fraction else "a number of messages"
        raise BadQueueOptions(f"{name}: {_shown(value)} is not {kind} from 0 to {MAX_OPTION}")
    return float(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")


def grant(options: RequestedTerms, limits: Limits, terms: QueueTerms, base: SubscriptionTerms) -> SubscriptionTerms:
    """Return what a subscription gets. `terms` are the client's, `base` those that it would have without options.

    The bounds of `base` can be tightened and not loosened; the policy is the client's choice among those allowed.
    """
    if not limits.subscriber_policies:
        return base
    policy = options.policy if options.policy in limits.subscriber_policies else base.policy
    max_age = base.max_age
    if options.max_age > 0.0 and (max_age == 0.0 or options.max_age < max_age):
        max_age = options.max_age
    depth = base.depth if base.depth > 0 else terms.live_messages
    if options.depth > 0 and (depth == 0 or options.depth < depth):
        depth = options.depth
    return SubscriptionTerms(policy, max_age, depth)


def granted_properties(granted: SubscriptionTerms) -> list[tuple[str, str]]:
    """Return the user properties that tell what was granted."""
    # In no form that `read_options` would refuse.
    max_age = f"{granted.max_age:.6f}".rstrip("0").rstrip(".")
    return [(QUEUE_OPTION, POLICIES[granted.policy]), (MAX_AGE_OPTION, max_age), (DEPTH_OPTION, str(granted.depth))]


def granted_delay(seconds: float) -> tuple[str, str]:
    """Return the user property that tells the delay of a connection."""
    return DELAY_OPTION, f"{round(seconds * 1_000)}ms"


def max_delay(limits: Limits, session: Session, of_listener: float) -> float:
    """Return the seconds for which messages to a connected client may wait, so that they leave together; 0.0: none.

    The client's own request comes before the rules, these before its listener (-1.0: it has none), and that before the
    setting for all.
    """
    requested = session.requested_delays
    if requested is not None and requested.smallest != UNSET:
        return int(requested.smallest) / 1_000
    found = limits.max_delay if of_listener < 0.0 else of_listener
    for rule in limits.rules:
        if rule.max_delay >= 0.0 and rule.applies_to(session.client_id, session.user_name):
            found = rule.max_delay
    return found


def max_client_bytes(limits: Limits, terms: QueueTerms) -> int:
    """Return the bound on all that is kept for a client.

    A part that may take more by its own bound raises it, and a part without a bound lifts it (0).
    """
    most = limits.max_client_bytes
    for part in (terms.session_bytes, limits.max_filter_bytes_per_client, limits.max_retained_bytes_per_client):
        if part == 0 or most == 0:
            return 0
        most = max(most, part)
    return most


def queue_terms(limits: Limits, client_id: str, user_name: str | None) -> QueueTerms:
    """Return the terms of the queues of one client."""
    terms = QueueTerms(limits)
    for rule in limits.rules:
        if not rule.topic_filter and rule.applies_to(client_id, user_name):
            terms.policy = _either(rule.policy, terms.policy)
            terms.max_age = rule.max_age if rule.max_age >= 0.0 else terms.max_age
            terms.live_messages = _either(rule.live_messages, terms.live_messages)
            terms.live_bytes = _either(rule.live_bytes, terms.live_bytes)
            terms.session_messages = _either(rule.session_messages, terms.session_messages)
            terms.session_bytes = _either(rule.session_bytes, terms.session_bytes)
    return terms


def subscription_rules(limits: Limits, client_id: str, user_name: str | None) -> tuple[QueueRule, ...]:
    """Return the rules about subscriptions that can apply to those of a client."""
    return tuple([rule for rule in limits.rules if rule.topic_filter and rule.applies_to(client_id, user_name)])


def subscription_terms(rules: tuple[QueueRule, ...], topic_filter: str, terms: QueueTerms) -> SubscriptionTerms:
    """Return the terms of one subscription's messages: the client's `terms`, as its `rules` change them.

    `topic_filter` without `$share/name/`.
    """
    found = SubscriptionTerms(terms.policy, terms.max_age)
    for rule in rules:
        if covers(rule.topic_filter, topic_filter):
            found.policy = _either(rule.policy, found.policy)
            found.max_age = rule.max_age if rule.max_age >= 0.0 else found.max_age
            found.depth = _either(rule.depth, found.depth)
    return found


def _either(said: int, otherwise: int) -> int:
    return otherwise if said == UNSET else said


class Place:
    """A place in the order of age; empty after the delivery has left, or got a newer message and another place."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery: Delivery | None = delivery


class MessageTerms:
    """The terms of the messages of one subscription, or of all of a session, and the account of those that wait.

    `max_age` in seconds, `depth` in messages; 0: unlimited.
    """

    def __init__(self, session: Session, terms: SubscriptionTerms) -> None:
        self.session = session
        # What its subscriber asked for, if it is of one.
        self.options: RequestedTerms | None = None
        # Whether its messages are worth less the longer they wait.
        self.fresh = terms.policy == LATEST or terms.max_age > 0.0
        self.policy: i64 = terms.policy
        self.max_age = terms.max_age
        self.depth: i64 = bound(terms.depth)
        # Messages that wait: QoS 0 in the send buffer, any in the session's queue. What is in flight waits no more.
        self.waiting: i64 = 0
        self._by_age: deque[Place] | None = deque() if self.max_age > 0.0 or self.policy == DROP_OLDEST else None
        self._topics: dict[bytes, Delivery] | None = {} if self.policy == LATEST else None

    def keeps_to(self, terms: SubscriptionTerms) -> bool:
        """Return whether these are its terms."""
        return self.policy == terms.policy and self.max_age == terms.max_age and self.depth == bound(terms.depth)

    def enter(self, delivery: Delivery, now: float) -> None:
        """A delivery to which they apply begins to wait."""
        delivery.waits = True
        self.waiting += 1
        if self.waiting * 2 >= self.depth or 0.0 < self.max_age <= SHORT_AGE:
            self.session.hurries = True
        self._place(delivery, now)
        if self._topics is not None:
            self._topics[delivery.message.topic] = delivery

    def renew(self, delivery: Delivery, now: float) -> None:
        """It has a new message, which waits since now."""
        # Where it has its place in the order already, as with many of a topic in one read.
        if delivery.since != now:
            self._place(delivery, now)

    def _place(self, delivery: Delivery, now: float) -> None:
        delivery.since = now
        by_age = self._by_age
        if by_age is None:
            return
        _vacate(delivery)
        place = Place(delivery)
        oldest = self.oldest()
        delivery.place = place
        if oldest is not None and now < oldest.since:
            by_age.appendleft(place)  # it is back from another session
        else:
            by_age.append(place)
        if len(by_age) > 2 * self.waiting + MAX_STALE_PLACES:
            live: deque[Place] = deque()
            for each in by_age:
                if each.delivery is not None:
                    live.append(each)
            self._by_age = live

    def leave(self, delivery: Delivery) -> None:
        """It waits no more: it is written, in flight, or dropped."""
        if not delivery.waits:
            return
        delivery.waits = False
        self.waiting -= 1
        topics = self._topics
        if topics is not None and topics.get(delivery.message.topic) is delivery:
            del topics[delivery.message.topic]
        if self._by_age is not None:
            _vacate(delivery)
            self.oldest()

    def of_topic(self, topic: bytes) -> Delivery | None:
        """The delivery of a topic that waits, if the latest of each topic is kept; else None."""
        topics = self._topics
        return None if topics is None else topics.get(topic)

    def oldest(self) -> Delivery | None:
        """Return the waiting delivery whose message came first; None where nothing waits, or no order is kept."""
        by_age = self._by_age
        if by_age is None:
            return None
        while by_age:
            delivery = by_age[0].delivery
            if delivery is not None:
                return delivery
            by_age.popleft()
        return None

    def too_old(self, delivery: Delivery, now: float) -> bool:
        """Return whether its message has waited longer than it may."""
        return self.max_age > 0.0 and now - delivery.since > self.max_age

    def stale(self, now: float) -> Delivery | None:
        """The oldest waiting delivery if it is too old; None when there is none."""
        if self.max_age == 0.0:
            return None
        delivery = self.oldest()
        return delivery if delivery is not None and self.too_old(delivery, now) else None


def _vacate(delivery: Delivery) -> None:
    """Its place in the order is empty from now on, and holds nothing."""
    place = delivery.place
    if place is not None:
        place.delivery = None
        delivery.place = None
