"""The retained messages of a broker: set, replaced, cleared and limited (section 3.3.1.3).

Owns the tree of retained messages and its accounts. Promises: retained messages are limited in number and bytes,
including the levels of their topics; one that does not fit is delivered, counted, and not retained. The broker's own
(`$SYS`) do not count against the clients' limits.
"""

from __future__ import annotations

from typing import Final, cast

from broker.core.codec.topic_names import is_system
from broker.core.counters import Counters
from broker.core.hooks import MessageHook, RetainedListener
from broker.core.limits import Limits
from broker.core.persistence.journal import Journal
from broker.core.queues.message import Message
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.receivers.fanout import Fanout
from broker.core.routing.retained.shares import RetainedMessage, RetainedShares, kept_bytes
from broker.core.session.session import Session
from broker.core.topics.topic_tree import NODE_BYTES, RetainedTree

RETAIN_WORK: Final = 48
LEVEL_WORK: Final = 3
"""What a retained message that is kept counts for in a turn, as deliveries, and what each new level of its topic does:
65,536 of these take about three milliseconds. One that is refused, or cleared, counts for as much, with all levels."""

EXPIRY_WORK: Final = 48
"""What the time of one that expires counts for besides: it stands among all times that there are."""


class RetainedStore:
    """Retained messages by topic, with their times in the deadlines of the router."""

    def __init__(
        self, limits: Limits, counters: Counters, deadlines: Deadlines, sessions: dict[str, Session], fanout: Fanout
    ) -> None:
        """`sessions` tell which clients are links; `fanout` is who keeps account of the work."""
        self.tree = RetainedTree()
        # What counts against the limits: all but the broker's own, and of those the number.
        self.bytes = 0
        self.system_count = 0
        self.journal: Journal | None = None
        self.hook: MessageHook | None = None  # see `Router.message_hook`
        self.listener: RetainedListener | None = None  # who tells other brokers, if anybody does
        self._limits = limits
        self._counters = counters
        self._deadlines = deadlines
        self._sessions = sessions
        self._fanout = fanout
        # What each client takes of them.
        self.shares = RetainedShares(limits.max_retained_bytes_per_client, sessions)

    def retain(self, message: Message, published: bool = False) -> bool:
        """Keep a retained message in place of the topic's last; an empty payload clears it.

        `published`: it was offered to the topic's subscribers as well. False, and counted, when the limits of retained
        messages are reached. [MQTT-3.3.1-5] [MQTT-3.3.1-6]
        """
        topic = message.topic.decode()
        old = cast("Message | None", self.tree.get(topic))
        empty = len(message.payload()) == 0  # never kept itself [MQTT-3.3.1-7]
        if empty or self.refused_by(topic, message, old):
            # The old one goes in any case: it is not what the topic says any more [MQTT3-3.3.1-7].
            if old is not None:
                self._clear(topic, old)
            self._fanout.work += RETAIN_WORK + LEVEL_WORK * topic.count("/")
            self._written(topic, message)
            if empty:
                if old is not None and self.hook is not None and not is_system(message.topic):
                    self.hook.retained(message)
                return True
            self._counters.retained_refused += 1
            return False
        message = self.put(topic, message, published)  # whatever its QoS
        self._written(topic, message)
        if self.journal is not None and not is_system(message.topic):
            self.journal.retained_set(message)
        if self.hook is not None and not is_system(message.topic):
            self.hook.retained(message)
        return True

    def refused_by(self, topic: str, message: Message, old: Message | None) -> str:
        """The setting that leaves no room for a retained message in place of `old`; empty: there is room."""
        if is_system(message.topic):
            return ""
        limits = self._limits
        if old is None and 0 < limits.max_retained_messages <= len(self.tree) - self.system_count:
            return "limits.max_retained_messages"
        most = limits.max_retained_bytes
        shares = self.shares
        if most == 0 and shares.most == 0:
            return ""
        size = kept_bytes(message, topic)
        if old is None:
            size += self.tree.missing(topic) * NODE_BYTES
        if not self._is_link(message.publisher):
            refused = shares.refused_by(message, size, old)
            if refused:
                return refused
        if isinstance(old, RetainedMessage):
            size -= old.kept
        if most == 0 or self.bytes + size <= most:
            return ""
        # One fits where nothing else is retained.
        others = len(self.tree) - self.system_count - (0 if old is None else 1)
        return "limits.max_retained_bytes" if others > 0 else ""

    def _is_link(self, client_id: str) -> bool:
        """Whether a client is another broker's link, which publishes what many clients have published there."""
        session = self._sessions.get(client_id)
        return session is not None and session.link_peer != ""

    def put(self, topic: str, message: Message, published: bool = False) -> Message:
        """Make a message the retained one of its topic and count it, whatever the limits say. No journal is told.

        Returns it as it is kept: without the wire forms that its fanout made.
        """
        tree = self.tree
        levels = tree.node_count
        size = kept_bytes(message, topic)
        message = RetainedMessage(message, size)
        old = cast("Message | None", tree.set(topic, message, published))
        self._fanout.work += RETAIN_WORK + LEVEL_WORK * (tree.node_count - levels)
        if not is_system(message.topic):
            size += (tree.node_count - levels) * NODE_BYTES
            self.bytes += size
            if isinstance(old, RetainedMessage):
                self.bytes -= old.kept
                size += old.levels
                self.shares.give_back(old)
            if not self._is_link(message.publisher):
                self.shares.charge(message, size)
        elif old is None:
            self.system_count += 1
        if message.expires_at != 0.0:
            self._fanout.work += EXPIRY_WORK
            self._deadlines.set(topic, message.expires_at)
        elif old is not None:
            self._deadlines.cancel(topic)
        return message

    def _clear(self, topic: str, message: Message) -> None:
        """Take a topic's retained message away, with all that was counted for it."""
        tree = self.tree
        levels = tree.node_count
        tree.remove(topic)
        self.shares.give_back(message)
        if is_system(message.topic):
            self.system_count -= 1
        else:
            kept = message.kept if isinstance(message, RetainedMessage) else kept_bytes(message, topic)
            self.bytes -= kept + (levels - tree.node_count) * NODE_BYTES
            if self.journal is not None:
                self.journal.retained_cleared(topic)
        self._deadlines.cancel(topic)

    def drop(self, topic: str) -> None:
        """Keep the retained message of a topic no longer; nobody is told."""
        message = cast("Message | None", self.tree.get(topic))
        if message is not None:
            self._clear(topic, message)
            self._written(topic, message)

    def expire(self, topic: str, now: float) -> None:
        """The time of a topic's retained message has come, if it still is the one."""
        message = self.tree.get(topic)
        if isinstance(message, Message) and 0.0 < message.expires_at <= now:
            self._clear(topic, message)
            if self.listener is not None and not is_system(message.topic):
                self.listener.expired(topic)

    def _written(self, topic: str, message: Message) -> None:
        """Tell who listens that a topic's message was kept, replaced or cleared."""
        if self.listener is not None and not is_system(message.topic):
            self.listener.written(topic)
