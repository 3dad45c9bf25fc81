"""A session that lasts no longer than its present connection, and was there before: the store keeps it until then."""

from __future__ import annotations

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import PUBREC
from tests.core.harness import Client
from tests.store.shared.brokers import Broker, client_of, connect, publish, subscribe
from tests.store.shared.nodes import declare_dead
from tests.support.waiting import until


async def finds_a_session(client: Client, broker: Broker, expiry: int) -> bool:
    await connect(client, broker, expiry=expiry)
    return client.connack.session_present


async def test_its_messages_come_from_the_store_until_it_ends(brokers: list[Broker]) -> None:
    here, there = brokers
    client, publisher = await client_of(here, "s"), await client_of(there, "p")
    await subscribe(client, "a")
    client.disconnect()
    await publish(publisher, b"1", 2)
    assert await finds_a_session(client, there, 0)
    await publish(publisher, b"2", 2)
    await until(lambda: len(client.inbox) == 2)
    assert client.payloads() == [b"1", b"2"]
    client.disconnect()
    assert not await finds_a_session(client, here, 300)
    assert here.session("s").subscriptions == {}


async def test_it_ends_with_the_incarnation_of_its_node(brokers: list[Broker]) -> None:
    """What it publishes could be kept for it no more, and must not be acknowledged."""
    here, there = brokers
    client = await client_of(here, "s")
    client.disconnect()
    await connect(client, here, expiry=0)
    await declare_dead(there.store.running.database, "a")
    client.publish("a", b"1", 2)
    await until(lambda: client.closed)
    assert client.end == reason_codes.USE_ANOTHER_SERVER
    assert client.acks(PUBREC) == []
