"""What a watch tells of one client: deliveries with their acknowledgements, and losses with their causes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.observe.explain.watches import MOST_KEPT, Watch
from broker.observe.trace.kept import PACKET, Entry, Party, Trace
from canopy import Broker, Settings
from tests.e2e.wire import Peer
from tests.support.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    settings: dict[str, Any] = {
        "listen": ("mqtt://127.0.0.1:0",),
        "sys": {"interval": 0.0},
        "shutdown": {"flush_timeout": 0.0},
    }
    async with Broker(Settings.model_validate(settings)) as started:
        yield started


async def test_deliveries_with_their_acknowledgements_and_losses_with_their_causes(broker: Broker) -> None:
    reader = await Peer.join(broker.ports[0], "reader")
    await reader.subscribe(("t/#", 2))
    watch = broker.watches.start("reader", "t/+", 60)
    await until(lambda: broker.traces._lookings)
    sender = await Peer.join(broker.ports[0], "sender")
    for qos in (0, 1, 2):
        await sender.publish(f"t/{qos}", b"x", qos=qos)
    await sender.publish("t/not/this", b"x", qos=1)

    for _ in range(4):
        await reader.message()
    await until(lambda: broker.router.sessions["reader"].inflight.count == 0)
    await watch.catch_up()
    found = [(one.topic, one.qos, one.packet_id > 0, one.reason_code) for one in watch.deliveries]
    assert found == [("t/0", 0, False, -1), ("t/1", 1, True, 0), ("t/2", 2, True, 0)]
    session = broker.router.sessions["reader"]
    session.drop(1)
    broker.router.sessions["sender"].drop(1)
    assert [(one.cause, one.count) for one in watch.losses] == [("full-bytes", 1)]
    reader.abort()
    sender.abort()


def listening(broker: Broker) -> bool:
    return broker.router.counters.load.tap is not None


async def test_nobody_is_told_of_losses_but_while_a_watch_runs(broker: Broker) -> None:
    assert not listening(broker)
    first = broker.watches.start("a", "", 60)
    second = broker.watches.start("a", "", 60)
    assert listening(broker)
    broker.watches.remove(first.trace.name)
    assert listening(broker)
    assert broker.watches.get(first.trace.name) is None
    broker.traces.stop(second.trace.name)
    assert broker.watches.get(second.trace.name) is second
    assert not listening(broker)
    broker.traces.remove(second.trace.name)
    assert broker.watches.get(second.trace.name) is None


async def test_a_watch_ends_with_its_time(broker: Broker) -> None:
    broker.watches.start("a", "", 0.01)
    await until(lambda: not listening(broker))


def test_the_last_ones_are_kept() -> None:
    trace = Trace("t", "clientid", "c", 60, 1 << 30)
    watch = Watch("c", "", trace)
    for _ in range(MOST_KEPT + 5):
        watch.lost(0, 1)
    assert (len(watch.losses), watch.losses[0].number, watch.number) == (MOST_KEPT, 6, MOST_KEPT + 5)


async def test_aliases_are_names_and_refusals_are_told() -> None:
    trace = Trace("t", "clientid", "c", 60, 1 << 30)
    watch = Watch("c", "a", trace)
    party = Party(1, "", "", None, "tcp", "c", 5)

    def put(data: str, *, inward: bool) -> None:
        raw = bytes.fromhex(data)
        trace.add(Entry(PACKET, 1_000_000_000, party, inward, raw, len(raw), 5))

    put("32 09 0001 61 0001 03 23 0001", inward=False)
    put("32 08 0000 0002 03 23 0001", inward=False)
    put("40 03 0001 87", inward=True)
    put("40 02 0063", inward=True)
    await watch.catch_up()
    assert [(one.topic, one.packet_id, one.complete, one.reason_code) for one in watch.deliveries] == [
        ("a", 1, True, 0x87),
        ("a", 2, False, -1),
    ]
