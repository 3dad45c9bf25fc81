"""What would happen to a message, asked over HTTP and then held against a real broker on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from canopy_mqtt import Broker
from tests.admin.conftest import Serve
from tests.e2e.wire import Peer
from tests.support.waiting import until

EXPLAIN: Final = "/api/v5/explain"


Join = Callable[[Broker, str], Awaitable[Peer]]


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    """Connects clients, which are gone at the end."""
    peers: list[Peer] = []

    async def joined(broker: Broker, name: str) -> Peer:
        peers.append(await Peer.join(broker.ports[0], name))
        return peers[-1]

    yield joined
    for peer in peers:
        peer.abort()


async def told(broker: Broker, ask: aiohttp.ClientSession, **query: Any) -> dict[str, Any]:
    async with ask.get(broker.http[0] + EXPLAIN, params=query) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def test_the_rule_that_decides_is_named_with_its_file_and_line(
    serve: Serve, ask: aiohttp.ClientSession, join: Join, tmp_path: Path
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite open/#\ntopic deny plant/1/temp\ntopic readwrite plant/#\n")
    broker = await serve(access={"acl_file": str(acl)}, shutdown={"flush_timeout": 0.0})
    logger = await join(broker, "logger")
    await logger.subscribe(("#", 1))
    answer = await told(broker, ask, topic="plant/1/temp", client="logger", qos=1)
    [receiver] = answer["receivers"]
    assert receiver["outcome"] == "denied"
    assert receiver["rule"] == f"{acl}: line 2"
    assert f"{acl}: line 2" in receiver["sentence"]
    answer = await told(broker, ask, topic="plant/1/temp", publisher="logger")
    assert answer["publisher"]["accepted"] is False
    assert answer["publisher"]["rule"] == f"{acl}: line 2"
    answer = await told(broker, ask, topic="plant/2", publisher="logger")
    assert answer["publisher"]["accepted"] is True
    assert answer["receivers"][0]["gets"] is True


async def test_what_is_said_is_what_comes(serve: Serve, ask: aiohttp.ClientSession, join: Join) -> None:
    broker = await serve(shutdown={"flush_timeout": 0.0})
    reader = await join(broker, "reader")
    await reader.subscribe(("t/+", 1))
    sender = await join(broker, "sender")
    answer = await told(broker, ask, topic="t/1", publisher="sender", qos=2, size=3, retain="true")
    [receiver] = answer["receivers"]
    assert (receiver["client_id"], receiver["outcome"], receiver["qos"]) == ("reader", "sent", 1)
    assert answer["retained"]["stored"] is True
    assert len(broker.router.retained) == 0
    await sender.publish("t/1", b"abc", qos=1)
    await until(lambda: broker.router.sessions["reader"].delivered_in_all() == 1)
    answer = await told(broker, ask, topic="t/1", client="reader")
    assert answer["receivers"][0]["ledger"] == {"delivered": 1, "queued": 0, "dropped": {}}


async def test_pages_go_on_by_a_cursor(serve: Serve, ask: aiohttp.ClientSession, join: Join) -> None:
    broker = await serve(shutdown={"flush_timeout": 0.0})
    peers = [await join(broker, f"c{number}") for number in range(5)]
    for peer in peers:
        await peer.subscribe("t")
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = await told(broker, ask, topic="t", limit=2, cursor=cursor)
        found += [receiver["client_id"] for receiver in answer["receivers"]]
        cursor = answer["cursor"]
    assert found == [f"c{number}" for number in range(5)]


async def test_what_is_no_topic_is_refused(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    for query in (
        {"topic": "a/#"},
        {"topic": ""},
        {"topic": "a\0b"},
        {"topic": "a", "qos": "3"},
        {"topic": "a", "size": "268435456"},
        {"topic": "a", "cursor": "?"},
        {"topic": "é" * 40_000},
    ):
        async with ask.get(broker.http[0] + EXPLAIN, params=query) as answer:
            assert answer.status in (400, 414), query


async def test_a_viewer_may_ask_and_nobody_else(serve: Serve, ask: aiohttp.ClientSession, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-a-viewer-that-is-long\n")
    tokens.chmod(0o600)
    broker = await serve({"viewer_token_file": str(tokens)})
    url = broker.http[0] + EXPLAIN
    async with ask.get(url, params={"topic": "t"}) as answer:
        assert answer.status == 401
    headers = {"Authorization": "Bearer a-token-of-a-viewer-that-is-long"}
    async with ask.get(url, params={"topic": "t"}, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def test_questions_are_answered_one_after_the_other(serve: Serve, ask: aiohttp.ClientSession, join: Join) -> None:
    broker = await serve(shutdown={"flush_timeout": 0.0})
    reader = await join(broker, "reader")
    await reader.subscribe("t")
    await broker.explainer.one_by_one.acquire()
    asked = [asyncio.create_task(told(broker, ask, topic="t")) for _ in range(3)]
    await until(lambda: len(broker.explainer.one_by_one._waiters or ()) == 3)
    assert not any(each.done() for each in asked)
    broker.explainer.one_by_one.release()
    answers = await asyncio.gather(*asked)
    assert [len(each["receivers"]) for each in answers] == [1, 1, 1]
