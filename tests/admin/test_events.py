"""`/events`: snapshots for those who look, and nothing for nobody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from canopy_mqtt import Broker
from canopy_mqtt.admin import events
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.events import EventStream
from canopy_mqtt.observe.figures import catalogue
from tests.admin.conftest import Serve
from tests.support.waiting import until


async def read(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    """The next event."""
    text = (await answer.content.readuntil(b"\n\n")).decode()
    name, data = text.rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def feed(broker: Broker) -> events.EventFeed:
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
        # A slow machine takes another one before the page asks.
        assert {len(sample) for sample in history} == {len(events.SAMPLE)}
        name, first = await read(answer)
        assert name == "snapshot"
        assert first["dropped"]["full-messages"] == 0
        assert (await read(answer))[1]["sample"][0] >= first["sample"][0]
    await until(lambda: not feed(broker).listening)


@pytest.mark.usefixtures("quick")
async def test_one_snapshot_is_for_all_and_none_is_made_for_nobody(serve: Serve) -> None:
    broker = await serve()
    made = feed(broker)
    one, other = made.open_stream(), made.open_stream()
    await one.take(), await other.take()
    before = made.made
    assert await one.take() is await other.take()
    assert made.made == before + 1
    made.close_stream(one)
    made.close_stream(other)
    before = made.made
    samples = len(made.samples)
    await until(lambda: len(made.samples) > samples + 3)
    assert made.made == before


@pytest.mark.usefixtures("quick")
async def test_what_was_before_the_page_was_opened_is_there(serve: Serve, ask: aiohttp.ClientSession) -> None:
    """After an incident is when it is opened."""
    broker = await serve()
    made = feed(broker)
    broker.router.counters.messages_received += 1_000
    await until(lambda: made.samples[-1][events.SAMPLE.index("received")] == 1_000)
    samples = len(made.samples)
    await until(lambda: len(made.samples) > samples + 5)
    async with ask.get(f"{broker.http[0]}/events") as answer:
        await read(answer)
        _, history = await read(answer)
        _, first = await read(answer)
    at = events.SAMPLE.index("at")
    assert len(history) >= samples + 5
    assert [row[at] for row in history] == sorted(row[at] for row in history)
    # The first snapshot adds no sample of its own, which would be a step in no time.
    assert first["sample"] in history


async def test_the_samples_are_bounded_and_end_with_the_broker(serve: Serve) -> None:
    broker = await serve()
    made = feed(broker)
    for _ in range(2 * events.KEPT):
        assert made._timer is not None
        made._timer.cancel()
        made._tick()
    assert len(made.samples) == events.KEPT
    await broker.stop()
    assert made._timer is None


async def test_who_comes_and_goes_has_no_snapshots_made(serve: Serve) -> None:
    made = feed(await serve())
    for _ in range(100):
        listener = made.open_stream()
        assert await listener.take()
        made.close_stream(listener)
    assert made.made <= 1 + len(made.samples)
    assert made.made < 10


async def test_who_takes_nothing_has_one_snapshot_waiting() -> None:
    listener = EventStream()
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
    await until(lambda: feed(broker).listening)
    await until(lambda: not feed(broker).listening)
    assert broker.admin.connections.cut == 1
    writer.transport.abort()


async def test_there_is_room_for_so_many_pages(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve({"max_connections": 15})
    async with ask.get(f"{broker.http[0]}/events") as answer:
        await read(answer)
        async with ask.get(f"{broker.http[0]}/events") as refused:
            assert refused.status == 503
            assert "http.max_connections" in await refused.text()
        found = dict(catalogue.topics(broker.figures.read()))
        assert (found["http/event streams"], found["http/event streams/refused"]) == ("1", "1")
        with pytest.raises(ApiError):
            feed(broker).open_stream()
    await until(lambda: not feed(broker).listening)
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
    listener = made.open_stream()
    size = len(await listener.take())
    made.close_stream(listener)
    assert size < 10_000
    assert events._plain("x" * 100_000) == "x" * events.MAX_NAME_LENGTH


@pytest.mark.usefixtures("quick")
async def test_a_snapshot_that_fails_does_not_end_the_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serve()
    made = feed(broker)
    listener = made.open_stream()
    await listener.take()
    real = events.snapshot

    def fails(*_: Any) -> Any:
        monkeypatch.setattr(events, "snapshot", real)
        raise ValueError("once")

    monkeypatch.setattr(events, "snapshot", fails)
    assert await listener.take()
    assert broker.faults.counts["http"] == 1
    made.close_stream(listener)
