"""Messages on their way to one session: a delivery, a run of them, and the deliveries in flight by packet identifier.

Owns `Delivery`, which is in flight or waits, `DeliveryRun`, the names of topics in one peer's frames, where others have
other ones (`OutgoingTopics`), and `InFlight`: which identifiers are in use, and which one is next. Identifiers are
assigned in order, so a ring of references suffices: the lowest bits of an identifier are its slot, and an identifier
whose slot is in use is skipped. That costs 8 to 32 bytes for each delivery and no object, unlike a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64, u8

from canopy_mqtt.core.codec.primitives import BYTE
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

MAX_ID: Final = 65_535
"""The largest packet identifier (section 2.2.1)."""

MIN_SLOTS: Final = 16
MAX_SLOTS: Final = 65_536
"""Slots of a ring; it grows by powers of two when three quarters are taken."""

MAX_KEPT_SLOTS: Final = 256
"""Slots that a ring keeps when nothing is in flight any more."""

COUNTING: Final = bytes(range(256)) * 2

_EMPTY: Final[list[Delivery | None]] = []


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


class _Last:
    """The message that was asked for last, as the peers of a mount know it: those of one fan-out share its frames."""

    def __init__(self) -> None:
        self.message: Message | None = None
        self.mount = b""
        self.unmounted: Message | None = None


_LAST: Final = _Last()


class OutgoingTopics:
    """The topic names of one connection. Aliases are given to the first topics that come.

    `maximum` is the peer's Topic Alias Maximum, `mount` the prefix that its topics omit.
    """

    def __init__(self, maximum: i64, mount: bytes = b"") -> None:
        self._maximum: i64 = maximum
        self.mount = mount
        self._known: dict[bytes, int] = {}

    def unmounted(self, message: Message) -> Message | None:
        """Return the message as the peer knows it; None: the peer has no name for its topic, and is not sent it."""
        if not self.mount:
            return message
        last = _LAST
        if last.message is not message or last.mount != self.mount:
            last.unmounted = message.unmounted(self.mount)
            last.message = message
            last.mount = self.mount
        return last.unmounted

    def shared_frame(self, delivery: Delivery, v5: bool) -> bytes | None:
        """Return the frame of a QoS 0 delivery if all peers of the mount get the same one; else None: it is made later.

        Not where the peer has aliases, nor for a delivery with something of its own.
        """
        if self._maximum > 0 or delivery.retain or len(delivery.identifiers) > 0 or delivery.message_terms is not None:
            return None
        known = self.unmounted(delivery.message)
        return known.qos0_frame(v5) if known is not None and known.shared_frame_suits() else None

    def frame(self, delivery: Delivery, v5: bool, expiry: int, dup: bool, max_packet: i64) -> bytes:
        """Return the frame of a delivery with the alias of its topic, if it has one or there is one to give.

        Without an alias where only setting it would make the frame longer than `max_packet` bytes.
        """
        message = self.unmounted(delivery.message)
        assert message is not None  # `SendBuffer.refusal` has kept it back
        known_aliases = self._known
        topic = delivery.message.topic
        known = known_aliases.get(topic, 0)
        alias = known
        if alias == 0 and len(known_aliases) < self._maximum:  # [MQTT-3.3.2-11]
            alias = len(known_aliases) + 1
        if alias > 0:
            frame = delivery.frame(message, v5, expiry, dup, alias, known == 0)
            # A frame that fits only by its topic alone goes out by that, and sets nothing [MQTT-3.1.2-25].
            if len(frame) <= max_packet:
                if known == 0:
                    known_aliases[topic] = alias
                return frame
        return delivery.frame(message, v5, expiry, dup, 0, True)


class DeliveryRun:
    """First deliveries of QoS 1 or 2 to one client, in a row, with their frames in one piece, ready to be written."""

    def __init__(self, deliveries: list[Delivery], frames: bytes) -> None:
        self.deliveries = deliveries
        self.frames = frames


class InFlight:
    """A ring of deliveries. `count`: how many are in flight; `largest_id`: to be set before the first is."""

    def __init__(self) -> None:
        self.count: i64 = 0
        # The identifier that was given last, and the largest that is given.
        self.last_id: i64 = 0
        self.largest_id: i64 = MAX_ID
        self._slots: list[Delivery | None] = _EMPTY
        # Slots less one; -1 while there is no ring.
        self._mask: i64 = -1
        self._added: i64 = 0

    def __len__(self) -> int:
        """Return how many are in flight."""
        return self.count

    def next_id(self) -> i64:
        """Take the next identifier that is not in use [MQTT-2.2.1-4]; 0 when all of them are. `add` has to follow.

        Cost: one step, but for identifiers whose slots are taken: none where acknowledgements come in order.
        """
        count: i64 = self.count
        mask: i64 = self._mask
        if count * 4 >= (mask + 1) * 3 and mask + 1 < MAX_SLOTS:
            self._grow()
            mask = self._mask
        largest: i64 = self.largest_id
        if count >= largest:
            return 0
        slots = self._slots
        packet_id: i64 = self.last_id
        while True:
            packet_id += 1
            if packet_id > largest:
                packet_id = 1
            if slots[packet_id & mask] is None:
                self.last_id = packet_id
                return packet_id

    def add(self, delivery: Delivery) -> None:
        """Put a delivery in flight with the identifier that it has: from `next_id`, or one that was kept on disk.

        No other delivery in flight has it.
        """
        packet_id: i64 = i64(delivery.packet_id)
        while self._mask < 0 or self._slots[packet_id & self._mask] is not None:
            self._grow()
        self._slots[packet_id & self._mask] = delivery
        self._added += 1
        delivery.turn = self._added
        self.count += 1

    def move_behind(self, delivery: Delivery) -> None:
        """One that is in flight is the last in their order: others were sent before it."""
        self._added += 1
        delivery.turn = self._added

    def get(self, packet_id: i64) -> Delivery | None:
        """The delivery with that identifier; None when there is none."""
        mask: i64 = self._mask
        if mask < 0 or packet_id < 0:
            return None
        delivery = self._slots[packet_id & mask]
        if delivery is None or delivery.packet_id != packet_id:
            return None
        return delivery

    def remove(self, delivery: Delivery) -> None:
        """A delivery that is in flight is so no more: its identifier is free."""
        packet_id: i64 = i64(delivery.packet_id)
        self._slots[packet_id & self._mask] = None
        self.count -= 1
        if self.count == 0 and self._mask >= MAX_KEPT_SLOTS:
            self._slots = _EMPTY
            self._mask = -1

    def values(self) -> list[Delivery]:
        """All of them, in the order in which they were put in flight, or moved behind the others: a copy."""
        found: list[Delivery] = []
        for each in self._slots:
            if each is not None:
                found.append(each)
        found.sort(key=_turn)
        return found

    def unsent(self) -> i64:
        """Return how many of them were never written."""
        count: i64 = 0
        for each in self._slots:
            if each is not None and each.state == SENT and each.attempts == 0:
                count += 1
        return count

    def settle(self) -> None:
        """Settle the requests among them: no answer can come any more."""
        for each in self._slots:
            if each is not None:
                each.settle()

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._slots = _EMPTY
        self._mask = -1
        self.count = 0

    def _grow(self) -> None:
        size: i64 = MIN_SLOTS if self._mask < 0 else (self._mask + 1) * 2
        mask: i64 = size - 1
        slots: list[Delivery | None] = [None] * size
        for each in self._slots:
            if each is not None:
                packet_id: i64 = i64(each.packet_id)
                slots[packet_id & mask] = each
        self._slots = slots
        self._mask = mask


def write_identifiers(deliveries: list[Delivery], frames: bytearray, id_at: i64) -> None:
    """Write the packet identifiers of some deliveries, at most 255, into their frames of one length, side by side.

    The first one's is at `id_at`.
    """
    count: i64 = len(deliveries)
    length: i64 = len(frames) // count
    first: i64 = i64(deliveries[0].packet_id)
    last: i64 = i64(deliveries[-1].packet_id)
    if last - first == count - 1:
        low: i64 = first & 255
        before: i64 = 256 - low if first >> 8 != last >> 8 else count
        frames[id_at::length] = BYTE[first >> 8] * before + BYTE[last >> 8] * (count - before)
        frames[id_at + 1 :: length] = COUNTING[low : low + count]
    else:
        # Some between them are in use.
        frames[id_at::length] = bytes([each.packet_id >> 8 for each in deliveries])
        frames[id_at + 1 :: length] = bytes([each.packet_id & 255 for each in deliveries])


def _turn(delivery: Delivery) -> int:
    return delivery.turn


def order_of(delivery: Delivery) -> int:
    """Return the place of a delivery of a share group among those of the group."""
    return delivery.order
