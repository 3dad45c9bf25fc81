"""The enhanced authentication of one connection whose CONNECT named a method (5.0 section 4.12)."""

from __future__ import annotations

from broker.core.codec import reasons
from broker.core.codec.errors import ProtocolError, ProtocolViolation, Refused
from broker.core.codec.packets import Auth, Connack, Connect
from broker.core.codec.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD
from broker.core.hooks import AccessControl, AuthExchange, Origin
from broker.core.principal import Principal
from broker.core.routing.router import Router


class Authentication:
    """One exchange: started by the CONNECT, and again when the client re-authenticates."""

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
        """The CONNECT came."""
        connect = self._connect
        self._exchange.start(connect, connect.properties.binaries.get(AUTHENTICATION_DATA))

    def proceed(self, packet: Auth, connected: bool) -> None:
        """AUTH came: only for the method that the CONNECT named, in re-authentication too [MQTT-4.12.1-1].

        Raises:
            ProtocolViolation: it names another method, or may not come now.
        """
        if packet.properties.strings.get(AUTHENTICATION_METHOD) != self._method:
            raise ProtocolViolation("AUTH names another authentication method than CONNECT")  # [MQTT-4.12.0-5]
        data = packet.properties.binaries.get(AUTHENTICATION_DATA)
        if packet.reason_code == reasons.REAUTHENTICATE:
            if not connected or self._reauthenticating:
                raise ProtocolViolation("re-authentication while authenticating")
            self._reauthenticating = True
            self._exchange.again(data)
        elif packet.reason_code == reasons.CONTINUE_AUTHENTICATION and (not connected or self._reauthenticating):
            self._exchange.proceed(data)
        else:
            # Within an exchange the client has 0x18 and nothing else to say [MQTT-4.12.0-3].
            raise ProtocolViolation("AUTH with a reason code that is not allowed at this point")

    def answer(self, connected: bool) -> Auth | None:
        """What the exchange has come to: an AUTH to send; None: the client of a CONNECT has authenticated.

        The AUTH has no Reason String and no User Property that could make it too large [MQTT-3.15.2-2]
        [MQTT-3.15.2-3].

        Raises:
            Refused: the client of a CONNECT has not [MQTT-4.12.0-4].
            ProtocolError: the client that authenticated again has not [MQTT-4.12.1-2].
        """
        code = self._exchange.reason_code
        if code >= 0x80:
            # In both cases: whoever has one account could guess at the others for as long as it likes.
            if self._access_control is not None:
                self._access_control.method_refused(self._connect, self._origin, code)
            if connected:
                raise ProtocolError("re-authentication failed", code)
            raise Refused("authentication failed", code)
        if code == reasons.SUCCESS:
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
        """Who the client is, as far as the exchange has found out."""
        return self._exchange.principal

    def tell(self, connack: Connack) -> None:
        """Put the method, and what the exchange has to say at last, into the CONNACK."""
        connack.properties.strings[AUTHENTICATION_METHOD] = self._method
        if self._exchange.data is not None:
            connack.properties.binaries[AUTHENTICATION_DATA] = self._exchange.data


def begin(connect: Connect, origin: Origin, router: Router) -> Authentication | None:
    """The exchange that a CONNECT asks for; None when it names no method: no AUTH goes to it then [MQTT-4.12.0-6].

    Raises:
        Refused: the method is not known: CONNACK 0x8C [MQTT-4.12.0-1]. Or the client may not begin at all.
    """
    method = connect.properties.strings.get(AUTHENTICATION_METHOD)
    if method is None:
        return None
    known = router.auth_methods.get(method)
    if known is None:
        raise Refused(f"unknown authentication method {method[:64]!r}", reasons.BAD_AUTHENTICATION_METHOD)
    access_control = router.access_control
    if access_control is not None:
        barred = access_control.bars(connect, origin)
        if barred >= 0x80:
            raise Refused(reasons.name(barred), barred)
    return Authentication(method, known.begin(), connect, origin, access_control)
