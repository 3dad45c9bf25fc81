"""The subscriptions and share groups of a topic filter.

Three records refer to each other: a `FilterEntry` (one topic filter of the trie), its `Subscription`s, and its
`SharedGroup`s. The trie finds entries; sessions hold subscriptions; the router reads both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.packets import SubscriptionRequest

if TYPE_CHECKING:
    # Compiled, these attributes take one, four or eight bytes; interpreted, they are ordinary ints.
    from mypy_extensions import i32, i64, u8

    from broker.core.queues.delivery import SubscriptionQueue


CHANGES_KEPT: Final = 128
"""Changes that an entry with many subscriptions remembers, for those who watch it."""


NOWHERE: Final = -1
"""The slot of a member that has left its group before its subscription has gone."""

FREE_SLOTS: Final = 16
"""Slots beyond one for each member that a share group may leave free."""

TAKERS: Final = 16
"""Members of a share group that are remembered because they were lately permitted to have one of its messages."""


class Subscriber:
    """Base of the holder of subscriptions (the session), here so that this module imports no other."""

    connected: bool = False
    """Whether its shared subscriptions belong to the connected ones. See `SharedGroup.place`."""
    ended: bool = False
    """It is over, and takes no message. Its subscriptions go one after the other."""
    shared: int = 0
    """How many of its subscriptions are members of share groups."""
    memberships: dict[Subscription, None] | None = None
    """Those subscriptions; None where there never was one."""


class Subscription:
    """One subscriber's subscription to one topic filter, with the options of section 3.8.3.1.

    Plain data. Options may be changed in place when a client subscribes again; call `FilterEntry.touch` then.
    """

    def __init__(
        self,
        session: Subscriber,
        topic_filter: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None:
        self.session = session
        # As the client wrote it: with "$share/name/" where it is shared.
        self.topic_filter = topic_filter
        # Where it hangs; None before `add` and after `discard`.
        self.entry: FilterEntry | None = None
        self.group: SharedGroup | None = None
        self.sub_queue: SubscriptionQueue | None = None  # where its messages have terms of their own
        self.slot: i32 = 0  # its index in the list it stands in; `NOWHERE`: its session is over, it is in none
        self.identifier: i32 = identifier  # Subscription Identifier, at most 268,435,455; 0 when there is none
        self.present = False  # whether `slot` is one among a group's connected members
        self.qos: u8 = qos
        self.retain_handling: u8 = retain_handling
        self.no_local = no_local
        self.retain_as_published = retain_as_published

    def agree(self, request: SubscriptionRequest, identifier: int, max_qos: int) -> None:
        """Take the options of a SUBSCRIBE, with no higher QoS than `max_qos`."""
        self.qos = request.qos if request.qos < max_qos else max_qos
        self.no_local = request.no_local
        self.retain_as_published = request.retain_as_published
        self.retain_handling = request.retain_handling
        self.identifier = identifier

    def request(self) -> SubscriptionRequest:
        """What its client would ask for to have it again, without the identifier."""
        return SubscriptionRequest(
            self.topic_filter, self.qos, self.no_local, self.retain_as_published, self.retain_handling
        )


def identifiers(subscription: Subscription) -> tuple[int, ...]:
    """The subscription's identifier as a tuple: empty when it has none."""
    return (subscription.identifier,) if subscription.identifier > 0 else ()


class Turns:
    """Members of a share group whose turn comes one after the other: those that are connected, or those that are not.

    A member keeps its slot until it leaves or `generation` grows, and no other member gets that slot before. Adding and
    removing one costs the same however many there are, taken over many calls: free slots go when they are the majority.
    """

    def __init__(self) -> None:
        # By slot; None: free. Read it; never change it.
        self.slots: list[Subscription | None] = []
        self.count: int = 0
        self.generation: int = 0
        # The slot whose turn it is.
        self.cursor: int = 0
        # Of those that access control was asked about, the last ones that may have had the message.
        self.takers: list[Subscription] = []

    @property
    def members(self) -> list[Subscription]:
        """All of them, in the order in which they came: a copy, for those who are in no hurry."""
        return [member for member in self.slots if member is not None]

    def current(self) -> Subscription | None:
        """The member whose turn it is; None: there is no member."""
        if self.count == 0:
            return None
        while True:
            if self.cursor >= len(self.slots):
                self.cursor = 0
            member = self.slots[self.cursor]
            if member is not None:
                return member
            self.cursor += 1

    def add(self, member: Subscription) -> None:
        """Take in a member: its turn comes after those of the others."""
        member.slot = len(self.slots)
        self.slots.append(member)
        self.count += 1

    def discard(self, member: Subscription) -> None:
        """Let one of the members go."""
        self.slots[member.slot] = None
        member.slot = NOWHERE
        self.count -= 1
        if self.takers and member in self.takers:
            self.takers.remove(member)
        if len(self.slots) > 2 * self.count + FREE_SLOTS or self.count == 0:
            self._compact()

    def took(self, member: Subscription) -> None:
        """Access control was asked about a member, and it may have the message."""
        takers = self.takers
        if member not in takers:
            if len(takers) >= TAKERS:
                del takers[0]
            takers.append(member)

    def _compact(self) -> None:
        cursor = 0
        slots: list[Subscription | None] = []
        for at in range(len(self.slots)):
            if at == self.cursor:
                cursor = len(slots)
            member = self.slots[at]
            if member is not None:
                member.slot = len(slots)
                slots.append(member)
        self.slots = slots
        self.cursor = cursor
        self.generation += 1


class SharedGroup:
    """The members of one share name at one topic filter (section 4.8.2): each message goes to one of them.

    A session that comes, goes or ends with very many memberships tells its groups of it in turns. Until then its
    members stand where they were; the search for the next member finds that out, and puts each in its place once.
    """

    def __init__(self, name: str, entry: FilterEntry) -> None:
        self.name = name
        self.entry = entry
        self.topic_filter = entry.topic_filter
        self.connected = Turns()
        self.away = Turns()
        # That hang here, also of members that have left since their sessions are over: the group goes with the last.
        self.subscriptions: int = 0

    @property
    def size(self) -> int:
        """How many members there are, with those whose sessions are over and that no search has come upon yet."""
        return self.connected.count + self.away.count

    @property
    def members(self) -> list[Subscription]:
        """All of them, the connected ones first: a copy, for those who are in no hurry."""
        return [*self.connected.members, *self.away.members]

    def next_member(self) -> Subscription | None:
        """Whose turn it is, in rotation: among those who are connected, or, with nobody there, among the others.

        None for an empty group. The router passes over a member that cannot take a message now by asking again.
        """
        while True:
            turns = self.connected if self.connected.count > 0 else self.away
            member = turns.current()
            if member is None:
                return None
            if self.in_place(member):
                turns.cursor += 1
                return member

    def has_connected(self) -> bool:
        """Whether a member is there whose client is connected."""
        while True:
            member = self.connected.current()
            if member is None:
                return False
            if self.in_place(member):
                return True

    def has_member(self) -> bool:
        """Whether there is a member whose session is not over."""
        if self.has_connected():
            return True
        while True:
            member = self.away.current()
            if member is None:
                return False
            if not member.session.ended:
                return True
            self.in_place(member)

    def in_place(self, member: Subscription) -> bool:
        """Whether a member stands where it belongs; if not, it is put there."""
        session = member.session
        if session.ended:
            self.discard(member)
            return False
        if member.present != session.connected:
            self.place(member)
            return False
        return True

    def add(self, member: Subscription) -> None:
        """Take in a member; `FilterEntry.add` is who calls this."""
        member.present = member.session.connected
        turns = self.connected if member.present else self.away
        turns.add(member)

    def discard(self, member: Subscription) -> None:
        """Let a member go; `FilterEntry.discard` is who calls this, at the latest."""
        if member.slot != NOWHERE:
            turns = self.connected if member.present else self.away
            turns.discard(member)

    def place(self, member: Subscription) -> None:
        """Its session came or went (`Subscriber.connected`): move it to where it belongs now.

        Cost: independent of how many there are. No version grows: whoever keeps a group asks it for a member each time.
        """
        if member.present != member.session.connected:
            self.renew(member)

    def renew(self, member: Subscription) -> None:
        """Have a member come anew: what was found out about it holds no longer."""
        if member.slot != NOWHERE:
            self.discard(member)
            self.add(member)


class Changed:
    """The latest changes of an entry's subscriptions: one subscriber for each version, None for a share group's."""

    def __init__(self, version: int) -> None:
        # Plans that read it. It goes with the last one.
        self.watchers: int = 0
        # The version before the first of these changes.
        self._from = version
        self._subscribers: list[Subscriber | None] = []

    def note(self, subscriber: Subscriber | None) -> None:
        """The entry's version has grown because of this subscriber (None: of a member of a share group)."""
        self._subscribers.append(subscriber)
        if len(self._subscribers) > 2 * CHANGES_KEPT:
            self._from += CHANGES_KEPT
            del self._subscribers[:CHANGES_KEPT]

    def since(self, version: int, now: int) -> list[Subscriber] | None:
        """Whose subscriptions changed from one version to the present one; None when that is not remembered."""
        if version < self._from or now != self._from + len(self._subscribers):
            return None
        found: list[Subscriber] = []
        for subscriber in self._subscribers[version - self._from :]:
            if subscriber is not None:
                found.append(subscriber)
        return found


class SubscriberSet:
    """The subscriptions of an entry if it has more than one ordinary one. Private to `FilterEntry`."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.groups: dict[str, SharedGroup] = {}
        # How many of the subscribers took the last run of publishes one by one (`receivers.bursts`).
        self.slow: int = 0
        self.changed: Changed | None = None


_NO_GROUPS: Final[dict[str, SharedGroup]] = {}

# What a retired entry holds.
_GONE: Final = SubscriberSet()


class FilterEntry:
    """One topic filter in the trie, and its subscriptions.

    Promises:
    - `add` and `discard` cost the same however many subscribers share the filter: each subscription knows its slot in
      the list it stands in, and leaves by having the last one take its place. The order of subscribers is therefore
      arbitrary.
    - An entry that left the trie is retired and takes nobody any more: a subscription that would never get a message is
      an error at once.
    - `version` grows at each change of what the entry would deliver, and never goes back. What was computed from an
      entry holds as long as the version does. An entry with many subscriptions that somebody watches writes down whose
      changed (`Changed`), so that what was computed can be mended.
    - Memory: two million filters, most with one subscriber, are the case to build for. An entry with a single ordinary
      subscription points at it; lists and dicts appear with the second, or with the first share group, and go with it:
      what an entry holds and what `sole` says depend on who subscribes now, and not on who did.
    """

    def __init__(self, topic_filter: str, text: i64 = 0, cost: i64 = 0) -> None:
        """`text`, `cost`: the trie's account of it (`filter_bytes`), so that nobody has to make it again."""
        self.topic_filter = topic_filter  # without "$share/name/"; "" once it is retired
        self.version: int = 0
        self.text: i64 = text  # bytes that its characters take
        self.cost: i64 = cost  # see `Trie.cost`
        self._held: Subscription | SubscriberSet | None = None

    @property
    def subscriptions(self) -> list[Subscription]:
        """The ordinary subscriptions, in no order. Read it; never change it. It is not a copy when there are many."""
        held = self._held
        if isinstance(held, Subscription):
            return [held]
        if isinstance(held, SubscriberSet):
            return held.subscriptions
        return []

    @property
    def ordinary_count(self) -> int:
        """How many ordinary subscriptions there are."""
        held = self._held
        if isinstance(held, SubscriberSet):
            return len(held.subscriptions)
        return 0 if held is None else 1

    @property
    def sole(self) -> Subscription | None:
        """The one ordinary subscription of an entry that has nothing else; None for any other entry."""
        held = self._held
        return held if isinstance(held, Subscription) else None

    @property
    def groups(self) -> dict[str, SharedGroup]:
        """The share groups by name. Read it; never change it."""
        held = self._held
        if isinstance(held, SubscriberSet):
            return held.groups
        return _NO_GROUPS

    @property
    def slow(self) -> int:
        """How many of its subscribers took the last run of publishes one by one, and not as the bytes that came in."""
        held = self._held
        if not isinstance(held, SubscriberSet):
            return 0
        count = len(held.subscriptions)
        return held.slow if held.slow < count else count

    def took_one_by_one(self, count: int) -> None:
        """Say that so many of its subscribers did."""
        held = self._held
        if isinstance(held, SubscriberSet):
            held.slow = count

    @property
    def empty(self) -> bool:
        """Whether nobody listens, so that the filter can leave the trie."""
        held = self._held
        if held is None:
            return True
        if isinstance(held, SubscriberSet):
            return not held.subscriptions and not held.groups
        return False

    @property
    def subscriber_count(self) -> int:
        """How many subscriptions hang here, members of share groups included."""
        held = self._held
        if isinstance(held, Subscription):
            return 1
        if isinstance(held, SubscriberSet):
            count = len(held.subscriptions)
            for group in held.groups.values():
                count += group.size
            return count
        return 0

    def add(self, subscription: Subscription, group_name: str = "") -> None:
        """Hang a subscription here, or in the share group of that name, which appears with its first member.

        Cost: independent of how many are here. The subscription must hang nowhere yet.

        Raises:
            ValueError: it already hangs somewhere, or the entry is retired.
        """
        if subscription.entry is not None:
            raise ValueError("the subscription already hangs at a topic filter")
        held = self._held
        if held is _GONE:
            raise ValueError("the topic filter has left the trie")
        if group_name:
            subscriber_set = self._subscriber_set()
            group = subscriber_set.groups.get(group_name)
            if group is None:
                group = SharedGroup(group_name, self)
                subscriber_set.groups[group_name] = group
            subscription.group = group
            group.subscriptions += 1
            group.add(subscription)
            session = subscription.session
            session.shared += 1
            if session.memberships is None:
                session.memberships = {}
            session.memberships[subscription] = None
        elif held is None:
            subscription.slot = 0
            self._held = subscription
        else:
            subscriber_set = self._subscriber_set()
            subscription.slot = len(subscriber_set.subscriptions)
            subscriber_set.subscriptions.append(subscription)
        subscription.entry = self
        self.touch(subscription)

    def discard(self, subscription: Subscription) -> bool:
        """Take a subscription away; False when it does not hang here. Cost: independent of how many are here."""
        if subscription.entry is not self:
            return False
        held = self._held
        group = subscription.group
        if group is not None:
            group.discard(subscription)
            session = subscription.session
            session.shared -= 1
            if session.memberships is not None:
                del session.memberships[subscription]
            group.subscriptions -= 1
            if group.subscriptions == 0 and isinstance(held, SubscriberSet):
                del held.groups[group.name]
        elif isinstance(held, SubscriberSet):
            _take_out(held.subscriptions, subscription)
        else:
            self._held = None
        self.touch(subscription)
        if isinstance(held, SubscriberSet) and not held.groups:
            left = held.subscriptions
            if len(left) < 2:
                # Its slot is 0, as that of one that never had company.
                self._held = left[0] if left else None
        subscription.entry = None
        subscription.group = None
        return True

    def touch(self, subscription: Subscription) -> None:
        """Say that a subscription here has changed, also in place, so that nothing computed before is used again."""
        self.version += 1
        held = self._held
        if isinstance(held, SubscriberSet) and held.changed is not None:
            held.changed.note(subscription.session if subscription.group is None else None)

    def watch(self) -> Changed | None:
        """Have it written down whose subscriptions change, until `unwatch`; None for an entry with one at most."""
        held = self._held
        if not isinstance(held, SubscriberSet) or held is _GONE:
            return None
        changed = held.changed
        if changed is None:
            changed = Changed(self.version)
            held.changed = changed
        changed.watchers += 1
        return changed

    def unwatch(self, changed: Changed) -> None:
        """End one `watch`, with what it returned. With the last one nothing is written down any more."""
        changed.watchers -= 1
        held = self._held
        if changed.watchers == 0 and isinstance(held, SubscriberSet) and held.changed is changed:
            held.changed = None

    @property
    def retired(self) -> bool:
        """Whether the filter has left the trie. The same filter may be there again, with another entry."""
        return self._held is _GONE

    def retire(self) -> None:
        """Called by the trie when the filter leaves it.

        Raises:
            ValueError: somebody still listens.
        """
        if not self.empty:
            raise ValueError(f"somebody still listens at {self.topic_filter!r}")
        self._held = _GONE
        # Routes that are cached may refer to it for a long time.
        self.topic_filter = ""

    def _subscriber_set(self) -> SubscriberSet:
        held = self._held
        if isinstance(held, SubscriberSet):
            return held
        subscriber_set = SubscriberSet()
        if isinstance(held, Subscription):
            subscriber_set.subscriptions.append(held)  # its slot is 0 already
        self._held = subscriber_set
        return subscriber_set


def _take_out(members: list[Subscription], leaving: Subscription) -> None:
    """Remove by letting the last one take the free slot."""
    last = members.pop()
    if last is not leaving:
        members[leaving.slot] = last
        last.slot = leaving.slot
