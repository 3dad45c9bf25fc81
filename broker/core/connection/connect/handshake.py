"""CONNECT and CONNACK: what is requested, granted and refused (sections 3.1 and 3.2).

Owns what is known of a client until its session is open (`PendingConnect`), with the wait for access control, and the
negotiation: `check` raises `Refused` for a CONNECT that is not accepted, `Terms` computes what both sides have agreed
on, `accept` and `refusal` make the CONNACK. `ServerProtocol` drops it when the client is accepted or its connection has
ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.codec import reasons
from broker.core.codec.encoder import encode
from broker.core.codec.errors import MalformedPacket, ProtocolViolation, Refused
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import NEVER, V5, V31, V311, Connack, Connect, Disconnect, Packet, Will
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
from broker.core.codec.topic_names import has_control, is_system, validate_topic
from broker.core.connection import phases
from broker.core.connection.connect import identity
from broker.core.connection.connect.authenticating import Authentication
from broker.core.connection.publish.publishing import plenty
from broker.core.hooks import LATER, Origin, Ticket
from broker.core.limits import Limits
from broker.core.persistence.journal import WAITING
from broker.core.principal import Principal
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.live.peer_names import PeerNames
from broker.core.queues.windows.in_flight import LARGEST_ID
from broker.core.refusals import ACCESS_CONTROL, MOUNT, WILL
from broker.core.routing.bridge_states import ANOTHER, ONLY_BRIDGES, announced
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


def _check_settings(connect: Connect, router: Router) -> None:
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
        return  # of those below $SYS only such a one is left (`leave_will_out`)
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
    if limits.topic_alias_maximum > 0 and plenty(router):
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


SHOWN: Final = 8
"""Bytes that `guess` looks at."""

_HTTP: Final = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"TRACE ",
    b"CONNECT ",
    b"PRI ",
)


def check_first_bytes(data: bytes) -> None:
    """Hold the first bytes of a connection against a CONNECT at once.

    What looks like a long packet of another kind would be waited for.

    Raises:
        ProtocolViolation: they begin no CONNECT [MQTT-3.1.0-1].
    """
    action = phases.action(phases.CONNECTING, data[0] >> 4)
    if action >= phases.NOT_CONNECT:
        raise ProtocolViolation(phases.ERRORS[action])


def guess(data: bytes) -> str:
    """What the bytes at the beginning of a connection look like; empty where nobody can tell."""
    first = data[:SHOWN]
    if first[:2] == b"\x16\x03":
        return "looks like TLS; this listener is plain MQTT"
    for method in _HTTP:
        if len(first) >= 3 and first.startswith(method[:SHOWN][: len(first)]):
            return "looks like HTTP or WebSocket; this listener is plain MQTT"
    if first.startswith(b"PROXY ") or first == b"\r\n\r\n\x00\r\nQ":
        return "looks like the PROXY protocol; this listener does not take it"
    if first.startswith(b"SSH-"):
        return "looks like SSH; this listener is plain MQTT"
    return ""


_CROWDED: Final[dict[int, str]] = {
    reasons.QUOTA_EXCEEDED: "too many connections from this address",
    reasons.CONNECTION_RATE_EXCEEDED: "too many new connections",
}
"""What a client is told whose connection is one too many."""

LONGEST_SHOWN: Final = 128
"""Characters of a will's topic in a log line."""

CONNECT_WORK: Final = 1_024
"""What a client that is let in counts for in a turn, as deliveries: fifty microseconds."""


def check(connect: Connect, refused: int, host: str, router: Router, now: float) -> None:
    """Hold a CONNECT against load, admission and settings [MQTT-3.1.4-2]. Raises Refused.

    `refused` is the reason code of a connection that is one too many of its address, or 0. A client of such an address
    may come in place of its own old connection: that may well be dead, and would keep it out until somebody notices.
    """
    check_load(router, now)
    check_ban(connect.client_id, connect.user_name, host, router, now)
    if refused != 0:
        earlier = router.sessions.get(connect.client_id)
        outbox = None if earlier is None else earlier.outbox
        peer = None if outbox is None else outbox.peer
        if refused != reasons.QUOTA_EXCEEDED or peer is None or not peer.comes_from(host):
            raise Refused(_CROWDED.get(refused, ""), refused)
    _check_settings(connect, router)


def check_ban(client_id: str, user: str | None, host: str, router: Router, now: float) -> None:
    """Keep out whom an operator has banned. Raises Refused."""
    bans = router.bans
    if len(bans) > 0 and bans.bars(client_id, user, host, now) is not None:
        bans.refused += 1
        raise Refused("banned by an operator", reasons.BANNED)


def leave_will_out(connect: Connect, principal: Principal, router: Router) -> str:
    """Take a will below `$SYS` that the client may not have out of its CONNECT. Why, for the log; "": there is none.

    The client is let in all the same, as mosquitto and EMQX let it in: mosquitto's bridges have such a will by default,
    and would try to connect for ever.
    """
    will = connect.will
    if will is None or not is_system(will.topic.encode()):
        return ""
    state = announced(will)
    access_control = router.access_control
    why = ""
    if not state:
        why = ONLY_BRIDGES
    elif principal.mount:
        why = MOUNT
    elif router.bridge_states.is_another(state, principal.client_id):
        why = ANOTHER
    elif access_control is not None and not access_control.may_publish(principal, will.topic, will.qos, will.retain):
        rule = access_control.said(principal, "publish", will.topic, will.qos, will.retain)[1] or ACCESS_CONTROL
        why = f"{rule}; allow it to publish there, and operators see the state of this bridge"
    if why:
        router.counters.denied_publishes += 1
        connect.will = None
    return why


def check_client(connect: Connect, principal: Principal, router: Router) -> str:
    """Hold a CONNECT against who its client has turned out to be; its will gets the topic that it has here.

    Why access control refuses its will, for the log; "": it does not.

    Raises:
        Refused: its will or its user do not allow it.
    """
    mount = principal.mount
    if mount and connect.will is not None:
        connect.will = identity.mounted_will(connect.will, mount)
        check_levels(connect.will, router.limits)
    check_principal(connect, principal, router)
    access_control = router.access_control
    will = connect.will
    if (
        will is not None
        and access_control is not None
        and not access_control.may_publish(principal, will.topic, will.qos, will.retain)
    ):
        router.counters.denied_publishes += 1
        rule = access_control.said(principal, "publish", will.topic, will.qos, will.retain)[1] or ACCESS_CONTROL
        return f'its will to "{will.topic[:LONGEST_SHOWN]}" is refused by {rule}'
    return ""


class PendingConnect:
    """`client_id`: the client's own, or an assigned one (`connack`); `present`: its client had a session."""

    def __init__(self, connect: Connect, origin: Origin, router: Router) -> None:
        self.connect = connect
        self.client_id = connect.client_id
        self.present = False
        self._principal: Principal | None = None
        self._origin = origin
        self._router = router
        self._ticket: Ticket | None = None
        self._asking = False  # access control, which may answer by its ticket before it returns
        self._early_answer = LATER
        self._refusal = ""  # why its will is refused
        self._will: Will | None = None  # that its CONNECT had
        self._left_out = ""  # why that will is left out
        self._told: Callable[[int], None] | None = None  # who hears of a late answer

    def ask(self, authentication: Authentication | None, told: Callable[[int], None] | None) -> int:
        """Ask access control, if there is one: a reason code, or LATER, and `told` hears of it.

        Whoever decides about clients is asked last, also when an authentication method was satisfied.
        """
        access_control = self._router.access_control
        if access_control is not None or authentication is not None:
            proved = None if authentication is None else authentication.principal
            self._ticket = Ticket(self._decided, proved)
        if access_control is None or self._ticket is None:
            return reasons.SUCCESS
        self._told = told
        self._asking = True
        try:
            answer = access_control.admit(self.connect, self._origin, self._ticket)
        finally:
            self._asking = False
        return self._early_answer if answer == LATER else answer

    def _decided(self, reason_code: int) -> None:
        """`Ticket.answer` was called."""
        if self._asking:
            self._early_answer = reason_code
        elif self._told is not None:
            self._told(reason_code)

    @property
    def detail(self) -> str:
        """Why the client was refused, for the log."""
        return self._refusal if self._ticket is None or self._refusal else self._ticket.detail

    def connack(self, terms: Terms, authentication: Authentication | None, max_packet: int) -> Connack | None:
        """The CONNACK with which it may come in; None when the client can take none: then nothing has been done yet."""
        connect = self.connect
        # Without an identifier, from here on as if the client had brought it; the CONNACK tells [MQTT-3.1.3-7].
        assigned = "" if connect.client_id else self._router.new_client_id()
        self.client_id = connect.client_id or assigned
        connack = accept(connect, terms, assigned, self._router)
        if authentication is not None:  # else no method is named [MQTT-4.12.0-6]
            authentication.tell(connack)
        if max_packet >= LARGEST_PACKET or len(encode(connack, connect.version)) <= max_packet:
            return connack
        connack.properties.user.clear()  # [MQTT-3.2.2-20]
        return connack if len(encode(connack, connect.version)) <= max_packet else None  # [MQTT-3.1.2-24]

    def identify(self, now: float) -> None:
        """Find out who the client is.

        Raises:
            Refused: nobody who may come in.
        """
        connect = self.connect
        router = self._router
        principal = identity.principal_of(connect, self._ticket, self._origin, self.client_id)
        if principal.user_name != connect.user_name:
            # Who the client proved to be may be another one than it says: by a token, a certificate or a service.
            name = principal.user_name
            if name is not None and not router.limits.control_characters and has_control(name):
                raise Refused(
                    "authenticated as a user name with a control character", reasons.BAD_USER_NAME_OR_PASSWORD
                )
            check_ban(self.client_id, principal.user_name, self._origin.host, router, now)
        self._principal = principal
        self._will = connect.will
        self._left_out = leave_will_out(connect, principal, router)
        self._refusal = check_client(connect, principal, router)
        if self._refusal:
            raise Refused("not authorized to publish to the will's topic", reasons.NOT_AUTHORIZED)  # section 5.4.2

    @property
    def user_name(self) -> str | None:
        """Whom the CONNECT names; then whom the client proved to be."""
        return self.connect.user_name if self._principal is None else self._principal.user_name

    def open_session(self, terms: Terms, connack: Connack, outbox: Outbox, now: float) -> Session:
        """Take over an earlier connection [MQTT-3.1.4-3], and open or resume the session.

        A session of another mount ends, as by a clean start: its filters and messages have no names for this client.
        It is told by Session Present, and not kept out: a setting of the listener may have changed.

        Its CONNACK does not wait for a commit. It promises nothing that is kept: after a kill before the commit, the
        client finds the session gone, or the one before it back, and is told so by Session Present (section
        3.2.2.1.1). What it then does with the session waits for a commit, and that of the session comes with it.

        Raises:
            Refused: its user or the room that is left do not allow it.
        """
        connect, client_id, router = self.connect, self.client_id, self._router
        principal = self._principal
        assert principal is not None
        mount = principal.mount
        earlier = router.sessions.get(client_id)
        identity.check_owner(earlier, principal.user_name, router.limits, now)
        check_session(connect, client_id, principal, router, now)
        if earlier is None or earlier.outbox is None:
            check_room(router)
        else:
            peer = earlier.outbox.peer
            assert peer is not None
            peer.take_over(now)
            router.peers.drain(router, now)
        router.work += CONNECT_WORK
        another = earlier is not None and earlier.user_name != principal.user_name
        clean = connect.clean_start or (earlier is not None and earlier.principal.mount != mount)
        if earlier is not None and not clean:
            # What has fallen due is still done as the client that it was.
            router.look_at(earlier, now)
            # Before it has the outbox: nothing is sent there that this client may not have.
            identity.become(earlier, principal, router)
        outbox.v5 = connect.version == 5
        if terms.max_aliases > 0 or mount:
            outbox.name_topics(PeerNames(terms.max_aliases, mount.encode()))
        session, self.present = router.connect(
            client_id, clean, outbox, connect.version, terms.window, outbox.names is None, now, principal
        )
        if self.present:
            identity.become(session, principal, router)
        session.link_peer = link_peer(connect)
        session.link = identity.is_link(client_id, principal.user_name, router.limits)
        router.queue_limits.apply(session)
        if another and session.subscriptions and router.limits.rules:
            session.others_terms = True
        # A broker of our own kind says 0x10 by itself where it reaches nobody.
        session.answers = session.link and session.link_peer != ""
        session.bridge = connect.bridge
        session.expiry_interval = terms.expiry
        will = session.will = connect.will  # [MQTT-3.1.2-7]
        session.bridge_state = announced(will)
        if self.present or will is not None:
            # Of a new one the table knows all else.
            router.session_table.count(session)
        if router.journal is not None:
            session.keep(router.journal)
        left_out = self._will
        if self._left_out and left_out is not None:
            router.counters.refusals.note(
                session.ledger,
                principal,
                WILL,
                left_out.topic,
                reasons.NOT_AUTHORIZED,
                now,
                self._left_out,
                left_out.qos,
                left_out.retain,
            )
        # Whether there was a session to go on with [MQTT-3.2.2-3], so never after a clean start [MQTT-3.2.2-2]
        # [MQTT3-3.2.2-1]. In 3.1 the byte is reserved.
        version = connect.version
        connack.session_present = self.present and version != V31
        tap = router.tap
        if tap is not None:
            address, clean_start = self._origin.address, connect.clean_start
            tap.connected(client_id, address, principal.user_name, version, clean_start, connack.session_present)
        return session

    def over(self) -> None:
        """The client is in, or its connection has ended: an answer of access control means nothing any more."""
        self._ticket = self._told = None
