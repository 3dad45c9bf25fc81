"""The store of the settings, and what the log and `$SYS` tell of one that fails and goes on."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from canopy_mqtt.assembly import storing
from canopy_mqtt.assembly.app import Broker, StartupError
from canopy_mqtt.command.health import UnhealthyError, check
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.observe import store_watch
from canopy_mqtt.observe.store_watch import StoreWatch
from canopy_mqtt.security.rules.rule import RECEIVE, Rule
from canopy_mqtt.settings import Endpoint, Settings, Shutdown, Sys
from canopy_mqtt.store import MemoryStore
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.damage import NAMED, Damages
from canopy_mqtt.store.sqlite import SqliteStore
from canopy_mqtt.store.sqlite.opening import open_store
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.runs import for_each
from tests.support.waiting import until

SELDOM = 86_400.0
FULL = "database or disk is full"


class Disk(MemoryStore):
    """A store with something to tell."""

    def figures(self) -> Iterator[tuple[str, object]]:
        yield "path", "/s"
        yield "waiting", 3


@asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[tuple[Broker, StoreWatch]]:
    settings = Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=SELDOM), shutdown=Shutdown(flush_timeout=0.0))
    async with Broker(settings, store=store) as broker:
        assert broker.store_watch is not None
        assert store.listener is broker.store_watch
        yield broker, broker.store_watch


def told(broker: Broker, topic: str) -> str | None:
    found = broker.router.retained.get(f"$SYS/broker/store/{topic}")
    return found.payload().decode() if isinstance(found, Message) else None


async def test_figures_of_a_store() -> None:
    async with running(Disk()) as (broker, _):
        assert (told(broker, "path"), told(broker, "waiting")) == ("/s", "3")
        assert (told(broker, "state"), told(broker, "failures")) == ("written", "0")
    async with running(MemoryStore()) as (broker, _):
        assert told(broker, "state") is None


async def test_the_state_does_not_wait_for_the_interval() -> None:
    async with running(Disk()) as (broker, watch):
        peer = await Peer.open("127.0.0.1", broker.ports[0])
        try:
            await peer.send(wire.connect("operator"))
            await peer.expect(wire.CONNACK)
            await peer.subscribe("$SYS/broker/store/state")
            assert (await peer.message()).payload == b"written"
            watch.failed(FULL)
            assert (await peer.message()).payload == FULL.encode()
            watch.recovered()
            assert (await peer.message()).payload == b"written"
        finally:
            peer.abort()


async def test_a_health_check_sees_it() -> None:
    async with running(Disk()) as (broker, watch):
        address = Endpoint("mqtt", "127.0.0.1", broker.ports[0])
        await asyncio.to_thread(check, address)
        watch.failed(FULL)
        with pytest.raises(UnhealthyError, match=f"the store cannot be written: {FULL}$"):
            await asyncio.to_thread(check, address)
        watch.recovered()
        await asyncio.to_thread(check, address)


async def test_one_failure_is_two_lines() -> None:
    with capture_logs() as lines:
        async with running(Disk()) as (_, watch):
            for _ in range(5):
                watch.failed(FULL)
            watch.recovered()
            watch.recovered()
    found = [line for line in lines if line["event"].startswith("store ")]
    assert [(line["event"], line["log_level"], line["failures"]) for line in found] == [
        ("store cannot be written", "error", 1),
        ("store is written again", "warning", 1),
    ]
    assert found[0]["reason"] == FULL


async def test_a_disk_that_comes_and_goes_does_not_fill_the_log() -> None:
    with capture_logs() as lines:
        async with running(Disk()) as (_, watch):
            for number in range(1_000):
                watch.failed(f"{FULL} {number}")
                watch.recovered()
    assert len([line for line in lines if line["event"].startswith("store ")]) == 2


async def test_a_failure_that_stays_is_told_when_a_line_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "LINES_APART", 0.05)
    with capture_logs() as lines:
        async with running(Disk()) as (_, watch):
            watch.failed(FULL)
            watch.recovered()
            watch.failed("disk I/O error")
            await until(lambda: any(line.get("reason") == "disk I/O error" for line in lines))
            watch.recovered()
    found = [line for line in lines if line["event"].startswith("store ")]
    assert [line["failures"] for line in found] == [1, 1, 2, 2]


async def test_a_disk_that_is_full_at_the_stop_is_no_internal_error() -> None:
    class Full(Disk):
        async def close(self) -> None:
            await super().close()
            raise StoreError(FULL)

    with capture_logs() as lines:
        async with running(Full()):
            pass
    assert [(line["event"], line["reason"]) for line in lines if line["log_level"] == "error"] == [
        ("store is closed without its last changes", FULL)
    ]


class TestSettings:
    def test_without_a_path_there_is_none(self) -> None:
        settings = Settings()
        assert storing.make(settings) is None
        assert storing.place(settings) == "memory"
        assert "memory only" in storing.kept(settings)
        assert storing.unusable(settings) == []

    def test_a_path_makes_one_with_the_other_settings(self, tmp_path: Path) -> None:
        terms = {"path": str(tmp_path / "s"), "synchronous": "off", "commit_window": 0.5, "commit_bytes": 77}
        made = storing.make(Settings.model_validate({"store": terms}))
        assert isinstance(made, SqliteStore)
        assert (made.directory, made._synchronous) == (tmp_path / "s", "off")
        assert (made._committer._window, made._committer._size) == (0.5, 77)
        # Only a start touches the disk.
        assert not made.directory.exists()

    @for_each("synchronous", ["full", "normal", "off"])
    def test_the_start_says_where_and_how_well(self, synchronous: str) -> None:
        settings = Settings.model_validate({"store": {"path": "/s", "synchronous": synchronous}})
        assert storing.place(settings) == "/s"
        assert storing.kept(settings).startswith("kept in /s: sessions, queued and retained messages; ")
        assert ("power cut" in storing.kept(settings)) is (synchronous != "full")

    def test_a_url_makes_one_with_the_other_settings(self) -> None:
        pytest.importorskip("asyncpg")
        from canopy_mqtt.store.postgresql import PostgresStore

        url = "postgresql://me:secret@db1:5433,db2/canopy?sslmode=require"
        terms = {"url": url, "name": "plant", "lease_timeout": 7.0, "stall_timeout": 3.0, "commit_bytes": 77}
        made = storing.make(Settings.model_validate({"store": terms}))
        assert isinstance(made, PostgresStore)
        database = made._database
        assert (database.url, database.name, database.lease_timeout, database.timeout) == (url, "plant", 7.0, 3.0)
        assert made._committer._size == 77
        assert dict(made.figures())["path"] == "postgresql://db1:5433,db2/canopy, schema plant"

    def test_with_a_cluster_a_url_makes_one_that_nodes_share(self) -> None:
        pytest.importorskip("asyncpg")
        from canopy_mqtt.store.shared.store import SharedStore

        terms = {"url": "postgresql://me:secret@db1/canopy", "name": "plant", "memory_messages": 7}
        cluster = {"name": "port", "node": "a", "listen": "mqtt+unix:///a", "dead_after": 9.0}
        settings = Settings.model_validate({"store": terms, "cluster": cluster})
        made = storing.make(settings)
        assert isinstance(made, SharedStore)
        assert (made.most, made._dead_after, made.running.database.node_name) == (7, 9.0, "a")
        assert dict(made.figures())["path"] == "postgresql://db1/canopy, schema plant"
        assert "durable sessions of all nodes, with their queues; all else in memory" in storing.kept(settings)

    def test_nodes_that_share_one_wait_longer_where_nothing_is_set(self) -> None:
        pytest.importorskip("asyncpg")
        cluster = {"name": "port", "node": "a", "listen": "mqtt+unix:///a"}

        def window(**terms: float) -> float:
            store = {"url": "postgresql://me:secret@db1/canopy", **terms}
            made = storing.make(Settings.model_validate({"store": store, "cluster": cluster}))
            assert isinstance(made, SharedStore)
            return made.running._window

        from canopy_mqtt.store.shared.store import SharedStore

        assert (window(), window(commit_window=0.002)) == (0.01, 0.002)

    def test_the_start_says_which_database_and_no_password(self) -> None:
        settings = Settings.model_validate({"store": {"url": "postgresql://me:secret@db1/canopy?sslmode=require"}})
        assert storing.place(settings) == "postgresql://db1/canopy, schema canopy"
        assert storing.kept(settings).startswith(
            "kept in postgresql://db1/canopy, schema canopy: sessions, queued and "
        )

    def test_without_the_package_it_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = Settings.model_validate({"store": {"url": "postgresql://db1/canopy"}})
        monkeypatch.setattr(storing, "find_spec", lambda _: None)
        line = 'store.url needs the extra `postgresql`: in a clone of Canopy, pip install ".[postgresql]"'
        assert storing.unusable(settings) == [line]
        with pytest.raises(StartupError, match=r"^store\.url needs the extra `postgresql`"):
            Broker(settings)

    def test_folders_that_can_be_used(self, tmp_path: Path) -> None:
        for folder in (tmp_path, tmp_path / "new" / "er"):
            assert storing.unusable(Settings.model_validate({"store": {"path": str(folder)}})) == []
        assert list(tmp_path.iterdir()) == []

    @for_each(
        ("statement", "line"),
        [
            ("PRAGMA user_version = 99", " is of version 99, and this broker's is "),
            ("PRAGMA application_id = 7", " is another program's SQLite file: name another directory"),
        ],
    )
    def test_a_file_that_no_start_would_use(self, tmp_path: Path, statement: str, line: str) -> None:
        open_store(tmp_path, "full").close()
        settings = Settings.model_validate({"store": {"path": str(tmp_path)}})
        assert storing.unusable(settings) == []
        db = sqlite3.connect(tmp_path / "canopy.db")
        db.execute(statement)
        db.close()
        assert line in storing.unusable(settings)[0]
        (tmp_path / "canopy.db").write_bytes(b"garbage")
        assert " is not an SQLite file: move it away" in storing.unusable(settings)[0]

    @for_each("below", ["", "s"])
    def test_a_file_is_no_folder(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").touch()
        (line,) = storing.unusable(Settings.model_validate({"store": {"path": str(tmp_path / "file" / below)}}))
        assert line.startswith(f"store.path: {tmp_path / 'file'} is not a directory")

    def test_a_folder_of_somebody_else(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # The superuser, as whom tests may run, may write everywhere.
        monkeypatch.setattr(os, "access", lambda *_: False)
        (line,) = storing.unusable(Settings.model_validate({"store": {"path": str(tmp_path / "s")}}))
        assert line.startswith(f"store.path: {tmp_path} cannot be written to")


async def test_a_broker_keeps_by_its_settings_alone(tmp_path: Path) -> None:
    """Embedded, too; over another broker object."""
    settings = Settings.model_validate(
        {"listen": ["mqtt://127.0.0.1:0"], "store": {"path": str(tmp_path / "s"), "synchronous": "off"}}
    )
    for number in range(2):
        async with Broker(settings) as broker:
            found = broker.router.retained.get("t")
            assert (found is None) is (number == 0)
            if isinstance(found, Message):
                assert found.payload() == b"1"
            assert told(broker, "path") == str(tmp_path / "s")
            peer = await Peer.open("127.0.0.1", broker.ports[0])
            await peer.send(wire.connect("p"))
            await peer.expect(wire.CONNACK)
            await peer.publish("t", b"1", qos=1, retain=True)
            await peer.disconnect()


async def test_the_rules_of_an_absent_client_hold_after_a_restart(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"listen": ["mqtt://127.0.0.1:0"], "store": {"path": str(tmp_path), "synchronous": "off"}}
    )
    rule = Rule("secret/#", False, RECEIVE, "token: rule[1]")
    async with Broker(settings) as broker:
        assert broker.store is not None
        broker.store.journal.session_kept("c", Principal("u", rules=(rule,)), 300, 0.0)
    async with Broker(settings) as broker:
        [found] = broker.router.sessions["c"].principal.rules
        assert isinstance(found, Rule)
        assert (found.topic_filter, found.allow, found.actions) == ("secret/#", False, RECEIVE)


async def test_a_programs_own_store_comes_before_that_of_the_settings(tmp_path: Path) -> None:
    terms = {"path": str(tmp_path / "s"), "on_failure": "refuse"}
    settings = Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "store": terms})
    with capture_logs() as lines:
        async with Broker(settings, store=MemoryStore()):
            pass
    told = [line["detail"] for line in lines if line["event"] == "suspicious setting"]
    assert told == [f'store.path: "{tmp_path}/s" is not used, because the program has its own store']
    assert not (tmp_path / "s").exists()


async def test_damaged_rows_are_named_and_counted() -> None:
    with capture_logs() as lines:
        async with running(Disk()) as (_, watch):
            assert watch.damage == ""
            for _ in range(3):
                damages = Damages()
                for number in range(1_000):
                    damages.add("retained", None, f"t/{number}", "its checksum is another")
                damages.add("session", "c", None, "its checksum is another")
                watch.damaged(damages)
            assert watch.damage == "lost rows: 3,000 of retained, 3 of session"
            assert dict(watch.figures())["damaged"] == 3_003
    named = [line for line in lines if line["event"] == "store row is damaged"]
    assert len(named) == NAMED
    assert (named[0]["row"], named[0]["topic"], named[0]["log_level"]) == ("retained", "t/0", "error")
    assert [line["now"] for line in lines if line["event"] == "store has lost damaged rows"] == [
        "1,000 of retained, 1 of session"
    ]


async def test_a_start_with_a_damaged_row(tmp_path: Path) -> None:
    """The broker starts, without what was in that row, and says so; the next start has nothing to say."""
    settings = Settings.model_validate({"store": {"path": str(tmp_path)}, "listener": [{"url": "mqtt://127.0.0.1:0"}]})
    async with Broker(settings) as broker:
        for topic in ("a", "b"):
            await broker.publish(topic, topic.encode(), qos=1, retain=True)

    def hurt() -> None:
        db = sqlite3.connect(tmp_path / "canopy.db")
        db.execute("UPDATE retained SET payload = x'00' WHERE topic = 'a'")
        db.commit()
        db.close()

    await asyncio.to_thread(hurt)
    with capture_logs() as lines:
        async with Broker(settings) as broker:
            assert broker.router.retained.get("a") is None
            assert broker.router.retained.get("b") is not None
            assert broker.store_watch is not None
            assert broker.store_watch.damage == "lost rows: 1 of retained"
    [line] = [line for line in lines if line["event"] == "store row is damaged"]
    assert (line["row"], line["topic"], line["reason"]) == ("retained", "a", "its checksum is another")
    async with Broker(settings) as broker:
        assert broker.store_watch is not None
        assert broker.store_watch.damage == ""


async def test_a_start_with_a_damaged_file(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "store": {"path": str(tmp_path), "on_damage": "set-aside"},
            "listener": [{"url": "mqtt://127.0.0.1:0"}],
        }
    )
    async with Broker(settings) as broker:
        await broker.publish("a", b"1", qos=1, retain=True)

    def hurt() -> None:
        with (tmp_path / "canopy.db").open("r+b") as file:
            file.write(bytes(100))

    await asyncio.to_thread(hurt)
    with capture_logs() as lines:
        async with Broker(settings) as broker:
            assert broker.store_watch is not None
            assert broker.store_watch.damage.startswith(f"the damaged file is {tmp_path}/canopy.db.damaged-")
    [line] = [line for line in lines if line["event"] == "store was set aside"]
    assert (line["lost"]["retained (ranges of rows)"], line["kept"]["retained"]) == (1, 0)
