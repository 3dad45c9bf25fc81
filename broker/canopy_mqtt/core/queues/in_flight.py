"""The deliveries in flight to one client: which packet identifiers are in use, and which one is next.

Identifiers are assigned in order, so a ring of references suffices: the lowest bits of an identifier are its slot, and
an identifier whose slot is in use is skipped. That costs 8 to 32 bytes for each delivery and no object, unlike a
dictionary.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.primitives import BYTE
from canopy_mqtt.core.queues.delivery import SENT, Delivery

MAX_ID: Final = 65_535
"""The largest packet identifier (section 2.2.1)."""

MIN_SLOTS: Final = 16
MAX_SLOTS: Final = 65_536
"""Slots of a ring; it grows by powers of two when three quarters are taken."""

MAX_KEPT_SLOTS: Final = 256
"""Slots that a ring keeps when nothing is in flight any more."""

COUNTING: Final = bytes(range(256)) * 2

_EMPTY: Final[list[Delivery | None]] = []


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
