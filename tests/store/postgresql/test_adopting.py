"""Sessions that come out of the schema of a dead node: wherever the one that takes them dies, each is in one schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from broker.mesh.ownership.adopting import Adopter
from broker.settings import Settings
from broker.store import StoreError
from broker.store.adoptions import Abandoned, Adoptions, Estate
from broker.store.postgresql import PostgresStore
from canopy import Broker
from tests.e2e import wire
from tests.e2e.wire import Peer, ack, publish
from tests.store.postgresql.place import Proxy, ask, count, kill, make
from tests.store.sqlite.place import Listener
from tests.support import postgresql
from tests.support.waiting import until

MESH = "one"
MESSAGES = 9


class Node:
    """A broker on a schema, in this process."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.store: PostgresStore = make(
            name, **{"mesh": MESH, "lease_timeout": 3600.0, "memory_messages": 3, **options}
        )
        self.broker = Broker(
            Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "sys": {"interval": 0.0}}), store=self.store
        )
        self.peers: list[Peer] = []
        self.named: list[str] = []

    async def start(self) -> None:
        await self.broker.start()
        await self.adoptions.join(self.name)
        loop = asyncio.get_running_loop()
        self.adopter = Adopter(
            self.broker.router, lambda _: False, self.named.extend, loop.time, structlog.get_logger("tests")
        )

    @property
    def adoptions(self) -> Adoptions:
        found = self.store.adoptions
        assert found is not None
        return found

    async def peer(self, client_id: str, present: bool | None = None, **more: Any) -> Peer:
        """A client whose session stays."""
        expiry = ((wire.SESSION_EXPIRY, 3600),)
        peer = await Peer.join(self.broker.ports[0], client_id, clean=False, props=(*expiry, *more.pop("props", ())))
        self.peers.append(peer)
        assert present is None or peer.connack.session_present is present
        return peer

    async def die(self) -> None:
        """As if its process had died."""
        if self.store._task is not None:
            await kill(self.store)
        for peer in self.peers:
            peer.abort()
        await self.broker.stop()

    async def expire(self) -> None:
        """Its lease is over."""
        await ask(self.name, "UPDATE owner SET lease_until = '-infinity'")

    async def sees(self, other: Node) -> bool:
        """Whether another one's store is there to be taken."""
        return other.name in {each.name for each in await self.adoptions.abandoned()}

    async def take(self, other: Node) -> Estate:
        """Hold the schema of another one that is dead."""
        [found] = [each for each in await self.adoptions.abandoned() if each.name == other.name]
        estate = await self.adoptions.take(found)
        assert estate is not None
        return estate

    def put(self, estate: Estate) -> None:
        """All of it."""
        while estate.sessions:
            self.adopter.adopt(estate, 1)
        self.broker.after_batch()

    async def adopt(self, other: Node) -> None:
        """All that another one had."""
        estate = await self.take(other)
        self.put(estate)
        await estate.kept()
        await estate.close()


Start = Callable[..., Awaitable[Node]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Nodes that run."""
    postgresql.shared()
    async with AsyncExitStack() as stack:

        async def begin(name: str = "", **options: Any) -> Node:
            node = Node(name or postgresql.new_name(), **options)
            stack.push_async_callback(node.die)
            await node.start()
            return node

        yield begin


async def fill(node: Node) -> tuple[int, int]:
    """Sessions with all that one can have; the packet identifiers of what is in flight, and of what was released."""
    for client_id in ("away", "too"):
        peer = await node.peer(client_id)
        await peer.subscribe(("t/#", 2))
        await peer.disconnect()
    flight = await node.peer("flight")
    await flight.subscribe(("f", 2), ("r", 2))
    publisher = await node.peer("publisher")
    for number in range(MESSAGES):
        await publisher.publish("t/1", b"%d" % number, qos=2)
    await publisher.publish("r", b"had", qos=2)
    had = await flight.expect(wire.PUBLISH)
    assert had.packet_id
    await flight.send(ack(wire.PUBREC, had.packet_id))
    await flight.expect(wire.PUBREL)
    await publisher.publish("f", b"in flight", qos=2)
    sent = await flight.expect(wire.PUBLISH)
    assert sent.packet_id
    await publisher.send(publish("t/2", b"last", qos=2, packet_id=77))
    await publisher.expect(wire.PUBREC)
    await node.store.flush()
    assert await count(node.name, "delivery WHERE size IS NOT NULL") > 2
    return sent.packet_id, had.packet_id


async def hold(node: Node, sent: int, had: int) -> None:
    """All of it is here, once."""
    publisher = await node.peer("publisher", present=True)
    await publisher.send(publish("t/2", b"last", qos=2, packet_id=77, dup=True))
    assert (await publisher.expect(wire.PUBREC)).packet_id == 77
    for client_id in ("away", "too"):
        peer = await node.peer(client_id, present=True)
        found = [(await peer.message()).payload for _ in range(MESSAGES + 1)]
        assert found == [*(b"%d" % number for number in range(MESSAGES)), b"last"]
        assert await peer.fence() == []
    flight = await node.peer("flight", present=True)
    kinds = {one.kind: one for one in [await flight.recv(), await flight.recv()]}
    assert kinds[wire.PUBREL].packet_id == had
    assert (kinds[wire.PUBLISH].packet_id, kinds[wire.PUBLISH].dup) == (sent, True)
    assert await flight.fence() == []


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
@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "arrives"])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_the_one_that_takes_them_dies(start: Start, proxy: Proxy, statement: str, arrives: bool) -> None:
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
    assert await node.adoptions.take(Abandoned(alive.name, "alive", epoch)) is None
    await alive.expire()
    assert await node.adoptions.take(Abandoned(alive.name, "alive", epoch - 1)) is None


async def test_of_two_one_takes_it(start: Start) -> None:
    dead, node, other = await start(), await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    [found] = [each for each in await node.adoptions.abandoned() if each.name == dead.name]
    estates = await asyncio.gather(node.adoptions.take(found), other.adoptions.take(found))
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
    node.put(estate)
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
    node.put(estate)
    await estate.kept()
    assert not opening.done()
    await estate.close()
    await opening
    assert (await again.load()).sessions == []
    assert len(listener.notices) == 1
    await again.close()
