"""Takes CONNECT and answers CONNACK: what a client asks for, and what is granted and refused (sections 3.1 and 3.2).

`on_connect` checks a CONNECT against load, bans and settings and asks access control, which may answer later;
`admit` negotiates; where brokers share sessions (`core.shared`), its session is claimed, which may also take a while;
`_open` opens the session and queues the CONNACK. `Refused` with the CONNACK's reason code leaves each step at which a
client is turned away. What is known of a client until then is in its `ServerProtocol`, and goes when it is accepted or
its connection has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.causes import REFUSED, TAKEN_OVER
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import NEVER, V5, V31, V311, Auth, Connack, Connect, Disconnect, Will
from canopy_mqtt.core.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    NO_PROPERTIES,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
)
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolViolation, Refused
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX, has_control, is_system, validate_topic
from canopy_mqtt.core.hooks import LATER, Origin, Ticket
from canopy_mqtt.core.jobs import CONNECT_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence import restore
from canopy_mqtt.core.persistence.journal import WAITING
from canopy_mqtt.core.principal import Principal, network
from canopy_mqtt.core.protocol import acknowledge, control_packets, identity, phases, publish, subscribe
from canopy_mqtt.core.protocol.identity import Authentication
from canopy_mqtt.core.protocol.phases import ADMITTING, AUTHENTICATING, CLOSED, CONNECTED
from canopy_mqtt.core.queues.in_flight import MAX_ID
from canopy_mqtt.core.queues.outgoing_topics import OutgoingTopics
from canopy_mqtt.core.queues.queue_terms import UNSET, BadQueueOptions, granted_delay, read_delay
from canopy_mqtt.core.queues.requests import AskedLink
from canopy_mqtt.core.refusals import ACCESS_CONTROL, MOUNT, WILL
from canopy_mqtt.core.routing.bridge_states import ANOTHER, ONLY_BRIDGES, announced, is_another
from canopy_mqtt.core.routing.links import LINK, PROGRAM, UPLINKS
from canopy_mqtt.core.routing.nodes import NODES, NodeSession
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.session_table import lacking_session_room
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.shared import Attempt, SharedSessions

if TYPE_CHECKING:
    from canopy_mqtt.core.protocol.server_protocol import ServerProtocol

RESERVED: Final = (UPLINKS, PROGRAM, WAITING, SHARE_PREFIX, NODES)
"""Client identifiers that begin so are the broker's own."""

MAX_BROKER_ID: Final = 64
"""Characters of a broker's id in a CONNECT."""

MAX_TOPIC_SHOWN: Final = 128
"""Characters of a will's topic in a log line."""


# -- the packets -------------------------------------------------------------------------------------------------------


def on_connect(protocol: ServerProtocol, connect: Connect, now: float) -> None:
    """Take the CONNECT: check it, begin the exchange of its authentication method, and ask access control."""
    router = protocol.router
    router.counters.connects += 1
    protocol.version = connect.version
    protocol.v5 = connect.version == V5
    protocol.client_id = connect.client_id
    if not connect.user_name:
        # An empty one is none: many clients send it, with an empty password, for a field that was left empty.
        connect.user_name = None
        connect.password = connect.password or None
    protocol.user_name = connect.user_name
    protocol.clean_start = connect.clean_start
    protocol.connect = connect
    integers = connect.properties.integers
    protocol.wants_problems = integers.get(REQUEST_PROBLEM_INFORMATION, 1) != 0
    protocol.send_buffer.max_packet = integers.get(MAXIMUM_PACKET_SIZE, MAX_PACKET)
    door = protocol.origin.door
    if door is not None:
        # Another node of the cluster: neither access control nor a limit is about it.
        protocol.node = door.check(connect, protocol.origin)
        protocol.decoder.undecided()
        admit(protocol, reason_codes.SUCCESS, now)
        return
    _check(connect, protocol.refused, protocol.origin.host, router, now)
    protocol.decoder.undecided()
    authentication = identity.begin_exchange(connect, protocol.origin, router)
    if authentication is None:
        _ask(protocol, connect, None, now)
        return
    protocol.authentication = authentication
    protocol.state = phases.follow(protocol.state, AUTHENTICATING)
    authentication.start()
    _exchanged(protocol, authentication, now)


def on_auth(protocol: ServerProtocol, packet: Auth, now: float) -> None:
    """Take an AUTH of the exchange that the CONNECT began, or of a client that authenticates again.

    Raises:
        ProtocolViolation: the CONNECT named no method [MQTT-4.12.0-7], or another; or it may not come now.
    """
    authentication = protocol.authentication
    if authentication is None:
        raise ProtocolViolation("AUTH without an authentication method in CONNECT")
    authentication.proceed(packet, protocol.state == CONNECTED)
    _exchanged(protocol, authentication, now)


def _exchanged(protocol: ServerProtocol, authentication: Authentication, now: float) -> None:
    """Act on the result of an exchange: send its AUTH, or ask access control; or it ends the connection."""
    answer = authentication.answer(protocol.state == CONNECTED)
    session = protocol.session
    if answer is None:
        connect = protocol.connect
        assert connect is not None
        _ask(protocol, connect, authentication.principal, now)
        return
    if session is not None and answer.reason_code == reason_codes.SUCCESS:
        identity.renew(session, authentication.principal, protocol.origin, protocol.router)
        subscribe.renewed(protocol)
        # The shell is to look: the credentials may expire at another time. Asking for a turn is how it does.
        protocol.renewed = True
        protocol.unfinished = True
    control_packets.send(protocol.send_buffer, encode(answer, protocol.version))


def _ask(protocol: ServerProtocol, connect: Connect, proved: Principal | None, now: float) -> None:
    """Ask access control, if there is one, also about a client that has `proved` who it is.

    A client that is turned away is refused like any other: its connection closes [MQTT-3.1.4-2].
    """
    access_control = protocol.router.access_control
    if access_control is None:
        admit(protocol, reason_codes.SUCCESS, now)
        return
    ticket = Ticket(protocol.answer_later, proved)
    protocol.ticket = ticket
    protocol.state = phases.follow(protocol.state, ADMITTING)
    answer = ticket.ask(access_control, connect, protocol.origin)
    # Opening the session may have ended this connection.
    if answer != LATER and protocol.state != CLOSED:
        admit(protocol, answer, now)


def forget(protocol: ServerProtocol) -> None:
    """Forget what was needed until the client is in, or until its connection has ended."""
    protocol.connect = None
    protocol.answer_later = None
    _forget_ticket(protocol)
    granted = protocol.granted
    if granted is not None:
        protocol.granted = None
        if granted.attempt is not None:
            _give_up(granted.attempt, protocol.router)


def _forget_ticket(protocol: ServerProtocol) -> None:
    ticket = protocol.ticket
    if ticket is not None:
        protocol.ticket = None
        ticket.discard()


class GrantedConnect:
    """A CONNECT whose client may come in, and what was granted to it, until its session is open.

    `expiry`: the granted Session Expiry Interval, s; `delay`: see `_requested_delay`; `left_out`: a will that the
    client may not have, and why. `attempt`: the claim of its session, where brokers share sessions.
    """

    def __init__(self, connect: Connect, principal: Principal, connack: Connack, expiry: int, delay: int) -> None:
        self.connect = connect
        self.principal = principal
        self.connack = connack
        self.expiry = expiry
        self.delay = delay
        self.left_out: Will | None = None
        self.why = ""
        self.attempt: Attempt | None = None


def admit(protocol: ServerProtocol, answer: int, now: float) -> None:
    """Let the client in, or not, by the answer of access control, or that of the claim of its session.

    Raises:
        Refused: these, or what the client turned out to be, or the room that is left do not allow it.
    """
    granted = protocol.granted
    if answer != reason_codes.SUCCESS:
        # Also what is no reason code of a refusal, such as a return code of 3.1.1: access control has not said yes.
        code = answer if 0x80 <= answer <= 0xFF else reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
        text = "" if granted is None or granted.attempt is None else granted.attempt.text
        raise Refused(text or reason_codes.name(code), code)
    if granted is not None:
        _open(protocol, granted, now)
        return
    connect = protocol.connect
    assert connect is not None
    router = protocol.router
    limits = router.limits
    integers = connect.properties.integers
    # Session expiry: 3.1.1 knows only "ends with the connection" [MQTT3-3.1.2-6] and "stays" [MQTT3-3.1.2-4] (5.0
    # section 3.1.2.11.2).
    if protocol.v5:
        protocol.requested_expiry = integers.get(SESSION_EXPIRY_INTERVAL, 0)
    else:
        protocol.requested_expiry = 0 if connect.clean_start else NEVER
    # A node's session lasts as long as the node asks for, however short a client's may be.
    expiry = protocol.requested_expiry if protocol.node else granted_expiry(protocol.requested_expiry, limits)
    # Without an identifier, from here on as if the client had brought it; the CONNACK tells [MQTT-3.1.3-7].
    protocol.client_id = connect.client_id or router.new_client_id()
    delay = _requested_delay(connect, limits)
    connack = _connack(protocol, connect, expiry, delay)
    if connack is None:
        protocol.end(REFUSED, now, "the CONNACK does not fit the client's Maximum Packet Size")
        return
    granted = GrantedConnect(connect, _identify(protocol, connect, now), connack, expiry, delay)
    will = connect.will
    granted.why = leave_will_out(connect, granted.principal, router)
    if granted.why:
        granted.left_out = will
    if not protocol.node:
        check_client(connect, granted.principal, router)
        if router.shared is not None:
            _claim(protocol, granted, router.shared, now)
            return
    _open(protocol, granted, now)


def _open(protocol: ServerProtocol, granted: GrantedConnect, now: float) -> None:
    """Open the session of a client that is admitted, and answer CONNACK [MQTT-3.1.4-5].

    Until then only AUTH went to the client [MQTT-3.2.0-1]: its session gets the buffer here, and the CONNACK is the
    first thing in it. Only a CONNECT leads here, and a second one is refused, so there is one CONNACK [MQTT-3.2.0-2].

    The CONNACK does not wait for a commit. It promises nothing that is kept: after a kill before the commit, the client
    finds the session gone, or the one before it back, and is told so by Session Present (section 3.2.2.1.1). What it
    then does with the session waits for a commit, and that of the session comes with it.

    Raises:
        Refused: the user of the session or the room that is left do not allow it.
    """
    router = protocol.router
    connect, principal, connack = granted.connect, granted.principal, granted.connack
    attempt = granted.attempt
    if attempt is not None:
        _restore(protocol, granted, attempt, now)
    session, present = _open_session(protocol, connect, principal, granted.expiry, attempt, now)
    will = granted.left_out
    if will is not None:
        session.refused(WILL, will.topic, reason_codes.NOT_AUTHORIZED, granted.why, will.qos, will.retain)
    # Whether there was a session to go on with [MQTT-3.2.2-3], so never after a clean start [MQTT-3.2.2-2]
    # [MQTT3-3.2.2-1]. In 3.1 the byte is reserved.
    protocol.session_present = connack.session_present = present and connect.version != V31
    tap = router.tap
    if tap is not None:
        tap.connected(
            protocol.client_id,
            protocol.origin.address,
            principal.user_name,
            connect.version,
            connect.clean_start,
            connack.session_present,
        )
    if granted.delay != UNSET:
        router.peers.request_delay(session, "", granted.delay)
    protocol.first_bytes = b""
    protocol.decoder.decided(largest_packet(router.limits, protocol.origin))
    acknowledge.start(protocol)
    publish.start(protocol, connack.properties.integers.get(TOPIC_ALIAS_MAXIMUM, 0))
    protocol.state = phases.follow(protocol.state, CONNECTED)
    protocol.accepted = True
    protocol.send_buffer.control(encode(connack, connect.version))
    if protocol.node:
        # They may be many, and were told.
        del protocol.node[1:]
    if present:
        subscribe.resume(protocol, now)
    forget(protocol)


# -- sessions that brokers share ---------------------------------------------------------------------------------------


def _claim(protocol: ServerProtocol, granted: GrantedConnect, shared: SharedSessions, now: float) -> None:
    """Claim the session of a client that is admitted. Nothing more is read before the answer.

    An earlier CONNECT with its client identifier that waits for its own answer ends: it is taken over [MQTT-3.1.4-3].
    Not by another user, since only the answer says whose the session is.

    Raises:
        Refused: another user's CONNECT waits; or the answer came at once, and see `admit`.
    """
    # Access control has answered.
    _forget_ticket(protocol)
    earlier = shared.waiting.get(protocol.client_id)
    if earlier is not None:
        same = earlier.principal.user_name == granted.principal.user_name
        if not same and not protocol.router.limits.any_user_takes_over:
            text = "another user's CONNECT with this client identifier waits for its session"
            raise Refused(text, reason_codes.SERVER_UNAVAILABLE)
        earlier.end(TAKEN_OVER, reason_codes.SESSION_TAKEN_OVER, "another connection with this client identifier", now)
    clean = granted.connect.clean_start
    attempt = Attempt(
        protocol.client_id,
        clean,
        granted.expiry,
        granted.principal,
        granted.connect.will,
        protocol.close,
        protocol.answer_later,
    )
    granted.attempt = shared.waiting[protocol.client_id] = attempt
    protocol.granted = granted
    if protocol.state != ADMITTING:
        protocol.state = phases.follow(protocol.state, ADMITTING)
    if attempt.ask(shared):
        admit(protocol, attempt.answer, now)


def _restore(protocol: ServerProtocol, granted: GrantedConnect, attempt: Attempt, now: float) -> None:
    """Take in what a claimed session has.

    Raises:
        Refused: the room that is left does not allow it.
    """
    router = protocol.router
    shared = router.shared
    assert shared is not None
    client_id = protocol.client_id
    if shared.waiting.get(client_id) is attempt:
        del shared.waiting[client_id]
    earlier = router.sessions.get(client_id)
    # The store has asked whose the session is, unless it could not be reached.
    identity.check_owner(earlier, granted.principal.user_name, router.limits, now)
    if earlier is not None:
        # The claim counts for it no more.
        _take_over(earlier, router, now)
        router.let_go(earlier, now)
    record, attempt.record = attempt.record, None
    if record is not None and not attempt.clean:
        # Once it is among the sessions, no limit is about it.
        check_session(granted.connect, client_id, granted.principal, router, now, False)
        attempt.restored = restore.restore_claimed(router, record, now)


def _give_up(attempt: Attempt, router: Router) -> None:
    """Give a claim up, if it has not led to an open session: its client has gone, or is refused."""
    shared = router.shared
    if shared is None or attempt.session is not None or attempt.is_gone:
        return
    attempt.discard()
    if shared.waiting.get(attempt.client_id) is attempt:
        del shared.waiting[attempt.client_id]
    if not attempt.goes_on:
        attempt.expiry = 0  # no session is left of a CONNECT that was refused
    restored = attempt.restored
    if restored is not None:
        attempt.restored = None
        router.let_go(restored, router.counters.totals.now)
    if attempt.is_open:
        shared.left(attempt)


# -- who the client is, and its session --------------------------------------------------------------------------------


def _identify(protocol: ServerProtocol, connect: Connect, now: float) -> Principal:
    """Find out who the client is. Raises Refused: it may not come in."""
    router = protocol.router
    ticket = protocol.ticket
    authentication = protocol.authentication
    found: Principal | None = None
    if ticket is not None:
        found = ticket.principal
    elif authentication is not None:
        found = authentication.principal
    principal = identity.principal_of(connect, found, protocol.origin, protocol.client_id)
    name = principal.user_name
    if name != connect.user_name:
        # Who the client proved to be may be another one than it says: by a token, a certificate or a service.
        if name is not None and not router.limits.control_characters and has_control(name):
            raise Refused(
                "authenticated as a user name with a control character", reason_codes.BAD_USER_NAME_OR_PASSWORD
            )
        check_ban(protocol.client_id, name, protocol.origin.host, router, now)
    protocol.user_name = name
    return principal


def _open_session(
    protocol: ServerProtocol,
    connect: Connect,
    principal: Principal,
    expiry: int,
    attempt: Attempt | None,
    now: float,
) -> tuple[Session, bool]:
    """Take over an earlier connection [MQTT-3.1.4-3], and open or resume the session. Return whether there was one.

    A session of another mount ends, as by a clean start: its filters and messages have no names for this client. It is
    told by Session Present, and not kept out: a setting of the listener may have changed.

    Raises:
        Refused: the user of the session or the room that is left do not allow it.
    """
    router = protocol.router
    limits = router.limits
    send_buffer = protocol.send_buffer
    client_id = protocol.client_id
    mount = principal.mount
    integers = connect.properties.integers
    earlier = router.sessions.get(client_id)
    identity.check_owner(earlier, principal.user_name, limits, now)
    if not protocol.node:
        check_session(connect, client_id, principal, router, now)
    if earlier is None or earlier.send_buffer is None:
        if not protocol.node:
            check_room(router)
    else:
        _take_over(earlier, router, now)
    router.budget.used += CONNECT_WORK
    another = earlier is not None and earlier.user_name != principal.user_name
    clean = connect.clean_start or (earlier is not None and earlier.principal.mount != mount)
    if earlier is not None and not clean:
        # What has fallen due is still done as the client that it was.
        router.handle_due(earlier, now)
        # Before it has the send buffer: nothing is sent there that this client may not have.
        identity.become(earlier, principal, router)
    send_buffer.v5 = protocol.v5
    # Absent means 0: a client that takes no topic alias [MQTT-3.1.2-27].
    max_aliases = min(limits.topic_alias_outbound, integers.get(TOPIC_ALIAS_MAXIMUM, 0))  # [MQTT-3.1.2-26]
    if max_aliases > 0 or mount:
        send_buffer.name_topics(OutgoingTopics(max_aliases, mount.encode()))
    send_quota = min(limits.max_inflight, integers.get(RECEIVE_MAXIMUM, MAX_ID))  # [MQTT-3.3.4-9]
    session, present = router.connect(
        client_id,
        clean,
        send_buffer,
        connect.version,
        send_quota,
        send_buffer.topics is None,
        now,
        principal,
        attempt is not None and expiry > 0,
    )
    # First: whatever raises from here on, the end of the protocol tells of that of the connection.
    protocol.session = session
    if attempt is not None:
        attempt.session, session.claim = session, attempt
        attempt.restored = None
    if present:
        identity.become(session, principal, router)
    if isinstance(session, NodeSession) and router.shared is None:
        session.stream_all(router.retained, router.retained_store.cleared, router.sessions)
    session.link_peer = link_peer(connect)
    session.is_link = identity.is_link(client_id, principal.user_name, limits)
    router.queue_limits.apply(session)
    if another and session.subscriptions and limits.rules:
        session.others_terms = True
    # A broker of our own kind says 0x10 by itself where it reaches no subscriber.
    session.asked_link = AskedLink() if session.is_link and session.link_peer != "" else None
    session.bridge = connect.bridge
    session.expiry_interval = expiry
    session.will = connect.will  # [MQTT-3.1.2-7]
    session.bridge_state = announced(connect.will)
    if present or connect.will is not None:
        # Of a new one the table knows all else.
        router.session_table.count(session)
    if router.journal is not None:
        session.keep(router.journal)
    elif router.wills.keeper is not None:
        session.keep_will(router.wills.keeper)
    return session, present


def _take_over(session: Session, router: Router, now: float) -> None:
    """End the connection of a session, if it has one, for another one of its client."""
    send_buffer = session.send_buffer
    if send_buffer is not None:
        peer = send_buffer.peer
        assert peer is not None
        peer.take_over(now)
        router.peers.drain(router, now)


# -- the CONNACK, and the terms ----------------------------------------------------------------------------------------


def _requested_delay(connect: Connect, limits: Limits) -> int:
    """Return the delay that a client requests for its messages and its PUBACKs, in milliseconds; `UNSET`: none.

    Raises:
        Refused: it cannot be understood.
    """
    if connect.version != V5 or not limits.subscriber_policies:
        return UNSET
    try:
        return read_delay(connect.properties.user)
    except BadQueueOptions as bad:
        raise Refused(str(bad), reason_codes.IMPLEMENTATION_SPECIFIC_ERROR) from bad


def _connack(protocol: ServerProtocol, connect: Connect, expiry: int, delay: int) -> Connack | None:
    """Make the CONNACK of an accepted client, and set its keep alive; None: the client takes none [MQTT-3.1.2-24].

    It names what differs from the protocol's defaults (section 3.2.2.3); Session Present is for the caller to set. No
    Response Information, asked for or not [MQTT-3.1.2-28]. In User Properties a link is told which broker this is, and
    a client the delay that it requested, unless they make the CONNACK too large [MQTT-3.2.2-20]. Nothing else has been
    done yet.
    """
    # Keep alive: the client's own [MQTT-3.2.2-22], unless the server sets one, as it may in 5.0.
    protocol.keep_alive = connect.keep_alive
    if not protocol.v5:
        return Connack(properties=NO_PROPERTIES)
    router = protocol.router
    limits = router.limits
    connack = Connack()
    integers = connack.properties.integers
    strings = connack.properties.strings
    if expiry != protocol.requested_expiry:
        integers[SESSION_EXPIRY_INTERVAL] = expiry
    if limits.receive_maximum < MAX_ID:
        integers[RECEIVE_MAXIMUM] = limits.receive_maximum
    if limits.max_qos < 2:
        integers[MAXIMUM_QOS] = limits.max_qos  # [MQTT-3.2.2-9]
    if not limits.retain_available:
        integers[RETAIN_AVAILABLE] = 0
    max_packet_size = largest_packet(limits, protocol.origin)
    if max_packet_size < MAX_PACKET:
        integers[MAXIMUM_PACKET_SIZE] = max_packet_size
    if not connect.client_id:
        strings[ASSIGNED_CLIENT_IDENTIFIER] = protocol.client_id  # [MQTT-3.2.2-16]
    if limits.topic_alias_maximum > 0 and publish.aliases_have_room(router):
        integers[TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
    limit = limits.max_keep_alive
    if limit > 0 and (connect.keep_alive == 0 or connect.keep_alive > limit):
        protocol.keep_alive = limit
        integers[SERVER_KEEP_ALIVE] = limit  # [MQTT-3.2.2-21]
    if router.broker_id and link_peer(connect):
        connack.properties.user.append((LINK, router.broker_id))
    if protocol.node:
        connack.properties.user.extend(protocol.node)
    if delay != UNSET:
        connack.properties.user.append(granted_delay(delay / 1_000))
    authentication = protocol.authentication
    if authentication is not None:  # else no method is named [MQTT-4.12.0-6]
        authentication.tell(connack)
    max_packet = protocol.send_buffer.max_packet
    if max_packet < MAX_PACKET and len(encode(connack, V5)) > max_packet:
        connack.properties.user.clear()
        if len(encode(connack, V5)) > max_packet:
            return None
    return connack


def largest_packet(limits: Limits, origin: Origin) -> int:
    """Return the bytes of the largest packet that is taken from a client: its listener's limit, within that of all."""
    return min(limits.max_packet_size, origin.max_packet_size or limits.max_packet_size)


def first_packet_size(limits: Limits, origin: Origin) -> int:
    """Return the bytes of the largest packet that is taken from a client before it was accepted."""
    largest = largest_packet(limits, origin)
    return min(largest, limits.max_connect_size) if limits.max_connect_size > 0 else largest


def granted_expiry(requested: int, limits: Limits) -> int:
    """Return the seconds for which a session outlives its connection when a client asks for `requested` (3.2.2.3.2)."""
    longest = limits.max_session_expiry
    return requested if longest == 0 else min(requested, longest)


def change_expiry(packet: Disconnect, session: Session, requested: int, limits: Limits) -> None:
    """Change the Session Expiry Interval by a DISCONNECT; the CONNECT has `requested` one.

    Raises:
        ProtocolViolation: it was 0, and cannot be raised from that [MQTT-3.14.2-2] (section 3.14.2.2.2).
    """
    expiry = packet.properties.integers.get(SESSION_EXPIRY_INTERVAL, -1)
    if expiry > 0 and requested == 0:
        raise ProtocolViolation("Session Expiry Interval raised from 0 in DISCONNECT")
    if expiry >= 0:
        session.expiry_interval = granted_expiry(expiry, limits)


def link_peer(connect: Connect) -> str:
    """Return the id of the broker that the client is the link of; empty for other clients, and where it is no id."""
    if connect.version == V5:
        for name, value in connect.properties.user:
            if name == LINK and 0 < len(value) <= MAX_BROKER_ID:
                return value
    return ""


# -- what may be refused -----------------------------------------------------------------------------------------------


_CROWDED: Final[dict[int, str]] = {
    reason_codes.QUOTA_EXCEEDED: "too many connections from this address",
    reason_codes.CONNECTION_RATE_EXCEEDED: "too many new connections",
    reason_codes.SERVER_BUSY: "the broker has no room for another connection",
}
"""The text for a client whose connection is one too many."""


def _check(connect: Connect, refused: int, host: str, router: Router, now: float) -> None:
    """Check a CONNECT against load, bans and settings [MQTT-3.1.4-2]. Raises Refused.

    `refused` is the reason code of a connection that is one too many, or 0. A client of an address that has too many
    may come in place of its own old connection: that may well be dead, and would keep it out until that is noticed.
    """
    limit = router.limits.max_loop_lag
    if limit > 0.0 and router.counters.totals.lag_at(now) > limit:
        # Before anything is done for it.
        raise Refused("the broker is overloaded", reason_codes.SERVER_BUSY)
    check_ban(connect.client_id, connect.user_name, host, router, now)
    if refused != 0:
        earlier = router.sessions.get(connect.client_id)
        its_own = (
            earlier is not None and earlier.send_buffer is not None and network(earlier.principal.host) == network(host)
        )
        if refused != reason_codes.QUOTA_EXCEEDED or not its_own:
            raise Refused(_CROWDED.get(refused, ""), refused)
    _check_settings(connect, router)


def _check_settings(connect: Connect, router: Router) -> None:
    """Check a CONNECT against the settings [MQTT-3.1.4-2]. Raises Refused with the CONNACK's reason code.

    A client identifier that is not accepted is refused with 0x85 [MQTT-3.1.3-8], in 3.1.1 with 2 [MQTT3-3.1.3-9]; a
    version with 0x84, in 3.1.1 with 1 [MQTT-3.1.2-2] [MQTT3-3.1.2-2]; and a keep alive of 3.1.1 that is longer than the
    settings allow with 5.
    """
    limits = router.limits
    client_id = connect.client_id
    if connect.version not in limits.versions:
        raise Refused("this version of MQTT is not accepted here", reason_codes.UNSUPPORTED_PROTOCOL_VERSION)
    if not client_id:
        # A client without an identifier gets one, but in 3.1.1 only for a clean session [MQTT3-3.1.3-8], in 3.1 never.
        allowed = connect.version == V5 or (connect.version == V311 and connect.clean_start)
        if not allowed or not limits.allow_empty_client_id:
            raise Refused("a client identifier is needed", reason_codes.CLIENT_IDENTIFIER_NOT_VALID)
    elif 0 < limits.max_client_id_length < len(client_id.encode()):
        raise Refused(
            f"the client identifier is longer than {limits.max_client_id_length} bytes",
            reason_codes.CLIENT_IDENTIFIER_NOT_VALID,
        )
    elif client_id.startswith(RESERVED):
        kind = client_id[: client_id.index("/") + 1]
        raise Refused(
            f"client identifiers that begin with {kind} are reserved", reason_codes.CLIENT_IDENTIFIER_NOT_VALID
        )
    elif router.keeps is not None and not router.keeps(client_id):
        raise Refused("the sessions of this client identifier are elsewhere", reason_codes.SERVER_UNAVAILABLE)
    user_name = connect.user_name
    # Access control or a method will say who the client is: then its CONNECT need not.
    asked = router.access_control is not None or AUTHENTICATION_METHOD in connect.properties.strings
    if user_name is None and not limits.allow_anonymous and not asked:
        # A health check has to hear that no client could come in, rather than that it may not.
        check_room(router)
        raise Refused("a user name is needed", reason_codes.NOT_AUTHORIZED)
    if not limits.control_characters:
        if has_control(client_id):
            raise Refused("a client identifier with a control character", reason_codes.CLIENT_IDENTIFIER_NOT_VALID)
        if user_name is not None and has_control(user_name):
            raise Refused("a user name with a control character", reason_codes.BAD_USER_NAME_OR_PASSWORD)
    limit = limits.max_keep_alive
    if connect.version != V5 and limit > 0 and (connect.keep_alive == 0 or connect.keep_alive > limit):
        # Only 5.0 can be told what to keep to. Taken in silently, it would be disconnected each time it is idle.
        raise Refused(f"a keep alive of 1 to {limit} seconds is needed", reason_codes.NOT_AUTHORIZED)
    will = connect.will
    if will is not None:
        validate_topic(will.topic)
        if not limits.control_characters and has_control(will.topic):
            raise MalformedPacket("a will topic with a control character")
        check_levels(will, limits)
        if 0 < limits.max_payload_size < len(will.payload):
            raise Refused(f"a will of more than {limits.max_payload_size} bytes", reason_codes.QUOTA_EXCEEDED)
        if will.qos > limits.max_qos:
            raise Refused(
                f"a will of QoS {will.qos} is not supported", reason_codes.QOS_NOT_SUPPORTED
            )  # [MQTT-3.2.2-12]
        if will.retain and not limits.retain_available:
            raise Refused("a retained will is not supported", reason_codes.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-13]


def check_levels(will: Will, limits: Limits) -> None:
    """Check the topic of a will against the limit of levels. Raises Refused."""
    if 0 < limits.max_topic_levels <= will.topic.count("/"):
        raise Refused("the will's topic has too many levels", reason_codes.TOPIC_NAME_INVALID)


def check_session(
    connect: Connect, client_id: str, principal: Principal, router: Router, now: float, new: bool = True
) -> None:
    """Check a client's session, or the one that it will have, against the limits of sessions. Raises Refused. `new`:
    none of those that brokers share (`core.shared`).

    Being full is an error that passes; it ends the connection on which the CONNECT came [MQTT3-4.8.0-2], and no other.
    """
    setting = lacking_session_room(router, client_id, principal, connect.will, now, new)
    if setting:
        text = f"the broker has no room for another session, or for this will ({setting})"
        raise Refused(text, reason_codes.QUOTA_EXCEEDED)


def check_room(router: Router) -> None:
    """Check a client that is not connected yet against the limit of connections. Raises Refused."""
    limits = router.limits
    peers = router.peers
    if 0 < limits.max_connections <= len(peers.send_buffers) - peers.internal:
        raise Refused("the broker has no room for another connection", reason_codes.SERVER_BUSY)


def check_ban(client_id: str, user: str | None, host: str, router: Router, now: float) -> None:
    """Refuse a client that is banned. Raises Refused."""
    if router.ban_hook is not None and router.ban_hook.bars(client_id, user, host, now):
        raise Refused("banned by an operator", reason_codes.BANNED)


def leave_will_out(connect: Connect, principal: Principal, router: Router) -> str:
    """Take a will below `$SYS` that the client may not have out of its CONNECT. Return why, for the log; "": none.

    The client is let in all the same, as mosquitto and EMQX let it in: mosquitto's bridges have such a will by default,
    and would try to connect for ever.
    """
    will = connect.will
    if will is None or not is_system(will.topic.encode()):
        return ""
    state = announced(will)
    why = ""
    if not state:
        why = ONLY_BRIDGES
    elif principal.mount:
        why = MOUNT
    elif is_another(router, state, principal.client_id):
        why = ANOTHER
    else:
        rule = _rule_against(will, principal, router)
        if rule:
            why = f"{rule}; allow it to publish there, and operators see the state of this bridge"
    if why:
        router.counters.denied_publishes += 1
        connect.will = None
    return why


def _rule_against(will: Will, principal: Principal, router: Router) -> str:
    """Return the rule by which access control does not let a client publish its will; "": it may."""
    access_control = router.access_control
    if access_control is None or access_control.may_publish(principal, will.topic, will.qos, will.retain):
        return ""
    return access_control.said(principal, "publish", will.topic, will.qos, will.retain)[1] or ACCESS_CONTROL


def check_client(connect: Connect, principal: Principal, router: Router) -> None:
    """Check a CONNECT against who its client has turned out to be; its will gets the topic that it has here.

    Raises:
        Refused: its will or its user do not allow it.
    """
    limits = router.limits
    will = connect.will
    if principal.mount and will is not None:
        connect.will = will = identity.mounted_will(will, principal.mount)
        check_levels(will, limits)
    if principal.user_name is None and not limits.allow_anonymous:
        check_room(router)
        raise Refused("a user name is needed", reason_codes.NOT_AUTHORIZED)
    if will is None:
        return
    link = identity.is_link(principal.client_id, principal.user_name, limits)
    # Of the wills below $SYS only those of bridges are left (`leave_will_out`).
    if not announced(will) and identity.is_reserved(will.topic.encode(), link, router):
        raise Refused("a will to a topic that is the broker's own", reason_codes.NOT_AUTHORIZED)
    rule = _rule_against(will, principal, router)
    if rule:
        router.counters.denied_publishes += 1
        raise Refused(  # section 5.4.2
            "not authorized to publish to the will's topic",
            reason_codes.NOT_AUTHORIZED,
            f'its will to "{will.topic[:MAX_TOPIC_SHOWN]}" is refused by {rule}',
        )


# -- the first bytes ---------------------------------------------------------------------------------------------------

MAX_GUESSED: Final = 8
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
    """Check the first bytes of a connection against a CONNECT at once.

    What looks like a long packet of another kind would be waited for.

    Raises:
        ProtocolViolation: they begin no CONNECT [MQTT-3.1.0-1].
    """
    action = phases.action(phases.CONNECTING, data[0] >> 4)
    if action >= phases.NOT_CONNECT:
        raise ProtocolViolation(phases.ERRORS[action])


def guess(data: bytes) -> str:
    """Say what the bytes at the beginning of a connection look like; empty: unknown."""
    first = data[:MAX_GUESSED]
    if first[:2] == b"\x16\x03":
        return "looks like TLS; this listener is plain MQTT"
    for method in _HTTP:
        if len(first) >= 3 and first.startswith(method[:MAX_GUESSED][: len(first)]):
            return "looks like HTTP or WebSocket; this listener is plain MQTT"
    if first.startswith(b"PROXY ") or first == b"\r\n\r\n\x00\r\nQ":
        return "looks like the PROXY protocol; this listener does not take it"
    if first.startswith(b"SSH-"):
        return "looks like SSH; this listener is plain MQTT"
    return ""
