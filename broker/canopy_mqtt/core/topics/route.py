"""The recipients of the messages of a topic: a `Recipient` for each session, and the `Route` that lists them.

Data: `routing.recipients` fills a route, the match cache keeps it, and the fan-out reads it. A subscription is itself
the recipient of what it alone matches; a `MergedRecipient` stands for a session that several filters match, or that
access control allows less than it was granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64, u8

from canopy_mqtt.core.topics.topic_tree import Retainable

if TYPE_CHECKING:
    from canopy_mqtt.core.principal import Principal
    from canopy_mqtt.core.queues.queue_terms import MessageTerms
    from canopy_mqtt.core.routing.recipients import Barred, Verdicts
    from canopy_mqtt.core.session.session import Session
    from canopy_mqtt.core.topics.subscription import FilterEntry, SharedGroup

MAX_CHANGES_KEPT: Final = 256
"""Changes of subscriptions that are remembered, the latest, while there are routes to mend; twice as many at most."""

NAME_BYTES: Final = 2
"""Bytes of a topic name, beyond the first ones, that weigh as much as a reference: the name is kept as a key and, level
by level, in the tree. Without it, 16,384 topics of 1,000 bytes would take 58 MB. What is counted is what one client can
make of it, which is also what it may grow the process by: 16 MB."""

SHORT_NAME_BYTES: Final = 64
"""Bytes of a topic name that the weight of a level has room for."""


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
NO_RECIPIENTS: Final[list[Recipient]] = []
NO_GROUPS: Final[list[SharedGroup]] = []


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


class Route(Retainable):
    """The recipients of one topic, and what they were computed from: its filters, at a count of changes and a stamp.

    `Fanout.route` is the way to one that is up to date.
    """

    def __init__(self, topic: bytes, entries: list[FilterEntry], changes: Changes) -> None:
        # What each message reads. `as_of` and `stamp`: the count of changes, and the permissions, of the recipients.
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
