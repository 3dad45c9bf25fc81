"""The ring of deliveries in flight, beside a dictionary that does the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.in_flight import MAX_ID, MAX_KEPT_SLOTS, MIN_SLOTS, InFlight
from canopy_mqtt.core.queues.message import Message

MESSAGE = Message(b"t", b"", 1, False, b"", 0.0, "p")


def delivery(packet_id: int = 0) -> Delivery:
    made = Delivery(MESSAGE, 1, False, (), None)
    made.packet_id = packet_id
    return made


def send(ring: InFlight) -> Delivery:
    """Put one more in flight."""
    made = delivery(ring.next_id())
    assert made.packet_id > 0
    ring.add(made)
    return made


def agree(ring: InFlight, model: dict[int, Delivery]) -> None:
    """All that can be asked of the ring is what the dictionary says."""
    assert len(ring) == ring.count == len(model)
    assert ring.values() == list(model.values())
    for packet_id, each in model.items():
        assert ring.get(packet_id) is each


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 40)),
        st.tuples(st.just("acknowledge"), st.integers(0, 200)),
        st.tuples(st.just("jump"), st.integers(0, MAX_ID)),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_ring_is_a_dictionary_in_the_order_of_sending(steps: list[tuple[str, int]]) -> None:
    """Identifiers are never given twice, wherever the next one stands and whatever stays unacknowledged."""
    ring, model = InFlight(), dict[int, Delivery]()
    for what, number in steps:
        if what == "send":
            for _ in range(number):
                made = send(ring)
                assert 1 <= made.packet_id <= MAX_ID
                assert made.packet_id not in model
                model[made.packet_id] = made
        elif what == "jump":
            ring.last_id = number
        elif model:
            packet_id = list(model)[number % len(model)]
            ring.remove(model.pop(packet_id))
            assert ring.get(packet_id) is None
        agree(ring, model)


def test_all_identifiers_can_be_in_use() -> None:
    """And not one more; one that is free again is the next."""
    ring = InFlight()
    sent = [send(ring) for _ in range(MAX_ID)]
    assert {each.packet_id for each in sent} == set(range(1, MAX_ID + 1))
    assert ring.next_id() == 0
    ring.remove(sent[499])
    assert send(ring).packet_id == 500
    assert ring.next_id() == 0


@pytest.mark.crowd
def test_one_that_is_never_acknowledged_does_not_make_the_ring_grow() -> None:
    """Its slot is passed over, lap after lap: a client that leaves one open costs what it did before."""
    ring = InFlight()
    stuck = send(ring)
    for _ in range(3 * MAX_ID):
        ring.remove(send(ring))
    assert ring.values() == [stuck]
    assert len(ring._slots) == MIN_SLOTS


def test_a_large_ring_goes_with_what_was_in_it() -> None:
    """A small one stays, for the next message."""
    ring = InFlight()
    for count, kept in ((MAX_KEPT_SLOTS // 2, MAX_KEPT_SLOTS), (MAX_KEPT_SLOTS, 0)):
        for each in [send(ring) for _ in range(count)]:
            ring.remove(each)
        assert len(ring._slots) <= kept
    assert send(ring).packet_id == MAX_KEPT_SLOTS // 2 + MAX_KEPT_SLOTS + 1
