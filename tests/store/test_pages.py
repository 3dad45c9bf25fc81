"""Queues that are larger than what may wait in memory: what is on disk alone comes in its place, once, or is told."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.ledger import EXPIRED, FULL_MESSAGES, GLOBAL
from canopy_mqtt.core.queues.disk_queue import FETCHED, FETCHED_BYTES, PAGE_BYTES
from canopy_mqtt.core.queues.disk_queue import PAGE as PAGE_OF_ALL
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DROP_OLDEST
from canopy_mqtt.store.sqlite import SqliteStore
from canopy_mqtt.store.tools.exporting import lines
from canopy_mqtt.store.tools.read_only import open_read_only
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.store.observed import restored
from tests.store.places import rebooted
from tests.store.sqlite.place import count
from tests.support.losses import dropped_by_cause
from tests.support.runs import examples

Value = TypeVar("Value")

IN_MEMORY = 3
PAGE = 2


class Paged:
    """Brokers one after the other on one file, of which three messages of a session wait in memory."""

    def __init__(self, folder: Path, clock: float = 1_000.0, **bounds: Any) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.limits = limits(**bounds)
        self.network = Network(self.limits)
        self.network.now = clock
        self.clients: dict[str, Client] = {}
        self.disk_bytes = 0
        self.store = self.begin()
        self.network.router.journal = self.store.journal

    def begin(self) -> SqliteStore:
        store = SqliteStore(
            self.folder,
            synchronous="off",
            commit_window=0.0,
            memory_messages=IN_MEMORY,
            disk_bytes=self.disk_bytes,
            clocks=rebooted(lambda: self.network.now),
        )
        store._pages.page, store._pages.fetched = PAGE, 2 * PAGE
        self.do(store.open(lambda: self.network.now))
        return store

    def do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(work)

    def idle(self, name: str, version: int = p.V5) -> Client:
        self.clients[name] = self.network.idle(name, version)
        return self.clients[name]

    def there(self, name: str) -> bool:
        client = self.clients[name]
        return client.link is not None and not client.link.cut and not client.link.protocol.close_cause

    def turn(self) -> None:
        """Groups end, pages come; each at most once."""
        self.do(asyncio.sleep(0))
        self.network.settle()

    def commit(self) -> None:
        """Everything that was told is written, and whatever was asked for has come."""
        for _ in range(3):
            self.do(self.store.flush())
            self.do(self.store._call(lambda: None))
            self.network.settle()

    def all_comes(self) -> None:
        """Until nobody has anything left that could go."""
        seen: list[object] = []
        while len(seen) < 5 or seen[-5:] != [seen[-1]] * 5:
            self.commit()
            seen.append([(len(client.inbox), len(client.outgoing)) for client in self.clients.values()])

    def stop_writing(self) -> None:
        """As if the process had died: what was not given to the writer is not written."""
        store = self.store
        writer, opened = store._writer, store._opened
        assert writer is not None
        assert opened is not None
        store._committer.stop()
        writer.end()
        assert writer.join(60)
        opened.close()

    def kill(self, shift: int = 0) -> None:
        """The broker is gone, and another one begins."""
        for client in self.clients.values():
            client.killed()
        self.stop_writing()
        self.store = self.begin()
        self.network.router = restored(self.do(self.store.load()), self.limits, self.network.now, self.store)
        self.network.links = []
        for session in self.network.router.sessions.values():
            session.inflight.last_id += shift

    def end(self) -> None:
        self.stop_writing()
        self.do(asyncio.sleep(0))
        self.loop.close()


class Machine(RuleBasedStateMachine):
    """A publisher, and two subscribers of QoS 1 and 2; what one of them gets is a list that only grows."""

    def __init__(self) -> None:
        super().__init__()
        # Its finalizer removes it when a rule or the teardown fails, too.
        self.folder = tempfile.TemporaryDirectory(prefix="canopy-pages-")
        self.all = Paged(Path(self.folder.name), receive_maximum=20, max_inflight=4)
        self.network = self.all.network
        self.count = 0
        self.unacknowledged: dict[int, p.Publish] = {}
        self.promised: set[int] = set()

    def join(self, name: str) -> None:
        client = self.all.clients[name]
        client.connect(clean=False, expiry=1_000)
        assert client.connack.reason_code == 0

    @initialize()
    def everybody(self) -> None:
        for name in ("a", "x", "y"):
            self.all.idle(name)
            self.join(name)
        for name, qos in (("x", 2), ("y", 1)):
            client = self.all.clients[name]
            client.send(p.Subscribe(client.take_id(), [Request("t", qos)]))
        self.network.settle()
        self.all.commit()
        assert self.all.clients["x"].got(p.Suback)

    @rule(qos=st.sampled_from([1, 2]), times=st.integers(1, 12))
    def publish(self, qos: int, times: int) -> None:
        client = self.all.clients["a"]
        if not self.all.there("a"):
            self.join("a")
        for _ in range(times):
            if len(client.outgoing) < self.all.limits.receive_maximum:
                self.count += 1
                self.unacknowledged[self.count] = client.post("t", b"%d" % self.count, qos)
        self.network.settle()

    @rule(name=st.sampled_from(["x", "y"]))
    def leave(self, name: str) -> None:
        if self.all.there(name):
            self.all.clients[name].cut()
            self.network.settle()

    @rule(name=st.sampled_from(["x", "y"]))
    def come(self, name: str) -> None:
        self.join(name)

    @rule(name=st.sampled_from(["x", "y"]), answering=st.booleans())
    def answer_or_not(self, name: str, answering: bool) -> None:
        if self.all.there(name):
            self.all.clients[name].answering = answering
            if answering:
                self.all.clients[name].answer()

    @rule(times=st.integers(1, 5))
    def turn(self, times: int) -> None:
        for _ in range(times):
            self.all.turn()

    @rule()
    def commit(self) -> None:
        self.all.commit()

    @rule(shift=st.sampled_from([0, 1, 9]))
    def kill(self, shift: int) -> None:
        self.note()
        self.all.kill(shift)
        # It begins anew, and sends nothing again: what it has no acknowledgement for may be there, or not.
        self.unacknowledged.clear()
        publisher = self.all.clients["a"]
        publisher.outgoing.clear()
        publisher.connect(clean=True, expiry=1_000)

    def note(self) -> None:
        """Note the messages that the publisher has an acknowledgement for."""
        outgoing = self.all.clients["a"].outgoing
        for number, packet in list(self.unacknowledged.items()):
            if outgoing.get(packet.packet_id) is not packet:
                self.promised.add(number)
                del self.unacknowledged[number]

    @invariant()
    def in_order_and_exactly_once(self) -> None:
        """[MQTT-4.6.0-6] of what comes for the first time, and of QoS 2 nothing comes twice."""
        if "y" not in self.all.clients:
            return
        self.note()
        for name in ("x", "y"):
            came = [(int(packet.payload), packet.qos) for packet in self.all.clients[name].inbox]
            for qos in (1, 2):
                first = list(dict.fromkeys(number for number, each in came if each == qos))
                assert first == sorted(first), (name, qos, first)
            exact = [number for number, qos in came if qos == 2]
            assert len(exact) == len(set(exact)), (name, exact)
        sessions = self.network.router.sessions.values()
        assert total_ledger(sessions) == []
        on_disk = [session.queue.disk for session in sessions if session.queue.disk is not None]
        pages = self.all.store._pages
        assert pages.messages == sum(disk.messages for disk in on_disk)
        assert pages.bytes == sum(disk.bytes for disk in on_disk)
        for session in sessions:
            # What is read ahead, what is being read, and what may be in memory at all.
            assert session.queue.in_memory <= IN_MEMORY + 2 * PAGE + PAGE

    def teardown(self) -> None:
        if "y" in self.all.clients:
            for name in ("a", "x", "y"):
                self.all.clients[name].answering = True
                self.join(name)
            self.all.all_comes()
            self.in_order_and_exactly_once()
            assert not self.all.clients["a"].outgoing
            totals = self.network.router.counters.totals
            for name in ("x", "y"):
                assert self.promised <= {int(packet.payload) for packet in self.all.clients[name].inbox}
                queue = self.network.session(name).queue
                assert (queue.messages, queue.bytes, queue.pending, queue.disk) == (0, 0, None, None)
            assert (totals.messages, totals.bytes) == (0, 0)
        self.all.end()
        self.folder.cleanup()


def test_what_waits_on_disk_alone_comes_in_order_and_once() -> None:
    """[MQTT-4.3.3-10] [MQTT-4.6.0-6], whoever is killed or leaves, and whenever."""
    options: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples(60), stateful_step_count=25, **options))


@pytest.fixture
def all_(tmp_path: Path) -> Iterator[Paged]:
    made = Paged(tmp_path, max_inflight=2)
    yield made
    made.end()


def away(paged: Paged, name: str = "x", topic: str = "t", **connect: Any) -> Client:
    """A subscriber that has left."""
    client = paged.idle(name)
    client.connect(clean=False, expiry=1_000, **connect)
    client.send(p.Subscribe(client.take_id(), [Request(topic, 1)]))
    paged.commit()
    assert client.got(p.Suback)
    client.cut()
    return client


def publish(paged: Paged, *payloads: int, expiry: int = -1, topic: str = "t") -> None:
    """Messages that are on disk when this returns."""
    client = paged.clients.get("a") or paged.idle("a")
    if not paged.there("a"):
        client.connect()
    for payload in payloads:
        client.post(topic, b"%d" % payload, 1, expiry=expiry)
        paged.network.settle()
        paged.commit()


def came(client: Client) -> list[int]:
    return [int(packet.payload) for packet in client.inbox]


def taken(paged: Paged, client: Client) -> list[int]:
    """Return the messages that come to a client that returns."""
    client.connect(clean=False, expiry=1_000)
    paged.all_comes()
    return came(client)


def test_memory_keeps_what_it_may_and_no_more(all_: Paged) -> None:
    client = away(all_)
    publish(all_, *range(20))
    queue = all_.network.session("x").queue
    totals = all_.network.router.counters.totals
    assert (queue.messages, queue.in_memory, len(queue.pending or ())) == (20, IN_MEMORY, IN_MEMORY)
    assert (totals.messages, totals.bytes) == (IN_MEMORY, queue.bytes_in_memory)
    assert dict(all_.store.figures())["paged/messages"] == 20 - IN_MEMORY
    assert taken(all_, client) == list(range(20))
    assert dict(all_.store.figures())["paged/messages"] == 0
    assert count(all_.folder, "delivery") == 0


def test_a_start_reads_what_waits_in_memory_and_counts_the_rest(all_: Paged) -> None:
    client = away(all_)
    publish(all_, *range(20))
    size = all_.network.session("x").queue.bytes
    all_.kill()
    queue = all_.network.session("x").queue
    assert (queue.messages, queue.bytes, queue.in_memory) == (20, size, IN_MEMORY)
    [record] = [one for one in all_.do(all_.store.load()).sessions if one.client_id == "x"]
    assert len(record.deliveries) == IN_MEMORY
    assert [page.messages for page in record.pages] == [2] * 8 + [1]
    publish(all_, 20)
    assert taken(all_, client) == list(range(21))


def test_what_was_in_memory_again_keeps_its_place_over_a_restart(all_: Paged) -> None:
    """Before messages that came when nothing was on disk alone, and those before what is on disk now."""
    client = away(all_)
    publish(all_, *range(IN_MEMORY + 1))
    client.answering = False
    client.connect(clean=False, expiry=1_000)
    all_.all_comes()
    assert all_.network.session("x").queue.disk is None
    client.cut()
    publish(all_, *range(IN_MEMORY + 1, 20))
    all_.kill()
    client.answering = True
    assert list(dict.fromkeys(taken(all_, client))) == list(range(20))


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Paged]:
    """A broker that was killed while a client took what was on disk alone, and more had come behind it."""
    made = Paged(tmp_path, max_inflight=2)
    client = away(made)
    publish(made, *range(IN_MEMORY + 1))
    client.answering = False
    client.connect(clean=False, expiry=1_000)
    made.all_comes()
    publish(made, IN_MEMORY + 1)
    queue = made.network.session("x").queue
    assert (queue.disk, queue.messages) == (None, IN_MEMORY)
    client.cut()
    made.kill()
    yield made
    made.end()


def test_memory_keeps_no_more_after_a_kill_while_a_client_takes_it(reading: Paged) -> None:
    """Messages that had been read back are in memory again, so new ones do not queue behind them, but are on disk
    alone."""
    queue = reading.network.session("x").queue
    assert (queue.in_memory, queue.disk) == (IN_MEMORY, None)
    publish(reading, *range(IN_MEMORY + 2, 30))
    assert queue.in_memory == IN_MEMORY
    assert list(dict.fromkeys(taken(reading, reading.clients["x"]))) == list(range(30))
    assert count(reading.folder, "delivery") == 0


def test_numbers_go_on_behind_what_was_read_back_and_taken(reading: Paged) -> None:
    """Or what waits on disk alone would have been in memory again, as the file says."""
    client = reading.clients["x"]
    taken(reading, client)
    client.cut()
    reading.commit()
    assert count(reading.folder, "delivery") == 0
    reading.kill()
    publish(reading, *range(10))
    reading.commit()
    reading.kill()
    queue = reading.network.session("x").queue
    assert (queue.messages, queue.in_memory) == (10, IN_MEMORY)


def test_what_is_noted_of_a_session_that_has_read_goes_with_it(reading: Paged) -> None:
    assert count(reading.folder, "read_back") == 1
    reading.clients["x"].connect(clean=True)
    reading.commit()
    assert count(reading.folder, "read_back") == 0


def test_an_export_says_of_what_was_read_back_that_it_is_in_memory(reading: Paged) -> None:
    with open_read_only(reading.folder) as found:
        told = [json.loads(line) for line in lines(found)]
    sizes = [line.get("size") for line in told if line["type"] == "delivery" and line["client_id"] == "x"]
    assert sizes == [None] * (IN_MEMORY + 2)


def test_what_is_dropped_for_newer_ones_goes_from_the_disk_a_page_at_a_time(tmp_path: Path) -> None:
    made = Paged(tmp_path, session_messages=10, queue_policy=DROP_OLDEST)
    client = away(made)
    publish(made, *range(30))
    session = made.network.session("x")
    assert session.queue.messages in (9, 10)
    assert dropped_by_cause(session)[FULL_MESSAGES] == 30 - session.queue.messages
    assert count(made.folder, "delivery") == session.queue.messages
    left = session.queue.messages
    made.kill()
    assert taken(made, client) == list(range(30 - left, 30))
    assert total_ledger(made.network.router.sessions.values()) == []
    made.end()


def test_pages_that_are_not_written_yet_are_dropped_as_well(tmp_path: Path) -> None:
    made = Paged(tmp_path, session_messages=10, queue_policy=DROP_OLDEST, receive_maximum=100)
    client = away(made)
    publisher = made.network.client("a")
    for payload in range(60):
        publisher.post("t", b"%d" % payload, 1)
    made.network.settle()
    left = made.network.session("x").queue.messages
    made.commit()
    assert count(made.folder, "delivery") == left
    assert taken(made, client) == list(range(60 - left, 60))
    made.end()


def test_what_expires_on_disk_is_not_sent_and_is_counted(all_: Paged) -> None:
    """[MQTT-3.3.2-5]"""
    client = away(all_)
    publish(all_, 0, 1, 2)
    publish(all_, *range(3, 9), expiry=10)
    publish(all_, 9)
    all_.network.advance(11)
    assert taken(all_, client) == [0, 1, 2, 9]
    assert dropped_by_cause(all_.network.session("x"))[EXPIRED] == 6
    assert count(all_.folder, "delivery") == 0


def test_a_queue_that_is_full_of_expired_pages_is_not_full(tmp_path: Path) -> None:
    """[MQTT-3.3.2-5]"""
    made = Paged(tmp_path, session_messages=10)
    client = away(made)
    publish(made, *range(10), expiry=10)
    made.network.advance(11)
    publish(made, 10, 11)
    assert count(made.folder, "delivery") == 2
    assert taken(made, client) == [10, 11]
    made.end()


def test_nothing_of_an_ended_session_stays(all_: Paged) -> None:
    away(all_)
    publish(all_, *range(20))
    again = all_.idle("x")
    again.connect(clean=True)
    all_.commit()
    pages = all_.store._pages
    totals = all_.network.router.counters.totals
    assert (pages.messages, pages.bytes, totals.messages, totals.bytes) == (0, 0, 0, 0)
    all_.kill()
    assert "x" not in all_.network.router.sessions


def test_a_client_that_will_not_stay_gets_what_is_on_disk(all_: Paged) -> None:
    """Its session ends with the connection, and with that what is left of it."""
    client = away(all_)
    publish(all_, *range(20))
    client.answering = False
    client.connect(clean=False, expiry=0)
    all_.commit()
    client.answering = True
    client.answer()
    all_.all_comes()
    assert came(client) == list(range(20))
    client.cut()
    all_.commit()
    all_.kill()
    assert "x" not in all_.network.router.sessions


def test_what_cannot_wait_on_disk_waits_behind_it(all_: Paged) -> None:
    """A subscription with a queue of its own: what is replaced and dropped by it has to be found."""
    client = away(all_)
    publish(all_, *range(8))
    client.connect(clean=False, expiry=1_000)
    all_.network.settle()
    client.answering = False
    asked = bag(("canopy-queue", "latest"))
    client.send(p.Subscribe(client.take_id(), [Request("own", 1)], asked))
    all_.network.settle()
    client.cut()
    publish(all_, 100, 101, 102, topic="own")
    publish(all_, *range(200, 206))
    client.answering = True
    assert taken(all_, client)[-7:] == [102, *range(200, 206)]
    assert list(dict.fromkeys(came(client)))[:8] == list(range(8))


def test_what_another_node_sent_comes_in_order(tmp_path: Path) -> None:
    """It waits for a commit when it leaves; what was on disk alone stays behind it. [MQTT-4.6.0-6]"""
    made = Paged(tmp_path)
    client = away(made)
    for number in range(9):
        message = Message(b"t", b"%d" % number, 1, False, b"", 0.0, "$upstream/$node/b")
        message.held = True
        made.network.router.publish(message, None)
    made.commit()
    made.store._committer._window = 3_600.0
    client.connect(clean=False, expiry=1_000)
    for _ in range(3):
        # Pages come before the group with what has left memory ends.
        made.do(made.store._call(lambda: None))
        made.network.settle()
    made.all_comes()
    assert came(client) == list(range(9))
    made.end()


def test_the_disk_has_a_bound_of_its_own(tmp_path: Path) -> None:
    made = Paged(tmp_path)
    client = away(made)
    publish(made, *range(IN_MEMORY + 1))
    pages = made.store._pages
    pages.disk_bytes = 4 * pages.bytes
    publish(made, *range(IN_MEMORY + 1, 20))
    assert pages.messages == 4
    session = made.network.session("x")
    assert dropped_by_cause(session)[GLOBAL] == 20 - IN_MEMORY - 4
    assert taken(made, client) == list(range(IN_MEMORY + 4))
    made.end()


def test_beyond_the_sum_of_all_whatever_waits_goes_to_disk(all_: Paged) -> None:
    client = away(all_)
    all_.store._pages.total_bytes = 1
    publish(all_, 0, 1)
    assert all_.network.session("x").queue.in_memory == 0
    assert taken(all_, client) == [0, 1]


def test_pages_wait_until_memory_has_room_for_them(all_: Paged) -> None:
    client = away(all_)
    publish(all_, *range(20))
    totals = all_.network.router.counters.totals
    most, totals.max_messages = totals.max_messages, 1
    assert taken(all_, client) == [0, 1, 2]
    totals.max_messages = most
    all_.network.router.sweep(all_.network.now)
    all_.all_comes()
    assert came(client) == list(range(20))


def test_what_is_read_ahead_is_bounded_in_bytes_too(all_: Paged) -> None:
    """A client that is back and takes nothing has no more of it in memory than of short messages: about a page."""
    all_.store._pages.page, all_.store._pages.fetched = PAGE_OF_ALL, FETCHED
    client = away(all_)
    publish(all_, *range(IN_MEMORY))
    talks = all_.clients["a"]
    for number in range(IN_MEMORY, 30):
        talks.post("t", b"%-100000d" % number, 1)
        all_.network.settle()
        all_.commit()
    client.answering = False
    client.connect(clean=False, expiry=1_000, receive_maximum=1)
    all_.all_comes()
    queue = all_.network.session("x").queue
    assert (len(client.inbox), queue.messages) == (1, 29)
    assert queue.bytes_in_memory < PAGE_BYTES + FETCHED_BYTES
    client.cut()
    client.answering = True
    assert taken(all_, client) == [0, *range(30)]


def test_a_broker_stops_while_pages_are_read_and_starts_again(all_: Paged) -> None:
    """In one process, with its sessions in memory: they are there once, and nothing comes twice."""
    client = away(all_)
    publish(all_, *range(20))
    reading = threading.Event()
    writer = all_.store._writer
    assert writer is not None

    def job() -> None:
        assert reading.wait(60)

    writer.put(job)
    client.connect(clean=False, expiry=1_000)
    all_.network.settle()
    assert len(all_.store._committer.fetches) == 1
    client.cut()
    closing = all_.store.close()
    all_.loop.call_soon(reading.set)
    all_.do(closing)
    all_.do(all_.store.open(lambda: all_.network.now))
    assert taken(all_, client) == list(range(20))
    nothing_is_left(all_)


def test_pages_that_could_not_be_read_before_a_stop_are_read_after_the_next_start(
    all_: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = away(all_)
    publish(all_, *range(20))
    tries: list[int] = []

    def fail(*_: object) -> NoReturn:
        tries.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("canopy_mqtt.store.sqlite.store.read_on_disk", fail)
        assert taken(all_, client) == list(range(IN_MEMORY))
        client.cut()
        all_.do(all_.store.close())
    assert tries
    queue = all_.network.session("x").queue
    assert (queue.messages, len(all_.store._committer.fetches)) == (20 - IN_MEMORY, 1)
    all_.do(all_.store.open(lambda: all_.network.now))
    assert taken(all_, client) == list(range(20))
    nothing_is_left(all_)


def nothing_is_left(all_: Paged) -> None:
    totals, pages = all_.network.router.counters.totals, all_.store._pages
    assert not all_.store._committer.fetches
    assert (totals.messages, totals.bytes, pages.messages, pages.bytes) == (0, 0, 0, 0)
    assert count(all_.folder, "delivery") == 0


def test_rows_that_somebody_removed_are_told_as_lost(all_: Paged) -> None:
    client = away(all_)
    publish(all_, *range(8))
    db = sqlite3.connect(all_.folder / "canopy.db")
    db.execute("DELETE FROM delivery WHERE payload = '5' OR CAST(payload AS TEXT) = '5'")
    db.commit()
    db.close()
    assert taken(all_, client) == [0, 1, 2, 3, 4, 6, 7]
    assert total_ledger(all_.network.router.sessions.values()) == []
    assert all_.network.router.counters.totals.bytes == 0
