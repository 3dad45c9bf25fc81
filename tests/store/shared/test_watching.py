"""Nodes show that they live, and one that does not is declared dead."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from canopy_mqtt.store.shared.calls import Group, Over
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.watching import SECOND, Watch
from tests.store.postgresql.place import Proxy
from tests.store.shared.nodes import Nodes
from tests.support import postgresql
from tests.support.waiting import until

DEAD_AFTER = 5.0


class Clock:
    """A clock that a test moves. `step`: seconds by which it goes on each time it is looked at."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 100.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def watch(node: SharedDatabase, clock: Clock) -> Watch:
    return Watch(node, dead_after=DEAD_AFTER, now=clock)


async def turns(watching: Watch, clock: Clock, seconds: float) -> None:
    """Let a node watch for so long."""
    until_then = clock.now + seconds
    while clock.now < until_then:
        clock.now += SECOND
        await watching.turn()


async def alive(nodes: Nodes) -> set[str]:
    return {name for name, lives in await nodes.ask("SELECT name, alive FROM node") if lives}


async def test_a_node_without_a_sign_of_life_is_declared_dead(nodes: Nodes, clock: Clock) -> None:
    watching = watch(await nodes.open("a"), clock)
    silent = await nodes.open("b")
    await watching.turn()
    await turns(watching, clock, DEAD_AFTER - SECOND)
    assert await alive(nodes) == {"a", "b"}
    await turns(watching, clock, SECOND)
    assert await alive(nodes) == {"a"}
    late = watch(silent, clock)
    clock.now += DEAD_AFTER
    with pytest.raises(Over):
        await late.turn()
    assert late.away == 0.0  # the database has said so


async def test_a_node_that_beats_or_starts_again_stays_alive(nodes: Nodes, clock: Clock) -> None:
    watching = watch(await nodes.open("a"), clock)
    other = await nodes.open("b")
    await watching.turn()
    for again in (other.beat, other.join):
        await turns(watching, clock, DEAD_AFTER - SECOND)
        await again()
    await turns(watching, clock, DEAD_AFTER)
    assert await alive(nodes) == {"a", "b"}


async def test_nobody_is_declared_dead_after_an_outage_of_the_database(
    nodes: Nodes, clock: Clock, proxy: Proxy
) -> None:
    watching = watch(await nodes.open("a", url=await proxy.start()), clock)
    await nodes.open("b")
    await turns(watching, clock, SECOND)
    proxy.open = False
    proxy.cut()
    clock.now += DEAD_AFTER
    assert await watching.turn() is None
    assert watching.away == DEAD_AFTER
    proxy.open = True
    await turns(watching, clock, DEAD_AFTER)
    assert await alive(nodes) == {"a", "b"}
    await turns(watching, clock, SECOND)
    assert await alive(nodes) == {"a"}


async def test_a_node_that_stood_still_declares_nobody_dead(nodes: Nodes, clock: Clock) -> None:
    watching = watch(await nodes.open("a"), clock)
    await nodes.open("b")
    await watching.turn()
    clock.now += 10 * DEAD_AFTER
    await watching.turn()
    assert await alive(nodes) == {"a", "b"}


async def test_a_dead_node_keeps_no_lock(nodes: Nodes, clock: Clock) -> None:
    """What it had begun is ended, and nothing of another node."""
    watched = await nodes.open("a")
    watching = watch(watched, clock)
    stopped = await nodes.open("b")
    open_still = await asyncpg.connect(
        nodes.url, server_settings={"application_name": stopped.backends_of("b"), "search_path": nodes.name}
    )
    await open_still.execute("BEGIN")
    await open_still.execute("SELECT FROM node WHERE name = 'b' FOR NO KEY UPDATE")
    await watching.turn()
    await turns(watching, clock, DEAD_AFTER)
    assert await alive(nodes) == {"a", "b"}
    await until(open_still.is_closed)
    await turns(watching, clock, SECOND)
    assert await alive(nodes) == {"a"}
    assert not (await watched.write(Group())).again


async def test_a_group_that_hangs_is_asked_again_when_the_database_is_back(
    nodes: Nodes, clock: Clock, proxy: Proxy
) -> None:
    node = await nodes.open("a", url=await proxy.start())
    node.timeout = 0.2
    watching = watch(node, clock)
    await node.write(Group())
    proxy.stand_still()
    group = asyncio.ensure_future(node.write(Group()))
    await watching.turn()
    assert node.trouble == ""
    clock.now += DEAD_AFTER
    await watching.turn()
    await until(lambda: bool(node.trouble))
    proxy.go_on()
    await group
    # Each number was written, and once.
    [[last]] = await postgresql.ask(nodes.url, f'SELECT max(grp) FROM "{nodes.name}".progress')
    assert last == node.grp


async def test_a_process_that_was_stopped_reads_what_came_before_it_acts(nodes: Nodes, clock: Clock) -> None:
    watching = watch(await nodes.open("a"), clock)
    clock.now += SECOND
    assert watching.runs()
    clock.now += DEAD_AFTER
    assert (watching.runs(), watching.away >= DEAD_AFTER) == (False, True)
    clock.now += SECOND
    assert watching.runs()
