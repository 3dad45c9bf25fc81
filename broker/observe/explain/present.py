"""What is there of a receiver: its subscriptions, queues and ledger as they are now, and what they leave for a message.

Whether a full queue finds something to drop for the message (expired, too old, or by policy) is decided when it comes
and not here: then the answer is not certain.
"""

from __future__ import annotations

from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.mounted_names import inner_topic
from broker.core.counters import DISCONNECTED, DROP_CAUSES, FULL_BYTES, FULL_MESSAGES
from broker.core.queues.delivery import SubscriptionQueue
from broker.core.queues.message import Message
from broker.core.queues.policies.queue_policy import DISCONNECT, DROP_NEWEST, POLICIES
from broker.core.queues.queue_totals import UNLIMITED
from broker.core.routing.receivers.plans import Recipient
from broker.core.session.session import Session
from broker.core.topics.subscription import Subscription
from broker.observe.explain.answer import Ledger, Queue, Receiver
from broker.observe.explain.answer import Subscription as Subscribed


def nothing(client: str, session: Session | None) -> Receiver:
    """A receiver that gets nothing, so far."""
    return Receiver(
        client_id=client,
        gets=False,
        outcome="none",
        cause="",
        certain=True,
        connected=session is not None and session.outbox is not None,
        qos=0,
        retain=False,
        subscriptions=[],
        more_subscriptions=0,
        group="",
        rule="",
        disconnects=False,
        topic="",
        queue=None,
        ledger=None if session is None else _ledger(session),
        sentence="",
    )


def inner_name(session: Session, message: Message) -> str:
    """What a client calls the topic; empty: it has no name for it."""
    inner = inner_topic(session.principal.mount.encode(), message.topic)
    return message.topic.decode() if not session.principal.mount else "" if inner is None else inner.decode()


def subscribed(subscription: Subscription) -> Subscribed:
    """One that matches."""
    return Subscribed(
        topic_filter=subscription.topic_filter,
        qos=subscription.qos,
        no_local=subscription.no_local,
        retain_as_published=subscription.retain_as_published,
        identifier=subscription.identifier,
    )


def _ledger(session: Session) -> Ledger:
    dropped = session.ledger.dropped or [0] * len(DROP_CAUSES)
    return Ledger(
        delivered=session.delivered_in_all(),
        queued=session.queued(),
        dropped={cause: count for cause, count in zip(DROP_CAUSES, dropped, strict=True) if count},
    )


def _bound(value: int) -> int:
    return 0 if value >= UNLIMITED else value


def queues(session: Session, target: Recipient, now: float) -> Queue:
    """The queues that the message would meet."""
    outbox, own_queue = session.outbox, session.queue
    own = session.sub_queue if target.sub_queue is None else target.sub_queue
    packet = LARGEST_PACKET if outbox is None else outbox.max_packet
    return Queue(
        policy=POLICIES[own_queue.policy if own is None else own.policy],
        live_messages=0 if outbox is None else outbox.messages,
        live_bytes=0 if outbox is None else outbox.bytes,
        max_live_messages=0 if outbox is None else _bound(outbox.max_messages),
        max_live_bytes=0 if outbox is None else _bound(outbox.max_bytes),
        waiting_messages=own_queue.messages,
        waiting_bytes=own_queue.bytes,
        max_waiting_messages=_bound(own_queue.max_messages),
        max_waiting_bytes=_bound(own_queue.max_bytes),
        in_flight=session.inflight.count,
        send_quota=0 if outbox is None else session.window.quota,
        max_packet=packet,
        oldest_waits=session.waited(now),
        max_age=0.0 if own is None else own.max_age,
        depth=0 if own is None else _bound(own.depth),
    )


def meet(
    made: Receiver,
    session: Session,
    message: Message,
    qos: int,
    identifiers: tuple[int, ...],
    own: SubscriptionQueue | None,
    roomy: bool,
) -> None:
    """Note what the session's queues make of a delivery as they are now.

    `own`: the queue of the subscription, if it has its own. `roomy`: all queues of the broker together have room.
    """
    outbox, queue = session.outbox, session.queue
    if outbox is None and session.ended:
        made.outcome = "gone"
        return
    if session.uplink:
        made.outcome, made.certain = "link", False
        return
    cause = -1
    if outbox is None and qos == 0 and not session.queue_qos0:
        cause = DISCONNECTED
    elif outbox is not None and outbox.too_long(message, qos, identifiers):
        cause = outbox.why_not(message)
    if cause >= 0:
        made.outcome, made.cause = "dropped", DROP_CAUSES[cause]
        return
    size, policy = message.size(), queue.policy
    session.account.fit()
    waiting = queue.messages >= queue.max_messages, queue.bytes + size > queue.max_bytes
    if outbox is None or (queue.qos0 > 0 if qos == 0 else queue.messages > 0 or session.window.quota <= 0):
        made.outcome = "waits"
        full = waiting
    else:
        made.outcome = "sent"
        full = outbox.messages >= outbox.max_messages, outbox.bytes + size > outbox.max_bytes
        if qos == 0:
            policy = outbox.policy
        elif any(full) and not any(waiting):
            made.outcome, full = "waits", waiting
    if own is not None:
        policy = own.policy
        full = full[0] or own.waiting >= own.depth, full[1]
    made.certain = roomy and not any(full)
    made.gets = not any(full) or policy not in (DROP_NEWEST, DISCONNECT)
    if not made.gets:
        made.outcome, made.cause = "dropped", DROP_CAUSES[FULL_MESSAGES if full[0] else FULL_BYTES]
        made.disconnects = policy == DISCONNECT and outbox is not None
