"""The broker's own figures: only those from after the run, and of one and the same broker, are compared."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Self
from unittest import mock

import pytest

from canopy_load.checks import broker_statistics
from canopy_load.checks.broker_statistics import MAX_WAIT, SHORT_WAIT, Listener, reconcile
from canopy_load.cli.common import faults
from canopy_load.engine import conductor
from canopy_load.engine.job import Target
from canopy_load.report.result import Deliveries
from canopy_load.report.wording import findings
from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from tests.loadtest.playing import job, reader, scenario, sender
from tests.loadtest.results import empty_result
from tests.loadtest.scripted import ScriptedServer
from tests.support.waiting import until


class Figures:
    """A broker that publishes what a test says, with one who listens."""

    def __init__(self, port: int) -> None:
        self.voice = AsyncClient(BrokerAddress(port=port), ClientMachine(connect_packet("voice")))
        self.listener = Listener("one")
        self._target = Target("127.0.0.1", port)

    async def __aenter__(self) -> Self:
        await self.voice.connect()
        with mock.patch.object(broker_statistics, "FIRST", 0.0):
            assert not await self.listener.open(self._target), "there is no version"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close()
        await self.voice.disconnect()

    async def publish(self, name: str, value: str) -> None:
        await self.voice.publish(f"$SYS/broker/{name}", value.encode())
        await until(lambda: self.listener.values.get(name) == value)


async def test_figures_of_a_broker_that_is_gone_are_none() -> None:
    async with ScriptedServer() as server, Figures(server.port) as figures:
        one = figures.listener
        await figures.publish("uptime", "1 seconds")
        await figures.publish("messages/dropped", "5")
        assert one.dropped() == (5, {})
        waiting = asyncio.create_task(one.fresh())
        await asyncio.sleep(0)
        for peer in list(server.peers):
            peer.transport.abort()
        assert not await waiting
        assert one.dropped() is None
        assert not await one.fresh()


async def test_figures_that_did_not_come_anew_are_from_before() -> None:
    async with ScriptedServer() as server, Figures(server.port) as figures:
        await figures.publish("uptime", "1 seconds")
        assert not await figures.listener.fresh(longest=0.01)
        waiting = asyncio.create_task(figures.listener.fresh(longest=0.3))
        await asyncio.sleep(0)
        await figures.publish("uptime", "2 seconds")
        assert await waiting, "once is enough where the next time takes too long"


async def test_where_nothing_is_missing_the_next_figures_do() -> None:
    async with ScriptedServer() as server, Figures(server.port) as figures:
        await figures.publish("uptime", "1 seconds")
        waiting = asyncio.create_task(figures.listener.fresh(complete=True))
        await asyncio.sleep(0)
        await figures.publish("uptime", "2 seconds")
        assert await waiting
    assert "did not wait" in reconcile([Deliveries()], (1, {}), None).why


def test_what_the_broker_does_not_say_is_not_made_up() -> None:
    some = [Deliveries(lost=3, told_lost=2)]
    for before, after, word in (
        (None, None, "publishes no count"),
        ((1, {}), None, "no new count"),
        ((100, {}), (2, {}), "began anew"),
    ):
        found = reconcile(some, before, after)
        assert (found.seen, found.reported, found.agrees, found.told) == (3, None, None, 2)
        assert word in found.why


def test_what_other_clients_lost_is_no_fault_of_the_run() -> None:
    """`$SYS` counts all clients of a broker; one that was started for the run has no others."""
    clean = [Deliveries(expected=9, received=9)]
    shared = reconcile(clean, (10, {}), (4167, {}))
    assert (shared.seen, shared.reported, shared.agrees) == (0, 4157, None)
    assert "$SYS counts all clients of the broker" in shared.why
    result = replace(empty_result(), interrupted=False, deliveries=clean[0], reconciled=shared)
    assert not faults(result)
    assert not any(each.tone == "bad" for each in findings(result))
    assert reconcile(clean, (10, {}), (4167, {}), own_broker=True).agrees is False


def test_fewer_drops_than_were_seen_are_nobody_elses() -> None:
    assert reconcile([Deliveries(lost=5)], (10, {}), (14, {})).agrees is False
    found = reconcile([Deliveries(lost=5)], (10, {}), (15, {}))
    assert found.agrees is True
    assert "$SYS counts all clients of the broker" in found.why, "these five may be another client's"


async def test_one_who_will_not_wait_for_the_ledger_has_a_result_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = asyncio.Event()
    stop = asyncio.Event()

    async def opened(_listener: Listener, _target: object) -> bool:
        return True

    async def fresh(_listener: Listener, _complete: bool, _longest: float) -> bool:
        stop.set()
        await waits.wait()
        return True

    monkeypatch.setattr(Listener, "open", opened)
    monkeypatch.setattr(Listener, "fresh", fresh)
    async with ScriptedServer() as server:
        result = await conductor.play(job(server, scenario(sender(messages=3), reader())), stop=stop)
    assert result.deliveries.received == 3
    assert result.reconciled is not None
    assert result.reconciled.agrees is None
    assert not result.interrupted, "all stages were played"


@pytest.mark.parametrize(("strict", "longest"), [(False, SHORT_WAIT), (True, MAX_WAIT)])
async def test_where_nothing_is_missing_only_a_strict_run_waits_long(
    monkeypatch: pytest.MonkeyPatch, strict: bool, longest: float
) -> None:
    asked: list[tuple[bool, float]] = []

    async def opened(_listener: Listener, _target: object) -> bool:
        return True

    async def fresh(_listener: Listener, complete: bool, seconds: float) -> bool:
        asked.append((complete, seconds))
        return False

    monkeypatch.setattr(Listener, "open", opened)
    monkeypatch.setattr(Listener, "fresh", fresh)
    async with ScriptedServer() as server:
        wanted = replace(job(server, scenario(sender(messages=3), reader())), strict=strict)
        await conductor.play(wanted, stop=asyncio.Event())
    assert asked == [(True, longest)]
