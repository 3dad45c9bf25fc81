"""Retained messages on their way to new subscriptions, read from the tree as the receiver takes them.

Owns, for one session, a cursor over the retained tree for each subscription that still waits for some. Promises:
nothing is queued here, whatever a filter matches; a message is looked up when it is its turn, so that a live message
that came before is not followed by an older one; the work of one turn is bounded, also where a filter looks at much
and finds little.
"""

from __future__ import annotations

from typing import Final

from broker.core.queues.message import Delivery, Message
from broker.core.queues.outbox import Outbox
from broker.core.topics.subscription import Subscription, identifiers
from broker.core.topics.topic_tree import RetainedCursor, TopicNode

STEP: Final = 256
"""Retained messages fetched at most in one turn, so that one subscriber to all of them does not hold up the loop."""

EMPTY_TAKE: Final = 32
"""What a look at the retained tree that found nothing counts for in a turn: it goes over up to 256 topics."""


class RetainedStream:
    """The retained messages for one subscription."""

    def __init__(self, subscription: Subscription, cursor: RetainedCursor) -> None:
        self.subscription = subscription
        self.cursor = cursor
        # Taken from the cursor and not sent yet, for want of room.
        self.ahead: TopicNode | None = None


class RetainedStreams:
    """The streams of one session, in the order in which they were asked for."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._streams: dict[str, RetainedStream] = {}
        self._left = 0
        self._current: RetainedStream | None = None
        self._node: TopicNode | None = None
        # Filters whose stream has come to its end since somebody asked.
        self.ended: list[str] = []

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

    def start(self, subscription: Subscription, cursor: RetainedCursor) -> None:
        """Begin with what `cursor` finds, in place of a stream of this subscription that still runs."""
        self._streams[subscription.topic_filter] = RetainedStream(subscription, cursor)

    def stop(self, topic_filter: str) -> None:
        """The subscription is gone: so are the retained messages that it still waited for."""
        self._streams.pop(topic_filter, None)

    def turn(self) -> None:
        """A new turn with its own bound."""
        self._left = STEP

    def next(self, outbox: Outbox, now: float) -> Delivery | None:
        """The next message to send; None when there is none, when the outbox is half full, or when the turn is over."""
        streams = self._streams
        while streams and self._left > 0:
            self._left -= 1
            stream = next(iter(streams.values()))
            subscription = stream.subscription
            node = stream.ahead
            if node is None:
                if outbox.half_full():
                    # The other half is for live messages.
                    return None
                nodes = stream.cursor.take(1)
                if not nodes:
                    self._left -= EMPTY_TAKE
                    if stream.cursor.done:
                        del streams[subscription.topic_filter]
                        self.ended.append(subscription.topic_filter)
                    continue
                node = nodes[0]
            stream.ahead = None
            message = node.value
            if not isinstance(message, Message) or 0.0 < message.expires_at <= now:
                continue
            if subscription.no_local and message.publisher == self._client_id:
                # A stored message is still one's own [MQTT-3.8.3-3].
                continue
            self._current = stream
            self._node = node
            # With the lower QoS [MQTT-3.8.4-8], and with RETAIN, since a new subscription is why it is sent
            # [MQTT3-3.3.1-8].
            return Delivery(message, min(message.qos, subscription.qos), True, identifiers(subscription), None)
        return None

    def put_back(self) -> None:
        """There was no room for what `next` gave: it comes again, as the topic has it then."""
        stream = self._current
        assert stream is not None
        stream.ahead = self._node
