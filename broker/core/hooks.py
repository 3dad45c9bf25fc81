"""What the core asks and tells the outside: who may do what, and what happened.

Owns the interfaces; their implementations live in the shell, the security room and embedding programs. The core
calls them synchronously. A hook that is not set costs nothing; one that is set must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from broker.core.codec.packets import Connect

LATER: Final = -1
"""Answer of `AccessControl.admit`: the decision comes later, by `Ticket.answer`."""


class Ticket:
    """A CONNECT whose decision comes later. Nothing more is read from its client until then."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told

    def answer(self, reason_code: int) -> None:
        """The decision, in the sense of `AccessControl.admit`: the client has its CONNACK at once.

        Call it once, in the thread of the event loop (elsewhere: `loop.call_soon_threadsafe(ticket.answer, code)`). It
        does nothing when the connection has ended meanwhile or was answered, and raises nothing.
        """
        self._told(reason_code)


@mypyc_attr(allow_interpreted_subclasses=True)
class AccessControl:
    """Who may connect, publish and subscribe. The default lets everybody do everything."""

    def admit(self, connect: Connect, address: str, ticket: Ticket) -> int:
        """Reason code for a CONNECT: 0x00 to accept, 0x80 and above to refuse, LATER to call `ticket.answer` later.

        The time until then is part of `limits.connect_timeout`.
        """
        del connect, address, ticket
        return 0

    def may_publish(self, client_id: str, user_name: str | None, topic: str) -> bool:
        """Whether the client may publish to the topic name; refused with 0x87 where the packet has an answer."""
        del client_id, user_name, topic
        return True

    def may_subscribe(self, client_id: str, user_name: str | None, topic_filter: str) -> bool:
        """Whether the client may subscribe to the filter (without `$share/name/`); refused with 0x87."""
        del client_id, user_name, topic_filter
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class EventListener:
    """Who is told what happened. The default ignores it."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        """A subscription was made or replaced; `qos` is the granted one."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A subscription was taken back by its client."""

    def session_ended(self, client_id: str) -> None:
        """A session is over: its connection closed with no expiry, it expired, or was replaced by a clean start."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SubscriptionListener:
    """Who is told which topic filters the clients of this broker ask for: the links to upstream brokers."""

    def wanted(self, topic_filter: str) -> None:
        """One more subscription has been made at a topic filter (without `$share/name/`)."""

    def unwanted(self, topic_filter: str) -> None:
        """A subscription at a topic filter has ended: taken back, or with its session."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthExchange:
    """One run of an authentication method with one client (5.0 section 4.12). Made for each CONNECT that names it.

    After each call the protocol reads `reason_code` (0x18: another round, 0x00: done, 0x80 and above: refused)
    and sends `data`, when it is not None, as Authentication Data.
    """

    def __init__(self) -> None:
        self.reason_code = 0x87
        self.data: bytes | None = None

    def start(self, connect: Connect, data: bytes | None) -> None:
        """The CONNECT came, with its Authentication Data."""

    def proceed(self, data: bytes | None) -> None:
        """An AUTH with 0x18 came."""

    def again(self, data: bytes | None) -> None:
        """An AUTH with 0x19 came: the client authenticates again on the open connection."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthMethod:
    """A named authentication method: makes exchanges."""

    def begin(self) -> AuthExchange:
        """A new exchange."""
        return AuthExchange()
