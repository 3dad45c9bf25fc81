"""SUBSCRIBE and UNSUBSCRIBE: what each filter gets for an answer (sections 3.8 to 3.11).

Owns the rules for a filter in a packet, and the order in which a packet is dealt with. Pure functions over packet,
session and router; the channel queues what they answer.

Promises: a filter that breaks the grammar ends the connection before any filter of its packet was subscribed to; one
that is well-formed and not wanted here gets its own reason code, and the others of the packet are served.
"""

from __future__ import annotations

from broker.core.codec import reasons
from broker.core.codec.errors import ProtocolViolation, Refused
from broker.core.codec.packets import Suback, Subscribe, SubscriptionRequest, Unsuback, Unsubscribe
from broker.core.codec.properties import REASON_STRING, SUBSCRIPTION_IDENTIFIER
from broker.core.codec.topic_names import SHARE_PREFIX, has_wildcard, level_count, parse_shared, validate_filter
from broker.core.queues import queue_options
from broker.core.queues.queue_options import BadQueueOptions
from broker.core.queues.queue_policy import QueueOptions, SubscriptionQueueTerms
from broker.core.routing.router import Router
from broker.core.session.session import Session


def subscribe(packet: Subscribe, session: Session, router: Router) -> Suback:
    """Subscribe to what may be subscribed to; one reason code for each filter, in order [MQTT-3.8.4-5] [MQTT-3.8.4-6].

    The code is the QoS that is granted, or why not [MQTT-3.8.4-7]. The answer repeats the packet identifier
    [MQTT-2.2.1-6] [MQTT-3.8.4-2]. It has User Properties where the client asked for a queue of its own, with what was
    granted, and a Reason String where that was not to be understood (0x83); the caller leaves both out where the client
    does not want them or cannot take so much [MQTT-3.9.2-1] [MQTT-3.9.2-2].

    The subscriptions of a bridge of 3.1.1 have No Local and Retain As Published: the bit in its CONNECT asks for them.

    Raises:
        Refused: a filter that breaks the grammar (0x8F), subscription identifiers that are switched off (0xA1).
        ProtocolViolation: No Local on a shared subscription.
    """
    limits = router.limits
    identifier = packet.properties.integers.get(SUBSCRIPTION_IDENTIFIER, 0)
    if identifier > 0 and not limits.subscription_identifiers:
        raise Refused("subscription identifiers are not supported", reasons.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED)
    # The shared ones among them, by their place; most packets have none.
    shared: dict[int, tuple[str, str]] = {}
    requests = packet.requests
    for at, request in enumerate(requests):
        if request.levels > 0:
            continue
        name = request.topic_filter
        if name.startswith(SHARE_PREFIX):
            parts = parse_shared(name)
            if request.no_local:
                raise ProtocolViolation("No Local on a shared subscription")  # [MQTT-3.8.3-4]
            shared[at] = parts
            name = parts[1]
        validate_filter(name)
    options: QueueOptions | None = None
    if session.v5 and packet.properties.user:
        try:
            options = queue_options.read(packet.properties.user)
        except BadQueueOptions as bad:
            refused = Suback(packet.packet_id, [reasons.IMPLEMENTATION_SPECIFIC_ERROR] * len(requests))
            refused.properties.strings[REASON_STRING] = str(bad)
            return refused
    codes: list[int] = []
    told: list[list[tuple[str, str]]] = []
    for at, request in enumerate(requests):
        group = ""
        topic_filter = request.topic_filter
        if shared and at in shared:
            group, topic_filter = shared[at]
        code = _judge(session, router, request, group, topic_filter)
        if code == 0:
            if session.bridge:
                # It cannot ask for them in SUBSCRIBE. In a share group there is no No Local [MQTT-3.8.3-4].
                request.no_local = not group
                request.retain_as_published = True
            sub_queue: SubscriptionQueueTerms | None = None
            if options is not None or session.rules:
                sub_queue = router.sub_queue_terms(session, topic_filter, options)
                if options is not None:
                    told.append(queue_options.tell(sub_queue))
            router.subscribe(session, group, topic_filter, request, identifier, sub_queue, options)
            # A QoS that the server does not have may be asked for; less is granted [MQTT-3.2.2-10].
            code = min(request.qos, limits.max_qos)
        elif not session.v5:
            code = reasons.V3_SUBACK_FAILURE
        codes.append(code)
    answer = Suback(packet.packet_id, codes)
    if told:
        # Once for all filters; where they differ, for each that was granted, in order.
        alike = told.count(told[0]) == len(told)
        for each in told[:1] if alike else told:
            answer.properties.user.extend(each)
    return answer


def _judge(session: Session, router: Router, request: SubscriptionRequest, group: str, topic_filter: str) -> int:
    """0, or the reason code with which a well-formed filter is refused."""
    limits = router.limits
    name = request.topic_filter
    levels = request.levels if request.levels > 0 else level_count(topic_filter)
    if group and not limits.shared_subscriptions:
        return reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if not limits.wildcard_subscriptions and has_wildcard(topic_filter):  # [MQTT3-3.8.3-2]
        return reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    if 0 < limits.max_topic_levels < levels:
        return reasons.TOPIC_FILTER_INVALID
    if 0 < limits.max_subscriptions_per_client <= len(session.subscriptions) and name not in session.subscriptions:
        return reasons.QUOTA_EXCEEDED
    if group and 0 < limits.max_shared_subscriptions_per_client <= session.shared and name not in session.subscriptions:
        # Each of its groups is a delivery of its own: with 10,000 groups at "#", every PUBLISH of anybody is 10,000.
        return reasons.QUOTA_EXCEEDED
    access_control = router.access_control
    if access_control is not None and not access_control.may_subscribe(
        session.client_id, session.user_name, topic_filter
    ):
        return reasons.NOT_AUTHORIZED
    return 0


def ask_again(session: Session, router: Router) -> None:
    """Take back the subscriptions of a session that goes on which its client may not make any more.

    What waits because of them stays: it came while they were allowed.
    """
    access_control = router.access_control
    if access_control is None:
        return
    router.work += len(session.subscriptions)
    for name in list(session.subscriptions):
        if not access_control.may_subscribe(session.client_id, session.user_name, parse_shared(name)[1]):
            router.unsubscribe(session, name)


def unsubscribe(packet: Unsubscribe, session: Session, router: Router) -> Unsuback:
    """Take subscriptions back; answered for each filter, also where there was none [MQTT-3.10.4-5].

    One answer for all [MQTT-3.10.4-6], with the request's packet identifier [MQTT-2.2.1-6], and neither a Reason String
    nor a User Property that could make it too large [MQTT-3.11.2-1] [MQTT-3.11.2-2].

    Raises:
        Refused: a filter that breaks the grammar (0x8F).
    """
    for name in packet.topic_filters:
        validate_filter(parse_shared(name)[1])
    codes: list[int] = []
    for name in packet.topic_filters:
        found = router.unsubscribe(session, name)
        codes.append(reasons.SUCCESS if found else reasons.NO_SUBSCRIPTION_EXISTED)
    return Unsuback(packet.packet_id, codes)
