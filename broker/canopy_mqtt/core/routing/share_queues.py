"""The queues of share groups: what comes while no member is connected waits for the one that connects first.

Owns `ShareQueue` (a session without a client, `$share/NAME/FILTER`), who answers for it, and the way of a message into
it and out of it.
Promises: a message of a group is at any time with one member, or in the queue, or over; while something waits in the
queue, what comes goes behind it, and each connected member takes from it as soon as it has room.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.jobs import CONNECT_WORK, OBJECT_WORK, REASSIGNING
from canopy_mqtt.core.ledger import (
    ACCEPTED,
    AGE,
    EXPIRED,
    NOT_AUTHORIZED,
    REPLACED,
    SESSION_ENDED,
    Ledger,
)
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queue_totals import UNLIMITED, QueueTotals
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.queue_terms import LATEST, MessageTerms
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.fanout import UNQUEUED, deliver_to_member, fits, share_qos
from canopy_mqtt.core.routing.nodes import NodeSession
from canopy_mqtt.core.session.client_account import ClientAccount
from canopy_mqtt.core.session.retained_stream import RetainedStreams
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import (
    NO_IDENTIFIERS,
    Recipient,
    SharedGroup,
    Subscription,
    subscription_identifiers,
)

if TYPE_CHECKING:
    from canopy_mqtt.core.limits import Limits
    from canopy_mqtt.core.routing.router import Router
    from canopy_mqtt.core.routing.verdicts import Verdicts

TURN: Final = 256
"""Messages that a member takes at most before others have their turn."""

AHEAD: Final = 20
"""Messages of a queue that are on their way to another worker, for each of its connected members."""

MAX_MADE: Final = 64
"""Queues that are made in one batch, in 3 milliseconds: a message may be for very many groups. What is for others waits
in the session of a member."""


class QueueAccount(ClientAccount):
    """Bytes of the queue of a share group, which are on the account of the client that answers for it as well.

    All queues for which a client answers have together what its own account leaves (`ClientAccount.group_room`).
    """

    def __init__(self, client: ClientAccount, limits: Limits) -> None:
        super().__init__(client.owner, UNLIMITED)
        self._client = client
        self._limits = limits
        # What of it is in `shared` of the client's.
        self._counted: i64 = 0

    @property
    def alone(self) -> bool:
        """Return whether its client answers for no other queue: then one message of any size may be in it."""
        return self._client.shared == self._counted

    def count(self) -> None:
        """Count what waits in the queue now."""
        size: i64 = self.bytes
        self._client.shared += size - self._counted
        self._counted = size
        self._client.fit()

    def move(self, client: ClientAccount) -> None:
        """Let another client answer."""
        self._client.shared -= self._counted
        self._client.fit()
        self._client = client
        self._counted = 0
        self.count()

    def fit(self) -> None:
        queue = self.queue
        if queue is not None:
            left: i64 = self._counted - self.session + self._client.group_room(self._limits.max_user_bytes)
            queue.max_bytes = left if left < queue.own_max_bytes else queue.own_max_bytes


class ShareQueue(Session):
    """Keeps what waits for a share group. It is a session in all else: bounds, policy, accounts, journal, lists.

    A member answers for it (`client`, whose session is not over): it has that one's principal, and is on its account.
    It ends when nothing waits, and with the last member.
    """

    def __init__(self, queues: ShareQueues, group: SharedGroup, limits: Limits, client: Session) -> None:
        counters, principal = queues.counters, _as_owner(client.principal, group)
        super().__init__(group.full_name, limits.session_messages, limits.session_bytes, counters, principal)
        self.account = self.own_account = QueueAccount(client.account, limits)
        self.group = group
        self.client = client
        # Members that have left and have not given back all yet: what they have comes before the rest, which waits.
        self.givers: i64 = 0
        self.queue_qos0 = limits.queue_qos0
        self.expiry_interval = NEVER
        self._queues = queues

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        super().shed(messages, size, cause)
        self._queues.has_shed(self)

    def shed_stale(self, message_terms: MessageTerms, now: float, most: i64) -> i64:
        count = super().shed_stale(message_terms, now, most)
        self._queues.has_shed(self)
        return count

    def stand_in(self, counters: Counters) -> Session:
        made = super().stand_in(counters)
        made.account.max_bytes = UNLIMITED
        self.account.fit()
        made.queue.max_bytes = self.queue.max_bytes
        return made


class ShareSource:
    """Takes for one connected session from the queues of its share groups, from each in turn.

    It comes behind all else that waits for the client.
    """

    def __init__(self, queues: ShareQueues) -> None:
        self.members: OrderedDict[Subscription, None] = OrderedDict()
        self._queues = queues

    def fill(self, session: Session, send_buffer: SendBuffer, now: float) -> bool:
        """Send as much as there is room for. True: there is more, and only the bound of a turn has ended this one."""
        members = self.members
        left: i64 = TURN
        while members:
            member = next(iter(members))
            group = member.group
            queue = None if group is None else group.queue
            if queue is None:
                if group is not None and group.home is not None and group.home.busy:
                    if session.send_quota() <= 0:
                        return False
                    group.home.set_busy(group, False)
                del members[member]
                continue
            if queue.givers > 0:
                del members[member]
                self._queues.held[member] = None
                continue
            if left == 0:
                return True
            left -= 1
            session.totals.budget.used += OBJECT_WORK
            if not self._queues.hand_out(queue, member, send_buffer, now):
                return False
            members.move_to_end(member)
        return False


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
        self._totals = router.counters.totals
        self.queues: dict[ShareQueue, None] = {}
        # Queues that have dropped all that they had: they may be about to take a message.
        self._emptied: dict[ShareQueue, None] = {}
        # Connected members that would take from a queue which is not complete (`givers`).
        self.held: dict[Subscription, None] = {}
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
        queue = self.of(group, member.session, message.size)
        if queue is None:
            return UNQUEUED
        answer = queue.deliver(message, qos, False, NO_IDENTIFIERS, group)
        self.settle(queue)
        if answer == ACCEPTED and group.connected.count > 0:
            queue.queue.check_over_half()
        return answer

    def of(self, group: SharedGroup, session: Session, size: i64 = 0) -> ShareQueue | None:
        """Return the queue of a group; for a new one, into which a message of `size` bytes comes, `session` answers.

        None: there is no room for it, or `MAX_MADE` are new.

        Callers put something into a new one at once, or settle it, and call nothing else before.
        """
        queue = group.queue
        if queue is not None:
            return queue
        if self._made_at != self._totals.now:
            self._made_at = self._totals.now
            self._made = 0
        if self._made >= MAX_MADE or self._lacks_room(group, session, size):
            return None
        self._made += 1
        self._router.budget.used += CONNECT_WORK
        made = self.make(group, session)
        journal = self._router.journal
        if journal is not None:
            made.keep_in(journal)
            journal.session_kept(made.client_id, made.principal, NEVER, self._totals.now)
        return made

    def send_home(self, message: Message, name: str, home: str) -> int:
        """Send a message that no member here can take to the worker where its group lives (`ShareHome.node`)."""
        node = self._router.sessions.get(home)
        if not isinstance(node, NodeSession):
            Ledger(name, self.counters).lost(SESSION_ENDED, 1)
            return 0
        return 1 if node.send_home(message, name) == ACCEPTED else 0

    def would_take(self, group: SharedGroup, member: Subscription, message: Message) -> Recipient | None:
        """Return what a new message would come to if it were for the queue of a group, and change nothing; for
        `observe.explain`.

        None: it would be for that member (`Fanout.choose`).
        """
        if group.queue is None and (member.present or group.connected.count > 0):
            return None
        qos = min(message.qos, group.highest_qos)
        if qos == 0 and not self._router.limits.queue_qos0:
            return None
        queue = group.queue
        if queue is None:
            if self._lacks_room(group, member.session, message.size):
                return None
            queue = self._new(group, member.session)
        return Recipient(queue, 0, qos, False, False)

    def _lacks_room(self, group: SharedGroup, session: Session, size: i64) -> bool:
        """Return whether there is no room for the queue of a group with a message of that size, for which `session`
        answers: as for a session of its principal, and for what its client may have in all its queues."""
        router = self._router
        table, limits, account = router.session_table, router.limits, session.account
        grows = table.grows_by(group.full_name, session.principal, None)
        return (
            table.lacking(limits, account.owner, group.full_name, grows) >= 0
            or router.accounts.lacks(account.owner, grows, limits.max_user_bytes)
            or (account.shared > 0 and account.group_room(limits.max_user_bytes) < size + grows)
        )

    def _new(self, group: SharedGroup, session: Session) -> ShareQueue:
        router = self._router
        made = ShareQueue(self, group, router.limits, session)
        router.queue_limits.apply_to_group(made, group.topic_filter)
        return made

    def make(self, group: SharedGroup, session: Session) -> ShareQueue:
        """Give a group a queue, of which no journal knows yet; `session`, that of a member, answers for it."""
        made = self._new(group, session)
        group.queue = made
        self.queues[made] = None
        self._router.session_table.add(made)
        return made

    def ended(self, queue: ShareQueue) -> None:
        """A queue has ended as a session."""
        queue.group.queue = None
        del self.queues[queue]
        queue.own_account.count()

    def settle(self, queue: ShareQueue) -> None:
        """Something has come or gone: a queue that is empty ends, another one has its place among the sessions."""
        queue.own_account.count()
        if queue.waiting_messages() == 0:
            self._router.end_session(queue, self._totals.now)
        elif queue.waiting_messages() == 1:
            self._router.session_table.count(queue)

    def has_shed(self, queue: ShareQueue) -> None:
        """A queue has dropped something: one that is empty now ends in the next turn."""
        queue.own_account.count()
        if queue.waiting_messages() == 0 and not queue.ended:
            self._router.session_table.count(queue)
            self._emptied[queue] = None
            self._router.jobs.submit(REASSIGNING, self._router.unfinished)

    def end_emptied(self) -> None:
        """End the queues that are still empty."""
        emptied, self._emptied = self._emptied, {}
        for queue in emptied:
            if not queue.ended:
                self.settle(queue)

    def room(self, queue: ShareQueue, deliveries: list[Delivery], session: Session) -> int:
        """Return how many of these deliveries of a session, from the first on, a queue has room for."""
        waiting = queue.queue
        queue.account.fit()
        # A client that answers for the queue has no more afterwards than before.
        most: i64 = waiting.own_max_bytes if session is queue.client else waiting.max_bytes
        messages: i64 = waiting.messages
        size: i64 = waiting.bytes
        for at, delivery in enumerate(deliveries):
            more: i64 = delivery.message.size
            if messages >= waiting.max_messages or (
                size + more > most and (messages > 0 or not queue.own_account.alone)
            ):
                return at
            messages += 1
            size += more
        return len(deliveries)

    def take_back(self, queue: ShareQueue, deliveries: list[Delivery]) -> None:
        """Put into a queue, each at its place, what a member had and others are to get, in their order: see `room`."""
        terms = queue.message_terms
        self._router.budget.used += OBJECT_WORK * len(deliveries)
        some: list[Delivery] = []
        topics: set[bytes] = set()
        for delivery in reversed(deliveries):
            message = delivery.message
            queue.offered += 1
            if terms is not None and terms.policy == LATEST:
                waiting = terms.of_topic(message.topic)
                if message.topic in topics or (waiting is not None and waiting.order > delivery.order):
                    queue.ledger.lost(REPLACED, 1)  # by what came later
                    continue
                topics.add(message.topic)
                if waiting is not None:
                    queue.queue.shed_one(waiting, REPLACED)
            made = Delivery(message, delivery.qos, False, NO_IDENTIFIERS, queue.group)
            made.order, made.since, made.message_terms = delivery.order, delivery.since or self._totals.now, terms
            some.append(made)
        queue.queue.merge(some[::-1])
        self._router.session_table.count(queue)
        self.settle(queue)

    # -- out -----------------------------------------------------------------------------------------------------------

    def attach(self, member: Subscription) -> None:
        """A connected member of a group with a queue takes from it from now on, as much as it has room for."""
        session = member.session
        send_buffer = session.send_buffer
        group = member.group
        if send_buffer is None or group is None or not group.is_connected(member) or group.is_busy(member):
            return
        streams = session.streams = session.streams or RetainedStreams()
        source = streams.source
        if source is None:
            source = streams.source = ShareSource(self)
        source.members[member] = None
        send_buffer.schedule_flush()

    def attach_held(self) -> None:
        """Members give back, or have given back, more: let those that wait for it look again."""
        held, self.held = self.held, {}
        for member in held:
            self.attach(member)

    def hand_out(self, queue: ShareQueue, member: Subscription, send_buffer: SendBuffer, now: float) -> bool:
        """Give the first message of a queue to a connected member. False: it has no room for it.

        One that this member may not have, or that its client takes none so large as, goes to another: where there is no
        connected one, to the session of one that is away; so it does not hold up the others.
        """
        delivery = queue.queue.first()
        if delivery is None:
            self.settle(queue)
            return True
        message, terms = delivery.message, delivery.message_terms
        if message.expired(now):
            self._drop(queue, delivery, EXPIRED)
            return True
        if terms is not None and terms.too_old(delivery, now):
            self._drop(queue, delivery, AGE)
            return True
        fanout = self._router.fanout
        verdicts = fanout.verdicts(message.topic)
        may = True
        if verdicts is not None:
            before = verdicts.work()
            may = verdicts.may(member.session)
            fanout.budget.used += verdicts.work() - before
        if not may or not fits(message, member):
            self._give_another(queue, delivery, verdicts)
            return True
        return self._send(queue, delivery, member, verdicts, send_buffer)

    def _send(
        self,
        queue: ShareQueue,
        delivery: Delivery,
        member: Subscription,
        verdicts: Verdicts | None,
        send_buffer: SendBuffer,
    ) -> bool:
        """Send the first message of a queue to a member. False: it has no room for it."""
        session, message = member.session, delivery.message
        qos = share_qos(message, member, verdicts)
        terms = session.message_terms if member.message_terms is None else member.message_terms
        window = session.window
        if isinstance(session, NodeSession) and session.in_flight_messages() >= AHEAD * queue.group.clients_of(member):
            # The worker may be about to say that its members are busy.
            return False
        if not send_buffer.has_room(message.size + HEADROOM):
            return False
        if qos > 0 and (not window.takes(message.size) or (terms is not None and window.full_of_own(send_buffer))):
            return False
        # Before the queue ends with its last message.
        commits = None if queue.journal is None else queue.journal.commits
        self._take(queue, delivery)
        if qos == 0 or session.upstream:
            # Converted for the upstream: the session does it all.
            deliver_to_member(member, queue.group, message, verdicts)
            return True
        retain = message.retain and member.retain_as_published
        made = Delivery(message, qos, retain, subscription_identifiers(member), queue.group)
        made.order = delivery.order
        made.message_terms = terms
        made.since = delivery.since
        session.offered += 1
        journal = session.journal
        if journal is not None:
            # Nothing waits in the session: the number stands before all that will.
            journal.placed(made.order)
        sent = window.send_new(made, send_buffer, commits)
        if journal is not None:
            journal.placed(0)
        assert sent
        return True

    def _give_another(self, queue: ShareQueue, delivery: Delivery, verdicts: Verdicts | None) -> None:
        chosen = self._router.fanout.choose(queue.group, delivery.message, verdicts)
        if chosen is None:
            self._drop(queue, delivery, NOT_AUTHORIZED)
            return
        self._take(queue, delivery)
        give(self._totals, delivery, chosen, queue.group, verdicts)

    def _take(self, queue: ShareQueue, delivery: Delivery) -> None:
        """Take the first message out of a queue, for another session to have it."""
        queue.queue.pop_first(delivery)
        queue.queue.forget(delivery)
        queue.offered -= 1
        self.settle(queue)

    def _drop(self, queue: ShareQueue, delivery: Delivery, cause: int) -> None:
        queue.queue.pop_first(delivery)
        queue.queue.give_up(delivery, cause)
        self.settle(queue)

    # -- who answers for it, and its end -------------------------------------------------------------------------------

    def left(self, group: SharedGroup, session: Session) -> None:
        """A subscription has gone from a group with a queue, that of a session."""
        queue = group.queue
        if queue is not None and queue.client is session:
            self._pass_on(queue)

    def pass_on(self, session: Session) -> None:
        """A session is over: other members answer for its queues from now on."""
        for queue in _of_client(session):
            self._pass_on(queue)

    def follow(self, session: Session) -> None:
        """A session has another principal: the queues for which it answers have it, too."""
        for queue in _of_client(session):
            self._answer(queue, session)

    def _pass_on(self, queue: ShareQueue) -> None:
        """Have a member that is still there answer for a queue. It ends with the last one."""
        member = queue.group.any_member()
        if member is None:
            self._router.end_session(queue, self._totals.now)
        else:
            self._answer(queue, member.session)

    def _answer(self, queue: ShareQueue, session: Session) -> None:
        queue.client = session
        queue.principal = _as_owner(session.principal, queue.group)
        self._router.session_table.belong(queue)
        self._router.session_table.count(queue)
        queue.own_account.move(session.account)
        if queue.journal is not None:
            queue.journal.session_kept(queue.client_id, queue.principal, NEVER, self._totals.now)

    def find(self, name: str) -> SharedGroup | None:
        """Return the group whose queue has this client identifier; None: there is no such group."""
        group_name, topic_filter = parse_shared(name)
        entry = self._router.trie.find(topic_filter)
        return None if entry is None else entry.groups.get(group_name)


def _as_owner(principal: Principal, group: SharedGroup) -> Principal:
    return principal.at(group.full_name, principal.listener, principal.host)


def _of_client(session: Session) -> list[ShareQueue]:
    """Return the queues for which a session answers."""
    found: list[ShareQueue] = []
    if session.account.shared > 0 and session.memberships is not None:
        for member in session.memberships:
            queue = None if member.group is None else member.group.queue
            if queue is not None and queue.client is session:
                found.append(queue)
    return found


def give(
    totals: QueueTotals, delivery: Delivery, member: Subscription, group: SharedGroup, verdicts: Verdicts | None
) -> None:
    """Deliver to a member what another one had, or the queue: the message keeps its place among those of the group."""
    totals.kept_place = delivery.order
    deliver_to_member(member, group, delivery.message, verdicts)
    totals.kept_place = 0
