"""Delivers a message to a stand-in of a session, with the functions that deliver.

Owns `StandIn`: a session with the terms and the fill of the real one, and none of its messages. Promises: the real one,
its queues and all counters stay as they are. A full queue may find a message to drop (expired, too old, or by policy)
when a new one arrives: the stand-in lets the policy decide as if an older message could go, and is not `certain` then.
"""

from __future__ import annotations

from collections import deque

from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import ACCEPTED, FULL_BYTES, FULL_MESSAGES, NO_QUOTA, REPLACED
from canopy_mqtt.core.queue_totals import UNLIMITED
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.outgoing_topics import OutgoingTopics
from canopy_mqtt.core.queues.queue_terms import DROP_OLDEST, POLICIES, MessageTerms, SubscriptionTerms
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.topics.subscription import Recipient, subscription_identifiers
from canopy_mqtt.observe.explain.answer import Queue


class StandIn:
    """Stands in for a recipient's session, for one message."""

    def __init__(self, recipient: Recipient, message: Message, now: float) -> None:
        self._message = message
        self._counters = Counters()
        self._counters.totals.now = now
        self._real = real = recipient.session
        self._session = made = real.stand_in(self._counters)
        self._buffer = None if real.send_buffer is None else self._connect(real.send_buffer)
        made.send_buffer = self._buffer
        window = real.made_window
        if window is not None:
            made.window.quota, made.window.bytes = window.quota, window.bytes
            made.window.resend, made.window.held = window.resend, window.held
            made.inflight.count = min(window.inflight.count, 1)
        self._queue = made.queue
        queue = real.made_queue
        if queue is not None:
            self._queue.messages, self._queue.bytes, self._queue.qos0 = queue.messages, queue.bytes, queue.qos0
            self._queue.pending = None if queue.pending is None else deque()
        made.account.fit()
        terms = real.message_terms if recipient.message_terms is None else recipient.message_terms
        self._terms = None if terms is None else self._copy(terms)

    def _connect(self, real: SendBuffer) -> SendBuffer:
        made = SendBuffer([], self._counters, 0, 0)
        made.limit(real.policy, real.max_messages, real.max_bytes)
        made.max_packet, made.v5, made.closed = real.max_packet, real.v5, real.closed
        made.messages, made.bytes = real.messages, real.bytes
        made.in_flight_messages, made.in_flight_bytes = real.in_flight_messages, real.in_flight_bytes
        if real.topics is not None:
            # As if the client had topic aliases: no frame is made, which may be large.
            made.topics = OutgoingTopics(1, real.topics.mount)
        return made

    def _copy(self, real: MessageTerms) -> MessageTerms:
        """Copy the delivery that the message would replace, or the oldest, as one that makes room for it."""
        made = MessageTerms(self._session, SubscriptionTerms(real.policy, real.max_age, real.depth))
        made.waiting = real.waiting
        sheds = real.policy == DROP_OLDEST
        first = real.oldest() if sheds else real.of_topic(self._message.topic)
        if first is not None:
            copy = Delivery(self._message if sheds else first.message, first.qos, first.retain, first.identifiers, None)
            copy.live, copy.message_terms = first.live, made
            made.waiting -= 1
            made.enter(copy, first.since)
        return made

    def describe(self, now: float) -> Queue:
        """Describe the queues that the message would enter, before it is delivered."""
        session, buffer, queue, terms = self._session, self._buffer, self._queue, self._terms
        connected = self._real.send_buffer
        peer = None if connected is None else connected.peer
        return Queue(
            policy=POLICIES[queue.policy if terms is None else terms.policy],
            live_messages=0 if buffer is None else buffer.messages,
            live_bytes=0 if buffer is None else buffer.bytes,
            max_live_messages=0 if buffer is None else _bound(buffer.max_messages),
            max_live_bytes=0 if buffer is None else _bound(buffer.max_bytes),
            waiting_messages=queue.messages,
            waiting_bytes=queue.bytes,
            max_waiting_messages=_bound(queue.max_messages),
            max_waiting_bytes=_bound(queue.max_bytes),
            in_flight=self._real.in_flight_messages(),
            send_quota=0 if buffer is None else session.send_quota(),
            max_packet=MAX_PACKET if buffer is None else buffer.max_packet,
            oldest_waits=self._real.waited(now),
            max_age=0.0 if terms is None else terms.max_age,
            depth=0 if terms is None else _bound(terms.depth),
            max_delay=0.0 if peer is None else peer.max_delay(),
        )

    def deliver(self, recipient: Recipient, qos: int, retain: bool) -> int:
        """Deliver the message: see `Session.deliver`."""
        identifiers = subscription_identifiers(recipient)
        return self._session.deliver(self._message, qos, retain, identifiers, None, self._terms)

    def certain(self, cause: int) -> bool:
        """Return whether this answer of `deliver` depends on none of the messages that wait."""
        buffer, queue, dropped = self._buffer, self._queue, self._counters.dropped
        if cause != ACCEPTED:
            return cause not in (FULL_MESSAGES, FULL_BYTES, NO_QUOTA)
        return (
            sum(dropped) == dropped[REPLACED]
            and queue.messages <= queue.max_messages
            and queue.bytes <= queue.max_bytes
            and (buffer is None or (buffer.messages <= buffer.max_messages and buffer.bytes <= buffer.max_bytes))
        )

    @property
    def sent(self) -> bool:
        """True if the connection has the message, and not the session's queue."""
        return self._buffer is not None and self._buffer.offered > 0

    @property
    def disconnects(self) -> bool:
        """True if the client is disconnected for it."""
        real = self._real.send_buffer
        return self._buffer is not None and self._buffer.closed and real is not None and not real.closed


def _bound(value: int) -> int:
    return 0 if value >= UNLIMITED else value
