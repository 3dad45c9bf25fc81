"""The queues of share groups: what comes while no member is connected waits for the one that connects first.

Owns `ShareQueue` (a session without a client, `$share/NAME/FILTER`), the way of a message into it and out of it, and
`Unfinished`: what becomes of the messages of a member that leaves (section 4.8.2).
Promises: a message of a group is at any time with one member, or in the queue, or over; while something waits in the
queue, what comes goes behind it, and each connected member takes from it as soon as it has room.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.counters import QueueTotals
from canopy_mqtt.core.jobs import OBJECT_WORK, REASSIGNING, Budget, Job, Scheduler
from canopy_mqtt.core.ledger import (
    ACCEPTED,
    AGE,
    EXPIRED,
    FULL_MESSAGES,
    NOT_AUTHORIZED,
    REPLACED,
    SESSION_ENDED,
)
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import SENT, Delivery, order_of
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.message_queue import MERGE_SHIFT
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.fanout import UNQUEUED, Fanout, share_qos
from canopy_mqtt.core.session.retained_stream import RetainedStreams, Source
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.route import NO_IDENTIFIERS, Recipient, subscription_identifiers
from canopy_mqtt.core.topics.subscription import SharedGroup, Subscription

if TYPE_CHECKING:
    from canopy_mqtt.core.limits import Limits
    from canopy_mqtt.core.queues.queue_terms import MessageTerms
    from canopy_mqtt.core.routing.recipients import Verdicts
    from canopy_mqtt.core.routing.router import Router

TURN: Final = 256
"""Messages that a member takes at most before others have their turn."""

MAX_MADE: Final = 64
"""Queues that are made in one batch, in 3 milliseconds: a message may be for very many groups. What is for others waits
in the session of a member."""

AT_ONCE: Final = 512
"""Unfinished messages that other members get in the call in which one leaves: half a millisecond."""


class ShareQueue(Session):
    """Keeps what waits for a share group. It is a session in all else: bounds, policy, accounts, journal, lists.

    It belongs to the principal of one of the members. It ends when nothing waits, and with the last member.
    """

    def __init__(self, queues: ShareQueues, group: SharedGroup, limits: Limits, principal: Principal) -> None:
        counters = queues.counters
        super().__init__(group.full_name, limits.session_messages, limits.session_bytes, counters, principal)
        self.group = group
        self.queue_qos0 = limits.queue_qos0
        self.expiry_interval = NEVER
        self._queues = queues

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        super().shed(messages, size, cause)
        self._queues.has_shed(self)

    def shed_one(self, delivery: Delivery, cause: int) -> None:
        super().shed_one(delivery, cause)
        self._queues.has_shed(self)

    def shed_stale(self, message_terms: MessageTerms, now: float, most: i64) -> i64:
        count = super().shed_stale(message_terms, now, most)
        self._queues.has_shed(self)
        return count


class ShareSource(Source):
    """Takes for one connected session from the queues of its share groups, from each in turn."""

    def __init__(self, queues: ShareQueues) -> None:
        self.members: OrderedDict[Subscription, None] = OrderedDict()
        self._queues = queues

    def fill(self, session: Session, send_buffer: SendBuffer, now: float) -> bool:
        del session  # that of all members
        members = self.members
        left: i64 = TURN
        while members:
            member = next(iter(members))
            group = member.group
            queue = None if group is None else group.queue
            if queue is None:
                del members[member]
                continue
            if left == 0:
                return True
            left -= 1
            if not self._queues.hand_out(queue, member, send_buffer, now):
                return False
            members.move_to_end(member)
        return False

    def is_over(self) -> bool:
        return not self.members


class ShareQueues:
    """The queues of one router's share groups.

    A message keeps its place in the order of the group (`Delivery.order`) wherever it is, and a queue is in that order,
    also after a restart: the place is the number by which a store knows what waits.

    A move is told to the journal as the end of one delivery and the beginning of another, in one call of the core, so
    that a store commits both or neither; and a QoS 2 message is sent only once that is committed (`HeldDeliveries`).
    Wherever a broker dies, it has the message either in the queue, never sent, or with the member to which it may have
    been sent: QoS 2 is neither lost nor doubled. QoS 1 may have been sent before the commit, and comes again then. What
    is given back is QoS 1, or was never sent.
    """

    def __init__(self, router: Router) -> None:
        self.counters = router.counters
        self._router = router
        self._load = router.counters.load
        # Queues that have dropped all that they had: they may be about to take a message.
        self._emptied: dict[Session, None] = {}
        # When queues were made last, and how many.
        self._made_at = 0.0
        self._made: i64 = 0

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, group: SharedGroup, member: Subscription, message: Message) -> int:
        """Queue a new message for a group: ACCEPTED, or the cause of its drop. `member`: whose turn it would be.

        `UNQUEUED`, and nothing has happened: it does not wait here, but is for that member. So it is with QoS 0, unless
        sessions queue that, and where there is no room for another session.
        """
        qos = min(message.qos, group.highest_qos)
        if qos == 0 and not self._router.limits.queue_qos0:
            return UNQUEUED
        queue = self.of(group, member.session)
        if queue is None:
            return UNQUEUED
        answer = queue.deliver(message, qos, False, NO_IDENTIFIERS, group)
        self._settle(queue)
        if answer == ACCEPTED and group.connected.count > 0:
            queue.queue.crowd()
        return answer

    def of(self, group: SharedGroup, session: Session) -> Session | None:
        """Return the queue of a group; a new one belongs to the principal of `session`.

        None: there is no room for it, or `MAX_MADE` are new.

        Callers put something into a new one at once, and call nothing else before.
        """
        queue = group.queue
        if queue is not None:
            return queue
        principal = _as_owner(session.principal, group)
        if self._made_at != self._load.now:
            self._made_at = self._load.now
            self._made = 0
        if self._made >= MAX_MADE or self._lacks_room(group, principal):
            return None
        self._made += 1
        made = self.make(group, principal)
        journal = self._router.journal
        if journal is not None:
            made.keep_in(journal)
            journal.session_kept(made.client_id, principal, NEVER, self._load.now)
        return made

    def would_take(self, group: SharedGroup, member: Subscription, message: Message) -> Recipient | None:
        """Return what a new message would come to if it were for the queue of a group, and change nothing.

        None: it would be for that member (`Fanout.choose`).
        """
        if group.queue is None and (member.present or group.connected.count > 0):
            return None
        qos = min(message.qos, group.highest_qos)
        if qos == 0 and not self._router.limits.queue_qos0:
            return None
        queue = group.queue
        if queue is None:
            principal = _as_owner(member.session.principal, group)
            if self._lacks_room(group, principal):
                return None
            queue = self._new(group, principal)
        return Recipient(queue, 0, qos, False, False)

    def _lacks_room(self, group: SharedGroup, principal: Principal) -> bool:
        """Return whether there is no room for the queue of a group, as for a session of that principal."""
        router = self._router
        table, limits = router.session_table, router.limits
        account = router.accounts.of(principal)
        grows = table.grows_by(group.full_name, principal, None)
        return (
            table.lacking(limits, account, group.full_name, grows) >= 0
            or 0 < limits.max_user_bytes < account.bytes + grows
        )

    def _new(self, group: SharedGroup, principal: Principal) -> ShareQueue:
        router = self._router
        made = ShareQueue(self, group, router.limits, principal)
        router.queue_limits.apply_to_group(made, group.topic_filter)
        return made

    def make(self, group: SharedGroup, principal: Principal) -> ShareQueue:
        """Give a group a queue, of which no journal knows yet."""
        made = self._new(group, principal)
        group.queue = made
        self._router.session_table.add(made)
        return made

    def _settle(self, queue: Session) -> None:
        """Something has come or gone: a queue that is empty ends, another one has its place among the sessions."""
        if queue.waiting_messages() == 0:
            self._router.end_session(queue, self._load.now)
        elif queue.waiting_messages() == 1:
            self._router.session_table.count(queue)

    def has_shed(self, queue: Session) -> None:
        """A queue has dropped something: one that is empty now ends in the next turn."""
        if queue.waiting_messages() == 0 and not queue.ended:
            self._router.session_table.count(queue)
            self._emptied[queue] = None
            self._router.jobs.submit(REASSIGNING, self._router.unfinished)

    def end_emptied(self) -> None:
        """End the queues that are still empty."""
        emptied, self._emptied = self._emptied, {}
        for queue in emptied:
            if not queue.ended:
                self._settle(queue)

    def room(self, queue: Session, deliveries: list[Delivery]) -> int:
        """Return how many of these deliveries, from the first on, a queue has room for."""
        waiting = queue.queue
        queue.account.fit()
        messages: i64 = waiting.messages
        size: i64 = waiting.bytes
        for at, delivery in enumerate(deliveries):
            more: i64 = delivery.message.size
            if messages >= waiting.max_messages or (messages > 0 and size + more > waiting.max_bytes):
                return at
            messages += 1
            size += more
        return len(deliveries)

    def take_back(self, queue: Session, group: SharedGroup, deliveries: list[Delivery]) -> list[Delivery]:
        """Put into a queue, each at its place, what a member had and others are to get. Return what has no room."""
        waiting = queue.queue
        terms = queue.message_terms
        self._router.budget.used += OBJECT_WORK * len(deliveries)
        some: list[Delivery] = []
        taken = self.room(queue, deliveries)
        for delivery in deliveries[:taken]:
            message = delivery.message
            queue.offered += 1
            if terms is not None and terms.of_topic(message.topic) is not None:
                queue.drop(REPLACED)  # by what came later
                continue
            made = Delivery(message, delivery.qos, False, NO_IDENTIFIERS, group)
            made.order = delivery.order
            made.message_terms = terms
            some.append(made)
        waiting.merge(some)
        queue.update_fast_path()
        self._router.session_table.count(queue)
        self._settle(queue)
        return deliveries[taken:]

    # -- out -----------------------------------------------------------------------------------------------------------

    def attach(self, member: Subscription) -> None:
        """A connected member of a group with a queue takes from it from now on, as much as it has room for."""
        session = member.session
        send_buffer = session.send_buffer
        if send_buffer is None:
            return
        streams = session.streams
        if streams is None:
            streams = session.streams = RetainedStreams()
        source = streams.source
        if not isinstance(source, ShareSource):
            source = streams.source = ShareSource(self)
        source.members[member] = None
        send_buffer.schedule_flush()

    def hand_out(self, queue: Session, member: Subscription, send_buffer: SendBuffer, now: float) -> bool:
        """Give the first message of a queue to a connected member. False: it has no room for it.

        One that this member may not have goes to another: where no connected one may, to the queue of one that is away;
        so it does not hold up the others.
        """
        waiting = queue.queue
        delivery = waiting.first()
        if delivery is None:
            self._settle(queue)
            return True
        message, terms, group = delivery.message, delivery.message_terms, member.group
        assert group is not None
        if message.expired(now):
            self._drop(queue, delivery, EXPIRED)
            return True
        if terms is not None and terms.too_old(delivery, now):
            self._drop(queue, delivery, AGE)
            return True
        fanout = self._router.fanout
        verdicts = fanout.verdicts(message.topic)
        if verdicts is not None:
            before = verdicts.work()
            may = verdicts.may(member.session)
            fanout.budget.used += verdicts.work() - before
            if not may:
                self._give_another(queue, delivery, group, verdicts)
                return True
        return self._send(queue, delivery, member, verdicts, send_buffer)

    def _send(
        self,
        queue: Session,
        delivery: Delivery,
        member: Subscription,
        verdicts: Verdicts | None,
        send_buffer: SendBuffer,
    ) -> bool:
        """Send the first message of a queue to a member. False: it has no room for it."""
        session, message, group = member.session, delivery.message, member.group
        qos, retain = share_qos(message, member, verdicts), message.retain and member.retain_as_published
        identifiers = subscription_identifiers(member)
        terms = session.message_terms if member.message_terms is None else member.message_terms
        window = session.window
        if not send_buffer.has_room(message.size + HEADROOM):
            return False
        if qos > 0 and (not window.takes(message.size) or (terms is not None and window.full_of_own(send_buffer))):
            return False
        # Before the queue ends with its last message.
        commits = None if queue.journal is None else queue.journal.commits
        self._take(queue, delivery)
        if qos == 0 or session.upstream or send_buffer.refusal(message, qos, identifiers) != ACCEPTED:
            # Converted for the upstream, or one that never fits: the session does it all.
            session.deliver(message, qos, retain, identifiers, group, member.message_terms)
            return True
        made = Delivery(message, qos, retain, identifiers, group)
        made.order = delivery.order
        made.message_terms = terms
        made.since = self._load.now
        session.offered += 1
        journal = session.journal
        if journal is not None:
            # Nothing waits in the session: the number stands before all that will.
            journal.placed(made.order)
        sent = window.send_taken(made, send_buffer, commits)
        if journal is not None:
            journal.placed(0)
        assert sent
        return True

    def _give_another(self, queue: Session, delivery: Delivery, group: SharedGroup, verdicts: Verdicts) -> None:
        message = delivery.message
        chosen = self._router.fanout.choose(group, message, verdicts)
        if chosen is None:
            self._drop(queue, delivery, NOT_AUTHORIZED)
            return
        self._take(queue, delivery)
        give(self._load, delivery, chosen, group, verdicts)

    def _take(self, queue: Session, delivery: Delivery) -> None:
        """Take the first message out of a queue, for another session to have it."""
        queue.queue.pop_first(delivery)
        load = self._load
        load.messages -= 1
        load.bytes -= delivery.message.size
        if delivery.message_terms is not None:
            delivery.message_terms.leave(delivery)
        queue.offered -= 1
        delivery.settle()
        if queue.journal is not None:
            queue.journal.finished(queue.client_id, delivery)
        self._settle(queue)

    def _drop(self, queue: Session, delivery: Delivery, cause: int) -> None:
        queue.queue.pop_first(delivery)
        queue.queue.give_up(delivery, cause)
        self._settle(queue)

    # -- its end -------------------------------------------------------------------------------------------------------

    def left(self, group: SharedGroup, session: Session) -> None:
        """A subscription has gone from a group with a queue, that of a session. The queue ends with the last."""
        queue = group.queue
        if queue is None:
            return
        if group.subscriptions == 0:
            self._router.end_session(queue, self._load.now)
            return
        member = group.any_member()
        if member is None or queue.account.owner is not session.account.owner:
            return
        if self._router.accounts.of(member.session.principal) is not queue.account.owner:
            # A member that is still there answers for it.
            queue.principal = _as_owner(member.session.principal, group)
            self._router.session_table.belong(queue)
            if queue.journal is not None:
                queue.journal.session_kept(queue.client_id, queue.principal, NEVER, self._load.now)

    def find(self, name: str) -> SharedGroup | None:
        """Return the group whose queue has this client identifier; None: there is no such group."""
        group_name, topic_filter = parse_shared(name)
        entry = self._router.trie.find(topic_filter)
        return None if entry is None else entry.groups.get(group_name)


def _as_owner(principal: Principal, group: SharedGroup) -> Principal:
    return principal.at(group.full_name, principal.listener, principal.host)


def give(
    load: QueueTotals, delivery: Delivery, member: Subscription, group: SharedGroup, verdicts: Verdicts | None
) -> None:
    """Deliver to a member what another one had, or the queue, as its own subscription has it [MQTT-3.3.1-12]."""
    message = delivery.message
    load.kept_place = delivery.order
    member.session.deliver(
        message,
        share_qos(message, member, verdicts),
        message.retain and member.retain_as_published,
        subscription_identifiers(member),
        group,
        member.message_terms,
    )
    load.kept_place = 0


class Unfinished(Job):
    """Gives the unfinished messages of a leaving member of shared subscriptions to others (section 4.8.2).

    To members that are connected, or else to the queue of the group. To members, a few are given at once, the rest in
    turns, while they count as waiting. With a store, all are given at once: each message always has an owner.
    """

    def __init__(self, fanout: Fanout, queues: ShareQueues, totals: QueueTotals, jobs: Scheduler) -> None:
        """`fanout` knows which member is next."""
        self._fanout = fanout
        self._queues = queues
        self._totals = totals
        self._jobs = jobs
        # What waits for another member, and whose it was.
        self._line: deque[tuple[Session, Delivery]] = deque()
        # Members whose connections ended with the last broker.
        self._absent: deque[Session] = deque()
        self.at_once: i64 = AT_ONCE

    def share_out(self, session: Session) -> None:
        """Give away what a leaving member of shared subscriptions did not finish.

        What the queue of the group has no room for stays: the client may come back for it.
        """
        session.stop_source()
        self._take(session, _groups(session), False)

    def restored(self, sessions: list[Session]) -> None:
        """Give away in the next turns what these members, all of whom are away, did not finish."""
        self._absent.extend(sessions)
        if sessions:
            self._jobs.submit(REASSIGNING, self)

    def end(self, session: Session) -> None:
        """Give away the unfinished messages of a session that is over."""
        self._take(session, _groups(session), False)

    def unsubscribed(self, session: Session, group: SharedGroup) -> None:
        """Give away what waits in a session for a group that it has left. What is in flight is completed
        [MQTT-3.10.4-3]."""
        queue = session.made_queue
        if queue is None or queue.pending is None:
            return
        self._fanout.budget.used += int(queue.in_memory) >> MERGE_SHIFT
        for each in queue.waiting():
            if each.group is group:
                self._take(session, [group], True)
                return

    def _take(self, session: Session, left: list[SharedGroup], waiting_only: bool) -> None:
        """Take from a session the messages of these groups, and give them to other members or to the queues.

        Messages of a group that has no other member stay."""
        groups: set[SharedGroup] = set()
        queues: dict[SharedGroup, Session] = {}
        for group in left:
            present = self._present(group)
            member = present.any_member()
            if member is None:
                continue
            queue: Session | None = None
            if present.queue is not None or not present.has_connected():
                queue = self._queues.of(present, member.session)
            if queue is not None:
                queues[group] = queue
            elif not session.ended and not present.has_connected():
                continue
            groups.add(group)
        if not groups:
            return
        others: list[Delivery] = []
        parts: dict[SharedGroup, list[Delivery]] = {group: [] for group in queues}
        kept: set[Delivery] = set()
        if not session.ended and not waiting_only:
            for group, queue in queues.items():
                kept |= self._without_room(session, group, queue)
        for delivery in sorted(session.take_shared(groups, kept, waiting_only), key=order_of):
            assert delivery.group is not None
            parts.get(delivery.group, others).append(delivery)
        for group, queue in queues.items():
            for delivery in self._queues.take_back(queue, self._present(group), parts[group]):
                self._return(delivery, session, FULL_MESSAGES)
        self._hand_on_all(others, session)

    def _without_room(self, session: Session, group: SharedGroup, queue: Session) -> set[Delivery]:
        """Return what a member has of a group and the queue has no room for: it stays where it is, also in flight."""
        deliveries = sorted(session.shareable({group}), key=order_of)
        return set(deliveries[self._queues.room(queue, deliveries) :])

    def _hand_on_all(self, deliveries: list[Delivery], session: Session) -> None:
        totals = self._totals
        most: i64 = len(deliveries)
        if most > self.at_once and totals.journal is None:
            most = self.at_once
        for delivery in deliveries[:most]:
            self._hand_on(delivery, session)
        for delivery in deliveries[most:]:
            totals.messages += 1
            totals.bytes += delivery.message.size
            self._line.append((session, delivery))
        if self._line:
            self._jobs.submit(REASSIGNING, self)

    def step(self, budget: Budget) -> bool:
        """Hand on messages, those of the members that left first before others."""
        line = self._line
        absent = self._absent
        totals = self._totals
        self._queues.end_emptied()
        while absent and not budget.spent():
            member = absent.popleft()
            if member.send_buffer is None and not member.ended:
                self.share_out(member)
        while line and not budget.spent():
            session, delivery = line.popleft()
            totals.messages -= 1
            totals.bytes -= delivery.message.size
            self._hand_on(delivery, session)
        return not (line or absent)

    def _hand_on(self, delivery: Delivery, session: Session) -> None:
        """Give one message to a member; if there is none who may have it, back to whose it was, or count it as lost."""
        fanout = self._fanout
        fanout.budget.used += OBJECT_WORK
        message = delivery.message
        assert delivery.group is not None
        group = self._present(delivery.group)
        verdicts = fanout.verdicts(message.topic)
        chosen = fanout.choose(group, message, verdicts)
        if chosen is None:
            self._return(delivery, session, NOT_AUTHORIZED if group.has_member() else SESSION_ENDED)
            return
        if group.queue is not None or not (chosen.present or group.has_connected()):
            queue = self._queues.of(group, chosen.session)
            if queue is not None:
                for each in self._queues.take_back(queue, group, [delivery]):
                    self._return(each, session, FULL_MESSAGES)
                return
        give(self._totals, delivery, chosen, group, verdicts)

    def _return(self, delivery: Delivery, session: Session, cause: int) -> None:
        """Give a message back to whose it was, if it may have it; it is lost for `cause` if that session is over."""
        message = delivery.message
        verdicts = self._fanout.verdicts(message.topic)
        if session.ended:
            session.offered += 1
            session.drop(cause)
        elif verdicts is not None and not verdicts.may(session):
            session.offered += 1
            session.drop(NOT_AUTHORIZED)
        else:
            qos = delivery.qos if verdicts is None else verdicts.lowered_qos(session, delivery.qos)
            self._totals.kept_place = delivery.order
            group = delivery.group
            session.deliver(message, qos, delivery.retain, delivery.identifiers, group, delivery.message_terms)
            self._totals.kept_place = 0

    def _present(self, group: SharedGroup) -> SharedGroup:
        """The group of that name at that filter now: it may have lost all its members and come back since."""
        if group.size > 0:
            return group
        entry = self._fanout.table.trie.find(group.topic_filter)
        found = None if entry is None else entry.groups.get(group.name)
        return group if found is None else found


def _groups(session: Session) -> list[SharedGroup]:
    """The share groups of which a message can be given to others, also those that the session has left since."""
    found: dict[SharedGroup, None] = {}
    if session.made_window is not None:
        for each in session.inflight.values():
            if each.group is not None and each.state == SENT and (each.qos == 1 or each.attempts == 0):
                found[each.group] = None
    if session.made_queue is not None:
        for each in session.queue.waiting():
            if each.group is not None:
                found[each.group] = None
    return list(found)
