"""What is told of a store that fails and goes on: log lines, and topics below `$SYS/broker/store/`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from broker import storing
from broker.app import Broker
from broker.core.queues.message import Message
from broker.health import UnhealthyError, check
from broker.settings import Address, Settings, Shutdown, Sys
from broker.store import MemoryStore
from broker.storing import StoreWatch
from tests.e2e import wire
from tests.e2e.wire import Peer
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
        address = Address("127.0.0.1", broker.ports[0])
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
    monkeypatch.setattr(storing, "LINES_APART", 0.05)
    with capture_logs() as lines:
        async with running(Disk()) as (_, watch):
            watch.failed(FULL)
            watch.recovered()
            watch.failed("disk I/O error")
            await until(lambda: any(line.get("reason") == "disk I/O error" for line in lines))
            watch.recovered()
    found = [line for line in lines if line["event"].startswith("store ")]
    assert [line["failures"] for line in found] == [1, 1, 2, 2]
