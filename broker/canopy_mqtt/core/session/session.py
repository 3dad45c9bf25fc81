"""The state that MQTT keeps for one client identifier, connected or not (5.0 section 4.1, 3.1.1 section 3.1.2.4).

Owns the subscriptions, the messages in flight to the client (`SendWindow`) and waiting ones (`MessageQueue`), the QoS 2
identifiers that the client has not released, retained messages still to be streamed, and the ledger. Promises:
- Messages of one topic and QoS are sent in the order of arrival; a resumed session first sends what was in flight, in
  its order, with its packet identifiers [MQTT-4.4.0-1] [MQTT-4.6.0-1].
- offered = delivered + dropped (by cause) + queued, whenever no call is in progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import PUBREC, V5, V311, Will
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import ACCEPTED, DISCONNECTED, EXCLUDED, GLOBAL, GO_ON, SESSION_ENDED, Ledger
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queue_totals import bound
from canopy_mqtt.core.queues.delivery import QUEUED, SENT, Delivery, order_of
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.message_queue import MessageQueue
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, MessageTerms, QueueTerms
from canopy_mqtt.core.queues.requests import AskedLink, RequestMessage
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.queues.send_window import SendWindow
from canopy_mqtt.core.session.client_account import ClientAccount
from canopy_mqtt.core.session.retained_stream import STEP, RetainedStream, RetainedStreams
from canopy_mqtt.core.topics.subscription import SharedGroup, Subscription
from canopy_mqtt.core.topics.topic_tree import TopicTree

if TYPE_CHECKING:
    from canopy_mqtt.core.queues.in_flight import InFlight
    from canopy_mqtt.core.queues.queue_terms import QueueRule, RequestedDelays
    from canopy_mqtt.core.shared import Attempt


class Session:
    """One client's session. `max_messages`, `max_bytes`: limits of its queue, and of bytes in flight; 0: unlimited."""

    def __init__(
        self, client_id: str, max_messages: int, max_bytes: int, counters: Counters, who: Principal | None = None
    ) -> None:
        # What each message touches comes first, up to `asked_link`: side by side it takes few lines of the cache.
        # The connection, if there is one. `send_buffer` is changed by ConnectedPeers.drain alone.
        self.send_buffer: SendBuffer | None = None
        # Messages that wait, and those in flight to the client; each is made when first needed (`queue`, `window`).
        self.made_queue: MessageQueue | None = None
        self.made_window: SendWindow | None = None
        self.streams: RetainedStreams | None = None  # towards the client: retained messages
        # The store's journal; None when there is none, or the session ends with its connection. See `keep_in`.
        self.journal: Journal | None = None
        # The terms that are about single messages; the others are the queue's.
        self.message_terms: MessageTerms | None = None
        # All messages that were offered to it; what was dropped is in `ledger`, and see `delivered_in_all`.
        self.offered: i64 = 0
        # No topic aliases are used, so that frames can be shared; and whether a QoS 0 frame may go straight to the
        # send buffer: none waits here that it would overtake either, and no terms hold for it but the queue's.
        self.plain = self.fast_path = True
        self.v5 = self.queue_qos0 = self.will_alone = False  # the last: the will is kept without the session
        self.upstream = False  # a link's to an upstream broker: what it subscribes to here is no client's demand
        self.internal = False  # the broker's: a link's, or of the program that it runs in. No rule is about it
        # The present connection, if its acknowledgements tell whether a subscriber was reached: a link's do.
        self.asked_link: AskedLink | None = None
        self.client_id, self.totals, self.ledger = client_id, counters.totals, Ledger(client_id, counters)
        self.account = ClientAccount(counters.totals.internal, bound(max_bytes))
        # The terms of a queue and a window that are not made yet; a send quota of 0 before the first connection.
        self._counters = counters
        self.policy, self._max_messages, self._max_bytes = DROP_NEWEST, max_messages, max_bytes
        self._send_quota = 0
        self.delivered: i64 = 0  # on earlier connections
        # The client of the present connection, or of the last one.
        self.principal = who or Principal(client_id=client_id)
        self.terms: QueueTerms | None = None  # of its client, by settings and rules (`QueueLimits.apply`)
        self.rules: tuple[QueueRule, ...] = ()
        self.others_terms = False  # subscriptions have queues yet by the rules for the user that it was before
        self.subscriptions: dict[str, Subscription] = {}
        self.requested_delays: RequestedDelays | None = None  # of the present connection (`ConnectedPeers`)
        self.fresh_terms: i64 = 0  # those of them whose messages are worth less the longer they wait
        self.version = V311
        self.max_live_qos = 2  # of retained messages (`SharedSession`)
        # Expiry and will, and when the present connection came (s); the times are 0.0 while they do not apply.
        self.expiry_interval, self.ended = 0, False
        self.expires_at = self.will_due = self.grace_from = self.attached_at = 0.0
        self.will: Will | None = None
        # Of the present connection: the id of the broker that its client is; whether it says it is a 3.1.1 bridge, and
        # may be a link (`protocol.identity`), hold up acknowledgements, and publish who is connected elsewhere.
        self.link_peer, self.bridge, self.is_link = "", False, False
        self.bridge_state = b""  # the topic of the state that the will of its CONNECT announces (`bridge_states`)
        self.received_qos2: set[int] | None = None  # from the client: publishes that wait for PUBREL
        self.shared = 0  # of its subscriptions: see `memberships`
        # A subscription's own queue is half full, or its messages are soon too old: what waits for more has to go.
        self.hurries = False
        self.memberships: dict[Subscription, None] | None = None  # in share groups
        self.claim: Attempt | None = None  # while it is open here, where brokers share sessions

    @property
    def user_name(self) -> str | None:
        """The user to whom it belongs (`protocol.identity`); None for an anonymous client."""
        return self.principal.user_name

    @property
    def queue(self) -> MessageQueue:
        """The messages that wait."""
        queue = self.made_queue
        if queue is None:
            queue = MessageQueue(self, self._counters)
            queue.limit(self.policy, self._max_messages, self._max_bytes)
            queue.owner = self.account.owner
            self.made_queue = queue
            self.account.queue = queue
            self.account.fit()
            self.keep_in(self.journal)
        return queue

    @property
    def window(self) -> SendWindow:
        """The messages in flight, and the send quota."""
        window = self.made_window
        if window is None:
            window = SendWindow(self.ledger, self.totals, self.account.max_inflight_bytes)
            if self._send_quota > 0:
                # Nothing that was released counts on this connection: a session that has it has a window.
                window.open(self._send_quota)
            self.made_window = window
            self.account.window = window
            self.account.fit()
            self.keep_in(self.journal)
        return window

    @property
    def inflight(self) -> InFlight:
        """The messages in flight, by packet identifier."""
        return self.window.inflight

    # -- terms ---------------------------------------------------------------------------------------------------------

    def keep(self, journal: Journal) -> None:
        """It has got its expiry interval and its will: have a journal keep it from now on, if it lasts.

        An interval of 0 cannot be raised later on the same connection (section 3.14.2.2.2).
        """
        queue = self.made_queue
        if self.expiry_interval == 0 and (queue is None or queue.disk is None):
            if self.journal is not None:
                self.keep_in(None)
                journal.session_gone(self.client_id)
            self.keep_will(journal)
            return
        self.keep_in(journal)
        # What waits on disk alone is kept until the end of the connection, or, if the broker dies, for a second.
        journal.session_kept(self.client_id, self.principal, self.expiry_interval or 1, 0.0)
        if self.will is not None:
            journal.will_set(self.client_id, self.will, 0.0)

    def keep_will(self, keeper: Journal) -> None:
        """Have its will kept, if it has one, where the session itself is not."""
        if self.will is not None:
            self.will_alone = True
            keeper.will_alone(self.client_id, self.principal, self.will, 0.0)

    def keep_subscription(self, subscription: Subscription) -> None:
        """It has a subscription, or has it with other terms: have that kept, where the session is."""
        if self.journal is not None:
            self.journal.subscribed(self.client_id, subscription, self.is_streaming(subscription))

    def keep_in(self, journal: Journal | None) -> None:
        """Report changes of this session to a journal from now on; None: it is not stored."""
        self.journal = journal
        queue, window = self.made_queue, self.made_window
        if queue is not None:
            queue.journal = journal
            # A link looks for messages that wait before their turn comes.
            queue.pages = None if journal is None or self.upstream else journal.pages
        if window is not None:
            window.journal = journal
            window.commits = None if journal is None else journal.commits

    def limit(
        self,
        policy: int,
        message_terms: MessageTerms | None,
        max_messages: int,
        max_bytes: int,
        max_inflight_bytes: int = 0,
        max_client_bytes: int = 0,
    ) -> None:
        """Change the limits of the queue and the account; queued messages stay. 0: unlimited."""
        self.message_terms = message_terms
        self.policy, self._max_messages, self._max_bytes = policy, max_messages, max_bytes
        if self.made_queue is not None:
            self.made_queue.limit(policy, max_messages, max_bytes)
        self.account.limit(max_client_bytes, min(bound(max_bytes), bound(max_inflight_bytes)))
        self.update_fast_path()

    def update_fast_path(self) -> None:
        """Update whether plain frames may go directly to the connection's queue, after a change of what this rests on.

        The queue calls this where QoS 0 begins to wait in it, or does no more.
        """
        tap = self.totals.tap
        queue = self.made_queue
        self.fast_path = (
            self.plain
            and (queue is None or queue.qos0 == 0)
            and self.message_terms is None
            and (tap is None or not tap.deliveries)
        )

    def takes_frames_of(self, origin: Session | None) -> bool:
        """Return whether plain QoS 0 frames of this publisher may go directly to the connection's queue, although those
        of all publishers may not (`fast_path`)."""
        del origin
        return False

    def excludes(self, origin: Session | None) -> bool:
        """Return whether nothing of this publisher is for this session: of a link to a node, nothing is for a node."""
        del origin
        return False

    # -- connection ----------------------------------------------------------------------------------------------------

    def pinged(self) -> None:
        """Its client has sent a PINGREQ."""

    def attach(self, version: int, send_quota: int, plain: bool) -> None:
        """Connect the session to a connection.

        `send_quota` is what the send quota begins with: at least 1, and at most the client's Receive Maximum
        [MQTT-4.9.0-1]. `plain` says that no topic aliases are used, so that frames can be shared.
        """
        self.plain = plain
        self.update_fast_path()
        self.version = version
        self.v5 = version == V5
        self._send_quota = send_quota
        if self.made_window is not None:
            self.made_window.open(send_quota)
        self.attached_at = self.totals.now

    def resume(self, now: float) -> None:
        """Send again what was in flight when the last connection ended, then the queued messages (section 4.4).

        `protocol.subscribe.resume` calls it once the CONNACK is queued.
        """
        send_buffer = self.send_buffer
        if send_buffer is None:
            return
        if self.made_window is not None:
            self.made_window.begin_resend(send_buffer, self.version)
        self.fill_and_flush(now)

    def detach(self, send_buffer: SendBuffer) -> None:
        """The connection ended: drop its QoS 0 messages, count what was written, and keep QoS 1 and 2 in flight."""
        window = self.made_window
        if window is not None:
            window.free_expired(send_buffer)
        if send_buffer.items:
            send_buffer.discard(DISCONNECTED)
        else:
            send_buffer.closed = True
        self.delivered += send_buffer.taken
        if window is not None:
            window.close()
        if self.asked_link is not None and self.made_queue is not None:
            self.made_queue.settle()

    def restore(self, delivery: Delivery) -> bool:
        """Add a delivery from a store, in the order in which they were queued. False: no room, dropped."""
        if delivery.state == QUEUED:
            self.offered += 1
            delivery.message_terms = self.message_terms
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
        message_terms: MessageTerms | None = None,
    ) -> int:
        """Offer a message with the granted QoS: ACCEPTED, or the cause of its drop.

        With QoS 1 or 2 it is part of the session from here on [MQTT-4.5.0-1], whether the client is connected or not
        [MQTT3-3.1.2-5]: in flight or queued. `message_terms`: those of the subscription, if it has its own. A session
        that is over takes nothing: EXCLUDED, while its subscriptions are taken away.
        """
        send_buffer = self.send_buffer
        if send_buffer is None and self.ended:
            return EXCLUDED
        self.offered += 1
        if message_terms is None:
            message_terms = self.message_terms
        queue = self.made_queue
        if qos == 0:
            if send_buffer is None:
                if not self.queue_qos0:
                    self.ledger.away()
                    return DISCONNECTED
            elif message_terms is None and (queue is None or queue.qos0 == 0):
                if not retain and not identifiers and self.plain and message.shared_frame_suits():
                    return send_buffer.offer(message.qos0_frame(self.v5))
                return send_buffer.offer_late(Delivery(message, 0, retain, identifiers, group))
        if send_buffer is not None:
            cause = send_buffer.refusal(message, qos, identifiers)
            if cause != ACCEPTED:
                # The message will never fit, however long it waits: nothing makes room for it.
                return self._missed(message, self.ledger.lost(cause, 1))
        delivery = Delivery(message, qos, retain, identifiers, group)
        if message_terms is not None:
            queue = self.queue
            self.account.fit()
            answer = queue.apply_terms(message_terms, delivery)
            if answer != GO_ON:
                if answer != ACCEPTED:
                    return self._missed(message, answer)
                renewed = message_terms.of_topic(message.topic)
                if renewed is not None:
                    self._ask(renewed)
                return ACCEPTED
            delivery.message_terms = message_terms
            delivery.since = self.totals.now
        if group is not None:
            delivery.order = self.totals.place()
        if message_terms is not None and qos == 0 and send_buffer is not None and queue is not None and queue.qos0 == 0:
            return queue.offer_live(delivery, message_terms)
        size: i64 = message.size
        # Past the queue only when nothing waits there: every topic is an ordered one [MQTT-4.6.0-6] [MQTT3-4.6.0-6].
        if send_buffer is not None and qos > 0 and (queue is None or queue.pending is None):
            window = self.window
            if (
                window.quota > 0
                and window.resend is None
                and (message_terms is None or not window.full_of_own(send_buffer))
                and send_buffer.has_room(size + HEADROOM)
            ):
                # One may always be on its way to a client with nothing else before it.
                count: i64 = window.inflight.count
                idle = send_buffer.messages == 0 and count == 0
                if (
                    not idle
                    and not self.totals.has_room(1, size)
                    and not self.totals.admits(1, size, send_buffer.messages + count, send_buffer.bytes + window.bytes)
                ):
                    return self._missed(message, self.ledger.lost(GLOBAL, 1))
                if window.send_new(delivery, send_buffer):
                    if self.asked_link is not None:
                        self._ask(delivery)
                    return ACCEPTED
        cause = self._wait(delivery)
        return cause if cause == ACCEPTED else self._missed(message, cause)

    def _missed(self, message: Message, cause: int) -> int:
        """A live message was not accepted: if it is retained, a stream may still send it. Returns the cause."""
        if message.retain and self.streams is not None:
            self.streams.missed(message.topic)
        return cause

    def sendable(self, count: i64, size: i64) -> i64:
        """Return how many messages of `size` bytes, at most `count`, `send_now` or `send_run` would send now.

        0 as well where it is not the common case: the client is there, nothing waits, no store keeps the session.
        """
        send_buffer = self.send_buffer
        queue = self.made_queue
        if (
            send_buffer is None
            or (queue is not None and queue.pending is not None)
            or self.message_terms is not None
            or self.journal is not None
            or self.asked_link is not None
            or self.upstream
        ):
            return 0
        return self.window.sendable(count, size, send_buffer)

    def send_now(self, message: Message, qos: i64) -> None:
        """`deliver` for the common case of QoS 1 and 2, for a subscription without options: see `sendable`."""
        send_buffer = self.send_buffer
        assert send_buffer is not None
        self.offered += 1
        self.window.send_now(message, qos, send_buffer)

    def send_run(self, messages: list[Message], qos: i64, frames: bytearray, id_at: i64) -> None:
        """The same for several: see `SendWindow.send_run`."""
        send_buffer = self.send_buffer
        assert send_buffer is not None
        self.offered += i64(len(messages))
        self.window.send_run(messages, qos, frames, id_at, send_buffer)

    def _wait(self, delivery: Delivery) -> int:
        """Queue a delivery: ACCEPTED, or the cause of its drop."""
        queue = self.made_queue
        if queue is None:
            queue = self.queue
        self.account.fit()
        cause = queue.add(delivery)
        if cause == ACCEPTED and self.asked_link is not None:
            self._ask(delivery)
        return cause

    def _ask(self, delivery: Delivery) -> None:
        """A link has taken a delivery: if it is there, have its acknowledgement tell whom a request reaches."""
        message, link = delivery.message, self.asked_link
        if (
            link is not None
            and isinstance(message, RequestMessage)
            and delivery.qos > 0
            and self.send_buffer is not None
        ):
            owes = self.queue.pending is not None or self.inflight.count > 1
            delivery.on_settled = link.ask(message.request, owes)

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest queued messages until this many messages and bytes are gone, or none is left."""
        self.queue.shed(messages, size, cause)

    def shed_stale(self, message_terms: MessageTerms, now: float, most: i64) -> i64:
        """Drop queued messages that are too old, at most this many; returns how many there were."""
        return self.queue.shed_stale(message_terms, now, most)

    def waited(self, now: float) -> float:
        """Seconds that messages for a connected client wait in its queues; 0.0 if none waits, or it is away.

        In the session's: one that reads and does not acknowledge is slow, too.
        """
        send_buffer = self.send_buffer
        if send_buffer is None:
            return 0.0
        waited = send_buffer.waited(now)
        return waited if self.made_queue is None else max(waited, self.made_queue.waited(now, self.attached_at))

    # -- the writer's side ---------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """True if `refill` may have something to do."""
        queue, window = self.made_queue, self.made_window
        if queue is not None and queue.pending is not None:
            return True
        if self.streams is not None or (window is not None and window.backlog):
            return True
        return self.send_buffer is not None and self.send_buffer.expired is not None

    def refill(self, now: float) -> bool:
        """Fill the send buffer in a turn of the connection's writer (`fill`), with a new bound on retained messages."""
        if self.streams is not None:
            self.streams.left = STEP
        return self.fill(now)

    def fill(self, now: float) -> bool:
        """Move to the send buffer what has room there: what is sent again, what waits, then retained messages.

        True when there is more that could go, and only the bound of a turn has ended this one. Retained messages have
        one bound for each turn of the writer: a thousand acknowledgements in one read share it.
        """
        send_buffer = self.send_buffer
        if send_buffer is None or send_buffer.closed:
            return False
        window = self.made_window
        if window is not None:
            window.free_expired(send_buffer)
        permissions = self.totals.permissions
        if permissions is not None and (self.internal or not permissions.filters):
            permissions = None
        if window is not None and not window.send_again(send_buffer, permissions, self.principal):
            return window.spent
        queue = self.made_queue
        if queue is not None:
            if window is None:
                window = self.window
            if permissions is not None:
                queue.begin_review(permissions, self.principal)
            all_sent = window.send_waiting(queue, send_buffer, now)
            if queue.disk is not None:
                queue.ask_disk()
            if not all_sent:
                return window.spent
        if self.streams is None:
            return window is not None and window.spent
        return self.streams.fill(self, send_buffer, now)

    def adapt_retained(self, delivery: Delivery) -> bool:
        """Adapt a retained message for a receiver that is another broker. False: do not send it."""
        del delivery
        return True

    def start_stream(self, subscription: Subscription, tree: TopicTree, since: i64 = -1) -> None:
        """Begin to stream the matching retained messages of a tree. A stream in progress begins anew in its turn.
        `since`: see `RetainedStream`."""
        streams = self.streams = self.streams or RetainedStreams()
        streams.streams[subscription.topic_filter] = RetainedStream(subscription, tree, self.totals.permissions, since)

    def stop_source(self) -> None:
        """Take nothing more from the queues of its share groups: its connection is over."""
        streams = self.streams
        if streams is not None:
            streams.source = None
            if not streams.streams:
                self.streams = None

    def stop_stream(self, topic_filter: str) -> None:
        """The subscription ended: remove the retained messages that it still waits for."""
        if self.streams is not None:
            self.streams.streams.pop(topic_filter, None)

    def is_streaming(self, subscription: Subscription) -> bool:
        """True while retained messages are being sent for this subscription."""
        return self.streams is not None and subscription.topic_filter in self.streams.streams

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def on_ack(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        """A PUBACK, PUBREC or PUBCOMP was received: see `SendWindow`, also for its exceptions."""
        if self.window.on_ack(kind, packet_id, reason_code, self.send_buffer, self.version):
            self.fill_and_flush(now)

    def on_acks(self, kind: i64, data: bytes, start: i64, now: float) -> i64:
        """Several consecutive ones: see `SendWindow.on_acks`."""
        at = self.window.on_acks(kind, data, start, self.send_buffer)
        if at != start and kind != PUBREC:
            self.fill_and_flush(now)
        return at

    def fill_and_flush(self, now: float) -> None:
        """Fill the send buffer, in which there is more room than before; its writer goes on where a turn has ended."""
        send_buffer = self.send_buffer
        if self.backlog and self.fill(now) and send_buffer is not None:
            send_buffer.schedule_flush()

    # -- shared subscriptions and the end ------------------------------------------------------------------------------

    def shareable(self, groups: set[SharedGroup], waiting_only: bool) -> list[Delivery]:
        """Return the messages for this member of some shared subscriptions that other members may have, in their order.

        That is everything that waits and, unless `waiting_only`, QoS 1 in flight; QoS 2 that was sent stays
        [MQTT-4.8.2-4], and is given to no member when the session ends [MQTT-4.8.2-5].
        """
        found = [] if self.made_window is None or waiting_only else self.made_window.shareable(groups)
        if self.made_queue is not None:
            found += [each for each in self.made_queue.waiting() if each.group in groups]
        found.sort(key=order_of)
        return found

    def take_shared(self, some: list[Delivery]) -> None:
        """Remove some of `shareable`, so that other members can get them."""
        waiting: list[Delivery] = []
        for delivery in some:
            if delivery.attempts == 0 or delivery.state == QUEUED:
                self.offered -= 1
            if delivery.state == QUEUED:
                waiting.append(delivery)
                continue
            self.window.take(delivery)
            delivery.settle()
            if self.journal is not None:
                self.journal.finished(self.client_id, delivery)
        if waiting:
            self.queue.take_shared(waiting)

    def give_back(self) -> None:
        """A store that brokers share has what is here: it is neither queued nor lost. QoS 0 is here alone."""
        self.keep_in(None)
        queue = self.made_queue
        here: i64 = 0 if queue is None else queue.qos0
        self.offered -= i64(self.queued()) - here
        if here > 0:
            self.ledger.lost(SESSION_ENDED, here)

    def end(self, kept: bool = False) -> None:
        """The session ended: queued messages are dropped and counted, unless they are `kept` (`give_back`)."""
        self.ended = True
        queue, window = self.made_queue, self.made_window
        if not kept and (queue is not None or window is not None or self.send_buffer is not None):
            queued = self.queued()
            if queued > 0:
                self.ledger.lost(SESSION_ENDED, queued)
        if window is not None:
            window.inflight.settle()
        if queue is not None:
            if self.asked_link is not None:
                queue.settle()
            queue.end()
            # The queue refers to the session, and a cycle would stay until Python looks for garbage.
            self.made_queue = self.account.queue = None
        if window is not None:
            window.end()
        if self.message_terms is not None:
            self.totals.aging.pop(self.message_terms, None)
        self.streams = None
        self.received_qos2 = None
        self.will = None

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def waiting_messages(self) -> i64:
        """Return how many messages wait here, for room or for the client."""
        return 0 if self.made_queue is None else self.made_queue.messages

    def waiting_bytes(self) -> i64:
        """Return their bytes."""
        return 0 if self.made_queue is None else self.made_queue.bytes

    def send_quota(self) -> i64:
        """Return how many publishes of QoS 1 and 2 its client may be sent before it acknowledges one."""
        return self._send_quota if self.made_window is None else self.made_window.quota

    def in_flight_messages(self) -> i64:
        """Return how many messages are in flight."""
        return 0 if self.made_window is None else self.made_window.inflight.count

    def has_messages(self) -> bool:
        """Return whether messages wait here or are in flight."""
        queue = self.made_queue
        return (queue is not None and queue.pending is not None) or self.in_flight_messages() > 0

    def queued(self) -> int:
        """Messages that were offered and neither delivered nor dropped: in the buffer, waiting, or unsent in flight."""
        count: i64 = self.waiting_messages()
        if self.made_window is not None:
            count += self.made_window.inflight.unsent()
        send_buffer = self.send_buffer
        if send_buffer is not None:
            count += send_buffer.messages - send_buffer.in_flight_messages
        return count

    def delivered_in_all(self) -> int:
        """Messages written to a transport for the first time, including the present connection."""
        return self.delivered + (0 if self.send_buffer is None else self.send_buffer.taken)

    def refused(
        self,
        kind: int,
        topic: str,
        reason_code: int,
        why: str = "",
        qos: int = 0,
        retain: bool = False,
        count: int = 1,
        principal: Principal | None = None,
    ) -> None:
        """Remember that something of its client was refused, of which 3.1.1 may have no way to tell it (`Refusals`).

        `principal`: who its client was then; None: who it is now.
        """
        self._counters.refusals.note(
            self.ledger, principal or self.principal, kind, topic, reason_code, self.totals.now, why, qos, retain, count
        )

    def stand_in(self, counters: Counters) -> Session:
        """Return an empty session with the terms of this one, to which a message can be delivered in its place, for
        `observe.explain`."""
        made = Session(self.client_id, self._max_messages, self._max_bytes, counters, self.principal)
        made.policy, made._send_quota = self.policy, self._send_quota
        made.plain, made.v5, made.queue_qos0 = self.plain, self.v5, self.queue_qos0
        made.account.resemble(self.account)
        return made


class SharedSession(Session):
    """The session of a client that has, or had, a Session Expiry Interval above 0, where brokers share sessions
    (`core.shared`), while it is here.

    Messages of QoS 1 and 2 come to it from the store, in the order in which the store has them: the live ones would
    come twice. QoS 0 is live.

    With QoS 2, nothing comes that the store does not know: if the connection ended before its PUBCOMP, the identifier
    would be free here, and in use for the client, which would take the next message with it for the same one.
    """

    def __init__(
        self, client_id: str, max_messages: int, max_bytes: int, counters: Counters, who: Principal | None = None
    ) -> None:
        super().__init__(client_id, max_messages, max_bytes, counters, who)
        self.max_live_qos = 1

    def keep(self, journal: Journal) -> None:
        """Have it kept also where it ends with this connection: what it has is in the store, and comes from there."""
        self.keep_in(journal)
        journal.session_kept(self.client_id, self.principal, self.expiry_interval, 0.0)
        if self.will is not None:
            journal.will_set(self.client_id, self.will, 0.0)

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        message_terms: MessageTerms | None = None,
    ) -> int:
        """Offer a message: as `Session.deliver`; EXCLUDED: it comes from the store."""
        if qos > 0:
            return EXCLUDED
        return super().deliver(message, qos, retain, identifiers, group, message_terms)
