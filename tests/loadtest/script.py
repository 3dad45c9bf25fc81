"""What may go wrong on a scripted server, and when.

Owns: `Script`, which is asked at each point where a server can fail, and `Fate`, what becomes of one delivery.

Promises: a `Script` without arguments does what every server should.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from canopy_mqtt.core.codec.packets import Connect, Packet, SubscriptionRequest
from tests.loadtest.account import Message


@dataclass(frozen=True)
class Delivery:
    """One message that is due to one subscriber. `number` counts the subscriber's deliveries from 0."""

    message: Message
    subscriber: str
    number: int


@dataclass(frozen=True)
class Fate:
    """What becomes of a delivery."""

    drop: bool = False
    copies: int = 1
    dup: bool = False
    """Whether the further copies have DUP (and the packet identifier of the first)."""
    hold: int = 0
    """It goes out behind so many that are due later."""
    delay: float = 0.0
    """Seconds."""
    payload: Callable[[bytes], bytes] | None = None
    topic: str | None = None
    told: tuple[str, ...] = ()
    """Values of `canopy-lost` user properties that go with it."""


DELIVER = Fate()
DROP = Fate(drop=True)


@dataclass
class Script:
    """What the server does in each case. Left alone, what every server should."""

    fate: Callable[[Delivery], Fate] = lambda _: DELIVER
    connack: Callable[[Connect, int], int | None] = lambda _connect, _attempt: 0
    """The code for a client's nth CONNECT (from 0); None: no answer at all."""
    resumes: Callable[[str], bool] = lambda _client: False
    """Whether the CONNACK says that there is a session, whatever there is."""
    suback: Callable[[str, SubscriptionRequest], int | None] = lambda _client, request: request.qos
    """The code for a filter; None: the SUBACK leaves it out."""
    puback: Callable[[Message], int | None] = lambda _: 0
    """The code for a PUBLISH with QoS 1 or 2, which is not routed from 0x80 on; None: routed and never answered."""
    hangs_up: Callable[[str, int, Packet], bool] = lambda _client, _connection, _packet: False
    """Whether the connection ends where this packet came in; the packet is not looked at."""
    stall: Callable[[Message], float] = lambda _: 0.0
    """Seconds for which the server does nothing at all before it looks at this message."""
    ack_delay: float = 0.0
    """Seconds before a PUBACK or PUBREC."""
    copies_by_filter: bool = True
    """A copy for each filter that matches, or one for all of them."""
    share: Callable[[Message, list[str]], str] | None = None
    """Which member of a share gets a message; None: in turn."""
    connack_properties: dict[int, int] = field(default_factory=dict)
