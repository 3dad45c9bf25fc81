"""Wills of clients of nodes that share a store: each is published once, whichever node dies (section 3.1.2.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.store.shared.calls import Group, Written
from tests.core.harness import Client
from tests.store.shared.brokers import Broker, client_of, connect, rows, subscribe
from tests.store.shared.nodes import Nodes, declare_dead
from tests.support.waiting import until


@pytest.fixture
async def brokers(nodes: Nodes) -> AsyncIterator[list[Broker]]:
    """Three nodes."""
    made: list[Broker] = []
    for name in "abc":
        await Broker(made, await nodes.open(name)).open()
    yield made
    for broker in made:
        await broker.store.close()


class Heirs:
    """At the last node: one with a session that lasts, one without, and what each has got."""

    def __init__(self, lasting: Client, passing: Client) -> None:
        self.both = lasting, passing

    def got(self) -> list[list[bytes]]:
        return [[each.payload for each in client.inbox] for client in self.both]


async def heirs(broker: Broker, of: str = "") -> Heirs:
    lasting, passing = await client_of(broker, f"lasting{of}"), await client_of(broker, f"passing{of}", expiry=0)
    for client in (lasting, passing):
        await subscribe(client, "will", qos=1)
    return Heirs(lasting, passing)


async def settled(broker: Broker) -> None:
    """Wait until no will is due, or of a connection that has ended, and what was published has come."""
    marker = await client_of(broker, "marker")
    for number in range(2):
        await subscribe(marker, f"marker/{number}")
        await broker.store.flush()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("to", [0, 1])
@pytest.mark.parametrize("expiry", [0, 300])
async def test_a_client_that_is_taken_over_has_its_will_published(
    nodes: Nodes, brokers: list[Broker], qos: int, to: int, expiry: int
) -> None:
    """At its own node or at another one, with a session that lasts or without [MQTT-3.1.2-8] [MQTT-3.1.4-3]."""
    # They are at the same node as the client: links carry nothing else here.
    heir = await heirs(brokers[0])
    await client_of(brokers[0], "c", will=Will("will", b"gone", qos), expiry=expiry)
    await client_of(brokers[to], "c")
    expected = [[b"gone"], [b"gone"]]
    await until(lambda: heir.got() == expected, "the will")
    await settled(brokers[0])
    assert heir.got() == expected
    assert await rows(nodes, "will") == 0


async def test_a_client_that_is_back_in_time_has_revoked_its_will(nodes: Nodes, brokers: list[Broker]) -> None:
    """[MQTT-3.1.3-9]"""
    client = await client_of(brokers[0], "c", will=Will("will", b"gone", 1, False, 100))
    client.cut()
    await brokers[0].store.flush()
    assert await nodes.ask("SELECT due > now() + interval '90 seconds' FROM will") == [(True,)]
    await connect(client, brokers[1])
    assert await rows(nodes, "will") == 0


async def test_a_client_that_is_taken_over_has_revoked_its_delayed_will(nodes: Nodes, brokers: list[Broker]) -> None:
    first = await client_of(brokers[0], "c", will=Will("will", b"gone", 1, False, 100))
    await client_of(brokers[1], "c")
    await until(lambda: first.closed, "the end of the first connection")
    await brokers[0].store.flush()
    assert await rows(nodes, "will") == 0


@pytest.mark.parametrize("connected", [True, False])
async def test_a_client_that_begins_anew_has_its_delayed_will_published(brokers: list[Broker], connected: bool) -> None:
    """Its session has ended (section 3.1.3.2.2)."""
    heir = await heirs(brokers[0])
    first = await client_of(brokers[0], "c", will=Will("will", b"gone", 1, False, 100))
    if not connected:
        first.cut()
        await brokers[0].store.flush()
    await client_of(brokers[1], "c", clean=True)
    await until(lambda: heir.got() == [[b"gone"], [b"gone"]], "the will")


async def test_a_goodbye_revokes_the_will(nodes: Nodes, brokers: list[Broker]) -> None:
    """Also of a client that is at another node at once [MQTT-3.1.2-10]."""
    client = await client_of(brokers[0], "c", will=Will("will", b"gone", 1))
    client.disconnect()
    await connect(client, brokers[1])
    await brokers[0].store.flush()
    assert await rows(nodes, "will") == 0
    assert [b"gone"] not in (await heirs(brokers[2])).got()


@pytest.mark.parametrize("expiry", [0, 300])
@pytest.mark.parametrize("left", [True, False])
async def test_a_node_that_is_dead_leaves_its_wills_to_the_others(
    nodes: Nodes, brokers: list[Broker], expiry: int, left: bool
) -> None:
    """`left`: the client was away already, and the will was due while nobody was there."""
    dead, both = brokers[0], [await heirs(brokers[at], str(at)) for at in (1, 2)]
    client = await client_of(dead, "c", will=Will("will", b"gone", 1, False, 1 if left else 0), expiry=expiry or 300)
    if left:
        client.cut()
        await dead.store.flush()
    await dead.kill()
    await declare_dead(brokers[0].store.running.database, "a")
    # Only at the node that publishes it clients hear it without a session that lasts, as links carry nothing here.
    once = [[[], [b"gone"]], [[b"gone"], [b"gone"]]]
    await until(lambda: sorted(sorted(each.got()) for each in both) == once, "the will")
    for broker in brokers:
        await settled(broker)
    assert sorted(sorted(each.got()) for each in both) == once
    assert await rows(nodes, "will") == 0


async def test_a_will_waits_for_an_earlier_one_of_its_client(nodes: Nodes, brokers: list[Broker]) -> None:
    """Here that of a dead node, which nobody has found dead yet."""
    dead, last = brokers[0], brokers[2]
    heir = await heirs(last)
    await client_of(dead, "c", will=Will("will", b"first", 1))
    await dead.kill()
    second = await client_of(last, "c", will=Will("will", b"second", 1))
    second.cut()
    await last.store.flush()
    assert await nodes.ask("SELECT due IS NULL FROM will ORDER BY epoch") == [(True,), (False,)]
    await declare_dead(last.store.running.database, "a")
    await until(lambda: heir.got()[0] == [b"first", b"second"], "both wills, in their order")
    assert await rows(nodes, "will") == 0


async def test_a_node_that_was_counted_as_dead_ends_connections_with_wills(nodes: Nodes, brokers: list[Broker]) -> None:
    """Others publish them, once, also of clients whose sessions end with their connections."""
    heir = await heirs(brokers[1])
    client = await client_of(brokers[0], "c", will=Will("will", b"gone", 1), expiry=0)
    plain = await client_of(brokers[0], "plain", expiry=0)
    await declare_dead(brokers[1].store.running.database, "a")
    # Whichever node publishes it.
    await until(lambda: client.closed and heir.got()[0] == [b"gone"], "the will")
    for broker in brokers:
        await settled(broker)
    assert heir.got() in ([[b"gone"], []], [[b"gone"], [b"gone"]])
    assert not plain.closed
    assert await rows(nodes, "will") == 0


async def test_a_will_is_retained(brokers: list[Broker]) -> None:
    client = await client_of(brokers[0], "c", will=Will("will", b"gone", 1, True))
    client.cut()
    await until(lambda: brokers[2].router.retained.get("will") is not None, "the retained message")


async def test_a_client_that_has_gone_before_its_connack_has_no_will(nodes: Nodes, brokers: list[Broker]) -> None:
    client = brokers[0].idle("c")
    client.network = brokers[0]
    database = brokers[0].store.running.database
    write, ended = database.write, asyncio.Event()

    async def cut_first(group: Group, vector: dict[int, int] | None = None) -> Written:
        if group.new_wills:
            client.cut()
        written = await write(group, vector)
        if group.ended_wills:
            ended.set()
        return written

    database.write = cut_first  # type: ignore[method-assign]
    client.connect(clean=False, expiry=300, will=Will("will", b"gone", 1))
    await ended.wait()
    await brokers[0].store.flush()
    assert await rows(nodes, "will") == 0
