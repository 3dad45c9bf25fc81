"""The parts of an answer that only say what is there: a receiver's subscriptions, queues and ledger as they are now."""

from __future__ import annotations

from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.mounted_names import inner_topic
from broker.core.counters import DROP_CAUSES
from broker.core.queues.message import Message
from broker.core.queues.policies.queue_policy import POLICIES
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
        sheds=0,
        disconnects=False,
        on_disk=False,
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
