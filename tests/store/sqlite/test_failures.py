"""Errors of the store's own code, with a real file: nothing is acknowledged that is not in it, and it goes on later."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.settings import Settings
from canopy_mqtt.store import StoreError
from canopy_mqtt.store.journal_guard import GuardedJournal
from canopy_mqtt.store.sqlite import SqliteStore
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Peer
from tests.store.sqlite.place import Listener, ask, count, delivery, message, opened
from tests.store.sqlite.test_broadcasts import SESSIONS, made
from tests.store.test_journal_guard import Faulty, Reporter
from tests.store.test_pages import Paged
from tests.support.runs import for_each
from tests.support.sessions import any_session
from tests.support.waiting import until


async def test_a_publisher_gets_its_puback_when_the_journal_works_again(tmp_path: Path) -> None:
    """Meanwhile `$SYS/broker/store/state`, which `canopy health` reads, says why."""
    store = SqliteStore(tmp_path)
    faulty = Faulty(store.journal)
    store.journal = faulty
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",)), store=store) as broker:
        peers = []
        for client_id in ("away", "p"):
            peer = await Peer.open("127.0.0.1", broker.ports[0], 5)
            await peer.send(wire.connect(client_id, version=5, clean=False, props=((SESSION_EXPIRY, 100),)))
            await peer.expect(wire.CONNACK)
            peers.append(peer)
        away, publisher = peers
        await away.send(wire.subscribe(1, [("t", 1)]))
        await away.expect(wire.SUBACK)
        await away.disconnect()
        await until(lambda: broker.router.sessions["away"].send_buffer is None)
        faulty.failing = {"queued"}
        await publisher.send(wire.publish("t", b"x", qos=1, packet_id=1))
        assert await publisher.fence() == []
        assert broker.store_watch is not None
        assert broker.store_watch.state == "a change cannot be noted: RuntimeError: queued"
        assert count(tmp_path, "delivery") == 0
        faulty.failing = set()
        assert (await publisher.expect(wire.PUBACK)).packet_id == 1
        assert broker.store_watch.state == "written"
        assert count(tmp_path, "delivery") == 1
        publisher.abort()


async def test_rows_that_cannot_be_made_stay_with_all_others_of_their_group(tmp_path: Path) -> None:
    """A message whose topic is no text, as no client can send one: what stands beside it is written later."""
    store = await opened(tmp_path, commit_window=0.0)
    journal, commits, listener = store.journal, store.journal.commits, store.listener
    assert commits is not None
    assert isinstance(listener, Listener)
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    journal.session_kept("d", Principal("u"), 300, 0.0)
    journal.subscribed("c", Subscription(any_session(), "f"), False)
    journal.received("c", 7)
    journal.retained_set(message(b"r"))
    journal.queued("c", delivery(b"good"))
    bad = Delivery(Message(b"\xff", b"bad", 1, False, b"", 0.0, "p"), 1, False, (), None)
    journal.queued("c", bad)
    committed = commits.committed
    await until(lambda: len(listener.reasons) > 1)
    assert "UnicodeDecodeError" in listener.reasons[0]
    assert commits.failed
    assert commits.committed == committed
    with pytest.raises(StoreError):
        await store.flush()
    assert (count(tmp_path, "delivery"), count(tmp_path, "session")) == (0, 1)
    journal.finished("c", bad)
    await until(lambda: commits.committed == commits.journal_position)
    assert listener.recoveries == 1
    await store.close()
    assert [count(tmp_path, each) for each in ("session", "subscription", "received", "retained")] == [2, 1, 1, 1]
    assert ask(tmp_path, "SELECT payload FROM delivery") == [(b"good",)]


async def test_a_value_that_the_writer_cannot_encode_holds_back_its_group(tmp_path: Path) -> None:
    store = await opened(tmp_path, commit_window=0.0)
    journal, commits, listener = store.journal, store.journal.commits, store.listener
    assert commits is not None
    assert isinstance(listener, Listener)
    journal.session_kept("c", Principal("u"), 300, 0.0)
    journal.session_kept("\ud800", Principal("u"), 300, 0.0)
    await until(lambda: listener.reasons)
    assert commits.committed == 0
    with pytest.raises(StoreError):
        await store.close()


@for_each("failing", [{"paged"}, {"queued"}, {"in_flight"}, {"fetch"}, {"read_back"}, {"restored"}])
def test_messages_that_were_told_late_come_in_their_order(tmp_path: Path, failing: set[str]) -> None:
    """[MQTT-4.6.0-6]: those in memory, and those on disk only, before and after a restart."""
    all_ = Paged(tmp_path, max_inflight=4)
    faulty = Faulty(all_.store.journal)
    all_.network.router.journal = GuardedJournal(faulty, Reporter().failed)
    sub, pub = all_.idle("sub"), all_.network.client("pub")
    sub.connect(clean=False, expiry=1_000)
    sub.send(p.Subscribe(sub.take_id(), [Request("t", 1)]))
    all_.network.settle()
    all_.commit()
    if failing != {"in_flight"}:
        sub.cut()
    sub.answering = False
    at_once = 2 if failing & {"paged", "queued", "in_flight"} else 8
    for number in range(16):
        if number == at_once:
            all_.commit()
            faulty.failing = failing
        pub.publish("t", b"%d" % number, 1)
    if not faulty.raised:
        sub.connect(clean=False, expiry=1_000)
        for _ in range(20):
            sub.answer()
            all_.turn()
            # What was asked of the writer's thread has come.
            all_.do(all_.store._call(lambda: None))
    assert faulty.raised > 0
    faulty.failing = set()
    all_.network.router.sweep(all_.network.now)
    all_.commit()
    all_.kill()
    seen = len(sub.inbox)
    sub.connect(clean=False, expiry=1_000)
    all_.all_comes()
    payloads = [int(one.payload) for one in sub.inbox[seen:]]
    assert payloads == list(range(payloads[0], 16))
    all_.end()


async def test_a_broadcast_that_was_told_late_is_on_disk_until_it_is_over(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    router = made(store)
    await store.flush()
    faulty = Faulty(store.journal)
    guard = GuardedJournal(faulty, Reporter().failed)
    router.journal = guard
    faulty.failing = {"broadcast"}
    router.publish(Message(b"t", b"x", 1, False, b"", 0.0, "p"), None)
    router.budget.begin(1)
    router.fanout.broadcasts.step(router.budget)
    faulty.failing = set()
    guard.retry()
    await store.flush()
    [broadcast] = (await store.load()).broadcasts
    assert len(broadcast.passed) == 1
    while router.fanout.broadcasting:
        router.tick(time.monotonic())
    await store.flush()
    assert (count(tmp_path, "broadcast"), count(tmp_path, "delivery")) == (0, SESSIONS)
    await store.close()
