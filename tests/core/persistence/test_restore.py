"""A router made of records: what differs from before, and how it is put back.

That everything is back, and goes on where it was, is held by `tests/store/test_machine.py`.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from canopy_mqtt.assembly.storing import PIECE, in_turns
from canopy_mqtt.core.codec.packets import Publish, SubscriptionRequest, Will
from canopy_mqtt.core.persistence import restore as restoring
from canopy_mqtt.core.persistence.journal import (
    DeliveryRecord,
    Journal,
    MessageRecord,
    Saved,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import RELEASED, SENT, Delivery
from canopy_mqtt.core.queues.queue_terms import DROP_OLDEST
from tests.core.harness import START, Client, Network, limits, total_ledger
from tests.support.restored import restore


def message(payload: bytes, topic: bytes = b"a", qos: int = 2, expires_in: float | None = None) -> MessageRecord:
    return MessageRecord(topic, payload, qos, False, b"", expires_in, "p")


def subscription(topic_filter: str, streaming: bool = False, identifier: int = 0) -> SubscriptionRecord:
    return SubscriptionRecord(SubscriptionRequest(topic_filter, 2, False, True, 0), identifier, streaming)


def delivery(number: int, payload: bytes, state: int = 0, packet_id: int = 0, attempts: int = 0) -> DeliveryRecord:
    made = DeliveryRecord(number, None if state == RELEASED else message(payload), 2, False, (), "")
    made.state = state
    made.packet_id = packet_id
    made.attempts = attempts
    return made


def session(client_id: str = "c", expiry: int = 100, gone_for: float | None = 10.0) -> SessionRecord:
    return SessionRecord(client_id, expiry, gone_for)


def network(
    *sessions: SessionRecord, retained: tuple[MessageRecord, ...] = (), journal: Journal | None = None
) -> Network:
    """A new broker with these sessions, ticked once."""
    made = Network()
    saved = Saved()
    saved.sessions.extend(sessions)
    saved.retained.extend(retained)
    made.router.journal = journal
    restore(made.router, saved, made.now)
    made.router.tick(made.now)
    return made


def back(made: Network, client_id: str = "c") -> Client:
    """The client returns, and its session is there [MQTT-3.2.2-3]."""
    client = made.idle(client_id)
    client.judge.enabled = False
    assert client.connect(clean=False, expiry=100).session_present
    return client


def test_an_interrupted_stream_of_retained_messages_begins_again() -> None:
    kept = session()
    kept.subscriptions.append(subscription("r/#", streaming=True))
    made = network(kept, retained=(message(b"1", b"r/1"), message(b"2", b"r/2")))
    client = back(made)
    assert sorted(client.payloads()) == [b"1", b"2"]
    assert [one for one in client.got(Publish) if not one.retain] == []


def test_the_present_limits_hold() -> None:
    made = Network(limits(session_messages=1, max_qos=1))
    kept = session()
    kept.subscriptions.append(subscription("a"))
    kept.deliveries += [delivery(1, b"in flight", SENT, 1, 1), delivery(2, b"fits"), delivery(3, b"does not")]
    finished: list[tuple[str, bytes]] = []

    class Finished(Journal):
        def finished(self, client_id: str, delivery: Delivery) -> None:
            finished.append((client_id, delivery.message.payload()))

    made.router.journal = Finished()
    saved = Saved()
    saved.sessions.append(kept)
    restore(made.router, saved, made.now)
    restored = made.session("c")
    assert [each.message.payload() for each in restored.queue.pending or []] == [b"fits"]
    assert restored.subscriptions["a"].qos == 1
    assert finished == [("c", b"does not")]
    assert made.router.counters.dropped_in_all() == 1
    assert total_ledger([restored]) == []


def test_the_journal_hears_what_the_restart_changed_and_no_more() -> None:
    """New objects for old deliveries; that a client is no longer connected; when its will is due."""
    told: list[tuple[object, ...]] = []

    class Notes(Journal):
        def session_kept(
            self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float
        ) -> None:
            del principal
            told.append((client_id, expiry_interval, disconnected_at))

        def will_set(self, client_id: str, will: Will, due: float) -> None:
            told.append((client_id, will.topic, due))

        def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
            told.append((client_id, delivery.message.payload(), number))

        def queued(self, *_: object) -> None:
            raise AssertionError

        def subscribed(self, *_: object) -> None:
            raise AssertionError

        def retained_set(self, *_: object) -> None:
            raise AssertionError

    kept = session()
    kept.deliveries += [delivery(31, b"1", SENT, 1, 1), delivery(32, b"2")]
    kept.subscriptions.append(subscription("a"))
    died = session("d", gone_for=None)
    died.will = WillRecord(Will("w", b"", delay=9), None)
    network(kept, died, retained=(message(b"r"),), journal=Notes())
    assert told == [("c", b"1", 31), ("c", b"2", 32), ("d", 100, START), ("d", "w", START + 9)]


def test_only_a_new_router_can_be_restored() -> None:
    used = Network()
    used.client("c")
    with pytest.raises(RuntimeError, match="new router"):
        restore(used.router, Saved(), used.now)
    retaining = network(retained=(message(b"1"),))
    with pytest.raises(RuntimeError, match="new router"):
        restore(retaining.router, Saved(), retaining.now)


def test_what_has_to_make_room_is_told_to_be_over() -> None:
    """With the newest kept, the oldest go: they are not there once more after the next start."""
    made = Network(limits(session_messages=2, queue_policy=DROP_OLDEST))
    kept = session()
    kept.deliveries += [delivery(1, b"1"), delivery(2, b"2"), delivery(3, b"3"), delivery(4, b"4")]
    told: list[tuple[str, bytes]] = []

    class Told(Journal):
        def queued(self, *_: object) -> None:
            raise AssertionError

        def finished(self, client_id: str, delivery: Delivery) -> None:
            told.append((client_id, delivery.message.payload()))

    made.router.journal = Told()
    saved = Saved()
    saved.sessions.append(kept)
    restore(made.router, saved, made.now)
    restored = made.session("c")
    assert [each.message.payload() for each in restored.queue.pending or []] == [b"3", b"4"]
    assert told == [("c", b"1"), ("c", b"2")]
    assert restored.queue.journal is made.router.journal


def test_a_clock_that_was_set_back_does_not_put_off_a_will() -> None:
    """It is due after its delay at last, whatever the time is said to be."""
    kept = session(gone_for=0.0)
    kept.will = WillRecord(Will("w", b"gone", 1, delay=60), 1e9)
    assert network(kept).session("c").will_due == START + 60


async def test_it_is_put_back_in_turns() -> None:
    """However much one session has: each turn is about so many subscriptions, messages and sessions."""
    made, saved = Network(limits(session_messages=10_000)), Saved()
    saved.retained.extend(message(b"x", b"r/%d" % number) for number in range(2_500))
    saved.sessions.extend(session(f"c{number}") for number in range(2_500))
    large = session("large")
    large.subscriptions.extend(subscription(f"s/{number}") for number in range(2_500))
    large.deliveries.extend(delivery(number, b"x") for number in range(1, 2_501))
    saved.sessions.append(large)
    router = made.router
    there = [0]

    def count() -> None:
        found = router.sessions.get("large")
        waiting = 0 if found is None else found.queue.messages + len(found.subscriptions)
        there.append(len(router.retained) + len(router.sessions) + int(waiting))

    async def watch() -> None:
        while True:
            count()
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await in_turns(restoring.restore(router, saved, made.now, []))
    watching.cancel()
    count()
    assert there[-1] == 10_001
    assert max(after - before for before, after in pairwise(there)) <= PIECE + 1
