"""CONNECT and CONNACK: what is requested, granted and refused (sections 3.1 and 3.2).

Owns the negotiation. `check` raises `Refused` for a CONNECT that the settings do not accept, `Terms` computes what both
sides have agreed on, `accept` and `refusal` make the CONNACK. Pure functions over the packet and the limits.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec import reasons
from broker.core.codec.encoder import encode
from broker.core.codec.errors import MalformedPacket, ProtocolViolation, Refused
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import NEVER, V5, V311, Connack, Connect, Disconnect, Packet, Will
from broker.core.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    NO_PROPERTIES,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
    Properties,
)
from broker.core.codec.topic_names import has_control, validate_topic
from broker.core.connection.connect import identity
from broker.core.connection.publish import topic_aliases
from broker.core.hooks import Origin
from broker.core.limits import Limits
from broker.core.persistence.journal import WAITING
from broker.core.principal import Principal
from broker.core.queues.windows.in_flight import LARGEST_ID
from broker.core.routing.bridge_states import announced
from broker.core.routing.giving_way import session_room
from broker.core.routing.loop_detection import LINK, PROGRAM, UPLINKS
from broker.core.routing.router import Router
from broker.core.session.session import Session

RESERVED: Final = (UPLINKS, PROGRAM, WAITING)
"""How client identifiers begin that are the broker's own."""

LONGEST_ID: Final = 64
"""Characters of a broker's id in a CONNECT."""


class Terms:
    """What both sides of a connection agreed on. Sizes in bytes, times in seconds."""

    def __init__(self, connect: Connect, limits: Limits, origin: Origin) -> None:
        # From the client.
        self.max_packet_size = largest_packet(limits, origin)
        self.receive_maximum = limits.receive_maximum
        integers = connect.properties.integers
        v5 = connect.version == V5
        # Towards the client.
        self.window = min(limits.max_inflight, integers.get(RECEIVE_MAXIMUM, 65535))  # [MQTT-3.3.4-9]
        # Absent means 0: a client that takes no topic alias [MQTT-3.1.2-27].
        self.max_aliases = min(limits.topic_alias_outbound, integers.get(TOPIC_ALIAS_MAXIMUM, 0))  # [MQTT-3.1.2-26]
        # Session expiry: 3.1.1 knows only "ends with the connection" [MQTT3-3.1.2-6] and "stays" [MQTT3-3.1.2-4] (5.0
        # section 3.1.2.11.2).
        if v5:
            self.requested_expiry = integers.get(SESSION_EXPIRY_INTERVAL, 0)
        else:
            self.requested_expiry = 0 if connect.clean_start else NEVER
        self.expiry = granted_expiry(self.requested_expiry, limits)
        # Keep alive: the client's own [MQTT-3.2.2-22], unless the server sets one, as it may in 5.0.
        self.keep_alive = connect.keep_alive
        self.server_keep_alive = False
        limit = limits.max_keep_alive
        if v5 and limit > 0 and (connect.keep_alive == 0 or connect.keep_alive > limit):
            self.keep_alive = limit
            self.server_keep_alive = True


def largest_packet(limits: Limits, origin: Origin) -> int:
    """Bytes of the largest packet that is taken from a client: what its listener allows, within what all may."""
    return min(limits.max_packet_size, origin.max_packet_size or limits.max_packet_size)


def first_packet_size(limits: Limits, origin: Origin) -> int:
    """Bytes of the largest packet that is taken from a client before it was accepted."""
    largest = largest_packet(limits, origin)
    return min(largest, limits.max_connect_size) if limits.max_connect_size > 0 else largest


def granted_expiry(requested: int, limits: Limits) -> int:
    """How long a session outlives its connection, in seconds, when a client asks for `requested` (3.2.2.3.2)."""
    longest = limits.max_session_expiry
    return requested if longest == 0 else min(requested, longest)


def change_expiry(packet: Disconnect, session: Session, requested: int, limits: Limits) -> None:
    """A DISCONNECT may change the Session Expiry Interval; the CONNECT has `requested` one.

    Raises:
        ProtocolViolation: it was 0, and cannot be raised from that [MQTT-3.14.2-2] (section 3.14.2.2.2).
    """
    expiry = packet.properties.integers.get(SESSION_EXPIRY_INTERVAL, -1)
    if expiry > 0 and requested == 0:
        raise ProtocolViolation("Session Expiry Interval raised from 0 in DISCONNECT")
    if expiry >= 0:
        session.expiry_interval = granted_expiry(expiry, limits)


def check(connect: Connect, router: Router) -> None:
    """Hold a CONNECT against the settings [MQTT-3.1.4-2]. Raises Refused with the CONNACK's reason code.

    A client identifier that is not accepted is refused with 0x85 [MQTT-3.1.3-8], in 3.1.1 with 2 [MQTT3-3.1.3-9]; a
    version with 0x84, in 3.1.1 with 1 [MQTT-3.1.2-2] [MQTT3-3.1.2-2]; and a keep alive of 3.1.1 that is longer than the
    settings allow with 5.
    """
    limits = router.limits
    client_id = connect.client_id
    if connect.version not in limits.versions:
        raise Refused("this version of MQTT is not accepted here", reasons.UNSUPPORTED_PROTOCOL_VERSION)
    if not client_id:
        # A client without an identifier gets one, but in 3.1.1 only for a clean session [MQTT3-3.1.3-8], in 3.1 never.
        allowed = connect.version == V5 or (connect.version == V311 and connect.clean_start)
        if not allowed or not limits.allow_empty_client_id:
            raise Refused("a client identifier is needed", reasons.CLIENT_IDENTIFIER_NOT_VALID)
    elif 0 < limits.max_client_id_length < len(client_id.encode()):
        raise Refused(
            f"the client identifier is longer than {limits.max_client_id_length} bytes",
            reasons.CLIENT_IDENTIFIER_NOT_VALID,
        )
    elif client_id.startswith(RESERVED):
        kind = client_id[: client_id.index("/") + 1]
        raise Refused(f"client identifiers that begin with {kind} are reserved", reasons.CLIENT_IDENTIFIER_NOT_VALID)
    user_name = connect.user_name
    if user_name is None and not limits.allow_anonymous and not _asks_later(connect, router):
        # A health check has to hear that nobody could come in, rather than that it may not.
        check_room(router)
        raise Refused("a user name is needed", reasons.NOT_AUTHORIZED)
    if not limits.control_characters:
        if has_control(client_id):
            raise Refused("a client identifier with a control character", reasons.CLIENT_IDENTIFIER_NOT_VALID)
        if user_name is not None and has_control(user_name):
            raise Refused("a user name with a control character", reasons.BAD_USER_NAME_OR_PASSWORD)
    limit = limits.max_keep_alive
    if connect.version != V5 and limit > 0 and (connect.keep_alive == 0 or connect.keep_alive > limit):
        # Only 5.0 can be told what to keep to. Taken in silently, it would be disconnected each time it is idle.
        raise Refused(f"a keep alive of 1 to {limit} seconds is needed", reasons.NOT_AUTHORIZED)
    will = connect.will
    if will is not None:
        validate_topic(will.topic)
        if not limits.control_characters and has_control(will.topic):
            raise MalformedPacket("a will topic with a control character")
        check_levels(will, limits)
        if 0 < limits.max_payload_size < len(will.payload):
            raise Refused(f"a will of more than {limits.max_payload_size} bytes", reasons.QUOTA_EXCEEDED)
        if will.qos > limits.max_qos:
            raise Refused(f"a will of QoS {will.qos} is not supported", reasons.QOS_NOT_SUPPORTED)  # [MQTT-3.2.2-12]
        if will.retain and not limits.retain_available:
            raise Refused("a retained will is not supported", reasons.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-13]


def check_levels(will: Will, limits: Limits) -> None:
    """Hold the topic of a will against the limit of levels. Raises Refused."""
    if 0 < limits.max_topic_levels <= will.topic.count("/"):
        raise Refused("the will's topic has too many levels", reasons.TOPIC_NAME_INVALID)


def _asks_later(connect: Connect, router: Router) -> bool:
    """Whether somebody will still say who the client is: then its CONNECT need not."""
    return router.access_control is not None or AUTHENTICATION_METHOD in connect.properties.strings


def check_principal(connect: Connect, principal: Principal, router: Router) -> None:
    """Hold what a CONNECT asks for against who the client has turned out to be. Raises Refused."""
    limits = router.limits
    if principal.user_name is None and not limits.allow_anonymous:
        check_room(router)
        raise Refused("a user name is needed", reasons.NOT_AUTHORIZED)
    will = connect.will
    if will is None or announced(will):
        return  # of those below $SYS only such a one is left (`opening.leave_will_out`)
    if identity.is_reserved(
        will.topic.encode(), identity.is_link(principal.client_id, principal.user_name, limits), router
    ):
        raise Refused("a will to a topic that is the broker's own", reasons.NOT_AUTHORIZED)


def check_load(router: Router, now: float) -> None:
    """Refuse whoever comes while the event loop lags, before anything is done for it. Raises Refused."""
    limit = router.limits.max_loop_lag
    if limit > 0.0 and router.counters.load.lag_at(now) > limit:
        raise Refused("the broker is overloaded", reasons.SERVER_BUSY)


def check_session(connect: Connect, client_id: str, principal: Principal, router: Router, now: float) -> None:
    """Hold a client's session, or the one that it will have, against the limits of sessions. Raises Refused.

    Being full is an error that passes; it ends the connection on which the CONNECT came [MQTT3-4.8.0-2], and no other.
    """
    setting = session_room(router, client_id, principal, connect.will, now)
    if setting:
        text = f"the broker has no room for another session, or for this will ({setting})"
        raise Refused(text, reasons.QUOTA_EXCEEDED)


def check_room(router: Router) -> None:
    """Hold a client that is not connected yet against the limit of connections. Raises Refused."""
    limits = router.limits
    if 0 < limits.max_connections <= len(router.peers.outboxes):
        raise Refused("the broker has no room for another connection", reasons.SERVER_BUSY)


def link_peer(connect: Connect) -> str:
    """The id of the broker that the client is the link of; empty for everybody else, and where it is no id."""
    if connect.version == V5:
        for name, value in connect.properties.user:
            if name == LINK and 0 < len(value) <= LONGEST_ID:
                return value
    return ""


def accept(connect: Connect, terms: Terms, assigned: str, router: Router) -> Connack:
    """The CONNACK of an accepted connection; it names what differs from the protocol's defaults (section 3.2.2.3).

    Session Present is for the caller to set. No Response Information, asked for or not [MQTT-3.1.2-28], and one User
    Property at most: a link is told who is here. The caller leaves it out where it makes the CONNACK too large
    [MQTT-3.2.2-20].
    """
    if connect.version != V5:
        return Connack(properties=NO_PROPERTIES)
    connack = Connack()
    limits = router.limits
    integers = connack.properties.integers
    if terms.expiry != terms.requested_expiry:
        integers[SESSION_EXPIRY_INTERVAL] = terms.expiry
    if terms.receive_maximum < LARGEST_ID:
        integers[RECEIVE_MAXIMUM] = terms.receive_maximum
    if limits.max_qos < 2:
        integers[MAXIMUM_QOS] = limits.max_qos  # [MQTT-3.2.2-9]
    if not limits.retain_available:
        integers[RETAIN_AVAILABLE] = 0
    if terms.max_packet_size < LARGEST_PACKET:
        integers[MAXIMUM_PACKET_SIZE] = terms.max_packet_size
    if assigned:
        connack.properties.strings[ASSIGNED_CLIENT_IDENTIFIER] = assigned  # [MQTT-3.2.2-16]
    if limits.topic_alias_maximum > 0 and topic_aliases.plenty(router):
        integers[TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
    if terms.server_keep_alive:
        integers[SERVER_KEEP_ALIVE] = terms.keep_alive  # [MQTT-3.2.2-21]
    if router.broker_id and link_peer(connect):
        connack.properties.user.append((LINK, router.broker_id))
    return connack


def with_reason(packet: Packet, properties: Properties, text: str, max_packet: int) -> bytes:
    """A packet of 5.0 with a Reason String, if there is one and the client takes so much; else without.

    `properties` are the packet's own.
    """
    plain = encode(packet, V5)
    if not text:
        return plain
    properties.strings[REASON_STRING] = text
    told = encode(packet, V5)
    return told if len(told) <= max_packet else plain


def refusal(version: int, reason_code: int, text: str, max_packet: int) -> bytes:
    """The CONNACK with which a CONNECT is refused, or nothing where the protocol has none.

    `version` 0: no CONNECT was understood. Then only an unsupported version is answered, in the old form that every
    client knows [MQTT3-3.1.2-2]; anything else is closed without a word, since the peer may not speak MQTT at all.
    """
    if version == V5:
        connack = Connack(False, reason_code)
        # The Reason String is left out where it would exceed what the client takes [MQTT-3.2.2-19], and a client that
        # takes less than a CONNACK gets none.
        made = with_reason(connack, connack.properties, text, max_packet)
        return made if len(made) <= max_packet else b""
    if version == 0 and reason_code != reasons.UNSUPPORTED_PROTOCOL_VERSION:
        return b""
    code = reasons.v3_connack(reason_code)
    if code < 0:
        return b""  # [MQTT3-3.2.2-6]
    return encode(Connack(False, code), V311)
