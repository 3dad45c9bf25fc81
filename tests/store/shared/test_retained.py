"""Retained messages of nodes that share a database: they are there when they are acknowledged, for all nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.store.shared.calls import Group
from tests.core.harness import Client
from tests.store.postgresql.place import Proxy
from tests.store.shared.brokers import Broker, client_of, rows, subscribe
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import message
from tests.support.waiting import until


@pytest.fixture
async def brokers(nodes: Nodes) -> AsyncIterator[list[Broker]]:
    """Two nodes without a link: what one hears of the other is in the database."""
    made: list[Broker] = []
    for name in "ab":
        await Broker(made, await nodes.open(name)).open()
        made[-1].linked = False
    yield made
    for each in list(made):
        await each.store.close()


async def retain(client: Client, topic: str, payload: bytes, qos: int = 1) -> None:
    """Publish, and wait until it is acknowledged."""
    packet = client.publish(topic, payload, qos, retain=True)
    await until(lambda: packet.packet_id not in client.outgoing, f"the acknowledgement of {payload!r}")


async def found(broker: Broker, *topics: str) -> dict[bytes, bytes]:
    """Return the retained messages that a new subscriber gets; the last of the topics has one."""
    client = await client_of(broker, "", clean=True, expiry=0)
    await subscribe(client, *topics)
    await until(lambda: any(each.topic == topics[-1].encode() for each in client.inbox), "retained messages")
    client.disconnect()
    return {each.topic: each.payload for each in client.inbox}


async def test_the_newest_is_at_each_node(brokers: list[Broker]) -> None:
    """Also where nothing but the database tells of it."""
    here, there = brokers
    client = await client_of(here, "p", clean=True, expiry=0)
    for number in range(20):
        await retain(client, "t", b"%d" % number)
        assert await found(there, "t") == {b"t": b"%d" % number}
        assert await found(here, "t") == {b"t": b"%d" % number}


async def test_it_is_there_after_all_nodes_have_been_killed(nodes: Nodes, brokers: list[Broker]) -> None:
    client = await client_of(brokers[0], "p")
    await retain(client, "kept", b"1", 2)
    await retain(client, "cleared", b"1")
    await retain(client, "cleared", b"")
    for each in list(brokers):
        await each.kill()
    broker = Broker(brokers, await nodes.open("c"))
    await broker.open()
    broker.linked = False
    [node] = broker.router.retained.matching("#")
    kept = node.value
    assert isinstance(kept, Message)
    assert (kept.topic, kept.payload(), kept.qos, kept.publisher) == (b"kept", b"1", 2, "p")
    assert broker.router.retained_store.shares.of("p") > 0


async def test_a_topic_is_cleared_at_each_node(brokers: list[Broker]) -> None:
    here, there = brokers
    client = await client_of(here, "p", clean=True, expiry=0)
    await retain(client, "t", b"1")
    await found(there, "t")
    await retain(client, "t", b"", 2)
    await retain(client, "z", b"1")
    assert await found(there, "#", "z") == {b"z": b"1"}
    assert there.router.retained_store.count == 1


async def test_one_that_has_expired_is_at_no_node_and_goes(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    database = here.store.running.database
    text = message(b"1", [], topic="t", expiry=100, retained=True, account="user u")
    await database.write(Group(publishes=[text, text._replace(topic="z", expiry=None)]))
    assert await found(there, "t", "z") == {b"t": b"1", b"z": b"1"}
    kept = there.router.retained.get("t")
    assert isinstance(kept, Message)
    assert 0.0 < kept.expires_at - there.now <= 100.0
    await nodes.ask("UPDATE retained SET expires_at = clock_timestamp() WHERE topic = 't' RETURNING 1")
    assert {each.topic: each.payload for each in (await (await nodes.open("c")).retained())[0]} == {
        "t": None,
        "z": b"1",
    }
    await database.sweep("SELECT forget_retained_1(100)")
    assert await rows(nodes, "retained") == 1


async def test_what_gives_way_does_so_only_in_place_of_itself(nodes: Nodes, brokers: list[Broker]) -> None:
    database = brokers[0].store.running.database
    await database.write(Group(publishes=[message(b"1", [], topic="t", retained=True)]))
    [[version]] = await nodes.ask("SELECT version FROM retained")
    gives = message(b"", [], topic="t", retained=False, replaces=version)
    await database.write(Group(publishes=[message(b"2", [], topic="t", retained=True), gives]))
    await database.write(Group(publishes=[gives]))
    assert await nodes.ask("SELECT payload FROM retained") == [(b"2",)]
    [[version]] = await nodes.ask("SELECT version FROM retained")
    await database.write(Group(publishes=[gives._replace(replaces=version)]))
    assert await nodes.ask("SELECT payload FROM retained") == [(None,)]


async def test_a_burst_keeps_within_the_limits(nodes: Nodes) -> None:
    """Also while nothing of it is written."""
    made: list[Broker] = []
    broker = Broker(made, await nodes.open("a"), max_retained_messages=3)
    await broker.open()
    client = await client_of(broker, "p", clean=True, expiry=0)
    for number in range(10):
        client.publish(f"t/{number}", b"x", 0, retain=True)
        client.publish("t/0", b"y", 0, retain=True)
    await retain(client, "t/0", b"z")
    assert await nodes.ask("SELECT topic FROM retained WHERE payload IS NOT NULL ORDER BY 1") == [
        ("t/0",), ("t/1",), ("t/2",),
    ]  # fmt: skip
    await found(broker, "t/0")
    store = broker.router.retained_store
    assert (store.count, len(store.tree), broker.router.counters.retained_refused) == (3, 3, 7)
    assert store.shares.of("p") == store.bytes
    await retain(client, "t/1", b"")
    await retain(client, "t/9", b"x")
    assert set(await found(broker, "#", "t/9")) == {b"t/0", b"t/2", b"t/9"}
    await broker.store.close()


async def test_a_subscriber_that_is_there_gets_its_own_message_once(brokers: list[Broker]) -> None:
    client = await client_of(brokers[0], "p", clean=True, expiry=0)
    await subscribe(client, "t")
    await retain(client, "t", b"1")
    await retain(client, "t", b"2", 0)
    await retain(client, "last", b"")
    await until(lambda: len(client.inbox) == 2)
    await found(brokers[0], "t")
    assert client.payloads() == [b"1", b"2"]


async def test_an_answer_that_is_lost_is_made_up_for(nodes: Nodes, proxy: Proxy) -> None:
    made: list[Broker] = []
    broker = Broker(made, await nodes.open("a", url=await proxy.start()))
    await broker.open()
    client = await client_of(broker, "p", clean=True, expiry=0)
    proxy.after = b"the payload"
    await retain(client, "t", b"the payload")
    assert (await found(broker, "t"), proxy.lost) == ({b"t": b"the payload"}, 1)
    assert broker.router.retained_store.count == 1
    await broker.store.close()


async def test_while_the_database_is_away_subscribers_get_what_is_here(nodes: Nodes, proxy: Proxy) -> None:
    """A retained message of QoS 1 waits for its acknowledgement, and one of QoS 0 is live at once."""
    made: list[Broker] = []
    broker = Broker(made, await nodes.open("a", url=await proxy.start()))
    await broker.open()
    client, live = [await client_of(broker, name, clean=True, expiry=0) for name in ("p", "live")]
    await subscribe(live, "z")
    await retain(client, "t", b"1")
    await found(broker, "t")
    proxy.open = False
    proxy.cut()
    packet = client.publish("t", b"2", 1, retain=True)
    client.publish("z", b"3", 0, retain=True)
    await until(lambda: broker.store.in_trouble)
    assert await found(broker, "t") == {b"t": b"1"}
    assert (live.payloads(), packet.packet_id in client.outgoing) == ([b"3"], True)
    proxy.open = True
    await until(lambda: not client.outgoing)
    assert await found(broker, "t", "z") == {b"t": b"2", b"z": b"3"}
    await broker.store.close()


async def test_a_node_that_was_declared_dead_reads_all_again(nodes: Nodes, brokers: list[Broker]) -> None:
    """What was cleared since is not there any more, though no row tells of it."""
    here, there = brokers
    client = await client_of(here, "p", clean=True, expiry=0)
    await retain(client, "t", b"1")
    await retain(client, "u", b"1")
    await found(there, "t", "u")
    await nodes.ask("DELETE FROM retained WHERE topic = 't' RETURNING 1")
    there.store.node.over()
    assert await found(there, "#", "u") == {b"u": b"1"}
