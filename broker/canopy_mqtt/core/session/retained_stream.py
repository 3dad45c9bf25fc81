"""Sends retained messages for new subscriptions, read from the tree as the receiver takes them.

Owns, for one session, the subscriptions that still wait for some, and a cursor over the retained tree for the first of
them. Promises: nothing is queued here, whatever a filter matches; a message is looked up when it is sent, so that an
older one never follows a live message; one of QoS 2 that the session accepted as a live message while the stream ran
is not sent again [MQTT-4.3.3-1]; the work of one turn is bounded, even if a filter visits much and finds little;
starting, stopping and ending a stream cost the same for any number of streams.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.hooks import Permissions
from canopy_mqtt.core.ledger import ACCEPTED, EXCLUDED, NO_ROOM
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.topics.subscription import NO_IDENTIFIERS, Subscription
from canopy_mqtt.core.topics.topic_tree import TopicCursor, TopicNode, TopicTree

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.share_queues import ShareSource
    from canopy_mqtt.core.session.session import Session

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

MAX_STREAMED_FRAME: Final = 4_096
"""Bytes of a retained message up to which each receiver gets a frame of its own. Of a larger one all that wait for it
share the message."""

MISSED: Final = 256
"""Topics remembered whose live message was not accepted, of a session. Beyond it, streams send again all that was
published so far: a message may come twice then, and none is lost."""


class RetainedStream:
    """The retained messages for one subscription, of the topics that exist when it begins."""

    def __init__(
        self, subscription: Subscription, tree: TopicTree, permissions: Permissions | None, since: i64 = -1
    ) -> None:
        """`since`: the number of the last publish before it was subscribed; -1: of the last one."""
        self.subscription = subscription
        self.tree = tree
        self.youngest = tree.youngest
        # What was published later went to the session as a live message, unless access control barred it then.
        self._since: i64 = tree.published if since < 0 else since
        # The session subscribed some time before, and has had live messages.
        self.waited = since >= 0
        self._epochs: i64 = -1 if permissions is None else _epochs(permissions)
        # Over the topics that its filter matches. Made when it is the stream's turn: thousands may wait for theirs.
        self.walk: TopicCursor | None = None
        # Taken from the cursor and not sent yet: the last one goes first.
        self.ahead: list[TopicNode] = []

    def was_live(self, node: TopicNode, permissions: Permissions | None) -> bool:
        """Return whether the session was offered a topic's message when it was published."""
        return node.published > self._since and self._epochs == _epochs(permissions) != NEVER

    def send_live(self) -> None:
        """Send each message, also one that went to the session as a live message: it tells copies apart."""
        self._epochs = NEVER

    def send_all(self) -> None:
        """Send again what has been published until now, and what is being published."""
        self._since = self.tree.published + 1


def _epochs(permissions: Permissions | None) -> i64:
    """Return how often access control has said other things; -1: it filters nothing; NEVER: that is not known."""
    if permissions is None or not permissions.filters:
        return -1
    permissions.refresh()
    return permissions.epochs if permissions.steady else NEVER


class RetainedStreams:
    """The streams of one session, in the order of their subscriptions: never more than it has."""

    def __init__(self) -> None:
        self.source: ShareSource | None = None  # what comes behind them: from the queues of share groups
        # Linked, unlike a plain dict: the first of it is found at once however many were taken from the front.
        self.streams: OrderedDict[str, RetainedStream] = OrderedDict()
        # Messages, and other work, that this turn has left.
        self.left: i64 = STEP
        # Topics whose live message was not accepted while streams ran, with the highest number that it may have got.
        self._missed: dict[bytes, int] = {}

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

    def fill(self, session: Session, send_buffer: SendBuffer, now: float) -> bool:
        """Queue retained messages at the receiver's pace: none is dropped, they wait until there is room.

        Return True if there is more that could go, and only the bound of a turn has ended this one.
        """
        streams = self.streams
        totals = session.totals
        permissions = totals.permissions
        if permissions is not None and (session.internal or not permissions.filters):
            permissions = None
        frames = session.fast_path and not session.upstream and send_buffer.topics is None
        most = session.max_live_qos
        while streams and self.left > 0:
            if send_buffer.messages * 2 >= send_buffer.max_messages or send_buffer.bytes * 2 >= send_buffer.max_bytes:
                # The other half is for live messages.
                return False
            self.left -= 1
            stream = next(iter(streams.values()))
            subscription = stream.subscription
            if not stream.ahead:
                cursor = stream.walk
                if cursor is None:
                    entry = subscription.entry
                    assert entry is not None
                    cursor = stream.walk = TopicCursor(stream.tree, entry.topic_filter, stream.youngest)
                if not cursor.done:
                    before = cursor.steps
                    nodes = cursor.take(AHEAD)
                    self.left -= (cursor.steps - before - len(nodes)) // TOPICS
                    nodes.reverse()
                    stream.ahead = nodes
                if not stream.ahead:
                    if cursor.done:
                        del streams[subscription.topic_filter]
                        if session.journal is not None:
                            session.journal.streamed(session.client_id, subscription.topic_filter)
                    continue
            node = stream.ahead.pop()
            message = node.value
            if not isinstance(message, Message) or 0.0 < message.expires_at <= now:
                continue
            if subscription.no_local and message.publisher == session.client_id:
                # A stored message is still one's own [MQTT-3.8.3-3].
                continue
            if permissions is not None:
                self.left -= permissions.source.ask_work // ASK_PART
                most = min(
                    permissions.asked.receive_qos(session.principal, message.topic.decode()), session.max_live_qos
                )
                if most < 0:
                    session.ledger.barred(session.principal, message.topic, True)
                    continue
            check = totals.retained_check
            if check is not None:
                asked = totals.permissions
                self.left -= 0 if asked is None else asked.source.ask_work // ASK_PART
                if not check.may_be_sent(message):
                    totals.retained_withheld += 1
                    continue
            qos = min(message.qos, subscription.qos, most)  # the lower one [MQTT-3.8.4-8]
            if (
                (qos == 2 or stream.waited)
                and stream.was_live(node, totals.permissions)
                and node.published > self._missed.get(message.topic, 0)
            ):
                continue
            # With RETAIN, since a new subscription is why it is sent [MQTT3-3.3.1-8].
            identifier = subscription.identifier
            expires = message.expires_at != 0.0
            if frames and qos == 0 and not expires and identifier == 0 and message.size < MAX_STREAMED_FRAME:
                # Nothing in its frame depends on when it is written.
                frame = message.frame(session.v5, 0, True, False, 0, NO_IDENTIFIERS, -1, 0, True)
                cause = send_buffer.offer_retained(frame)
            else:
                identifiers = NO_IDENTIFIERS if identifier == 0 else (identifier,)
                cause = _send(session, send_buffer, Delivery(message, qos, True, identifiers, None))
            if cause == NO_ROOM:
                # The message comes again, as the topic has it then.
                stream.ahead.append(node)
                return False
            if cause != EXCLUDED:
                session.offered += 1
                if cause != ACCEPTED:
                    session.ledger.lost(cause, 1)
        if streams:
            return True
        source = self.source
        more = source is not None and source.fill(session, send_buffer, now)
        if source is None or not source.members:
            self.source = None
            session.streams = None
        return more


def _send(session: Session, send_buffer: SendBuffer, delivery: Delivery) -> int:
    """Send a delivery: ACCEPTED, the cause of its drop, NO_ROOM, or EXCLUDED: an upstream broker is not to have it."""
    if session.upstream and not session.adapt_retained(delivery):
        return EXCLUDED
    cause = send_buffer.refusal(delivery.message, delivery.qos, delivery.identifiers)
    if cause != ACCEPTED:
        return cause
    size: i64 = delivery.message.size + HEADROOM
    window = session.window if delivery.qos > 0 else None
    # The first may go also where all queues are full, so that the stream goes on.
    idle = send_buffer.messages == 0 and (window is None or window.inflight.count == 0)
    if not send_buffer.has_room(size) or not (idle or session.totals.has_room(1, size)):
        return NO_ROOM
    if window is None:
        send_buffer.push(delivery)
    elif window.quota <= 0 or not window.send_new(delivery, send_buffer):
        return NO_ROOM
    return ACCEPTED
