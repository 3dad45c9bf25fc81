"""The interfaces through which the core asks for decisions and reports events.

Their implementations are in the shell, in `security` and in embedding programs. The core calls them synchronously. A
hook that is not set costs nothing; one that is set must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from broker.core.addresses import network
from broker.core.codec.packets import Connect
from broker.core.principal import Principal
from broker.core.queues.message import Message

LATER: Final = -1
"""Answer of `AccessControl.admit`: the decision comes later, by `Ticket.answer`."""

FORBIDDEN: Final = -1
"""Answer of `AccessControl.may_subscribe`: not at any QoS."""

UNSTEADY: Final = -1
"""`AccessControl.epoch` if decisions must not be cached."""


class PeerCertificate:
    """A client's certificate, as verified by its listener.

    `subject` as RFC 4514 writes it, `fingerprint` the SHA-256 of the whole certificate in hex; `dns`, `emails` and
    `uris` are its subject alternative names.
    """

    def __init__(
        self,
        subject: str,
        common_name: str = "",
        dns: tuple[str, ...] = (),
        emails: tuple[str, ...] = (),
        uris: tuple[str, ...] = (),
        fingerprint: str = "",
    ) -> None:
        self.subject = subject
        self.common_name = common_name
        self.dns = dns
        self.emails = emails
        self.uris = uris
        self.fingerprint = fingerprint


class Origin:
    """Where a connection comes from. `address` is for people ("host:port"), `host` the peer's IP address ("": none).

    `listener` is the name of its listener; `secure`: over TLS. Behind a proxy with the PROXY protocol, address and
    host are those of the client.
    """

    def __init__(
        self,
        address: str = "",
        host: str = "",
        listener: str = "",
        secure: bool = False,
        certificate: PeerCertificate | None = None,
    ) -> None:
        self.address = address
        self.host = host
        self.listener = listener
        self.secure = secure
        self.certificate = certificate
        # Bytes of the largest packet that the listener accepts; 0: the limit for all listeners.
        self.max_packet_size = 0
        # The mount of the listener, with placeholders (`connect.identity`); empty: none.
        self.mount = ""

    def shares_address(self, host: str) -> bool:
        """Whether an IP address counts as the same: IPv6 by /64."""
        return network(self.host) == network(host)


class Ticket:
    """A CONNECT that is decided on later. Until then nothing more is read from its client.

    `principal`: who the client is. After enhanced authentication it is set already, and the credentials of the CONNECT
    mean nothing. Otherwise `admit` may set it before the answer 0x00, and may use one object for many clients. With
    None, the client is the user of its CONNECT. Without a name in `Principal.authenticator` the user name counts as
    unconfirmed, and what the client holds is on the account of its address (`core.accounts`). `detail`: why a client is
    refused, for the log only; the client gets the name of the reason code.
    """

    def __init__(self, told: Callable[[int], None], principal: Principal | None = None) -> None:
        self._told = told
        self.principal = principal
        self.detail = ""

    def answer(self, reason_code: int) -> None:
        """Answer the CONNECT with the reason code that `AccessControl.admit` would return.

        Call it once, in the thread of the event loop (elsewhere: `loop.call_soon_threadsafe(ticket.answer, code)`). It
        does nothing if the connection has ended meanwhile or was answered, and never raises.
        """
        self._told(reason_code)


@mypyc_attr(allow_interpreted_subclasses=True)
class AccessControl:
    """Decides who may connect, publish, subscribe and receive. The default allows everything."""

    epoch: int = UNSTEADY
    """Increase it when decisions may have changed. While it stays the same, decisions about the same arguments are
    cached; with UNSTEADY none is, and each message is asked about."""

    filters_deliveries: bool = False
    """Whether the broker asks `receive_qos`, and so `may_receive`."""

    ask_work: int = 0
    """The work of one question about a topic or a filter, in deliveries (a quarter of a microsecond each), if it takes
    more than a few microseconds. It is charged to the turn of the client that caused it."""

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        """Reason code for a CONNECT: 0x00 to accept, 0x80 and above to refuse, LATER to call `ticket.answer` later.

        The time until then is part of `limits.connect_timeout`. It sets `ticket.principal` to say who the client is.
        """
        del connect, origin, ticket
        return 0

    def bars(self, connect: Connect, origin: Origin) -> int:
        """Reason code for a CONNECT with an authentication method, before the exchange begins: 0 to continue."""
        del connect, origin
        return 0

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        """An authentication method has refused a client, at its CONNECT or at re-authentication."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        """Whether the client may publish to the topic name with these flags; if not, QoS 1 and 2 get 0x87."""
        del principal, topic, qos, retain
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        """The QoS to grant for the filter (without `$share/name/`), at most `qos`; FORBIDDEN: refused with 0x87."""
        del principal, topic_filter
        return qos

    def may_receive(self, principal: Principal, topic: str) -> bool:
        """Whether the client may receive messages of the topic name. Asked while `filters_deliveries` is True."""
        del principal, topic
        return True

    def receive_qos(self, principal: Principal, topic: str) -> int:
        """The maximum QoS with which a client receives messages of the topic name; FORBIDDEN: it receives none.

        The core asks this while `filters_deliveries` is True; the default asks `may_receive`.
        """
        return 2 if self.may_receive(principal, topic) else FORBIDDEN

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        """Whether a client may do something, and which rule says so, for people: "" where that is not known.

        `action`: "publish", "subscribe" (then `topic` is a filter) or "receive". Asked for the log, a trace or an
        explanation, never for each message.
        """
        if action == "publish":
            return self.may_publish(principal, topic, qos, retain), ""
        if action == "subscribe":
            return self.may_subscribe(principal, topic, qos) >= 0, ""
        return self.receive_qos(principal, topic) >= 0, ""

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        """Whether a filter that is refused is so for a part of it alone, so that narrower ones may be granted.

        Asked for the Reason String of a SUBACK.
        """
        del principal, topic_filter
        return False

    def source(self) -> AccessControl:
        """The object with `epoch` and `filters_deliveries`: itself, or the one that it wraps."""
        return self


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageHook:
    """Is asked about each message of a client before it is routed, and told of retained ones. Must not raise.

    With such a hook, no message takes the hot path.
    """

    def publish(self, principal: Principal, message: Message, will: bool) -> Message | None:
        """The message to route: this one or another. None: it is refused with `reason_code`."""
        del principal, will
        return message

    reason_code: int = 0x83
    """The reason code of the last message that `publish` has refused."""

    def retained(self, message: Message) -> None:
        """A retained message was stored, or its topic cleared: then its payload is empty."""


@mypyc_attr(allow_interpreted_subclasses=True)
class EventListener:
    """Is told of events. The default ignores them."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        """A subscription was made or replaced; `qos` is the granted one."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A client has unsubscribed."""

    def session_ended(self, client_id: str) -> None:
        """A session has ended: with its connection, by expiry, or by a clean start."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SubscriptionListener:
    """Is told of the topic filters of this broker's clients: the links to upstream brokers."""

    def wanted(self, topic_filter: str) -> None:
        """A subscription to a topic filter (without `$share/name/`) was made."""

    def unwanted(self, topic_filter: str) -> None:
        """A subscription to a topic filter has ended: by UNSUBSCRIBE, or with its session."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthExchange:
    """One run of an authentication method with one client (5.0 section 4.12), made for each CONNECT that names it.

    After each call the protocol reads `reason_code` (0x18: another round, 0x00: done, 0x80 and above: refused)
    and sends `data`, if it is not None, as Authentication Data. `principal`: who the client is, set before
    the reason code is 0x00; None leaves that to access control.
    """

    def __init__(self) -> None:
        self.reason_code = 0x87
        self.data: bytes | None = None
        self.principal: Principal | None = None

    def start(self, connect: Connect, data: bytes | None) -> None:
        """A CONNECT was received, with this Authentication Data."""

    def proceed(self, data: bytes | None) -> None:
        """An AUTH with 0x18 was received."""

    def again(self, data: bytes | None) -> None:
        """An AUTH with 0x19 was received: the client re-authenticates on the open connection."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthMethod:
    """A named authentication method, which makes exchanges."""

    def begin(self) -> AuthExchange:
        """A new exchange."""
        return AuthExchange()
