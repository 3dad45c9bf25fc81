"""A broker stopped and another started on the same store, seen through sockets: nothing is lost or comes twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.persistence.journal import DeliveryRecord, MessageRecord, Saved, SessionRecord
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.retained_shares import RetainedMessage
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Settings
from canopy_mqtt.store import MemoryStore, Store, StoreError
from canopy_mqtt.store.group_commit.records import Loaded
from canopy_mqtt.store.sqlite import SqliteStore
from canopy_mqtt.store.sqlite import store as module
from canopy_mqtt.store.sqlite.reading import read
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Peer, connect
from tests.store.places import KINDS, OUTLIVES, rebooted

HOUR = 3600


class House:
    """One broker after another, all with the same store."""

    def __init__(self, stack: AsyncExitStack, kind: str, folder: Path) -> None:
        # Seconds by which the time between two brokers was longer than it was.
        self.skipped = 0.0
        self.kind, self.folder = kind, folder
        # Whether it remembers what was cleared.
        self.as_node = False
        self.store = self._make()
        self.running = self._broker()
        self.peers: list[Peer] = []
        self._stack = stack

    def _make(self) -> Store:
        return KINDS[self.kind](self.folder, rebooted(lambda: time.time() + self.skipped))

    def _broker(self) -> Broker:
        broker = Broker(Settings(listen=("mqtt://127.0.0.1:0",)), store=self.store)
        broker.router.limits.node = "a" if self.as_node else ""
        return broker

    async def stop(self) -> None:
        """Stop the broker, while the clients read to the end and close, as clients do."""
        stopping = asyncio.ensure_future(self.running.stop())
        for peer in self.peers:
            await peer.closed()
            peer.abort()
        self.peers.clear()
        await stopping

    async def restart(self, after: float = 0.0, before_listening: Callable[[], None] = lambda: None) -> None:
        """Stop the broker, and start another so many seconds later."""
        await self.stop()
        self.skipped += after
        if self.kind in OUTLIVES:
            self.store = self._make()
        self.running = self._broker()
        self.running.before_listening = before_listening
        await self.running.start()

    async def peer(
        self,
        client_id: str,
        *,
        version: int = 5,
        clean: bool = False,
        present: bool = False,
        expiry: int = HOUR,
        **more: Any,
    ) -> Peer:
        """A connected client; its session is kept for `expiry` seconds, and was present or not [MQTT-3.2.2-3]."""
        props = ((SESSION_EXPIRY, expiry),)
        peer = await Peer.open("127.0.0.1", self.running.ports[0], version)
        self._stack.callback(peer.abort)
        self.peers.append(peer)
        await peer.send(connect(client_id, version=version, clean=clean, props=props, **more))
        peer.connack = await peer.expect(wire.CONNACK)
        assert peer.connack.code == 0
        assert peer.connack.session_present is present
        return peer


@pytest.fixture(params=sorted(KINDS))
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        made = House(stack, request.param, tmp_path / "store")
        await made.running.start()
        yield made
        await made.stop()


async def test_retained_messages_survive_and_are_cleared_for_good(house: House) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6]"""
    publisher = await house.peer("p", clean=True)
    for topic in ("r/1", "r/2"):
        await publisher.publish(topic, topic.encode(), qos=1, retain=True)
    await house.restart()
    publisher = await house.peer("q", clean=True)
    await publisher.publish("r/1", b"", qos=1, retain=True)
    await publisher.subscribe(("r/#", 1))
    message = await publisher.message()
    assert (message.topic, message.payload, message.retain) == ("r/2", b"r/2", True)
    assert await publisher.fence() == []
    await house.restart()
    assert [node.topic for node in house.running.router.retained.matching("r/#")] == ["r/2"]


async def test_times_of_retained_messages_are_kept_and_what_was_cleared_where_there_are_nodes(house: House) -> None:
    """Cleared topics are of no use to a broker that is no node any more: it starts without them."""
    forged = [(0x26, ("canopy-mark", "00" + "9" * 17))]
    house.running.router.retained_store.nodes = ("$node/b",)
    publisher = await house.peer("p", clean=True)
    await publisher.publish("cleared", b"", qos=1, retain=True)
    await publisher.publish("t", b"x", qos=1, retain=True, props=forged)
    kept = house.running.router.retained.get("t")
    assert isinstance(kept, RetainedMessage)
    assert len(house.running.router.retained_store.cleared) == 1
    house.as_node = True
    for _ in range(2):
        await house.restart()
        store = house.running.router.retained_store
        assert [node.topic for node in store.cleared.matching("#")] == ["cleared"]
        again = store.tree.get("t")
        assert isinstance(again, RetainedMessage)
        assert (again.at, again.properties) == (kept.at, kept.properties)
        assert kept.at > 0
    house.as_node = False
    for _ in range(2):
        await house.restart()
        store = house.running.router.retained_store
        assert len(store.cleared) == 0
        publisher = await house.peer("p", clean=True)
        await publisher.publish("cleared", b"again", qos=1, retain=True)
    await house.restart()
    assert {node.topic for node in house.running.router.retained.matching("#")} == {"t", "cleared"}


async def test_a_will_of_the_shutdown_reaches_who_comes_later(house: House) -> None:
    """[MQTT-3.1.2-8]: the connection ends without DISCONNECT; the subscriber is away, and hears of it later."""
    subscriber = await house.peer("s")
    await subscriber.subscribe(("w", 1))
    await subscriber.disconnect()
    await house.peer("gone", will=wire.Will("w", b"gone", 1))
    await house.restart()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.message()).payload == b"gone"


async def test_the_same_broker_can_start_again(house: House) -> None:
    """Its sessions are in memory still: they are not loaded a second time, and are kept as before."""
    subscriber = await house.peer("s")
    await subscriber.subscribe(("t", 1))
    await house.stop()
    await house.running.start()
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t", b"1", qos=1)
    await house.restart()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.message()).payload == b"1"


async def test_no_client_can_connect_before_everything_is_back(house: House) -> None:
    """The daemon's work at that moment holds up no client, however much the store kept."""
    client = await house.peer("c")
    await client.publish("t", b"1", qos=1, retain=True)
    seen: list[tuple[list[str], int, list[str]]] = []

    def look() -> None:
        router = house.running.router
        seen.append((list(router.sessions), len(router.retained), house.running.listening))

    await house.restart(before_listening=look)
    assert seen == [(["c"], 1, [])]


async def test_a_broker_that_cannot_listen_lets_go_of_its_store(house: House) -> None:
    port = house.running.ports[0]
    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(StartupError, match="in use"):
            await Broker(Settings(listen=(f"mqtt://127.0.0.1:{port}",)), store=store).start()


async def test_a_start_that_fails_behind_the_store_lets_go_of_it() -> None:
    class Faulty(Broker):
        async def prepare_links(self, records: list[SessionRecord]) -> None:
            raise RuntimeError(f"{len(records)} links")

    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="0 links"):
            await Faulty(Settings(listen=("mqtt://127.0.0.1:0",)), store=store).start()


async def test_a_start_that_is_given_up_while_the_store_is_read_lets_go_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is in it."""
    begun = threading.Event()

    def long(db: sqlite3.Connection, *others: Any) -> Loaded:
        db.create_function("begun", 0, begun.set)
        db.execute(
            "WITH RECURSIVE c (x) AS (SELECT begun() UNION ALL SELECT 1 FROM c LIMIT 500000000) SELECT max(x) FROM c"
        ).fetchone()
        return read(db, *others)

    def broker() -> Broker:
        return Broker(Settings(listen=("mqtt://127.0.0.1:0",)), store=SqliteStore(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(module, "read", long)
        start = asyncio.ensure_future(broker().start())
        assert await asyncio.to_thread(begun.wait, 10)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    async with broker():
        pass


class Full(MemoryStore):
    """A store in which very much waits for somebody."""

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self._client_id = client_id
        self.loaded = asyncio.Event()

    async def load(self) -> Saved:
        saved = await super().load()
        record = SessionRecord(self._client_id, HOUR, 0.0)
        text = MessageRecord(b"t", b"x", 1, False, b"", None, "p")
        record.deliveries.extend(DeliveryRecord(number, text, 1, False, (), "") for number in range(1, MANY + 1))
        saved.sessions.append(record)
        self.journal.session_kept(self._client_id, record.principal, HOUR, 0.0)
        self.loaded.set()
        return saved


MANY = 5_000
WAITED_FOR = ["c", f"{UPLINKS}there", f"{UPLINKS}gone"]


def with_much(client_id: str) -> tuple[Broker, Full]:
    """A broker that is to read such a store."""
    store = Full(client_id)
    given: dict[str, Any] = {"listen": ["mqtt://127.0.0.1:0"], "queue": {"session_messages": 0}}
    if client_id.endswith("there"):
        given["upstream"] = [{"name": "there", "url": "mqtt://127.0.0.1:1"}]
    return Broker(Settings.model_validate(given), store=store), store


async def begun(broker: Broker, client_id: str) -> None:
    """A part of it is put back: the test has each turn of the event loop between two steps."""
    while client_id not in broker.router.sessions:  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("client_id", WAITED_FOR)
async def test_the_event_loop_goes_on_while_very_much_is_put_back(client_id: str) -> None:
    """Of clients, and of links."""
    broker, store = with_much(client_id)
    turns: list[int] = []
    starting = asyncio.ensure_future(broker.start())
    await store.loaded.wait()
    while not starting.done():
        session = broker.router.sessions.get(client_id)
        if session is not None:
            turns.append(session.queued())
        await asyncio.sleep(0)
    await starting
    assert len({number for number in turns if number < MANY}) >= MANY // 1_000 - 1
    await broker.stop()


@pytest.mark.parametrize("client_id", WAITED_FOR)
async def test_a_start_that_is_given_up_meanwhile_can_be_made_again(client_id: str) -> None:
    """By a program, with the same broker: what was half put back is there."""
    broker, _ = with_much(client_id)
    starting = asyncio.ensure_future(broker.start())
    await begun(broker, client_id)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert broker.router.sessions[client_id].queued() == MANY
    await broker.start()
    assert ([] if broker.links is None else [*broker.links.links]) == (["there"] if client_id.endswith("there") else [])
    assert broker.router.sessions[client_id].queued() == MANY
    await broker.stop()


async def test_one_that_is_stopped_meanwhile_does_not_listen() -> None:
    """As where another broker has taken the database."""
    broker, _ = with_much("c")
    starting = asyncio.ensure_future(broker.start())
    await begun(broker, "c")
    await broker.stop()
    with pytest.raises(StartupError, match="was stopped before it had started"):
        await starting
    assert broker.listening == []


async def test_a_store_that_cannot_be_read_is_one_line() -> None:
    class Broken(MemoryStore):
        async def load(self) -> Any:
            raise StoreError("the store at x is damaged: y")

    store = Broken()
    for _ in range(2):
        with pytest.raises(StartupError, match=r"^the store at x is damaged: y$"):
            await Broker(Settings(listen=("mqtt://127.0.0.1:0",)), store=store).start()


async def test_without_a_store_nothing_is_kept() -> None:
    settings = Settings(listen=("mqtt://127.0.0.1:0",))
    async with Broker(settings) as first:
        assert first.router.journal is None
        peer = await Peer.open("127.0.0.1", first.ports[0])
        await peer.send(connect("c", clean=False, props=((SESSION_EXPIRY, HOUR),)))
        assert (await peer.expect(wire.CONNACK)).code == 0
        assert first.router.sessions["c"].journal is None
        await peer.disconnect()
    async with Broker(settings) as second:
        assert not second.router.sessions
