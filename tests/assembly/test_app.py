"""A whole broker whose settings change while it runs, and what it says about them at the start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from canopy_mqtt import Broker, Settings
from canopy_mqtt.assembly.process import Process
from canopy_mqtt.command.health import UnhealthyError, check
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.observe.presence import Presence
from canopy_mqtt.settings import Endpoint, Federation, Log, Shutdown, Sys, Upstream
from canopy_mqtt.settings import Presence as PresenceSettings
from canopy_mqtt.store import MemoryStore
from canopy_mqtt.store.base import StoreError
from tests.e2e import wire
from tests.e2e.wire import Peer

CLOUD = Upstream(name="cloud", url="mqtt://127.0.0.1:1", username="u", password="hunter2", publish=["a/#"])


class Links:
    """Stands in for the links: notes what it is asked for, and takes as long as the test wants."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.calls: list[str] = []
        self.settings: list[Settings] = []
        self.links: dict[str, Any] = {}
        self.session_count = 0
        self.access_control = asyncio.Event()
        self.access_control.set()
        self.failure: Exception | None = None

    def other_nodes(self) -> list[Any]:
        return []

    def prepare(self, records: list[SessionRecord]) -> Sequence[None]:
        assert records == []
        return ()

    def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def apply(self, settings: Settings) -> None:
        self.calls.append("apply")
        await self.access_control.wait()
        if self.failure is not None:
            raise self.failure
        self.settings.append(settings)
        self.calls.append("applied")


@pytest.fixture(autouse=True)
def links(monkeypatch: pytest.MonkeyPatch) -> list[Links]:
    """What stands in for the links of the brokers that a test makes."""
    made: list[Links] = []

    def make(broker: Broker) -> Links:
        made.append(Links(broker))
        return made[-1]

    monkeypatch.setattr("canopy_mqtt.assembly.app.LinkManager", make)
    return made


@pytest.fixture
def told() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as entries:
        yield entries


def settings(**sections: Any) -> Settings:
    return Settings(
        **{
            "listen": ("mqtt://127.0.0.1:0",),
            "sys": Sys(interval=0.0),
            "federation": Federation(broker_id="here"),
            "shutdown": Shutdown(flush_timeout=0.0),
            **sections,
        }
    )


async def test_links_that_cannot_be_changed_leave_the_settings_as_they_were(links: list[Links]) -> None:
    async with Broker(settings()) as broker:
        links[0].failure = OSError("no such file")
        with pytest.raises(OSError, match="no such file"):
            await broker.reload(settings(upstream=[CLOUD]))
        assert broker.settings == settings()
        links[0].failure = None
        assert await broker.reload(settings(upstream=[CLOUD])) == []
        assert broker.settings.upstream == (CLOUD,)


async def test_the_level_of_the_log_changes_with_the_rest_or_not_at_all(links: list[Links]) -> None:
    async with Broker(settings()) as broker:
        levels: list[str] = []
        broker.process = Process(None, levels.append)
        links[0].failure = OSError("no such file")
        with pytest.raises(OSError, match="no such file"):
            await broker.reload(settings(log={"level": "debug"}))
        assert levels == []
        links[0].failure = None
        assert await broker.reload(settings(log={"level": "debug"})) == []
        assert levels == ["debug"]


async def test_a_broker_that_does_not_run_reloads_nothing(links: list[Links]) -> None:
    broker = Broker(settings())
    for when in ("before", "after"):
        with pytest.raises(RuntimeError, match="does not run"):
            await broker.reload(settings(upstream=[CLOUD]))
        if when == "before":
            await broker.start()
            await broker.stop()
    assert links[0].calls == ["start", "stop"]
    await broker.start()
    assert await broker.reload(settings(upstream=[CLOUD])) == []
    await broker.stop()


async def test_two_reloads_have_their_turns(links: list[Links]) -> None:
    async with Broker(settings()) as broker:
        links[0].access_control.clear()
        first = asyncio.create_task(broker.reload(settings(upstream=[CLOUD])))
        second = asyncio.create_task(broker.reload(settings()))
        while "apply" not in links[0].calls:  # noqa: ASYNC110
            await asyncio.sleep(0)
        links[0].access_control.set()
        await asyncio.gather(first, second)
        assert links[0].calls == ["start", "apply", "applied", "apply", "applied"]
        assert broker.settings == settings()


async def test_a_reload_that_nobody_waits_for_is_not_left_half_done(links: list[Links]) -> None:
    """The links are stopped when it is through, not in the middle of it."""
    broker = Broker(settings())
    await broker.start()
    links[0].access_control.clear()
    reloading = asyncio.create_task(broker.reload(settings(upstream=[CLOUD])))
    while "apply" not in links[0].calls:  # noqa: ASYNC110
        await asyncio.sleep(0)
    reloading.cancel()
    stopping = asyncio.create_task(broker.stop())
    while broker.listening:  # noqa: ASYNC110
        await asyncio.sleep(0)
    links[0].access_control.set()
    await stopping
    assert links[0].calls == ["start", "apply", "applied", "stop"]
    assert reloading.cancelled()


async def test_what_is_suspicious_is_told_at_the_start_and_when_it_changes(
    told: list[MutableMapping[str, Any]],
) -> None:
    def suspicious() -> list[str]:
        found = [line["detail"] for line in told if line["event"] == "suspicious setting"]
        assert all(line["log_level"] == "warning" for line in told if line["event"] == "suspicious setting")
        told.clear()
        return found

    everything = Upstream(name="cloud", url="mqtt://127.0.0.1:1", aggregate=["#"])
    async with Broker(settings(upstream=[everything])) as broker:
        (line,) = suspicious()
        assert line.startswith('upstream[0] "cloud": aggregate "#": ')
        await broker.reload(settings(upstream=[everything], log=Log(level="debug")))
        assert suspicious() == []
        await broker.reload(settings(upstream=[CLOUD, everything.model_copy(update={"name": "other"})]))
        (line,) = suspicious()
        assert line.startswith('upstream[1] "other": aggregate "#": ')


async def test_what_lets_everybody_in_is_told_at_the_start(told: list[MutableMapping[str, Any]]) -> None:
    """Unless the program that embeds the broker has somebody who checks who clients are."""

    def exposed() -> list[str]:
        found = [line["detail"] for line in told if line["event"] == "suspicious setting"]
        told.clear()
        return found

    named = settings(mqtt={"allow_anonymous": False})
    async with Broker(named):
        (line,) = exposed()
        assert line.startswith("mqtt.allow_anonymous = false has no effect")
    async with Broker(named, access_control=AccessControl()):
        assert exposed() == []


async def test_what_has_no_effect_is_told_when_it_changes(told: list[MutableMapping[str, Any]]) -> None:
    def suspicious() -> list[str]:
        found = [line["detail"] for line in told if line["event"] == "suspicious setting"]
        told.clear()
        return found

    nowhere = settings(rule=[{"listener": "none", "filters": "#"}])
    async with Broker(settings()) as broker:
        assert suspicious() == []
        await broker.reload(nowhere)
        (line,) = suspicious()
        assert line.startswith('rule[0].listener: "none" matches no listener')
        await broker.reload(nowhere)
        assert suspicious() == []
    async with Broker(nowhere, access_control=AccessControl()):
        lines = suspicious()
        assert lines[-1].startswith("[[rule]]: not used, because the program's own access control")


async def test_a_health_check_is_no_warning_where_nobody_is_anonymous(told: list[MutableMapping[str, Any]]) -> None:
    """And it does not call a broker healthy in which nobody has room."""
    limited = settings(mqtt={"allow_anonymous": False}, limits={"max_connections": 1})
    async with Broker(limited) as broker:
        address = Endpoint("mqtt", "127.0.0.1", broker.ports[0])
        await asyncio.to_thread(check, address)
        await asyncio.to_thread(check, address, 5.0, "anybody")
        refusals = [line["log_level"] for line in told if line["event"] == "client refused"]
        assert refusals == ["debug"]
        peer = await Peer.open("127.0.0.1", broker.ports[0])
        await peer.send(wire.connect("c", user="u"))
        assert (await peer.expect(wire.CONNACK)).code == 0
        for user in (None, "anybody"):
            with pytest.raises(UnhealthyError, match="refused: Server unavailable"):
                await asyncio.to_thread(check, address, 5.0, user)
        peer.abort()


async def test_which_listener_takes_a_restart_for_what() -> None:
    def listeners(*tables: dict[str, Any]) -> Settings:
        return settings(listener=[{"url": "mqtt://127.0.0.1:0", **table} for table in tables])

    async with Broker(listeners({"name": "a", "max_connections": 5}, {"name": "b"})) as broker:
        assert await broker.reload(listeners({"name": "a", "max_connections": 5}, {"name": "b"})) == []
        assert await broker.reload(listeners({"name": "a", "authenticators": []}, {"name": "c"})) == [
            'listener "a".max_connections: 5 stays in force; 0 takes a restart',
        ]
        assert [listener.name for listener in broker.listeners.open][1:] == ["a", "c"]


async def test_nor_is_one_over_a_unix_socket(told: list[MutableMapping[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    named = settings(mqtt={"allow_anonymous": False}, listener=[{"url": f"mqtt+unix://{path}"}])
    async with Broker(named):
        await asyncio.to_thread(check, Endpoint("mqtt+unix", path=str(path)))
        assert [line["log_level"] for line in told if line["event"] == "client refused"] == ["debug"]


async def test_a_health_check_that_only_connects_is_no_warning(told: list[MutableMapping[str, Any]]) -> None:
    async with Broker(settings()) as broker:
        for data in (b"", b"\x10"):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports[0])
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
    ended = [line for line in told if line["event"] == "connection ended before CONNECT was accepted"]
    assert [line["cause"] for line in ended] == ["connection-lost"] * 2
    assert {line["log_level"] for line in told} <= {"debug", "info"}


async def test_whatever_fails_at_the_end_the_rest_ends_in_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Presence, the links, the store: the store is closed, `stop` returns, and the log has each of them."""

    async def fault(*_: object) -> None:
        raise RuntimeError("a fault")

    class Failing(MemoryStore):
        closed = False

        async def close(self) -> None:
            self.closed = True
            raise StoreError("the disk is full")

    store = Failing()
    monkeypatch.setattr(Presence, "stop", fault)
    monkeypatch.setattr(Links, "stop", fault)
    monkeypatch.setattr("canopy_mqtt.assembly.app.LinkManager", Links)
    broker = Broker(
        Settings(listen=["mqtt://127.0.0.1:0"], presence=PresenceSettings(topic="canopy/presence")), store=store
    )
    await broker.start()
    await broker.stop()
    assert store.closed
    assert broker.faults.counts == {"journal": 0, "presence": 1, "stop": 1}
    assert "store is closed without its last changes reason='the disk is full'" in caplog.text
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_second_start_is_refused_and_changes_nothing() -> None:
    """Also while the first one is under way; after a stop it is none."""
    broker = Broker(Settings(listen=("mqtt://127.0.0.1:0",)))
    for _ in range(2):
        first, second = await asyncio.gather(broker.start(), broker.start(), return_exceptions=True)
        assert first is None
        assert isinstance(second, RuntimeError)
        with pytest.raises(RuntimeError, match="has been started already"):
            await broker.start()
        peer = await Peer.join(broker.ports[0], "a")
        await peer.subscribe(("t", 1))
        await broker.publish("t", b"x", 1)
        assert (await peer.message()).payload == b"x"
        peer.abort()
        await broker.stop()


async def test_a_start_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens already when presence begins: whoever waits for the start cannot stop what did not start."""

    async def fault(_: Presence) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Presence, "start", fault)
    broker = Broker(Settings(listen=["mqtt://127.0.0.1:0"], presence=PresenceSettings(topic="canopy/presence")))
    with pytest.raises(RuntimeError, match="a fault"):
        await broker.start()
    assert broker.ports == []
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


LOADED = """
import asyncio, sys
import canopy_mqtt.command.serve
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.settings import Settings
async def run():
    async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])): pass
asyncio.run(run())
print(*sys.modules)
"""
UNUSED = ("aiohttp", "cryptography", "jwt", "pyarrow", "watchfiles")
"""Libraries: they would take 30 MB, and a third of a second of the start."""
APART = (
    "canopy_mqtt.admin",
    "canopy_mqtt.command.acl",
    "canopy_mqtt.ctl",
    "canopy_mqtt.command.store",
    "loadtest",
    "pipeline",
)


async def test_what_is_not_used_is_not_loaded() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", LOADED, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    names = told.decode().split()
    assert "canopy_mqtt.assembly.app" in names
    assert [name for name in names if any(f"{name}.".startswith(f"{one}.") for one in (*UNUSED, *APART))] == []
