"""`/events`: snapshots for those who look, and nothing for nobody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from broker.admin import events
from broker.admin.errors import ApiError
from broker.admin.events import Listener
from broker.observe.figures import catalogue
from canopy import Broker
from tests.admin.conftest import Serve
from tests.support.waiting import until


async def read(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    """The next event."""
    text = (await answer.content.readuntil(b"\n\n")).decode()
    name, data = text.rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def feed(broker: Broker) -> events.Feed:
    assert broker.admin is not None
    return broker.admin.feed


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY", 0.02)


@pytest.mark.usefixtures("quick")
async def test_a_page_gets_who_it_is_what_was_and_then_what_is(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    async with ask.get(f"{broker.http[0]}/events") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        name, hello = await read(answer)
        assert (name, hello["role"]) == ("hello", "operator")
        name, history = await read(answer)
        assert name == "history"
        assert [len(sample) for sample in history] == [len(events.SAMPLE)]
        name, first = await read(answer)
        assert name == "snapshot"
        assert first["dropped"]["full-messages"] == 0
        assert (await read(answer))[1]["sample"][0] >= first["sample"][0]
    await until(lambda: not feed(broker).ticking())


@pytest.mark.usefixtures("quick")
async def test_one_snapshot_is_for_all_and_none_is_made_for_nobody(serve: Serve) -> None:
    broker = await serve()
    made = feed(broker)
    assert not made.ticking()
    one, other = made.enter(), made.enter()
    await one.take(), await other.take()
    before = made.made
    assert await one.take() is await other.take()
    assert made.made == before + 1
    made.leave(one)
    assert made.ticking()
    made.leave(other)
    assert not made.ticking()


async def test_who_comes_and_goes_has_no_snapshots_made(serve: Serve) -> None:
    made = feed(await serve())
    for _ in range(100):
        listener = made.enter()
        assert await listener.take()
        made.leave(listener)
    assert made.made == len(made.samples) == 1


async def test_who_takes_nothing_has_one_snapshot_waiting() -> None:
    listener = Listener()
    for number in range(1_000):
        listener.put(b"%d" % number)
    assert await listener.take() == b"999"
    assert listener.skipped == 999


@pytest.mark.usefixtures("quick")
async def test_a_page_that_takes_nothing_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "snapshot", lambda *_: "x" * 1_000_000)
    broker = await serve({"timeout": 0.2})
    assert broker.admin is not None
    port = int(broker.http[0].rpartition(":")[2])
    _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
    writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await until(feed(broker).ticking)
    await until(lambda: not feed(broker).ticking())
    assert broker.admin.doors.cut == 1
    writer.transport.abort()


async def test_there_is_room_for_so_many_pages(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve({"max_event_streams": 1})
    async with ask.get(f"{broker.http[0]}/events") as answer:
        await read(answer)
        async with ask.get(f"{broker.http[0]}/events") as refused:
            assert refused.status == 503
            assert "http.max_event_streams" in await refused.text()
        found = dict(catalogue.topics(broker.figures.read()))
        assert (found["http/event streams"], found["http/event streams/refused"]) == ("1", "1")
        with pytest.raises(ApiError):
            feed(broker).enter()
    await until(lambda: not feed(broker).ticking())
    async with ask.get(f"{broker.http[0]}/events") as answer:
        assert answer.status == 200


async def test_a_reload_and_the_end_of_the_broker_end_the_streams(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    async with ask.get(f"{broker.http[0]}/events") as answer:
        await read(answer)
        await broker.reload(broker.settings)
        async with asyncio.timeout(10):
            await answer.content.read()
    async with ask.get(f"{broker.http[0]}/events") as answer:
        await read(answer)
        await broker.stop()
        async with asyncio.timeout(10):
            await answer.content.read()


async def test_a_snapshot_is_as_large_however_long_names_are(serve: Serve) -> None:
    broker = await serve()
    made = feed(broker)
    listener = made.enter()
    size = len(await listener.take())
    made.leave(listener)
    assert size < 10_000
    assert events._plain("x" * 100_000) == "x" * events.LONGEST_NAME


@pytest.mark.usefixtures("quick")
async def test_a_snapshot_that_fails_does_not_end_the_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serve()
    made = feed(broker)
    listener = made.enter()
    await listener.take()
    real = events.snapshot

    def fails(*_: Any) -> Any:
        monkeypatch.setattr(events, "snapshot", real)
        raise ValueError("once")

    monkeypatch.setattr(events, "snapshot", fails)
    assert await listener.take()
    assert broker.faults.counts["http"] == 1
    made.leave(listener)
