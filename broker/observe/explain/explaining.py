"""What would happen to a message now: the route that the router has for it, and every decision on it, one by one.

Owns `Question`, `Case` and `Explainer`. It asks the router's own parts: the match cache or the trie behind it,
`Recipient` for what several filters of a session come to, `Reach` for who may have it, `Fanout.choose` for whose turn
it is. What these would change is put back: no cache entry, counter or turn is used.
Promises: an answer names a page of receivers at most, one question is answered after the other, and the event loop has
a turn after each `TURN` steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, cast

from broker.core.codec import reasons
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.mounted_names import inner_topic
from broker.core.codec.topic_names import has_control
from broker.core.connection.connect.identity import is_reserved
from broker.core.queues.message import Message
from broker.core.refusals import ACCESS_CONTROL
from broker.core.routing.in_turns.broadcasts import BROADCAST, PLAIN_BROADCAST, listeners
from broker.core.routing.receivers.plans import Recipient
from broker.core.routing.receivers.reach import Reach, share_qos
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.topics.subscription import FilterEntry, SharedGroup, Subscription
from broker.observe.explain import sentences
from broker.observe.explain.answer import (
    MOST_SHOWN,
    UNKNOWN,
    Answer,
    Group,
    Match,
    Publisher,
    Receiver,
    Retained,
)
from broker.observe.explain.present import inner_name, meet, nothing, queues, subscribed

TURN: Final = 1_000
"""Steps (subscriptions, filters and messages in queues that are looked at) in one turn of the event loop: about half a
millisecond."""

RECEIVER_STEPS: Final = 100
"""What one receiver counts for, beside the filters that are looked at for it."""

MOST_RECEIVERS: Final = 1_000
"""Receivers of one answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A message that was not published. `size`: bytes of its payload; `publisher`: a client identifier; None: nobody's.

    `client`: the one that is asked about; empty: everybody.
    """

    topic: str
    publisher: str | None = None
    qos: int = 0
    retain: bool = False
    size: int = 1
    client: str = ""


class Case:
    """A question as the router meets it: the message, its route as it is now, and who may have it."""

    def __init__(self, router: Router, question: Question, now: float) -> None:
        self.now = now
        topic = question.topic.encode()
        # Zeroes that nobody looks at: the system gives them when they are touched, which they are not.
        payload = bytes(question.size)
        self.message = Message(topic, payload, question.qos, question.retain, b"", 0.0, question.publisher or "")
        self.origin = None if question.publisher is None else router.sessions.get(question.publisher)
        self.remembered = router.cache.knows(topic)
        self.route = route = router.cache.peek(topic)
        self.entries: list[FilterEntry] = [entry for entry in route.entries if not entry.retired]
        permissions = router.permissions
        # Access control is asked as for a message; nothing is remembered with the route.
        self.reach: Reach | None = None
        if permissions is not None and permissions.filters:
            self.reach = Reach(topic, permissions)
            if isinstance(route.reach, Reach):
                self.reach.follow(route.reach)
        # One for each receiver: whether all queues together have room for them.
        self.listeners = listeners(route)
        copies = self.listeners + sum(len(entry.groups) for entry in self.entries)
        load, size = router.counters.load, self.message.size()
        self.roomy = (
            load.has_room(copies, copies * size)
            and load.inflight + copies <= load.max_messages // 2
            and load.inflight_bytes + copies * size <= load.max_bytes // 2
        )


class Explainer:
    """Answers about one router."""

    def __init__(self, router: Router, turn: int = TURN) -> None:
        self._router = router
        self._turn = turn
        self._steps = 0
        # Many questions at once would have many turns in each round of the event loop.
        self.one_by_one = asyncio.Lock()

    async def answer(self, question: Question, now: float, after: str = "", limit: int = 100) -> Answer:
        """What would happen. `now`: s, monotonic. `after`: the client identifier behind which the receivers begin."""
        router = self._router
        limit = min(limit, MOST_RECEIVERS)
        case = Case(router, question, now)
        message, entries = case.message, case.entries
        publisher = self._publisher(question, case)
        if router.limits.upgrade_outgoing_qos:
            message.qos = 2
        in_turns = case.listeners > (PLAIN_BROADCAST if message.qos == 0 and len(entries) == 1 else BROADCAST)
        receivers: list[Receiver] = []
        groups: list[Group] = []
        cursor: str | None = None
        more_groups = 0
        if publisher.accepted:
            if question.client:
                receivers = [await self._one(question.client, case)]
            else:
                names = await self._names(entries, after, limit)
                cursor = names[limit - 1] if len(names) > limit else None
                for name in names[:limit]:
                    receiver = await self._receiver(name, case)
                    if receiver is not None:
                        receivers.append(receiver)
            if not after:
                async for group in self._groups(entries, question.client):
                    if len(groups) < MOST_SHOWN:
                        groups.append(await self._group(group, case))
                    else:
                        more_groups += 1
        return Answer(
            topic=question.topic,
            qos=message.qos,
            retain=question.retain,
            size=question.size,
            publisher=publisher,
            filters=[
                Match(
                    topic_filter=entry.topic_filter,
                    subscriptions=entry.ordinary_count,
                    groups=len(entry.groups),
                )
                for entry in entries[:MOST_SHOWN]
            ],
            more_filters=max(len(entries) - MOST_SHOWN, 0),
            remembered=case.remembered,
            recorded=router.tap is not None and case.route.tapped,
            in_turns=in_turns,
            receivers=receivers,
            groups=groups,
            more_groups=more_groups,
            retained=self._retained(message) if question.retain and publisher.accepted else None,
            limit=limit,
            cursor=cursor,
            unknown=list(UNKNOWN),
        )

    # -- the publisher -------------------------------------------------------------------------------------------------

    def _publisher(self, question: Question, case: Case) -> Publisher:
        """What `PublishHandler._on_publish` makes of it, in its order."""
        client_id, origin = question.publisher, case.origin
        made = Publisher(
            client_id=client_id,
            accepted=True,
            reason_code=0,
            disconnected=False,
            rule="",
            topic=question.topic,
            sentence="",
        )
        if client_id is not None and origin is None:
            made.sentence = sentences.unknown_publisher(client_id)
        elif origin is not None:
            made.reason_code, made.disconnected, why = self._refusal(question, case.message, origin, made)
            made.accepted = made.reason_code == 0
            made.sentence = sentences.publisher(origin.client_id, made, why)
        else:
            made.sentence = sentences.nobodys()
        return made

    def _refusal(self, question: Question, message: Message, origin: Session, made: Publisher) -> tuple[int, bool, str]:
        """The reason code, whether the connection ends with it, and why."""
        router = self._router
        limits = router.limits
        principal = origin.principal
        topic = message.topic
        mount = principal.mount.encode()
        if mount:
            inner = inner_topic(mount, topic)
            if inner is None:
                return (
                    reasons.NOT_AUTHORIZED,
                    False,
                    f"its mount is {principal.mount}: it cannot publish to this topic",
                )
            made.topic = inner.decode()
            topic = inner
        sent = Message(topic, message.payload(), question.qos, question.retain, b"", 0.0, "")
        size = sent.frame_size(origin.v5, question.qos, (), False)
        if size > limits.max_packet_size or size > LARGEST_PACKET:
            return reasons.PACKET_TOO_LARGE, True, f"the packet has {size} bytes: limits.max_packet_size"
        if question.qos > limits.max_qos:
            return reasons.QOS_NOT_SUPPORTED, True, "mqtt.max_qos"
        if question.retain and not limits.retain_available:
            return reasons.RETAIN_NOT_SUPPORTED, True, "mqtt.retain_available"
        reason, ends, why = 0, False, ""
        if limits.max_topic_levels > 0 and message.topic.count(b"/") >= limits.max_topic_levels:
            reason, why = reasons.TOPIC_NAME_INVALID, "limits.max_topic_levels"
        elif not limits.control_characters and has_control(question.topic):
            reason, ends, why = reasons.MALFORMED_PACKET, True, "the topic contains a control character"
        elif is_reserved(message.topic, origin.link, router, origin):
            reason, why = reasons.NOT_AUTHORIZED, "the topic is the broker's own"
        elif router.access_control is not None:
            asked = router.access_control
            made.rule = asked.said(principal, "publish", question.topic, question.qos, question.retain)[1]
            if not asked.may_publish(principal, question.topic, question.qos, question.retain):
                reason, why = reasons.NOT_AUTHORIZED, f"refused by {made.rule or ACCESS_CONTROL}"
        if not ends and 0 < limits.max_payload_size < question.size:
            reason, why = reasons.QUOTA_EXCEEDED, "limits.max_payload_size"
        if (
            question.qos > 0
            and reason == 0
            and router.commits is not None
            and router.commits.refuses(limits.store_refuses)
        ):
            reason, ends, why = reasons.QUOTA_EXCEEDED, not origin.v5, "the store cannot be written"
        return reason, ends, why

    # -- who -----------------------------------------------------------------------------------------------------------

    async def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps >= self._turn:
            self._steps = 0
            await asyncio.sleep(0)

    async def _names(self, entries: list[FilterEntry], after: str, limit: int) -> list[str]:
        """The first of those who subscribe, in the order of their client identifiers: one more than `limit`."""
        found: set[str] = set()
        last: str | None = None
        for entry in entries:
            for at, subscription in enumerate(list(entry.subscriptions)):
                name = cast(Session, subscription.session).client_id
                if name > after and (last is None or name <= last):
                    found.add(name)
                    if len(found) > 4 * (limit + 1):
                        kept = sorted(found)[: limit + 1]
                        found, last = set(kept), kept[-1]
                if at % 64 == 63:
                    await self._step(64)
            await self._step()
        return sorted(found)[: limit + 1]

    async def _groups(self, entries: list[FilterEntry], client: str) -> AsyncIterator[SharedGroup]:
        """The share groups; of a client: those that it is a member of."""
        for entry in entries:
            for group in list(entry.groups.values()):
                await self._step(RECEIVER_STEPS if not client else 1)
                if not client or self._is_member(client, group):
                    yield group
            await self._step()

    def _is_member(self, client: str, group: SharedGroup) -> bool:
        session = self._router.sessions.get(client)
        found = None if session is None else session.subscriptions.get(f"$share/{group.name}/{group.topic_filter}")
        return found is not None and found.group is group

    async def _matching(self, session: Session, entries: list[FilterEntry]) -> list[Subscription]:
        """Its ordinary subscriptions at these filters."""
        found: list[Subscription] = []
        for entry in entries:
            # They stand under their filter.
            subscription = session.subscriptions.get(entry.topic_filter)
            if subscription is not None and subscription.entry is entry and subscription.group is None:
                found.append(subscription)
            await self._step()
        return [each for each in found if each.entry is not None]

    async def _one(self, client: str, case: Case) -> Receiver:
        """The client that is asked about, also where nothing is for it."""
        receiver = await self._receiver(client, case)
        if receiver is not None:
            return receiver
        session = self._router.sessions.get(client)
        made = nothing(client, session)
        if session is None:
            made.sentence = sentences.no_session(client)
            return made
        member = False
        async for _ in self._groups(case.entries, client):
            member = True
        made.topic = inner_name(session, case.message)
        made.sentence = sentences.no_match(session, case.message, member)
        return made

    async def _receiver(self, client: str, case: Case) -> Receiver | None:
        """What a session gets by its ordinary subscriptions; None: none of them matches."""
        session = self._router.sessions.get(client)
        if session is None:
            return None
        matching = await self._matching(session, case.entries)
        if not matching or session.ended:
            return None
        await self._step(RECEIVER_STEPS + (0 if case.reach is None else case.reach.ask_work))
        matching = [each for each in matching if each.entry is not None]
        target = Recipient(session)
        for subscription in matching:
            target.add(subscription)
        target.settle()
        made = nothing(client, session)
        made.subscriptions = [subscribed(each) for each in matching[:MOST_SHOWN]]
        made.more_subscriptions = max(len(matching) - MOST_SHOWN, 0)
        message = case.message
        most = self._most(session, case, made)
        if most < 0:
            made.outcome = "denied"
        else:
            part: Recipient | None = target
            if target.no_local and session is case.origin:
                part = target.rest
            if part is None:
                made.outcome = "own"
            else:
                self._meet(made, session, case, part, min(message.qos, part.qos, most))
        made.queue = queues(session, target, case.now)
        made.sentence = sentences.receiver(made, message)
        return made

    def _most(self, session: Session, case: Case, made: Receiver) -> int:
        """The QoS that access control lets a session have; below 0: nothing."""
        if case.reach is None:
            return 2
        most = case.reach.qos(session, 2)
        topic = case.message.topic.decode()
        asked = self._router.access_control
        if asked is not None and not session.own:
            made.rule = asked.said(session.principal, "receive", topic, 0, False)[1]
        return most

    def _meet(self, made: Receiver, session: Session, case: Case, target: Recipient, qos: int) -> None:
        message = case.message
        made.qos, made.retain = qos, message.retain and target.retain_as_published
        made.topic = inner_name(session, message)
        own = session.sub_queue if target.sub_queue is None else target.sub_queue
        meet(made, session, message, qos, target.identifiers, own, case.roomy)

    async def _group(self, group: SharedGroup, case: Case) -> Group:
        """Whose turn it is. `Fanout.choose` finds it; then the turn is given back."""
        fanout, message = self._router.fanout, case.message
        made = Group(
            name=group.name,
            topic_filter=group.topic_filter,
            connected=group.connected.count,
            away=group.away.count,
            next=None,
            sentence="",
        )
        turns = (group.connected, group.away)
        before = [(each.cursor, list(each.takers)) for each in turns]
        work = fanout.work
        try:
            member = fanout.choose(group, message, case.reach)
        finally:
            # Two deliveries take about as long as a step.
            self._steps += (fanout.work - work) // 2
            fanout.work = work
            for each, (cursor, takers) in zip(turns, before, strict=True):
                # A member whose session is over was let go, and its slot with it.
                each.cursor = min(cursor, len(each.slots))
                each.takers = [member for member in takers if member in each.slots]
        if member is not None:
            session = cast(Session, member.session)
            receiver = nothing(session.client_id, session)
            receiver.group = group.name
            receiver.subscriptions = [subscribed(member)]
            self._most(session, case, receiver)
            target = Recipient(session)
            target.add(member)
            target.settle()
            self._meet(receiver, session, case, target, share_qos(message, member, case.reach))
            receiver.queue = queues(session, target, case.now)
            if await self._others(session, group, case):
                # It has that one before this.
                receiver.certain = False
            receiver.sentence = sentences.receiver(receiver, message)
            made.next = receiver
        made.sentence = sentences.group(made, member is not None and member.present)
        return made

    async def _others(self, session: Session, group: SharedGroup, case: Case) -> bool:
        """Whether a session may get the message otherwise, too: by a subscription of its own, or for another group."""
        if await self._matching(session, case.entries):
            return True
        async for other in self._groups(case.entries, session.client_id):
            if other is not group:
                return True
        return False

    # -- the retained message ------------------------------------------------------------------------------------------

    def _retained(self, message: Message) -> Retained:
        """`RetainedStore.retain`."""
        store = self._router.retained_store
        topic = message.topic.decode()
        old = cast("Message | None", store.tree.get(topic))
        clears = len(message.payload()) == 0
        refused = "" if clears else store.refused_by(topic, message, old)
        made = Retained(
            stored=not clears and not refused,
            clears=clears,
            refused_by=refused,
            present=old is not None,
            present_publisher="" if old is None else old.publisher,
            present_bytes=0 if old is None else len(old.payload()),
            sentence="",
        )
        made.sentence = sentences.retained(made)
        return made
