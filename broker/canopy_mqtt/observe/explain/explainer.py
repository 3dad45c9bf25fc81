"""Explains one message: finds its route and its receivers, and lets the functions that deliver decide about each.

Owns `Question`, `RoutedQuestion` and `Explainer`. `protocol.publish` decides the publisher's part; `merge`, `Verdicts`
and `Session.deliver` on a stand-in a receiver's; `Fanout.choose` a share group's, whose turn is given back. Promises:
no cache entry, counter or turn is used, an answer names at most one page of receivers, questions are answered one after
the other, and the event loop has a turn after each `TURN` steps.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, cast

from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.reason_codes import NOT_AUTHORIZED, PACKET_TOO_LARGE, ProtocolError
from canopy_mqtt.core.codec.topic_names import unmount_topic
from canopy_mqtt.core.ledger import ACCEPTED, DROP_CAUSES, by_cause
from canopy_mqtt.core.protocol.publish import refusal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.refusals import ACCESS_CONTROL
from canopy_mqtt.core.routing.broadcast import MAX_DIRECT_QOS0_SUBSCRIPTIONS, MAX_DIRECT_SUBSCRIPTIONS
from canopy_mqtt.core.routing.fanout import share_qos
from canopy_mqtt.core.routing.recipients import matching, merge
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.share_queues import ShareQueue
from canopy_mqtt.core.routing.verdicts import Verdicts
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import FilterEntry, Recipient, SharedGroup, Subscription, without_own
from canopy_mqtt.observe.explain import sentences
from canopy_mqtt.observe.explain.answer import (
    MAX_SHOWN,
    Answer,
    Group,
    Ledger,
    Match,
    Publisher,
    Receiver,
    Retained,
)
from canopy_mqtt.observe.explain.answer import Subscription as Matching
from canopy_mqtt.observe.explain.stand_in import StandIn

TURN: Final = 1_000
"""Steps (subscriptions, filters and queued messages) in one turn of the event loop: about half a millisecond."""

RECEIVER_STEPS: Final = 100
"""Steps that one receiver counts for, besides the filters that are checked for it."""

SUBSCRIBER_STEPS: Final = 64
"""Subscriptions whose clients are looked at together."""

MAX_RECEIVERS: Final = 1_000
"""Receivers of one answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A hypothetical message. `size`: bytes of its payload; `publisher`: a client identifier; None: no client.

    `client`: the client in question; empty: all.
    """

    topic: str
    publisher: str | None = None
    qos: int = 0
    retain: bool = False
    size: int = 1
    client: str = ""


class RoutedQuestion:
    """A question in the router's terms: the message, its present route, and who may have it."""

    def __init__(self, router: Router, question: Question, now: float) -> None:
        self.now = now
        topic = question.topic.encode()
        # Zeroes that are never read: the system allocates their pages only when they are touched.
        payload = bytes(question.size)
        self.message = message = Message(
            topic, payload, question.qos, question.retain, b"", 0.0, question.publisher or ""
        )
        if message.shared_frame_suits():
            message.frame_v3 = bytes(message.frame_size(False, 0, (), False))
            message.frame_v5 = bytes(message.frame_size(True, 0, (), False))
        self.origin = None if question.publisher is None else router.sessions.get(question.publisher)
        self.remembered = topic in router.cache.routes
        self.route = route = router.cache.peek(topic)
        self.entries: list[FilterEntry] = route.entries
        permissions = router.permissions
        # Access control is asked as for a message; nothing is remembered with the route.
        self.verdicts: Verdicts | None = None
        # Steps that a question to access control counts for.
        self.ask_work = 0
        if permissions is not None and permissions.filters:
            self.verdicts = Verdicts(topic, permissions)
            self.ask_work = permissions.source.ask_work
            remembered = router.cache.routes.get(topic)
            if remembered is not None and remembered.verdicts is not None:
                self.verdicts.follow(remembered.verdicts)
        self.groups = [group for entry in self.entries for group in entry.groups.values()]
        self.listeners = sum(entry.ordinary_count for entry in self.entries)
        # One for each receiver: whether all queues together have room for them.
        copies = self.listeners + len(self.groups)
        totals, size = router.counters.totals, message.size
        self.roomy = (
            totals.has_room(copies, copies * size)
            and totals.inflight + copies <= totals.max_messages // 2
            and totals.inflight_bytes + copies * size <= totals.max_bytes // 2
        )


class Explainer:
    """Answers questions about one router."""

    def __init__(self, router: Router, turn: int = TURN) -> None:
        self._router = router
        self._turn = turn
        self._steps = 0
        self.leaves_out = ""
        """Client identifiers that begin so are no receivers; empty: none is left out."""
        # Many questions at once would have many turns in each round of the event loop.
        self.one_by_one = asyncio.Lock()

    async def answer(self, question: Question, now: float, after: str = "", limit: int = 100) -> Answer:
        """Answer a question. `now`: s, monotonic. `after`: the client identifier behind which the receivers begin."""
        router = self._router
        limit = min(limit, MAX_RECEIVERS)
        case = RoutedQuestion(router, question, now)
        message, entries = case.message, case.entries
        publisher = self._publisher(question, case)
        if router.limits.upgrade_outgoing_qos:
            message.qos = 2
        in_turns = case.listeners > (
            MAX_DIRECT_QOS0_SUBSCRIPTIONS if message.qos == 0 and len(entries) == 1 else MAX_DIRECT_SUBSCRIPTIONS
        )
        made = Answer(
            topic=question.topic,
            qos=message.qos,
            retain=question.retain,
            size=question.size,
            publisher=publisher,
            filters=[
                Match(topic_filter=each.topic_filter, subscriptions=each.ordinary_count, groups=len(each.groups))
                for each in entries[:MAX_SHOWN]
            ],
            more_filters=max(len(entries) - MAX_SHOWN, 0),
            remembered=case.remembered,
            recorded=router.tap is not None and case.route.tapped,
            in_turns=in_turns,
            limit=limit,
        )
        if not publisher.accepted:
            return made
        if question.client:
            made.receivers = [await self._one(question.client, case)]
        else:
            names = await self._subscribers(entries, after, limit)
            made.cursor = names[limit - 1] if len(names) > limit else None
            found = [await self._receiver(name, case) for name in names[:limit]]
            made.receivers = [each for each in found if each is not None]
        if not after:
            groups = case.groups
            if question.client:
                groups = await self._memberships(router.sessions.get(question.client), case)
            made.groups = [await self._group(group, case) for group in groups[:MAX_SHOWN]]
            made.more_groups = max(len(groups) - MAX_SHOWN, 0)
        if question.retain:
            made.retained = self._retained(message)
        return made

    # -- the publisher -------------------------------------------------------------------------------------------------

    def _publisher(self, question: Question, case: RoutedQuestion) -> Publisher:
        """Explain how the broker reacts to the PUBLISH."""
        origin = case.origin
        made = Publisher(client_id=question.publisher, topic=question.topic)
        if origin is None:
            made.sentence = sentences.not_checked(question.publisher)
            return made
        try:
            made.reason_code, why = self._refusal(question, case.message, origin, made)
        except ProtocolError as error:
            made.reason_code, made.disconnected, why = error.reason_code, True, sentences.why_closed(error)
        made.accepted = made.reason_code == 0
        made.sentence = sentences.publisher(origin.client_id, made, why)
        return made

    def _refusal(self, question: Question, message: Message, origin: Session, made: Publisher) -> tuple[int, str]:
        """Return the reason code of the acknowledgement, and the reason in words.

        Raises:
            ProtocolError: the connection ends with it.
        """
        topic = message.topic
        mount = origin.principal.mount
        if mount:
            unmounted = unmount_topic(mount.encode(), topic)
            if unmounted is None:
                return NOT_AUTHORIZED, f"its mount is {mount}: it cannot publish to this topic"
            made.topic, topic = unmounted.decode(), unmounted
        sent = Message(topic, message.payload(), question.qos, question.retain, b"", 0.0, "")
        size = sent.frame_size(origin.v5, question.qos, (), False)
        if size > min(self._router.limits.max_packet_size, MAX_PACKET):
            raise ProtocolError(f"the packet has {size} bytes: limits.max_packet_size", PACKET_TOO_LARGE)
        reason, why = refusal(self._router, origin, message.topic, question.qos, question.retain, question.size)
        asked = self._router.access_control
        if asked is not None and not why and not origin.internal:
            made.rule = asked.said(origin.principal, "publish", question.topic, question.qos, question.retain)[1]
        return reason, why or f"refused by {made.rule or ACCESS_CONTROL}"

    # -- who -----------------------------------------------------------------------------------------------------------

    async def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps >= self._turn:
            self._steps = 0
            await asyncio.sleep(0)

    async def _subscribers(self, entries: list[FilterEntry], after: str, limit: int) -> list[str]:
        """Return the first `limit + 1` subscribers by client identifier."""
        found: list[str] = []
        for entry in entries:
            subscriptions = list(entry.subscriptions)
            for at in range(0, len(subscriptions), SUBSCRIBER_STEPS):
                names = {each.session.client_id for each in subscriptions[at : at + SUBSCRIBER_STEPS]}
                if self.leaves_out:
                    names = {name for name in names if not name.startswith(self.leaves_out)}
                found = nsmallest(limit + 1, {name for name in names if name > after}.union(found))
                await self._step(SUBSCRIBER_STEPS)
            await self._step()
        return found

    async def _memberships(self, session: Session | None, case: RoutedQuestion) -> list[SharedGroup]:
        """Return the share groups with a matching filter of which a session is a member."""
        members = [] if session is None else list(session.memberships or ())
        await self._step(len(members))
        entries = set(case.entries)
        return [each.group for each in members if each.group is not None and each.entry in entries]

    async def _one(self, client: str, case: RoutedQuestion) -> Receiver:
        """Return the receiver for the client in question, even if it gets nothing."""
        receiver = await self._receiver(client, case)
        if receiver is not None:
            return receiver
        session = self._router.sessions.get(client)
        made = Receiver(client_id=client) if session is None else _begin(session, case.message)
        member = bool(await self._memberships(session, case))
        made.sentence = sentences.no_match(client, session, case.message, member)
        return made

    async def _receiver(self, client: str, case: RoutedQuestion) -> Receiver | None:
        """Return the effect on a session through its ordinary subscriptions; None: none of them matches."""
        await self._step(RECEIVER_STEPS + len(case.entries) + case.ask_work)
        session = self._router.sessions.get(client)
        found = [] if session is None or session.ended else matching(session, case.entries)
        return self._delivery(merge(found), found, case) if found else None

    def _delivery(
        self, recipient: Recipient, subscriptions: list[Subscription], case: RoutedQuestion, group: str = ""
    ) -> Receiver:
        """Return the effect on the session of a recipient. `group`: the share group that it is chosen for."""
        session, message, verdicts = recipient.session, case.message, case.verdicts
        if isinstance(session, ShareQueue):
            verdicts = None  # asked about the members
        made = _begin(session, message)
        made.group = group
        made.subscriptions = [Matching.model_validate(each, from_attributes=True) for each in subscriptions[:MAX_SHOWN]]
        made.more_subscriptions = max(len(subscriptions) - MAX_SHOWN, 0)
        asked = self._router.access_control
        if verdicts is not None and asked is not None and not session.internal:
            made.rule = asked.said(session.principal, "receive", message.topic.decode(), 0, False)[1]
        stand_in = StandIn(recipient, message, case.now)
        made.queue = stand_in.describe(case.now)
        own = recipient.no_local and session is case.origin
        part = without_own(recipient) if own else recipient
        if verdicts is not None and verdicts.find(session) < 0:
            made.outcome = "denied"
        elif part is None:
            made.outcome = "own"
        elif session.upstream:
            made.outcome, made.certain = "link", False
        else:
            made.qos, made.retain = share_qos(message, part, verdicts), message.retain and part.retain_as_published
            cause = stand_in.deliver(part, made.qos, made.retain)
            made.gets, made.certain = cause == ACCEPTED, stand_in.certain(cause)
            if made.gets:
                made.outcome = "sent" if stand_in.sent else "waits"
                made.certain = made.certain and case.roomy
            else:
                made.outcome, made.cause, made.disconnects = "dropped", DROP_CAUSES[cause], stand_in.disconnects
        made.sentence = sentences.receiver(made, message)
        return made

    async def _group(self, group: SharedGroup, case: RoutedQuestion) -> Group:
        """Explain a share group. `Fanout.choose` selects the member; then the turn is given back."""
        await self._step(RECEIVER_STEPS + 2 * len(case.entries))
        fanout, message = self._router.fanout, case.message
        made = Group(
            name=group.name, topic_filter=group.topic_filter, connected=group.connected.count, away=group.away.count
        )
        turns = (group.connected, group.away)
        before = [(each.cursor, list(each.takers)) for each in turns]
        work = fanout.budget.used
        try:
            member = fanout.choose(group, message, case.verdicts)
        finally:
            # Two deliveries take about as long as a step.
            self._steps += (fanout.budget.used - work) // 2
            fanout.budget.used = work
            for each, (cursor, takers) in zip(turns, before, strict=True):
                # A member whose session was over was let go, and its slot with it.
                each.cursor = min(cursor, len(each.slots))
                each.takers = [member for member in takers if member in each.slots]
        if group.queue is not None:
            made.waiting = int(group.queue.waiting_messages())
        work = fanout.budget.used
        queue = None if member is None else self._router.share_queues.would_take(group, member, message)
        fanout.budget.used = work
        if queue is not None:
            made.next = receiver = self._delivery(queue, [], case, group.name)
            receiver.sentence = sentences.group(made, False)
        elif member is not None:
            made.next = receiver = self._delivery(member, [member], case, group.name)
            if matching(member.session, case.entries) or len(await self._memberships(member.session, case)) > 1:
                # The member has that one before this.
                receiver.certain = False
                receiver.sentence = sentences.receiver(receiver, message)
        made.sentence = sentences.group(made, member is not None and member.present)
        return made

    # -- the retained message ------------------------------------------------------------------------------------------

    def _retained(self, message: Message) -> Retained:
        """Explain the effect on the retained message, as `RetainedStore.retain` decides it."""
        store = self._router.retained_store
        topic = message.topic.decode()
        old = cast("Message | None", store.tree.get(topic))
        clears = len(message.payload()) == 0
        refused = "" if clears else store.refused_by(topic, message, old)
        made = Retained(stored=not clears and not refused, clears=clears, refused_by=refused, present=old is not None)
        if old is not None:
            made.present_publisher, made.present_bytes = old.publisher, len(old.payload())
        made.sentence = sentences.retained(made)
        return made


def _begin(session: Session, message: Message) -> Receiver:
    """Return the part about a session that says nothing of a delivery yet."""
    mount = session.principal.mount
    name = unmount_topic(mount.encode(), message.topic) if mount else message.topic
    return Receiver(
        client_id=session.client_id,
        connected=session.send_buffer is not None,
        topic="" if name is None else name.decode(),
        ledger=Ledger(
            delivered=session.delivered_in_all(),
            queued=session.queued(),
            dropped=by_cause(session.ledger.dropped),
        ),
    )
