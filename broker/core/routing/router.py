"""What changes who gets what: subscriptions, retained messages and sessions, and what falls due among them.

Owns the retained tree, the session map, the fanout state and the deadlines, and, through its base `Fanout`, the
topic filters; nobody else changes them.

Promises:
- A will is published once on every end of a connection but DISCONNECT 0x00, after its delay, and not when the client
  is back before [MQTT-3.1.2-8] [MQTT-3.1.3-9].
- A session is gone when its expiry interval has passed [MQTT-4.1.0-2].
- Retained messages are bounded in number and bytes, the levels of their topics counted with them; one that does not
  fit is delivered, counted, and not kept. The broker's own (`$SYS`) take no room from the clients' and need none.

Refuses: packets and bytes (channel), packet identifiers and windows (session), clocks (callers pass `now`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from broker.core.causes import publishes_will
from broker.core.codec.packets import NEVER, SubscriptionRequest, Will
from broker.core.codec.topic_names import is_system, parse_shared
from broker.core.hooks import AccessControl, AuthMethod, EventListener, SubscriptionListener
from broker.core.limits import Limits
from broker.core.persistence.journal import Journal
from broker.core.queues.message import Delivery, Message
from broker.core.queues.outbox import Outbox
from broker.core.queues.queue_options import grant
from broker.core.queues.queue_policy import DROP_NEWEST, LATEST, QueueOptions, QueueTerms, SubscriptionQueueTerms
from broker.core.queues.queue_rules import queue_terms, sub_queue_terms, subscription_rules
from broker.core.queues.queue_totals import bound
from broker.core.queues.requests import Request
from broker.core.queues.subscription_queue import SubscriptionQueue, queue_of
from broker.core.routing.bursts import RunFinder
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.fanout import Fanout
from broker.core.routing.peers import FanoutState, PeerConnected, PeerDisconnected
from broker.core.routing.retained_shares import RetainedMessage, RetainedShares
from broker.core.routing.session_table import SessionTable
from broker.core.routing.subscription_table import DROP_WORK
from broker.core.session.global_limit import GlobalLimiter
from broker.core.session.session import Session
from broker.core.session.session_bytes import session_bytes
from broker.core.tap import Tap
from broker.core.topics.subscription import SharedGroup, Subscription, identifiers
from broker.core.topics.topic_tree import NODE_BYTES, RetainedTree
from broker.core.topics.trie import create

if TYPE_CHECKING:
    from mypy_extensions import i64

SWEEP: Final = 12_000
"""Messages that are too old and are dropped in one sweep: some milliseconds. The others follow in the next ones."""

PROBES: Final = 4
"""Look-ups in the trie that count as one delivery in a turn."""

RETAIN_WORK: Final = 16
"""What a retained message that is kept counts for in a turn, as deliveries; each level that is new counts one more."""

MOST_ENDED: Final = 256
"""Empty sessions that may end for one that comes: a will of 400 KB takes the room of so many."""

TICK_WORK: Final = 16_384
"""What one `tick` may do, counted as deliveries: some milliseconds."""

DUE_WORK: Final = 32
"""What a thing that falls due counts for: a retained message that is cleared, a session that ends."""

PAUSE: Final = 0.005
"""Seconds that wills wait when one of them has half filled a session's queue."""


class DueWill:
    """A will that waits for its turn; its session may be gone."""

    def __init__(self, message: Message, session: Session) -> None:
        self.message = message
        self.session = session


class Router(Fanout):
    """The routing state of one broker."""

    def __init__(self, limits: Limits, trie: str = "nodes", match_cache: int = 16_384) -> None:
        super().__init__(trie, match_cache)
        self.limits = limits
        # How this broker calls itself in the path of a message (`path`); empty: it has no name yet, and meets no loop.
        self.broker_id = ""
        self.cache.guarded = limits.presence_topic
        self.cache.controls = limits.control_characters
        self.runs = RunFinder(self.cache, limits.live_messages, limits.live_bytes)
        if limits.max_payload_size > 0:
            self.runs.most_payload = limits.max_payload_size
        load = self._load
        load.max_messages = bound(limits.total_messages)
        load.max_bytes = bound(limits.total_bytes)
        self.fanout = FanoutState(load)
        self.retained = RetainedTree()
        # What counts against the limits: all but the broker's own, and of those the number.
        self.retained_bytes = 0
        self.retained_shares = RetainedShares(limits.max_retained_bytes_per_client)
        self.system_retained = 0
        self.session_table = SessionTable()
        self.sessions = self.session_table.sessions
        load.reliever = GlobalLimiter(self.sessions, load)
        self.deadlines = Deadlines()
        # Bytes that the topic aliases of all clients take.
        self.alias_bytes: i64 = 0
        # Whether the last will has half filled a queue: the next ones wait for a turn (`tick`).
        self._pressed = False
        self._waiting_wills = 0
        # What everybody's queues keep to, where there are no rules.
        self._terms: QueueTerms | None = None
        self.access_control: AccessControl | None = None
        self.event_listener: EventListener | None = None
        # Set before the first session, or never.
        self.journal: Journal | None = None
        self.auth_methods: dict[str, AuthMethod] = {}

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(self, tap: Tap | None, filters: Sequence[str]) -> None:
        """Have a tap told of everything that happens from now on, and of the messages whose topics these match.

        It is told of the subscriptions that are there already. None: nobody is told any more. Whoever listens for all
        topics of a burst still gets it in one piece: the tap's filters are matched when a topic's route is made, and
        are no subscriptions.
        """
        taps = create("nodes")
        for topic_filter in filters:
            taps.insert(topic_filter)
        self.tap = tap
        self.table.tap = tap
        self._load.tap = tap
        self.cache.clear()
        self.cache.taps = taps if tap is not None else None
        for session in self.sessions.values():
            session.update_fast_path()
            if tap is not None:
                for subscription in session.subscriptions.values():
                    self.tell_subscribed(subscription, True)

    def tell_subscribed(self, subscription: Subscription, snapshot: bool) -> None:
        """Have a subscription recorded: a new one, or (`snapshot`) one that was there before."""
        tap = self.tap
        if tap is not None:
            tap.subscribed(
                cast(Session, subscription.session).client_id,
                subscription.topic_filter,
                subscription.qos,
                subscription.no_local,
                subscription.retain_as_published,
                subscription.identifier,
                snapshot,
            )

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, message: Message, origin: Session | None) -> int:
        """Route a message; store or clear it when it is retained. Returns how many sessions and groups it was for.

        `origin` is the publishing session (for No Local), None for the broker's own messages and wills.
        """
        if self.limits.upgrade_outgoing_qos:
            # The lower of this and the granted QoS is the granted one, for live and retained messages alike.
            message.qos = 2
        cache = self.cache
        route = cache.lookup(message.topic)
        if route is None:
            # Filters that a client chose decide how far the trie is walked: whoever publishes pays for it in turns.
            before = self.trie.probes
            route = cache.store(message.topic)
            self.work += (self.trie.probes - before) // PROBES
        count = self.forward(route, message, origin)
        if message.retain:  # without, no retained message is touched [MQTT-3.3.1-8]
            self.retain(message)
        return count

    def ask(self, message: Message, origin: Session | None, request: Request) -> int:
        """`publish` a request: the links that take it with QoS 1 or 2 and are connected are asked whom they reach.

        Afterwards `Request.waits` says whether there is anything to wait for.
        """
        if self.limits.answer_timeout <= 0.0:
            return self.publish(message, origin)
        load = self._load
        load.request = request
        try:
            return self.publish(message, origin)
        finally:
            load.request = None

    # -- retained messages ---------------------------------------------------------------------------------------------

    def retain(self, message: Message) -> bool:
        """Keep a retained message in place of the topic's last; an empty payload clears it.

        False, and counted, when the limits of retained messages are reached. [MQTT-3.3.1-5] [MQTT-3.3.1-6]
        """
        topic = message.topic.decode()
        old = cast("Message | None", self.retained.get(topic))
        empty = len(message.payload()) == 0  # never kept itself [MQTT-3.3.1-7]
        if empty or not self._has_room(topic, message, old):
            # The old one goes in any case: it is not what the topic says any more [MQTT3-3.3.1-7].
            if old is not None:
                self._clear_retained(topic, old)
            if empty:
                return True
            self.counters.retained_refused += 1
            return False
        message = self.put_retained(topic, message)  # whatever its QoS
        if self.journal is not None and not is_system(message.topic):
            self.journal.retained_set(message)
        return True

    def _has_room(self, topic: str, message: Message, old: Message | None) -> bool:
        """Whether the limits leave room for a retained message in place of `old`."""
        if is_system(message.topic):
            return True
        limits = self.limits
        if old is None and 0 < limits.max_retained_messages <= len(self.retained) - self.system_retained:
            return False
        most = limits.max_retained_bytes
        shares = self.retained_shares
        if most == 0 and shares.most == 0:
            return True
        size = message.size()
        if old is None:
            size += self.retained.missing(topic) * NODE_BYTES
        if not self._is_link(message.publisher) and not shares.has_room(message, size, old):
            return False
        if old is not None:
            size -= old.size()
        return most == 0 or self.retained_bytes + size <= most

    def _is_link(self, client_id: str) -> bool:
        """Whether a client is another broker's link, which publishes what many clients have published there."""
        session = self.sessions.get(client_id)
        return session is not None and session.link_peer != ""

    def put_retained(self, topic: str, message: Message) -> Message:
        """Make a message the retained one of its topic and count it, whatever the limits say. No journal is told.

        Returns it as it is kept: without the wire forms that its fanout made.
        """
        tree = self.retained
        levels = tree.node_count
        message = RetainedMessage(message)
        old = cast("Message | None", tree.set(topic, message))
        self.work += RETAIN_WORK + tree.node_count - levels
        if not is_system(message.topic):
            size = message.size() + (tree.node_count - levels) * NODE_BYTES
            self.retained_bytes += size
            if isinstance(old, RetainedMessage):
                self.retained_bytes -= old.size()
                size += old.levels
                self.retained_shares.give_back(old)
            if not self._is_link(message.publisher):
                self.retained_shares.charge(message, size)
        elif old is None:
            self.system_retained += 1
        if message.expires_at != 0.0:
            self.deadlines.set(topic, message.expires_at)
        elif old is not None:
            self.deadlines.cancel(topic)
        return message

    def _clear_retained(self, topic: str, message: Message) -> None:
        """Take a topic's retained message away, with all that was counted for it."""
        tree = self.retained
        levels = tree.node_count
        tree.remove(topic)
        self.retained_shares.give_back(message)
        if is_system(message.topic):
            self.system_retained -= 1
        else:
            self.retained_bytes -= message.size() + (levels - tree.node_count) * NODE_BYTES
            if self.journal is not None:
                self.journal.retained_cleared(topic)
        self.deadlines.cancel(topic)

    def drop_retained(self, topic: str) -> None:
        """Keep the retained message of a topic no longer; nobody is told."""
        message = cast("Message | None", self.retained.get(topic))
        if message is not None:
            self._clear_retained(topic, message)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def sub_queue_terms(
        self, session: Session, topic_filter: str, options: QueueOptions | None
    ) -> SubscriptionQueueTerms:
        """What the messages of a subscription will keep to, by the rules and by what its client wishes."""
        terms = session.terms
        if terms is None:
            terms = queue_terms(self.limits, session.client_id, session.user_name)
        self.work += len(session.rules)
        found = sub_queue_terms(session.rules, topic_filter, terms)
        return found if options is None else grant(options, self.limits, terms, found)

    @property
    def subscription_count(self) -> int:
        """Subscriptions, those of sessions that are just being taken away included."""
        return self.table.count

    @property
    def filter_bytes(self) -> int:
        """What is counted for all subscriptions and filters together."""
        return self.table.bytes

    @property
    def subscription_listener(self) -> SubscriptionListener | None:
        """Who wants to know what is asked for here, if anybody does."""
        return self.table.listener

    @subscription_listener.setter
    def subscription_listener(self, listener: SubscriptionListener | None) -> None:
        self.table.listener = listener

    def has_filter_room(self, session: Session, name: str, group_name: str, topic_filter: str) -> bool:
        """Whether a client may have another subscription, by what it takes; one that it has already it may replace.

        `name` as the client wrote it, `topic_filter` without `$share/name/`.
        """
        limits = self.limits
        size = self.table.cost(name, group_name, topic_filter)
        if (
            0 < limits.max_filter_bytes_per_client < session.filter_bytes + size
            or 0 < limits.max_filter_bytes < self.table.bytes + size
        ):
            return name in session.subscriptions
        return True

    def subscribe(
        self,
        session: Session,
        group_name: str,
        topic_filter: str,
        request: SubscriptionRequest,
        identifier: int,
        terms: SubscriptionQueueTerms | None = None,
        options: QueueOptions | None = None,
    ) -> None:
        """Make or replace a subscription [MQTT-3.8.4-3], and start to stream the retained messages it asks for.

        `topic_filter` is valid, without `$share/name/`; `request.topic_filter` as the client wrote it. `terms`: see
        `sub_queue_terms`; None where there are neither rules nor a wish.
        """
        name = request.topic_filter
        qos = request.qos
        if qos > self.limits.max_qos:
            qos = self.limits.max_qos
        subscription = session.subscriptions.get(name)
        new = subscription is None
        if subscription is None:
            subscription = Subscription(
                session, name, qos, request.no_local, request.retain_as_published, request.retain_handling, identifier
            )
            self.work += self.table.add(session, subscription, group_name, topic_filter)
        else:
            # In place: it keeps its turn in a share group, and a running stream of retained messages goes on.
            subscription.qos = qos
            subscription.no_local = request.no_local
            subscription.retain_as_published = request.retain_as_published
            subscription.retain_handling = request.retain_handling
            subscription.identifier = identifier
            self.table.touch(subscription)
        self.give_sub_queue(session, subscription, terms, options)
        # Retain Handling 0 asks for retained messages each time [MQTT-3.3.1-9] [MQTT-3.8.4-4], 1 if the subscription
        # is new [MQTT-3.3.1-10], 2 never [MQTT-3.3.1-11]. 3.1.1 has 0 alone [MQTT3-3.3.1-6]. Shared subscriptions get
        # none (section 4.8.2).
        wanted = request.retain_handling == 0 or (request.retain_handling == 1 and new)
        if wanted and not group_name and self.retained.leads_to(topic_filter):
            session.start_stream(subscription, self.retained)
        if session.journal is not None:
            session.journal.subscribed(session.client_id, subscription, session.is_streaming(subscription))
        if self.event_listener is not None:
            self.event_listener.subscribed(session.client_id, name, qos)
        self.tell_subscribed(subscription, False)

    def give_sub_queue(
        self,
        session: Session,
        subscription: Subscription,
        terms: SubscriptionQueueTerms | None,
        options: QueueOptions | None,
    ) -> None:
        """Have a subscription's messages keep to `terms`: in a lane of their own where these are not the client's."""
        before = queue_of(subscription)
        sub_queue: SubscriptionQueue | None = None
        if terms is not None and (options is not None or not session.has_terms(terms)):
            sub_queue = before
            if sub_queue is None or not sub_queue.same(terms.policy, terms.max_age, terms.depth):
                sub_queue = SubscriptionQueue(session, terms.policy, terms.max_age, terms.depth)
            sub_queue.options = options
        if sub_queue is before:
            return
        self.table.give_queue(subscription, sub_queue)
        if before is not None and before.fresh:
            session.fresh_sub_queues -= 1
        if sub_queue is not None and sub_queue.fresh:
            session.fresh_sub_queues += 1
        if session.outbox is not None:
            session.outbox.fresh = session.sub_queue is not None or session.fresh_sub_queues > 0

    def unsubscribe(self, session: Session, name: str) -> bool:
        """Take a subscription back; False when there is none [MQTT-3.10.4-1].

        Nothing new is offered because of it [MQTT-3.10.4-2]. What the session has in flight stays there until it is
        acknowledged [MQTT-3.10.4-3].
        """
        subscription = session.subscriptions.pop(name, None)
        if subscription is None:
            return False
        session.stop_stream(name)
        self.table.drop(subscription)
        sub_queue = queue_of(subscription)
        if sub_queue is not None and sub_queue.fresh:
            session.fresh_sub_queues -= 1
        if session.journal is not None:
            session.journal.unsubscribed(session.client_id, name)
        if self.event_listener is not None:
            self.event_listener.unsubscribed(session.client_id, name)
        if self.tap is not None:
            self.tap.unsubscribed(session.client_id, name, False)
        return True

    # -- sessions ------------------------------------------------------------------------------------------------------

    def new_client_id(self) -> str:
        """A client identifier for a client that brought none; unique and not to be guessed [MQTT-3.1.3-6]."""
        return self.limits.auto_id_prefix + secrets.token_hex(11)

    def connect(
        self, client_id: str, clean_start: bool, outbox: Outbox, version: int, window: int, plain: bool, now: float
    ) -> tuple[Session, bool]:
        """Open or resume the session of a client that was admitted; the outbox becomes its peer.

        Sessions stand under the client identifier [MQTT-3.1.3-2]. Clean Start (Clean Session in 3.1.1) decides
        [MQTT-3.1.4-4] [MQTT3-3.1.4-3]: with it a session that is there is thrown away [MQTT-3.1.2-4] [MQTT3-3.1.2-6],
        without it that one goes on [MQTT-3.1.2-5] [MQTT3-3.1.2-4]; where there is none, one is made [MQTT-3.1.2-6].

        `window` and `plain`: see `Session.attach`. Returns the session and whether it was present. Any earlier
        connection of the client has been given up by then.
        """
        self.fanout.drain(self, now)
        session = self.sessions.get(client_id)
        if session is not None and session.outbox is None:
            # What has fallen due by now comes first: a session that has expired is not resumed [MQTT-4.1.0-2].
            self._session_due(session, now)
            session = self.sessions.get(client_id)
        present = False
        if session is not None:
            if session.outbox is not None:
                raise RuntimeError("the session is still connected")
            if clean_start:
                self.end_session(session, now)
                session = None
            else:
                # Back in time: the delayed will is not sent [MQTT-3.1.3-9].
                self._forget_will(session)
                session.expires_at = 0.0
                self.deadlines.cancel(session)
                present = True
        if session is None:
            limits = self.limits
            session = Session(client_id, limits.session_messages, limits.session_bytes, self.counters)
            session.queue_qos0 = limits.queue_qos0
            self.session_table.add(session)
        session.attach(version, window, plain)
        self.fanout.post(PeerConnected(session, outbox))
        self.fanout.drain(self, now)
        self.session_table.count(session)
        return session, present

    def adopt(self, session: Session) -> None:
        """Take in a session that no client's CONNECT has opened: that of a link to another broker."""
        self.session_table.add(session)

    def has_session_room(self, client_id: str, user_name: str | None, will: Will | None, now: float) -> bool:
        """Whether the limits leave room for the session of a client; empty ones end for it, if need be.

        A session that is there already may stay, also beyond the limits, but not with a larger will or user name.
        """
        limits = self.limits
        table = self.session_table
        present = self.sessions.get(client_id)
        grows = session_bytes(client_id, user_name, will)
        if present is not None:
            grows -= session_bytes(client_id, present.user_name, present.will)
            if grows <= 0:
                return True
        for _ in range(MOST_ENDED):
            if not (
                (present is None and 0 < limits.max_sessions <= len(self.sessions))
                or 0 < limits.max_session_bytes < table.bytes + grows
            ):
                return True
            empty = table.oldest_empty()
            if empty is None or empty is present:
                return False
            self.end_session(empty, now)
        return False

    def apply_queue_limits(self, session: Session) -> None:
        """Give a session's queues, and those of its connection, the terms that the settings have for its client.

        What waits already stays where it is.
        """
        limits = self.limits
        terms = self._terms
        if terms is None or limits.rules:
            terms = queue_terms(limits, session.client_id, session.user_name)
            self._terms = terms
        session.terms = terms
        session.rules = subscription_rules(limits, session.client_id, session.user_name) if limits.rules else ()
        policy = terms.policy
        sub_queue = None
        if policy == LATEST or terms.max_age > 0.0:
            sub_queue = session.sub_queue
            if sub_queue is None or not sub_queue.same(policy, terms.max_age, 0):
                sub_queue = SubscriptionQueue(session, policy, terms.max_age, 0)
        if policy == LATEST:
            # Full of topics, it takes no more.
            policy = DROP_NEWEST
        session.limit(policy, sub_queue, terms.session_messages, terms.session_bytes)
        session.max_inflight_bytes = min(session.max_inflight_bytes, bound(limits.max_inflight_bytes))
        outbox = session.outbox
        if outbox is not None:
            outbox.limit(policy, terms.live_messages, terms.live_bytes)
            outbox.tells = session.v5 and self.limits.tell_loss
            outbox.fresh = sub_queue is not None or session.fresh_sub_queues > 0

    def renew_lanes(self, session: Session) -> None:
        """The rules are about another user than before: give the subscriptions the lanes that they have now."""
        for subscription in session.subscriptions.values():
            sub_queue = queue_of(subscription)
            options = None if sub_queue is None else sub_queue.options
            if session.rules or sub_queue is not None:
                topic_filter = parse_shared(subscription.topic_filter)[1]
                self.give_sub_queue(
                    session, subscription, self.sub_queue_terms(session, topic_filter, options), options
                )

    def overfull(self, now: float) -> None:
        """End the connections whose queues ran over where that is their policy: the events for it follow."""
        overflowed = self.counters.load.overflowed
        while overflowed:
            peer = overflowed.pop().peer
            if peer is not None:
                peer.overflow(now)

    def sweep(self, now: float) -> None:
        """Drop what has grown too old in queues where nothing comes or goes: to be called every second or so."""
        self.fanout.drain(self, now)
        aging = self.counters.load.aging
        left: i64 = SWEEP
        for sub_queue in list(aging):
            session = cast(Session, sub_queue.session)
            left -= session.shed_stale(sub_queue, now, left)
            if sub_queue.waiting == 0:
                del aging[sub_queue]
            if left <= 0:
                return

    def settle(self, session: Session) -> None:
        """A connection's session has got its expiry interval and its will: have the journal keep it, if it lasts.

        An interval of 0 cannot be raised later on the same connection (section 3.14.2.2.2).
        """
        journal = self.journal
        if journal is None:
            return
        if session.expiry_interval == 0:
            if session.journal is not None:
                session.journal = None
                journal.session_gone(session.client_id)
            return
        session.journal = journal
        journal.session_kept(session.client_id, session.user_name, session.expiry_interval, 0.0)
        if session.will is not None:
            journal.will_set(session.client_id, session.will, 0.0)

    def _forget_will(self, session: Session) -> None:
        if session.will is not None and session.journal is not None:
            session.journal.will_cleared(session.client_id)
        if session.will is not None:
            session.will = None
            self.session_table.count(session)
        session.will_due = 0.0

    def peer_left(self, event: PeerDisconnected, now: float) -> None:
        """A connection ended: the will, shared messages for others, and the session's end or expiry.

        The will is that of the CONNECT [MQTT3-3.1.2-8]; without one nothing is published [MQTT3-3.1.2-12]. With an
        expiry interval above 0 the session stays [MQTT-3.1.2-23], as one of 3.1.1 without Clean Session does
        [MQTT3-3.1.2-4].
        """
        session = event.session
        if not publishes_will(event.cause):
            self._forget_will(session)
        expiry = session.expiry_interval
        if expiry > 0 and session.journal is not None:
            session.journal.session_kept(session.client_id, session.user_name, expiry, now)
        if session.will is not None:
            delay = min(session.will.delay, expiry)
            if delay == 0:
                self._publish_will(session, now)
            else:
                session.will_due = now + delay
                if session.journal is not None:
                    session.journal.will_set(session.client_id, session.will, session.will_due)
        self._share_out(session)
        if expiry == 0:
            self.end_session(session, now)
        elif expiry != NEVER:
            session.expires_at = now + expiry
        if not session.ended:
            self.schedule(session)
            table = self.session_table
            table.count(session)
            empty = table.oldest_empty()
            if empty is not None and 0 < self.limits.max_empty_sessions < table.empty_count:
                self.end_session(empty, now)

    def _share_out(self, session: Session) -> None:
        """Give what a leaving member of shared subscriptions did not finish to another member that is connected.

        Where there is none it stays: the client may come back for it (section 4.8.2).
        """
        groups: set[SharedGroup] = set()
        for group in session.unfinished_groups():
            if self._present_group(group).connected:
                groups.add(group)
        if groups:
            self._hand_on(session.take_shared(groups))

    def _present_group(self, group: SharedGroup) -> SharedGroup:
        """The group of that name at that filter now: it may have lost all its members and come back since."""
        if group.size > 0:
            return group
        entry = self.trie.find(group.topic_filter)
        found = None if entry is None else entry.groups.get(group.name)
        return group if found is None else found

    def _hand_on(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.group is not None
            group = self._present_group(delivery.group)
            chosen = self._choose(group, delivery.message)
            assert chosen is not None
            session = cast(Session, chosen.session)
            qos = min(delivery.message.qos, chosen.qos)
            # As this member's subscription has it, and not as that of the member who left it behind [MQTT-3.3.1-12].
            retain = delivery.message.retain and chosen.retain_as_published
            session.deliver(delivery.message, qos, retain, identifiers(chosen), group, queue_of(chosen))

    def end_session(self, session: Session, now: float) -> None:
        """Delete a session and all that belongs to it; its delayed will is published now [MQTT-3.1.3-9].

        From here on nothing comes to it, and its client identifier is free; thousands of subscriptions are taken away
        in turns (`tick`). Retained messages do not belong to it, and stay [MQTT3-3.1.2-7].
        """
        if session.ended:
            return
        session.ended = True
        self.table.end_shared(session)
        if session.journal is not None:
            session.journal.session_gone(session.client_id)
            session.journal = None
        if session.will is not None:
            self._publish_will(session, now)
        left: set[SharedGroup] = set()
        for group in session.unfinished_groups():
            if self._present_group(group).size > 0:
                left.add(group)
        if left:
            self._hand_on(session.take_shared(left))
        session.end()
        self.deadlines.cancel(session)
        self.session_table.remove(session)
        self.work += DROP_WORK * self.table.end(session)
        if self.table.leaving:
            self.deadlines.set(self.table, now)
        if self.event_listener is not None:
            self.event_listener.session_ended(session.client_id)

    def _publish_will(self, session: Session, now: float) -> None:
        """Publish the will of a session; where those before it have half filled a queue, it waits for a turn."""
        will = session.will
        assert will is not None
        self._forget_will(session)
        message = will_message(will, session.client_id, now)
        if self._pressed:
            self._waiting_wills += 1
            self.deadlines.set(DueWill(message, session), now)
        else:
            self._send_will(message, session)

    def _send_will(self, message: Message, session: Session) -> None:
        counters = self.counters
        half_full = counters.half_full
        backed_up = counters.backed_up
        self.publish(message, session)
        if counters.half_full != half_full or counters.backed_up != backed_up:
            self._pressed = True

    # -- time ----------------------------------------------------------------------------------------------------------

    def schedule(self, session: Session) -> None:
        """See that `tick` looks at the session when its will or its expiry falls due, whichever is first."""
        when = session.will_due
        if session.expires_at != 0.0 and (when == 0.0 or session.expires_at < when):
            when = session.expires_at
        if when != 0.0:
            self.deadlines.set(session, when)
        else:
            self.deadlines.cancel(session)

    def tick(self, now: float) -> bool:
        """Do what has fallen due: delayed wills, session expiry, expiry of retained messages, answers to requests.

        And take away the subscriptions of sessions that are over. One turn of some milliseconds, which ends early when
        a queue has become half full, so that its writer can empty it. True when more is due: call again when the
        writers have had their turn (`deadlines.next_due` says when).
        """
        self.fanout.drain(self, now)
        counters = self.counters
        deadlines = self.deadlines
        deadlines.held_until = 0.0
        self._pressed = False
        half_full = counters.half_full
        backed_up = counters.backed_up
        until: i64 = self.work + TICK_WORK
        if self.table.leaving:
            self.work += DROP_WORK * self.table.work_off(self.table.drops)
        while self.work < until and counters.half_full == half_full and counters.backed_up == backed_up:
            thing = deadlines.pop_due(now)
            if thing is None:
                break
            self.work += DUE_WORK
            if isinstance(thing, Session):
                self._session_due(thing, now)
            elif isinstance(thing, str):
                self._retained_due(thing, now)
            elif isinstance(thing, DueWill):
                self._waiting_wills -= 1
                self._send_will(thing.message, thing.session)
            elif isinstance(thing, Request):
                thing.give_up()
        if counters.backed_up != backed_up:
            # The acknowledgements that empty a session's queue need a moment.
            deadlines.held_until = now + PAUSE
        if self.table.leaving:
            deadlines.set(self.table, now)
        return deadlines.due(now)

    @property
    def hurried(self) -> bool:
        """True while wills, or subscriptions of sessions that are over, wait for nothing but a turn (`tick`)."""
        return self._waiting_wills > 0 or self.table.leaving

    def _retained_due(self, topic: str, now: float) -> None:
        message = self.retained.get(topic)
        if isinstance(message, Message) and 0.0 < message.expires_at <= now:
            self._clear_retained(topic, message)

    def _session_due(self, session: Session, now: float) -> None:
        if session.will is not None and 0.0 < session.will_due <= now:
            self._publish_will(session, now)
        # Never while it is connected [MQTT-4.1.0-1], but as soon as its time is over after that [MQTT-4.1.0-2].
        if session.outbox is None and 0.0 < session.expires_at <= now:
            self.end_session(session, now)
        else:
            self.schedule(session)


def will_message(will: Will, client_id: str, now: float) -> Message:
    """The application message of a will, its message expiry counted from its publication (section 3.1.3.2.4).

    It is retained if the will says so [MQTT-3.1.2-15] and not otherwise [MQTT-3.1.2-14]. Its properties, the user's
    among them, are the bytes of the CONNECT, and so in their order [MQTT-3.1.3-10].
    """
    expires_at = now + will.message_expiry if will.message_expiry >= 0 else 0.0
    return Message(will.topic.encode(), will.payload, will.qos, will.retain, will.properties, expires_at, client_id)
