"""A standby takes over: with all that was committed, or without the last of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.store.shared.brokers import Broker, client_of, connect, publish, subscribe
from tests.store.shared.nodes import Nodes
from tests.support import postgresql
from tests.support.postgresql import Server, ask
from tests.support.waiting import until


@pytest.fixture
def primary() -> Iterator[Server]:
    yield from postgresql.server()


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    """It follows the primary."""
    primary_conninfo = f"primary_conninfo=host=127.0.0.1 port={primary.port} user=canopy"
    yield from postgresql.server(primary_conninfo, primary=primary)


@pytest.fixture
async def nodes(primary: Server, standby: Server) -> AsyncIterator[Nodes]:
    """They find whichever of the two is the primary."""
    url = f"postgresql://canopy@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    made = Nodes(url, synchronous="full")
    yield made
    for each in made.made:
        await each.close()


async def fail_over(primary: Server, standby: Server, brokers: list[Broker]) -> None:
    """Have the standby take over, and wait until all nodes have begun an incarnation there."""
    before = [(each.store.node, each.store.node.joined) for each in brokers]
    primary.kill()
    assert await ask(standby.url, "SELECT pg_promote()") == [(True,)]
    await until(lambda: all(node.joined not in (None, joined) for node, joined in before), "new incarnations")


async def test_a_synchronous_standby_has_all_that_was_acknowledged(
    primary: Server, standby: Server, brokers: list[Broker]
) -> None:
    here, there = brokers
    await ask(primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    await ask(primary.url, "SELECT pg_reload_conf()")
    connected, away = await client_of(here, "connected"), await client_of(there, "away")
    for each in (connected, away):
        await subscribe(each, "a")
    away.killed()
    publisher = await client_of(there, "p")
    await publish(publisher, b"1")
    await until(lambda: connected.inbox)
    await fail_over(primary, standby, brokers)
    assert connected.closed, "what it had may not be there any more"
    assert publisher.closed
    for each in (connected, away, publisher):
        await connect(each, here)
        assert each.connack.session_present
    await publish(publisher, b"2")
    await until(lambda: all(each.inbox and each.inbox[-1].payload == b"2" for each in (connected, away)))
    assert away.payloads() == [b"1", b"2"]
    # Whether it has acknowledged the first one is not written at once.
    assert connected.payloads() in ([b"1", b"2"], [b"1", b"1", b"2"])


async def test_what_an_asynchronous_standby_lacks_is_all_that_is_lost(
    nodes: Nodes, primary: Server, standby: Server, brokers: list[Broker]
) -> None:
    """The rows that come afterwards may have the numbers of those that were lost: whoever knew them asks anew."""
    here, there = brokers
    client, publisher = await client_of(here, "s"), await client_of(there, "p")
    await subscribe(client, "a")
    await publish(publisher, b"has")
    while await ask(standby.url, f'SELECT count(*) FROM "{nodes.name}".delivery') != [(0,)]:
        pass
    standby.stop()
    await subscribe(client, "lost")
    for number in range(40):
        await publish(publisher, b"lost %d" % number)
    await until(lambda: len(client.inbox) == 41)
    primary.kill()
    standby.start()
    await fail_over(primary, standby, brokers)
    for each, broker in ((client, here), (publisher, there)):
        if each.closed:
            await connect(each, broker)
            assert each.connack.session_present
    newcomer = await client_of(there, "newcomer")
    await subscribe(newcomer, "a", "new")
    for number in range(20):
        await publish(publisher, b"%d" % number)
        await publish(publisher, b"%d" % number, topic="new")
        await publish(publisher, b"%d" % number, topic="lost")
    await until(lambda: client.inbox[-1].payload == b"19" and len(newcomer.inbox) == 40)
    assert [each for each in client.payloads() if each.isdigit()] == [b"%d" % number for number in range(20)]
