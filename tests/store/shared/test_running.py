"""Nodes that run: what is published at one comes to the client at another, whatever becomes of links and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from canopy_mqtt.store.shared.calls import (
    ACKNOWLEDGED,
    Ask,
    Change,
    ChangedFilter,
    Content,
    DeliveryKey,
    DueWill,
    General,
    Hints,
    NewWill,
    Noted,
    Owner,
    Page,
    Piece,
    RetainedRow,
    Subscribe,
    Terms,
    Waiting,
    Written,
)
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.node import BYTES, Note, Session
from canopy_mqtt.store.shared.running import RunningNode
from tests.store.postgresql.place import Proxy
from tests.store.shared.nodes import Nodes, declare_dead
from tests.store.shared.place import message
from tests.support.waiting import until


class Equal:
    """Filters without wildcards."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def change(self, changed: ChangedFilter) -> None:
        self.numbers[changed.name] = changed.id

    def match(self, topic: str) -> Collection[int]:
        return [self.numbers[topic]] if topic in self.numbers else []


class Client:
    """A client that takes what comes, and acknowledges it."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.name = place, name
        self.terms = Terms(clean=False, expiry=300, principal="{}")
        self.is_gone = False
        self.session: Session | None = None
        self.got: list[bytes] = []
        self.ends = 0

    @property
    def room(self) -> int:
        return 2

    @property
    def share_room(self) -> int:
        return 2

    def will_of(self, owner: Owner) -> NewWill | None:
        """It has none."""

    def restored(self, session: Session, content: Content) -> None:
        self.session = session
        self.content = content

    def take(self, waiting: Sequence[Waiting]) -> int:
        assert self.session is not None
        self.got += [each.payload for each in waiting]
        for each in waiting:
            key = (self.session.id, None, each.source, each.id, each.slot)
            self.place.node.note(Change(*key, ACKNOWLEDGED))
        return len(waiting)

    def go_on(self) -> None:
        assert self.session is not None
        self.place.node.wants(self.session)

    def end(self) -> None:
        self.ends += 1

    failed = foreign = end


class Place:
    """A node, and its clients."""

    def __init__(self, cluster: list[Place], database: SharedDatabase) -> None:
        self.cluster = cluster
        self.is_linked = True
        self.others: list[str] = []
        """The nodes to which it needs links."""
        self.told: list[Piece] = []
        self.clients: list[Client] = []
        self.running = RunningNode(
            database, filters=Equal, side=self, window=0.002, dead_after=60.0,
        )  # fmt: skip
        self.node = self.running.node

    def will_due(self, will: DueWill) -> None:
        raise NotImplementedError

    def tell(self, piece: Piece) -> None:
        self.told.append(piece)
        for other in self.cluster:
            if other is not self and self.is_linked:
                other.node.receive(piece)

    def wrote(self, noted: Sequence[Noted], written: Written) -> Iterable[Callable[[], None]]:
        """Its clients wait for single changes."""
        del noted, written
        return ()

    def keep(self, rows: Iterable[RetainedRow]) -> None:
        """It has no retained messages."""

    def keep_only(self, topics: Collection[str]) -> None:
        """The same."""

    def linked(self, nodes: Collection[str]) -> bool:
        self.others = [*nodes]
        return self.is_linked

    def refused(self, what: Noted, why: str) -> None:
        """The database takes everything."""

    def answered(self) -> None:
        """Nothing is written to a client."""

    def over(self) -> Iterable[Callable[[], None]]:
        for client in self.clients:
            client.end()
        return ()

    def carry(self, notes: Sequence[Note]) -> Iterable[Note]:
        del notes
        return ()

    async def count(self) -> None:
        """Its clients have no limits."""

    def second(self, away: float, *, blocked: bool) -> None:
        """Nothing is shown to an operator."""

    def terms(self, client_id: str, principal: str) -> tuple[int, int]:
        del client_id, principal
        return 0, 0

    def dropped(self, client_id: str, principal: str, count: int, *, messages: bool) -> None:
        """Its clients have no limits."""

    async def connect(self, name: str) -> Client:
        client = Client(self, name)
        self.clients.append(client)
        self.node.claim(name, client)
        await until(lambda: client.session)
        return client

    async def write(self, *what: Any) -> None:
        """Note changes, and wait until the last one is written."""
        done = asyncio.Event()

        def then(written: Written) -> None:
            del written
            done.set()

        for each in what[:-1]:
            self.node.note(each)
        self.node.note(what[-1], then)
        await done.wait()

    async def publish(self, *payloads: bytes) -> None:
        await self.write(*(message(payload, ()) for payload in payloads))


@pytest.fixture
async def places(nodes: Nodes) -> AsyncIterator[list[Place]]:
    made: list[Place] = []
    for name in "ab":
        made.append(Place(made, await nodes.open(name)))
    for each in made:
        each.running.start()
    await until(lambda: all(each.node.joined for each in made))
    yield made
    for each in made:
        await each.running.close()


async def subscriber(place: Place) -> Client:
    client = await place.connect("s")
    assert client.session is not None
    await place.write(Subscribe(*client.session.owner, "a", 1))
    return client


async def test_messages_come_to_the_node_that_has_the_session(places: list[Place]) -> None:
    """In their order, also more than there is room for at once."""
    here, there = places
    client = await subscriber(there)
    sent = [b"%d" % number for number in range(20)]
    await here.publish(*sent)
    await until(lambda: client.got == sent)
    assert any(isinstance(piece, Hints) for piece in here.told)


async def test_a_session_is_where_it_was_claimed_last(places: list[Place]) -> None:
    here, there = places
    before = await subscriber(here)
    client = await there.connect("s")
    await until(lambda: before.ends)
    assert [each.filter for each in client.content.subscriptions] == ["a"]
    await here.publish(b"1")
    await until(lambda: client.got == [b"1"])
    assert before.got == []
    assert client.session is not None
    there.node.leave(client.session)
    await there.publish(b"2")  # behind the acknowledgement
    again = await here.connect("s")
    assert again.session is not None
    assert again.session.present
    await until(lambda: again.got == [b"2"])


async def test_messages_are_read_where_hints_are_missing(places: list[Place]) -> None:
    here, there = places
    client = await subscriber(there)
    for each in places:
        each.is_linked = False
    await here.publish(b"1")
    there.node.second(linked=False)
    await until(lambda: client.got == [b"1"])


async def test_only_links_to_nodes_that_are_alive_are_missed(places: list[Place]) -> None:
    """While one is down for maintenance, nobody reads for its hints."""
    here, there = places
    await until(lambda: here.others == ["b"])
    await there.running.close(leaves=True)
    await until(lambda: here.others == [])


@pytest.mark.parametrize("fails", [False, True])
async def test_all_sessions_are_read_some_at_a_time(places: list[Place], fails: bool) -> None:
    """Also where the database does not answer in between."""
    here, there = places
    here.node.page = 2
    clients = [await here.connect(f"s{number}") for number in range(5)]
    for client in clients:
        assert client.session is not None
        await here.write(Subscribe(*client.session.owner, "a", 1))
        await until(lambda session=client.session: not session.reading)  # type: ignore[misc]
    for each in places:
        each.is_linked = False
    await there.publish(b"1")
    pages: list[int] = []
    read = here.running.database.read

    async def reads(asks: Sequence[Ask], known: Iterable[DeliveryKey] = ()) -> list[Page]:
        pages.append(len(asks))
        if fails and len(pages) == 2:
            raise ConnectionError("lost")
        return await read(asks, known)

    here.running.database.read = reads  # type: ignore[method-assign]
    here.node.receive(General())
    here.node.receive(General())
    await until(lambda: all(client.got == [b"1"] for client in clients))
    assert max(pages) == 2


async def test_a_node_that_was_declared_dead_begins_again(places: list[Place]) -> None:
    """It ends its connections, confirms nothing that it had noted, and serves new ones."""
    here, there = places
    client = await subscriber(here)
    first = here.node.joined
    assert first is not None
    await declare_dead(there.running.database, "a")
    confirmed: list[Written] = []
    here.node.note(message(b"1", ()), confirmed.append)
    await until(lambda: here.node.joined not in (None, first))
    assert client.ends
    assert confirmed == []
    again = await here.connect("s")
    await there.publish(b"2")
    await until(lambda: again.got == [b"2"])


async def test_a_node_gets_over_lost_connections(nodes: Nodes, proxy: Proxy) -> None:
    """Groups, claims and reads that had no answer are asked again."""
    place = Place([], await nodes.open("a", url=await proxy.start()))
    place.running.start()
    await until(lambda: place.node.joined)
    client = await subscriber(place)
    for number in range(5):
        sent = [b"%d" % each for each in range(5 * number, 5 * number + 5)]
        client.got.clear()
        writing = asyncio.ensure_future(place.publish(*sent))
        await asyncio.sleep(0)
        proxy.cut()
        await writing
        await until(lambda sent=sent: client.got == sent)  # type: ignore[misc]
    await place.running.close()


async def test_sessions_are_claimed_and_read_together(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is new takes a call of its own. Of two connections of a client the later one has the session."""
    here, there = places
    names = ["s1", "s2", "s3"]
    for name in names:
        client = await there.connect(name)
        assert client.session is not None
        await there.write(Subscribe(*client.session.owner, "a", 1))
    database = here.running.database
    calls: list[tuple[str, list[Any]]] = []

    def spy(name: str) -> None:
        shipped = getattr(database, name)

        async def call(asked: Sequence[Any], *values: Any, **named: Any) -> Any:
            calls.append((name, [getattr(each, "session", each) for each in asked]))
            return await shipped(asked, *values, **named)

        monkeypatch.setattr(database, name, call)

    spy("claim_free")
    spy("read")
    connecting = [Client(here, name) for name in ("new", *names, "s2")]
    here.clients += connecting
    for client in connecting:
        here.node.claim(client.name, client)
    await until(lambda: all(client.session for client in (connecting[1], connecting[3], connecting[4])))
    assert (calls[0][0], sorted(calls[0][1])) == ("claim_free", names)
    assert (connecting[2].ends, here.node.by_client["s2"].client) == (1, connecting[4])
    await until(lambda: not (here.node.unread or here.node.is_reading))
    calls.clear()
    await there.publish(b"1")
    await until(lambda: all(client.got == [b"1"] for client in (connecting[1], connecting[3], connecting[4])))
    assert sorted(calls[0][1]) == sorted(here.node.by_client[name].id for name in names)


async def test_a_group_has_few_large_messages(nodes: Nodes) -> None:
    """PostgreSQL would refuse what is too much at once, again and again."""
    place = Place([], await nodes.open("a"))
    place.running.start()
    await until(lambda: place.node.joined and place.node.flight is None)
    written: list[Written] = []
    for _ in range(4):
        place.node.note(message(bytes(BYTES // 2), []), written.append)
    place.node.close_group()
    assert len(place.node.flight or ()) == 2
    await until(lambda: len(written) == 4)
    await place.running.close()
