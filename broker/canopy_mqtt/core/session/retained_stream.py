"""Sends retained messages for new subscriptions, read from the tree as the receiver takes them.

Owns, for one session, the subscriptions that still wait for some, and a cursor over the retained tree for the first of
them. Promises: nothing is queued here, whatever a filter matches; a message is looked up when it is sent, so that an
older one never follows a live message; one of QoS 2 that the session accepted as a live message while the stream ran
is not sent again [MQTT-4.3.3-1]; the work of one turn is bounded, even if a filter visits much and finds little;
starting, stopping and ending a stream cost the same for any number of streams.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.counters import QueueTotals
from canopy_mqtt.core.ledger import ACCEPTED, NO_ROOM, Ledger
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.queues.send_window import SendWindow
from canopy_mqtt.core.topics.route import NO_IDENTIFIERS
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.core.topics.topic_tree import RetainedCursor, RetainedTree, TopicNode

STEP: Final = 256
"""Retained messages fetched at most in one turn, so that one subscriber to all of them does not hold up the loop."""

ASK_PART: Final = 16
"""A question to access control costs as much as this number of deliveries, and is counted in messages."""

AHEAD: Final = 16
"""Topics that a stream takes from the retained tree at once; each is read when its message is sent."""

TOPICS: Final = 8
"""Topics of the retained tree that are looked at for what one message counts in a turn."""


NEVER: Final = -2
"""In place of `epochs` where what access control says is not remembered: nothing is known of what it said then."""

MISSED: Final = 256
"""Topics remembered whose live message was not accepted, of a session. Beyond it, streams send again all that was
published so far: a message may come twice then, and none is lost."""


class RetainedStream:
    """The retained messages for one subscription, of the topics that exist now."""

    def __init__(self, subscription: Subscription, tree: RetainedTree, epochs: i64) -> None:
        """`epochs`: how often access control has said other things (`Permissions`); -1: it filters nothing."""
        self.subscription = subscription
        self.tree = tree
        self._youngest = tree.youngest
        # What was published later went to the session as a live message, unless access control barred it then.
        self._since: i64 = tree.published
        self._epochs: i64 = epochs
        # Made when it is the stream's turn: thousands may wait for theirs, each a few bytes.
        self.walk: RetainedCursor | None = None
        # Taken from the cursor and not sent yet: the last one goes first.
        self.ahead: list[TopicNode] = []

    def cursor(self) -> RetainedCursor:
        """Return the walk over the topics that its filter matches; the first call begins it."""
        cursor = self.walk
        if cursor is None:
            entry = self.subscription.entry
            assert entry is not None
            cursor = RetainedCursor(self.tree, entry.topic_filter, self._youngest)
            self.walk = cursor
        return cursor

    def was_live(self, node: TopicNode, epochs: i64) -> bool:
        """Return whether the session was offered a topic's message when it was published."""
        return node.published > self._since and self._epochs == epochs != NEVER

    def send_all(self) -> None:
        """Send again what has been published until now, and what is being published."""
        self._since = self.tree.published + 1

    def restart(self, tree: RetainedTree, epochs: i64) -> None:
        """Begin again, with what there is now."""
        self.tree = tree
        self._youngest = tree.youngest
        self._since = tree.published
        self._epochs = epochs
        self.walk = None
        self.ahead = []


class RetainedStreams:
    """The streams of one session, in the order of their subscriptions."""

    def __init__(self, ledger: Ledger, totals: QueueTotals) -> None:
        self._ledger = ledger
        self._client_id = ledger.client_id
        self._totals = totals
        # Linked, unlike a plain dict: the first of it is found at once however many were taken from the front.
        self.streams: OrderedDict[str, RetainedStream] = OrderedDict()
        # Messages, and other work, that this turn has left.
        self.left: i64 = STEP
        # What `next` gave last, and how it is delivered.
        self.qos: i64 = 0
        self.identifiers: tuple[int, ...] = NO_IDENTIFIERS
        self._current: RetainedStream | None = None
        self._node: TopicNode | None = None
        # Filters whose stream has come to its end, and that no journal has been told of.
        self.ended: dict[str, None] = {}
        # Topics whose live message was not accepted while streams ran, with the highest number that it may have got.
        self._missed: dict[bytes, int] = {}

    def running(self, topic_filter: str) -> bool:
        """Return whether retained messages are on their way because of this subscription."""
        return topic_filter in self.streams

    def __len__(self) -> int:
        """Return how many subscriptions still wait for retained messages: never more than the session has."""
        return len(self.streams)

    def start(self, subscription: Subscription, tree: RetainedTree) -> None:
        """Begin, or begin anew with a stream of this subscription that still runs; it keeps its turn."""
        # The stream runs again before the journal heard of its end.
        self.ended.pop(subscription.topic_filter, None)
        epochs: i64 = -1 if self._totals.permissions is None else self._epochs()
        running = self.streams.get(subscription.topic_filter)
        if running is not None and running.subscription is subscription:
            running.restart(tree, epochs)
        else:
            self.streams[subscription.topic_filter] = RetainedStream(subscription, tree, epochs)

    def _epochs(self) -> i64:
        permissions = self._totals.permissions
        if permissions is None or not permissions.filters:
            return -1
        permissions.refresh()
        return permissions.epochs if permissions.steady else NEVER

    def missed(self, topic: bytes) -> None:
        """A live message of this topic was not accepted: a stream that has still to send it does."""
        if len(self._missed) >= MISSED:
            self._missed = {}
            for stream in self.streams.values():
                stream.send_all()
        for stream in self.streams.values():
            # A message is made the retained one after it was offered.
            self._missed[topic] = stream.tree.published + 1
            break

    def stop(self, topic_filter: str) -> None:
        """The subscription is gone: so are the retained messages that it still waited for."""
        self.streams.pop(topic_filter, None)
        self.ended.pop(topic_filter, None)

    def next(self, send_buffer: SendBuffer, principal: Principal | None, now: float) -> Message | None:
        """Return the next message to send; None: there is none, the buffer is half full, or the turn is over.

        Then `qos` and `identifiers` are those of its delivery, or it is to be `put_back`. `principal`: who gets them,
        where access control is to be asked whether it may.
        """
        streams = self.streams
        permissions = self._totals.permissions
        if permissions is not None and not permissions.filters:
            permissions = None
        most = 2
        while streams and self.left > 0:
            if send_buffer.messages * 2 >= send_buffer.max_messages or send_buffer.bytes * 2 >= send_buffer.max_bytes:
                # The other half is for live messages.
                return None
            self.left -= 1
            stream = next(iter(streams.values()))
            subscription = stream.subscription
            if not stream.ahead:
                cursor = stream.walk
                if cursor is None:
                    cursor = stream.cursor()
                if not cursor.done:
                    before = cursor.steps
                    nodes = cursor.take(AHEAD)
                    self.left -= (cursor.steps - before - len(nodes)) // TOPICS
                    nodes.reverse()
                    stream.ahead = nodes
                if not stream.ahead:
                    if cursor.done:
                        del streams[subscription.topic_filter]
                        self.ended[subscription.topic_filter] = None
                    continue
            node = stream.ahead.pop()
            message = node.value
            if not isinstance(message, Message) or 0.0 < message.expires_at <= now:
                continue
            if subscription.no_local and message.publisher == self._client_id:
                # A stored message is still one's own [MQTT-3.8.3-3].
                continue
            if permissions is not None and principal is not None:
                self.left -= permissions.source.ask_work // ASK_PART
                most = permissions.receive_qos(principal, message.topic.decode())
                if most < 0:
                    self._ledger.barred(principal, message.topic, True)
                    continue
            check = self._totals.retained_check
            if check is not None:
                asked = self._totals.permissions
                self.left -= 0 if asked is None else asked.source.ask_work // ASK_PART
                if not check.may_be_sent(message):
                    self._totals.retained_withheld += 1
                    continue
            qos = min(message.qos, subscription.qos, most)
            if (
                qos == 2
                and stream.was_live(node, self._epochs())
                and node.published > self._missed.get(message.topic, 0)
            ):
                continue
            self._current = stream
            self._node = node
            self.qos = i64(qos)  # the lower one [MQTT-3.8.4-8]
            identifier = subscription.identifier
            self.identifiers = NO_IDENTIFIERS if identifier == 0 else (identifier,)
            return message
        return None

    def put_back(self) -> None:
        """Give back what `next` gave, for want of room: it comes again, as the topic has it then."""
        assert self._current is not None
        assert self._node is not None
        self._current.ahead.append(self._node)

    def tell_ended(self, journal: Journal | None) -> None:
        """Tell the session's journal, if there is one, which streams have come to their end since the last time."""
        if self.ended:
            if journal is not None:
                for topic_filter in self.ended:
                    journal.streamed(self._client_id, topic_filter)
            self.ended = {}

    def send(self, delivery: Delivery, send_buffer: SendBuffer, window: SendWindow | None) -> int:
        """Send a delivery of what `next` gave: ACCEPTED, the cause of its drop, or NO_ROOM.

        `window`: the session's, which a delivery of QoS 1 or 2 needs.
        """
        cause = send_buffer.refusal(delivery.message, delivery.qos, delivery.identifiers)
        if cause != ACCEPTED:
            return cause
        size: i64 = delivery.message.size + HEADROOM
        # The first may go also where all queues are full, so that the stream goes on.
        idle = send_buffer.messages == 0 and (window is None or delivery.qos == 0 or window.inflight.count == 0)
        if not send_buffer.has_room(size) or not (idle or self._totals.has_room(1, size)):
            return NO_ROOM
        if delivery.qos == 0:
            send_buffer.push(delivery)
        elif window is None or window.quota <= 0 or not window.send_new(delivery, send_buffer):
            return NO_ROOM
        return ACCEPTED
