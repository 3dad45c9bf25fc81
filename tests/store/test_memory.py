"""The store in memory: what comes back, in what form, and that nothing of what is over stays."""

from __future__ import annotations

import pytest

from broker.core.codec.packets import SubscriptionRequest, Will
from broker.core.principal import Principal
from broker.core.queues.delivery import RELEASED, SENT, Delivery
from broker.core.queues.message import Message
from broker.core.topics.subscription import Subscriber, Subscription
from broker.store import MemoryStore, StoreError
from broker.store.base import Times
from tests.store.observed import at_once


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Place:
    """A store with both of its clocks, opened."""

    def __init__(self) -> None:
        self.wall = Clock(1_000_000.0)
        self.clock = Clock(50.0)
        self.store = MemoryStore(self.wall)
        self.journal = self.store.journal
        at_once(self.store.open(self.clock))

    def move(self, seconds: float) -> None:
        self.wall.now += seconds
        self.clock.now += seconds


@pytest.fixture
def place() -> Place:
    return Place()


def message(payload: bytes = b"1", expires_at: float = 0.0) -> Message:
    return Message(b"a", payload, 1, False, b"\x01\x01", expires_at, "p")


def delivery(payload: bytes = b"1", qos: int = 1) -> Delivery:
    return Delivery(message(payload), qos, True, (3, 4), None)


def test_an_empty_store_gives_back_nothing(place: Place) -> None:
    saved = at_once(place.store.load())
    assert (saved.sessions, saved.retained) == ([], [])


def test_times_are_those_of_the_moment_of_loading(place: Place) -> None:
    """Between two brokers only the lasting clock goes on; the next one's own clock may stand anywhere."""
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 50.0)
    journal.will_set("c", Will("w", b"", delay=60), 110.0)
    journal.queued("c", Delivery(message(expires_at=70.0), 1, False, (), None))
    journal.retained_set(message(expires_at=55.0))
    place.move(10)
    at_once(place.store.close())
    place.wall.now += 30
    at_once(place.store.open(Clock(7.0)))
    saved = at_once(place.store.load())
    [session] = saved.sessions
    assert (session.client_id, session.expiry_interval, session.disconnected_for) == ("c", 300, 40.0)
    assert session.will is not None
    assert (session.will.will, session.will.due_in) == (Will("w", b"", delay=60), 20.0)
    assert session.deliveries[0].message is not None
    assert session.deliveries[0].message.expires_in == -20.0
    assert [one.expires_in for one in saved.retained] == [-35.0]


def test_a_wall_clock_that_is_set_moves_what_comes_later_only() -> None:
    wall, clock = Clock(0.0), Clock(100.0)
    times = Times(wall)
    times.start(clock)
    before = times.lasting(110.0)
    wall.now = 1_000_000.0
    assert before == 10.0
    assert times.lasting(110.0) == 1_000_010.0
    assert times.left(1_000_010.0) == 10.0


def test_connected_when_the_broker_died(place: Place) -> None:
    place.journal.session_kept("c", Principal("u"), 300, 0.0)
    place.journal.will_set("c", Will("w", b""), 0.0)
    place.move(10)
    [session] = at_once(place.store.load()).sessions
    assert session.disconnected_for is None
    assert session.will is not None
    assert session.will.due_in is None


def test_a_delivery_all_the_way(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    first, second = delivery(b"1", 2), delivery(b"2")
    journal.queued("c", first)
    journal.queued("c", second)
    first.packet_id, first.state = 9, SENT
    journal.in_flight("c", first)
    [record, other] = at_once(place.store.load()).sessions[0].deliveries
    assert (record.packet_id, record.state, record.attempts, record.qos) == (9, SENT, 1, 2)
    assert (record.retain, record.identifiers, record.share) == (True, (3, 4), "")
    assert record.message is not None
    assert (record.message.topic, record.message.payload, record.message.qos) == (b"a", b"1", 1)
    assert (record.message.properties, record.message.publisher) == (b"\x01\x01", "p")
    assert record.message.expires_in is None
    assert (other.packet_id, other.attempts) == (0, 0)
    assert record.number != other.number
    journal.unsent("c", first)
    assert at_once(place.store.load()).sessions[0].deliveries[0].attempts == 0
    journal.in_flight("c", first)
    journal.released("c", first)
    [record, other] = at_once(place.store.load()).sessions[0].deliveries
    assert (record.state, record.message, record.attempts) == (RELEASED, None, 1)
    journal.finished("c", first)
    journal.finished("c", second)
    assert at_once(place.store.load()).sessions[0].deliveries == []


def test_in_flight_without_having_waited(place: Place) -> None:
    place.journal.session_kept("c", Principal("u"), 300, 0.0)
    sent = delivery()
    sent.packet_id, sent.state = 1, SENT
    place.journal.in_flight("c", sent)
    [record] = at_once(place.store.load()).sessions[0].deliveries
    assert (record.packet_id, record.state, record.attempts) == (1, SENT, 1)


def test_records_of_one_fanout_share_the_message(place: Place) -> None:
    shared = message()
    for client_id in ("c", "d"):
        place.journal.session_kept(client_id, Principal("u"), 300, 0.0)
        place.journal.queued(client_id, Delivery(shared, 1, False, (), None))
    place.journal.retained_set(shared)
    saved = at_once(place.store.load())
    [one], [other] = (session.deliveries for session in saved.sessions)
    assert one.message is other.message is saved.retained[0]


def test_a_restored_delivery_goes_by_its_new_object(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    journal.queued("c", delivery(b"1"))
    journal.queued("c", delivery(b"2"))
    [session] = at_once(place.store.load()).sessions
    again = [delivery(b"1"), delivery(b"2")]
    for each, record in zip(again, session.deliveries, strict=True):
        journal.restored("c", each, record.number)
    journal.finished("c", again[0])
    journal.queued("c", delivery(b"3"))
    records = at_once(place.store.load()).sessions[0].deliveries
    assert [one.message.payload for one in records if one.message] == [b"2", b"3"]


def test_subscriptions(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    one = Subscription(Subscriber(), "$share/g/a", 2, False, True, 1, 77)
    journal.subscribed("c", one, True)
    journal.subscribed("c", Subscription(Subscriber(), "b", 1, True, False, 2), False)
    journal.streamed("c", "$share/g/a")
    journal.subscribed("c", Subscription(Subscriber(), "gone"), False)
    journal.unsubscribed("c", "gone")
    [first, second] = at_once(place.store.load()).sessions[0].subscriptions
    assert first.request == SubscriptionRequest("$share/g/a", 2, False, True, 1)
    assert (first.identifier, first.streaming) == (77, False)
    assert second.request == SubscriptionRequest("b", 1, True, False, 2)


def test_what_is_over_leaves_nothing(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    journal.will_set("c", Will("w", b""), 0.0)
    journal.received("c", 5)
    journal.received("c", 6)
    journal.completed("c", 5)
    journal.will_cleared("c")
    [session] = at_once(place.store.load()).sessions
    assert (session.received, session.will) == ([6], None)
    journal.queued("c", delivery())
    journal.session_gone("c")
    journal.retained_set(message())
    journal.retained_set(message(b"2"))
    assert [one.payload for one in at_once(place.store.load()).retained] == [b"2"]
    journal.retained_cleared("a")
    saved = at_once(place.store.load())
    assert (saved.sessions, saved.retained) == ([], [])


def test_one_broker_at_a_time(place: Place) -> None:
    with pytest.raises(StoreError, match="in use"):
        at_once(place.store.open(place.clock))
    at_once(place.store.flush())
    at_once(place.store.close())
    at_once(place.store.close())
    at_once(place.store.open(place.clock))
