"""The interface of plug-ins. The broker calls each method on its event loop, and all clients wait while it runs.

A plug-in defines the methods that it needs; the others are never called and cost nothing. A method may be `async` if
its description says so.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.inprocess.properties import Properties


class Published:
    """A message that a client publishes, or its will, before it is routed. A plug-in may change it.

    `qos` may be lowered, not raised; the acknowledgement is for the QoS with which the client published. `properties`
    is replaced as a whole; a message expiry interval counts from now on.
    """

    __slots__ = ("payload", "properties", "qos", "retain", "topic", "will")

    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties, will: bool) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.will = will
        """True for a will."""

    def __repr__(self) -> str:
        return f"<Published {self.topic!r}: {len(self.payload)} bytes, QoS {self.qos}>"


Answer = int | None
"""A reason code of 0x80 and above refuses; 0 or None accepts."""


class Hooks:
    """The base of a plug-in. docs/hooks.md says when each hook is called, what it costs, and what an exception does."""

    def start(self, broker: Any) -> Awaitable[None] | None:
        """The broker, a `canopy_mqtt.Broker`, is about to listen. It does not start if this raises. May be `async`."""

    def stop(self) -> Awaitable[None] | None:
        """The broker has stopped. May be `async`."""

    def connect(self, client: Principal, connect: Connect) -> Answer | Awaitable[Answer]:
        """A client that access control has admitted is about to get its CONNACK. May be `async`, within
        `limits.connect_timeout`. An exception refuses the client with 0x88."""

    def connected(self, client: Principal) -> Awaitable[None] | None:
        """A client has got its CONNACK. May be `async`."""

    def disconnected(self, client: Principal, cause: str) -> Awaitable[None] | None:
        """The connection of an accepted client has ended; `cause` as in the log. May be `async`."""

    def subscribe(self, client: Principal, topic_filter: str, qos: int) -> int:
        """The QoS to grant for a filter (without `$share/name/`) that access control allows with `qos`; 0x80 and above
        refuses it with 0x87, and so does an exception."""
        del client, topic_filter
        return qos

    def publish(self, client: Principal, message: Published) -> Answer:
        """A client has published a message that access control allows, or its will is due. The broker routes the
        message as this leaves it. A reason code refuses it, in PUBACK or PUBREC (5.0); an exception refuses it with
        0x83."""

    def deliver(self, client: Principal, topic: str) -> bool:
        """Return True to let a client receive a message of this topic; called for each message and client. An exception
        means that it may not.
        """
        del client, topic
        return True

    def drop(self, client_id: str, cause: str, count: int) -> Awaitable[None] | None:
        """`count` messages for a client were dropped, for a cause of docs/overload.md. May be `async`."""

    def session(self, client_id: str, event: str) -> Awaitable[None] | None:
        """A session was `created`, `resumed` or has `ended`. May be `async`."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> Awaitable[None] | None:
        """A subscription was made or replaced, with this QoS."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> Awaitable[None] | None:
        """A client has unsubscribed."""

    def retained(self, topic: str, payload: bytes) -> Awaitable[None] | None:
        """A retained message was stored; with an empty payload it was cleared."""

    def upstream(self, name: str, state: str) -> Awaitable[None] | None:
        """A link to an upstream broker has changed its state: `connecting`, `up`, `waiting`, `stopped` …"""


NAMES = tuple(name for name in vars(Hooks) if not name.startswith("_"))
"""Every hook."""


def defined(plugin: Any, name: str) -> Any:
    """The method of a plug-in, or None if it does not define it."""
    found = getattr(plugin, name, None)
    if found is None or getattr(type(plugin), name, None) is getattr(Hooks, name):
        return None
    return found
