"""Who a client is, and what follows: which session it may take over, whether it may be a link, and to which of the
broker's own topics it may publish.

Owns each of these comparisons. A client is identified by its principal.

Promises: a refusal here has changed nothing: no connection was ended, and no session was read.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from broker.core.codec import reasons
from broker.core.codec.errors import ProtocolError, Refused
from broker.core.codec.mounted_names import outer_properties, outer_topic
from broker.core.codec.packets import Connect, Will
from broker.core.codec.topic_names import is_system, is_within
from broker.core.hooks import Origin, Ticket
from broker.core.limits import Limits
from broker.core.principal import Principal
from broker.core.queues.message import Message
from broker.core.routing.router import Router
from broker.core.session.session import Session


def principal_of(connect: Connect, ticket: Ticket | None, origin: Origin, client_id: str) -> Principal:
    """Who a client is: as whoever admitted it said, or else as its CONNECT says.

    Raises:
        Refused: its names do not fit the mount of its listener (`mount_of`), or what it was given is no text (0x83; the
            log names it).
    """
    found = None if ticket is None else ticket.principal
    if found is not None:
        fault = found.unfit()
        if fault and ticket is not None:
            ticket.detail = f"{found.authenticator or 'access control'} admits a client that cannot be kept: {fault}"
            code = reasons.IMPLEMENTATION_SPECIFIC_ERROR
            raise Refused(reasons.name(code), code)
        return _here(found, origin, client_id)
    principal = Principal(connect.user_name, client_id=client_id, listener=origin.listener, host=origin.host)
    return _certified(principal, origin)


def _here(found: Principal, origin: Origin, client_id: str) -> Principal:
    """A client on its connection. Raises Refused: its names do not fit the listener's mount."""
    return _certified(found.at(client_id, origin.listener, origin.host), origin)


def _certified(principal: Principal, origin: Origin) -> Principal:
    """With the certificate that the client has proved to hold, if whoever admitted it has not named another; and with
    its mount."""
    if not principal.certificate and origin.certificate is not None:
        principal.certificate = origin.certificate.subject
    principal.mount = mount_of(origin.mount, principal)
    return principal


def renew(session: Session, found: Principal | None, origin: Origin, router: Router) -> None:
    """A client has authenticated again on its open connection: what is known of it now is what counts.

    Raises:
        ProtocolError: it came out as another user, whose this session is not (0x87), or with what is no text (0x83).
    """
    if found is None:
        return
    if found.user_name != session.user_name:
        raise ProtocolError("authenticated again as another user", reasons.NOT_AUTHORIZED)
    fault = found.unfit()
    if fault:
        raise ProtocolError(
            f"authenticated as somebody who cannot be kept: {fault}", reasons.IMPLEMENTATION_SPECIFIC_ERROR
        )
    become(session, _here(found, origin, session.client_id), router)
    if session.journal is not None:
        session.journal.session_kept(session.client_id, session.principal, session.expiry_interval, 0.0)
    elif session.will_alone and router.journal is not None:
        session.keep(router.journal)


def become(session: Session, principal: Principal, router: Router) -> None:
    """A session is this client's from now on. What it may be sent is found out anew."""
    session.principal = principal
    router.session_table.belong(session)
    session.queue.review = None
    if router.permissions is not None and session.subscriptions:
        router.permissions.somebody_else()
        if session.connected and session.memberships is not None:
            # Nothing else tells share groups: one that was away is put in another place when it comes.
            for member in list(session.memberships):
                if member.group is not None:
                    member.group.renew(member)


def check_owner(session: Session | None, user_name: str | None, limits: Limits, now: float) -> None:
    """Hold a client against the session that stands under its client identifier, connected or not.

    A session belongs to the user name that made it; clients without one share what was made without one. That holds
    for a clean start too: it would end the session.

    Raises:
        Refused: the session is another user's: 0x85 Client Identifier not valid, in 3.1.1 code 2. The credentials are
            good, so that 0x86 and 0x87 would mislead: with another identifier the client is welcome [MQTT-3.1.3-8]
            [MQTT3-3.1.3-9].
    """
    if session is None or limits.any_user_takes_over or session.user_name == user_name:
        return
    if session.outbox is None and 0.0 < session.expires_at <= now:
        # It is over, and will be gone before this client has its own [MQTT-4.1.0-2].
        return
    whose = "belongs to another user name"
    if session.user_name is None:
        whose = "was created without a user name, and this client has one"
    elif user_name is None:
        whose = "belongs to a user name, and this client has none"
    raise Refused(
        "the session of this client identifier is another user's",
        reasons.CLIENT_IDENTIFIER_NOT_VALID,
        f'the session of this client identifier {whose}: session.takeover = "any-user" lets any client take it over, '
        "and canopy ctl kick --session CLIENT removes it",
    )


def is_link(client_id: str, user_name: str | None, limits: Limits) -> bool:
    """Whether the settings let a client be the link of another broker. By default nobody may."""
    for pattern in limits.link_users:
        if user_name is not None and fnmatchcase(user_name, pattern):
            return True
    return any(fnmatchcase(client_id, pattern) for pattern in limits.link_client_ids)


def is_reserved(topic: bytes, link: bool, router: Router, session: Session | None = None) -> bool:
    """Whether a topic name (UTF-8) is the broker's own, so that the client, with this session, may not publish there.

    `$SYS` is, but for the state of a bridge, which the bridge publishes itself (`bridge_states`). So is what tells who
    is connected; but a link hands on who is connected elsewhere, which may stand below the same topic. What this broker
    has told of its own clients is nobody else's to change.
    """
    if is_system(topic):
        return session is None or not router.bridge_states.may_write(topic, session)
    presence = router.limits.presence_topic
    if not presence or not is_within(topic, presence):
        return False
    if not link:
        return True
    told = router.retained.get(topic.decode())
    return isinstance(told, Message) and told.publisher == ""


LONGEST_MOUNT: Final = 1_024
"""Bytes of a mount with the names in it. It stands before each topic and filter of its client: a user name may have
65,535, and would make as much of a topic of one."""


def mount_of(template: str, principal: Principal) -> str:
    """The mount of a client: `{user}`, `{client}` and `{listener}` filled in; empty where the listener has none.

    Raises:
        Refused: a name that cannot stand there. 0x85 for the client identifier, which the client may choose anew; else
            0x87, also where there is no user name.
    """
    if not template:
        return ""
    made = "/".join([_filled(level, principal) for level in template.split("/")])
    if made.startswith("$"):
        raise Refused("the topic prefix of this client would begin with $", reasons.NOT_AUTHORIZED)
    if len(made.encode()) > LONGEST_MOUNT:
        raise Refused(f"the topic prefix of this client has more than {LONGEST_MOUNT} bytes", reasons.NOT_AUTHORIZED)
    return made


def _filled(level: str, principal: Principal) -> str:
    """A level with the name that it asks for, if it asks for one."""
    if "{" not in level:
        return level
    for placeholder, name, code in (
        ("{user}", principal.user_name or "", reasons.NOT_AUTHORIZED),
        ("{client}", principal.client_id, reasons.CLIENT_IDENTIFIER_NOT_VALID),
        ("{listener}", principal.listener, reasons.NOT_AUTHORIZED),
    ):
        if placeholder in level:
            if not name or any(sign in name for sign in "/+#\0"):
                raise Refused(f"no topic can be named after this client's {placeholder}", code)
            return level.replace(placeholder, name)
    return level


def mounted_will(will: Will, mount: str) -> Will:
    """A client's will as the broker publishes it.

    Raises:
        Refused: its topic, or its Response Topic, has no name there (0x87).
    """
    prefix = mount.encode()
    topic = outer_topic(prefix, will.topic.encode())
    properties = outer_properties(prefix, will.properties)
    if topic is None or properties is None:
        raise Refused("a will to a topic that is not below the mount of the listener", reasons.NOT_AUTHORIZED)
    return Will(topic.decode(), will.payload, will.qos, will.retain, will.delay, will.message_expiry, properties)
