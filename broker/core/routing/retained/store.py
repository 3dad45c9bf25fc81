"""The retained messages of a broker: set, replaced, cleared and limited (section 3.3.1.3).

Owns the tree of retained messages and its accounts. Promises: retained messages are limited in number and bytes,
including the levels of their topics; one that does not fit is delivered, counted, and not retained. The broker's own
(`$SYS`) do not count against the clients' limits; the states of bridges do, which bridges publish there.
"""

from __future__ import annotations

from typing import Final, cast

from broker.core.accounts import LINK_ACCOUNT, MAX_USER_BYTES, RETAINED, RETAINED_SIZE, SETTINGS, Account, Accounts
from broker.core.codec import reasons
from broker.core.codec.topic_names import is_system
from broker.core.counters import Counters
from broker.core.hooks import MessageHook
from broker.core.limits import Limits
from broker.core.permissions import Permissions
from broker.core.persistence.journal import Journal
from broker.core.principal import LOCAL, Principal
from broker.core.queues.message import Message
from broker.core.refusals import RETAIN
from broker.core.routing.bridge_states import is_bridge_state
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.loop_detection import UPLINKS
from broker.core.routing.receivers.fanout import Fanout
from broker.core.routing.retained.shares import RetainedMessage, RetainedShares, account_name, kept_bytes
from broker.core.session.session import Session
from broker.core.topics.topic_tree import NODE_BYTES, RetainedTree

RETAIN_WORK: Final = 48
LEVEL_WORK: Final = 3
"""What a retained message that is kept counts for in a turn, as deliveries, and what each new level of its topic does:
65,536 of these take about three milliseconds. One that is refused, or cleared, counts for as much, with all levels."""

MAX_GIVEN: Final = 64
"""Retained messages that go for one that comes: one of 64 KB takes the room of so many small ones."""

EXPIRY_WORK: Final = 48
"""What the time of one that expires counts for besides: it stands among all times that there are."""


def is_free(message: Message) -> bool:
    """Whether a retained message is the broker's own, which counts against no client's limits."""
    return is_system(message.topic) and not is_bridge_state(message.topic)


class RetainedStore:
    """Retained messages by topic, with their times in the deadlines of the router."""

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        deadlines: Deadlines,
        sessions: dict[str, Session],
        fanout: Fanout,
        accounts: Accounts,
    ) -> None:
        """`sessions` tell which clients are links; `fanout` is who keeps account of the work."""
        self.tree = RetainedTree()
        # What counts against the limits: all but the broker's own, and of those the number.
        self.bytes = 0
        self.system_count = 0
        self.journal: Journal | None = None
        self.hook: MessageHook | None = None  # see `Router.message_hook`
        self.permissions: Permissions | None = None  # asked about publishers (`may_be_sent`)
        self._limits = limits
        self._counters = counters
        self._deadlines = deadlines
        self._sessions = sessions
        self._fanout = fanout
        self._accounts = accounts
        # What each client takes of them, and each account.
        self.shares = RetainedShares(limits.max_retained_bytes_per_client, sessions, accounts)

    def retain(self, message: Message, origin: Session | None = None, published: bool = False) -> bool:
        """Keep a retained message in place of the topic's last; an empty payload clears it. `origin`: the publisher's
        session, which may be over; None: it is looked for by the client identifier.

        `published`: it was offered to the topic's subscribers as well. False, and counted, when the limits of retained
        messages are reached. [MQTT-3.3.1-5] [MQTT-3.3.1-6]
        """
        topic = message.topic.decode()
        old = cast("Message | None", self.tree.get(topic))
        empty = len(message.payload()) == 0  # never kept itself [MQTT-3.3.1-7]
        account = self._account_of(message, origin)
        refused_by = "" if empty else self._find_room(topic, message, old, account)
        if empty or refused_by:
            # The old one goes in any case: it is not what the topic says any more [MQTT3-3.3.1-7].
            if old is not None:
                self._clear(topic, old)
            self._fanout.work += RETAIN_WORK + LEVEL_WORK * topic.count("/")
            if empty:
                if old is not None and self.hook is not None and not is_system(message.topic):
                    self.hook.retained(message)
                return True
            self._counters.retained_refused += 1
            session = self._sessions.get(message.publisher)
            if session is not None:
                # It goes to subscribers, and its publisher is told nothing.
                counters = self._counters
                counters.refusals.note(
                    session.ledger,
                    session.principal,
                    RETAIN,
                    topic,
                    reasons.QUOTA_EXCEEDED,
                    counters.load.now,
                    refused_by,
                    message.qos,
                    True,
                )
            return False
        message = self.put(topic, message, account, published)  # whatever its QoS
        if self.journal is not None and not is_system(message.topic):
            self.journal.retained_set(message)
        if self.hook is not None and not is_system(message.topic):
            self.hook.retained(message)
        return True

    def refused_by(self, topic: str, message: Message, old: Message | None) -> str:
        """The setting that leaves no room for a retained message in place of `old`; empty: there is room, or others
        make some."""
        if is_free(message):
            return ""
        account = self._account_of(message, None)
        size = self._size(topic, message, old)
        setting = self._refused_alone(message, old, account, size)
        if not setting:
            lacking = self._lacking(old, account, size)
            if lacking >= 0 and self._giver(lacking, account, self._needed(old, account, size), old) is None:
                setting = SETTINGS[lacking]
        return setting

    def _find_room(self, topic: str, message: Message, old: Message | None, account: Account) -> str:
        """See that there is room for a message in place of `old`: others that hold too much give way.

        Returns the setting that leaves no room; empty: there is room.
        """
        if is_free(message):
            return ""
        size = self._size(topic, message, old)
        accounts = self._accounts
        setting = self._refused_alone(message, old, account, size)
        if setting:
            if setting == MAX_USER_BYTES:
                accounts.refuse(account, accounts.rooms[RETAINED_SIZE], setting)
            return setting
        for _ in range(MAX_GIVEN):
            lacking = self._lacking(old, account, size)
            if lacking < 0:
                return ""
            giving = self._giver(lacking, account, self._needed(old, account, size), old)
            if giving is None or giving.account is None:
                break
            accounts.give_way(giving.account, accounts.rooms[lacking])
            self._fanout.work += RETAIN_WORK
            self.drop(giving.topic.decode())
            # Levels may have gone with it that this topic shares.
            size = self._size(topic, message, old)
        lacking = self._lacking(old, account, size)
        if lacking < 0:
            return ""
        accounts.refuse(account, accounts.rooms[lacking], SETTINGS[lacking])
        return SETTINGS[lacking]

    def _size(self, topic: str, message: Message, old: Message | None) -> int:
        """What is counted for a message and for the levels that its topic needs."""
        size = kept_bytes(message, topic)
        if old is None:
            return size + self.tree.missing(topic) * NODE_BYTES
        return size + old.levels if isinstance(old, RetainedMessage) else size

    def _refused_alone(self, message: Message, old: Message | None, account: Account, size: int) -> str:
        """The setting about one client, or one user, that leaves no room; empty: there is some."""
        if not self._is_link(message.publisher):
            refused = self.shares.refused_by(message, size, old)
            if refused:
                return refused
        most = self._limits.max_user_bytes
        needed = self._needed(old, account, size)
        refuses = 0 < most < account.bytes + needed and needed > 0 and not account.internal
        return MAX_USER_BYTES if refuses else ""

    def _needed(self, old: Message | None, account: Account, size: int) -> int:
        """How many bytes more an account holds with a message in place of `old`."""
        return size - int(old.charge) if isinstance(old, RetainedMessage) and old.account is account else size

    def _lacking(self, old: Message | None, account: Account, size: int) -> int:
        """The room that is short for a message in place of `old`, by its number; -1: none is."""
        limits = self._limits
        rooms = self._accounts.rooms
        own = isinstance(old, RetainedMessage) and old.account is account
        if limits.max_retained_messages > 0 and not own:
            used = len(self.tree) - self.system_count
            if old is not None:
                used -= 1
            if rooms[RETAINED].left(account, limits.max_retained_messages, used) < 1:
                return RETAINED
        others = len(self.tree) - self.system_count - (0 if old is None else 1)
        if limits.max_retained_bytes > 0 and others > 0:  # one fits where nothing else is retained
            needed = self._needed(old, account, size)
            most = limits.max_retained_bytes
            used = self.bytes
            if isinstance(old, RetainedMessage) and not own:
                used -= int(old.charge)
            if needed > most - used or (needed > 0 and rooms[RETAINED_SIZE].left(account, most, used) < needed):
                return RETAINED_SIZE
        return -1

    def _giver(self, lacking: int, account: Account, needed: int, old: Message | None) -> RetainedMessage | None:
        """The message that is to go so that an account gets some of a room; None: it gets none."""
        room = self._accounts.rooms[lacking]
        if lacking == RETAINED:
            return self.shares.giver(room, account, 1, self._limits.max_retained_messages, old)
        return self.shares.giver(room, account, needed, self._limits.max_retained_bytes, old)

    def _account_of(self, message: Message, origin: Session | None) -> Account:
        """Whose account a message is on."""
        if origin is None:
            origin = self._sessions.get(message.publisher)
        if origin is not None and origin.uplink:
            # What the clients of another broker have published does not fill the whole either.
            return self._accounts.named(LINK_ACCOUNT + origin.client_id[len(UPLINKS) :])
        # By name: that of a session that is over may have come anew.
        return self._accounts.internal if origin is None else self._accounts.named(origin.account.owner.name)

    def _is_link(self, client_id: str) -> bool:
        """Whether a client is another broker's link, which publishes what many clients have published there."""
        session = self._sessions.get(client_id)
        return session is not None and session.link_peer != ""

    def put(self, topic: str, message: Message, account: Account, published: bool = False) -> Message:
        """Make a message the retained one of its topic and count it, whatever the limits say. No journal is told.

        Returns it as it is kept: without the wire forms that its fanout made.
        """
        tree = self.tree
        levels = tree.node_count
        size = kept_bytes(message, topic)
        kept = RetainedMessage(message, size)
        old = cast("Message | None", tree.set(topic, kept, published))
        self._fanout.work += RETAIN_WORK + LEVEL_WORK * (tree.node_count - levels)
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
            self._fanout.work += EXPIRY_WORK
            self._deadlines.set(topic, message.expires_at)
        elif old is not None:
            self._deadlines.cancel(topic)
        return kept

    def _clear(self, topic: str, message: Message) -> None:
        """Take a topic's retained message away, with all that was counted for it."""
        tree = self.tree
        levels = tree.node_count
        tree.remove(topic)
        self.shares.give_back(message)
        if is_free(message):
            self.system_count -= 1
        else:
            kept = message.kept if isinstance(message, RetainedMessage) else kept_bytes(message, topic)
            self.bytes -= kept + (levels - tree.node_count) * NODE_BYTES
            if self.journal is not None and not is_system(message.topic):
                self.journal.retained_cleared(topic)
        self._deadlines.cancel(topic)

    def drop(self, topic: str) -> None:
        """Keep the retained message of a topic no longer; nobody is told."""
        message = cast("Message | None", self.tree.get(topic))
        if message is not None:
            self._clear(topic, message)

    def expire(self, topic: str, now: float) -> None:
        """The time of a topic's retained message has come, if it still is the one."""
        message = self.tree.get(topic)
        if isinstance(message, Message) and 0.0 < message.expires_at <= now:
            self._clear(topic, message)

    # -- its publisher's right to the topic ----------------------------------------------------------------------------

    def may_be_sent(self, message: Message) -> bool:
        """Whether the publisher of a retained message may publish it now (`retained.check_publisher`).

        A publisher that has a session is asked about as what it is now; of another one its client identifier and its
        user name (without one, its address) are known, which is all that a store keeps. What the broker itself, its
        program or a link has retained is always sent.
        """
        permissions = self.permissions
        account = account_name(message)
        if permissions is None or not account:
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
