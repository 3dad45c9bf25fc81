"""How a node calls a shared store: what it opens, what it refuses, and groups whose answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from canopy_mqtt.store import StoreError
from canopy_mqtt.store.shared import opening
from canopy_mqtt.store.shared.calls import Group, Over
from canopy_mqtt.store.shared.database import Line, SharedDatabase, Unreachable
from canopy_mqtt.store.shared.schema import VERSION
from tests.store.postgresql.place import Proxy, standbys
from tests.store.postgresql.place import opened as opened_alone
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import claim, message, publish, subscribe, waiting
from tests.support import postgresql
from tests.support.postgresql import Server
from tests.support.runs import for_each
from tests.support.waiting import until

SSL_REQUEST = (80877103).to_bytes(4)


async def refused(nodes: Nodes, said: str, node: SharedDatabase | None = None) -> None:
    with pytest.raises(StoreError, match=said) as raised:
        await (node or nodes.make("a")).open()
    assert "\n" not in str(raised.value)


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_nodes_that_start_at_once_make_one_schema(nodes: Nodes) -> None:
    made = await asyncio.gather(*(nodes.open(name) for name in ("a", "b", "c")))
    assert await nodes.ask("SELECT version FROM cluster") == [(VERSION,)]
    assert len({each.node for each in made}) == 3
    assert {(each.name, each.alive) for each in await made[0].nodes()} == {(name, True) for name in "abc"}


async def test_a_node_that_starts_again_is_another_incarnation(nodes: Nodes) -> None:
    first = await nodes.open("a")
    await first.write(Group())
    again = await nodes.open("a")
    assert (again.node, again.incarnation) == (first.node, first.incarnation + 1)
    assert again.grp > first.grp
    with pytest.raises(Over):
        await first.write(Group())
    with pytest.raises(Over):
        await claim(first, "s")
    with pytest.raises(Over):
        await first.beat()
    await again.beat()


async def test_the_store_of_a_single_broker_is_refused(nodes: Nodes) -> None:
    store = await opened_alone(nodes.name)
    await store.close()
    await refused(nodes, r"is the store of a single broker: name another schema \(store.name\)")


async def test_a_single_broker_refuses_a_shared_store(nodes: Nodes) -> None:
    await nodes.open("a")
    with pytest.raises(StoreError, match="has the sessions that the nodes of a cluster share: name another schema"):
        await opened_alone(nodes.name)


async def test_the_store_of_another_cluster_is_refused(nodes: Nodes) -> None:
    first = await nodes.open("a", cluster="plant")
    assert (await nodes.open("b", cluster="plant")).identity == first.identity != ""
    said = (
        r'has the sessions of the cluster "plant", and this is a node of "port" \(cluster.name\): name another schema'
    )
    await refused(nodes, said, nodes.make("c", cluster="port"))


async def test_another_version_is_refused(nodes: Nodes) -> None:
    await nodes.open("a")
    await postgresql.ask(nodes.url, f'UPDATE "{nodes.name}".cluster SET version = 99', then="SELECT 1")
    await refused(nodes, f"is of version 99, and this broker's is {VERSION}: run the Canopy that made it")


async def test_a_node_that_no_living_one_could_be_linked_with_is_refused(nodes: Nodes) -> None:
    """Each says in the database which versions of node links it knows."""
    said: list[Any] = []

    def strangers(*both: Any) -> str:
        said.append(both)
        return "strangers"

    await nodes.open("a", speaks=(1, 2))
    await nodes.open("b", speaks=(2, 3))
    await refused(nodes, "strangers", nodes.make("c", speaks=(3, 4), strangers=strangers))
    assert said == [('the node "a"', [1, 2], (3, 4))]
    await nodes.made[0].leave()
    await nodes.open("c", speaks=(3, 4))


async def test_a_pooler_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 1)
    await refused(nodes, "is reached through a pooler, which keeps no session: name the database itself in store.url")


async def test_a_pooler_that_does_not_take_what_is_asked_for_is_refused(nodes: Nodes) -> None:
    """As PgBouncer answers, unless `ignore_startup_parameters` has all of it. It is not waited for."""
    fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: search_path\0\0"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while size := int.from_bytes(await reader.readexactly(4)):
                if await reader.readexactly(size - 4) != SSL_REQUEST:
                    writer.write(b"E" + (4 + len(fields)).to_bytes(4) + fields)
                    break
                writer.write(b"N")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"postgresql://u@127.0.0.1:{server.sockets[0].getsockname()[1]}/d"
        said = "a pooler in between does not take what a broker asks for: name the database itself in store.url"
        with pytest.raises(StoreError, match=said) as raised:
            await nodes.make("a", url=url).open()
    assert not isinstance(raised.value, Unreachable)


async def test_an_old_server_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OLDEST", 99)
    await refused(nodes, r"is PostgreSQL \d+: a cluster needs 99 or newer")


# -- groups ------------------------------------------------------------------------------------------------------------


async def test_a_group_whose_answer_is_lost_is_written_once(nodes: Nodes, proxy: Proxy) -> None:
    node = await nodes.open("a", url=await proxy.start())
    owner = await subscribe(node, "s", "a")
    proxy.after = b"the payload"
    written = await publish(node, b"the payload", "a")
    assert (proxy.lost, written.again, written.hints) == (1, True, [])
    assert [row.payload for row in await waiting(node, owner.session)] == [b"the payload"]
    assert not (await publish(node, b"another", "a")).again


async def test_a_connection_that_asyncpg_is_confused_about_is_replaced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the server has ended it while it was idle, and nothing was read yet."""
    node = await nodes.open("a")
    errors = iter([asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")])
    fetch = asyncpg.Connection.fetch

    async def confused(self: Any, *words: Any, **options: Any) -> Any:
        for error in errors:
            raise error
        return await fetch(self, *words, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", confused)
    assert not (await node.write(Group())).again
    assert list(errors) == []


async def test_a_group_that_did_not_arrive_is_asked_again(nodes: Nodes, proxy: Proxy) -> None:
    node = await nodes.open("a", url=await proxy.start())
    owner = await subscribe(node, "s", "a")
    proxy.before = b"the payload"
    written = await publish(node, b"the payload", "a")
    assert (proxy.lost, written.again, len(written.hints)) == (1, False, 1)
    assert len(await waiting(node, owner.session)) == 1


@for_each("function", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_a_group_that_is_ended_in_the_database_is_asked_again(nodes: Nodes, function: str) -> None:
    name = function[3:9]
    node = await nodes.open(name)
    owner = await subscribe(node, name, name)
    [known] = [each for each in await node.feed() if each.name == name]
    other = await asyncpg.connect(nodes.url)
    async with other.transaction():
        await other.execute(f'SELECT FROM "{nodes.name}".session FOR UPDATE')
        publishes = [message(b"1", [known.id], session=owner.session, epoch=owner.epoch, qos=2, packet_id=1)]
        group = asyncio.ensure_future(node.write(Group(publishes=publishes)))
        # A backend that waits for the lock.
        end = f"SELECT {function}(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1"
        while not await postgresql.ask(nodes.url, end, f"canopy {nodes.name} {name}"):
            assert not group.done()
        await until(lambda: bool(node.trouble))
        assert node.place in node.trouble
    assert not (await group).again
    assert node.trouble == ""
    assert len(await waiting(node, owner.session)) == 1
    await other.close()


async def test_a_caller_that_is_cancelled_does_not_cancel_its_group(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    [known] = await node.feed()
    group = asyncio.ensure_future(node.write(Group(publishes=[message(b"1", [known.id])])))
    await asyncio.sleep(0)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    await until(lambda: node._writing is not None and node._writing.done())
    assert len(await waiting(node, owner.session)) == 1
    assert not (await node.write(Group())).again


async def test_a_group_that_is_asked_again_names_the_filters_it_was_matched_with(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters that were learned meanwhile have it matched again."""
    node, other = await nodes.open("a"), await nodes.open("b")

    async def away(*values: object) -> None:
        raise OSError(f"away: {values[0]}")

    with monkeypatch.context() as patched:
        patched.setattr(node._groups, "fetch", away)
        group = asyncio.ensure_future(node.write(Group(publishes=[message(b"1", [])])))
        await until(lambda: bool(node.trouble))
        await subscribe(other, "s", "a")
        assert await node.feed()
    assert (await group).rematch
    assert not (await node.write(Group(publishes=[message(b"1", [])]))).rematch


async def test_a_group_is_not_asked_again_in_the_next_incarnation(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    [known] = await node.feed()

    async def away(*values: object) -> None:
        raise OSError(f"away: {values[0]}")

    with monkeypatch.context() as patched:
        patched.setattr(node._groups, "fetch", away)
        group = asyncio.ensure_future(node.write(Group(publishes=[message(b"1", [known.id])])))
        await until(lambda: bool(node.trouble))
        await node.join()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert node.trouble == ""
    assert not (await node.write(Group())).again
    assert await waiting(node, owner.session) == []


async def test_no_more_sessions_are_released_at_once_than_asked_for(nodes: Nodes) -> None:
    made = [await nodes.open(name) for name in "abc"]
    for node in made:
        for number in range(3):
            await claim(node, f"{node.node_name} {number}")
    for peer in await made[2].nodes():
        if peer.name != "c":
            await made[2].declare_dead(peer)
    left = "SELECT count(*) FROM session WHERE node IS NOT NULL"
    for reap, count in ((2, 7), (2, 5), (2, 3), (2, 3)):
        await made[2].write(Group(reap=reap))
        assert await nodes.ask(left) == [(count,)]


# -- standbys ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[Server]:
    """A server that waits for a standby, as soon as it is told to."""
    yield from postgresql.server()


async def test_a_commit_that_is_on_no_standby_is_not_acknowledged(nodes: Nodes, alone: Server) -> None:
    """PostgreSQL answers a cancelled wait as if nothing had happened, with a warning."""
    node = await nodes.open("a", url=alone.url, synchronous="full")
    await standbys(alone, "SET synchronous_standby_names = 'nobody'")
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    group = asyncio.ensure_future(node.write(Group()))
    while not await postgresql.ask(alone.url, cancel):
        assert not group.done()
    await until(lambda: bool(node.trouble))
    assert "canceling wait for synchronous replication" in node.trouble
    assert not group.done()
    await standbys(alone, "RESET synchronous_standby_names")
    assert (await group).again


async def test_a_line_has_one_call_at_a_time(nodes: Nodes) -> None:
    connections = 0

    async def connect() -> object:
        nonlocal connections
        connections += 1
        return await asyncpg.connect(nodes.url)

    line = Line(connect)
    rows = await asyncio.gather(*(line.fetch("SELECT $1::integer", number) for number in range(10)))
    assert [row for [[row]] in rows] == list(range(10))
    with pytest.raises(asyncpg.PostgresError):
        await line.fetch("SELECT 1 / 0")
    assert connections == 1
    await line.fetch("SELECT 1")
    assert connections == 2
    line.drop()
