"""Builds a router from a store: sessions with all their state, and retained messages.

Subscriptions, queues in their order, deliveries in flight, packet identifiers of the client's QoS 2 publishes, session
expiry and delayed wills are as before, minus the time that has passed: exactly-once delivery continues (section 4.3.3).
A session whose client was connected counts as disconnected now; its will waits for its delay, and `will_grace` at
least. The present limits apply: what no longer fits into a queue is dropped and counted. What has become due meanwhile
is left to `Router.tick`, which runs when the receivers of the wills exist; broadcasts that were in progress continue
there, and what members of share groups did not finish goes to the queues of the groups. The sessions of links are made
by the links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.core.ledger import SESSION_ENDED, Ledger
from canopy_mqtt.core.persistence.journal import (
    WAITING,
    DeliveryRecord,
    Journal,
    LoneWillRecord,
    MessageRecord,
    Saved,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from canopy_mqtt.core.protocol.identity import is_link, is_reserved
from canopy_mqtt.core.queues.delivery import QUEUED, Delivery
from canopy_mqtt.core.queues.disk_queue import UNBOUNDED, Page
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.bridge_states import announced
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.nodes import new_session
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.share_homes import group_of
from canopy_mqtt.core.routing.share_queues import ShareQueue
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription


def restore(router: Router, saved: Saved, now: float, links: list[SessionRecord]) -> Iterator[None]:
    """Fill a new router, and empty `saved` by that; each step puts back one session, subscription or message. `now` is
    the caller's monotonic clock, above 0; the records' seconds count from it.

    `router.journal` is set before, where there is one: it is told of the new objects and of what changes by this.
    `links` gets the records of links to other brokers, for `refill`.

    Raises:
        RuntimeError: the router has sessions or retained messages.
    """
    if router.sessions or (len(router.retained) and router.shared is None):
        raise RuntimeError("only a new router can be restored")
    messages: dict[MessageRecord, Message] = {}
    groups: list[SessionRecord] = []  # the queues of share groups, whose members come before them
    # Before the sessions: an interrupted stream of retained messages begins again, over the whole tree. Each record is
    # freed once it is put back, so that a million of them do not stand in memory twice.
    saved.retained.reverse()
    while saved.retained:
        kept = saved.retained.pop()
        message = kept.message(now)
        router.retained_store.restored(message, router.accounts.named(kept.account))
        yield
    # The client that has been away for longest comes first, as where room is made (`routing.session_table`).
    saved.sessions.sort(key=_gone_for)
    while saved.sessions:
        record = saved.sessions.pop()
        if record.client_id.startswith(UPLINKS):
            links.append(record)
            continue
        if record.client_id.startswith(SHARE_PREFIX):
            groups.append(record)
            continue
        yield from _session(router, record, messages, now)
        yield
    for record in groups:
        yield from _share_queue(router, record, messages, now)
    router.unfinished.restored(
        [each for each in router.sessions.values() if each.memberships is not None and each.has_messages()]
    )
    for alone in saved.wills:
        restore_will(router, alone, now)
        yield
    for broadcast in saved.broadcasts:
        message = _message(broadcast.message, messages, now)
        origin = router.sessions.get(message.publisher)
        router.fanout.broadcasts.resume(message, origin, broadcast.number, broadcast.passed)


def refill(router: Router, session: Session, record: SessionRecord, now: float) -> Iterator[None]:
    """Give a link's session, which the router has adopted and in which nothing is yet, what a store kept of it, in
    steps as `restore`."""
    yield from _fill(router, session, record, {}, now)
    router.session_table.count(session)


def restore_claimed(router: Router, record: SessionRecord, now: float) -> Session:
    """Take in a claimed session that goes on, for the CONNECT that has claimed it (`core.shared`)."""
    session = _made(router, record, True)
    for _ in _fill(router, session, record, {}, now):
        router.budget.used += 1
    router.session_table.count(session)
    return session


def take(router: Router, session: Session, records: list[DeliveryRecord], now: float) -> None:
    """Queue what the store of a claimed session has read for it, in this order, and send what can be sent.

    The journal is told of each (`restored`), and of those that are not queued (`finished`): there is no room by the
    session's policy, or access control does not let it have them, or with QoS 0 alone: so they came live. Those of
    share groups did not, and may be for a member with QoS 0.
    """
    journal = session.journal
    permissions = router.permissions
    messages: dict[MessageRecord, Message] = {}
    for record in records:
        delivery = _delivery(session, record, messages, now)
        most = 2
        if permissions is not None and permissions.filters and not session.internal:
            most = permissions.asked.receive_qos(session.principal, delivery.message.topic.decode())
        if journal is not None:
            journal.restored(session.client_id, delivery, record.number)
        if most < 0:
            session.ledger.barred(session.principal, delivery.message.topic, False)
        delivery.qos = min(delivery.qos, max(most, 0))
        if delivery.qos == 0 <= most and record.number < 0:  # through a share group
            session.deliver(delivery.message, 0, delivery.retain, delivery.identifiers, None)
        if (delivery.qos == 0 or not session.restore(delivery)) and journal is not None:
            journal.finished(session.client_id, delivery)
    session.fill_and_flush(now)


class _Dropped(Journal):
    """The journal of a session while it is filled again: what comes in was told of long ago, what has to go was not."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def finished(self, client_id: str, delivery: Delivery) -> None:
        self._journal.finished(client_id, delivery)


def _message(record: MessageRecord, messages: dict[MessageRecord, Message], now: float) -> Message:
    """The message of a record: one object, however many deliveries share it."""
    message = messages.get(record)
    if message is None:
        message = messages[record] = record.message(now)
    return message


def _gone_for(record: SessionRecord) -> float:
    """Seconds for which the client has been away; 0.0: it was connected."""
    return 0.0 if record.disconnected_for is None else record.disconnected_for


def _time(remaining: float, now: float) -> float:
    """A point of the monotonic clock. What is past is due now: the clock may not reach back that far."""
    return now + remaining if remaining > 0.0 else now


def _made(router: Router, record: SessionRecord, shared: bool) -> Session:
    """Make the session of a record, with nothing in it, and take it in."""
    session = new_session(record.client_id, router.limits, router.counters, record.principal, shared)
    session.expiry_interval = record.expiry_interval
    session.account.retained = router.retained_store.shares.of(record.client_id)
    router.queue_limits.apply(session)
    router.session_table.add(session)
    return session


def _session(
    router: Router, record: SessionRecord, messages: dict[MessageRecord, Message], now: float
) -> Iterator[None]:
    session = _made(router, record, False)
    yield from _fill(router, session, record, messages, now)
    journal = router.journal
    if record.disconnected_for is None and journal is not None:
        journal.session_kept(session.client_id, session.principal, session.expiry_interval, now)
    if session.expiry_interval != NEVER:
        session.expires_at = _time(session.expiry_interval - _gone_for(record), now)
    if record.will is not None:
        _will(router, session, record.will, now)
    router.session_table.count(session)
    router.schedule(session)


def _share_queue(
    router: Router, record: SessionRecord, messages: dict[MessageRecord, Message], now: float
) -> Iterator[None]:
    """The queue of a share group; it is lost if the group is gone, or it has what no queue has, as with a file that
    another program has changed."""
    group = router.share_queues.find(record.client_id)
    member = None if group is None else group.any_member()
    alien = record.subscriptions or record.received or record.pages
    if group is None or member is None or alien or any(each.state != QUEUED for each in record.deliveries):
        if router.journal is not None:
            router.journal.session_gone(record.client_id)
        if record.deliveries:
            Ledger(record.client_id, router.counters).lost(SESSION_ENDED, len(record.deliveries))
        return
    queue = router.share_queues.make(group, member.session)
    yield from _fill(router, queue, record, messages, now)
    router.session_table.count(queue)
    router.share_queues.settle(queue)


def _fill(
    router: Router,
    session: Session,
    record: SessionRecord,
    messages: dict[MessageRecord, Message],
    now: float,
) -> Iterator[None]:
    """Give a session its subscriptions, its deliveries, and the packet identifiers that came."""
    for wanted in record.subscriptions:
        _subscribe_one(router, session, wanted)
        yield
    if record.received:
        session.received_qos2 = set(record.received)
    journal = router.journal
    if journal is not None:
        session.keep_in(_Dropped(journal))
    pages = deque(record.pages)
    for kept in record.deliveries:
        _pages_before(session, pages, kept.number, journal)
        delivery = _delivery(session, kept, messages, now)
        if journal is not None:
            journal.restored(session.client_id, delivery, kept.number)
        if not session.restore(delivery) and journal is not None:
            journal.finished(session.client_id, delivery)
        yield
    _pages_before(session, pages, UNBOUNDED, journal)
    # Only now: what stands above was told of long ago.
    session.keep_in(journal)


def _pages_before(session: Session, pages: deque[Page], number: int, journal: Journal | None) -> None:
    """Take back the pages whose place is before that of the delivery with a number."""
    while pages and pages[0].first < number:
        page = pages.popleft()
        if journal is not None and journal.pages is not None:
            session.offered += page.messages
            session.queue.restore_page(page, journal.pages, session.queue_qos0)


def _will(router: Router, session: Session, record: WillRecord, now: float) -> None:
    will = record.will
    session.bridge_state = announced(will)
    link = is_link(session.client_id, session.user_name, router.limits)
    if not session.bridge_state and is_reserved(will.topic.encode(), link, router):
        # The topic was none of the broker's own under the settings of then.
        if session.journal is not None:
            session.journal.will_cleared(session.client_id)
        return
    session.will = will
    delay = min(will.delay, session.expiry_interval)
    grace = router.limits.will_grace
    # Never later than if its connection had ended just now, should the clock have been set back.
    wait = float(max(delay, grace)) if record.due_in is None else min(record.due_in, max(delay, grace))
    session.will_due = _time(wait, now)
    if wait > delay:
        # The connection ended with the broker: its client has time to come back. The delay of its own ends before.
        session.grace_from = max(session.will_due - (grace - delay), now)
    if record.due_in is None and session.journal is not None:
        session.journal.will_set(session.client_id, will, session.will_due)


def restore_will(router: Router, record: LoneWillRecord, now: float) -> None:
    """Take back a will whose client has no session: it waits for its turn, or for its client."""
    will, name, principal = record.will, record.name, record.principal
    client_id = name
    if name.startswith(WAITING):
        client_id = name.removeprefix(WAITING).partition("/")[2]
        principal = principal.at(client_id, principal.listener, principal.host)
    link = is_link(client_id, principal.user_name, router.limits)
    if not announced(will) and is_reserved(will.topic.encode(), link, router):
        if router.wills.keeper is not None:
            router.wills.keeper.will_cleared(name)
    elif name.startswith(WAITING):
        router.wills.restore_waiting(name, principal, will)
    else:
        grace = router.limits.will_grace
        wait = grace if record.due_in is None else min(record.due_in, grace)
        router.wills.hold(client_id, principal, will, _time(wait, now), record.due_in is None)


def _subscribe_one(router: Router, session: Session, kept: SubscriptionRecord) -> None:
    group_name, topic_filter = group_of(session, kept.request.topic_filter)
    subscription = Subscription(session, kept.request.topic_filter)
    subscription.agree(kept.request, kept.identifier, router.limits.max_qos)
    router.table.add(session, subscription, group_name, topic_filter)
    if router.tap is not None:
        router.tap.subscribed(subscription, True)
    if not session.internal and (kept.options is not None or router.limits.rules):
        # By what is allowed now.
        terms = router.queue_limits.subscription_terms(session, topic_filter, kept.options)
        router.queue_limits.give_terms(session, subscription, terms, kept.options)
    if kept.streaming:
        session.start_stream(subscription, router.retained)


def _delivery(session: Session, record: DeliveryRecord, messages: dict[MessageRecord, Message], now: float) -> Delivery:
    kept = record.message
    message = Message(b"", b"", record.qos, False, b"", 0.0, "") if kept is None else _message(kept, messages, now)
    subscription = session.subscriptions.get(record.share) if record.share else None
    group = subscription.group if subscription is not None else None
    if isinstance(session, ShareQueue):
        group = session.group
    delivery = Delivery(message, record.qos, record.retain, record.identifiers, group)
    if group is not None:
        delivery.order = record.number
    delivery.packet_id = record.packet_id
    delivery.state = record.state
    delivery.attempts = record.attempts
    return delivery
