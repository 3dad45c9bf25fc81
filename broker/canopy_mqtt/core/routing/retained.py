"""The retained messages of a broker: set, replaced, cleared and limited (section 3.3.1.3).

Owns the tree of retained messages. Promises: retained messages are limited in number and bytes, including the levels of
their topics; one that does not fit is delivered, counted, and not retained. The broker's own (`$SYS`) do not count
against the clients' limits; the states of bridges do, which bridges publish there. All nodes of a cluster keep the
newest (`cleared`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from canopy_mqtt.core.accounts import (
    LINK_ACCOUNT,
    MAX_USER_BYTES,
    RETAINED,
    RETAINED_SIZE,
    SETTINGS,
    Account,
    Accounts,
)
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.topic_names import is_system, is_within
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.deadlines import Deadlines
from canopy_mqtt.core.jobs import EXPIRY_WORK, LEVEL_WORK, RETAIN_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import LOCAL, Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.refusals import RETAIN
from canopy_mqtt.core.routing.bridge_states import is_bridge_state
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.node_messages import MARK_SIZE, NodeMessage, TimedMessage, marked, read_mark
from canopy_mqtt.core.routing.nodes import NODE_LINKS, NodeSession, crosses, for_nodes
from canopy_mqtt.core.routing.retained_shares import RetainedMessage, RetainedShares, account_name, kept_bytes
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.shared import Offer, SharedSessions
from canopy_mqtt.core.topics.topic_tree import NODE_BYTES, TopicTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_extensions import i64

MAX_GIVEN: Final = 64
"""Retained messages that go for one that comes: one of 64 KB takes the room of all these small ones. Beside them go as
many topics that were cleared as it takes to give the bytes that it needs.
"""

DAY: Final = 86_400_000_000
"""Microseconds for which a topic is known to have been cleared, and by which the time of another node's message may lie
ahead of this node's clock. One that lies further ahead is not retained: else a clock that is wrong would win for ever.
"""

TOO_EARLY: Final = "this node's clock: the message is retained more than a day ahead of it"


def is_free(message: Message) -> bool:
    """Return whether a retained message is the broker's own, which counts against no client's limits."""
    return is_system(message.topic) and not is_bridge_state(message.topic)


class RetainedStore:
    """Retained messages by topic, with their times in the deadlines of the router.

    With `shared`, they are in a store that brokers share: those here are a copy of it, which nothing changes but what
    is read there (`keep`), and their times (`TimedMessage.at`) are their versions there.
    """

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        deadlines: Deadlines,
        sessions: dict[str, Session],
        accounts: Accounts,
    ) -> None:
        """`sessions` tell which clients are links."""
        self.tree = TopicTree()
        # What counts against the limits: all but the broker's own, and of those the number.
        self.bytes = 0
        self.system_count = 0
        self._limits = limits
        self._counters = counters
        self._deadlines = deadlines
        self._sessions = sessions
        self._totals = counters.totals
        self._budget = counters.totals.budget
        self._accounts = accounts
        # The client identifiers of the other nodes of the cluster.
        self.nodes: tuple[str, ...] = ()
        # The topics that were cleared, where there are nodes, each with its time for a day: an older message of another
        # node may still be on its way, or come back with that node. They count as retained messages without payload, on
        # the accounts of those who cleared them, and are in the store; no subscriber or list sees them. They give way
        # to whatever else their accounts retain.
        self.cleared = TopicTree()
        # Says whether a message of another node, by its topic and time, is what this node has said in an earlier run,
        # and is not true any more. None: there is no such message.
        self.is_echo: Callable[[str, int], bool] | None = None
        # True if the links to other brokers here are for the clients of all workers.
        self.for_all_workers = False
        # The store that brokers share, which keeps all but what is each broker's own; None: there is none.
        self.shared: SharedSessions | None = None
        # By topic, the last that it has not written yet.
        self._offers: dict[str, Offer] = {}
        self._offered = 0
        # What each client takes of them, and each account.
        self.shares = RetainedShares(sessions, accounts)

    def retain(self, message: Message, origin: Session | None = None, published: bool = False) -> bool:
        """Keep a retained message in place of the topic's last; an empty payload clears it. `origin`: the publisher's
        session, which may be over; None: it is looked for by the client identifier.

        `published`: it was offered to the topic's subscribers as well. False, and counted, when the limits of retained
        messages are reached. [MQTT-3.3.1-5] [MQTT-3.3.1-6]
        """
        topic = message.topic.decode()
        if self.shared is not None and self.is_kept_there(message):
            if isinstance(message, NodeMessage):
                return True  # its own broker has given it to the store
            offer = self.offer(message, origin, published)
            self.shared.retain(offer, origin)
            return not offer.clears or len(message.payload()) == 0
        old = cast("Message | None", self.tree.get(topic))
        empty = len(message.payload()) == 0  # never kept itself [MQTT-3.3.1-7]
        clears = empty or (isinstance(message, NodeMessage) and message.clears)
        shared = self._is_shared(message)
        at: i64 = 0
        known: Message | None = None
        known_account: Account | None = None
        if shared:
            cleared = cast("Message | None", self.cleared.get(topic))
            known = cleared if old is None else old
            at = self._time(topic, message, known)
            if at < 0:
                return False
            if self.is_echo is not None and isinstance(message, NodeMessage) and self.is_echo(topic, int(at)):
                return False
            known_account = known.account if isinstance(known, RetainedMessage) else None
            if cleared is not None:
                self._clear(topic, cleared)
        account = self._account_of(message, origin)
        refused_by = "" if clears else self._find_room(topic, message, old, account, True)
        if shared and crosses(message):
            told = for_nodes(message, at, refused_by != "" or (empty and not published))
            for client_id in self.nodes:
                node = self._sessions.get(client_id)
                if isinstance(node, NodeSession):
                    node.send(told)
        if clears or refused_by:
            # The old one goes in any case: it is not what the topic says any more [MQTT3-3.3.1-7].
            if old is not None:
                self._clear(topic, old)
            if shared and (clears or not isinstance(message, NodeMessage)):
                remembered = self._remember_clearing(topic, message, account, at)
                if clears and not remembered:
                    self._counters.retained_refused += 1
            elif isinstance(known, TimedMessage) and known_account is not None:
                # With its own time: the message that was refused may come again, and nothing that is older.
                self._remember_clearing(topic, known, known_account, known.at)
            self._budget.used += RETAIN_WORK + LEVEL_WORK * topic.count("/")
            if clears:
                if old is not None and self._totals.message_hook is not None and not is_system(message.topic):
                    self._totals.message_hook.retained(message if empty else _without_payload(message, 0.0))
                return True
            self._refused(topic, message, refused_by)
            return False
        message = self.put(topic, message, account, published, at)  # whatever its QoS
        if self._totals.journal is not None and not is_system(message.topic):
            self._totals.journal.retained_set(message)
        if self._totals.message_hook is not None and not is_system(message.topic):
            self._totals.message_hook.retained(message)
        return True

    def _refused(self, topic: str, message: Message, refused_by: str) -> None:
        """A message is not retained: it goes to subscribers, and its publisher is told nothing."""
        self._counters.retained_refused += 1
        session = self._sessions.get(message.publisher)
        if session is not None:
            session.refused(RETAIN, topic, reason_codes.QUOTA_EXCEEDED, refused_by, message.qos, True)

    # -- the store that brokers share ----------------------------------------------------------------------------------

    def is_kept_there(self, message: Message) -> bool:
        """Return whether the store that brokers share keeps what is retained of a message's topic."""
        return self.shared is not None and not self._is_own(message)

    def offer(self, message: Message, origin: Session | None, published: bool) -> Offer:
        """Return what the store is to write for a message that is to be retained: see `retain`."""
        topic = message.topic.decode()
        before = self._offers.get(topic)
        if before is not None:
            self._give_back(before)
        old = cast("Message | None", self.tree.get(topic))
        account = self._account_of(message, origin)
        offer = Offer(message, account)
        empty = len(message.payload()) == 0
        refused_by = "" if empty else self._find_room(topic, message, old, account, True)
        offer.clears = empty or refused_by != ""  # [MQTT3-3.3.1-7]
        if refused_by:
            self._refused(topic, message, refused_by)
        if offer.clears:
            if isinstance(old, RetainedMessage) and old.account is not None:
                # Its room is free already: the client that has cleared it may retain another one.
                offer.account, offer.publisher = old.account, old.publisher if old.shared else ""
                offer.count, offer.size = -1, -int(old.charge)
        else:
            if published:
                self.tree.published += 1
                offer.published = self.tree.published
            offer.count = 1 if old is None else 0
            offer.size = max(self._needed(old, account, self._size(topic, message, old)), 0)
            offer.publisher = "" if self._is_link(message.publisher) else message.publisher
        self._set_aside(offer, 1)
        self._offers[topic] = offer
        return offer

    def written(self, offer: Offer) -> None:
        """Give the room of an offer back: it is in the store, and read (`keep`), or will not be."""
        self._give_back(offer)
        topic = offer.message.topic.decode()
        if self._offers.get(topic) is offer:
            del self._offers[topic]

    def _give_back(self, offer: Offer) -> None:
        self._set_aside(offer, -1)
        offer.count = offer.size = 0

    def _set_aside(self, offer: Offer, sign: int) -> None:
        """Count the room of an offer, or count it no more (-1)."""
        count, size = sign * offer.count, sign * offer.size
        self._offered += count
        self.bytes += size
        self.shares.set_aside(offer.account, offer.publisher, count, size)

    def keep(self, message: Message, account: Account, version: i64, own: bool) -> None:
        """Keep what the store has: without payload, its topic was cleared. `own`: this broker has written it."""
        topic = message.topic.decode()
        offer = self._offers.get(topic)
        if offer is not None:
            self._give_back(offer)
        if len(message.payload()) > 0:
            message = self.put(topic, message, account, False, version)
            if own and offer is not None:
                # Those who subscribed before it came were sent it.
                self.tree.sent(topic, offer.published)
        else:
            old = cast("Message | None", self.tree.get(topic))
            if old is None:
                return
            self._clear(topic, old)
        if self._totals.message_hook is not None:
            self._totals.message_hook.retained(message)

    def keep_only(self, topics: set[str]) -> None:
        """Clear what the store does not have: `topics` have messages there."""
        for node in self.tree.matching("#"):
            message = node.value
            if isinstance(message, Message) and node.topic not in topics and self.is_kept_there(message):
                self._clear(node.topic, message)

    def _give_up(self, topic: str, message: Message) -> None:
        """Take a topic's retained message away, here and in the store that brokers share, if it is the same there."""
        self._clear(topic, message)
        if self.shared is not None and isinstance(message, TimedMessage) and self.is_kept_there(message):
            offer = Offer(message, self._accounts.internal)
            offer.clears = True
            offer.replaces = message.at
            self.shared.retain(offer, None)

    # -- the nodes of a cluster ----------------------------------------------------------------------------------------

    def _is_own(self, message: Message) -> bool:
        """Return whether a message is this node's alone: `$SYS` is, and presence, unless all nodes are one."""
        presence = b"" if self._limits.presence_crosses else self._limits.presence_topic
        return is_system(message.topic) or (len(presence) > 0 and is_within(message.topic, presence))

    def _is_shared(self, message: Message) -> bool:
        """Return whether all nodes keep a message."""
        return len(self.nodes) > 0 and not self._is_own(message)

    def _clock(self) -> i64:
        """Return the time of the present batch, in microseconds since 1970."""
        return int((self._totals.now + self._totals.epoch) * 1e6)

    def _node_of(self, message: Message) -> str:
        """Return the name of the node by which a message was retained, or its topic cleared."""
        publisher = message.publisher
        return publisher[len(NODE_LINKS) :] if publisher.startswith(NODE_LINKS) else self._limits.node

    def _time(self, topic: str, message: Message, kept: Message | None) -> i64:
        """Return when a message is retained, or its topic cleared, in microseconds since 1970. `kept`: what is known.

        It is later than what this node has given before, and than what is kept of the topic, however the clocks of the
        nodes differ. Of a message of another node: -1 if it is not newer than what is kept, or cannot be right. Of two
        with the same time all nodes take that of the node with the greater name.
        """
        clock = self._clock()
        if isinstance(kept, TimedMessage) and kept.at > clock + DAY:
            # Of a time when this node's clock was wrong: anything is newer.
            kept = None
        if isinstance(message, NodeMessage):
            if message.at > clock + DAY:
                self._refused(topic, message, TOO_EARLY)
                return -1
            if isinstance(kept, TimedMessage) and (
                message.at < kept.at
                or (message.at == kept.at and self._node_of(message) <= self._node_of(kept))
                # Another node has passed on what is kept here already.
                or (message.at == kept.at and message.payload() == kept.payload())
            ):
                return -1
            return message.at
        totals = self._totals
        totals.retained_at = max(clock, totals.retained_at + 1) if totals.retained_at <= clock + DAY else clock
        at: i64 = totals.retained_at
        return max(at, kept.at + 1) if isinstance(kept, TimedMessage) else at

    def _remember_clearing(self, topic: str, message: Message, account: Account, at: i64) -> bool:
        """Keep for the rest of a day that a topic was cleared; the topic has no message. False: there is no room."""
        left: i64 = min(at + DAY - self._clock(), DAY)
        if left <= 0:
            return True
        cleared = _without_payload(message, self._totals.now + float(left) / 1e6)
        if self._find_room(topic, cleared, None, account, True):
            return False
        cleared = self.put(topic, cleared, account, False, at)
        if self._totals.journal is not None:
            self._totals.journal.retained_set(cleared)
        return True

    def restored(self, message: Message, account: Account) -> None:
        """Put back what a store has kept: see `stored_properties`."""
        at: i64 = 0
        mark = read_mark(message.properties)
        if mark is not None:
            at = mark.at
            message.properties = message.properties[:-MARK_SIZE]
            message.size -= MARK_SIZE
        topic = message.topic.decode()
        if len(message.payload()) > 0 or self._limits.node:
            self.put(topic, message, account, False, at)
        elif self._totals.journal is not None:
            self._totals.journal.retained_cleared(topic)

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Return how many messages count against the limit, with the topics that were cleared."""
        return len(self.tree) + len(self.cleared) - self.system_count + self._offered

    def _tree_of(self, message: Message) -> TopicTree:
        """Return where a message is kept."""
        return self.tree if len(message.payload()) > 0 else self.cleared

    def refused_by(self, topic: str, message: Message, old: Message | None) -> str:
        """Return the setting that leaves no room for a retained message in place of `old`; empty: there is room, or
        others make some. It changes nothing; for `observe.explain`."""
        return self._find_room(topic, message, old, self._account_of(message, None), False)

    def _find_room(self, topic: str, message: Message, old: Message | None, account: Account, acts: bool) -> str:
        """Return the setting that leaves no room for a message in place of `old`; empty: there is room.

        `acts`: others that hold too much give way; if False, nothing is changed.
        """
        if is_free(message):
            return ""
        if 0 < self._limits.max_stored_name < len(message.topic):
            return "store.url"
        size = self._size(topic, message, old)
        accounts = self._accounts
        setting = self._refused_alone(message, old, account, size)
        lacking = -1
        given: i64 = 0
        cleared_bytes: i64 = 0
        if setting and self._refused_alone(message, old, account, size, True):
            given = MAX_GIVEN  # nothing would go but in vain
        while given < MAX_GIVEN:
            if not setting:
                lacking = self._lacking(old, account, size)
                if lacking < 0:
                    return ""
            # What is known to have been cleared goes first: that of the account, and what is the broker's own. For the
            # bounds of one client, what that one has cleared.
            of_client = bool(setting) and setting != MAX_USER_BYTES
            giving = self.shares.oldest_clearing(account, message.publisher if of_client else "")
            if giving is None and not setting:
                giving = self.shares.oldest_clearing(accounts.internal)
            if giving is None and not setting:
                need, most = self._needed(old, account, size), self._limits.max_retained_bytes
                if lacking == RETAINED:
                    need, most = 1, self._limits.max_retained_messages
                giving = self.shares.giver(accounts.rooms[lacking], account, need, most, old)
                if giving is None and account.node and message.qos > 0:
                    # The publisher's node has found room, so that a message of a client there may have gone.
                    giving = self.shares.giving_of(account, old)
                if acts and giving is not None and giving.account is not None:
                    accounts.give_way(giving.account, accounts.rooms[lacking])
            if giving is None or giving.account is None:
                break
            if not acts:
                return ""
            self._budget.used += RETAIN_WORK
            if len(giving.payload()) == 0 and cleared_bytes < self._needed(old, account, size):
                cleared_bytes += giving.charge
            else:
                given += 1
            self._give_up(giving.topic.decode(), giving)
            # Levels may have gone with it that this topic shares.
            size = self._size(topic, message, old)
            setting = self._refused_alone(message, old, account, size)
        if setting:
            if acts and setting == MAX_USER_BYTES:
                accounts.refuse(account, accounts.rooms[RETAINED_SIZE], setting)
            return setting
        lacking = self._lacking(old, account, size)
        if lacking < 0:
            return ""
        if acts:
            accounts.refuse(account, accounts.rooms[lacking], SETTINGS[lacking])
        return SETTINGS[lacking]

    def _size(self, topic: str, message: Message, old: Message | None) -> int:
        """Return the bytes that are counted for a message and for the levels that its topic needs."""
        size = kept_bytes(message, topic)
        if old is None:
            return size + self._tree_of(message).missing(topic) * NODE_BYTES
        return size + old.levels if isinstance(old, RetainedMessage) else size

    def _refused_alone(
        self, message: Message, old: Message | None, account: Account, size: int, gives: bool = False
    ) -> str:
        """The setting about one client, or one user, that leaves no room; empty: there is some. `gives`: once all that
        they have cleared has given way."""
        if not self._is_link(message.publisher):
            given = self.shares.cleared_bytes(account, message.publisher) if gives else 0
            refused = self.shares.refused_by(message, size, old, given)
            if refused:
                return refused
        needed = self._needed(old, account, size) - (self.shares.cleared_bytes(account) if gives else 0)
        refuses = needed > 0 and self._accounts.lacks(account, needed, self._limits.max_user_bytes)
        return MAX_USER_BYTES if refuses else ""

    def _needed(self, old: Message | None, account: Account, size: int) -> int:
        """Return how many bytes more an account holds with a message in place of `old`."""
        return size - int(old.charge) if isinstance(old, RetainedMessage) and old.account is account else size

    def _lacking(self, old: Message | None, account: Account, size: int) -> int:
        """The room that is short for a message in place of `old`, by its number; -1: none is."""
        limits = self._limits
        rooms = self._accounts.rooms
        own = isinstance(old, RetainedMessage) and old.account is account
        if limits.max_retained_messages > 0 and not own:
            used = self.count
            if old is not None:
                used -= 1
            if rooms[RETAINED].left(account, limits.max_retained_messages, used) < 1:
                return RETAINED
        others = self.count - (0 if old is None else 1)
        if limits.max_retained_bytes > 0 and others > 0:  # one fits where nothing else is retained
            needed = self._needed(old, account, size)
            most = limits.max_retained_bytes
            used = self.bytes
            if isinstance(old, RetainedMessage) and not own:
                used -= int(old.charge)
            if needed > most - used or (needed > 0 and rooms[RETAINED_SIZE].left(account, most, used) < needed):
                return RETAINED_SIZE
        return -1

    def _account_of(self, message: Message, origin: Session | None) -> Account:
        """Whose account a message is on."""
        if origin is None:
            origin = self._sessions.get(message.publisher)
        if origin is not None and origin.upstream:
            # What the clients of another broker have published does not fill the whole either.
            return self._accounts.named(LINK_ACCOUNT + origin.client_id[len(UPLINKS) :])
        # By name: that of a session that is over may have come anew.
        return self._accounts.internal if origin is None else self._accounts.named(origin.account.owner.name)

    def _is_link(self, client_id: str) -> bool:
        """Return whether a client is another broker's link, which publishes what many clients have published there."""
        session = self._sessions.get(client_id)
        return session is not None and session.link_peer != ""

    def put(self, topic: str, message: Message, account: Account, published: bool = False, at: i64 = 0) -> Message:
        """Make a message the retained one of its topic and count it, whatever the limits say. No journal is told.

        `at`: see `TimedMessage`. Without payload it says that the topic was cleared. Returns it as it is kept: without
        the wire forms that its fanout made.
        """
        tree = self._tree_of(message)
        levels = tree.node_count
        size = kept_bytes(message, topic)
        kept = RetainedMessage(message, size, at)
        old = cast("Message | None", tree.set(topic, kept, published))
        self._budget.used += RETAIN_WORK + LEVEL_WORK * (tree.node_count - levels)
        if not is_free(message):
            size += (tree.node_count - levels) * NODE_BYTES
            self.bytes += size
            if isinstance(old, RetainedMessage):
                self.bytes -= old.kept
                size += old.levels
            # First what is charged, so that an account is not gone in between.
            self.shares.charge(kept, size, account, self._is_link(message.publisher))
            self.shares.give_back(old)
        elif old is None:
            self.system_count += 1
        if message.expires_at != 0.0:
            self._budget.used += EXPIRY_WORK
            self._deadlines.set(topic, message.expires_at)
        elif old is not None:
            self._deadlines.cancel(topic)
        return kept

    def _clear(self, topic: str, message: Message) -> None:
        """Take a topic's retained message away, or that it was cleared, with all that was counted for it."""
        tree = self._tree_of(message)
        levels = tree.node_count
        tree.remove(topic)
        self.shares.give_back(message)
        if is_free(message):
            self.system_count -= 1
        else:
            kept = message.kept if isinstance(message, RetainedMessage) else kept_bytes(message, topic)
            self.bytes -= kept + (levels - tree.node_count) * NODE_BYTES
            if self._totals.journal is not None and not is_system(message.topic):
                self._totals.journal.retained_cleared(topic)
        self._deadlines.cancel(topic)

    def drop(self, topic: str) -> None:
        """Keep the retained message of a topic no longer, and tell no client. Other workers clear the topic, too."""
        message = cast("Message | None", self.tree.get(topic))
        if message is None:
            return
        if self.for_all_workers and self._is_shared(message):
            self.retain(Message(message.topic, b"", message.qos, True, b"", 0.0, message.publisher))
        else:
            self._give_up(topic, message)

    def expire(self, topic: str, now: float) -> None:
        """The time of a topic's retained message has come, if it still is the one.

        Where there are nodes its topic is known as cleared from then on: an older message of another node does not
        come back.
        """
        message = self.tree.get(topic)
        if message is None:
            message = self.cleared.get(topic)
        if isinstance(message, Message) and 0.0 < message.expires_at <= now:
            account = message.account if isinstance(message, RetainedMessage) else None
            self._clear(topic, message)
            if (
                isinstance(message, TimedMessage)
                and len(message.payload()) > 0
                and account is not None
                and self._is_shared(message)
            ):
                self._remember_clearing(topic, message, account, message.at)

    # -- its publisher's right to the topic ----------------------------------------------------------------------------

    def may_be_sent(self, message: Message) -> bool:
        """Return whether the publisher of a retained message may publish it now (`retained.check_publisher`).

        A publisher that has a session is asked about as what it is now; of another one its client identifier and its
        user name (without one, its address) are known, which is all that a store keeps. What the broker itself, its
        program or a link has retained is always sent, and to nodes that a topic was cleared.
        """
        permissions = self._totals.permissions
        account = account_name(message)
        if permissions is None or not account or message.publisher.startswith(UPLINKS) or len(message.payload()) == 0:
            return True
        principal = self._publisher(message.publisher, account)
        return permissions.asked.may_publish(principal, message.topic.decode(), message.qos, True)

    def _publisher(self, client_id: str, account: str) -> Principal:
        session = self._sessions.get(client_id)
        if session is not None and session.account.owner.name == account:
            return session.principal
        kind, _, name = account.partition(" ")
        if kind == "user":
            return Principal(name, client_id=client_id, authenticator="retained")
        # Of an IPv6 address an account has the network, and of a Unix socket a word.
        host = "" if name == LOCAL else name.partition("/")[0]
        return Principal(None, client_id=client_id, host=host)


def stored_properties(message: Message) -> bytes:
    """The properties of a retained message as a store keeps them, with the time at which a node retained it."""
    return marked(message.properties, 0, message.at if isinstance(message, TimedMessage) else 0)


def _without_payload(message: Message, expires_at: float) -> Message:
    """Return the message that says that a topic was cleared."""
    return Message(message.topic, b"", message.qos, True, b"", expires_at, message.publisher)
