"""The outbox alone: bounds, order, causes, batches, the ledger, and what happens at the end."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.codec.decoder import Decoder
from broker.core.codec.packets import V5, Publish
from broker.core.counters import (
    DISCONNECTED,
    DROP_CAUSES,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    TOO_LARGE,
    Counters,
)
from broker.core.queues.delivery import SENT, Delivery
from broker.core.queues.live.outbox import ACCEPTED, CONTROL_LIMIT, Outbox
from broker.core.queues.live.peer_names import PeerNames
from broker.core.queues.message import Message

PING = b"\xd0\x00"
NOW = 100.0


def outbox(max_messages: int = 0, max_bytes: int = 0, v5: bool = True) -> Outbox:
    """An outbox of its own."""
    made = Outbox([], Counters(), max_messages, max_bytes)
    made.v5 = v5
    return made


def frame(number: int = 0, size: int = 0) -> bytes:
    """A QoS 0 frame that can be told from others."""
    return message(number, size).qos0_frame(False)


def message(number: int = 0, size: int = 0, expires_at: float = 0.0, qos: int = 0, topic: bytes = b"t") -> Message:
    """A message that can be told from others."""
    return Message(topic, bytes((number,)) + b"x" * size, qos, False, b"", expires_at, "p")


def late(number: int = 0, size: int = 0, expires_at: float = 0.0, qos: int = 0) -> Delivery:
    """A delivery whose frame is made when it is taken."""
    made = Delivery(message(number, size, expires_at, qos), qos, False, (), None)
    if qos:
        made.packet_id = number + 1
        made.state = SENT
    return made


def decoded(batch: list[bytes]) -> list[Publish]:
    """The PUBLISH packets of a batch."""
    decoder = Decoder(1 << 20, server=False, version=V5)
    decoder.feed(b"".join(batch))
    found = []
    while decoder.next_frame():
        if decoder.header & 0xF0 == 0x30:
            found.append(decoder.publish())
    return found


class TestBounds:
    """Never more than the limits, and nothing dropped in silence."""

    def test_messages(self) -> None:
        """The limit in messages."""
        box = outbox(max_messages=2)
        assert [box.offer(frame(n)) for n in range(3)] == [ACCEPTED, ACCEPTED, FULL_MESSAGES]
        assert box.offer_late(late()) == FULL_MESSAGES
        assert not box.has_room(0)
        assert (box.messages, box.queue.offered, box.queue.dropped_in_all()) == (2, 4, 2)

    def test_bytes(self) -> None:
        """The limit in bytes; a smaller message still fits."""
        box = outbox(max_bytes=200)
        assert box.offer(frame(1, 150)) == ACCEPTED
        assert box.offer(frame(2, 150)) == FULL_BYTES
        assert box.offer(frame(3, 10)) == ACCEPTED
        assert box.bytes <= 200
        assert box.offer_late(late(4, 10)) == FULL_BYTES

    def test_unlimited(self) -> None:
        """0 means no limit."""
        box = outbox()
        assert {box.offer(frame(1, 10)) for _ in range(20_000)} == {ACCEPTED}

    def test_too_large_for_the_peer(self) -> None:
        """What exceeds the peer's Maximum Packet Size is not queued [MQTT-3.1.2-24]."""
        box = outbox()
        box.max_packet = len(frame(0, 20))
        assert box.offer(frame(0, 20)) == ACCEPTED
        assert box.offer(frame(0, 21)) == TOO_LARGE
        exact = late(0, 20)
        box.max_packet = len(exact.message.qos0_frame(True))
        assert box.offer_late(exact) == ACCEPTED
        assert box.offer_late(late(0, 21)) == TOO_LARGE

    @pytest.mark.parametrize(("aliases", "expiring"), [*product((0, 5), (False, True))])
    def test_never_larger_than_the_peer_takes(self, aliases: int, expiring: bool) -> None:
        """Whatever is added when the frame is made (expiry, alias) counts too [MQTT-3.1.2-24]."""
        for size in range(20, 60):
            box = outbox()
            box.max_packet = 50
            box.name_topics(PeerNames(aliases))
            box.offer_late(late(0, size, NOW + 50 if expiring else 0.0))
            box.offer_late(late(0, size, NOW + 50 if expiring else 0.0))
            assert all(len(each) <= 50 for each in box.take_batch(1 << 20, NOW))

    @pytest.mark.parametrize("expiring", [False, True])
    def test_an_alias_keeps_nothing_back(self, expiring: bool) -> None:
        """What fits without a topic alias is sent without one: only what cannot fit is discarded [MQTT-3.1.2-25]."""
        expires_at = NOW + 50 if expiring else 0.0
        sent: list[list[int]] = []
        for aliases in (0, 5):
            box = outbox()
            box.max_packet = 60
            box.name_topics(PeerNames(aliases))
            # From the largest down: one that goes without its alias has not set it.
            for size in range(80, 10, -1):
                made = message(0, size, expires_at, topic=b"some/topic")
                box.offer_late(Delivery(made, 0, False, (), None))
            frames = box.take_batch(1 << 20, NOW)
            assert all(len(each) <= 60 for each in frames)
            packets = decoded(frames)
            sent.append([len(packet.payload) for packet in packets])
            if aliases > 0:
                shape = [(packet.topic, packet.topic_alias) for packet in packets]
                assert shape == [(b"some/topic", 0)] * 3 + [(b"some/topic", 1)] + [(b"", 1)] * (len(shape) - 4)
        assert sent[0] == sent[1]

    def test_control_is_never_dropped(self) -> None:
        """Acknowledgements pass full queues, keep their place, and are not counted as messages."""
        box = outbox(max_messages=1, max_bytes=100)
        box.control(b"\x40\x02\x00\x01")
        box.offer(frame(1))
        box.control(PING)
        assert box.offer(frame(2)) == FULL_MESSAGES
        box.control(PING)
        assert box.take_batch(1 << 20, NOW) == [b"\x40\x02\x00\x01", frame(1), PING, PING]
        assert box.queue.control_bytes == 0

    def test_congested(self) -> None:
        """A peer that sends and does not read is noticed, and forgiven when it reads."""
        box = outbox()
        seen = []
        for _ in range(CONTROL_LIMIT // 2):
            box.control(PING)
        seen.append(box.congested)
        box.control(PING)
        seen.append(box.congested)
        while not box.empty:
            box.take_batch(100, NOW)
        seen.append(box.congested)
        assert seen == [False, True, False]

    def test_half_full(self) -> None:
        """Retained messages wait at half of either limit."""
        box = outbox(max_messages=4)
        box.offer(frame())
        assert not box.half_full()
        box.offer(frame())
        assert box.half_full()
        box = outbox(max_bytes=100)
        box.offer(frame(0, 60))
        assert box.half_full()


class TestOrder:
    """First in, first out, whatever the kind."""

    @given(st.lists(st.sampled_from(("frame", "late", "quality", "control")), max_size=30), st.integers(1, 60))
    def test_any_mixture_in_any_batches(self, kinds: list[str], step: int) -> None:
        """Batches of any size give the same order and the same bytes as one."""
        boxes = outbox(), outbox()
        for box in boxes:
            for number, kind in enumerate(kinds):
                if kind == "frame":
                    box.offer(message(number).qos0_frame(True))
                elif kind == "late":
                    box.offer_late(late(number))
                elif kind == "quality":
                    box.push(late(number, qos=1))
                else:
                    box.control(bytes((0x40, 2, 1, number)))
        whole = boxes[0].take_batch(1 << 20, NOW)
        parts: list[bytes] = []
        while not boxes[1].empty:
            batch = boxes[1].take_batch(step, NOW)
            assert batch
            assert sum(map(len, batch[:-1])) < step
            parts += batch
        assert whole == parts
        assert len(whole) == len(kinds)
        for box in boxes:
            queue = box.queue
            assert (box.messages, box.bytes, queue.control_bytes, box.qos12_messages, queue.again) == (0, 0, 0, 0, 0)
            assert box.taken == box.queue.offered == len(kinds) - kinds.count("control")

    def test_expiry_is_made_last(self) -> None:
        """The interval in the frame is that of the moment of writing [MQTT-3.3.2-6]."""
        box = outbox()
        box.offer_late(late(0, 0, NOW + 90))
        [packet] = decoded(box.take_batch(1 << 20, NOW + 30))
        assert packet.message_expiry == 60

    def test_expired_is_deleted(self) -> None:
        """What expired while it waited is dropped by that cause, and a QoS 1 or 2 delivery handed back.

        [MQTT-3.3.2-5]
        """
        box = outbox()
        deliveries = [late(number, 0, NOW + 1, number) for number in range(3)]
        box.offer_late(deliveries[0])
        box.push(deliveries[1])
        box.push(deliveries[2])
        box.offer_late(late(9))
        assert [packet.payload for packet in decoded(box.take_batch(1 << 20, NOW + 2))] == [b"\x09"]
        assert box.queue.take_expired() == deliveries[1:]
        assert box.queue.expired is None
        assert box.queue.dropped is not None
        assert box.queue.dropped[EXPIRED] == 3

    def test_once_sent_expiry_no_longer_counts(self) -> None:
        """A delivery that was sent before is sent again though it expired [MQTT-4.3.3-7] [MQTT-3.3.1-1]."""
        box = outbox()
        again = late(1, 0, NOW + 1, 2)
        again.attempts = 1
        box.push(again)
        [packet] = decoded(box.take_batch(1 << 20, NOW + 5))
        assert (packet.dup, packet.qos, packet.packet_id) == (True, 2, 2)

    def test_aliases(self) -> None:
        """At most so many aliases as the client takes, from 1 up; each is set before it is used [MQTT-3.1.2-26]."""
        box = outbox()
        box.name_topics(PeerNames(2))
        for topic in (b"a", b"b", b"c", b"a", b"b", b"c"):
            box.offer_late(Delivery(message(0, topic=topic), 0, False, (), None))
        got = [(packet.topic, packet.topic_alias) for packet in decoded(box.take_batch(1 << 20, NOW))]
        assert got == [(b"a", 1), (b"b", 2), (b"c", 0), (b"", 1), (b"", 2), (b"c", 0)]

    def test_no_aliases(self) -> None:
        """None where the client takes none [MQTT-3.1.2-27]."""
        box = outbox()
        box.offer_late(late(1))
        box.offer_late(late(1))
        assert [packet.topic_alias for packet in decoded(box.take_batch(1 << 20, NOW))] == [0, 0]


class TestWaking:
    """An outbox is listed once, when it has something to take."""

    def test_once_until_woken(self) -> None:
        """Many offers list it once; after `woken` the next offer lists it again."""
        wakeups: list[Outbox] = []
        box = Outbox(wakeups, Counters(), 0, 0)
        box.offer(frame())
        box.control(PING)
        box.push(late(1, qos=1))
        box.offer_late(late())
        assert wakeups == [box]
        box.take_batch(1 << 20, NOW)
        box.offer(frame())
        assert wakeups == [box]
        box.woken()
        box.offer_late(late())
        assert wakeups == [box, box]

    def test_a_drop_wakes_nobody(self) -> None:
        """Nothing to take, nobody to wake."""
        wakeups: list[Outbox] = []
        box = Outbox(wakeups, Counters(), 0, 1)
        box.closed = True
        box.offer(frame())
        assert wakeups == []


class TestEnd:
    """What becomes of what waits."""

    def test_discard(self) -> None:
        """QoS 0 is dropped by the cause, QoS 1 and 2 are left to the session, control stays for the writer."""
        box = outbox()
        box.offer(frame(1))
        box.push(late(2, qos=1))
        box.control(PING)
        box.offer_late(late(3))
        box.push(late(4, qos=2))
        assert box.qos12_messages == 2
        box.discard(DISCONNECTED)
        assert (box.messages, box.bytes) == (0, 0)
        assert box.queue.dropped is not None
        assert box.queue.dropped[DISCONNECTED] == 2
        assert box.taken + box.queue.dropped_in_all() == box.queue.offered == 2
        assert box.take_batch(1 << 20, NOW) == [PING]
        assert box.empty

    def test_closed(self) -> None:
        """A closed outbox takes nothing more, and says why."""
        box = outbox()
        box.offer(frame(1))
        box.close()
        assert box.offer(frame(2)) == DISCONNECTED
        assert box.offer_late(late(3)) == DISCONNECTED
        box.control(PING)
        assert not box.has_room(0)
        assert box.take_batch(1 << 20, NOW) == [frame(1)]
        assert box.queue.dropped is not None
        assert box.queue.dropped[DISCONNECTED] == 2

    def test_counters(self) -> None:
        """Drops and sent messages are added to the broker's totals."""
        counters = Counters()
        boxes = [Outbox([], counters, 1, 0) for _ in range(2)]
        for box in boxes:
            for number in range(3):
                box.offer(frame(number))
            box.take_batch(1 << 20, NOW)
        assert counters.dropped[FULL_MESSAGES] == counters.dropped_in_all() == 4
        assert counters.messages_sent == 2
        assert len(counters.dropped) == len(DROP_CAUSES) == len(set(DROP_CAUSES))

    def test_high_water(self) -> None:
        """The most that ever waited is remembered."""
        box = outbox()
        for count in (3, 7, 2):
            for number in range(count):
                box.offer(frame(number))
            box.take_batch(1 << 20, NOW)
        assert box.queue.high_water == 7
