"""The promises of each store: what comes back, in what form, and that nothing of what is over stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from canopy_mqtt.core.codec.packets import NEVER, SubscriptionRequest, Will
from canopy_mqtt.core.persistence.journal import DeliveryRecord, Saved
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import QUEUED, RELEASED, SENT, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store import StoreError
from tests.store.places import KINDS, OUTLIVES, Place
from tests.support.sessions import any_session


@pytest.fixture(params=sorted(KINDS))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(request.param, tmp_path / "store")
    await made.open()
    yield made
    await made.store.close()


def message(payload: bytes = b"1", expires_at: float = 0.0, topic: bytes = b"a") -> Message:
    return Message(topic, payload, 1, False, b"\x01\x01", expires_at, "p")


def delivery(payload: bytes = b"1", qos: int = 1) -> Delivery:
    return Delivery(message(payload), qos, True, (3, 4), None)


def payloads(records: list[DeliveryRecord]) -> list[bytes]:
    return [b"" if one.message is None else one.message.payload for one in records]


def queue(saved: Saved, client_id: str = "c") -> list[DeliveryRecord]:
    [session] = [one for one in saved.sessions if one.client_id == client_id]
    return session.deliveries


async def test_an_empty_store_gives_back_nothing(place: Place) -> None:
    for saved in (await place.load(), await place.again()):
        assert (saved.sessions, saved.retained) == ([], [])


async def test_a_will_is_kept_without_a_session(place: Place) -> None:
    """While its client is connected, with the time at which it is due, and in a turn of its own; nothing else stays."""
    journal, will = place.journal, Will("w", b"gone", 1, True, 7, 60, b"\x01\x01")
    journal.will_alone("c", Principal("u"), will, 0.0)
    journal.will_alone("d", Principal(None), will, 80.0)
    journal.will_alone("$will/1/c", Principal("u"), will, 50.0)
    saved = await place.again(gap=10.0)
    assert saved.sessions == []
    found = {one.name: one for one in saved.wills}
    assert {name: (one.principal.user_name, one.due_in) for name, one in found.items()} == {
        "c": ("u", None),
        "d": (None, pytest.approx(20.0)),
        "$will/1/c": ("u", pytest.approx(-10.0)),
    }
    for one in found.values():
        kept = one.will
        assert (kept.topic, kept.payload, kept.qos, kept.retain) == ("w", b"gone", 1, True)
        assert (kept.delay, kept.message_expiry, kept.properties) == (7, 60, b"\x01\x01")
    # The next broker gives it a time, and then it is over; a session of that client is another matter.
    place.journal.will_alone("c", Principal("u"), will, 17.0)
    assert [one.due_in for one in (await place.again(clock=7.0)).wills if one.name == "c"] == [pytest.approx(10.0)]
    for name in ("c", "d", "$will/1/c"):
        place.journal.will_cleared(name)
    place.journal.session_kept("c", Principal("u"), 300, 0.0)
    saved = await place.again()
    assert ([one.client_id for one in saved.sessions], saved.wills) == (["c"], [])


async def test_times_are_those_of_the_moment_of_loading(place: Place) -> None:
    """Between two brokers only the lasting clock goes on; the next one's own clock may stand anywhere."""
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 50.0)
    journal.will_set("c", Will("w", b"", delay=60), 110.0)
    journal.queued("c", Delivery(message(expires_at=70.0), 1, False, (), None))
    journal.retained_set(message(expires_at=55.0))
    place.move(10)
    saved = await place.again(gap=30)
    [session] = saved.sessions
    assert (session.client_id, session.expiry_interval, session.disconnected_for) == ("c", 300, 40.0)
    assert session.will is not None
    assert (session.will.will, session.will.due_in) == (Will("w", b"", delay=60), 20.0)
    assert session.deliveries[0].message is not None
    assert session.deliveries[0].message.expires_in == -20.0
    assert [one.expires_in for one in saved.retained] == [-35.0]


async def test_connected_when_the_broker_died(place: Place) -> None:
    place.journal.session_kept("c", Principal("u"), NEVER, 0.0)
    place.journal.will_set("c", Will("w", b""), 0.0)
    place.move(10)
    [session] = (await place.again()).sessions
    assert (session.disconnected_for, session.expiry_interval) == (None, NEVER)
    assert session.will is not None
    assert session.will.due_in is None


async def test_whose_a_session_is(place: Place) -> None:
    principal = Principal(
        "u",
        ("g", "h"),
        {"site": "7"},
        9.5,
        certificate="CN=u",
        client_id="c",
        listener="l",
        host="::1",
        authenticator="a",
        mount="tenant/u/",
    )
    place.journal.session_kept("c", principal, 300, 0.0)
    place.journal.session_kept("d", Principal(None), 300, 0.0)
    first, second = (await place.again()).sessions
    found = first.principal
    assert (found.user_name, found.groups, dict(found.attributes), found.expires_at) == (
        "u",
        ("g", "h"),
        {"site": "7"},
        9.5,
    )
    assert (found.certificate, found.client_id, found.listener, found.host) == ("CN=u", "c", "l", "::1")
    assert (found.authenticator, found.mount) == ("a", "tenant/u/")
    assert (second.principal.user_name, second.principal.groups, second.principal.client_id) == (None, (), "d")


async def test_all_of_a_will(place: Place) -> None:
    will = Will("w/ä", b"\x00\xff", 2, retain=True, delay=9, properties=b"\x03\x00\x01x")
    place.journal.session_kept("c", Principal("u"), 300, 0.0)
    place.journal.will_set("c", will, 0.0)
    [session] = (await place.again()).sessions
    assert session.will is not None
    assert session.will.will == will


async def test_a_delivery_all_the_way(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    first, second = delivery(b"1", 2), delivery(b"2")
    journal.queued("c", first)
    journal.queued("c", second)
    first.packet_id, first.state = 9, SENT
    journal.in_flight("c", first)
    [record, other] = queue(await place.load())
    assert (record.packet_id, record.state, record.attempts, record.qos) == (9, SENT, 1, 2)
    assert (record.retain, record.identifiers, record.share) == (True, (3, 4), "")
    assert record.message is not None
    assert (record.message.topic, record.message.payload, record.message.qos) == (b"a", b"1", 1)
    assert (record.message.properties, record.message.publisher) == (b"\x01\x01", "p")
    assert record.message.expires_in is None
    assert (other.packet_id, other.attempts, other.state) == (0, 0, QUEUED)
    assert record.number != other.number
    journal.unsent("c", first)
    assert queue(await place.load())[0].attempts == 0
    journal.in_flight("c", first)
    journal.released("c", first)
    [record, other] = queue(await place.load())
    assert (record.state, record.message, record.attempts) == (RELEASED, None, 1)
    journal.finished("c", first)
    journal.finished("c", second)
    assert queue(await place.load()) == []


async def test_the_order_is_that_in_which_they_were_queued(place: Place) -> None:
    """Whatever of it was put in flight when, and whichever group it was told in."""
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    many = [delivery(b"%d" % number) for number in range(1_200)]
    for number, one in enumerate(many):
        journal.queued("c", one)
        if number % 400 == 0:
            await place.store.flush()
    many[700].packet_id, many[700].state = 5, SENT
    journal.in_flight("c", many[700])
    journal.finished("c", many[3])
    expected = [b"%d" % number for number in range(1_200) if number != 3]
    assert payloads(queue(await place.again())) == expected


async def test_one_that_is_renewed_keeps_its_place(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    first, second = delivery(b"1"), delivery(b"2")
    journal.queued("c", first)
    journal.queued("c", second)
    for payload in (b"1, newer", b"1, newest"):
        first.message = message(payload)
        journal.renewed("c", first)
        assert payloads(queue(await place.load())) == [payload, b"2"]


async def test_records_of_one_fanout_share_the_message(place: Place) -> None:
    shared = message()
    for client_id in ("c", "d"):
        place.journal.session_kept(client_id, Principal("u"), 300, 0.0)
        place.journal.queued(client_id, Delivery(shared, 1, False, (), None))
    saved = await place.load()
    [one], [other] = (session.deliveries for session in saved.sessions)
    assert one.message is other.message


async def test_a_restored_delivery_goes_by_its_new_object(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    journal.queued("c", delivery(b"1"))
    journal.queued("c", delivery(b"2"))
    [session] = (await place.again()).sessions
    again = [delivery(b"1"), delivery(b"2")]
    journal = place.journal
    for each, record in zip(again, session.deliveries, strict=True):
        journal.restored("c", each, record.number)
    journal.finished("c", again[0])
    journal.queued("c", delivery(b"3"))
    assert payloads(queue(await place.load())) == [b"2", b"3"]
    assert payloads(queue(await place.again())) == [b"2", b"3"]


async def test_subscriptions(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    one = Subscription(any_session(), "$share/g/a", 2, False, True, 1, 77)
    journal.subscribed("c", one, True)
    journal.subscribed("c", Subscription(any_session(), "b", 1, True, False, 2), False)
    journal.streamed("c", "$share/g/a")
    journal.subscribed("c", Subscription(any_session(), "gone"), False)
    journal.unsubscribed("c", "gone")
    found = {each.request.topic_filter: each for each in (await place.again()).sessions[0].subscriptions}
    assert set(found) == {"$share/g/a", "b"}
    first = found["$share/g/a"]
    assert first.request == SubscriptionRequest("$share/g/a", 2, False, True, 1)
    assert (first.identifier, first.streaming) == (77, False)
    assert found["b"].request == SubscriptionRequest("b", 1, True, False, 2)


async def test_what_is_over_leaves_nothing(place: Place) -> None:
    journal = place.journal
    journal.session_kept("c", Principal("u"), 300, 0.0)
    journal.will_set("c", Will("w", b""), 0.0)
    journal.received("c", 5)
    journal.received("c", 6)
    journal.completed("c", 5)
    journal.will_cleared("c")
    [session] = (await place.load()).sessions
    assert (session.received, session.will) == ([6], None)
    journal.queued("c", delivery())
    journal.session_gone("c")
    journal.retained_set(message())
    journal.retained_set(message(b"2"))
    assert [one.payload for one in (await place.load()).retained] == [b"2"]
    journal.retained_cleared("a")
    saved = await place.again()
    assert (saved.sessions, saved.retained) == ([], [])


async def test_what_text_and_bytes_can_be(place: Place) -> None:
    """Quotes, a NUL in a payload, characters of four bytes: a store must not take any of it for its own."""
    topic = 'it\'s/"q"/\U0001f600/%s/;--'
    place.journal.session_kept(topic, Principal("u'"), 300, 0.0)
    place.journal.subscribed(topic, Subscription(any_session(), topic, 1), False)
    place.journal.retained_set(message(bytes(range(256)) * 20, topic=topic.encode()))
    saved = await place.again()
    assert (saved.sessions[0].client_id, saved.sessions[0].subscriptions[0].request.topic_filter) == (topic, topic)
    assert (saved.retained[0].topic, saved.retained[0].payload) == (topic.encode(), bytes(range(256)) * 20)


async def test_everything_that_was_told_is_committed_by_a_flush(place: Place) -> None:
    place.journal.session_kept("c", Principal("u"), 300, 0.0)
    place.journal.received("c", 5)
    commits = place.journal.commits
    # Without one, whatever was told is kept already.
    assert (commits is None) is (place.kind not in OUTLIVES)
    await place.store.flush()
    assert commits is None or not commits.pending()


async def test_one_broker_at_a_time(place: Place) -> None:
    another = place.make() if place.kind != "memory" else place.store
    with pytest.raises(StoreError, match="in use"):
        await another.open(place.clock)
    await place.store.flush()
    await place.store.close()
    await place.store.close()
    await another.open(place.clock)
    await another.close()
