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
from broker.store.groups.group import Adopted
from broker.store.postgresql import PostgresStore, adopting, pieces, reading, writing
from canopy import Broker
from tests.e2e import wire
from tests.e2e.wire import Peer, ack, publish
from tests.store.postgresql.place import Proxy, ask, count, kill, make
from tests.store.sqlite.place import Listener
from tests.support import postgresql
from tests.support.waiting import until

MESH = "one"
MESSAGES = 9


def every(client_id: str) -> bool:
    """All sessions are to come."""
    return bool(client_id)


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

    async def take(self, other: Node, mine: Callable[[str], bool] = every) -> Estate:
        """Hold the schema of another one that is dead."""
        [found] = [each for each in await self.adoptions.abandoned() if each.name == other.name]
        estate = await self.adoptions.take(found, mine)
        assert estate is not None
        return estate

    async def put(self, estate: Estate) -> None:
        """All of it."""
        while estate.sessions or await estate.more():
            self.adopter.adopt(estate, 1)
        self.broker.after_batch()

    async def adopt(self, other: Node, mine: Callable[[str], bool] = every) -> None:
        """All that another one had that is this one's."""
        estate = await self.take(other, mine)
        await self.put(estate)
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


async def test_it_is_read_a_few_rows_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a statement ends, what is behind it follows."""
    for module, name in ((pieces, "TURN"), (reading, "TURN"), (pieces, "INDEXED")):
        monkeypatch.setattr(module, name, 2)
    dead, node = await start(), await start()
    flight = await fill(dead)
    await dead.die()
    await dead.expire()
    await node.adopt(dead)
    await hold(node, *flight)


async def test_pages_one_behind_the_other_go_by_one_statement(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; what waits in memory between them keeps its place."""
    moved: list[Adopted] = []

    async def move(connection: Any, adopted: Adopted, lease: float) -> None:
        moved.append(adopted)
        await adopting.move(connection, adopted, lease)

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
    assert len(node.adopter.adopt(estate, 1_000)) == 3
    await node.put(estate)
    await estate.kept()
    await estate.close()
    assert [len(each.pages) for each in moved] == [3]
    assert moved[0].bytes > 0
    for client_id in ("c", "d"):
        peer = await node.peer(client_id, present=True)
        assert [int((await peer.message()).payload) for _ in range(20)] == [*range(20)]


async def test_of_a_session_with_very_much_the_others_cost_nothing(start: Start) -> None:
    """Whatever the database knows of its tables, each row is read a few times at most."""
    rows = 10_000
    dead, node = await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    await ask(
        dead.name,
        "INSERT INTO session SELECT id + n, 'c' || n, principal, 3600 FROM session, generate_series(1, 300) AS n",
    )
    await ask(
        dead.name,
        "INSERT INTO delivery (number, session, qos, topic, payload, publish_qos, size)"
        f" SELECT n, id, 1, 't', 'text', 1, 8 FROM session, generate_series(1, {rows}) AS n WHERE client_id = 'c'",
    )
    await ask(dead.name, "ANALYZE")
    estate = await node.take(dead)
    found = [record for _, record in estate.sessions] if await estate.more() else []
    assert len(found) == 301
    assert sum(page.messages for record in found for page in record.pages) == rows
    await estate.close()
    statement = (
        f"SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = '{dead.name}.delivery'::regclass"
    )
    read = 0
    async with asyncio.timeout(60):
        while read < 2 * rows:  # the database tells of it a little later
            [[read]] = await ask(dead.name, statement)
    assert read < 5 * rows


@pytest.mark.parametrize(("rows", "size"), [(4, 1 << 20), (1 << 20, 40)])
async def test_what_is_in_memory_of_a_dead_node_is_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    """In rows and in bytes, payloads of messages that several sessions share among them: one session has more, perhaps.
    Those that follow are read when these have come."""
    monkeypatch.setattr(pieces, "MOST_ROWS", rows)
    monkeypatch.setattr(pieces, "MOST_BYTES", size)
    dead, node = await start(memory_messages=100), await start()
    for number in range(6):
        peer = await dead.peer(f"c{number}")
        await peer.subscribe(("t", 1), ("large", 1) if number == 0 else ("other", 1))
        await peer.disconnect()
    publisher = await dead.peer("publisher")
    await publisher.publish("t", b"x" * 20, qos=1)
    await publisher.publish("large", b"x" * 100, qos=1)
    await publisher.publish("large", b"x", qos=1)
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    assert estate.count == 7
    read: list[list[str]] = []
    while await estate.more():
        read.append([record.client_id for _, record in estate.sessions])
        while estate.sessions:
            node.adopter.adopt(estate, 1)
    expected = [["c0"], ["c1"], ["c2"], ["c3"], ["c4"], ["c5", "publisher"]]
    assert read == (expected if rows == 4 else [["c0"], ["c1", "c2"], ["c3", "c4"], ["c5", "publisher"]])
    await estate.kept()
    await estate.close()
    for number in range(6):
        peer = await node.peer(f"c{number}", present=True)
        found = [(await peer.message()).payload for _ in range(3 if number == 0 else 1)]
        assert [len(each) for each in found] == ([20, 100, 1] if number == 0 else [20])


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


async def test_messages_on_their_way_to_very_many_come_to_those_that_had_them_not(start: Start) -> None:
    dead, node = await start(), await start()
    for client_id in ("had", "not", "neither"):
        await (await dead.peer(client_id)).subscribe(("news" if client_id != "neither" else "other", 1))
    await dead.die()
    await ask(dead.name, "INSERT INTO broadcast VALUES (1000000, 'news', 'text', 1, false, NULL, 'p', NULL);")
    await ask(dead.name, "INSERT INTO passed SELECT 1000000, id FROM session WHERE client_id = 'had'")
    await dead.expire()
    await node.adopt(dead)
    assert await (await node.peer("had", present=True)).fence() == []
    assert await (await node.peer("neither", present=True)).fence() == []
    assert (await (await node.peer("not", present=True)).message()).payload == b"text"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE session SET principal = '{}' WHERE client_id = 'bad'",
        (
            "INSERT INTO delivery (number, session, qos, identifiers, topic, payload, publish_qos)"
            " SELECT 1000000, id, 1, 'none', 't', 'text', 1 FROM session WHERE client_id = 'bad'"
        ),
    ],
)
async def test_rows_that_no_broker_wrote_are_told_of(start: Start, change: str) -> None:
    """The sessions before them have come, and nobody holds the store."""
    dead, node = await start(), await start()
    for client_id in ("good", "bad"):
        await (await dead.peer(client_id)).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    await ask(dead.name, change)
    estate = await node.take(dead)
    with pytest.raises(StoreError, match=f"schema {dead.name} is damaged: restore it from a backup"):
        await node.put(estate)
    await estate.close()
    assert await node.sees(dead)


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
    assert await estate.more()
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
