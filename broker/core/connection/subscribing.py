"""Handles SUBSCRIBE and UNSUBSCRIBE in turns (sections 3.8 to 3.11).

A packet may contain a quarter of a million filters, so it is processed in bounded pieces (`FilterWork`), between which
others have their turns; likewise the subscriptions of a resumed session (`SubscriptionReview`). The connection
(`FilterHandler`) processes none of its later packets before. An invalid filter ends the connection before any filter of
its packet is acted on; a valid one that is refused gets its own reason code, and the others of the packet are
processed.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.errors import ProtocolError, Refused
from broker.core.codec.filter_list import FilterList
from broker.core.codec.mounted_names import outer_filter
from broker.core.codec.packets import Packet, Suback, SubscriptionRequest, Unsuback
from broker.core.codec.properties import NO_PROPERTIES, REASON_STRING, SUBSCRIPTION_IDENTIFIER
from broker.core.codec.topic_names import SHARE_PREFIX, level_count, parse_shared
from broker.core.connection.answers import Answers
from broker.core.hooks import AccessControl
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.policies import queue_options
from broker.core.queues.policies.queue_options import BadQueueOptions
from broker.core.queues.policies.queue_policy import QueueOptions, SubscriptionQueueTerms
from broker.core.refusals import MOUNT, STORE, SUBSCRIBE
from broker.core.routing.giving_way import filter_room
from broker.core.routing.receivers.fanout import SLOW
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.topics.subscription import Subscription

CHECK_WORK: Final = 2
"""What checking one filter counts for in a turn, besides its length: 30,000 short ones take some milliseconds."""

FILTER_WORK: Final = 16
"""What subscribing to one filter, or unsubscribing, counts for in a turn, besides what becomes of the trie: half a
microsecond, with its share of the packet. Counting more costs everybody: clients that subscribe at the same time then
have more and shorter turns, and the caches of the processor begin anew with each."""

MANY_FILTERS: Final = 16
"""It counts for one more by so many bits of how many subscriptions there are: among a million it takes one to two
microseconds."""

TOLD_WORK: Final = 64
"""What one counts for in addition where access control, a journal, a listener or a recorder hears of it, or where it
may get a queue of its own: some microseconds."""

LENGTH_WORK: Final = 4
"""A filter counts for one more by so many bits of its length: 16 bytes."""

STREAM_WORK: Final = 2_048
"""What the beginning of a stream of retained messages counts for in a turn: the topics that are looked at, at most."""

LONGEST_SHOWN: Final = 64
"""Characters of a filter in a Reason String."""

MOST_TOLD: Final = 256
"""Filters of one SUBSCRIBE whose queue options are told one by one; beyond, a SUBACK would be many times as large as
its SUBSCRIBE, and it tells none. Where all are alike they are told once, however many there are."""


LOOK_WORK: Final = 2
TERMS_WORK: Final = 64
"""What looking at one subscription of a session that goes on counts for, and giving it the queue that it has by the
rules; each rule counts one more."""

ASK_WORK: Final = 32
"""What asking access control about one subscription counts for in a turn: two microseconds, where it is quick."""


class FilterHandler:
    """Handles the SUBSCRIBE and UNSUBSCRIBE packets of one connection, one at a time, in several turns if needed.

    Before the first, access control is asked again about what the session has subscribed to already.
    """

    def __init__(self, router: Router, outbox: Outbox, decoder: Decoder, answers: Answers) -> None:
        self._router = router
        self._outbox = outbox
        self._decoder = decoder
        self._answers = answers
        self._session: Session | None = None
        self._work: FilterWork | None = None
        self._review: SubscriptionReview | None = None
        self._resumes = False  # or the client has authenticated again
        # While one is being worked off.
        self.busy = False

    def begin(self, session: Session) -> None:
        """Take the decoder's current frame; `turn` does what it asks for."""
        self._session = session
        self._work = FilterWork(self._decoder.filters(), session, self._router)
        self.busy = True

    def resume(self, session: Session, now: float) -> None:
        """A session goes on: `Session.resume`, once it is known what its client may still subscribe to."""
        self._resumes = True
        if self._look_through(session):
            # Nothing that is published meanwhile comes before what was in flight.
            session.window.begin_resend(self._outbox, session.version)
        else:
            session.resume(now)

    def renewed(self, session: Session) -> None:
        """The client has authenticated again: if it may subscribe to less by now, it is told to go (0x87)."""
        self._resumes = False
        self._look_through(session)

    def _look_through(self, session: Session) -> bool:
        access_control = self._router.access_control
        if access_control is None and not session.others_terms:
            return False
        self._session = session
        self._review = SubscriptionReview(session, access_control, self._router)
        self.busy = True
        return True

    def turn(self, until: i64, now: float) -> None:
        """Go on until `router.work` has come to `until`; answer the packet when all of it was acted on."""
        work = self._work
        session = self._session
        assert session is not None
        review = self._review
        if review is not None:
            if not review.turn(until):
                return
            self.ended()
            if self._resumes:
                session.go_on(now)
            elif review.ended > 0:
                raise ProtocolError("a subscription is not allowed any more", reasons.NOT_AUTHORIZED)
            return
        assert work is not None
        if not work.turn(until):
            return
        self.ended()
        answer = work.answer()
        # [MQTT-3.8.4-1] [MQTT-3.10.4-4]; nothing was done that would have to be kept first, where it was refused.
        kept = session.journal is not None and not work.refused()
        self._answers.send(answer, kept)
        if session.streams is not None and isinstance(answer, Suback):
            # The first retained messages go at once, if this turn has room for them; the others at the receiver's pace,
            # as its writer fetches them.
            if self._router.work + STREAM_WORK > until:
                self._outbox.schedule_flush()
                return
            before = self._outbox.messages
            again = session.pump(now)
            self._router.work += STREAM_WORK + SLOW * (self._outbox.messages - before)
            if again:
                self._outbox.schedule_flush()

    def ended(self) -> None:
        """It is done, or the connection is over."""
        self._work = None
        self._review = None
        self._session = None
        self.busy = False


class FilterWork:
    """One SUBSCRIBE or UNSUBSCRIBE: call `turn` until all filters are processed, then send `answer`.

    Whoever drops it in between leaves the session with the filters that were acted on until then.
    """

    def __init__(self, filters: FilterList, session: Session, router: Router) -> None:
        """Begin with a packet.

        Raises:
            Refused: subscription identifiers are switched off (0xA1); or an UNSUBSCRIBE of 3.1.1 cannot be kept now
                and is to be refused: its UNSUBACK has no code for that.
        """
        self._filters = filters
        self._session = session
        self._router = router
        # What stands before the client's filters here (`codec.mounted_names`).
        self._mount = session.principal.mount
        self._checked = False
        self._count: i64 = 0
        # Bytes that are surely left for filters in this turn; whether that is enough whatever the packet's filters are.
        self._room: i64 = 0
        self._roomy = False
        self._codes: list[int] = []
        self._identifier = 0
        self._options: QueueOptions | None = None
        self._told: list[list[tuple[str, str]]] = []
        self._told_count = 0
        self._alike = True
        self._bad_options = ""
        # What refused the last filter that was refused; empty: access control did.
        self._why = ""
        # The first filter that was refused for a part of it alone, as the client of 5.0 wrote it.
        self._part = ""
        # The reason code for all filters, while what they change cannot be kept; 0: it can.
        self._refusal = 0
        commits = router.commits
        if commits is not None and session.journal is not None and commits.refuses(router.limits.store_refuses):
            if filters.subscribes:
                self._refusal = reasons.QUOTA_EXCEEDED if session.v5 else reasons.V3_SUBACK_FAILURE
            elif session.v5:
                self._refusal = reasons.IMPLEMENTATION_SPECIFIC_ERROR
            else:
                raise Refused("the store cannot be written", reasons.IMPLEMENTATION_SPECIFIC_ERROR)
        if filters.subscribes:
            self._identifier = filters.properties.integers.get(SUBSCRIPTION_IDENTIFIER, 0)
            if session.v5 and filters.properties.user:
                try:
                    self._options = queue_options.read(filters.properties.user)
                except BadQueueOptions as bad:
                    self._bad_options = str(bad)

    def refused(self) -> bool:
        """Whether nothing was done, since it cannot be kept now."""
        return self._refusal != 0

    def turn(self, until: i64) -> bool:
        """Go on until `router.work` has come to `until`, to which it is charged. True when nothing is left to do.

        Raises:
            MalformedPacket, ProtocolViolation: a filter, or its options, that break the grammar.
        """
        router = self._router
        filters = self._filters
        delivery = router.fanout
        controls = router.limits.control_characters
        while not self._checked:
            if delivery.work >= until:
                return False
            if filters.next():
                filters.check(controls)
                self._count += 1
                delivery.work += CHECK_WORK + (filters.filter_end - filters.filter_at >> LENGTH_WORK)
            else:
                filters.rewind()
                self._checked = True
        if self._bad_options or self._refusal > 0:
            if filters.subscribes and filters.next():
                code = self._refusal or reasons.IMPLEMENTATION_SPECIFIC_ERROR
                self._refused(filters.topic_filter(), code, self._bad_options or STORE, self._count)
            return True
        # Meanwhile nobody else subscribes.
        table = router.table
        self._room = table.room(router.limits, self._session)
        self._roomy = self._count * table.most_cost(len(self._mount)) + table.most_cost(filters.size) <= self._room
        length: i64 = len(self._mount)
        each: i64 = FILTER_WORK + (i64(table.count) >> MANY_FILTERS)
        if self._is_heard():
            each += TOLD_WORK
        while delivery.work < until:
            if not filters.next():
                return True
            delivery.work += each + (length + filters.filter_end - filters.filter_at >> LENGTH_WORK)
            if filters.subscribes:
                self._subscribe()
            else:
                name = self._named(filters.topic_filter())
                found = name is not None and router.unsubscribe(self._session, name)
                # Answered also where there was none [MQTT-3.10.4-5].
                self._codes.append(reasons.SUCCESS if found else reasons.NO_SUBSCRIPTION_EXISTED)
        return False

    def _is_heard(self) -> bool:
        """Whether more is to be done about each filter than to note it (`TOLD_WORK`)."""
        router = self._router
        session = self._session
        return (
            router.access_control is not None
            or router.event_listener is not None
            or router.tap is not None
            or router.table.listener is not None
            or session.journal is not None
            or self._options is not None
            or len(session.rules) > 0
        )

    def _subscribe(self) -> None:
        """Subscribe to the current filter, if that may be; one reason code [MQTT-3.8.4-5] [MQTT-3.8.4-6].

        The code is the QoS that is granted, or why not [MQTT-3.8.4-7]. The subscriptions of a bridge of 3.1.1 have No
        Local and Retain As Published: the bit in its CONNECT asks for them.
        """
        session = self._session
        router = self._router
        request = self._filters.request()
        name = self._named(request.topic_filter)
        if name is None:
            router.counters.denied_subscriptions += 1
            self._refused(request.topic_filter, reasons.NOT_AUTHORIZED, MOUNT)
            self._codes.append(reasons.NOT_AUTHORIZED if session.v5 else reasons.V3_SUBACK_FAILURE)
            return
        request.topic_filter = name
        group = ""
        topic_filter = name
        if not self._filters.plain and name.startswith(SHARE_PREFIX):
            group, topic_filter = parse_shared(name)
        code = self._judge(request, group, topic_filter)
        if code == 0 and not self._roomy and not self._has_room(name, group, topic_filter):
            code = reasons.QUOTA_EXCEEDED
        if code == 0:
            if session.bridge:
                # It cannot ask for them in SUBSCRIBE. In a share group there is no No Local [MQTT-3.8.3-4].
                request.no_local = not group
                request.retain_as_published = True
            options = self._options
            sub_queue: SubscriptionQueueTerms | None = None
            if options is not None or len(session.rules) > 0:
                sub_queue = router.queue_limits.sub_queue_terms(session, topic_filter, options)
                if options is not None:
                    self._tell(queue_options.tell(sub_queue))
            router.subscribe(session, group, topic_filter, request, self._identifier, sub_queue, options)
            # A QoS that the server does not have may be asked for; less is granted [MQTT-3.2.2-10].
            code = min(request.qos, router.limits.max_qos)
        else:
            self._refused(name, code, self._why)
            if not session.v5:
                code = reasons.V3_SUBACK_FAILURE
        self._codes.append(code)

    def _refused(self, topic_filter: str, reason_code: int, why: str, count: int = 1) -> None:
        """Remember that a filter was refused: 3.1.1 tells its client no reason, and many clients show none."""
        session = self._session
        router = self._router
        router.counters.refusals.note(
            session.ledger,
            session.principal,
            SUBSCRIBE,
            topic_filter,
            reason_code,
            router.counters.load.now,
            why,
            count=count,
        )

    def _judge(self, request: SubscriptionRequest, group: str, topic_filter: str) -> int:
        """0, or the reason code with which a well-formed filter is refused; `_why` says what refused it.

        Access control may lower the QoS asked for.
        """
        session = self._session
        router = self._router
        name = request.topic_filter
        limits = router.limits
        if 0 < limits.max_topic_levels <= len(topic_filter) and limits.max_topic_levels < level_count(topic_filter):
            self._why = "limits.max_topic_levels"
            return reasons.TOPIC_FILTER_INVALID
        known = name in session.subscriptions
        if 0 < limits.max_subscriptions_per_client <= len(session.subscriptions) and not known:
            self._why = "limits.max_subscriptions_per_client"
            return reasons.QUOTA_EXCEEDED
        if group and 0 < limits.max_shared_subscriptions_per_client <= session.shared and not known:
            # Each of its groups is a delivery of its own: with 10,000 groups at "#", every PUBLISH of anybody is
            # 10,000.
            self._why = "limits.max_shared_subscriptions_per_client"
            return reasons.QUOTA_EXCEEDED
        access_control = router.access_control
        if access_control is not None:
            router.work += access_control.source().ask_work
            granted = access_control.may_subscribe(session.principal, topic_filter, request.qos)
            if granted < 0:
                router.counters.denied_subscriptions += 1
                self._why = ""
                if session.v5 and not self._part:
                    router.work += access_control.source().ask_work
                    if access_control.denies_part(session.principal, topic_filter):
                        self._part = self._filters.topic_filter()
                return reasons.NOT_AUTHORIZED
            request.qos = min(granted, request.qos)
        return 0

    def _named(self, name: str) -> str | None:
        """What the broker calls a client's filter; None: a mounted client has no such topics."""
        return outer_filter(self._mount, name) if self._mount else name

    def _has_room(self, name: str, group: str, topic_filter: str) -> bool:
        """`filter_room`, in `_why` too; what exactly a filter takes is asked only when the bounds are near."""
        table = self._router.table
        most: i64 = table.most_cost(len(name))
        if most <= self._room:
            self._room -= most
            return True
        now = self._router.counters.load.now
        self._why = filter_room(self._router, self._session, name, group, topic_filter, now)
        return not self._why

    def _tell(self, granted: list[tuple[str, str]]) -> None:
        """Remember what was granted to one filter, as long as it may be told one by one."""
        told = self._told
        self._told_count += 1
        if len(told) < MOST_TOLD:
            told.append(granted)
        if granted != told[0]:
            self._alike = False

    def answer(self) -> Packet:
        """The one SUBACK or UNSUBACK [MQTT-3.10.4-6], with the packet identifier [MQTT-2.2.1-6] [MQTT-3.8.4-2].

        A SUBACK has User Properties where the client asked for a queue of its own, with what was granted, and a Reason
        String where that was not to be understood (0x83), or where a filter was refused for a part of it alone; the
        caller leaves both out where the client does not want them or cannot take so much [MQTT-3.9.2-1] [MQTT-3.9.2-2].
        An UNSUBACK has neither [MQTT-3.11.2-1] [MQTT-3.11.2-2].
        """
        packet_id = self._filters.packet_id
        if self._refusal > 0:
            codes = [self._refusal] * self._count
            return Suback(packet_id, codes) if self._filters.subscribes else Unsuback(packet_id, codes)
        if not self._filters.subscribes:
            return Unsuback(packet_id, self._codes)
        if self._bad_options:
            refused = Suback(packet_id, [reasons.IMPLEMENTATION_SPECIFIC_ERROR] * self._count)
            refused.properties.strings[REASON_STRING] = self._bad_options
            return refused
        suback = Suback(packet_id, self._codes, None if self._session.v5 else NO_PROPERTIES)
        if self._part:
            suback.properties.strings[REASON_STRING] = (
                f'a rule denies a part of the filter "{self._part[:LONGEST_SHOWN]}": subscribe to narrower ones'
            )
        told = self._told
        # Once for all filters; where they differ, for each that was granted, in order.
        if self._alike or self._told_count <= MOST_TOLD:
            for each in told[:1] if self._alike else told:
                suback.properties.user.extend(each)
        return suback


def _lower(session: Session, subscription: Subscription, qos: int, router: Router) -> None:
    """A subscription goes on with a lower QoS: no more is allowed by now."""
    subscription.qos = qos
    router.table.touch(subscription)
    session.keep_subscription(subscription)


class SubscriptionReview:
    """Checks a resumed session's subscriptions: forbidden ones end, others may continue with a lower QoS.

    What waits because of them stays, as far as the client may still be sent it. `ended`: how many it were. Where the
    session was another user's, they get the queues that the rules have for this one.
    """

    def __init__(self, session: Session, access_control: AccessControl | None, router: Router) -> None:
        self._session = session
        self._access_control = access_control
        self._router = router
        self._names = list(session.subscriptions)
        self._at: i64 = 0
        self.ended: i64 = 0

    def turn(self, until: i64) -> bool:
        """Look at as many as one turn allows. True when nothing is left to do."""
        session = self._session
        router = self._router
        names = self._names
        while self._at < len(names):
            if router.work >= until:
                return False
            subscription = session.subscriptions.get(names[self._at])
            self._at += 1
            router.work += LOOK_WORK
            if subscription is None:
                continue
            if session.others_terms:
                router.work += TERMS_WORK
                router.queue_limits.renew_terms(session, subscription)
            if self._access_control is not None:
                self._ask(subscription, self._access_control)
        session.others_terms = False
        return True

    def _ask(self, subscription: Subscription, access_control: AccessControl) -> None:
        """Ask access control about one."""
        session = self._session
        router = self._router
        name = subscription.topic_filter
        router.work += ASK_WORK + access_control.source().ask_work
        granted = access_control.may_subscribe(session.principal, parse_shared(name)[1], subscription.qos)
        if granted < 0:
            router.work += FILTER_WORK + TOLD_WORK
            self.ended += 1
            router.counters.refusals.note(
                session.ledger,
                session.principal,
                SUBSCRIBE,
                name,
                reasons.NOT_AUTHORIZED,
                router.counters.load.now,
            )
            router.unsubscribe(session, name)
        elif granted < i64(subscription.qos):
            router.work += FILTER_WORK + TOLD_WORK
            _lower(session, subscription, granted, router)
