"""The interfaces through which the core asks for decisions and reports events.

Other rooms and embedding programs implement them. The core calls them synchronously. A hook that is not set costs one
comparison; a hook that is set must not block. Owns `Permissions` too: which decisions may be cached, and until when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.accounts import Account
    from canopy_mqtt.core.topics.subscription import Subscription

LATER: Final = -1
"""Answer of `AccessControl.admit`: the decision comes later, by `Ticket.answer`."""

FORBIDDEN: Final = -1
"""Answer of `AccessControl.may_subscribe` and `receive_qos`: not at any QoS."""

SAMPLE_SHARE: Final = 256
"""Bytes that each PUBLISH counts in a sample besides its own, so that small ones are seen as well as large ones."""

NO_SAMPLE: Final = 1 << 62
"""`PublishSampler.until` while nothing is sampled: more bytes than a broker receives in a century."""

UNSTEADY: Final = -1
"""Value of `AccessControl.epoch` if decisions must not be cached."""


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
    """The source of a connection: the `address` for people ("host:port"), and the IP address `host` ("": none).

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
        # The address, where it is not made of `host` and `port` when it is read.
        self.text = address
        self.host = host
        self.port = 0
        self.listener = listener
        self.secure = secure
        self.certificate = certificate
        # Bytes of the largest packet that the listener accepts; 0: the limit for all listeners.
        self.max_packet_size = 0
        # Seconds for which the listener lets messages wait for more; -1.0: as for all listeners.
        self.max_delay = -1.0
        # The mount of the listener, with placeholders (`protocol.identity`); empty: none.
        self.mount = ""
        # Of the listener for other nodes: who decides about a CONNECT in place of access control. None: it is for
        # clients.
        self.door: NodeDoor | None = None

    @property
    def address(self) -> str:
        """Return the peer's address for people, such as "192.0.2.1:4711"."""
        if self.text or not self.port:
            return self.text
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Ticket:
    """A CONNECT that is decided later. Until then the broker reads nothing more from its client.

    `principal`: the identity of the client. After enhanced authentication it is set already, and the credentials of the
    CONNECT mean nothing. Otherwise `admit` may set it before the answer 0x00, and may use one object for many clients.
    With None, the client is the user of its CONNECT. Without a name in `Principal.authenticator` the user name counts
    as unconfirmed, and the account of the client's address pays for what it holds (`core.accounts`). `detail`: the
    reason of a refusal, for the log only; the client gets the name of the reason code.
    """

    def __init__(self, told: Callable[[int], None] | None, principal: Principal | None = None) -> None:
        """`told` hears of a late answer."""
        self.principal = principal
        self.detail = ""
        self._told = told
        self._asking = False  # `admit` has not returned yet
        self._early_answer = LATER

    def answer(self, reason_code: int) -> None:
        """Answer the CONNECT with the reason code that `AccessControl.admit` would return.

        Call it once, in the thread of the event loop (elsewhere: `loop.call_soon_threadsafe(ticket.answer, code)`). It
        does nothing if the connection has ended meanwhile or was answered, and never raises.
        """
        if self._asking:
            self._early_answer = reason_code
        elif self._told is not None:
            self._told(reason_code)

    def ask(self, access_control: AccessControl, connect: Connect, origin: Origin) -> int:
        """Ask about a CONNECT: its reason code, or LATER. The core's alone, as `discard`."""
        self._asking = True
        try:
            answer = access_control.admit(connect, origin, self)
        finally:
            self._asking = False
        return self._early_answer if answer == LATER else answer

    def discard(self) -> None:
        """Take no answer any more: the client is in, or its connection has ended."""
        self._told = None


@mypyc_attr(allow_interpreted_subclasses=True)
class AccessControl:
    """Decides who may connect, publish, subscribe and receive. The default allows everything."""

    epoch: int = UNSTEADY
    """Increase it when decisions may have changed. While it stays the same, the core caches decisions about the same
    arguments; with UNSTEADY it asks about each message."""

    filters_deliveries: bool = False
    """True if the core asks `receive_qos`, and so `may_receive`."""

    ask_work: int = 0
    """The work of one question about a topic or a filter, in deliveries (a quarter of a microsecond each), if it takes
    more than a few microseconds. It is charged to the turn of the client that caused it."""

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        """Return the reason code for a CONNECT: 0x00 to accept, 0x80 and above to refuse, LATER: see `Ticket.answer`.

        Any other answer is a refusal with 0x83. The time until then is part of `limits.connect_timeout`. It sets
        `ticket.principal` to say who the client is.
        """
        del connect, origin, ticket
        return 0

    def bars(self, connect: Connect, origin: Origin) -> int:
        """Return the reason code for a CONNECT with an authentication method, before the exchange: 0 to continue."""
        del connect, origin
        return 0

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        """Called when an authentication method has refused a client, at its CONNECT or at re-authentication."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        """Return True if the client may publish to the topic name with these flags; else QoS 1 and 2 get 0x87."""
        del principal, topic, qos, retain
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        """Return the QoS to grant for the filter (without `$share/name/`), at most `qos`; FORBIDDEN: 0x87."""
        del principal, topic_filter
        return qos

    def may_receive(self, principal: Principal, topic: str) -> bool:
        """Return True if the client may receive messages of the topic name."""
        del principal, topic
        return True

    def receive_qos(self, principal: Principal, topic: str) -> int:
        """Return the maximum QoS of messages of the topic name for the client; FORBIDDEN: it receives none.

        The core asks this while `filters_deliveries` is True; the default asks `may_receive`.
        """
        return 2 if self.may_receive(principal, topic) else FORBIDDEN

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        """Return whether a client may do something, and the rule that says so, for people; "": an unknown rule.

        `action`: "publish", "subscribe" (then `topic` is a filter) or "receive". Asked for the log, a trace or an
        explanation, never for each message.
        """
        if action == "publish":
            return self.may_publish(principal, topic, qos, retain), ""
        if action == "subscribe":
            return self.may_subscribe(principal, topic, qos) >= 0, ""
        return self.receive_qos(principal, topic) >= 0, ""

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        """Return True if a refused filter is refused for a part of it alone, so that narrower ones may be granted.

        Asked for the Reason String of a SUBACK.
        """
        del principal, topic_filter
        return False

    def source(self) -> AccessControl:
        """Return the object with `epoch` and `filters_deliveries`: itself, or the one that it wraps."""
        return self


NEVER_MADE: Final = -1
"""A stamp that no verdict has."""


class Permissions:
    """The decisions of one access control, and whether they may be cached."""

    def __init__(self, asked: AccessControl, before: int = 0) -> None:
        """`asked` is who is asked, guards included; `before`: the `epochs` of the one in whose place this is."""
        self.asked = asked
        self.source = asked.source()
        self._epoch = self.source.epoch
        # How often what was said before has lost its worth.
        self.epochs: i64 = before + 1
        # The same, and how often a receiver has become another principal.
        self._stamp: i64 = self.epochs << 32

    @property
    def steady(self) -> bool:
        """Return whether verdicts may be remembered as long as `epochs` stays."""
        return self.source.epoch != UNSTEADY

    @property
    def filters(self) -> bool:
        """Return whether some client may not be sent everything."""
        return self.source.filters_deliveries

    def delivery_stamp(self) -> i64:
        """Return the stamp of verdicts about deliveries while some may not be sent everything, else 0.

        Recipients are computed with it. Call it where they are used: it looks for a new epoch.
        """
        if not self.source.filters_deliveries:
            return 0
        self.refresh()
        return self._stamp

    def refresh(self) -> None:
        """See whether access control says other things by now."""
        epoch = self.source.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self.epochs += 1
            self._stamp += 1
        elif epoch == UNSTEADY:
            self._stamp += 1

    def publish_key(self, header: i64) -> i64:
        """Return the key of a verdict about a publish; `header`: the first byte of its packet."""
        self.refresh()
        return self.epochs << 8 | header

    def principal_changed(self) -> None:
        """A session that has subscriptions has another principal."""
        self._stamp += 1

    def bars(self, principal: Principal, topic: bytes) -> bool:
        """Return whether a client is sent no messages of a topic, which is as messages have it."""
        return self.asked.receive_qos(principal, topic.decode()) < 0


@mypyc_attr(allow_interpreted_subclasses=True)
class BanHook:
    """Keeps banned clients out. The core asks it about each CONNECT while a ban is in force. Must not raise."""

    def bars(self, client_id: str, user: str | None, host: str, now: float) -> bool:
        """Return True if a ban keeps the client out. `user`: its user name, `host`: its IP address ("": none)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageHook:
    """Decides about each message of a client before it is routed, and sees retained ones. Must not raise.

    With such a hook, no message takes the hot path.
    """

    def publish(self, principal: Principal, message: Message, will: bool) -> Message | None:
        """Return the message to route: this one or another. None: it is refused with `reason_code`."""
        del principal, will
        return message

    reason_code: int = 0x83
    """The reason code of the last message that `publish` has refused."""

    def retained(self, message: Message) -> None:
        """Called when a retained message was stored, or its topic cleared: then its payload is empty."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LossListener:
    """Gets each loss of messages at a queue. Must not raise."""

    def lost_messages(self, client_id: str, cause: int, count: int) -> None:
        """Called when `count` messages for a client were dropped for `cause` (`core.ledger`)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Recorder:
    """Records what the broker does, in the order of the calls (`canopy_mqtt.record.tap`). Must not raise."""

    deliveries: bool = False
    """True if the core calls `delivered` and `refused` for each message that `message` was called for."""

    def frames(self, data: bytes, count: i64, v5: bool, publisher: str) -> None:
        """Record `count` QoS 0 PUBLISH frames side by side, without retain flag and properties."""
        raise NotImplementedError

    def message(self, message: Message, now: float) -> None:
        """Record a message before it is offered to its receivers."""
        raise NotImplementedError

    def delivered(self, client_id: str, qos: int, retain: bool, shared: str | None) -> None:
        """Record that a client's queue accepted the last message. `shared`: the client's shared subscription."""
        raise NotImplementedError

    def refused(self, client_id: str, cause: int, shared: str | None) -> None:
        """Record that a client's queue refused the last message; `lost_messages` was called for it before."""
        raise NotImplementedError

    def lost_messages(self, client_id: str, cause: int, count: int) -> None:
        """Record that `count` messages for a client were dropped for `cause` (`core.ledger`)."""
        raise NotImplementedError

    def subscribed(self, subscription: Subscription, snapshot: bool) -> None:
        """Record that a subscription was made or replaced, or (`snapshot`) that it existed before."""
        raise NotImplementedError

    def unsubscribed(self, client_id: str, topic_filter: str, ended: bool) -> None:
        """Record that a client has unsubscribed, or that a subscription has `ended` with its session."""
        raise NotImplementedError

    def connected(
        self, client_id: str, address: str, user_name: str | None, version: int, clean_start: bool, present: bool
    ) -> None:
        """Record that a client was accepted."""
        raise NotImplementedError

    def disconnected(self, client_id: str, address: str, cause: str) -> None:
        """Record that a connection has ended, for one of `core.causes`."""
        raise NotImplementedError

    def note_number(self) -> None:
        """Keep the number of the last event. Called after each batch, before its acknowledgements are written."""
        raise NotImplementedError


class PublishSampler:
    """Looks at a sample of the publishes. This one looks at none; `canopy_mqtt.observe.sampling.sampler` does.

    The core subtracts `SAMPLE_SHARE` and the bytes of each PUBLISH from `until`, and calls `take` or `skip` if the
    result is below 0: this comparison is the only work for all other publishes.
    """

    def __init__(self) -> None:
        self.until: i64 = NO_SAMPLE

    def take(self, buffer: bytes, start: i64, end: i64, count: i64, topic: bytes, mount: bytes, publisher: str) -> None:
        """Look at the `count` PUBLISH frames in `buffer[start:end]`, and set `until` again.

        `topic`: the topic name of a single frame that has only an alias; `mount`: the prefix of all topics.
        """
        raise NotImplementedError

    def skip(self) -> None:
        """Set `until` again: the frames are not known any more."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class EventListener:
    """Gets events. The default ignores them."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        """Called when a subscription was made or replaced; `qos` is the granted one."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """Called when a client has unsubscribed."""

    def session_ended(self, client_id: str) -> None:
        """Called when a session has ended: with its connection, by expiry, or by a clean start."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SubscriptionListener:
    """Gets the subscriptions of this broker, for the links to other brokers.

    `topic_filter`: without `$share/name/`.
    """

    def subscribed(self, subscription: Subscription, topic_filter: str) -> None:
        """Called when a subscription was made."""

    def unsubscribed(self, subscription: Subscription, topic_filter: str) -> None:
        """Called when a subscription ends: by UNSUBSCRIBE, or with its session."""

    def wanted(self, topic_filter: str) -> None:
        """Called when another node is to be told of the members of a share group that lives there, by this filter."""

    def unwanted(self, topic_filter: str) -> None:
        """Called when that has changed: by this filter no longer."""

    def waits(self, told: Confirmed, topic_filters: list[str]) -> bool:
        """Return True if a SUBACK for these filters has to wait for other brokers: `told` hears once when it may go."""
        del told, topic_filters
        return False


@mypyc_attr(allow_interpreted_subclasses=True)
class Confirmed:
    """A client that waits for other brokers to know a subscription, on the account of its principal."""

    def __init__(self, client_id: str, account: Account) -> None:
        self.client_id = client_id
        self.account = account

    def confirmed(self) -> None:
        """Called once: they know it, or are not waited for any longer."""


@mypyc_attr(allow_interpreted_subclasses=True)
class NodeDoor:
    """Decides who comes in at the listener for the other nodes of a cluster."""

    def check(self, connect: Connect, origin: Origin) -> list[tuple[str, str]]:
        """Return the user properties for the CONNACK of a node, at least one. Raises Refused."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthExchange:
    """One run of an authentication method with one client (5.0 section 4.12), made for each CONNECT that names it.

    After each call the protocol reads `reason_code` (0x18: another round, 0x00: done, 0x80 and above: refused)
    and sends `data`, if it is not None, as Authentication Data. `principal`: the identity of the client, set before
    the reason code is 0x00; None leaves that to access control.
    """

    def __init__(self) -> None:
        self.reason_code = 0x87
        self.data: bytes | None = None
        self.principal: Principal | None = None

    def start(self, connect: Connect, data: bytes | None) -> None:
        """Called for a CONNECT with this Authentication Data."""

    def proceed(self, data: bytes | None) -> None:
        """Called for an AUTH with 0x18."""

    def again(self, data: bytes | None) -> None:
        """Called for an AUTH with 0x19: the client re-authenticates on the open connection."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthMethod:
    """A named authentication method."""

    def begin(self) -> AuthExchange:
        """Return a new exchange."""
        return AuthExchange()
