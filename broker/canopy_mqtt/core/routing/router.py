"""Changes of subscriptions and sessions, and what is due among them.

Owns the parts of the routing state and everything that involves several of them; nothing else changes them.
Promises:
- A will is published once at every end of a connection except DISCONNECT 0x00, after its delay, and not if the client
  has resumed the session before; Clean Start ends the session, which publishes it [MQTT-3.1.2-8] [MQTT-3.1.3-9].
- A session ends when its expiry interval has passed [MQTT-4.1.0-2].
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.accounts import Accounts
from canopy_mqtt.core.causes import CLIENT_DISCONNECT, INTERNAL_ERROR
from canopy_mqtt.core.codec.packets import NEVER, SubscriptionRequest
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.deadlines import Deadlines
from canopy_mqtt.core.hooks import (
    AccessControl,
    AuthMethod,
    BanHook,
    EventListener,
    Permissions,
    PublishSampler,
    Recorder,
)
from canopy_mqtt.core.jobs import DUE_WORK, END_WORK, HELD_WORK, NODE_SHIFT, STEP_WORK, Scheduler
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queue_totals import bound
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import UNSET, RequestedTerms, SubscriptionTerms
from canopy_mqtt.core.queues.requests import Request, RequestMessage, WaitingRequests
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.bridge_states import last_word
from canopy_mqtt.core.routing.bursts import RunFinder
from canopy_mqtt.core.routing.fanout import Fanout
from canopy_mqtt.core.routing.nodes import NODE_LINKS, new_session
from canopy_mqtt.core.routing.peers import ConnectedPeers, PeerConnected, PeerDisconnected
from canopy_mqtt.core.routing.queue_limits import QueueLimits
from canopy_mqtt.core.routing.retained import RetainedStore
from canopy_mqtt.core.routing.session_table import SessionTable
from canopy_mqtt.core.routing.share_queues import ShareQueue, ShareQueues
from canopy_mqtt.core.routing.subscription_table import DROPS_AT_ONCE, SubscriptionTable
from canopy_mqtt.core.routing.unfinished import Unfinished
from canopy_mqtt.core.routing.wills import LoneWill, WillQueue
from canopy_mqtt.core.session.session import Session, SharedSession
from canopy_mqtt.core.session.shedding import GlobalLimiter
from canopy_mqtt.core.shared import KEPT, Offer, RetainedWait, SharedSessions
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.core.topics.trie import create

if TYPE_CHECKING:
    from mypy_extensions import i64

PAUSE: Final = 0.005
"""Seconds that wills wait when one of them has half filled a session's queue."""


class Router:
    """The routing state of one broker."""

    def __init__(self, limits: Limits, trie: str = "nodes", match_cache: int = 16_384) -> None:
        self.limits = limits
        self.counters = Counters()
        self._totals = self.counters.totals
        self.budget: Final = self._totals.budget
        self.accounts = Accounts(self._totals.internal)
        self.deadlines = Deadlines()
        self.jobs = Scheduler(self.budget, self.deadlines)
        self.table = SubscriptionTable(trie, match_cache, self._totals, self.accounts, self.jobs)
        self.trie = self.table.trie
        self.cache = self.table.cache
        self.fanout = Fanout(self.table, self._totals, self.jobs)
        # How this broker calls itself in the path of a message (`path`); empty: it has no name yet, and meets no loop.
        self.broker_id = ""
        # Whether a client identifier is one of this process's; None: all are.
        self.keeps: Callable[[str], bool] | None = None
        self.cache.guarded = limits.presence_topic
        self.cache.controls = limits.control_characters
        self.runs = RunFinder(self.fanout)
        totals = self._totals
        self.peers = ConnectedPeers(totals, self.jobs, self.table)
        self.session_table = SessionTable(self.accounts)
        self.sessions = self.session_table.sessions
        self.retained_store = RetainedStore(limits, self.counters, self.deadlines, self.sessions, self.accounts)
        self.retained = self.retained_store.tree
        self.wills = WillQueue(self)
        self.share_queues = self.fanout.share_queues = self.table.share_queues = ShareQueues(self)
        self.peers.share_queues = self.share_queues
        self.unfinished = Unfinished(self.fanout, self.share_queues, totals, self.jobs)
        self.queue_limits = QueueLimits(limits, self.fanout)
        totals.reliever = GlobalLimiter(self.sessions, totals)
        self.alias_bytes: i64 = 0  # that the topic aliases of all clients take
        self.permissions: Permissions | None = None  # what access control says, if there is one
        self._epochs: i64 = 0  # of those that were in force before
        self.event_listener: EventListener | None = None
        self.auth_methods: dict[str, AuthMethod] = {}
        self.ban_hook: BanHook | None = None  # while there are bans
        self.tap: Recorder | None = None  # records what happens
        self.sampler = PublishSampler()  # samples nothing until another one takes its place
        self.commits: Commits | None = None  # the journal's; set with it
        self.shared: SharedSessions | None = None  # the store of sessions that brokers share; set with the journal
        self.limits_changed()

    def limits_changed(self) -> None:
        """Apply changed numbers in `limits` to the parts that keep copies of them."""
        limits, totals = self.limits, self._totals
        self.runs.keep_to(limits)
        totals.max_messages = bound(limits.total_messages)
        totals.max_bytes = bound(limits.total_bytes)
        totals.standstill = limits.standstill
        self.retained_store.shares.most = limits.max_retained_bytes_per_client
        totals.retained_check = self.retained_store if limits.check_retained_publisher else None
        self.queue_limits.forget()
        for queue in self.share_queues.queues:
            # No client connects to it and so gives it the new terms.
            self.queue_limits.apply_to_group(queue, queue.group.topic_filter)
        self.peers.set_delays(limits)

    @property
    def access_control(self) -> AccessControl | None:
        """The access control in force, including its guard."""
        return None if self.permissions is None else self.permissions.asked

    @access_control.setter
    def access_control(self, asked: AccessControl | None) -> None:
        # What was remembered of the answers of another one is told from those of this one by the `epochs`.
        if self.permissions is not None:
            self._epochs = self.permissions.epochs
        made = None if asked is None else Permissions(asked, self._epochs)
        self.permissions = self.fanout.permissions = self._totals.permissions = made

    @property
    def journal(self) -> Journal | None:
        """The journal that is told what to store. Set before the first session, or never."""
        return self._totals.journal

    @journal.setter
    def journal(self, journal: Journal | None) -> None:
        self._totals.journal = journal
        self.commits = None if journal is None else journal.commits

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(self, tap: Recorder | None, filters: Sequence[str]) -> None:
        """Let a recorder record everything from now on, and the messages whose topics match these filters.

        It first records the present subscriptions. None: the core records nothing any more. The filters are matched
        when a topic's route is made, and are no subscriptions: a burst with a single receiver stays one piece.
        """
        taps = create("nodes")
        for topic_filter in filters:
            taps.insert(topic_filter)
        self.tap = self._totals.tap = tap
        self.cache.clear()
        self.cache.taps = taps if tap is not None else None
        for session in self.sessions.values():
            session.update_fast_path()
            if tap is not None:
                for subscription in session.subscriptions.values():
                    tap.subscribed(subscription, True)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, message: Message, origin: Session | None, retained: bool = False, packet_id: int = 0) -> int:
        """Route a message; store or clear it when it is retained, unless that is done (`retained`). Return how many
        sessions and groups it was for.

        `packet_id`: of a PUBLISH of QoS 2, which its client may send again at another broker; 0: there is none; KEPT:
        the store that brokers share has the message already.

        `origin` is the publishing session (for No Local), None for the broker's own messages and wills. Messages from a
        connection take shorter paths if possible (`protocol.publish`).
        """
        if self.limits.upgrade_outgoing_qos:
            # The lower of this and the granted QoS is the granted one, for live and retained messages alike.
            message.qos = 2
        # Without RETAIN no retained message is touched [MQTT-3.3.1-8].
        retains = message.retain and not retained
        if (
            self.shared is not None
            and packet_id > 0
            and isinstance(origin, SharedSession)
            and not isinstance(message, RequestMessage)
        ):
            # Its client may have sent it to another node before. Only the store knows that, and says it later.
            live = partial(self.publish, message, origin, retained, KEPT)
            self._keep(self.shared, message, origin, packet_id, live, retains)
            return 1
        fanout = self.fanout
        route = fanout.route(message.topic)
        if route is None:
            route = fanout.new_route(message.topic)
        count = fanout.deliver(route, message, origin)
        if (
            self.shared is not None
            and message.qos > 0
            and packet_id != KEPT
            and not message.publisher.startswith(NODE_LINKS)
        ):
            self._keep(self.shared, message, origin, packet_id, None, retains)
            count = max(count, 0) + 1  # it may be for a session elsewhere
        if retains and (message.qos == 0 or not self.retained_store.is_kept_there(message)):
            self.retained_store.retain(message, origin, True)
        return count

    def ask(self, message: Message, origin: Session | None, request: Request, packet_id: int = 0) -> int:
        """`publish` a request: the links that take it with QoS 1 or 2 and are connected are asked whom they reach.

        Afterwards `Request.waits` says whether there is anything to wait for.
        """
        if self.limits.answer_timeout <= 0.0:
            return self.publish(message, origin, False, packet_id)
        try:
            return self.publish(RequestMessage(message, request), origin, False, packet_id)
        finally:
            request.routing = False

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        session: Session,
        group_name: str,
        topic_filter: str,
        request: SubscriptionRequest,
        identifier: int,
        terms: SubscriptionTerms | None = None,
        options: RequestedTerms | None = None,
    ) -> None:
        """Make or replace a subscription [MQTT-3.8.4-3], and start to stream its retained messages.

        `topic_filter` is valid, without `$share/name/`; `request.topic_filter` as the client wrote it. `terms`: see
        `QueueLimits.subscription_terms`; None where there are neither rules nor queue options.
        """
        name = request.topic_filter
        subscription = session.subscriptions.get(name)
        new = subscription is None
        if subscription is None:
            qos = min(request.qos, self.limits.max_qos)
            subscription = Subscription(
                session,
                name,
                qos,
                request.no_local,
                request.retain_as_published,
                request.retain_handling,
                identifier,
            )
            self.table.add(session, subscription, group_name, topic_filter)
        else:
            # In place: it keeps its turn in a share group, and a running stream of retained messages goes on.
            subscription.agree(request, identifier, self.limits.max_qos)
            self.table.touch(subscription)
        if terms is not None or subscription.message_terms is not None:
            self.queue_limits.give_terms(session, subscription, terms, options)
        # Retain Handling 0 asks for retained messages each time [MQTT-3.3.1-9] [MQTT-3.8.4-4], 1 if the subscription
        # is new [MQTT-3.3.1-10], 2 never [MQTT-3.3.1-11]. 3.1.1 has 0 alone [MQTT3-3.3.1-6]. Shared subscriptions get
        # none (section 4.8.2).
        wanted = request.retain_handling == 0 or (request.retain_handling == 1 and new)
        if wanted and not group_name:
            if self.shared is not None and not session.internal:
                self.shared.look(RetainedWait(session, subscription, self.retained))
            elif self.retained.leads_to(topic_filter):
                session.start_stream(subscription, self.retained)
        group = subscription.group
        if group is not None and group.queue is not None:
            self.share_queues.attach(subscription)
        if group is not None and session.journal is None and session.claim is not None:
            # The store that brokers share has the queue of the group, and what its members take.
            session.keep_in(self.journal)
        if session.journal is not None:
            session.keep_subscription(subscription)
        if self.event_listener is not None:
            self.event_listener.subscribed(session.client_id, name, subscription.qos)
        if self.tap is not None:
            self.tap.subscribed(subscription, False)

    def unsubscribe(self, session: Session, name: str) -> bool:
        """Remove a subscription; False if there is none [MQTT-3.10.4-1].

        Nothing new is offered because of it [MQTT-3.10.4-2]. What the session has in flight stays there until it is
        acknowledged [MQTT-3.10.4-3].
        """
        subscription = session.subscriptions.pop(name, None)
        if subscription is None:
            return False
        session.stop_stream(name)
        group = subscription.group
        self.budget.used += self.table.drop(subscription) >> NODE_SHIFT
        if group is not None:
            self.unfinished.unsubscribed(session, group)
        message_terms = subscription.message_terms
        if message_terms is not None and message_terms.fresh:
            self.queue_limits.count_fresh(session, -1)
        if session.requested_delays is not None:
            self.peers.request_delay(session, name, UNSET)
        if session.journal is not None:
            session.journal.unsubscribed(session.client_id, name)
        if self.event_listener is not None:
            self.event_listener.unsubscribed(session.client_id, name)
        if self.tap is not None:
            self.tap.unsubscribed(session.client_id, name, False)
        return True

    # -- sessions ------------------------------------------------------------------------------------------------------

    def new_client_id(self) -> str:
        """A client identifier for a client that sent none; unique and not guessable [MQTT-3.1.3-6]."""
        while True:
            made: str = self.limits.auto_id_prefix + secrets.token_hex(11)
            if self.keeps is None or self.keeps(made):
                return made

    def connect(
        self,
        client_id: str,
        clean_start: bool,
        send_buffer: SendBuffer,
        version: int,
        send_quota: int,
        plain: bool,
        now: float,
        principal: Principal | None = None,
        shared: bool = False,
    ) -> tuple[Session, bool]:
        """Open or resume the session of a client that was admitted; the send buffer becomes its peer.

        Sessions stand under the client identifier [MQTT-3.1.3-2]. Clean Start (Clean Session in 3.1.1) decides
        [MQTT-3.1.4-4] [MQTT3-3.1.4-3]: with it a session that is there is thrown away [MQTT-3.1.2-4] [MQTT3-3.1.2-6],
        without it that one goes on [MQTT-3.1.2-5] [MQTT3-3.1.2-4]; where there is none, one is made [MQTT-3.1.2-6].

        `send_quota` and `plain`: see `Session.attach`; `principal`: whose a new session is; `shared`: whether brokers
        share a new one. Returns the session and whether it was present. Any earlier connection of the client has been
        given up by then.
        """
        self.peers.drain(self, now)
        session = self.sessions.get(client_id)
        if session is not None and session.send_buffer is None:
            self.handle_due(session, now)
            session = self.sessions.get(client_id)
        present = session is not None and not clean_start
        if session is not None:
            if session.send_buffer is not None:
                raise RuntimeError("the session is still connected")
            if clean_start:
                self.wills.revoke_in_grace(session, now)
                self.end_session(session, now)
                session = None
            else:
                # Back in time: the delayed will is not sent [MQTT-3.1.3-9].
                self.wills.revoke(session)
        self.wills.client_returned(client_id, None if principal is None else principal.user_name, now)
        if session is None:
            session = new_session(client_id, self.limits, self.counters, principal, shared)
            session.account.retained = self.retained_store.shares.of(client_id)
            self.session_table.enter(session)
        try:
            if present:
                self.deadlines.cancel(session)
                session.expires_at = 0.0
            session.attach(version, send_quota, plain)
            self.peers.events.append(PeerConnected(session, send_buffer))
            self.peers.drain(self, now)
            self.session_table.count(session)
        except BaseException:
            # A fault: no protocol has the session, so that none would tell of its end.
            if session.send_buffer is not send_buffer:
                self.peers.events.append(PeerConnected(session, send_buffer))
            self.peers.events.append(PeerDisconnected(session, send_buffer, INTERNAL_ERROR))
            raise
        return session, present

    def adopt(self, session: Session) -> None:
        """Add a session that was not opened by a client's CONNECT: that of a link. It is stored, too."""
        self.session_table.add(session)
        if self._totals.journal is not None:
            session.keep(self._totals.journal)

    def sweep(self, now: float) -> None:
        """Drop messages that are too old from idle queues, and tell a store what it missed: about once a second."""
        self.peers.drain(self, now)
        self.queue_limits.sweep(self._totals, now)
        journal = self._totals.journal
        if journal is not None:
            journal.retry()
            if journal.pages is not None:
                journal.pages.retry()

    def peer_disconnected(self, event: PeerDisconnected, now: float) -> None:
        """Handle the end of a connection: the will, unfinished shared messages, and the session's end or expiry.

        The will is that of the CONNECT [MQTT3-3.1.2-8]; without one nothing is published [MQTT3-3.1.2-12]. With an
        expiry interval above 0 the session stays [MQTT-3.1.2-23], as one of 3.1.1 without Clean Session does
        [MQTT3-3.1.2-4].
        """
        session = event.session
        self.budget.used += END_WORK
        expiry = session.expiry_interval
        try:
            if event.cause == CLIENT_DISCONNECT:  # [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.14.4-3]
                self.wills.revoke(session)
            if expiry > 0 or session.bridge_state:  # else its end does the rest, the will first
                self._share_out(session, now)
        finally:
            # Whatever has raised: the session ends when it is over.
            if session.claim is not None:
                if expiry == 0:
                    self.end_session(session, now)
                else:
                    self.let_go(session, now)
                self._leave(session)
            elif expiry == 0:
                self.end_session(session, now)
            elif not session.ended:
                session.expires_at = 0.0 if expiry == NEVER else now + expiry
                self.schedule(session)
                table = self.session_table
                table.count(session)
                empty = table.oldest_empty()
                if empty is not None and 0 < self.limits.max_empty_sessions < table.empty_count:
                    self.end_session(empty, now)

    def _share_out(self, session: Session, now: float) -> None:
        """Publish what the end of a connection makes due, the will first; give away unfinished shared messages."""
        expiry = session.expiry_interval
        if expiry > 0 and session.journal is not None and not session.upstream:
            session.journal.session_kept(session.client_id, session.principal, expiry, now)
        self.wills.connection_ended(session, now)
        down = last_word(self, session) if session.bridge_state else None
        if down is not None:
            self.publish(down, None)
        if session.memberships is not None:
            self.unfinished.share_out(session)

    def end_session(self, session: Session, now: float, kept: bool = False) -> None:
        """Delete a session and everything in it; its delayed will is published now [MQTT-3.1.3-9].

        From here on nothing comes to it, and its client identifier is free; thousands of subscriptions are taken away
        in turns (`tick`). Retained messages do not belong to it, and stay [MQTT3-3.1.2-7]. `kept`: it is given back,
        and not over (`let_go`).
        """
        if session.ended:
            return
        session.ended = True
        session.ledger.principal = session.principal
        try:
            if session.journal is not None:
                session.journal.session_gone(session.client_id)
                session.keep_in(None)
            if session.will is not None:
                self.wills.publish(session, now)
            if session.memberships is not None:
                self.share_queues.pass_on(session)
                self.unfinished.end(session)
        finally:
            # Whatever has raised: a session that is over is found no more, and holds nothing.
            self.session_table.remove(session)
            if session.expiry_interval != 0:  # else it ends with its connection, and never had a deadline
                self.deadlines.cancel(session)
            if session.made_queue is not None:
                self.budget.used += HELD_WORK * session.made_queue.in_memory
            session.end(kept)
            table = self.table
            table.end_some(session, min(DROPS_AT_ONCE, table.drops))
            if session.subscriptions:
                table.end_later(session)
            if isinstance(session, ShareQueue):
                self.share_queues.ended(session)
            elif self.event_listener is not None and not kept:
                self.event_listener.session_ended(session.client_id)

    # -- sessions that brokers share -----------------------------------------------------------------------------------

    def let_go(self, session: Session, now: float) -> None:
        """Remove a session whose client is not connected here any more; it stays in the store that brokers share.

        What the session had of share groups goes to other members here.
        """
        if session.ended:
            return
        session.give_back()
        self.end_session(session, now, True)

    def _leave(self, session: Session) -> None:
        """The connection of a claimed session has ended, and all that is told of it has been told."""
        attempt, session.claim = session.claim, None
        if attempt is not None and self.shared is not None:
            attempt.expiry = session.expiry_interval
            attempt.session = None
            attempt.is_gone = True
            self.shared.left(attempt)

    def _keep(
        self,
        shared: SharedSessions,
        message: Message,
        origin: Session | None,
        packet_id: int,
        live: Callable[[], object] | None,
        retains: bool,
    ) -> None:
        """Give a message of QoS 1 or 2 to the store that brokers share. `packet_id`: see `publish`; `live`: see
        `SharedSessions.publish`; `retains`: it is to be retained, too."""
        session = origin if isinstance(origin, SharedSession) else None
        if session is None:
            packet_id = 0
        elif packet_id == 0 and message.qos == 2:
            session = None  # it is none that the client may send again
        shared.publish(message, session, packet_id, live, self._offer(message, origin, retains))

    def keep_will(self, kept: object, message: Message, origin: Session | None, live: Callable[[], object]) -> None:
        """Give the message of a will to the store that brokers share and that has the will: see
        `SharedSessions.keep_will`."""
        if self.limits.upgrade_outgoing_qos:
            message.qos = 2
        if self.shared is not None:
            # One of QoS 0 is retained with the live message.
            retains = message.retain and message.qos > 0
            self.shared.keep_will(kept, message, live, self._offer(message, origin, retains))

    def _offer(self, message: Message, origin: Session | None, retains: bool) -> Offer | None:
        if retains and self.retained_store.is_kept_there(message):
            return self.retained_store.offer(message, origin, True)
        return None

    # -- time ----------------------------------------------------------------------------------------------------------

    def schedule(self, session: Session) -> None:
        """Let `tick` handle the session when its will or its expiry is due, whichever is first."""
        when = session.will_due
        if session.expires_at != 0.0 and (when == 0.0 or session.expires_at < when):
            when = session.expires_at
        if when != 0.0:
            self.deadlines.set(session, when)
        else:
            self.deadlines.cancel(session)

    def tick(self, now: float) -> bool:
        """Do what is due: steps of jobs, delayed wills, expiry of sessions and retained messages, answers to requests.

        One turn of some milliseconds, which ends early when a queue has become half full. True when more is due: call
        again at `deadlines.next_due`.
        """
        self.peers.drain(self, now)
        counters = self.counters
        deadlines = self.deadlines
        deadlines.hold(0.0)
        self.wills.begin_turn()
        half_full = counters.half_full
        backed_up = counters.backed_up
        budget = self.budget
        try:
            self.jobs.run(STEP_WORK)
            while not budget.spent() and counters.half_full == half_full:
                thing = deadlines.pop_due(now)
                if thing is None:
                    break
                budget.used += DUE_WORK
                if isinstance(thing, Session):
                    self.handle_due(thing, now)
                elif isinstance(thing, str):
                    self.retained_store.expire(thing, now)
                elif isinstance(thing, LoneWill):
                    self.wills.publish_held(thing, now)
                elif isinstance(thing, WaitingRequests):
                    budget.used += DUE_WORK * thing.give_up(now)
                    if thing.due > 0.0:
                        deadlines.set(thing, thing.due)
        finally:
            # Also where one of them has raised: there is no other wake-up.
            self.jobs.wake()
        if counters.backed_up != backed_up:
            # The acknowledgements that empty a session's queue need a moment.
            deadlines.hold(now + PAUSE)
        return deadlines.due(now)

    def handle_due(self, session: Session, now: float) -> None:
        """Publish a session's delayed will, and end the session, where that is due.

        The broker asks this before a client resumes a session, too: an expired one is not resumed [MQTT-4.1.0-2].
        """
        try:
            if 0.0 < session.will_due <= now:
                self.wills.publish(session, now)
        finally:
            # Never while it is connected [MQTT-4.1.0-1], but as soon as its time is over after that [MQTT-4.1.0-2].
            if session.send_buffer is None and 0.0 < session.expires_at <= now:
                self.counters.sessions_expired += 1
                self.end_session(session, now)
            else:
                self.schedule(session)
