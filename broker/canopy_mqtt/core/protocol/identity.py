"""Says who a client is, and what follows: which session it may take over, whether it may be a link, and to which of the
broker's own topics it may publish.

Owns each of these comparisons, the mount of a client, and the exchange of a client that names an authentication method
(5.0 section 4.12). A client is identified by its principal. A refusal here has changed nothing: no connection was
ended, and no session was read.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Auth, Connack, Connect, Will
from canopy_mqtt.core.codec.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, mount_properties
from canopy_mqtt.core.codec.reason_codes import ProtocolError, ProtocolViolation, Refused
from canopy_mqtt.core.codec.topic_names import is_system, is_within, mount_topic
from canopy_mqtt.core.hooks import AccessControl, AuthExchange, Origin
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.bridge_states import may_write
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session


def principal_of(connect: Connect, found: Principal | None, origin: Origin, client_id: str) -> Principal:
    """Find out who a client is: as access control or its authentication method has `found`, or as its CONNECT says.

    Raises:
        Refused: its names do not fit the mount of its listener (`mount_of`), or what was found is no text (0x83; the
            log names it).
    """
    if found is not None:
        fault = found.unfit()
        if fault:
            code = reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
            source = found.authenticator or "access control"
            raise Refused(reason_codes.name(code), code, f"{source} admits a client that cannot be kept: {fault}")
        return _here(found, origin, client_id)
    principal = Principal(connect.user_name, client_id=client_id, listener=origin.listener, host=origin.host)
    return _certified(principal, origin)


def _here(found: Principal, origin: Origin, client_id: str) -> Principal:
    """Bind a principal to its connection. Raises Refused: its names do not fit the listener's mount."""
    return _certified(found.at(client_id, origin.listener, origin.host), origin)


def _certified(principal: Principal, origin: Origin) -> Principal:
    """Add the certificate that the client proved to hold, if access control has not named another, and its mount."""
    if not principal.certificate and origin.certificate is not None:
        principal.certificate = origin.certificate.subject
    principal.mount = mount_of(origin.mount, principal)
    return principal


def renew(session: Session, found: Principal | None, origin: Origin, router: Router) -> None:
    """Take over what is known of a client that has authenticated again on its open connection.

    Raises:
        ProtocolError: it came out as another user, whose this session is not (0x87), or with what is no text (0x83).
    """
    if found is None:
        return
    if found.user_name != session.user_name:
        raise ProtocolError("authenticated again as another user", reason_codes.NOT_AUTHORIZED)
    fault = found.unfit()
    if fault:
        raise ProtocolError(
            f"authenticated as somebody who cannot be kept: {fault}", reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
        )
    become(session, _here(found, origin, session.client_id), router)
    if session.journal is not None:
        session.journal.session_kept(session.client_id, session.principal, session.expiry_interval, 0.0)
    elif session.will_alone and router.wills.keeper is not None:
        session.keep_will(router.wills.keeper)


def become(session: Session, principal: Principal, router: Router) -> None:
    """Give a session to this client. What it may be sent is found out anew."""
    if session.principal is not principal:
        session.principal = principal
        router.session_table.belong(session)
        router.share_queues.follow(session)
    if session.made_queue is not None:
        session.made_queue.review = None
    if router.permissions is not None and session.subscriptions:
        router.permissions.principal_changed()
        if session.send_buffer is not None and session.memberships is not None:
            # Nothing else tells share groups: one that was away is put in another place when it comes.
            for member in list(session.memberships):
                if member.group is not None:
                    member.group.renew(member)


def check_owner(session: Session | None, user_name: str | None, limits: Limits, now: float) -> None:
    """Check a client against the session that stands under its client identifier, connected or not.

    A session belongs to the user name that made it; clients without one share what was made without one. That holds
    for a clean start too: it would end the session.

    Raises:
        Refused: the session is another user's: 0x85 Client Identifier not valid, in 3.1.1 code 2. The credentials are
            good, so that 0x86 and 0x87 would mislead: with another identifier the client is welcome [MQTT-3.1.3-8]
            [MQTT3-3.1.3-9].
    """
    if session is None or limits.any_user_takes_over or session.user_name == user_name:
        return
    if session.send_buffer is None and 0.0 < session.expires_at <= now:
        # The old connection is over, and will be gone before this client has its own [MQTT-4.1.0-2].
        return
    whose = "belongs to another user name"
    if session.user_name is None:
        whose = "was created without a user name, and this client has one"
    elif user_name is None:
        whose = "belongs to a user name, and this client has none"
    raise Refused(
        "the session of this client identifier is another user's",
        reason_codes.CLIENT_IDENTIFIER_NOT_VALID,
        f'the session of this client identifier {whose}: session.takeover = "any-user" lets any client take it over, '
        "and canopy ctl kick --session CLIENT removes it",
    )


def is_link(client_id: str, user_name: str | None, limits: Limits) -> bool:
    """Return whether the settings let a client be the link of another broker. By default no client may."""
    for pattern in limits.link_users:
        if user_name is not None and fnmatchcase(user_name, pattern):
            return True
    return any(fnmatchcase(client_id, pattern) for pattern in limits.link_client_ids)


def is_reserved(topic: bytes, link: bool, router: Router, session: Session | None = None) -> bool:
    """Return whether a topic name (UTF-8) is the broker's own: the client of this session may not publish there.

    `$SYS` is, but for the state of a bridge, which the bridge publishes itself (`routing.bridge_states`). So are the
    topics that tell which clients are connected; but a link hands on which are connected elsewhere, perhaps below the
    same topic. No other client changes what this broker has told of its own.
    """
    if is_system(topic):
        return session is None or not may_write(router, topic, session)
    presence = router.limits.presence_topic
    if not presence or not is_within(topic, presence):
        return False
    if not link:
        return True
    told = router.retained.get(topic.decode())
    return isinstance(told, Message) and told.publisher == ""


MAX_MOUNT_BYTES: Final = 1_024
"""Bytes of a mount with the names in it. It stands before each topic and filter of its client: a user name may have
65,535, and would make as much of a topic of one."""


def mount_of(template: str, principal: Principal) -> str:
    """Make the mount of a client: `{user}`, `{client}` and `{listener}` filled in; empty where the listener has none.

    Raises:
        Refused: a name that cannot stand there. 0x85 for the client identifier, which the client may choose anew; else
            0x87, also where there is no user name.
    """
    if not template:
        return ""
    made = "/".join([_filled(level, principal) for level in template.split("/")])
    if made.startswith("$"):
        raise Refused("the topic prefix of this client would begin with $", reason_codes.NOT_AUTHORIZED)
    if len(made.encode()) > MAX_MOUNT_BYTES:
        raise Refused(
            f"the topic prefix of this client has more than {MAX_MOUNT_BYTES} bytes", reason_codes.NOT_AUTHORIZED
        )
    return made


def _filled(level: str, principal: Principal) -> str:
    """Return a level with the name that it asks for, if it asks for one."""
    if "{" not in level:
        return level
    for placeholder, name, code in (
        ("{user}", principal.user_name or "", reason_codes.NOT_AUTHORIZED),
        ("{client}", principal.client_id, reason_codes.CLIENT_IDENTIFIER_NOT_VALID),
        ("{listener}", principal.listener, reason_codes.NOT_AUTHORIZED),
    ):
        if placeholder in level:
            if not name or any(sign in name for sign in "/+#\0"):
                raise Refused(f"no topic can be named after this client's {placeholder}", code)
            return level.replace(placeholder, name)
    return level


def mounted_will(will: Will, mount: str) -> Will:
    """Return a client's will as the broker publishes it.

    Raises:
        Refused: its topic, or its Response Topic, has no name there (0x87).
    """
    prefix = mount.encode()
    topic = mount_topic(prefix, will.topic.encode())
    properties = mount_properties(prefix, will.properties)
    if topic is None or properties is None:
        raise Refused("a will to a topic that is not below the mount of the listener", reason_codes.NOT_AUTHORIZED)
    return Will(topic.decode(), will.payload, will.qos, will.retain, will.delay, will.message_expiry, properties)


class Authentication:
    """Drives one exchange: started by the CONNECT, and again when the client re-authenticates."""

    def __init__(
        self,
        method: str,
        exchange: AuthExchange,
        connect: Connect,
        origin: Origin,
        access_control: AccessControl | None,
    ) -> None:
        self._method = method
        self._exchange = exchange
        self._connect = connect
        self._origin = origin
        self._access_control = access_control
        self._reauthenticating = False

    def start(self) -> None:
        """Begin with the CONNECT."""
        connect = self._connect
        self._exchange.start(connect, connect.properties.binaries.get(AUTHENTICATION_DATA))

    def proceed(self, packet: Auth, connected: bool) -> None:
        """Take an AUTH: only for the method that the CONNECT named, in re-authentication too [MQTT-4.12.1-1].

        Raises:
            ProtocolViolation: it names another method, or may not come now.
        """
        if packet.properties.strings.get(AUTHENTICATION_METHOD) != self._method:
            raise ProtocolViolation("AUTH names another authentication method than CONNECT")  # [MQTT-4.12.0-5]
        data = packet.properties.binaries.get(AUTHENTICATION_DATA)
        if packet.reason_code == reason_codes.REAUTHENTICATE:
            if not connected or self._reauthenticating:
                raise ProtocolViolation("re-authentication while authenticating")
            self._reauthenticating = True
            self._exchange.again(data)
        elif packet.reason_code == reason_codes.CONTINUE_AUTHENTICATION and (not connected or self._reauthenticating):
            self._exchange.proceed(data)
        else:
            # Within an exchange the client has 0x18 and nothing else to say [MQTT-4.12.0-3].
            raise ProtocolViolation("AUTH with a reason code that is not allowed at this point")

    def answer(self, connected: bool) -> Auth | None:
        """Return the AUTH that the exchange has to send; None: the client of a CONNECT has authenticated.

        The AUTH has no Reason String and no User Property that could make it too large [MQTT-3.15.2-2]
        [MQTT-3.15.2-3].

        Raises:
            Refused: the client of a CONNECT has not [MQTT-4.12.0-4].
            ProtocolError: the client that authenticated again has not [MQTT-4.12.1-2].
        """
        code = self._exchange.reason_code
        if code >= 0x80:
            # In both cases: the owner of one account could guess at the others for as long as it likes.
            if self._access_control is not None:
                self._access_control.method_refused(self._connect, self._origin, code)
            if connected:
                raise ProtocolError("re-authentication failed", code)
            raise Refused("authentication failed", code)
        if code == reason_codes.SUCCESS:
            if not connected:
                return None
            self._reauthenticating = False
        auth = Auth(code)  # 0x18 while more is asked for [MQTT-4.12.0-2]
        auth.properties.strings[AUTHENTICATION_METHOD] = self._method
        if self._exchange.data is not None:
            auth.properties.binaries[AUTHENTICATION_DATA] = self._exchange.data
        return auth

    @property
    def principal(self) -> Principal | None:
        """The client, as far as the exchange has found out."""
        return self._exchange.principal

    def tell(self, connack: Connack) -> None:
        """Put the method, and what the exchange has to say at last, into the CONNACK."""
        connack.properties.strings[AUTHENTICATION_METHOD] = self._method
        if self._exchange.data is not None:
            connack.properties.binaries[AUTHENTICATION_DATA] = self._exchange.data


def begin_exchange(connect: Connect, origin: Origin, router: Router) -> Authentication | None:
    """Begin the exchange that a CONNECT asks for; None: it names no method, and no AUTH goes to it [MQTT-4.12.0-6].

    Raises:
        Refused: the method is not known: CONNACK 0x8C [MQTT-4.12.0-1]. Or the client may not begin at all.
    """
    method = connect.properties.strings.get(AUTHENTICATION_METHOD)
    if method is None:
        return None
    known = router.auth_methods.get(method)
    if known is None:
        raise Refused(f"unknown authentication method {method[:64]!r}", reason_codes.BAD_AUTHENTICATION_METHOD)
    access_control = router.access_control
    if access_control is not None:
        barred = access_control.bars(connect, origin)
        if barred >= 0x80:
            raise Refused(reason_codes.name(barred), barred)
    return Authentication(method, known.begin(), connect, origin, access_control)
