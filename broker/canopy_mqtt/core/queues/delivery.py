"""A message on its way to one session, in flight or waiting, and a run of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64, u8

from canopy_mqtt.core.queues.message import Message

if TYPE_CHECKING:
    from canopy_mqtt.core.queues.queue_terms import MessageTerms, Place
    from canopy_mqtt.core.queues.requests import LinkAnswer
    from canopy_mqtt.core.topics.subscription import SharedGroup

# States of a Delivery.
QUEUED: Final = 0
"""Waiting in the session, without a packet identifier."""
SENT: Final = 1
"""In flight: offered to the writer, waiting for PUBACK or PUBREC."""
RELEASED: Final = 2
"""QoS 2 only: PUBREC came, PUBREL was sent, waiting for PUBCOMP."""
DONE: Final = 3
"""Acknowledged, refused or given up."""
DROPPED: Final = 4
"""Shed from a queue in which it still stands."""

MAX_ATTEMPTS: Final = 2**31 - 1
"""Of one delivery; the fields of a `Delivery` hold no more."""

LOST: Final = -1
"""In place of a reason code: no acknowledgement can come any more. The delivery was dropped, expired, or went to
another, or its connection ended."""


class Delivery:
    """One message on its way to one session with QoS 1 or 2, or QoS 0 if the frame is made when it is written.

    `group` is the shared subscription it was chosen for, if any: what that member leaves unsent goes to another.
    """

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> None:
        # Thousands of these are alive under load: small fields stand together.
        self.message = message
        self.identifiers = identifiers
        self.group = group
        # Where terms of their own hold for its message: whose account it is on, since when (s) it waits, and whether.
        self.message_terms: MessageTerms | None = None
        self.place: Place | None = None
        self.on_settled: LinkAnswer | None = None  # who is told what became of it, until that is known
        self.since = 0.0
        # Its place in the order of what is in flight (`InFlight`).
        self.turn: i64 = 0
        # The name that a store gave it; 0: none.
        self.record: i64 = 0
        # Of a shared subscription: its place among the messages of the group (`QueueTotals.place`).
        self.order: i64 = 0
        self.packet_id: i32 = 0
        # How often it was handed to a transport; from the second time on it carries DUP [MQTT-3.3.1-1].
        self.attempts: i32 = 0
        self.qos: u8 = qos
        self.state: u8 = QUEUED
        self.retain = retain
        # Whether it takes part in the send quota of the present connection (section 4.9).
        self.counted = False
        self.waits = False
        # Whether it stands in the queue of a connection (QoS 0), and not in the session's.
        self.live = False

    def frame(self, message: Message, v5: bool, expiry: int, dup: bool, alias: int, with_topic: bool) -> bytes:
        """Return its PUBLISH packet, with the message as its receiver knows it; see `Message.frame`."""
        return message.frame(
            v5, self.qos, self.retain, dup, self.packet_id, self.identifiers, expiry, alias, with_topic
        )

    def is_plain(self) -> bool:
        """True if it is sent for the first time with QoS 1 or 2, and has nothing that is decided when it is written."""
        return (
            self.attempts == 0
            and self.qos > 0
            and self.state == SENT
            and self.message_terms is None
            and self.message.expires_at == 0.0
            and not self.retain
            and len(self.identifiers) == 0
        )

    def settle(self, code: i64 = LOST) -> None:
        """Tell who waits for it, if anything does, that it was acknowledged with this reason code, or is lost."""
        waiting = self.on_settled
        if waiting is not None:
            self.on_settled = None
            waiting.settled(code)

    def drop(self) -> None:
        """It was shed from the middle of a queue, and stays there as a gap that holds nothing."""
        self.state = DROPPED
        self.message = NOTHING


NOTHING: Final = Message(b"", b"", 0, False, b"", 0.0, "")
"""The message of a delivery that was shed."""


class DeliveryRun:
    """First deliveries of QoS 1 or 2 to one client, in a row, with their frames in one piece, ready to be written."""

    def __init__(self, deliveries: list[Delivery], frames: bytes) -> None:
        self.deliveries = deliveries
        self.frames = frames


def order_of(delivery: Delivery) -> int:
    """Return the place of a delivery of a share group among those of the group."""
    return delivery.order
