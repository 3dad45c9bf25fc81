"""The subscriptions and share groups of a topic filter, and the recipients that they make of sessions.

Three records refer to each other: a `FilterEntry` (one topic filter of the trie), its `Subscription`s, and its
`SharedGroup`s. The trie finds entries; sessions hold subscriptions; the router reads both. A subscription is itself the
`Recipient` of what it alone matches; a `MergedRecipient` stands for a session that several filters match, or that
access control allows less than it was granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64, u8

from canopy_mqtt.core.codec.packets import SubscriptionRequest
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX

if TYPE_CHECKING:
    from canopy_mqtt.core.queues.queue_terms import MessageTerms
    from canopy_mqtt.core.routing.share_homes import ShareHome
    from canopy_mqtt.core.routing.share_queues import ShareQueue
    from canopy_mqtt.core.session.session import Session

NOWHERE: Final = -1
"""The slot of a member that has left its group before its subscription has gone."""

MAX_FREE_SLOTS: Final = 16
"""Slots beyond one for each member that a share group may leave free."""

MAX_TAKERS: Final = 16
"""Members of a share group that are remembered because they were lately permitted to have one of its messages."""


SUBSCRIPTION_BYTES: Final = 256
"""Bytes that are counted for a `Subscription`, with its place in its session's dict and in the list of its filter;
its name is the string of its filter, which the trie counts. These figures, and those of the trie, are upper bounds of
what was measured in a compiled broker, so that a limit on their sum is a limit on the growth of the process. A filter's
levels are by far the largest part: 128 of one character are 256 bytes on the wire and up to 40 KB in the trie."""

SUB_QUEUE_BYTES: Final = 1_024
"""The queue of a subscription that has terms of its own, with the order of what waits there."""

DELAY_BYTES: Final = 128
"""The delay that a client requests for a subscription, while it is connected."""

GROUP_BYTES: Final = 768
"""A share group with its lists, and the set in which its filter keeps groups; without its name."""

ENTRY_BYTES: Final = 192
"""A `FilterEntry` and its place in a dict of the trie; without its spelling."""

MAX_BYTES: Final = SUBSCRIPTION_BYTES + GROUP_BYTES + ENTRY_BYTES
"""Bytes that a subscription to a filter of its own counts at most, without what is spelt and the nodes of the trie."""

MAX_SPELLINGS: Final = 16
"""Bytes that a character of such a filter counts at most: four in the name of the subscription, as many in that of its
group, and twice as many in the trie."""


_is_ascii: Final = str.isascii  # looked up by its name, it would take as long as all else about a new filter's size


def text_bytes(text: str) -> i64:
    """Return the bytes that a string's characters take: one each in ASCII, else up to four each."""
    size: i64 = len(text)
    return size if size == 0 or _is_ascii(text) else 4 * size


def entry_bytes(topic_filter: str) -> i64:
    """Return the bytes that a trie counts for a filter alone: its text twice where it has wildcards."""
    size: i64 = len(topic_filter)
    if not _is_ascii(topic_filter):
        size *= 4
    if "+" in topic_filter or "#" in topic_filter:
        size *= 2
    return ENTRY_BYTES + size


def group_bytes(name: str, group_name: str) -> i64:
    """Return the bytes that a shared subscription counts for more than another. `name` is as the client wrote it."""
    return GROUP_BYTES + text_bytes(group_name) + text_bytes(name)


class Recipient:
    """Says how one session receives the messages of a topic. Only its maker changes it, and counts that."""

    def __init__(self, session: Session, identifier: i32, qos: u8, no_local: bool, retain_as_published: bool) -> None:
        self.session = session
        self.message_terms: MessageTerms | None = None  # if its messages wait on terms of their own
        self.identifier: i32 = identifier  # the Subscription Identifier, at most 268,435,455; 0: none
        self.qos: u8 = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        # True without identifier and terms: a QoS 0 frame suits as it came.
        self.plain = identifier == 0

    def set_message_terms(self, message_terms: MessageTerms | None) -> None:
        """Let messages wait on terms of their own; None: on those of the session."""
        self.message_terms = message_terms
        self.plain = message_terms is None and self.identifier == 0


class MergedRecipient(Recipient):
    """The recipient of a session that several filters match, or that access control allows less than was granted.

    `identifier` is 0: `identifiers` has all of them [MQTT-3.3.4-4].
    """

    def __init__(
        self,
        session: Session,
        qos: u8,
        no_local: bool,
        retain_as_published: bool,
        identifiers: tuple[int, ...],
        message_terms: MessageTerms | None,
    ) -> None:
        super().__init__(session, 0, qos, no_local, retain_as_published)
        self.identifiers = identifiers
        self.message_terms = message_terms
        self.plain = message_terms is None and len(identifiers) == 0
        # What the session's own messages go by: its subscriptions without No Local. None: there is none.
        self.others: Recipient | None = None


NO_IDENTIFIERS: Final[tuple[int, ...]] = ()


def subscription_identifiers(recipient: Recipient) -> tuple[int, ...]:
    """Return the Subscription Identifiers that a recipient's copies carry."""
    if recipient.identifier > 0:
        return (recipient.identifier,)
    if isinstance(recipient, MergedRecipient):
        return recipient.identifiers
    return NO_IDENTIFIERS


def without_own(recipient: Recipient) -> Recipient | None:
    """Return the recipient of a session's own messages, if the given one has No Local; None: it gets none of them."""
    return recipient.others if isinstance(recipient, MergedRecipient) else None


class Subscription(Recipient):
    """One session's subscription to one topic filter, with the options of section 3.8.3.1.

    It is the recipient of the messages that it alone matches. Options may be changed in place when a client subscribes
    again; call `MatchCache.touch` then.
    """

    def __init__(
        self,
        session: Session,
        topic_filter: str,
        qos: u8 = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: u8 = 0,
        identifier: i32 = 0,
    ) -> None:
        super().__init__(session, identifier, qos, no_local, retain_as_published)
        # As the client wrote it: with "$share/name/" where it is shared.
        self.topic_filter = topic_filter
        # Where it hangs; None before `add` and after `discard`.
        self.entry: FilterEntry | None = None
        self.group: SharedGroup | None = None
        self.slot: i32 = 0  # its index in the list it stands in; `NOWHERE`: its session is over, it is in none
        self.retain_handling: u8 = retain_handling
        self.present = False  # whether `slot` is one among a group's connected members

    def agree(self, request: SubscriptionRequest, identifier: int, max_qos: int) -> None:
        """Take the options of a SUBSCRIBE, with no higher QoS than `max_qos`."""
        self.grant(request.qos if request.qos < max_qos else max_qos)
        self.no_local = request.no_local
        self.retain_as_published = request.retain_as_published
        self.retain_handling = request.retain_handling
        self.identifier = identifier
        self.plain = identifier == 0 and self.message_terms is None

    def grant(self, qos: u8) -> None:
        """Have another QoS granted."""
        if self.group is not None:
            self.group.count_qos(i64(self.qos), -1)
            self.group.count_qos(i64(qos), 1)
        self.qos = qos

    def request(self) -> SubscriptionRequest:
        """Return what its client would ask for to have it again, without the identifier."""
        return SubscriptionRequest(
            self.topic_filter, self.qos, self.no_local, self.retain_as_published, self.retain_handling
        )


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
        # The slot whose turn it is, and how many turns in a row that member has had.
        self.cursor: int = 0
        self.served: int = 0
        # Of those that access control was asked about, the last ones that may have had the message.
        self.takers: list[Subscription] = []

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
        if member.slot == self.cursor:
            self.served = 0
        self.slots[member.slot] = None
        member.slot = NOWHERE
        self.count -= 1
        if self.takers and member in self.takers:
            self.takers.remove(member)
        if len(self.slots) > 2 * self.count + MAX_FREE_SLOTS or self.count == 0:
            self._compact()

    def take_turn(self, member: Subscription, turns: i64) -> None:
        """Count a turn of the member whose turn it is; with the last of its `turns` in a row it is the next one's."""
        self.served += 1
        if self.served >= turns:
            self.pass_over(member)

    def pass_over(self, member: Subscription) -> None:
        """End the turns of a member, if they have begun and are not over."""
        if self.served > 0 and member.slot == self.cursor:
            self.served = 0
            self.cursor += 1

    def took(self, member: Subscription) -> None:
        """Access control was asked about a member, and it may have the message."""
        takers = self.takers
        if member not in takers:
            if len(takers) >= MAX_TAKERS:
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


class MembersElsewhere:
    """The connected members of a share group at another worker: see `routing.share_homes`."""

    def __init__(self, count: int, busy: bool) -> None:
        self.count = count
        self.busy = busy  # none of them has room


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
        # Those of them with QoS 1, and with QoS 2.
        self.with_qos1: i64 = 0
        self.with_qos2: i64 = 0
        # What waits for the member that connects first (`routing.share_queues`); None: nothing does.
        self.queue: ShareQueue | None = None
        # The worker where it lives; None: here. If it is not None, no message comes here by its topic.
        self.home: ShareHome | None = None
        # By the member that stands for them; None: all members are clients.
        self.elsewhere: dict[Subscription, MembersElsewhere] | None = None

    @property
    def full_name(self) -> str:
        """Return its name with its topic filter, as a client writes it."""
        return f"{SHARE_PREFIX}{self.name}/{self.topic_filter}"

    @property
    def highest_qos(self) -> int:
        """Return the highest QoS that was granted to one of its subscriptions."""
        return 2 if self.with_qos2 > 0 else 1 if self.with_qos1 > 0 else 0

    def count_qos(self, qos: i64, change: i64) -> None:
        """Count a subscription with this QoS that comes (1) or goes (-1)."""
        if qos == 1:
            self.with_qos1 += change
        elif qos == 2:
            self.with_qos2 += change

    @property
    def size(self) -> int:
        """Count the members, with those whose sessions are over and that no search has come upon yet."""
        return self.connected.count + self.away.count

    def next_member(self, away: bool = False) -> Subscription | None:
        """Return whose turn it is, in rotation: among those who are connected, or, with none of them, among the others.

        `away`: among the others in any case. None for an empty group. A caller that passes over a member which cannot
        take a message now asks again (`Fanout.choose`).
        """
        while True:
            turns = self.away if away or self.connected.count == 0 else self.connected
            member = turns.current()
            if member is None:
                return None
            if self.in_place(member):
                turns.take_turn(member, self.clients_of(member))
                return member

    def pass_over(self, member: Subscription) -> None:
        """End the turns of a member, if they are not over."""
        (self.connected if member.present else self.away).pass_over(member)

    def stand_for(self, member: Subscription, count: int, busy: bool) -> None:
        """Let a member, a worker, stand for the connected members there; `busy`: none of them has room."""
        if self.elsewhere is None:
            self.elsewhere = {}
        self.elsewhere[member] = MembersElsewhere(count, busy)
        self.place(member)

    def stands_no_more(self, member: Subscription) -> None:
        """Forget whom a member stood for, if it was a worker."""
        if self.elsewhere is not None:
            self.elsewhere.pop(member, None)
            self.elsewhere = self.elsewhere or None

    def clients_of(self, member: Subscription) -> i64:
        """Return for how many clients a member has turns: 1, but for a worker those that are connected there."""
        there = None if self.elsewhere is None else self.elsewhere.get(member)
        return 1 if there is None else there.count

    def is_busy(self, member: Subscription) -> bool:
        """Return whether a member is a worker whose members have no room."""
        there = None if self.elsewhere is None else self.elsewhere.get(member)
        return there is not None and there.busy

    def is_connected(self, member: Subscription) -> bool:
        """Return whether a client that can take messages is connected."""
        return member.session.send_buffer is not None and self.clients_of(member) > 0

    def has_connected(self) -> bool:
        """Return whether a member is there whose client is connected."""
        while True:
            member = self.connected.current()
            if member is None:
                return False
            if self.in_place(member):
                return True

    def any_member(self) -> Subscription | None:
        """Return a member whose session is not over, a connected one if there is one; None: there is no
        member. It uses no turn."""
        if self.has_connected():
            return self.connected.current()
        while True:
            member = self.away.current()
            if member is None or not member.session.ended:
                return member
            self.in_place(member)

    def in_place(self, member: Subscription) -> bool:
        """Return whether a member stands where it belongs; if not, it is put there."""
        session = member.session
        if session.ended:
            self.discard(member)
            return False
        if member.present != self.is_connected(member):
            self.place(member)
            return False
        return True

    def add(self, member: Subscription) -> None:
        """Take in a member; `FilterEntry.add` is who calls this."""
        member.present = self.is_connected(member)
        turns = self.connected if member.present else self.away
        turns.add(member)
        if self.home is not None:
            # The new one may have room.
            self.home.set_busy(self, False)

    def discard(self, member: Subscription) -> None:
        """Let a member go; `FilterEntry.discard` is who calls this, at the latest."""
        if member.slot != NOWHERE:
            turns = self.connected if member.present else self.away
            turns.discard(member)
            if self.home is not None:
                self.home.changed(self)

    def place(self, member: Subscription) -> None:
        """Move a member whose session came or went (`Session.send_buffer`) to where it belongs now.

        Cost: independent of how many there are. No version grows: the fan-out asks a group for a member each time.
        """
        if member.present != self.is_connected(member):
            self.renew(member)

    def renew(self, member: Subscription) -> None:
        """Treat a member as one that comes anew: what was found out about it holds no longer."""
        if member.slot != NOWHERE:
            (self.connected if member.present else self.away).discard(member)
            self.add(member)


class Many:
    """The subscriptions of an entry if it has more than one ordinary one, or share groups. Private to `FilterEntry`."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.groups: dict[str, SharedGroup] = {}
        # How many of the subscribers took the last run of publishes one by one (`routing.bursts`).
        self.slow: i64 = 0


_NO_GROUPS: Final[dict[str, SharedGroup]] = {}


class FilterEntry:
    """One topic filter in the trie, and its subscriptions.

    Promises:
    - `add` and `discard` cost the same however many subscribers share the filter: each subscription knows its slot in
      the list it stands in, and leaves by having the last one take its place. The order of subscribers is therefore
      arbitrary.
    - An entry that left the trie is retired and takes no subscription any more: one that would never get a message is
      an error at once.
    - `version` grows at each change of what the entry would deliver, and never goes back. What was computed from an
      entry holds as long as the version does.
    - Memory: two million filters, most with one subscriber, are the case to build for. An entry with a single ordinary
      subscription points at it (`only`); lists and dicts appear with the second, or with the first share group, and go
      with it: what an entry holds depends on who subscribes now, and not on who did.
    """

    def __init__(self, topic_filter: str, cost: i64 = 0) -> None:
        self.topic_filter = topic_filter  # without "$share/name/"; "" once it is retired
        self.version: i64 = 0
        self.only: Subscription | None = None  # the one ordinary subscription of an entry that has nothing else
        self.many: Many | None = None
        self.cost: i64 = cost  # bytes that the trie counts for it where it shares nothing with other filters

    @property
    def subscriptions(self) -> list[Subscription]:
        """The ordinary subscriptions, in no order. Read it; never change it. It is not a copy when there are many."""
        if self.only is not None:
            return [self.only]
        return [] if self.many is None else self.many.subscriptions

    @property
    def ordinary_count(self) -> i64:
        """Return how many ordinary subscriptions there are."""
        if self.many is not None:
            return len(self.many.subscriptions)
        return 0 if self.only is None else 1

    @property
    def groups(self) -> dict[str, SharedGroup]:
        """The share groups by name. Read it; never change it."""
        return _NO_GROUPS if self.many is None else self.many.groups

    @property
    def slow(self) -> i64:
        """Count its subscribers that took the last run of publishes one by one, and not as the bytes that came in."""
        many = self.many
        if many is None:
            return 0
        count: i64 = len(many.subscriptions)
        return many.slow if many.slow < count else count

    def set_slow(self, count: i64) -> None:
        """Remember how many of its subscribers did."""
        if self.many is not None:
            self.many.slow = count

    def add(self, subscription: Subscription, group_name: str = "") -> None:
        """Hang a subscription here, or in the share group of that name, which appears with its first member.

        Cost: independent of how many are here. The subscription must hang nowhere yet.

        Raises:
            ValueError: it already hangs somewhere, or the entry is retired.
        """
        if subscription.entry is not None:
            raise ValueError("the subscription already hangs at a topic filter")
        many = self.many
        if not self.topic_filter:
            raise ValueError("the topic filter has left the trie")
        if group_name:
            if many is None:
                many = self._become_many()
            group = many.groups.get(group_name)
            if group is None:
                group = SharedGroup(group_name, self)
                many.groups[group_name] = group
            subscription.group = group
            group.subscriptions += 1
            group.count_qos(i64(subscription.qos), 1)
            group.add(subscription)
            session = subscription.session
            session.shared += 1
            if session.memberships is None:
                session.memberships = {}
            session.memberships[subscription] = None
        elif many is None and self.only is None:
            subscription.slot = 0
            self.only = subscription
        else:
            if many is None:
                many = self._become_many()
            subscription.slot = len(many.subscriptions)
            many.subscriptions.append(subscription)
        subscription.entry = self
        self.version += 1

    def discard(self, subscription: Subscription) -> bool:
        """Take a subscription away; False when it does not hang here. Cost: independent of how many are here."""
        if subscription.entry is not self:
            return False
        many = self.many
        if many is None:
            self.only = None
        else:
            group = subscription.group
            if group is not None:
                group.discard(subscription)
                session = subscription.session
                session.shared -= 1
                if session.memberships is not None:
                    del session.memberships[subscription]
                group.subscriptions -= 1
                group.count_qos(i64(subscription.qos), -1)
                group.stands_no_more(subscription)
                if group.subscriptions == 0:
                    del many.groups[group.name]
            else:
                _take_out(many.subscriptions, subscription)
            if not many.groups and len(many.subscriptions) < 2:
                # The slot of the one is 0, as that of one that never had company.
                self.only = many.subscriptions[0] if many.subscriptions else None
                self.many = None
        self.version += 1
        subscription.entry = None
        subscription.group = None
        return True

    @property
    def retired(self) -> bool:
        """True if the filter has left the trie. The same filter may be there again, with another entry."""
        return not self.topic_filter

    def _become_many(self) -> Many:
        many = Many()
        only = self.only
        if only is not None:
            many.subscriptions.append(only)  # its slot is 0 already
            self.only = None
        self.many = many
        return many


def _take_out(members: list[Subscription], leaving: Subscription) -> None:
    """Remove a subscription: the last one takes its slot."""
    last = members.pop()
    if last is not leaving:
        members[leaving.slot] = last
        last.slot = leaving.slot
