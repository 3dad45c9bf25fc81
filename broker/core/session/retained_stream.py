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

from broker.core.persistence.journal import Journal
from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import ACCEPTED, Outbox
from broker.core.queues.message import HEADROOM, Message
from broker.core.queues.queue_totals import QueueTotals
from broker.core.queues.windows.send_window import SendWindow
from broker.core.topics.subscription import Subscription, identifiers
from broker.core.topics.topic_tree import RetainedCursor, RetainedTree, TopicNode

STEP: Final = 256
"""Retained messages fetched at most in one turn, so that one subscriber to all of them does not hold up the loop."""

NO_ROOM: Final = -2
"""Answer of `RetainedStreams.send` where a message has to wait for room."""

ASK_PART: Final = 16
"""What asking access control costs is counted in messages of so many deliveries."""

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
        self._cursor: RetainedCursor | None = None
        # Taken from the cursor and not sent yet, for want of room.
        self.ahead: TopicNode | None = None

    def cursor(self) -> RetainedCursor:
        """The walk over what its filter matches; begun at the first call."""
        cursor = self._cursor
        if cursor is None:
            entry = self.subscription.entry
            assert entry is not None
            cursor = self.tree.walk(entry.topic_filter, self._youngest)
            self._cursor = cursor
        return cursor

    def was_live(self, node: TopicNode, epochs: i64) -> bool:
        """Whether the session was offered a topic's message when it was published."""
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
        self._cursor = None
        self.ahead = None


class RetainedStreams:
    """The streams of one session, in the order of their subscriptions."""

    def __init__(self, ledger: Ledger, totals: QueueTotals) -> None:
        self._ledger = ledger
        self._client_id = ledger.client_id
        self._totals = totals
        # Linked, unlike a plain dict: the first of it is found at once however many were taken from the front.
        self._streams: OrderedDict[str, RetainedStream] = OrderedDict()
        self._left = STEP
        self._current: RetainedStream | None = None
        self._node: TopicNode | None = None
        # Filters whose stream has come to its end, and that no journal has been told of.
        self._ended: dict[str, None] = {}
        # Topics whose live message was not accepted while streams ran, with the highest number that it may have got.
        self._missed: dict[bytes, int] = {}

    @property
    def empty(self) -> bool:
        """True when nothing is on its way any more."""
        return not self._streams

    @property
    def spent(self) -> bool:
        """True when only the bound on its work ended this turn."""
        return self._left <= 0

    def running(self, topic_filter: str) -> bool:
        """Whether retained messages are on their way because of this subscription."""
        return topic_filter in self._streams

    def __len__(self) -> int:
        """How many subscriptions still wait for retained messages: never more than the session has."""
        return len(self._streams)

    def start(self, subscription: Subscription, tree: RetainedTree) -> None:
        """Begin, or begin anew with a stream of this subscription that still runs; it keeps its turn."""
        # It runs again before the journal heard of its end.
        self._ended.pop(subscription.topic_filter, None)
        running = self._streams.get(subscription.topic_filter)
        if running is not None and running.subscription is subscription:
            running.restart(tree, self._epochs())
        else:
            self._streams[subscription.topic_filter] = RetainedStream(subscription, tree, self._epochs())

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
            for stream in self._streams.values():
                stream.send_all()
        for stream in self._streams.values():
            # It is made the retained one after it was offered.
            self._missed[topic] = stream.tree.published + 1
            break

    def stop(self, topic_filter: str) -> None:
        """The subscription is gone: so are the retained messages that it still waited for."""
        self._streams.pop(topic_filter, None)
        self._ended.pop(topic_filter, None)

    def turn(self) -> None:
        """A new turn with its own bound: once for each turn of the writer, and not for each acknowledgement."""
        self._left = STEP

    def next(self, outbox: Outbox, principal: Principal | None, now: float) -> Delivery | None:
        """The next message to send; None when there is none, when the outbox is half full, or when the turn is over.

        `principal`: who gets them, where access control is to be asked whether it may.
        """
        streams = self._streams
        permissions = self._totals.permissions
        if permissions is not None and not permissions.filters:
            permissions = None
        most = 2
        while streams and self._left > 0:
            self._left -= 1
            stream = next(iter(streams.values()))
            subscription = stream.subscription
            node = stream.ahead
            if node is None:
                if outbox.half_full():
                    # The other half is for live messages.
                    return None
                cursor = stream.cursor()
                before = cursor.steps
                nodes = cursor.take(1)
                self._left -= (cursor.steps - before) // TOPICS
                if not nodes:
                    if cursor.done:
                        del streams[subscription.topic_filter]
                        self._ended[subscription.topic_filter] = None
                    continue
                node = nodes[0]
            stream.ahead = None
            message = node.value
            if not isinstance(message, Message) or 0.0 < message.expires_at <= now:
                continue
            if subscription.no_local and message.publisher == self._client_id:
                # A stored message is still one's own [MQTT-3.8.3-3].
                continue
            if permissions is not None and principal is not None:
                self._left -= permissions.source.ask_work // ASK_PART
                most = permissions.receive_qos(principal, message.topic.decode())
                if most < 0:
                    self._ledger.barred(principal, message.topic, True)
                    continue
            check = self._totals.retained_check
            if check is not None:
                asked = self._totals.permissions
                self._left -= 0 if asked is None else asked.source.ask_work // ASK_PART
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
            # With the lower QoS [MQTT-3.8.4-8], and with RETAIN, since a new subscription is why it is sent
            # [MQTT3-3.3.1-8].
            return Delivery(message, qos, True, identifiers(subscription), None)
        return None

    def tell_ended(self, journal: Journal | None) -> None:
        """Tell the session's journal, if there is one, which streams have come to their end since the last time."""
        if self._ended:
            if journal is not None:
                for topic_filter in self._ended:
                    journal.streamed(self._client_id, topic_filter)
            self._ended = {}

    def send(self, delivery: Delivery, outbox: Outbox, window: SendWindow) -> int:
        """Send what `next` gave: ACCEPTED, the cause of its drop, or NO_ROOM: `next` gives it again."""
        size: i64 = delivery.message.size() + HEADROOM
        if outbox.too_large(delivery):
            return outbox.why_not(delivery.message)
        if not self._has_room(outbox, delivery.qos, size, window) or (
            delivery.qos > 0 and (window.quota <= 0 or not window.send_new(delivery, outbox))
        ):
            self._put_back()
            return NO_ROOM
        if delivery.qos == 0:
            outbox.push(delivery)
        return ACCEPTED

    def _has_room(self, outbox: Outbox, qos: int, size: i64, window: SendWindow) -> bool:
        """Whether one may go: the first may, also where all queues together are full, so that the stream goes on."""
        if not outbox.has_room(size):
            return False
        return self._totals.has_room(1, size) or (outbox.messages == 0 and (qos == 0 or window.inflight.count == 0))

    def _put_back(self) -> None:
        """There was no room for what `next` gave: it comes again, as the topic has it then."""
        stream = self._current
        assert stream is not None
        stream.ahead = self._node
