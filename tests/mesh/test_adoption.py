"""Which node takes which sessions of a dead one, and when: with a clock and a database that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.pages import Page
from broker.core.principal import Principal
from broker.mesh.adoption import AGAIN, IN_TURN, LOOK, Adoption
from broker.mesh.ownership.moves.leaving import chosen
from broker.store import StoreError
from broker.store.adoptions import Abandoned, Adoptions, Estate

DEAD_AFTER = 40.0
READ = 4
PUT = 3


class Schema:
    """What a node kept: `held` by its own broker, or by the one that takes the sessions out."""

    def __init__(self, node: str, sessions: int) -> None:
        self.node = node
        self.epoch = 1
        self.held = True
        self.begun = False
        self.sessions = {number: f"{node}{number}" for number in range(sessions)}

    def free(self) -> None:
        """Its lease is over."""
        self.held = False


class House:
    """Some nodes with one database. What is asked of the database fails as often as `failures` says of it."""

    def __init__(self, *nodes: str) -> None:
        self.now = 100.0
        self.there = set(nodes)
        self.gone_since: dict[str, float] = {}
        self.schemas: list[Schema] = []
        self.failures: dict[str, int] = {}
        self.broke: list[Exception] = []
        self.joined: list[str] = []
        # In which order a node has the others.
        self.order = 1
        # By node: the sessions that it has adopted.
        self.adopted: dict[str, list[str]] = {node: [] for node in nodes}
        # Client identifiers of sessions that are on their way to another node.
        self.giving: set[str] = set()
        # Called with each sleep, and with each session that has come.
        self.meanwhile: Callable[[], None] = lambda: None
        self.nodes = {node: self._node(node) for node in nodes}

    def _node(self, name: str) -> Adoption:
        server = SimpleNamespace(
            loop=SimpleNamespace(time=lambda: self.now, create_task=asyncio.create_task),
            log=structlog.get_logger("tests"),
            faults=SimpleNamespace(broke=lambda _, error: self.broke.append(error)),
            after_batch=lambda: None,
        )
        bus = SimpleNamespace(node=name, nodes=lambda: sorted(self.there - {name})[:: self.order])
        ownership = SimpleNamespace(adopter=SimpleNamespace(adopt=lambda estate, _: self._adopt(name, estate)))
        return Adoption(
            cast(Any, server), cast(Any, bus), cast(Any, ownership), Tables(self), DEAD_AFTER,
            lambda: {node: self.now - since for node, since in self.gone_since.items()}, lambda: None, self._sleep,
        )  # fmt: skip

    def _adopt(self, name: str, estate: Estate) -> list[str]:
        came: list[str] = []
        for number, record in list(estate.sessions):
            if record.client_id not in self.giving and len(came) < PUT:
                estate.sessions.remove((number, record))
                estate.took(number)
                came.append(record.client_id)
        self.adopted[name] += came
        self.meanwhile()
        return came

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()
        await asyncio.sleep(0)

    def fail(self, what: str) -> None:
        """Raise StoreError as often as is wanted."""
        if self.failures.get(what, 0) > 0:
            self.failures[what] -= 1
            raise StoreError(f"{what} failed")

    def dies(self, node: str, sessions: int = 40) -> Schema:
        """A node dies, with so many sessions, and its lease is over."""
        self.there.discard(node)
        self.gone_since[node] = self.now
        schema = Schema(node, sessions)
        schema.free()
        self.schemas.append(schema)
        return schema

    async def look(self, *nodes: str) -> float:
        """Some nodes look, one after another: the pause of the last one."""
        pause = 0.0
        for node in nodes:
            pause = await self.nodes[node].look()
        return pause

    async def pass_by(self, seconds: float, *nodes: str) -> None:
        """Time goes by, while they look now and then."""
        for _ in range(8):
            await self.look(*nodes)
            self.now += seconds / 8
        await self.look(*nodes)

    def share(self, schema: Schema, node: str, *nodes: str) -> list[str]:
        """What falls to a node among these."""
        return [f"{schema.node}{number}" for number in range(40) if chosen(f"{schema.node}{number}", [*nodes]) == node]


class Tables(Adoptions):
    """The database as one node sees it."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def join(self, node: str) -> None:
        self._house.fail("join")
        self._house.joined.append(node)

    async def abandoned(self) -> list[Abandoned]:
        self._house.fail("abandoned")
        return [
            Abandoned(each.node, each.node, each.epoch, each.begun, each.held)
            for each in self._house.schemas
            if each.sessions and (each.begun or not each.held)
        ]

    async def take(self, store: Abandoned, mine: Callable[[str], bool]) -> Estate | None:
        self._house.fail("take")
        [schema] = [each for each in self._house.schemas if each.node == store.name]
        if schema.held or schema.epoch != store.epoch:
            return None
        schema.epoch += 1
        schema.held = schema.begun = True
        return Held(self._house, schema, mine)


class Held(Estate):
    """A schema that a node holds."""

    def __init__(self, house: House, schema: Schema, mine: Callable[[str], bool]) -> None:
        super().__init__(schema.node, house.now)
        self._house = house
        self._schema = schema
        self._mine = mine
        self._behind = -1

    async def more(self) -> bool:
        self._house.fail("more")
        for number, client_id in self._schema.sessions.items():
            if number > self._behind and self._mine(client_id) and len(self.sessions) < READ:
                self.sessions.append((number, SessionRecord(client_id, 60, 0.0, Principal())))
        self._behind = self.sessions[-1][0] if self.sessions else -1
        return bool(self.sessions)

    async def prepare(self, most: int) -> None:
        del most
        self._house.fail("prepare")

    def place(self, number: int, page: Page | None) -> None:
        raise NotImplementedError

    def page(self, number: int, client_id: str, page: Page) -> Page:
        raise NotImplementedError

    def took(self, number: int) -> None:
        del self._schema.sessions[number]

    def end(self) -> None:
        raise NotImplementedError

    async def kept(self) -> None:
        self._house.fail("kept")

    async def close(self) -> None:
        self._schema.free()


@pytest.fixture
def house() -> House:
    return House("a", "b", "c", "d")


async def test_a_node_is_dead_after_its_time(house: House) -> None:
    schema = house.dies("d")
    await house.pass_by(DEAD_AFTER - 0.1, "a", "b", "c")
    assert len(schema.sessions) == 40
    house.now += 0.2
    await house.look("a", "b", "c")
    assert not schema.sessions


async def test_one_that_was_gone_for_long_and_started_anew_meanwhile_has_half_of_it(house: House) -> None:
    """Others did not reach it; it was stopped in order and is started again."""
    schema = house.dies("d")
    house.now += 100 * DEAD_AFTER
    await house.pass_by(DEAD_AFTER / 2 - 0.1, "a")
    assert len(schema.sessions) == 40
    house.now += 0.2
    await house.look("a")
    assert len(schema.sessions) < 40


async def test_one_that_renews_its_lease_or_is_there_is_not_dead(house: House) -> None:
    """And a store of this node's own name is one that it had before."""
    silent, there, own = house.dies("d"), house.dies("c"), house.dies("a")
    silent.held = True
    house.there |= {"c", "a"}
    own.begun = there.begun = True
    await house.pass_by(10 * DEAD_AFTER + AGAIN, "a")
    assert await house.look("a") == LOOK[1]
    assert [(len(each.sessions), each.epoch) for each in (silent, there, own)] == [(40, 1)] * 3


async def test_each_node_takes_its_share_and_at_once_when_it_is_its_turn(house: House) -> None:
    """Rendezvous hashing of the client identifier among the nodes that are there."""
    schema = house.dies("d")
    await house.look("a", "b", "c")
    house.now += DEAD_AFTER
    for node in "cab":
        assert await house.look(node) == IN_TURN
    assert not schema.sessions
    for node in "abc":
        assert house.adopted[node] == house.share(schema, node, "a", "b", "c") != []
    house.now += 1.0
    assert await house.look("a") == LOOK[1]


async def test_while_one_holds_the_store_the_others_wait_for_their_turn(house: House) -> None:
    schema = house.dies("d")
    await house.look("a", "b", "c")
    house.now += DEAD_AFTER
    schema.held = schema.begun = True
    for _ in range(10):
        assert await house.look("a", "b", "c") == IN_TURN
        house.now += AGAIN
    assert len(schema.sessions) == 40
    schema.free()
    await house.look("a")
    assert house.adopted["a"] == house.share(schema, "a", "a", "b", "c")


async def test_a_share_is_looked_for_once_unless_the_nodes_are_others(house: House) -> None:
    """Of a node that dies before it has taken its own, another one takes it at once."""
    schema = house.dies("d")
    await house.look("a", "b", "c")
    house.now += DEAD_AFTER
    await house.look("a", "c")
    epoch = schema.epoch
    house.order = -1
    await house.look("a", "c")
    assert schema.epoch == epoch
    house.there.discard("b")
    await house.look("a", "c")
    assert not schema.sessions
    assert set(house.share(schema, "b", "a", "b", "c")) == {
        *house.adopted["a"][len(house.share(schema, "a", "a", "b", "c")) :],
        *house.adopted["c"][len(house.share(schema, "c", "a", "b", "c")) :],
    }


async def test_one_that_comes_back_and_dies_again_is_shared_again(house: House) -> None:
    schema = house.dies("d")
    await house.look("a")
    house.now += DEAD_AFTER
    await house.look("a")
    schema.held, schema.begun, schema.epoch = True, False, schema.epoch + 1
    await house.look("a")
    schema.sessions = {number: f"d{number}" for number in range(40)}
    schema.free()
    await house.look("a")
    house.now += DEAD_AFTER
    await house.look("a")
    assert house.adopted["a"] == house.share(schema, "a", "a", "b", "c") * 2


async def test_what_nobody_takes_any_node_takes_later(house: House) -> None:
    schema = house.dies("d")
    await house.look("a")
    house.now += DEAD_AFTER
    await house.look("a")
    await house.pass_by(AGAIN - 0.1, "a")
    assert house.adopted["a"] == house.share(schema, "a", "a", "b", "c")
    house.now += 0.2
    await house.look("a")
    assert not schema.sessions


async def test_a_node_that_comes_back_in_the_midst_has_the_rest(house: House) -> None:
    schema = house.dies("d")
    house.there -= {"b", "c"}
    await house.look("a")
    house.now += DEAD_AFTER

    def back() -> None:
        if len(house.adopted["a"]) > 10:
            house.there.add("d")

    house.meanwhile = back
    await house.look("a")
    assert len(house.adopted["a"]) == 40 - len(schema.sessions)
    assert 10 < len(house.adopted["a"]) < 20
    assert not schema.held
    # It dies again.
    house.meanwhile = lambda: None
    house.there.discard("d")
    await house.look("a")
    assert not schema.sessions


async def test_sessions_on_their_way_to_another_node_are_the_last(house: House) -> None:
    """And what is read of them meanwhile does not stay in memory."""
    schema = house.dies("d")
    house.there -= {"b", "c"}
    house.giving = {"d0", "d1", "d2", "d3", "d4", "d20"}
    await house.look("a")
    house.now += DEAD_AFTER
    slept = house.now

    def gone() -> None:
        if house.now >= slept + 3 * LOOK[0]:
            house.giving.clear()

    house.meanwhile = gone
    await house.look("a")
    assert not schema.sessions
    assert sorted(house.adopted["a"][-6:]) == ["d0", "d1", "d2", "d20", "d3", "d4"]
    assert house.now >= slept + 3 * LOOK[0]


async def test_it_is_told_once_where_all_are_on_their_way_to_another_node(house: House) -> None:
    house.dies("d", sessions=3)
    house.there -= {"b", "c"}
    house.giving = {"d0", "d1", "d2"}
    await house.look("a")
    house.now += DEAD_AFTER
    until = house.now + 3 * LOOK[0]
    house.meanwhile = lambda: house.giving.clear() if house.now >= until else None
    with capture_logs() as logs:
        await house.look("a")
    assert [each["event"] for each in logs] == ["node is dead", "sessions adopted"]


async def test_what_cannot_be_written_is_waited_for(house: House) -> None:
    """Nothing else is put among the sessions here until what came before is kept."""
    schema = house.dies("d")
    house.there -= {"b", "c"}
    await house.look("a")
    house.now += DEAD_AFTER
    house.failures["kept"] = 5
    counts: list[int] = []
    house.meanwhile = lambda: counts.append(len(house.adopted["a"]))
    await house.look("a")
    assert not schema.sessions
    assert counts[:7] == [PUT, PUT, PUT, PUT, PUT, PUT, READ]


@pytest.mark.parametrize("what", ["take", "more", "prepare"])
async def test_a_store_that_cannot_be_read_is_told_of_and_tried_again_later(house: House, what: str) -> None:
    """The others are taken meanwhile."""
    schema = house.dies("d")
    house.there -= {"b", "c"}
    await house.look("a")
    house.now += DEAD_AFTER
    house.failures[what] = 1
    with capture_logs() as logs:
        await house.look("a")
    told = [(each["node"], each["reason"]) for each in logs if each["event"] == "sessions not adopted"]
    assert told == [("d", f"{what} failed")]
    assert (len(schema.sessions), schema.held) == (40, False)
    other = house.dies("c")
    other.begun = True
    await house.look("a")
    assert (len(schema.sessions), len(other.sessions)) == (40, 0)
    house.now += AGAIN
    await house.look("a")
    assert not schema.sessions


@pytest.mark.parametrize("what", ["join", "abandoned"])
async def test_a_database_that_cannot_be_asked_is_asked_again(house: House, what: str) -> None:
    schema = house.dies("d")
    house.failures[what] = 2
    for _ in range(4):
        assert await house.look("a") == LOOK[1]
    house.now += DEAD_AFTER
    await house.look("a")
    assert house.adopted["a"] == house.share(schema, "a", "a", "b", "c")
    assert (house.joined, house.broke) == (["a"], [])


async def test_a_fault_ends_nothing(house: House) -> None:
    schema = house.dies("d")
    house.there -= {"b", "c"}
    await house.look("a")
    house.now += DEAD_AFTER

    def breaks() -> None:
        house.meanwhile = lambda: None
        raise RuntimeError("a fault")

    house.meanwhile = breaks
    await house.look("a")
    assert [str(each) for each in house.broke] == ["a fault"]
    assert not schema.held
    left = len(schema.sessions)
    assert await house.look("a") == LOOK[1]
    assert len(schema.sessions) == left
    house.now += AGAIN
    await house.look("a")
    assert not schema.sessions


async def test_it_looks_until_it_is_stopped(house: House) -> None:
    """And lets go of what it holds."""
    schema = house.dies("d")
    house.there -= {"b", "c"}
    begun = asyncio.Event()
    house.meanwhile = lambda: begun.set() if house.adopted["a"] else None
    house.failures["kept"] = 1_000_000
    adoption = house.nodes["a"]
    adoption.start()
    await begun.wait()
    assert schema.held
    await adoption.stop()
    assert (len(house.adopted["a"]), schema.held) == (PUT, False)
