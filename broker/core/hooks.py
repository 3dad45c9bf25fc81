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
"""`AccessControl.epoch` of one whose verdicts nobody may remember."""


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

    `listener` is the name of the listener that it came by; `secure`: over TLS. Behind a proxy that says so, address and
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
        # Bytes of the largest packet that the listener takes from a client; 0: what `Limits` has for all.
        self.max_packet_size = 0
        # The node of the mesh that has come, over a pipe; "": a client.
        self.node = ""
        # The mount of the listener, with placeholders (`connection.mounting`); empty: none.
        self.mount = ""

    def shares_address(self, host: str) -> bool:
        """Whether an IP address counts as this one: IPv6 by /64."""
        return network(self.host) == network(host)


class Ticket:
    """A CONNECT that is decided on later. Until then nothing more is read from its client.

    `principal`: who the client is. Where an authentication exchange has found that out it is set already, and the
    credentials of the CONNECT mean nothing. Else whoever admits the client may set it, before the answer is 0x00, and
    may answer for many clients with one object. With None, the client is whom its CONNECT says. `detail`: why a client
    is refused, for the log alone; the client hears the name of the reason code.
    """

    def __init__(self, told: Callable[[int], None], principal: Principal | None = None) -> None:
        self._told = told
        self.principal = principal
        self.detail = ""

    def answer(self, reason_code: int) -> None:
        """The decision, in the sense of `AccessControl.admit`: the client has its CONNACK at once.

        Call it once, in the thread of the event loop (elsewhere: `loop.call_soon_threadsafe(ticket.answer, code)`). It
        does nothing when the connection has ended meanwhile or was answered, and raises nothing.
        """
        self._told(reason_code)


@mypyc_attr(allow_interpreted_subclasses=True)
class AccessControl:
    """Decides who may connect, publish, subscribe and receive. The default allows everything."""

    epoch: int = UNSTEADY
    """Grows when verdicts may have become others. As long as it stays, a verdict about the same arguments may be
    remembered; with UNSTEADY none is, and each message is asked about."""

    filters_deliveries: bool = False
    """Whether `receive_qos`, and so `may_receive`, is to be asked."""

    ask_work: int = 0
    """What one question about a topic or a filter counts for in the turn of who caused it, in deliveries (a quarter of
    a microsecond each), where it takes more than a few microseconds."""

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        """Reason code for a CONNECT: 0x00 to accept, 0x80 and above to refuse, LATER to call `ticket.answer` later.

        The time until then is part of `limits.connect_timeout`. With `ticket.principal` it says who the client is.
        """
        del connect, origin, ticket
        return 0

    def bars(self, connect: Connect, origin: Origin) -> int:
        """Reason code for a CONNECT that names an authentication method, before that is begun: 0 to go on with it."""
        del connect, origin
        return 0

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        """An authentication method has refused the client of a CONNECT, or one that authenticated again."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        """Whether the client may publish so to the topic name; refused with 0x87 where the packet has an answer."""
        del principal, topic, qos, retain
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        """The QoS to grant for the filter (without `$share/name/`), at most `qos`; FORBIDDEN: refused with 0x87."""
        del principal, topic_filter
        return qos

    def may_receive(self, principal: Principal, topic: str) -> bool:
        """Whether the client may be sent messages of the topic name. Asked while `filters_deliveries` is True."""
        del principal, topic
        return True

    def receive_qos(self, principal: Principal, topic: str) -> int:
        """The QoS with which a client is sent messages of the topic name, at most; FORBIDDEN: it is sent none.

        This is what the core asks while `filters_deliveries` is True; the default knows `may_receive` alone.
        """
        return 2 if self.may_receive(principal, topic) else FORBIDDEN

    def source(self) -> AccessControl:
        """Who has `epoch` and `filters_deliveries`: itself, or what it stands before."""
        return self


@mypyc_attr(allow_interpreted_subclasses=True)
class OwnerClaim:
    """A connection that waits for the session of its client identifier, or is about to open it."""

    def over(self) -> None:
        """The session is open, or the connection has ended: it is not told any more."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner:
    """Ensures that a client identifier has one session among several brokers (`broker.mesh.ownership`).

    Asked for each client that was admitted with an identifier of its own, before its session is opened.
    """

    def claim(
        self, client_id: str, user_name: str | None, clean_start: bool, told: Callable[[int], None]
    ) -> OwnerClaim | None:
        """None: the client may have its session now. Else `told` is called in a later turn of the event loop.

        With 0: what other brokers had of it is here; with a reason code of 0x80 and above the client is refused. The
        caller calls `OwnerClaim.over`, whatever becomes of it.
        """
        del client_id, user_name, clean_start, told
        return None

    def hand_over(self) -> int:
        """This broker is about to go: have others fetch some of the sessions whose clients are away.

        It is called again and again; the sessions are those of clients that are away when it is called first, or first
        after `stay`. How many are on their way, or have still to go.
        """
        return 0

    def stay(self) -> None:
        """Sessions that have not gone stay here, and others may come again."""


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageHook:
    """Is asked about each message of a client before it is routed, and told of retained ones. Must not raise.

    While there is one, no message takes the hot path.
    """

    def publish(self, principal: Principal, message: Message, will: bool) -> Message | None:
        """What is routed in its place, or the message itself; None: it goes nowhere, for `reason_code`."""
        del principal, will
        return message

    reason_code: int = 0x83
    """With which the last message was refused that `publish` has refused."""

    def retained(self, message: Message) -> None:
        """A retained message was stored, or its topic cleared: then its payload is empty."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RetainedListener:
    """Is told of each change of the retained messages, except the broker's own (`$SYS`). Must not raise."""

    def written(self, topic: str) -> None:
        """A topic's retained message was kept, replaced or cleared, or one was refused in whose place there is none."""

    def expired(self, topic: str) -> None:
        """The message expiry interval of a topic's retained message has passed: it is kept no longer."""


@mypyc_attr(allow_interpreted_subclasses=True)
class EventListener:
    """Is told of events. The default ignores them."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        """A subscription was made or replaced; `qos` is the granted one."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A subscription was taken back by its client."""

    def session_ended(self, client_id: str) -> None:
        """A session is over: its connection closed with no expiry, it expired, or was replaced by a clean start."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SubscriptionListener:
    """Is told of the topic filters of this broker's clients: the links to upstream brokers."""

    def wanted(self, topic_filter: str) -> None:
        """One more subscription has been made at a topic filter (without `$share/name/`)."""

    def unwanted(self, topic_filter: str) -> None:
        """A subscription at a topic filter has ended: taken back, or with its session."""


@mypyc_attr(allow_interpreted_subclasses=True)
class NodeListener:
    """Is told of the topic filters of this node of a mesh, except those of other nodes."""

    def wanted(self, topic_filter: str, share: str) -> None:
        """One more subscription has been made at a topic filter; `share`: by a member of that share group."""

    def unwanted(self, topic_filter: str, share: str) -> None:
        """A subscription has ended: taken back, or with its session."""

    def moved(self, topic_filter: str, share: str) -> None:
        """A member of a share group has connected, or its connection has ended."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LateListener:
    """Who is told of what another node sends for sessions that have moved here, and for nobody else."""

    def came(self, move: str, node: str, message: Message) -> int:
        """A message from the session of a node here. For how many sessions it was."""
        raise NotImplementedError


class Confirmed:
    """An answer that is sent when the other nodes of a mesh have confirmed the subscriptions here."""

    def confirmed(self) -> None:
        """They have, or it waits no longer. Called once, never from within `Confirmer.wait`."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Confirmer:
    """Knows what other nodes have confirmed."""

    def wait(self, waiting: Confirmed) -> bool:
        """Have it be told when all that was asked for here so far is confirmed. False: there is nothing to wait for."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthExchange:
    """One run of an authentication method with one client (5.0 section 4.12), made for each CONNECT that names it.

    After each call the protocol reads `reason_code` (0x18: another round, 0x00: done, 0x80 and above: refused)
    and sends `data`, when it is not None, as Authentication Data. `principal`: who the client is, set by the time that
    the reason code is 0x00; None leaves that to access control.
    """

    def __init__(self) -> None:
        self.reason_code = 0x87
        self.data: bytes | None = None
        self.principal: Principal | None = None

    def start(self, connect: Connect, data: bytes | None) -> None:
        """The CONNECT came, with its Authentication Data."""

    def proceed(self, data: bytes | None) -> None:
        """An AUTH with 0x18 came."""

    def again(self, data: bytes | None) -> None:
        """An AUTH with 0x19 came: the client authenticates again on the open connection."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthMethod:
    """A named authentication method, which makes exchanges."""

    def begin(self) -> AuthExchange:
        """A new exchange."""
        return AuthExchange()
