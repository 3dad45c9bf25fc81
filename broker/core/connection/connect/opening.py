"""Opens the session for an accepted CONNECT: ends the connection it takes over, and applies the new terms."""

from __future__ import annotations

from typing import Final

from broker.core.codec import reasons
from broker.core.codec.encoder import encode
from broker.core.codec.errors import Refused
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import Connack, Connect, Will
from broker.core.codec.topic_names import is_system
from broker.core.connection.connect import handshake, identity, mounting
from broker.core.connection.connect.authenticating import Authentication
from broker.core.persistence.keeping import keep
from broker.core.principal import Principal
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.live.peer_names import PeerNames
from broker.core.refusals import ACCESS_CONTROL, MOUNT, WILL
from broker.core.routing.bridge_states import ANOTHER, ONLY_BRIDGES, announced
from broker.core.routing.router import Router
from broker.core.session.session import Session

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
    handshake.check_load(router, now)
    check_ban(connect.client_id, connect.user_name, host, router, now)
    if refused != 0:
        earlier = router.sessions.get(connect.client_id)
        outbox = None if earlier is None else earlier.outbox
        peer = None if outbox is None else outbox.peer
        if refused != reasons.QUOTA_EXCEEDED or peer is None or not peer.comes_from(host):
            raise Refused(_CROWDED.get(refused, ""), refused)
    handshake.check(connect, router)


def check_ban(client_id: str, user: str | None, host: str, router: Router, now: float) -> None:
    """Keep out whom an operator has banned. Raises Refused."""
    bans = router.bans
    if len(bans) > 0 and bans.bars(client_id, user, host, now) is not None:
        bans.refused += 1
        raise Refused("banned by an operator", reasons.BANNED)


def connack_for(
    connect: Connect,
    terms: handshake.Terms,
    assigned: str,
    authentication: Authentication | None,
    router: Router,
    max_packet: int,
) -> Connack | None:
    """The CONNACK, but for Session Present; None when the client can take none: then nothing has been done yet."""
    connack = handshake.accept(connect, terms, assigned, router)
    if authentication is not None:  # else no method is named [MQTT-4.12.0-6]
        authentication.tell(connack)
    if max_packet >= LARGEST_PACKET:
        return connack
    if len(encode(connack, connect.version)) <= max_packet:
        return connack
    connack.properties.user.clear()  # [MQTT-3.2.2-20]
    return connack if len(encode(connack, connect.version)) <= max_packet else None  # [MQTT-3.1.2-24]


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


def note_will(session: Session, will: Will, why: str, router: Router, now: float) -> None:
    """Remember that a will was left out (`leave_will_out`): the log tells of it."""
    router.counters.refusals.note(
        session.ledger, session.principal, WILL, will.topic, reasons.NOT_AUTHORIZED, now, why, will.qos, will.retain
    )


def check_client(connect: Connect, principal: Principal, router: Router) -> str:
    """Hold a CONNECT against who its client has turned out to be; its will gets the topic that it has here.

    Why access control refuses its will, for the log; "": it does not.

    Raises:
        Refused: its will or its user do not allow it.
    """
    mount = principal.mount
    if mount and connect.will is not None:
        connect.will = mounting.mounted_will(connect.will, mount)
        handshake.check_levels(connect.will, router.limits)
    handshake.check_principal(connect, principal, router)
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


def open_session(
    connect: Connect,
    client_id: str,
    principal: Principal,
    terms: handshake.Terms,
    outbox: Outbox,
    router: Router,
    now: float,
) -> tuple[Session, bool]:
    """Take over an earlier connection [MQTT-3.1.4-3], and open or resume the session. Whether it was there before.

    `principal`: who the client has turned out to be (`check_client`). A session of another mount ends, as by a clean
    start: its filters and messages have no names for this client. It is told by Session Present, and not kept out: a
    setting of the listener may have changed.

    Its CONNACK does not wait for a commit. It promises nothing that is kept: after a kill before the commit, the client
    finds the session gone, or the one before it back, and is told so by Session Present (section 3.2.2.1.1). What it
    then does with the session waits for a commit, and that of the session comes with it.

    Raises:
        Refused: its user or the room that is left do not allow it.
    """
    mount = principal.mount
    earlier = router.sessions.get(client_id)
    identity.check_owner(earlier, principal.user_name, router.limits, now)
    handshake.check_session(connect, client_id, principal, router, now)
    if earlier is None or earlier.outbox is None:
        handshake.check_room(router)
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
    session, present = router.connect(
        client_id, clean, outbox, connect.version, terms.window, outbox.names is None, now, principal
    )
    if present:
        identity.become(session, principal, router)
    session.link_peer = handshake.link_peer(connect)
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
    if present or will is not None:
        # Of a new one the table knows all else.
        router.session_table.count(session)
    if router.journal is not None:
        keep(session, router.journal)
    return session, present
