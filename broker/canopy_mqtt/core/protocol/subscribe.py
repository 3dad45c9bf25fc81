"""Takes SUBSCRIBE and UNSUBSCRIBE in turns (sections 3.8 to 3.11).

A packet may contain a quarter of a million filters, so it is processed in bounded pieces (`FilterPacket`), between
which others have their turns; likewise the subscriptions of a resumed session (`SubscriptionReview`). None of the
connection's later packets is processed before. An invalid filter ends the connection before any filter of its packet is
acted on; a valid one that is refused gets its own reason code, and the others of the packet are processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec import encoder, reason_codes
from canopy_mqtt.core.codec.decoder import FilterList
from canopy_mqtt.core.codec.packets import SUBACK, UNSUBACK, SubscriptionRequest
from canopy_mqtt.core.codec.properties import NO_PROPERTIES, REASON_STRING, SUBSCRIPTION_IDENTIFIER, Properties
from canopy_mqtt.core.codec.reason_codes import ProtocolError, Refused
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX, level_count, mount_filter, parse_shared
from canopy_mqtt.core.hooks import UNSTEADY, AccessControl
from canopy_mqtt.core.jobs import (
    ASK_FILTER_WORK,
    CHECK_WORK,
    FILTER_WORK,
    LENGTH_SHIFT,
    LOOK_WORK,
    MANY_FILTERS_SHIFT,
    OBJECT_WORK,
    STREAM_WORK,
    TERMS_WORK,
    TOLD_WORK,
    Budget,
    Job,
)
from canopy_mqtt.core.protocol import control_packets
from canopy_mqtt.core.queues.queue_terms import (
    UNSET,
    BadQueueOptions,
    RequestedTerms,
    SubscriptionTerms,
    granted_delay,
    granted_properties,
    read_options,
)
from canopy_mqtt.core.refusals import MOUNT, STORE, SUBSCRIBE
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.session_table import lacking_filter_room
from canopy_mqtt.core.routing.share_homes import MAX_NAME, group_of
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription

if TYPE_CHECKING:
    from canopy_mqtt.core.protocol.server_protocol import ServerProtocol

MAX_FILTER_SHOWN: Final = 64
"""Characters of a filter in a Reason String."""

MAX_TOLD: Final = 256
"""Filters of one SUBSCRIBE whose queue options are told one by one; beyond, a SUBACK would be many times as large as
its SUBSCRIBE, and it tells none. Where all are alike they are told once, however many there are."""


def resume(protocol: ServerProtocol, now: float) -> None:
    """Go on with a session (`Session.resume`), once it is known which subscriptions its client may still have."""
    session = protocol.session
    assert session is not None
    if _begin_review(protocol, session, True):
        # Nothing that is published meanwhile comes before what was in flight.
        session.window.begin_resend(protocol.send_buffer, session.version)
    else:
        session.resume(now)


def renewed(protocol: ServerProtocol) -> None:
    """Ask again about a client that has authenticated again: if it may subscribe to less by now, it is told to go
    (0x87)."""
    session = protocol.session
    assert session is not None
    _begin_review(protocol, session, False)


def _begin_review(protocol: ServerProtocol, session: Session, resumes: bool) -> bool:
    """Begin to check the subscriptions of a session. Return False if there is nothing to check."""
    access_control = protocol.router.access_control
    if session.internal or (access_control is None and not session.others_terms):
        return False
    protocol.filter_job = SubscriptionReview(session, access_control, protocol.router, resumes)
    return True


def on_filters(protocol: ServerProtocol, now: float) -> None:
    """Go on until the turn is over; answer the packet when all of it was acted on.

    Where nothing has begun, begin with the decoder's current frame: a SUBSCRIBE or UNSUBSCRIBE.
    """
    session = protocol.session
    assert session is not None
    budget = protocol.router.budget
    packet = protocol.filter_job
    if packet is None:
        protocol.filter_job = packet = FilterPacket(FilterList(protocol.decoder), session, protocol.router)
    if not packet.step(budget):
        return
    protocol.filter_job = None
    if isinstance(packet, SubscriptionReview):
        if packet.resumes:
            session.fill_and_flush(now)
        elif packet.ended > 0:
            raise ProtocolError("a subscription is not allowed any more", reason_codes.NOT_AUTHORIZED)
        return
    listener = protocol.router.table.listener
    if not packet.awaited or listener is None:
        packet.answer(protocol)
    else:
        late = control_packets.LateSuback(protocol, session)
        # Made now, it ends the connection of a client that cannot take it, as any other answer does.
        packet.answer(protocol, late)
        if not listener.waits(late, packet.awaited):
            late.confirmed()
    send_buffer = protocol.send_buffer
    if session.streams is None or not packet.subscribes:
        return
    # The first retained messages go at once, if this turn has room for them; the others at the receiver's pace, as its
    # writer fetches them.
    if budget.used + STREAM_WORK <= budget.end:
        before = send_buffer.messages
        again = session.fill(now)
        budget.used += STREAM_WORK + OBJECT_WORK * (send_buffer.messages - before)
        if not again:
            return
    send_buffer.schedule_flush()


class FilterPacket(Job):
    """Processes one SUBSCRIBE or UNSUBSCRIBE: call `step` until all filters are processed, then `answer`.

    To drop it in between leaves the session with the filters that were acted on until then.
    """

    def __init__(self, filters: FilterList, session: Session, router: Router) -> None:
        """Begin with a packet.

        Raises:
            Refused: subscription identifiers are switched off (0xA1); or an UNSUBSCRIBE of 3.1.1 cannot be kept now
                and is to be refused: its UNSUBACK has no code for that.
        """
        self._filters = filters
        self.subscribes = filters.subscribes
        self._session = session
        self._router = router
        # What stands before the client's filters here (`topic_names.mount_filter`).
        self._mount = session.principal.mount
        self._checked = False
        self._count: i64 = 0
        # Bytes that are surely left for filters in this turn; whether that is enough whatever the packet's filters are.
        self._room: i64 = 0
        self._roomy = False
        self._codes: list[int] = []
        self._identifier = 0
        # The queue options, and the delay in milliseconds, that the client requested for these filters.
        self._options: RequestedTerms | None = None
        self._delay = UNSET
        self._told: list[list[tuple[str, str]]] = []
        self._told_count = 0
        self._alike = True
        self._bad_options = ""
        # What refused the last filter that was refused; empty: access control did.
        self._why = ""
        # The first filter that was refused for a part of it alone, as the client of 5.0 wrote it.
        self._part = ""
        # The filters that other nodes of the cluster have to know before the SUBACK; None: the SUBACK does not wait.
        self.awaited: list[str] | None = None
        # Another worker, which has members of a group that lives here, waits as its members do.
        if router.table.confirms and filters.subscribes and (not session.internal or router.table.home_of is not None):
            self.awaited = []
        # The reason code for all filters, while what they change cannot be kept; 0: it can.
        self._refusal = 0
        commits = router.commits
        if commits is not None and session.journal is not None and commits.refuses(router.limits.store_refuses):
            if filters.subscribes:
                self._refusal = reason_codes.QUOTA_EXCEEDED if session.v5 else reason_codes.V3_SUBACK_FAILURE
            elif session.v5:
                self._refusal = reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
            else:
                raise Refused("the store cannot be written", reason_codes.IMPLEMENTATION_SPECIFIC_ERROR)
        if filters.subscribes:
            self._identifier = filters.properties.integers.get(SUBSCRIPTION_IDENTIFIER, 0)
            if session.v5 and filters.properties.user:
                try:
                    options = read_options(filters.properties.user)
                    if options is not None:
                        self._options = options.of_queue()
                        self._delay = options.delay
                except BadQueueOptions as bad:
                    self._bad_options = str(bad)
        # Whether more is to be done about each filter than to note it (`TOLD_WORK`).
        self._heard = (
            router.permissions is not None
            or router.event_listener is not None
            or router.tap is not None
            or router.table.listener is not None
            or session.journal is not None
            or self._options is not None
            or self._delay != UNSET
            or len(session.rules) > 0
        )

    def step(self, budget: Budget) -> bool:
        """Act on filters until the turn is over. Return True when all is done.

        Raises:
            MalformedPacket, ProtocolViolation: a filter, or its options, that break the grammar.
        """
        router = self._router
        filters = self._filters
        controls = router.limits.control_characters
        while not self._checked:
            if budget.used >= budget.mark and budget.spent():
                return False
            filters.next(True, controls)
            self._count += 1
            budget.used += CHECK_WORK + (filters.filter_end - filters.filter_at >> LENGTH_SHIFT)
            if filters.position >= filters.end:
                self._checked = True
                if self._count > 1:
                    filters.position = filters.start
                    filters.next(False)
        # From here on the current filter is the first one that was not acted on.
        if self._bad_options or self._refusal > 0:
            if filters.subscribes:
                code = self._refusal or reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
                why = self._bad_options or STORE
                self._session.refused(SUBSCRIBE, filters.topic_filter(), code, why, count=self._count)
            return True
        table = router.table
        length: i64 = len(self._mount)
        if filters.subscribes:
            # Meanwhile no other client subscribes. The most that all filters of the packet can take is compared once.
            self._room = table.room(router.limits, self._session)
            characters: i64 = self._count * length + filters.end - filters.start
            self._roomy = router.trie.max_cost(self._count, characters) <= self._room
        each: i64 = FILTER_WORK + (i64(table.count) >> MANY_FILTERS_SHIFT)
        if self._heard:
            each += TOLD_WORK
        while True:
            if budget.used >= budget.mark and budget.spent():
                return False
            budget.used += each + (length + filters.filter_end - filters.filter_at >> LENGTH_SHIFT)
            if filters.subscribes:
                self._subscribe()
            else:
                name = self._named(filters.topic_filter())
                found = name is not None and router.unsubscribe(self._session, name)
                # Answered also where there was none [MQTT-3.10.4-5].
                self._codes.append(reason_codes.SUCCESS if found else reason_codes.NO_SUBSCRIPTION_EXISTED)
            if filters.position >= filters.end:
                return True
            filters.next(False)

    def _subscribe(self) -> None:
        """Subscribe to the current filter, if that may be, with one reason code [MQTT-3.8.4-5] [MQTT-3.8.4-6].

        The code is the QoS that is granted, or why not [MQTT-3.8.4-7]. The subscriptions of a bridge of 3.1.1 have No
        Local and Retain As Published: the bit in its CONNECT asks for them.
        """
        session = self._session
        router = self._router
        request = self._filters.request()
        name = self._named(request.topic_filter) if self._mount else request.topic_filter
        if name is None:
            router.counters.denied_subscriptions += 1
            session.refused(SUBSCRIBE, request.topic_filter, reason_codes.NOT_AUTHORIZED, MOUNT)
            self._codes.append(reason_codes.NOT_AUTHORIZED if session.v5 else reason_codes.V3_SUBACK_FAILURE)
            return
        request.topic_filter = name
        group = ""
        topic_filter = name
        if not self._filters.plain and name.startswith(SHARE_PREFIX):
            group, topic_filter = parse_shared(name)
        elif session.upstream:
            group, topic_filter = group_of(session, name)
        code = self._judge(request, group, topic_filter)
        roomy = self._roomy or session.internal
        if code == 0 and not roomy and not self._has_room(name, group, topic_filter):
            code = reason_codes.QUOTA_EXCEEDED
        if code == 0:
            if session.bridge:
                # A client of 3.1.1 cannot ask for them. In a share group there is no No Local [MQTT-3.8.3-4].
                request.no_local = not group
                request.retain_as_published = True
            options = self._options
            message_terms: SubscriptionTerms | None = None
            if options is not None or len(session.rules) > 0:
                message_terms = router.queue_limits.subscription_terms(session, topic_filter, options)
            router.subscribe(session, group, topic_filter, request, self._identifier, message_terms, options)
            delay = self._delay
            if delay != UNSET or session.requested_delays is not None:
                kept = session.subscriptions[name].topic_filter  # the string that its filter has already
                router.peers.request_delay(session, kept, delay if router.limits.subscriber_policies else UNSET)
            if options is not None or delay != UNSET:
                self._tell(self._granted(None if options is None else message_terms))
            if self.awaited is not None:
                made = session.subscriptions[name]
                if made.group is not None and made.group.home is not None:
                    self.awaited.append(made.group.home.told)
                elif made.entry is not None and (group or not session.internal):
                    self.awaited.append(made.entry.topic_filter)
            # A QoS that the server does not have may be asked for; less is granted [MQTT-3.2.2-10].
            code = min(request.qos, router.limits.max_qos)
        else:
            # 3.1.1 tells its client no reason, and many clients show none.
            session.refused(SUBSCRIBE, name, code, self._why)
            if not session.v5:
                code = reason_codes.V3_SUBACK_FAILURE
        self._codes.append(code)

    def _granted(self, terms: SubscriptionTerms | None) -> list[tuple[str, str]]:
        """Return what was granted of the options for the current filter; `terms`: of its queue, if asked for."""
        granted = [] if terms is None else granted_properties(terms)
        send_buffer = self._session.send_buffer
        if self._delay != UNSET and send_buffer is not None and send_buffer.peer is not None:
            granted.append(granted_delay(send_buffer.peer.max_delay()))
        return granted

    def _judge(self, request: SubscriptionRequest, group: str, topic_filter: str) -> int:
        """Return 0, or the reason code with which a well-formed filter is refused; `_why` says what refused it.

        Access control may lower the QoS asked for.
        """
        session = self._session
        router = self._router
        name = request.topic_filter
        limits = router.limits
        if session.internal:
            # Another node: what it asks for is what clients may have there.
            return 0
        if 0 < limits.max_topic_levels <= len(topic_filter) and limits.max_topic_levels < level_count(topic_filter):
            self._why = "limits.max_topic_levels"
            return reason_codes.TOPIC_FILTER_INVALID
        if group and router.shared is not None and not router.shared.holds(session):
            self._why = "the store of all nodes, which has the queues of share groups, could not be reached at CONNECT"
            return reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
        if group and router.table.home_of is not None and len(name.encode()) > MAX_NAME:
            self._why = f"several workers take names of share groups of up to {MAX_NAME} bytes"
            return reason_codes.TOPIC_FILTER_INVALID
        kept = session.journal is not None or (group and router.shared is not None)
        if kept and 0 < limits.max_stored_name < len(name.encode()):
            self._why = f"the store takes topic filters of up to {limits.max_stored_name} bytes"
            return reason_codes.TOPIC_FILTER_INVALID
        subscriptions = session.subscriptions
        if 0 < limits.max_subscriptions_per_client <= len(subscriptions) and name not in subscriptions:
            self._why = "limits.max_subscriptions_per_client"
            return reason_codes.QUOTA_EXCEEDED
        if group and 0 < limits.max_shared_subscriptions_per_client <= session.shared and name not in subscriptions:
            # Each of its groups is a delivery of its own: with 10,000 groups at "#", every PUBLISH is 10,000.
            self._why = "limits.max_shared_subscriptions_per_client"
            return reason_codes.QUOTA_EXCEEDED
        permissions = router.permissions
        if permissions is not None:
            access_control = permissions.asked
            router.budget.used += access_control.source().ask_work
            granted = access_control.may_subscribe(session.principal, topic_filter, request.qos)
            if not permissions.steady:
                # A hook was asked: how long it takes is not known.
                router.budget.look()
            if granted < 0:
                router.counters.denied_subscriptions += 1
                self._why = ""
                if session.v5 and not self._part:
                    router.budget.used += access_control.source().ask_work
                    if access_control.denies_part(session.principal, topic_filter):
                        self._part = self._filters.topic_filter()
                return reason_codes.NOT_AUTHORIZED
            request.qos = min(granted, request.qos)
        return 0

    def _named(self, name: str) -> str | None:
        """Return the broker's name of a client's filter; None: a mounted client has no such topics."""
        return mount_filter(self._mount, name) if self._mount else name

    def _has_room(self, name: str, group: str, topic_filter: str) -> bool:
        """Return whether there is room for a filter, else say why in `_why`; exact bytes are asked near the bounds."""
        most: i64 = self._router.trie.max_cost(1, len(name))
        if most <= self._room:
            self._room -= most
            return True
        now = self._router.counters.totals.now
        self._why = lacking_filter_room(self._router, self._session, name, group, topic_filter, now)
        return not self._why

    def _tell(self, granted: list[tuple[str, str]]) -> None:
        """Remember what was granted to one filter, as long as it may be told one by one."""
        told = self._told
        self._told_count += 1
        if len(told) < MAX_TOLD:
            told.append(granted)
        if granted != told[0]:
            self._alike = False

    def answer(self, protocol: ServerProtocol, late: control_packets.LateSuback | None = None) -> None:
        """Send the one SUBACK or UNSUBACK [MQTT-3.10.4-6], with the packet identifier [MQTT-2.2.1-6] [MQTT-3.8.4-2].
        `late`: it gets the packet instead, to send it later.

        A SUBACK has User Properties where the client asked for a queue of its own, with what was granted, and a Reason
        String where that was not to be understood (0x83), or where a filter was refused for a part of it alone. It goes
        without both where the client takes less [MQTT-3.9.2-1] [MQTT-3.9.2-2], or wants none: its Request Problem
        Information was 0 [MQTT-3.1.2-29]. An UNSUBACK has neither [MQTT-3.11.2-1] [MQTT-3.11.2-2].

        Raises:
            ProtocolError: the client cannot take it (0x95).
        """
        packet_id = self._filters.packet_id
        version = protocol.version
        codes = self._codes
        # [MQTT-3.8.4-1] [MQTT-3.10.4-4]; nothing was done that would have to be kept first, where it was refused.
        kept = self._session.journal is not None and self._refusal == 0
        if self._refusal > 0:
            codes = [self._refusal] * self._count
        elif self._bad_options:
            codes = [reason_codes.IMPLEMENTATION_SPECIFIC_ERROR] * self._count
        kind = SUBACK if self.subscribes else UNSUBACK
        told = self.subscribes and protocol.wants_problems and self._refusal == 0
        told = told and bool(self._bad_options or self._part or self._told)
        properties = self._properties() if told else NO_PROPERTIES
        packet = encoder.filters_ack(kind, packet_id, codes, properties, version)
        if told and len(packet) > protocol.send_buffer.max_packet:
            packet = encoder.filters_ack(kind, packet_id, codes, NO_PROPERTIES, version)
        control_packets.send(protocol.send_buffer, packet, kept, late)

    def _properties(self) -> Properties:
        """Return the properties of the SUBACK: what is told of the filters."""
        properties = Properties()
        told = self._told
        if self._bad_options:
            properties.strings[REASON_STRING] = self._bad_options
            return properties
        if self._part:
            properties.strings[REASON_STRING] = (
                f'a rule denies a part of the filter "{self._part[:MAX_FILTER_SHOWN]}": subscribe to narrower ones'
            )
        # Once for all filters; where they differ, for each that was granted, in order.
        if self._alike or self._told_count <= MAX_TOLD:
            for each in told[:1] if self._alike else told:
                properties.user.extend(each)
        return properties


class SubscriptionReview(Job):
    """Checks a resumed session's subscriptions: forbidden ones end, others may continue with a lower QoS.

    What waits because of them stays, as far as the client may still be sent it. `ended`: how many it were. Where the
    session was another user's, they get the queues that the rules have for this one.
    """

    def __init__(
        self, session: Session, access_control: AccessControl | None, router: Router, resumes: bool = False
    ) -> None:
        """`resumes`: its client has connected again; else it has authenticated again, or the rules have changed."""
        self.resumes = resumes
        self._session = session
        self._access_control = access_control
        self._router = router
        self._names = list(session.subscriptions)
        self._at: i64 = 0
        self.ended: i64 = 0

    def step(self, budget: Budget) -> bool:
        """Check as many subscriptions as one turn allows. Return True when all is done."""
        session = self._session
        router = self._router
        names = self._names
        while self._at < len(names):
            if budget.spent():
                return False
            subscription = session.subscriptions.get(names[self._at])
            self._at += 1
            budget.used += LOOK_WORK
            if subscription is None:
                continue
            if session.others_terms:
                budget.used += TERMS_WORK
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
        router.budget.used += ASK_FILTER_WORK + access_control.source().ask_work
        granted = access_control.may_subscribe(session.principal, parse_shared(name)[1], subscription.qos)
        if access_control.source().epoch == UNSTEADY:
            router.budget.look()
        if granted < 0:
            router.budget.used += FILTER_WORK + TOLD_WORK
            self.ended += 1
            session.refused(SUBSCRIBE, name, reason_codes.NOT_AUTHORIZED)
            router.unsubscribe(session, name)
        elif granted < i64(subscription.qos):
            router.budget.used += FILTER_WORK + TOLD_WORK
            subscription.grant(granted)
            router.table.touch(subscription)
            session.keep_subscription(subscription)
