"""Who gets what: the topic filters, the retained messages and the sessions, and every change of them.

Owns the trie and its match cache, the retained tree, the session map, the fanout state and the deadlines; nobody
else changes them. A publish takes one look-up (none of the trie where the cache answers), no lock and no await.

Promises:
- One delivery to each session whose filters match, with the highest QoS among them and every subscription identifier
  [MQTT-3.3.4-2] [MQTT-3.3.4-3]; one to each share group.
- A will is published once on every end of a connection but DISCONNECT 0x00, after its delay, and not when the client
  is back before [MQTT-3.1.2-8] [MQTT-3.1.3-9].
- A session is gone when its expiry interval has passed [MQTT-4.1.0-1].

Refuses: packets and bytes (channel), packet identifiers and windows (session), clocks (callers pass `now`).
"""

from __future__ import annotations

import secrets
from typing import Final, cast

from broker.core.causes import publishes_will
from broker.core.counters import Counters
from broker.core.deadlines import Deadlines
from broker.core.fanout import FanoutState, PeerConnected, PeerDisconnected, PeerListener
from broker.core.hooks import AuthMethod, Gate, Watcher
from broker.core.journal import SYSTEM_TOPICS, Journal
from broker.core.matchcache import MatchCache, Route
from broker.core.message import Delivery, Message
from broker.core.outbox import Outbox
from broker.core.packets import SubscriptionRequest, Will
from broker.core.retained import RetainedTree
from broker.core.session import NEVER, Session, identifiers
from broker.core.subscription import SharedGroup, Subscription
from broker.core.trie import create

NO_IDENTIFIERS: Final[tuple[int, ...]] = ()


class Limits:
    """What the operator allows; the numbers behind the settings' sections. 0 means unlimited where it says so."""

    def __init__(self) -> None:
        self.max_packet_size = 1_048_576
        self.max_client_id_length = 256
        self.max_topic_levels = 128
        self.max_subscriptions_per_client = 0
        self.max_connections = 0
        self.max_qos = 2
        self.receive_maximum = 1024
        self.max_inflight = 1024
        self.topic_alias_maximum = 64
        self.topic_alias_outbound = 0
        self.max_keep_alive = 0
        self.retain_available = True
        self.wildcard_subscriptions = True
        self.shared_subscriptions = True
        self.subscription_identifiers = True
        self.allow_anonymous = True
        self.allow_empty_client_id = True
        self.max_session_expiry = NEVER
        self.queue_qos0 = False
        self.max_sessions = 0
        self.live_messages = 10_000
        self.live_bytes = 8_388_608
        self.session_messages = 10_000
        self.session_bytes = 33_554_432
        self.max_retained_messages = 0
        self.max_retained_bytes = 0


class Target:
    """One session's share of a publish that several of its filters match."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: list[Subscription] = []
        self.qos = 0
        self.retain_as_published = False
        self.no_local = False
        self.identifiers: tuple[int, ...] = NO_IDENTIFIERS

    def add(self, subscription: Subscription) -> None:
        """Join another matching subscription of the same session."""
        self.parts.append(subscription)
        if subscription.qos > self.qos:
            self.qos = subscription.qos
        if subscription.retain_as_published:
            self.retain_as_published = True
        if subscription.no_local:
            self.no_local = True
        if subscription.identifier > 0:
            self.identifiers = (*self.identifiers, subscription.identifier)


class Plan:
    """Whom a topic with several matching filters goes to; good while the entries' versions stay as they are."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.groups: list[SharedGroup] = []


class Router(PeerListener):
    """The routing state of one broker."""

    def __init__(self, limits: Limits, trie: str = "nodes", match_cache: int = 16_384) -> None:
        self.limits = limits
        self.counters = Counters()
        self.fanout = FanoutState()
        self.trie = create(trie)
        self.cache = MatchCache(self.trie, match_cache)
        self.retained = RetainedTree()
        self.retained_bytes = 0
        self.sessions: dict[str, Session] = {}
        self.deadlines = Deadlines()
        self.subscription_count = 0
        self.gate: Gate | None = None
        self.watcher: Watcher | None = None
        # Set before the first session, or never.
        self.journal: Journal | None = None
        self.auth_methods: dict[str, AuthMethod] = {}

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, message: Message, origin: Session | None) -> int:
        """Route a message; store or clear it when it is retained. Returns how many sessions and groups it was for.

        `origin` is the publishing session (for No Local), None for the broker's own messages and wills.
        """
        route = self.cache.lookup(message.topic)
        if route is None:
            route = self.cache.store(message.topic)
        count = self.forward(route, message, origin)
        if message.retain:
            self.retain(message)
        return count

    def forward(self, route: Route, message: Message, origin: Session | None) -> int:
        """Offer a message to everybody on a route."""
        entries = route.entries
        if len(entries) == 1:
            entry = entries[0]
            count = 0
            for subscription in entry.subscriptions:
                session = cast(Session, subscription.session)
                if subscription.no_local and session is origin:
                    continue
                count += 1
                qos = message.qos if message.qos < subscription.qos else subscription.qos
                outbox = session.outbox
                if (
                    qos == 0
                    and outbox is not None
                    and session.direct
                    and subscription.identifier == 0
                    and message.expires_at == 0.0
                    and not (message.retain and subscription.retain_as_published)
                ):
                    # The common case, spelled out: the same frame for everybody, straight to the outbox.
                    session.offered += 1
                    frame = message.frame_v5 if session.v5 else message.frame_v3
                    outbox.offer(frame if frame is not None else message.qos0_frame(session.v5))
                    continue
                session.deliver(
                    message,
                    qos,
                    message.retain and subscription.retain_as_published,
                    identifiers(subscription),
                    None,
                )
            groups = entry.groups
            if groups:
                for group in groups.values():
                    count += self._share(group, message)
            return count
        if not entries:
            return 0
        return self._forward_plan(self._plan(route), message, origin)

    def _plan(self, route: Route) -> Plan:
        """The merged targets of a route with several entries, made again only when one of them changed."""
        version = route.version()
        plan = route.plan
        if plan is not None and route.plan_version == version:
            return cast(Plan, plan)
        made = Plan()
        by_session: dict[Session, Target] = {}
        for entry in route.entries:
            for subscription in entry.subscriptions:
                session = cast(Session, subscription.session)
                target = by_session.get(session)
                if target is None:
                    target = Target(session)
                    by_session[session] = target
                target.add(subscription)
            made.groups.extend(entry.groups.values())
        made.targets = list(by_session.values())
        route.plan = made
        route.plan_version = version
        self.cache.charge(route, len(made.targets) + len(made.groups))
        return made

    def _forward_plan(self, plan: Plan, message: Message, origin: Session | None) -> int:
        count = 0
        for target in plan.targets:
            if target.no_local and target.session is origin:
                # The subscriptions with No Local do not count for one's own messages; the others still do.
                rest = Target(target.session)
                for part in target.parts:
                    if not part.no_local:
                        rest.add(part)
                if not rest.parts:
                    continue
                target = rest
            count += 1
            qos = message.qos if message.qos < target.qos else target.qos
            retain = message.retain and target.retain_as_published
            target.session.deliver(message, qos, retain, target.identifiers, None)
        for group in plan.groups:
            count += self._share(group, message)
        return count

    def _share(self, group: SharedGroup, message: Message) -> int:
        """Give a message to one member: the next that is connected and has room, else connected, else any.

        [MQTT-4.8.2-3]
        """
        chosen = self._choose(group, message)
        if chosen is None:
            return 0
        qos = message.qos if message.qos < chosen.qos else chosen.qos
        session = cast(Session, chosen.session)
        session.deliver(message, qos, message.retain and chosen.retain_as_published, identifiers(chosen), group)
        return 1

    def _choose(self, group: SharedGroup, message: Message) -> Subscription | None:
        connected: Subscription | None = None
        first: Subscription | None = None
        size = message.size()
        for _ in range(len(group.members)):
            member = group.next_member()
            if member is None:
                return None
            session = cast(Session, member.session)
            outbox = session.outbox
            if outbox is not None:
                qos = message.qos if message.qos < member.qos else member.qos
                if outbox.has_room(size) and (qos == 0 or (session.quota > 0 and not session.pending)):
                    return member
                if connected is None:
                    connected = member
            elif first is None:
                first = member
        return connected if connected is not None else first

    # -- retained messages ---------------------------------------------------------------------------------------------

    def retain(self, message: Message) -> bool:
        """Keep a retained message in place of the topic's last; an empty payload clears it.

        False, and counted, when the limits of retained messages are reached. [MQTT-3.3.1-5] [MQTT-3.3.1-6]
        """
        topic = message.topic.decode()
        old = self.retained.get(topic)
        old_size = cast(Message, old).size() if old is not None else 0
        if len(message.payload()) == 0:
            if old is not None:
                self.retained.remove(topic)
                self.retained_bytes -= old_size
                self.deadlines.cancel(topic)
                if self.journal is not None and not message.topic.startswith(SYSTEM_TOPICS):
                    self.journal.retained_cleared(topic)
            return True
        limits = self.limits
        if (old is None and 0 < limits.max_retained_messages <= len(self.retained)) or (
            0 < limits.max_retained_bytes < self.retained_bytes - old_size + message.size()
        ):
            self.counters.retained_refused += 1
            return False
        self.retained.set(topic, message)
        self.retained_bytes += message.size() - old_size
        if message.expires_at != 0.0:
            self.deadlines.set(topic, message.expires_at)
        elif old is not None:
            self.deadlines.cancel(topic)
        if self.journal is not None and not message.topic.startswith(SYSTEM_TOPICS):
            self.journal.retained_set(message)
        return True

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(
        self, session: Session, group_name: str, topic_filter: str, request: SubscriptionRequest, identifier: int
    ) -> None:
        """Make or replace a subscription [MQTT-3.8.4-3], and start to stream the retained messages it asks for.

        `topic_filter` is valid, without `$share/name/`; `request.topic_filter` as the client wrote it.
        """
        name = request.topic_filter
        present = session.subscriptions.get(name)
        subscription = Subscription(
            session,
            name,
            min(request.qos, self.limits.max_qos),
            request.no_local,
            request.retain_as_published,
            request.retain_handling,
            identifier,
        )
        if present is None:
            self.subscription_count += 1
            entry = self.trie.find(topic_filter)
            if entry is None:
                entry = self.cache.insert(topic_filter)
        else:
            entry = present.entry
            assert entry is not None
            entry.discard(present)
        entry.add(subscription, group_name)
        session.subscriptions[name] = subscription
        # Shared subscriptions get no retained messages (section 4.8.2).
        wanted = request.retain_handling == 0 or (request.retain_handling == 1 and present is None)
        if wanted and not group_name and len(self.retained):
            session.start_stream(subscription, self.retained.walk(topic_filter))
        elif present is not None:
            session.move_streams(present, subscription)
        if session.journal is not None:
            session.journal.subscribed(session.client_id, subscription, session.is_streaming(subscription))
        if self.watcher is not None:
            self.watcher.subscribed(session.client_id, name, subscription.qos)

    def unsubscribe(self, session: Session, name: str) -> bool:
        """Take a subscription back; False when there is none [MQTT-3.10.4-1]."""
        subscription = session.subscriptions.pop(name, None)
        if subscription is None:
            return False
        self._drop_subscription(subscription)
        if session.journal is not None:
            session.journal.unsubscribed(session.client_id, name)
        if self.watcher is not None:
            self.watcher.unsubscribed(session.client_id, name)
        return True

    def _drop_subscription(self, subscription: Subscription) -> None:
        entry = subscription.entry
        assert entry is not None
        entry.discard(subscription)
        self.subscription_count -= 1
        if entry.empty:
            self.cache.remove(entry.topic_filter)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def new_client_id(self) -> str:
        """A client identifier for a client that brought none; unique and not to be guessed [MQTT-3.1.3-6]."""
        return "canopy-" + secrets.token_hex(11)

    def connect(
        self, client_id: str, clean_start: bool, outbox: Outbox, version: int, window: int, plain: bool, now: float
    ) -> tuple[Session, bool]:
        """Open or resume the session of a client that was admitted; the outbox becomes its peer.

        `window` and `plain`: see `Session.attach`. Returns the session and whether it was present. Any earlier
        connection of the client has been given up by then.
        """
        # What has fallen due by now comes first: a session that has expired is not resumed [MQTT-4.1.0-1].
        self.tick(now)
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
            self.sessions[client_id] = session
        session.attach(version, window, plain)
        self.fanout.post(PeerConnected(session, outbox))
        self.fanout.drain(self, now)
        return session, present

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
        journal.session_kept(session.client_id, session.expiry_interval, 0.0)
        if session.will is not None:
            journal.will_set(session.client_id, session.will, 0.0)

    def _forget_will(self, session: Session) -> None:
        if session.will is not None and session.journal is not None:
            session.journal.will_cleared(session.client_id)
        session.will = None
        session.will_due = 0.0

    def peer_left(self, event: PeerDisconnected, now: float) -> None:
        """A connection ended: the will, shared messages for others, and the session's end or expiry."""
        session = event.session
        if not publishes_will(event.cause):
            self._forget_will(session)
        expiry = session.expiry_interval
        if expiry > 0 and session.journal is not None:
            session.journal.session_kept(session.client_id, expiry, now)
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

    def _share_out(self, session: Session) -> None:
        """Give what a leaving member of shared subscriptions did not finish to another member that is connected.

        Where there is none it stays: the client may come back for it (section 4.8.2).
        """
        groups: set[SharedGroup] = set()
        for subscription in session.subscriptions.values():
            group = subscription.group
            if group is not None:
                for member in group.members:
                    if cast(Session, member.session).outbox is not None:
                        groups.add(group)
                        break
        if groups:
            self._hand_on(session.take_shared(groups))

    def _hand_on(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            group = delivery.group
            assert group is not None
            chosen = self._choose(group, delivery.message)
            assert chosen is not None
            session = cast(Session, chosen.session)
            qos = min(delivery.message.qos, chosen.qos)
            session.deliver(delivery.message, qos, delivery.retain, identifiers(chosen), group)

    def end_session(self, session: Session, now: float) -> None:
        """Delete a session and all that belongs to it; its delayed will is published now [MQTT-3.1.3-9]."""
        if session.ended:
            return
        if session.journal is not None:
            session.journal.session_gone(session.client_id)
            session.journal = None
        if session.will is not None:
            self._publish_will(session, now)
        left: set[SharedGroup] = set()
        for subscription in session.subscriptions.values():
            group = subscription.group
            self._drop_subscription(subscription)
            if group is not None and group.members:
                left.add(group)
        session.subscriptions = {}
        if left:
            self._hand_on(session.take_shared(left))
        session.end()
        self.deadlines.cancel(session)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        if self.watcher is not None:
            self.watcher.session_ended(session.client_id)

    def _publish_will(self, session: Session, now: float) -> None:
        will = session.will
        assert will is not None
        self._forget_will(session)
        self.publish(will_message(will, session.client_id, now), session)

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

    def tick(self, now: float) -> None:
        """Do what has fallen due: delayed wills, session expiry, expiry of retained messages."""
        self.fanout.drain(self, now)
        while True:
            thing = self.deadlines.pop_due(now)
            if thing is None:
                return
            if isinstance(thing, Session):
                self._session_due(thing, now)
            elif isinstance(thing, str):
                self._retained_due(thing, now)

    def _retained_due(self, topic: str, now: float) -> None:
        message = self.retained.get(topic)
        if isinstance(message, Message) and 0.0 < message.expires_at <= now:
            self.retained.remove(topic)
            self.retained_bytes -= message.size()
            if self.journal is not None:
                self.journal.retained_cleared(topic)

    def _session_due(self, session: Session, now: float) -> None:
        if session.will is not None and 0.0 < session.will_due <= now:
            self._publish_will(session, now)
        if session.outbox is None and 0.0 < session.expires_at <= now:
            self.end_session(session, now)
        else:
            self.schedule(session)


def will_message(will: Will, client_id: str, now: float) -> Message:
    """The application message of a will, its message expiry counted from its publication (section 3.1.3.2.4)."""
    expires_at = now + will.message_expiry if will.message_expiry >= 0 else 0.0
    return Message(will.topic.encode(), will.payload, will.qos, will.retain, will.properties, expires_at, client_id)
