"""What a plug-in may define. Each method is called on the event loop of the broker, and everybody waits while it runs.

A plug-in defines what it wants; what it leaves out is never called and costs nothing. Those that may be `async` say so.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from broker.core.codec.packets import Connect
from broker.core.principal import Principal
from broker.inprocess.properties import Properties


class Published:
    """A message that a client publishes, or its will, before it is routed. What a plug-in changes is what is routed.

    `qos` may be lowered, not raised; its client is answered for the QoS with which it published. `properties` is
    replaced as a whole; a message expiry interval counts from now on.
    """

    __slots__ = ("payload", "properties", "qos", "retain", "topic", "will")

    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties, will: bool) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.will = will
        """Whether it is a will."""

    def __repr__(self) -> str:
        return f"<Published {self.topic!r}: {len(self.payload)} bytes, QoS {self.qos}>"


Answer = int | None
"""A reason code of 0x80 and above refuses; 0 or None goes on."""


class Hooks:
    """The base of a plug-in. docs/hooks.md has the table of moments, costs and of what an exception does."""

    def start(self, broker: Any) -> Awaitable[None] | None:
        """The broker, a `canopy.Broker`, is about to listen; not if this raises. May be `async`."""

    def stop(self) -> Awaitable[None] | None:
        """The broker has stopped. May be `async`."""

    def connect(self, client: Principal, connect: Connect) -> Answer | Awaitable[Answer]:
        """A client that access control has admitted is about to get its CONNACK. May be `async`, for as long as
        `limits.connect_timeout` allows. Raising refuses with 0x88."""

    def connected(self, client: Principal) -> Awaitable[None] | None:
        """A client has got its CONNACK. May be `async`."""

    def disconnected(self, client: Principal, cause: str) -> Awaitable[None] | None:
        """The connection of a client that was accepted is over, for one of the causes of the log. May be `async`."""

    def subscribe(self, client: Principal, topic_filter: str, qos: int) -> int:
        """The QoS to grant, of those that access control allows, for a filter (without `$share/name/`); 0x80 and above
        refuses it with 0x87. Raising refuses it."""
        del client, topic_filter
        return qos

    def publish(self, client: Principal, message: Published) -> Answer:
        """A client that access control allows to has published a message, or its will is due; what is routed is what
        this leaves of it. A reason code refuses it: in PUBACK or PUBREC (5.0). Raising refuses it with 0x83."""

    def deliver(self, client: Principal, topic: str) -> bool:
        """Whether a client may be sent a message of this topic: asked for each message and client. Raising: it may
        not."""
        del client, topic
        return True

    def drop(self, client_id: str, cause: str, count: int) -> Awaitable[None] | None:
        """So many messages for a client were dropped, for a cause of docs/overload.md. May be `async`."""

    def session(self, client_id: str, event: str) -> Awaitable[None] | None:
        """A session was `created`, `resumed` or has `ended`. May be `async`."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> Awaitable[None] | None:
        """A subscription was made or replaced, with this QoS."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> Awaitable[None] | None:
        """A client has taken a subscription back."""

    def retained(self, topic: str, payload: bytes) -> Awaitable[None] | None:
        """A retained message was stored; with an empty payload it was cleared."""

    def upstream(self, name: str, state: str) -> Awaitable[None] | None:
        """A link to an upstream broker has another state: `connecting`, `up`, `waiting`, `stopped` …"""


NAMES = tuple(name for name in vars(Hooks) if not name.startswith("_"))
"""Every hook."""


def defined(plugin: Any, name: str) -> Any:
    """The method of a plug-in, or None where it does not define it."""
    found = getattr(plugin, name, None)
    if found is None or getattr(type(plugin), name, None) is getattr(Hooks, name):
        return None
    return found
