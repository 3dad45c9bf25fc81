"""What waits on disk alone of sessions of a dead node: it is copied before they come, and nobody waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from broker.store import StoreError
from broker.store.postgresql import copying
from tests.e2e import wire
from tests.e2e.wire import Peer, publish
from tests.store.postgresql.nodes import Node, Start
from tests.store.postgresql.place import ask, count
from tests.support import postgresql
from tests.support.waiting import PATIENCE, until

MESSAGES = 12


@asynccontextmanager
async def held(node: Node, table: str) -> AsyncIterator[None]:
    """Nobody else can use a table meanwhile."""
    connection = await asyncpg.connect(postgresql.shared().url)
    try:
        async with connection.transaction():
            await connection.execute(f'LOCK TABLE "{node.name}".{table}')
            yield
    finally:
        await connection.close()


async def wanted(node: Node, table: str) -> None:
    """Until somebody waits for it."""
    statement = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{node.name}.{table}'::regclass"
    async with asyncio.timeout(PATIENCE):
        while (await ask(node.name, statement))[0][0] == 0:  # noqa: ASYNC110 (the database tells nobody)
            await asyncio.sleep(0.002)


async def abandoned(start: Start) -> Node:
    """A dead node with a session, in which much waits on disk alone."""
    dead = await start()
    peer = await dead.peer("c")
    await peer.subscribe(("t", 2))
    await peer.disconnect()
    publisher = await dead.peer("publisher")
    for number in range(MESSAGES):
        await publisher.publish("t", b"%d" % number, qos=2)
    await dead.die()
    await dead.expire()
    return dead


async def came(node: Node, *, behind: tuple[int, ...] = (), present: bool = True) -> None:
    """All is here once, in its order; `behind` it, what came later."""
    peer = await node.peer("c", present=present)
    numbers = [*range(MESSAGES), *behind]
    assert sorted([int((await peer.message()).payload) for _ in numbers]) == numbers
    assert await peer.fence() == []


def failures(node: Node) -> int:
    """How often its store could not be written."""
    watch = node.broker.store_watch
    assert watch is not None
    return watch.failures


async def test_acknowledgements_of_others_do_not_wait_for_it(start: Start) -> None:
    """However long it takes: here until the table there can be read."""
    dead, node = await abandoned(start), await start()
    away = await node.peer("away")
    await away.subscribe(("other", 1))
    await away.disconnect()
    publisher = await node.peer("other publisher")
    estate = await node.take(dead)
    assert await estate.more()
    async with held(dead, "delivery"):
        moving = asyncio.ensure_future(node.put(estate))
        await wanted(dead, "delivery")
        await publisher.publish("other", b"x", qos=1)
        assert not moving.done()
    await moving
    await estate.kept()
    await estate.close()
    await came(node)


async def test_what_was_in_memory_keeps_its_place_before_it(start: Start) -> None:
    """Also for a broker that reads all of it anew."""
    dead, node = await abandoned(start), await start(memory_messages=1)
    await node.adopt(dead)
    await node.die()
    await node.expire()
    again = await start(node.name)
    peer = await again.peer("c", present=True)
    assert [int((await peer.message()).payload) for _ in range(MESSAGES)] == [*range(MESSAGES)]
    assert await peer.fence() == []


async def come_and_go(node: Node) -> None:
    """A client with a session that ends."""
    peer = await Peer.join(node.broker.ports[0], "c", props=((wire.SESSION_EXPIRY, 3600),))
    await peer.disconnect(0, ((wire.SESSION_EXPIRY, 0),))
    await until(lambda: "c" not in node.broker.router.sessions)
    await node.store.flush()


async def come_anew(node: Node) -> None:
    """One session ends, and another one is there."""
    await come_and_go(node)
    await (await node.peer("c", present=False)).disconnect()


async def come_and_fall_behind(node: Node) -> None:
    """A session with something on disk alone."""
    peer = await node.peer("c", present=False)
    await peer.subscribe(("new", 2))
    await peer.disconnect()
    publisher = await node.peer("new publisher")
    for number in range(5):
        await publisher.publish("new", b"%d" % (MESSAGES + number), qos=2)
    assert await count(node.name, "delivery WHERE size IS NOT NULL") > 0


BEHIND = tuple(range(MESSAGES, MESSAGES + 5))


@pytest.mark.parametrize("when", ["during", "after"])
@pytest.mark.parametrize("happens", [come_and_go, come_anew, come_and_fall_behind])
async def test_its_client_comes_while_it_is_copied(start: Start, happens: object, when: str) -> None:
    """What was copied for a session that is another one by then is not used."""
    assert callable(happens)
    dead, node = await abandoned(start), await start()
    estate = await node.take(dead)
    assert await estate.more()
    if when == "during":
        async with held(dead, "delivery"):
            preparing = asyncio.ensure_future(estate.prepare(1_000))
            await wanted(dead, "delivery")
            await happens(node)
        await preparing
    else:
        await estate.prepare(1_000)
        await happens(node)
    assert len(node.adopter.adopt(estate, 1_000)) == 2
    await estate.kept()
    await estate.close()
    assert failures(node) == 0
    await node.die()
    await node.expire()
    await came(await start(node.name), behind=BEHIND if happens is come_and_fall_behind else ())


async def test_it_is_copied_again_where_its_client_came_meanwhile(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nobody waits for it then either; but not more than twice."""
    dead, node = await abandoned(start), await start()
    estate = await node.take(dead)
    assert await estate.more()
    copied: list[str] = []
    left = [1]

    async def copy(connection: object, source: str, ranges: object) -> None:
        copied.append(source)
        await original(connection, source, ranges)  # type: ignore[arg-type]
        if left[0] > 0:
            left[0] -= 1
            await come_and_go(node)

    original = copying.copy
    monkeypatch.setattr(copying, "copy", copy)
    await estate.prepare(1_000)
    assert copied == [dead.name] * 2
    assert len(node.adopter.adopt(estate, 1_000)) == 2
    await estate.kept()
    await estate.close()
    await came(node)


async def test_a_connection_that_is_lost_before_it_is_used_costs_nothing(start: Start) -> None:
    """The group copies it then."""
    dead, node = await abandoned(start), await start()
    estate = await node.take(dead)
    assert await estate.more()
    await estate.prepare(1_000)
    await ask(
        node.name,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        f" AND application_name = 'canopy {node.store._database.node}' AND query LIKE 'INSERT INTO delivery SELECT%'",
    )
    connection = node_copies(estate)
    await until(connection.is_closed)
    assert len(node.adopter.adopt(estate, 1_000)) == 2
    await estate.kept()
    await estate.close()
    assert failures(node) == 0
    await came(node)


def node_copies(estate: object) -> asyncpg.Connection:
    """The connection on which it was copied."""
    return estate._copies._database._connection  # type: ignore[attr-defined]


async def test_what_cannot_be_copied_is_told_of_and_costs_the_broker_nothing(start: Start) -> None:
    """Its own store is written as before."""
    dead, node = await abandoned(start), await start()
    estate = await node.take(dead)
    assert await estate.more()
    await ask(dead.name, "ALTER TABLE delivery RENAME topic TO subject")
    with pytest.raises(StoreError, match="refuses the request"):
        await estate.prepare(1_000)
    await ask(dead.name, "ALTER TABLE delivery RENAME subject TO topic")
    await estate.close()
    assert failures(node) == 0
    await node.adopt(dead)
    await came(node)


async def test_what_was_copied_and_does_not_come_is_not_there(start: Start) -> None:
    """Nothing is left of it, in the database and among what the journal expects."""
    dead, node = await abandoned(start), await start()
    estate = await node.take(dead)
    assert await estate.more()
    await estate.prepare(1_000)
    await estate.close()
    assert await count(node.name, "delivery") == 0
    assert node.store._groups.journal.adoptions.expected == {}
    await node.adopt(dead)
    await came(node)


async def test_a_client_that_reads_before_the_group_is_written_gets_all_of_it(start: Start) -> None:
    """Its session is there, and takes in the other one's while an earlier group is being written."""
    dead, node = await abandoned(start), await start()
    peer = await node.peer("c", present=False)
    publisher = await node.peer("other publisher")
    estate = await node.take(dead)
    assert await estate.more()
    await estate.prepare(1_000)
    async with held(node, "retained"):
        await publisher.send(publish("r", b"x", qos=1, retain=True, packet_id=1))
        await wanted(node, "retained")
        node.adopter.adopt(estate, 1_000)
        node.broker.after_batch()
        # It is read behind the group that is being written, and before that in which it comes.
        await until(lambda: len(node.store._groups.fetches))
    await estate.kept()
    assert [int((await peer.message()).payload) for _ in range(MESSAGES)] == [*range(MESSAGES)]
    assert await peer.fence() == []
    await estate.close()
