"""The state that MQTT keeps for one client identifier, connected or not (5.0 section 4.1, 3.1.1 section 3.1.2.4).

Owns the subscriptions, the messages in flight to the client (`SendWindow`) and waiting ones (`SessionQueue`), the QoS 2
identifiers that the client has not released, retained messages still to be streamed, and the ledger. Promises:
- Messages of one topic and QoS are sent in the order of arrival; a resumed session first sends what was in flight, in
  its order, with its packet identifiers [MQTT-4.4.0-1] [MQTT-4.6.0-1].
- offered = delivered + dropped (by cause) + queued, whenever no call is in progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from broker.core.accounts import Account
from broker.core.codec.packets import PUBACK, PUBREC, V5, V311, Will
from broker.core.counters import DISCONNECTED, GLOBAL, SESSION_ENDED, Counters
from broker.core.persistence.journal import Journal
from broker.core.principal import Principal
from broker.core.queues.delivery import QUEUED, SENT, Delivery, SubscriptionQueue
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import ACCEPTED, KEPT_BACK, Outbox
from broker.core.queues.message import HEADROOM, Message
from broker.core.queues.policies.queue_policy import QueueTerms
from broker.core.queues.queue_totals import UNLIMITED, bound
from broker.core.queues.requests import RequestMessage
from broker.core.queues.session_queue import GO_ON, SessionQueue
from broker.core.queues.windows.send_window import SendWindow
from broker.core.session.retained_stream import NO_ROOM, RetainedStreams
from broker.core.topics.subscription import SharedGroup, Subscriber, Subscription
from broker.core.topics.topic_tree import RetainedTree

if TYPE_CHECKING:
    from broker.core.queues.policies.queue_policy import QueueRule


class Session(Subscriber):
    """One client's session. `max_messages`, `max_bytes`: limits of its queue, and of bytes in flight; 0: unlimited."""

    def __init__(
        self, client_id: str, max_messages: int, max_bytes: int, counters: Counters, who: Principal | None = None
    ) -> None:
        # What each message touches comes first, up to `answers`: side by side it takes few lines of the cache.
        # The connection, if there is one. `outbox` is changed by ConnectedPeers.apply alone.
        self.outbox: Outbox | None = None
        # What waits, and what is in flight to the client.
        ledger = Ledger(client_id, counters)
        self.queue = SessionQueue(ledger, counters, max_messages, max_bytes)
        self.window = SendWindow(ledger, counters.load, self.queue.max_bytes)
        self.streams: RetainedStreams | None = None  # towards the client: retained messages
        # Who keeps this session; None when nobody does, or it ends with its connection. See `keep_in`.
        self.journal: Journal | None = None
        # The terms that are about single messages; the others are the queue's.
        self.sub_queue: SubscriptionQueue | None = None
        # The ledger of what did not go through the present outbox; what was dropped anywhere is in `ledger`.
        self.offered: i64 = 0
        # No topic aliases are used, so that frames can be shared; and whether a QoS 0 frame may go straight to the
        # outbox: none waits here that it would overtake either, and no terms hold for it but the queue's.
        self.plain = self.fast_path = True
        self.v5 = self.queue_qos0 = self.will_alone = False  # the last: a store keeps the will without the session
        self.uplink = False  # a link's to an upstream broker: what it subscribes to here is nobody's demand
        self.own = False  # the broker's: a link's, or of the program that it runs in. No rule is about it
        # Whether its client's acknowledgements tell if anybody was reached: a link's do. As of the present connection.
        self.answers = False
        self.client_id, self.totals, self.ledger = client_id, counters.load, ledger
        self.inflight, self.account = self.window.inflight, ClientAccount(self.queue, self.window)
        self.delivered: i64 = 0  # see `offered`
        # The client of the present connection, or of the last one.
        self.principal = who or Principal(client_id=client_id)
        self.terms: QueueTerms | None = None  # of its client, by settings and rules (`QueueLimits.apply`)
        self.rules: tuple[QueueRule, ...] = ()
        self.others_terms = False  # subscriptions have queues yet by the rules for the user that it was before
        self.subscriptions: dict[str, Subscription] = {}
        self.fresh_sub_queues: i64 = 0  # those of them whose messages are worth less the longer they wait
        self.version = V311
        # Expiry and will, and when the present connection came (s); the times are 0.0 while they do not apply.
        self.expiry_interval, self.ended = 0, False
        self.expires_at = self.will_due = self.grace_from = self.attached_at = 0.0
        self.will: Will | None = None
        # Of the present connection: the id of the broker that its client is; whether it says it is a 3.1.1 bridge, and
        # may be a link (`connect.identity`), hold up acknowledgements, and publish who is connected elsewhere.
        self.link_peer, self.bridge, self.link = "", False, False
        self.bridge_state = b""  # the topic of the state that the will of its CONNECT announces (`bridge_states`)
        self.incoming_qos2: set[int] | None = None  # from the client: publishes that wait for PUBREL

    @property
    def user_name(self) -> str | None:
        """The user to whom it belongs (`connect.identity`); None for an anonymous client."""
        return self.principal.user_name

    # -- terms ---------------------------------------------------------------------------------------------------------

    def keep(self, journal: Journal) -> None:
        """It has got its expiry interval and its will: have a journal keep it from now on, if it lasts.

        An interval of 0 cannot be raised later on the same connection (section 3.14.2.2.2).
        """
        if self.expiry_interval == 0 and self.queue.disk is None:
            if self.journal is not None:
                self.keep_in(None)
                journal.session_gone(self.client_id)
            if self.will is not None:
                self.will_alone = True
                journal.will_alone(self.client_id, self.principal, self.will, 0.0)
            return
        self.keep_in(journal)
        # What waits on disk alone is kept until the end of the connection, or, if the broker dies, for a second.
        journal.session_kept(self.client_id, self.principal, self.expiry_interval or 1, 0.0)
        if self.will is not None:
            journal.will_set(self.client_id, self.will, 0.0)

    def keep_subscription(self, subscription: Subscription) -> None:
        """It has a subscription, or has it with other terms: have that kept, where the session is."""
        if self.journal is not None:
            self.journal.subscribed(self.client_id, subscription, self.is_streaming(subscription))

    def keep_in(self, journal: Journal | None) -> None:
        """Report changes of this session to a journal from now on; None: it is not stored."""
        self.journal = journal
        self.queue.journal = journal
        # What waits for a link is looked for before its turn comes.
        self.queue.pages = None if journal is None or self.uplink else journal.pages
        self.window.journal = journal
        self.window.commits = None if journal is None else journal.commits

    def limit(
        self,
        policy: int,
        sub_queue: SubscriptionQueue | None,
        max_messages: int,
        max_bytes: int,
        max_inflight_bytes: int = 0,
        max_client_bytes: int = 0,
    ) -> None:
        """Change the limits of the queue and the account; queued messages stay. 0: unlimited."""
        self.sub_queue = sub_queue
        self.queue.limit(policy, max_messages, max_bytes)
        self.account.limit(max_client_bytes, min(bound(max_bytes), bound(max_inflight_bytes)))
        self.update_fast_path()

    def update_fast_path(self) -> None:
        """Update whether plain frames may go directly to the connection's queue."""
        tap = self.totals.tap
        self.fast_path = (
            self.plain and self.queue.qos0 == 0 and self.sub_queue is None and (tap is None or not tap.deliveries)
        )

    # -- connection ----------------------------------------------------------------------------------------------------

    def attach(self, version: int, window: int, plain: bool) -> None:
        """Connect the session to a connection.

        `window` is the in-flight limit towards it, at least 1 and at most the client's Receive Maximum: the send quota
        begins there [MQTT-4.9.0-1]. `plain` says that no topic aliases are used, so that frames can be shared.
        """
        self.plain = plain
        self.update_fast_path()
        self.version = version
        self.v5 = version == V5
        self.window.open(window)
        self.attached_at = self.totals.now

    def resume(self, now: float) -> None:
        """Send again what was in flight when the last connection ended, then the queued messages (section 4.4)."""
        outbox = self.outbox
        if outbox is None:
            return
        self.window.begin_resend(outbox, self.version)
        self.go_on(now)

    def detach(self, outbox: Outbox) -> None:
        """The connection ended: add its ledger to the session's, and put back what was never written."""
        self.window.free_expired(outbox)
        outbox.discard(DISCONNECTED)
        self.delivered += outbox.taken
        self.window.close()
        if self.answers:
            self.queue.settle()

    def restore(self, delivery: Delivery) -> bool:
        """Add a delivery from a store, in the order in which they were queued. False: no room, dropped."""
        if delivery.state == QUEUED:
            self.offered += 1
            delivery.sub_queue = self.sub_queue
            return self._wait(delivery) == ACCEPTED
        self.window.restore(delivery)
        if delivery.state == SENT and delivery.attempts == 0:
            self.offered += 1
        return True

    # -- the fanout's side ---------------------------------------------------------------------------------------------

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        sub_queue: SubscriptionQueue | None = None,
    ) -> int:
        """Offer a message with the granted QoS: ACCEPTED, or the cause of its drop.

        With QoS 1 or 2 it is part of the session from here on [MQTT-4.5.0-1], whether the client is connected or not
        [MQTT3-3.1.2-5]: in flight or queued. `sub_queue`: that of the subscription, if it has its own. A session that
        is over takes nothing: KEPT_BACK, while its subscriptions are taken away.
        """
        outbox = self.outbox
        if outbox is None and self.ended:
            return KEPT_BACK
        self.offered += 1
        if sub_queue is None:
            sub_queue = self.sub_queue
        if qos == 0:
            if outbox is None:
                if not self.queue_qos0:
                    self.ledger.away()
                    return DISCONNECTED
            elif sub_queue is None and self.queue.qos0 == 0:
                if not retain and not identifiers and self.plain and message.sharable():
                    return outbox.offer(message.qos0_frame(self.v5))
                return outbox.offer_late(Delivery(message, 0, retain, identifiers, group))
        if outbox is not None and outbox.too_long(message, qos, identifiers):
            # It will never fit, however long it waits: nothing makes room for it.
            return self._missed(message, self.drop(outbox.why_not(message)))
        if sub_queue is not None:
            queue = self.queue
            self.account.fit()
            qos0: i64 = queue.qos0
            answer = queue.make_room_in(outbox, sub_queue, message, qos, retain, identifiers, group)
            if queue.qos0 != qos0:
                self.update_fast_path()
            if answer == ACCEPTED and self.answers:
                renewed = sub_queue.of_topic(message.topic)
                if renewed is not None:
                    self._ask(renewed)
            if answer != GO_ON:
                return answer if answer == ACCEPTED else self._missed(message, answer)
        delivery = Delivery(message, qos, retain, identifiers, group)
        if sub_queue is not None:
            delivery.sub_queue = sub_queue
            delivery.since = self.totals.now
            if qos == 0 and outbox is not None and self.queue.qos0 == 0:
                return self.queue.offer_live(delivery, sub_queue, outbox)
        size: i64 = message.size()
        # Past the queue only when nothing waits there: every topic is an ordered one [MQTT-4.6.0-6] [MQTT3-4.6.0-6].
        if (
            outbox is not None
            and qos > 0
            and self.window.quota > 0
            and self.queue.pending is None
            and self.window.resend is None
            and (sub_queue is None or not self.window.full_of_own(outbox))
            and outbox.has_room(size + HEADROOM)
        ):
            # One may always be on its way to a client with nothing else before it.
            idle = outbox.messages == 0 and self.inflight.count == 0
            if (
                not idle
                and not self.totals.has_room(1, size)
                and not self.totals.admits(
                    1, size, outbox.messages + self.inflight.count, outbox.bytes + self.window.bytes
                )
            ):
                return self._missed(message, self.drop(GLOBAL))
            if self.window.send_new(delivery, outbox):
                if self.answers:
                    self._ask(delivery)
                return ACCEPTED
        cause = self._wait(delivery)
        return cause if cause == ACCEPTED else self._missed(message, cause)

    def _missed(self, message: Message, cause: int) -> int:
        """A live message was not accepted: if it is retained, a stream may still send it. Returns the cause."""
        if message.retain and self.streams is not None:
            self.streams.missed(message.topic)
        return cause

    def room(self, count: i64, size: i64) -> i64:
        """How many messages of `size` bytes, at most `count`, `send_now` or `send_run` would send now.

        0 as well where it is not the common case: the client is there, nothing waits, nobody keeps the session.
        """
        outbox = self.outbox
        if (
            outbox is None
            or self.queue.pending is not None
            or self.sub_queue is not None
            or self.window.journal is not None
            or self.answers
            or self.uplink
        ):
            return 0
        return self.window.room(count, size, outbox)

    def send_now(self, message: Message, qos: i64) -> None:
        """`deliver` for the common case of QoS 1 and 2, for a subscription without options: see `room`."""
        outbox = self.outbox
        assert outbox is not None
        self.offered += 1
        self.window.send_now(message, qos, outbox)

    def send_run(self, messages: list[Message], qos: i64, frames: bytearray, id_at: i64) -> None:
        """The same for several: see `SendWindow.send_run`."""
        outbox = self.outbox
        assert outbox is not None
        self.offered += i64(len(messages))
        self.window.send_run(messages, qos, frames, id_at, outbox)

    def _wait(self, delivery: Delivery) -> int:
        """Queue a delivery: ACCEPTED, or the cause of its drop."""
        queue = self.queue
        self.account.fit()
        qos0: i64 = queue.qos0
        cause = queue.add(delivery, self.outbox, self.window.quota)
        if queue.qos0 != qos0:
            self.update_fast_path()
        if cause == ACCEPTED and self.answers:
            self._ask(delivery)
        return cause

    def _ask(self, delivery: Delivery) -> None:
        """A link has taken a delivery: if it is there, have its acknowledgement tell whom a request reaches."""
        message = delivery.message
        if isinstance(message, RequestMessage) and delivery.qos > 0 and self.outbox is not None:
            owes = self.queue.pending is not None or self.inflight.count > 1
            if self.window.link().takes(message.request, owes):
                delivery.asked = message.request

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest queued messages until this many messages and bytes are gone, or none is left."""
        self.queue.shed(messages, size, cause)
        self.update_fast_path()

    def shed_one(self, delivery: Delivery, cause: int) -> None:
        """Drop one queued message, here or in the outbox, at any position."""
        self.queue.shed_one(delivery, cause, self.outbox)
        self.update_fast_path()

    def shed_stale(self, sub_queue: SubscriptionQueue, now: float, most: i64) -> i64:
        """Drop queued messages that are too old, at most this many; returns how many there were."""
        count = self.queue.shed_stale(sub_queue, now, most, self.outbox)
        self.update_fast_path()
        return count

    def waited(self, now: float) -> float:
        """Seconds that messages for a connected client wait in its queues; 0.0 if none waits, or it is away.

        In the session's: one that reads and does not acknowledge is slow, too.
        """
        outbox = self.outbox
        if outbox is None:
            return 0.0
        return max(outbox.queue.waited(now), self.queue.waited(now, self.attached_at))

    # -- the writer's side ---------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """True if `pump` may have something to do."""
        if self.queue.pending is not None or self.window.backlog or self.streams is not None:
            return True
        return self.outbox is not None and self.outbox.queue.expired is not None

    def pump(self, now: float) -> bool:
        """A turn of the writer: fill the outbox from the queue, as far as the window and the outbox have room.

        True when there is more that could go, and only fairness to others ended this turn.
        """
        if self.streams is not None:
            self.streams.turn()
        return self.fill_outbox(now)

    def fill_outbox(self, now: float) -> bool:
        """`pump` within the rest of the turn: a thousand acknowledgements in one read share one."""
        outbox = self.outbox
        if outbox is None or outbox.closed:
            return False
        self.window.free_expired(outbox)
        permissions = self.totals.permissions
        if permissions is not None and (self.own or not permissions.filters):
            permissions = None
        if not self.window.send_again(outbox, permissions, self.principal):
            return self.window.spent
        queue = self.queue
        qos0: i64 = queue.qos0
        if permissions is not None:
            queue.doubt(permissions, self.principal)
        all_sent = self.window.send_waiting(queue, outbox, now)
        if queue.disk is not None:
            queue.ask_disk(outbox)
        if queue.qos0 != qos0:
            self.update_fast_path()
        if not all_sent or self.streams is None:
            return self.window.spent
        return self._fill_from_streams(self.streams, outbox, now)

    def _fill_from_streams(self, streams: RetainedStreams, outbox: Outbox, now: float) -> bool:
        """Queue retained messages at the receiver's pace: none is dropped, they wait until there is room."""
        while (delivery := streams.next(outbox, None if self.own else self.principal, now)) is not None:
            if self.uplink and not self.adapt_retained(delivery):
                continue
            cause = streams.send(delivery, outbox, self.window)
            if cause == NO_ROOM:
                return False
            self.offered += 1
            if cause != ACCEPTED:
                self.drop(cause)
        streams.tell_ended(self.journal)
        if streams.empty:
            self.streams = None
            return False
        return streams.spent

    def adapt_retained(self, delivery: Delivery) -> bool:
        """Adapt a retained message for a receiver that is another broker. False: do not send it."""
        del delivery
        return True

    def start_stream(self, subscription: Subscription, tree: RetainedTree) -> None:
        """Begin to stream the matching retained messages of a tree, instead of a stream in progress."""
        if self.streams is None:
            self.streams = RetainedStreams(self.ledger, self.totals)
        self.streams.start(subscription, tree)

    def stop_stream(self, topic_filter: str) -> None:
        """The subscription ended: remove the retained messages that it still waits for."""
        if self.streams is not None:
            self.streams.stop(topic_filter)

    def is_streaming(self, subscription: Subscription) -> bool:
        """True while retained messages are being sent for this subscription."""
        return self.streams is not None and self.streams.running(subscription.topic_filter)

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def on_ack(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        """A PUBACK, PUBREC or PUBCOMP was received: see `SendWindow`, also for its exceptions."""
        window = self.window
        if kind == PUBACK:
            room = window.on_puback(packet_id, reason_code)
        elif kind == PUBREC:
            room = window.on_pubrec(packet_id, reason_code, self.outbox, self.version)
        else:
            room = window.on_pubcomp(packet_id)
        if room:
            self.go_on(now)

    def on_acks(self, kind: i64, data: bytes, start: i64, now: float) -> i64:
        """Several consecutive ones: see `SendWindow.on_acks`."""
        at = self.window.on_acks(kind, data, start, self.outbox)
        if at != start and kind != PUBREC:
            self.go_on(now)
        return at

    def go_on(self, now: float) -> None:
        """There is more room than before: fill the outbox."""
        outbox = self.outbox
        if self.backlog and self.fill_outbox(now) and outbox is not None:
            outbox.schedule_flush()

    # -- shared subscriptions and the end ------------------------------------------------------------------------------

    def take_shared(self, groups: set[SharedGroup]) -> list[Delivery]:
        """Remove the messages for this member of some shared subscriptions, so that other members can get them.

        That is everything that waits, and QoS 1 in flight; QoS 2 that was sent stays [MQTT-4.8.2-4], and is given to
        nobody when the session ends [MQTT-4.8.2-5].
        """
        taken = self.window.take_shared(groups)
        self.offered -= sum([delivery.attempts == 0 for delivery in taken])
        waiting = self.queue.take_shared(groups)
        self.offered -= i64(len(waiting))
        self.update_fast_path()
        taken += waiting
        for delivery in taken:
            delivery.settle(True)
            if self.journal is not None:
                self.journal.finished(self.client_id, delivery)
        return taken

    def end(self) -> None:
        """The session ended: queued messages are dropped and counted."""
        self.ended = True
        queued = self.queued()
        if queued > 0:
            self.ledger.lost(SESSION_ENDED, queued)
        self.inflight.settle()
        if self.answers:
            self.queue.settle()
        self.window.end()
        self.queue.end()
        if self.sub_queue is not None:
            self.totals.aging.pop(self.sub_queue, None)
        self.streams = None
        self.incoming_qos2 = None
        self.will = None

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def queued(self) -> int:
        """Messages that were offered and neither delivered nor dropped: in the outbox, waiting, or unsent in flight."""
        count: i64 = self.queue.messages + self.inflight.unsent()
        outbox = self.outbox
        if outbox is not None:
            count += outbox.messages - outbox.qos12_messages
        return count

    def delivered_in_all(self) -> int:
        """Messages written to a transport for the first time, including the present connection."""
        return self.delivered + (0 if self.outbox is None else self.outbox.taken)

    def drop(self, cause: int) -> int:
        """Count an offered message as dropped. Returns the cause."""
        self.ledger.lost(cause, 1)
        return cause


MESSAGE_ROOM: Final = 1_048_576
"""Bytes of messages that may wait in a session, and as many that may be in flight, whatever else its client holds."""


class ClientAccount:
    """Bytes, by use. A caller that changes `filters` or `retained` calls `fit`."""

    def __init__(self, queue: SessionQueue, window: SendWindow) -> None:
        """`queue` and `window` are the session's, and are given their bounds from here."""
        # Its subscriptions, each as if it shared nothing with others (`topics.filter_bytes`).
        self.filters: i64 = 0
        # What it has published and is retained (`routing.retained.shares`).
        self.retained: i64 = 0
        # The session by itself (`session_bytes`).
        self.session: i64 = 0
        self._max_bytes: i64 = UNLIMITED
        self._max_inflight_bytes: i64 = window.max_bytes
        self._queue = queue
        self._window = window

    @property
    def owner(self) -> Account:
        """The account of the client's principal, which holds all of this but what is retained."""
        return self._queue.owner

    @property
    def bytes(self) -> i64:
        """All of it."""
        return self.filters + self.retained + self.session + self._queue.bytes + self._window.bytes

    def limit(self, max_bytes: int, max_inflight_bytes: int) -> None:
        """Bound the account, and what is in flight by itself. 0: unlimited."""
        self._max_bytes = bound(max_bytes)
        self._max_inflight_bytes = bound(max_inflight_bytes)
        self._window.max_bytes = self._max_inflight_bytes
        self.fit()

    def has_room(self, size: i64) -> bool:
        """Whether its client may have so many bytes more."""
        return size <= self.room

    @property
    def room(self) -> i64:
        """Bytes that its client may have more, at most `UNLIMITED`."""
        return self._max_bytes if self._max_bytes >= UNLIMITED else self._max_bytes - self.bytes

    def fit(self) -> None:
        """Have messages keep to what the rest leaves: called when that has changed, and before one is queued."""
        if self._max_bytes >= UNLIMITED:
            return
        left: i64 = self._max_bytes - self.filters - self.retained - self.session
        if left < MESSAGE_ROOM:
            left = MESSAGE_ROOM
        window = self._window
        window.max_bytes = left if left < self._max_inflight_bytes else self._max_inflight_bytes
        left -= window.bytes
        if left < MESSAGE_ROOM:
            left = MESSAGE_ROOM
        self._queue.fit(left)
