"""Durable clients of a cluster: they connect to any node, and find their session, its queue and its subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Publish
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.shared.calls import End
from canopy_mqtt.store.shared.store import OVER
from tests.core.harness import bag
from tests.store.postgresql.place import Proxy
from tests.store.shared.brokers import Broker, client_of, connect, publish, rows, subscribe, until_empty
from tests.store.shared.nodes import Nodes, declare_dead
from tests.store.sqlite.place import Listener
from tests.support.waiting import until


async def test_a_client_roams_and_gets_everything(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    client, publisher = await client_of(here, "s"), await client_of(there, "p")
    first = client.connack
    assert not first.session_present
    await subscribe(client, "a")
    await publish(publisher, b"1")
    await until(lambda: client.payloads() == [b"1"])
    await until_empty(nodes, "delivery")
    client.disconnect()
    await publish(publisher, b"2")
    await publish(publisher, b"3", 2)
    assert here.router.sessions == {}
    await connect(client, there)
    assert client.connack.session_present
    assert list(there.session("s").subscriptions) == ["a"]
    await until(lambda: len(client.inbox) == 2)
    assert client.payloads() == [b"2", b"3"]
    await until_empty(nodes, "delivery")
    await publish(publisher, b"4")
    await until(lambda: client.payloads() == [b"4"])


async def test_a_connect_elsewhere_takes_the_session_over(brokers: list[Broker]) -> None:
    here, there = brokers
    first, second = await client_of(here, "s"), await client_of(there, "s")
    await until(lambda: first.closed)
    assert first.end == reason_codes.SESSION_TAKEN_OVER
    assert second.connack.session_present
    assert here.router.sessions == {}


async def test_a_connect_at_the_same_node_takes_the_session_over(brokers: list[Broker]) -> None:
    here, _ = brokers
    first = await client_of(here, "s")
    await subscribe(first, "a")
    second = await client_of(here, "s")
    await until(lambda: first.closed)
    assert first.end == reason_codes.SESSION_TAKEN_OVER
    await publish(second, b"1")
    await until(lambda: second.payloads() == [b"1"])


async def test_a_clean_start_ends_the_session_everywhere(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    first = await client_of(here, "s")
    await subscribe(first, "a")
    second = await client_of(there, "s", clean=True, expiry=0)
    await until(lambda: first.closed)
    second.disconnect()
    await until_empty(nodes, "session")
    again = await client_of(here, "s")
    assert not again.connack.session_present


async def test_a_client_says_at_its_end_how_long_its_session_lasts(nodes: Nodes, brokers: list[Broker]) -> None:
    """The interval of a DISCONNECT counts (3.14.2.2.2)."""
    here, there = brokers
    client = await client_of(here, "s")
    client.disconnect(properties=bag(i={0x11: 0}))
    await until_empty(nodes, "session")
    await connect(client, there)
    assert not client.connack.session_present


@pytest.mark.parametrize("answers", range(4), ids=["sent", "received", "released", "complete"])
async def test_a_delivery_of_qos_2_goes_on_at_another_node(nodes: Nodes, brokers: list[Broker], answers: int) -> None:
    """In each of its states, and it comes once."""
    here, there = brokers
    client, publisher = await client_of(here, "s"), await client_of(there, "p")
    await subscribe(client, "a")
    client.answering = False
    await publish(publisher, b"1", 2)
    await until(lambda: client.unanswered)
    if answers == 1:
        # PUBREC comes to the node, which dies before anybody hears of it.
        client.answer(settle=False)
    if answers >= 2:
        client.answer()
        await until(lambda: client.acks(PUBREL))
    if answers == 3:
        client.answer()
        await until_empty(nodes, "delivery")
    await connect(client, there)  # which answers again
    await publish(publisher, b"2", 2)
    await until(lambda: len(client.inbox) == 2)
    assert client.payloads() == [b"1", b"2"]
    await until_empty(nodes, "delivery")
    again = [each for each in client.got(Publish) if each.payload == b"1"]
    assert [each.dup for each in again] == ([True] if answers < 2 else [])


async def test_a_publish_of_qos_2_goes_on_at_another_node(nodes: Nodes, brokers: list[Broker]) -> None:
    """Sent again where its PUBREC was lost; matched or not."""
    here, there = brokers
    client, publisher = await client_of(here, "s"), await client_of(here, "p")
    await subscribe(client, "a")
    for topic in ("a", "nobody"):
        publisher.wire.frozen = True
        packet = publisher.publish(topic, b"x", 2)
        while not await rows(nodes, "received"):
            pass
        publisher.outgoing = {packet.packet_id: packet}
        await connect(publisher, there)
        await until(lambda: not publisher.outgoing)
        assert len(publisher.acks(PUBREC)) == len(publisher.acks(PUBCOMP)) == 1
        await until_empty(nodes, "received")
        await connect(publisher, here)
    await until(lambda: client.inbox)
    await publish(publisher, b"last")
    await until(lambda: client.inbox[-1].payload == b"last")
    assert client.payloads() == [b"x", b"last"]


async def test_a_publish_of_qos_2_that_comes_again_is_live_once(nodes: Nodes, brokers: list[Broker]) -> None:
    """Its client connects anew before the database has what it sent."""
    here, _ = brokers
    watcher = await client_of(here, "w", clean=True, expiry=0)
    await subscribe(watcher, "a")
    publisher = await client_of(here, "p")
    publisher.wire.frozen = True
    other = await asyncpg.connect(nodes.url)
    async with other.transaction():
        # Groups wait for that, and claims do not.
        await other.execute(f'SELECT FROM "{nodes.name}".node FOR NO KEY UPDATE')
        packet = publisher.publish("a", b"x", 2)
        await until(lambda: here.store.node.flight is not None)
        publisher.outgoing = {packet.packet_id: packet}
        await connect(publisher, here)
    await other.close()
    await until(lambda: not publisher.outgoing)
    await publish(publisher, b"last", 2)
    await until(lambda: watcher.inbox and watcher.inbox[-1].payload == b"last")
    assert watcher.payloads() == [b"x", b"last"]


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_group_that_a_dead_node_was_writing_is_written_once(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """With what a client without a durable session has published, whether or not it was written before the death."""
    here, there = brokers
    database = here.store.running.database
    live = await client_of(here, "live", clean=True, expiry=0)
    client = await client_of(there, "s")
    await subscribe(client, "a")
    await publish(live, b"0", 2)
    write, unanswered, first = database._groups.fetch, asyncio.Event(), here.store.node.joined

    async def hangs(*values: Any) -> Any:
        if unanswered.is_set():
            return await write(*values)  # of the next incarnation
        if is_written:
            await write(*values)
        unanswered.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(database._groups, "fetch", hangs)
    live.post("a", b"1", 2)
    await unanswered.wait()
    await declare_dead(there.store.running.database, "a")
    await until(lambda: here.store.node.joined not in {None, first})
    await publish(live, b"2", 2)
    await until(lambda: len(client.inbox) == 3)
    assert len(live.acks(PUBREC)) == 3
    assert client.payloads() == [b"0", b"1", b"2"]


async def test_the_acknowledgements_of_a_session_that_is_elsewhere_never_go(brokers: list[Broker]) -> None:
    """A node that has not heard of it finds out by its next group."""
    here, there = brokers
    publisher = await client_of(here, "p")
    witness = await client_of(here, "w")
    here.linked = there.linked = False
    await client_of(there, "p")
    publisher.post("a", b"1", 2)
    await publish(witness, b"2", 2)
    await until(lambda: publisher.closed)
    assert publisher.end == reason_codes.SESSION_TAKEN_OVER
    assert publisher.acks(PUBREC) == []


async def test_what_must_not_be_sent_is_not_sent(nodes: Nodes, brokers: list[Broker]) -> None:
    """Its row is gone when it would be sent: an earlier connection has acknowledged it."""
    here, there = brokers
    client, publisher = await client_of(here, "s", receive_maximum=1), await client_of(there, "p")
    await subscribe(client, "a")
    client.answering = False
    await publish(publisher, b"1", 2)
    await publish(publisher, b"2", 2)
    await publish(publisher, b"3", 2)
    await until(lambda: here.session("s").waiting_messages() == 2)
    await nodes.ask("DELETE FROM delivery d USING message m WHERE m.id = d.id AND payload = '2' RETURNING 1")
    client.answering = True
    client.answer()
    await until(lambda: len(client.inbox) == 2)
    assert client.payloads() == [b"1", b"3"]
    await until_empty(nodes, "delivery")
    assert here.session("s").in_flight_messages() == 0


async def test_a_queue_longer_than_memory_comes_in_order(nodes: Nodes) -> None:
    broker = Broker([], await nodes.open("a"), most=4)
    await broker.open()
    client, publisher = await client_of(broker, "s"), await client_of(broker, "p")
    await subscribe(client, "a")
    client.disconnect()
    sent = [b"%d" % number for number in range(30)]
    for payload in sent:
        publisher.post("a", payload, 2)
    broker.settle()
    await until(lambda: not publisher.outgoing)
    client.answering = False
    await connect(client, broker, receive_maximum=3)
    await until(lambda: broker.session("s").in_flight_messages() == 3)
    assert broker.session("s").waiting_messages() <= 4
    client.answering = True
    client.answer()
    await until(lambda: len(client.inbox) == 30)
    assert client.payloads() == sent
    await until_empty(nodes, "delivery")
    await broker.store.close()


async def test_messages_larger_than_what_a_queue_may_have_wait_in_the_store(nodes: Nodes) -> None:
    """They are not dropped by the limit of the queue in memory."""
    broker = Broker([], await nodes.open("a"), session_bytes=3_000)
    await broker.open()
    client, publisher = await client_of(broker, "s", receive_maximum=1), await client_of(broker, "p")
    await subscribe(client, "a")
    client.disconnect()
    sent = [b"%d" % number * 1_000 for number in range(9)]
    for payload in sent:
        await publish(publisher, payload)
    await connect(client, broker)
    await until(lambda: len(client.inbox) == len(sent))
    assert client.payloads() == sent
    await broker.store.close()


async def test_filters_that_the_node_ends_acknowledge_nothing(brokers: list[Broker]) -> None:
    """No client waits for them: those of sessions that have ended."""
    here, _ = brokers
    client = await client_of(here, "s")
    here.store.node.note(End("of a session that has ended"))
    await publish(client, b"1")
    assert here.store.journal.commits_kept.committed == here.store.journal.commits_kept.journal_position
    await publish(client, b"2")
    assert not client.closed


async def test_a_client_whose_queue_is_full_is_not_read_for(nodes: Nodes) -> None:
    """Until half of it is sent."""
    broker = Broker([], await nodes.open("a"), session_bytes=3_000)
    await broker.open()
    client, publisher = await client_of(broker, "s", receive_maximum=1), await client_of(broker, "p")
    await subscribe(client, "a")
    client.answering = False
    for _ in range(9):
        await publish(publisher, b"x" * 1_000)
    await until(lambda: client.unanswered)
    session = broker.store.node.by_client["s"]
    await until(lambda: session.more and not session.reading)
    reads = len(broker.reads)
    for _ in range(3):
        await publish(publisher, b"for nobody", topic="b")
    assert len(broker.reads) == reads
    client.answering = True
    client.answer()
    await until(lambda: len(client.inbox) == 9)
    await broker.store.close()


async def test_a_node_that_was_declared_dead_ends_durable_connections(brokers: list[Broker]) -> None:
    """What a client without a durable session has published meanwhile is kept, and acknowledged by the next group."""
    here, there = brokers
    here.store.listener = heard = Listener()
    durable, live = await client_of(here, "p"), await client_of(here, "live", clean=True, expiry=0)
    client = await client_of(there, "s")
    await subscribe(client, "a")
    await declare_dead(there.store.running.database, "a")
    durable.post("a", b"of a durable client", 1)
    await publish(live, b"1")
    assert durable.end == reason_codes.USE_ANOTHER_SERVER
    assert durable.acks(PUBACK) == []
    assert not live.closed
    assert heard.notices == [OVER]
    await until(lambda: client.payloads() == [b"1"])
    await connect(durable, here)
    assert durable.connack.session_present
    await publish(durable, b"2")
    await until(lambda: b"2" in client.payloads())


async def test_a_clean_connect_between_two_incarnations_ends_the_session(brokers: list[Broker]) -> None:
    """It waits for the next one, also where it has claimed its session in the one before. [MQTT-3.1.2-4]"""
    here, there = brokers
    waits, claims = await client_of(here, "waits"), await client_of(here, "claims")
    claims.killed()
    claims.connect(clean=True, expiry=0)
    # It stood still while the database restarted, which has then said that the incarnation is over.
    here.store.away, here.store.running.database.trouble = 100.0, "the connection was lost"
    here.store.node.over()
    await connect(waits, here, clean=True, expiry=0)
    await until(lambda: claims.connack.reason_code == 0, "CONNACK")
    for client in (waits, claims):
        await connect(client, there)
        assert not client.connack.session_present


@pytest.mark.parametrize("expiry", [0, 300], ids=["clean", "durable"])
async def test_what_the_database_refuses_is_dropped_alone(nodes: Nodes, brokers: list[Broker], expiry: int) -> None:
    """All else of its group is written, in its order. Its client is disconnected, and not told that it is kept."""
    here, there = brokers
    here.store.listener = heard = Listener()
    client, publisher = await client_of(there, "s"), await client_of(here, "p")
    refused = await client_of(here, "r", clean=expiry == 0, expiry=expiry)
    await subscribe(client, "a")
    await nodes.ask("ALTER TABLE message ADD CHECK (payload <> 'poison')")
    sent = [b"%d" % number for number in range(20)]
    for payload in sent[:13]:
        publisher.post("a", payload, 1)
    refused.post("a", b"poison", 1)
    here.settle()
    for payload in sent[13:]:
        publisher.post("a", payload, 1)
    here.settle()
    await until(lambda: not publisher.outgoing)
    await until(lambda: len(client.inbox) >= len(sent))
    assert client.payloads() == sent
    assert refused.end == reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
    assert refused.acks(PUBACK) == []
    assert dict(here.store.figures())["refused"] == 1
    assert [line for line in heard.notices if line.startswith('a change of the client "r" cannot be kept')]
    refused.outgoing = {}  # a client that sent it again would be disconnected again
    await connect(refused, here, clean=expiry == 0, expiry=expiry)
    await publish(refused, b"goes on")


async def test_a_claim_that_was_given_up_takes_no_session(nodes: Nodes, proxy: Proxy) -> None:
    """It waits for another one, which the database does not answer; meanwhile its client connects elsewhere."""
    made: list[Broker] = []
    here = Broker(made, await nodes.open("a", url=await proxy.start()))
    there = Broker(made, await nodes.open("b"))
    for each in (here, there):
        await each.open()
    await client_of(here, "t")
    proxy.stand_still()
    for name in ("s", "t"):
        client = here.idle(name)
        client.connect(clean=False, expiry=300)
        here.settle()
        client.killed()
    client = await client_of(there, "t")
    proxy.go_on()
    await client_of(here, "last")
    await publish(client, b"1")
    assert not client.closed
    for each in made:
        each.linked = False
        await each.store.close()


async def test_a_node_without_its_database_serves_clean_clients(nodes: Nodes, proxy: Proxy) -> None:
    """Durable ones are refused, and told to go elsewhere once it has been away for long; publishes wait."""
    broker = Broker([], await nodes.open("a", url=await proxy.start()))
    await broker.open()
    broker.store.listener = heard = Listener()
    durable, live = await client_of(broker, "s"), await client_of(broker, "live", clean=True, expiry=0)
    await subscribe(durable, "a")
    await until(lambda: broker.store.node.filters.match("a"))
    await proxy.close()
    packet = live.publish("a", b"1", 1)
    await until(lambda: heard.reasons)
    assert "cannot be reached" in heard.reasons[0] or "refused" in heard.reasons[0]
    refused = broker.idle("t")
    await connect(refused, broker)
    assert refused.connack.reason_code == reason_codes.SERVER_UNAVAILABLE
    clean = await client_of(broker, "clean", clean=True, expiry=0)
    assert not durable.closed
    broker.store.second(60.0, blocked=False)
    assert durable.end == reason_codes.USE_ANOTHER_SERVER
    assert not live.closed
    assert not clean.closed
    assert packet.packet_id in live.outgoing
    await publish(clean, b"2", topic="of no durable session")
    assert dict(broker.store.figures())["away"] == 60.0
    with pytest.raises(StoreError):
        await broker.store.close()
