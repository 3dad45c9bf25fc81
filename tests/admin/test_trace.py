"""Traces over HTTP: begun, read along, downloaded, stopped; by operators alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from canopy_mqtt import Broker
from canopy_mqtt.admin.api import trace as module
from canopy_mqtt.observe.trace.entries import Entry
from tests.admin.conftest import Serve
from tests.e2e.wire import Peer
from tests.support.waiting import until

BASE: Final = "/api/v5/trace"


@pytest.fixture
async def broker(serve: Serve) -> Broker:
    return await serve(shutdown={"flush_timeout": 0.0})


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Peer]:
    peer = await Peer.join(broker.ports[0], "sensor-7", user="bob", password=b"hunter2!")
    yield peer
    peer.abort()


async def begun(broker: Broker, ask: aiohttp.ClientSession, **body: Any) -> dict[str, Any]:
    wanted = {"type": "clientid", "value": "sensor-7", **body}
    async with ask.post(broker.http[0] + BASE, json=wanted) as answer:
        assert answer.status == 201, await answer.text()
        known: dict[str, Any] = await answer.json()
        return known


async def test_from_its_beginning_to_its_end(broker: Broker, client: Peer, ask: aiohttp.ClientSession) -> None:
    known = await begun(broker, ask, name="mine", duration=60, max_bytes=100_000)
    assert (known["status"], known["duration"], known["max_bytes"]) == ("running", 60, 100_000)
    assert known["ended_at"] is None
    await until(lambda: broker.traces._tracers)
    await client.publish("t", b"payload", qos=1)
    url = broker.http[0] + BASE
    async with ask.get(f"{url}/mine") as answer:
        assert (await answer.json())["packets"] == 2
    async with ask.put(f"{url}/mine/stop") as answer:
        assert (await answer.json())["status"] == "stopped"
    async with ask.get(url) as answer:
        assert [one["name"] for one in (await answer.json())["data"]] == ["mine"]
    async with ask.get(f"{url}/mine/download") as answer:
        lines = (await answer.text()).splitlines()
        assert [line.split()[5] for line in lines] == ["PUBLISH", "PUBACK"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    async with ask.get(f"{url}/mine/download?format=jsonl") as answer:
        rows = [json.loads(line) for line in (await answer.text()).splitlines()]
        assert [one["packet"] for one in rows] == ["PUBLISH", "PUBACK"]
    async with ask.get(f"{url}/mine/download?format=pcapng") as answer:
        assert answer.headers["Content-Disposition"] == 'attachment; filename="mine.pcapng"'
        assert (await answer.read())[:4] == b"\x0a\x0d\x0d\x0a"
    async with ask.head(f"{url}/mine/follow") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
    async with ask.delete(f"{url}/mine") as answer:
        assert answer.status == 204
    async with ask.get(f"{url}/mine") as answer:
        assert answer.status == 404


async def test_reading_along(broker: Broker, client: Peer, ask: aiohttp.ClientSession) -> None:
    await begun(broker, ask, name="live")
    await until(lambda: broker.traces._tracers)
    await client.fence()
    async with ask.get(f"{broker.http[0]}{BASE}/live/follow?format=jsonl") as answer:
        packets = [json.loads(await answer.content.readline())["packet"] for _ in range(2)]
        await client.publish("t", b"x", qos=1)
        packets += [json.loads(await answer.content.readline())["packet"] for _ in range(2)]
        broker.traces.stop("live")
        assert await answer.content.read() == b""
    assert packets == ["PINGREQ", "PINGRESP", "PUBLISH", "PUBACK"]


async def test_who_reads_along_and_goes_leaves_nothing(
    broker: Broker, ask: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    await begun(broker, ask, name="live")
    answer = await ask.get(f"{broker.http[0]}{BASE}/live/follow")
    trace = broker.traces.all["live"]
    await until(lambda: trace._waiting)
    answer.close()
    await until(lambda: not trace._waiting)


async def test_reading_along_ends_with_the_broker(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    await begun(broker, ask, name="live")
    async with ask.get(f"{broker.http[0]}{BASE}/live/follow") as answer:
        reading = asyncio.ensure_future(answer.content.read())
        await broker.stop()
        assert await reading == b""


async def test_a_long_one_is_made_in_a_thread_and_written_in_pieces(
    broker: Broker, client: Peer, ask: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[bool] = []
    lines = module.FORMS["jsonl"]

    def noted(entries: Iterable[Entry]) -> Iterator[bytes]:
        for line in lines(entries):
            where.append(threading.current_thread() is threading.main_thread())
            yield line

    monkeypatch.setitem(module.FORMS, "jsonl", noted)
    await begun(broker, ask, name="long")
    await until(lambda: broker.traces._tracers)
    for _ in range(200):
        await client.fence()
    chunks = 0
    async with ask.get(f"{broker.http[0]}{BASE}/long/download?format=jsonl") as answer:
        found = b""
        async for chunk, ended in answer.content.iter_chunks():
            chunks += ended
            found += chunk
    assert len(found.splitlines()) == 400
    assert where == [False] * 400
    assert chunks >= 400 // module.ENTRIES


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"type": "clientid"}, 400),
        ({"type": "payload", "value": "x"}, 400),
        ({"type": "topic", "value": "a/#/b"}, 400),
        ({"type": "clientid", "value": "c", "duration": -1}, 400),
        ({"type": "clientid", "value": "c", "duration": 1e9}, 400),
        ({"type": "clientid", "value": "c", "max_bytes": 10**12}, 400),
        ({"type": "clientid", "value": "c", "name": "../../etc/passwd"}, 400),
        ({"type": "clientid", "value": "c", "name": "taken"}, 409),
    ],
)
async def test_refused(broker: Broker, ask: aiohttp.ClientSession, body: dict[str, Any], status: int) -> None:
    await begun(broker, ask, name="taken")
    async with ask.post(broker.http[0] + BASE, json=body) as answer:
        assert answer.status == status
        assert set(await answer.json()) == {"code", "message"}
    assert list(broker.traces.all) == ["taken"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("PUT", "/stop"), ("DELETE", ""), ("GET", "/download"), ("GET", "/follow")]
)
async def test_what_there_is_not(broker: Broker, ask: aiohttp.ClientSession, method: str, path: str) -> None:
    async with ask.request(method, f"{broker.http[0]}{BASE}/nothing{path}") as answer:
        assert (answer.status, (await answer.json())["code"]) == (404, "NOT_FOUND")


async def test_payloads_are_not_for_viewers(serve: Serve, ask: aiohttp.ClientSession, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-a-viewer-that-is-long-enough\n")
    tokens.chmod(0o600)
    broker = await serve({"viewer_token_file": str(tokens)})
    headers = {"Authorization": "Bearer a-token-of-a-viewer-that-is-long-enough"}
    broker.traces.start("clientid", "c", "x")
    for route in module.ROUTES:
        url = broker.http[0] + route.path.replace("{name}", "x")
        async with ask.request(route.method, url, headers=headers, json={}) as answer:
            assert answer.status == 403
