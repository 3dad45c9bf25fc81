"""What costs most, over HTTP."""

from __future__ import annotations

import aiohttp
import pytest

from canopy_mqtt.observe import top
from tests.admin.conftest import Serve
from tests.e2e.wire import Peer


async def test_a_list_and_its_bounds(serve: Serve, ask: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "SAMPLES", 100_000)
    broker = await serve(shutdown={"flush_timeout": 0.0})
    peer = await Peer.join(broker.ports[0], "p")
    for topic in ("a/1", "a/1", "a/2"):
        await peer.publish(topic, b"x", qos=1)
    url = broker.http[0] + "/api/v5/top"
    async with ask.get(url, params={"of": "topics", "limit": "1", "window": "3600"}) as answer:
        assert answer.status == 200, await answer.text()
        found = await answer.json()
    assert [place["name"] for place in found["data"]] == ["a/1"]
    assert found["data"][0]["value"] == pytest.approx(2 / 3 * found["total"], abs=0.002)
    assert (found["of"], found["by"], found["seconds"], found["gap"]) == ("topics", "messages", 3_600.0, 1)
    assert found["data"][0]["error"] == found["data"][0]["deviation"] == found["absent"] == 0.0
    peer.abort()


@pytest.mark.parametrize("query", ["of=topics&by=lag", "of=clients", "limit=0", "window=7", "by=size"])
async def test_what_there_is_not(serve: Serve, ask: aiohttp.ClientSession, query: str) -> None:
    broker = await serve()
    async with ask.get(f"{broker.http[0]}/api/v5/top?{query}") as answer:
        assert answer.status == 400
        assert (await answer.json())["code"] == "BAD_REQUEST"
