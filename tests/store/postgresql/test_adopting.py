"""Sessions that come out of the schema of a dead node: wherever the one that takes them dies, each is in one schema."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.restore import admit
from broker.core.principal import Principal
from broker.store import StoreError
from broker.store.adoptions import Abandoned
from broker.store.groups.group import Adopted
from broker.store.postgresql import adopting, writing
from tests.e2e import wire
from tests.e2e.wire import publish
from tests.store.postgresql.nodes import MESH, Start, every, fill, hold
from tests.store.postgresql.place import Proxy, ask, count, make
from tests.store.sqlite.place import Listener
from tests.support.waiting import until


async def test_everything_that_a_session_has_comes(start: Start) -> None:
    """And nothing of it is left there, but that what it held is gone."""
    dead, node = await start(), await start()
    flight = await fill(dead)
    await dead.die()
    await dead.expire()
    await node.adopt(dead)
    assert sorted(node.named) == ["away", "flight", "publisher", "too"]
    for table in ("session", "subscription", "delivery", "message", "received", "gone_session", "read_back"):
        assert await count(dead.name, table) == 0, table
    assert not await node.sees(dead)
    await hold(node, *flight)


@pytest.mark.parametrize("copied", [False, True])
async def test_pages_one_behind_the_other_go_by_one_statement(
    start: Start, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """However many there are, whether they are copied before or not; what waits in memory between them keeps its
    place, also for a broker that is started anew."""
    moved: list[Adopted] = []

    async def move(connection: Any, adopted: Adopted, lease: float, begun: bool) -> None:
        moved.append(adopted)
        assert begun is copied
        await adopting.move(connection, adopted, lease, begun)

    monkeypatch.setattr(writing, "move", move)
    dead, node = await start(), await start()
    monkeypatch.setattr(node.adoptions, "_page", 2)
    for client_id in ("c", "d"):
        peer = await dead.peer(client_id)
        await peer.subscribe(("t", 1))
        await peer.disconnect()
    publisher = await dead.peer("publisher")
    for number in range(20):
        await publisher.publish("t", b"%d" % number, qos=1)
    await dead.die()
    await dead.expire()
    # Two of the pages are apart.
    await ask(dead.name, "UPDATE delivery SET size = NULL WHERE number = (SELECT max(number) - 9 FROM delivery)")
    estate = await node.take(dead)
    assert await estate.more()
    assert sum(len(record.pages) for _, record in estate.sessions) == 17
    if copied:
        await estate.prepare(1_000)
    assert len(node.adopter.adopt(estate, 1_000)) == 3
    await node.put(estate)
    await estate.kept()
    await estate.close()
    assert [(len(each.copied), len(each.pages)) for each in moved] == [(3, 0) if copied else (0, 3)]
    assert moved[0].bytes > 0
    await node.die()
    await node.expire()
    node = await start(node.name)
    for client_id in ("c", "d"):
        peer = await node.peer(client_id, present=True)
        assert [int((await peer.message()).payload) for _ in range(20)] == [*range(20)]


async def test_of_a_store_a_node_takes_what_is_its_own(start: Start) -> None:
    """The rest stays there, for the next one at once, and for the node that comes back."""
    dead, node, other = await start(), await start(), await start()
    for client_id in ("a1", "b1", "a2", "b2", "c"):
        await (await dead.peer(client_id)).subscribe((client_id, 1))
    await dead.die()
    await dead.expire()
    estate = await node.take(dead, lambda client_id: client_id.startswith("a"))
    [seen] = [each for each in await other.adoptions.abandoned() if each.name == dead.name]
    assert (seen.begun, seen.held) == (True, True)
    assert await other.adoptions.take(seen, every) is None
    await node.put(estate)
    await estate.kept()
    await estate.close()
    [seen] = [each for each in await other.adoptions.abandoned() if each.name == dead.name]
    assert (seen.begun, seen.held) == (True, False)
    await other.adopt(dead, lambda client_id: client_id.startswith("b"))
    assert (node.named, other.named) == (["a1", "a2"], ["b1", "b2"])
    back = await start(dead.name)
    assert not await other.sees(back)
    await (await back.peer("c", present=True)).fence()
    await back.peer("a1", present=False)
    # Dead again, it is one of which nothing has been taken.
    await back.die()
    await back.expire()
    [seen] = [each for each in await other.adoptions.abandoned() if each.name == dead.name]
    assert (seen.begun, seen.held) == (False, False)


async def test_all_of_it_outlives_the_one_that_took_it(start: Start) -> None:
    dead, node = await start(), await start()
    flight = await fill(dead)
    await dead.die()
    await dead.expire()
    await node.adopt(dead)
    await node.die()
    await node.expire()
    await hold(await start(node.name), *flight)


STATEMENTS = (
    'UPDATE "{dead}".owner', "INSERT INTO delivery SELECT", "WITH gone AS (DELETE FROM", "INSERT INTO session SELECT",
    "INSERT INTO subscription SELECT", 'COPY "delivery"', "INSERT INTO received", "COMMIT",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "arrives"])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_the_one_that_takes_them_dies(
    start: Start, proxy: Proxy, statement: str, arrives: bool, copied: bool
) -> None:
    """At each statement of the transaction, before it gets there or behind it: another one finds each session once."""
    dead = await start()
    node = await start(url=await proxy.start())
    flight = await fill(dead)
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    if arrives:
        proxy.after = statement.format(dead=dead.name).encode()
    else:
        proxy.before = statement.format(dead=dead.name).encode()
    proxy.open = False
    assert await estate.more()
    if copied:
        with suppress(StoreError):
            await estate.prepare(10_000)
    if not proxy.lost:
        # Some sessions in a group of their own, as in one turn.
        node.adopter.adopt(estate, 10_000)
    await until(lambda: proxy.lost)
    await node.die()
    proxy.cut()
    await node.expire()
    await dead.expire()
    third = await start()
    for each in (node, dead):
        if await third.sees(each):
            await third.adopt(each)
    await hold(third, *flight)


async def test_one_that_renews_its_lease_is_left_alone(start: Start) -> None:
    """The database says who is dead; and so it is where it does so between the look and the deed."""
    alive, node = await start(), await start()
    await (await alive.peer("c")).subscribe(("t", 1))
    assert not await node.sees(alive)
    [[epoch]] = await ask(alive.name, "SELECT epoch FROM owner")
    assert await node.adoptions.take(Abandoned(alive.name, "alive", epoch), every) is None
    await alive.expire()
    assert await node.adoptions.take(Abandoned(alive.name, "alive", epoch - 1), every) is None


async def test_of_many_schemas_each_is_looked_at(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them by one statement."""
    monkeypatch.setattr(adopting, "AT_ONCE", 2)
    dead = [await start() for _ in range(4)]
    node = await start()
    for each in dead:
        await (await each.peer("c")).subscribe(("t", 1))
        await each.die()
        await each.expire()
    assert {each.name for each in dead} <= {each.name for each in await node.adoptions.abandoned()}
    for each in dead:
        await node.adopt(each)
        assert not await node.sees(each)


async def test_in_one_turn_about_so_many_come(start: Start) -> None:
    """Sessions, subscriptions and messages."""
    dead, node = await start(memory_messages=100), await start()
    for number in range(6):
        await (await dead.peer(f"c{number}")).subscribe(("t", 1))
    for peer in dead.peers:
        await peer.disconnect()
    await (await dead.peer("publisher")).publish("t", b"1", qos=1)
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    assert await estate.more()
    assert node.adopter.adopt(estate, 7) == ["c0", "c1", "c2"]
    assert node.adopter.adopt(estate, 1) == ["c3"]
    await node.put(estate)
    await estate.kept()
    await estate.close()
    assert node.named == ["c0", "c1", "c2", "c3", "c4", "c5", "publisher"]


async def test_what_the_dead_node_had_received_of_others_comes_along(start: Start) -> None:
    """The packet identifiers of their QoS 2 messages, with which they are not sent again [MQTT-4.3.3-10]."""
    dead, node = await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    record = SessionRecord("$node/from/x", 1_000, 0.0, Principal(client_id="$node/from/x"))
    record.received = [7, 9]
    admit(dead.broker.router, record, dead.broker.loop.time())
    dead.broker.after_batch()
    commits = dead.broker.router.commits
    assert commits is not None
    await until(lambda: not commits.pending())
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    assert estate.received == {"x": [7, 9]}
    assert await estate.more()
    assert [record.client_id for _, record in estate.sessions] == ["c"]
    await estate.close()


async def test_of_two_one_takes_it(start: Start) -> None:
    dead, node, other = await start(), await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    [found] = [each for each in await node.adoptions.abandoned() if each.name == dead.name]
    estates = await asyncio.gather(node.adoptions.take(found, every), other.adoptions.take(found, every))
    [estate] = [each for each in estates if each is not None]
    await estate.close()


@pytest.mark.parametrize("mesh", ["other", ""])
async def test_a_store_of_another_mesh_or_of_none_is_left_alone(start: Start, mesh: str) -> None:
    """Also where the broker was in this one before."""
    dead, node = await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    assert await node.sees(dead)
    after = make(dead.name, mesh=mesh)
    await after.open(asyncio.get_running_loop().time)
    await after.close()
    assert not await node.sees(dead)


@pytest.mark.long
async def test_the_one_that_comes_back_to_life_writes_nothing(start: Start) -> None:
    """It hears so with what it tries to write next, and its broker ends."""
    dead, node = await start(), await start()
    peer = await dead.peer("c")
    await peer.subscribe(("t", 1))
    await dead.expire()
    await node.adopt(dead)
    await peer.send(publish("t", b"late", qos=1, packet_id=1))
    assert "was taken over" in await dead.broker.broken()
    assert [(one.kind, one.code) for one in await peer.closed()] == [(wire.PUBLISH, 0), (wire.DISCONNECT, 0x8B)]
    await dead.broker.stop()
    await (await node.peer("c", present=True)).fence()


@pytest.mark.long
async def test_a_schema_that_was_taken_meanwhile_costs_the_one_that_took_it_its_place(start: Start) -> None:
    """What it had put among its own is not its own: nothing of that is written, and it begins anew."""
    dead, node = await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    await ask(dead.name, "UPDATE owner SET epoch = epoch + 1")
    await node.put(estate)
    with pytest.raises(StoreError, match="was taken by another broker while its sessions came here"):
        await estate.kept()
    assert "while its sessions came here" in await node.broker.broken()
    await node.broker.stop()
    assert (await count(dead.name, "session"), await count(node.name, "session")) == (1, 0)
    await estate.close()


async def test_who_comes_back_waits_until_its_sessions_are_elsewhere(start: Start) -> None:
    dead, node = await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    again = make(dead.name, mesh=MESH, lease_timeout=0.2)
    listener = again.listener
    assert isinstance(listener, Listener)
    opening = asyncio.ensure_future(again.open(asyncio.get_running_loop().time))
    await until(lambda: listener.notices)
    assert "its sessions go to" in listener.notices[0]
    # The lease is renewed meanwhile, as with each group.
    await ask(dead.name, "UPDATE owner SET lease_until = lease_until + interval '1 second'")
    await node.put(estate)
    await estate.kept()
    assert not opening.done()
    await estate.close()
    await opening
    assert (await again.load()).sessions == []
    assert len(listener.notices) == 1
    await again.close()
