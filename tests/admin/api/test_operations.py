"""Reloading, the log's level, links and who may do what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.assembly.process import Process
from canopy_mqtt.core.codec.properties import SERVER_REFERENCE
from canopy_mqtt.core.codec.reason_codes import SERVER_MOVED, SERVER_SHUTTING_DOWN, USE_ANOTHER_SERVER
from canopy_mqtt.observe.presence import Presence
from canopy_mqtt.settings.errors import SettingsError
from tests.admin.api.conftest import Api
from tests.admin.conftest import Serve
from tests.e2e.wire import Peer
from tests.support.runs import for_each
from tests.support.waiting import until

DISCONNECT: Final = 14


async def test_a_reload_says_what_takes_a_restart(api: Api, broker: Broker) -> None:
    levels: list[str] = []
    new = Settings.model_validate(
        broker.settings.model_dump() | {"log": {"level": "debug"}, "queue": {"slow_after": 7.0}, "mqtt": {"max_qos": 1}}
    )
    broker.process = Process(lambda: new, levels.append)
    status, found = await api.call("POST", "/reload")
    assert status == 200
    assert len(found["restart"]) == 1
    assert "mqtt.max_qos" in found["restart"][0]
    assert broker.settings.queue.slow_after == 7.0
    assert levels == ["debug"]


async def test_settings_that_are_wrong_change_nothing(api: Api, broker: Broker) -> None:
    def read() -> Settings:
        raise SettingsError(["canopy.toml: limits.x: no such setting"])

    broker.process = Process(read)
    assert await api.call("POST", "/reload") == (
        400,
        {"code": "BAD_REQUEST", "message": "canopy.toml: limits.x: no such setting"},
    )


async def test_settings_that_cannot_be_used_do_not_change_the_level_of_the_log(api: Api, broker: Broker) -> None:
    levels: list[str] = []
    new = Settings.model_validate(broker.settings.model_dump() | {"log": {"level": "debug"}})
    gone = new.http.model_copy(update={"viewer_token_file": "/nowhere/tokens"})
    broker.process = Process(lambda: new.model_copy(update={"http": gone}), levels.append)
    assert (await api.call("POST", "/reload"))[0] == 400
    assert levels == []


async def test_the_log_tells_more_for_a_time(api: Api, broker: Broker) -> None:
    levels: list[str] = []
    back = asyncio.Event()

    def level(name: str) -> None:
        levels.append(name)
        if name == "info":
            back.set()

    broker.process = Process(None, level)
    assert (await api.call("PUT", "/log-level", {"level": "debug", "seconds": 0.05}))[0] == 200
    await asyncio.wait_for(back.wait(), 10)
    assert levels == ["debug", "info"]


@pytest.mark.parametrize(("for_good", "code"), [(False, USE_ANOTHER_SERVER), (True, SERVER_MOVED)])
async def test_clients_are_moved_to_another_broker(api: Api, broker: Broker, for_good: bool, code: int) -> None:
    peers = [await Peer.join(broker.ports[0], f"new{number}") for number in range(20)]
    peers.append(await Peer.join(broker.ports[0], "old", version=4))
    body = {"seconds": 0.3, "for_good": for_good, "server_reference": "b.example:1883"}
    assert (await api.call("POST", "/drain", body))[0] == 200
    for peer in peers:
        packets = await peer.closed()
        assert [(last.kind, last.code, last.get(SERVER_REFERENCE)) for last in packets] == (
            [] if peer.version == 4 else [(DISCONNECT, code, "b.example:1883")]
        )
        peer.abort()
    await until(lambda: not broker.connections)
    assert broker.not_ready() == ["the broker is being drained; 0 connections left"]
    assert (await api.get("/drain")) == {"active": True, "moved": 21, "left": 0}
    refused = await Peer.open("127.0.0.1", broker.ports[0])
    assert await refused.closed() == []
    assert (await api.call("DELETE", "/drain"))[0] == 204
    assert broker.not_ready() == []
    refused.abort()
    (await Peer.join(broker.ports[0], "new1")).abort()


async def test_a_broker_that_is_drained_stops_in_order(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    peer = await Peer.join(broker.ports[0], "a")
    async with ask.post(broker.http[0] + "/api/v5/drain", json={"seconds": 1_000}) as answer:
        assert answer.status == 200
    await broker.stop()
    assert (await peer.closed())[-1].code == SERVER_SHUTTING_DOWN
    peer.abort()


async def test_a_viewer_changes_nothing(serve: Serve, ask: aiohttp.ClientSession, tmp_path: Path) -> None:
    token = "0123456789abcdef0123456789abcdef"
    await asyncio.to_thread((tmp_path / "tokens").write_text, token)
    broker = await serve({"viewer_token_file": str(tmp_path / "tokens")})
    asked = 0
    for route in all_routes():
        if route.role != "operator":
            assert route.method == "GET"
            continue
        asked += 1
        url = broker.http[0] + route.path.replace("{", "").replace("}", "")
        body: dict[str, Any] = {} if route.body is None else {"json": {}}
        async with ask.request(route.method, url, headers={"Authorization": f"Bearer {token}"}, **body) as answer:
            assert answer.status == 403, route.path
    assert asked >= 8


@for_each("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_each_route_is_described(route: Any) -> None:
    assert route.summary
    assert route.handler.__doc__


async def test_a_server_reference_is_text_that_mqtt_has(api: Api, broker: Broker) -> None:
    assert (await api.call("POST", "/drain", {"server_reference": "a\0b"}))[0] == 400
    assert not broker.draining.active


async def test_nobody_comes_again_while_a_drained_broker_stops(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serve(presence={"topic": "presence"})
    closed: list[bool] = []

    async def stop(_: Presence) -> None:
        closed.append(broker.connection_table.closed)

    monkeypatch.setattr(Presence, "stop", stop)
    broker.draining.start(60.0, False, "", "tester")
    await broker.stop()
    assert closed == [True]
