"""What is over is removed from a shared store."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import asyncpg
import pytest

from canopy_mqtt.store.shared import sweeping
from canopy_mqtt.store.shared.calls import ACKNOWLEDGED, SENT, Change, Group, Release, Subscribe
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.functions import GONE
from canopy_mqtt.store.shared.schema import LONG
from canopy_mqtt.store.shared.sweeping import (
    CLEAN_SECONDS,
    FILTER_SECONDS,
    MAX_PAUSE,
    SLOT_SECONDS,
    TRIM_SECONDS,
    Sweeper,
)
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import claim, publish, subscribe, waiting
from tests.store.shared.test_watching import Clock

LATER: Final = f"UPDATE slots SET changed = changed - {SLOT_SECONDS} * interval '1 second'"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def unused(name: str) -> None:
    """Do nothing with a filter that no session has."""


async def slots(nodes: Nodes) -> tuple[int, set[int]]:
    """Return the current slot, and those that have something."""
    [[current]] = await nodes.ask("SELECT current FROM slots")
    rows = await nodes.ask("SELECT DISTINCT slot FROM delivery UNION SELECT DISTINCT slot FROM message")
    return current, {row[0] for row in rows}


async def change_slots(nodes: Nodes, sweeper: Sweeper, times: int) -> None:
    """Let the time of a slot pass, some times."""
    for _ in range(times):
        await nodes.ask(LATER + " RETURNING 1")
        await sweeper.turn()


async def test_all_that_a_session_has_goes_with_it(nodes: Nodes, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many end at once."""
    monkeypatch.setattr(sweeping, "SESSIONS", 2)
    monkeypatch.setattr(sweeping, "DELIVERIES", 1)
    node = await nodes.open("a")
    ended = [await subscribe(node, f"s{number}", "a") for number in range(5)]
    stays = await subscribe(node, "t", "a")
    for number in range(3):
        await publish(node, b"%d" % number, "a")
    await node.write(Group(releases=[Release(each.session, each.epoch) for each in ended]))
    sweeper = Sweeper(node, clock, unused)
    await sweeper.turn()
    [[before]] = await nodes.ask("SELECT count(*) FROM session")
    await nodes.ask("UPDATE session SET expires_at = now() WHERE expires_at IS NOT NULL RETURNING 1")
    await sweeper.turn()
    assert before == 6
    for table in ("session", "subscription", "delivery"):
        column = "id" if table == "session" else "session"
        assert {row[0] for row in await nodes.ask(f"SELECT {column} FROM {table}")} == {stays.session}, table
    assert await nodes.ask("SELECT * FROM garbage") == []


async def test_filters_of_sessions_that_have_ended_end(nodes: Nodes, clock: Clock) -> None:
    node = await nodes.open("a")
    await subscribe(node, "s", "of both", "of one")
    await subscribe(node, "t", "of both")
    found: list[str] = []
    sweeper = Sweeper(node, clock, found.append)
    clock.now += FILTER_SECONDS
    await sweeper.turn()
    assert found == []
    await claim(node, "s", clean=True)
    for _ in range(2):
        clock.now += FILTER_SECONDS
        await sweeper.turn()
    assert set(found) == {"of one"}


async def test_a_turn_ends_in_time_and_the_next_one_goes_on(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SESSIONS", 1)
    node = await nodes.open("a")
    for number in range(3):
        await claim(node, f"s{number}")
    await nodes.ask("UPDATE session SET expires_at = now() RETURNING 1")
    ticking = Sweeper(node, Clock(step=1.0), unused)
    await ticking.turn()
    assert len(await nodes.ask("SELECT FROM session")) == 2
    await ticking.turn()
    assert len(await nodes.ask("SELECT FROM session")) == 1


async def test_what_waits_is_moved_and_old_slots_are_emptied(
    nodes: Nodes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "DELIVERIES", 2)
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for number in range(5):
        await publish(node, b"%d" % number, "a")
    sweeper = Sweeper(node, clock, unused)
    await sweeper.turn()
    assert await slots(nodes) == (0, {0})
    await change_slots(nodes, sweeper, 1)
    assert await slots(nodes) == (1, {0})
    await change_slots(nodes, sweeper, 1)
    assert await slots(nodes) == (2, {LONG})
    assert await nodes.ask("SELECT pg_relation_size('delivery_0') + pg_relation_size('message_0')") == [(0,)]
    assert [row.payload for row in await waiting(node, owner.session)] == [b"%d" % number for number in range(5)]
    await change_slots(nodes, sweeper, 2)
    assert (await slots(nodes))[0] == 0


async def test_nodes_change_a_slot_once(nodes: Nodes, clock: Clock) -> None:
    sweepers = [Sweeper(await nodes.open(name), clock, unused) for name in "abc"]
    await nodes.ask(LATER + " RETURNING 1")
    for sweeper in sweepers:
        await sweeper.turn()
    assert (await slots(nodes))[0] == 1


async def old_slot(nodes: Nodes) -> SharedDatabase:
    """A node that has a slot to empty."""
    node = await nodes.open("a")
    await subscribe(node, "s", "a")
    await publish(node, b"1", "a")
    await nodes.ask("UPDATE slots SET current = 2 RETURNING 1")
    return node


async def test_a_slot_that_is_used_for_long_is_tried_less_and_less_often(nodes: Nodes, clock: Clock) -> None:
    sweeper = Sweeper(await old_slot(nodes), clock, unused)
    other = await asyncpg.connect(nodes.url, server_settings={"search_path": nodes.name})
    reader = other.transaction(isolation="repeatable_read")
    await reader.start()
    await other.fetch("SELECT FROM delivery")
    tried: list[float] = []
    blocked: set[bool] = set()
    for _ in range(200):
        before = sweeper._empty_at
        await sweeper.turn()
        if sweeper._empty_at != before:
            tried.append(clock.now)
        clock.now += 1.0
        blocked.add(sweeper.blocked)
    assert blocked == {True}
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MAX_PAUSE, MAX_PAUSE]
    await reader.rollback()
    await other.close()
    clock.now += MAX_PAUSE
    await sweeper.turn()
    assert not sweeper.blocked
    assert await slots(nodes) == (2, {LONG})


async def test_a_slot_that_another_node_moves_is_left_to_it(nodes: Nodes, clock: Clock) -> None:
    """Who is not the sweeper does not know how much is left, and would move it under the lock."""
    node = await old_slot(nodes)
    other = await asyncpg.connect(nodes.url, server_settings={"search_path": nodes.name})
    async with other.transaction():
        assert await other.fetchval("SELECT is_sweeper()")
        assert await nodes.ask("SELECT move_1(0::smallint, 10)") == [(None,)]
        await Sweeper(node, clock, unused).turn()
        assert await slots(nodes) == (2, {0})
    await other.close()


async def test_messages_that_nobody_waits_for_any_more_are_deleted(nodes: Nodes, clock: Clock) -> None:
    node = await old_slot(nodes)
    sweeper = Sweeper(node, clock, unused)
    await sweeper.turn()
    [[session, number]] = await nodes.ask("SELECT session, id FROM delivery")
    await node.write(Group(changes=[Change(session, None, 0, number, LONG, ACKNOWLEDGED)]))
    await sweeper.turn()
    assert await slots(nodes) == (2, {LONG})
    clock.now += CLEAN_SECONDS
    await sweeper.turn()
    assert await slots(nodes) == (2, set())


async def test_numbers_of_groups_are_forgotten_but_the_last(nodes: Nodes, clock: Clock) -> None:
    made = [await nodes.open(name) for name in "ab"]
    sweeper = Sweeper(made[0], clock, unused)
    for node in made:
        for _ in range(3):
            await node.write(Group())
    clock.now += TRIM_SECONDS
    await sweeper.turn()
    rows = await nodes.ask("SELECT node, grp FROM progress")
    assert set(rows) == {(node.node, node.grp) for node in made}


async def test_what_has_expired_while_it_waited_long_is_deleted(nodes: Nodes, clock: Clock) -> None:
    """But not what was sent."""
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for payload, expiry in ((b"sent", 0), (b"expired", 0), (b"waits", None)):
        await publish(node, payload, "a", qos=2, expiry=expiry)
    sent = (await waiting(node, owner.session))[0]
    await node.write(Group(changes=[Change(owner.session, owner.epoch, 0, sent.id, sent.slot, SENT, 1)]))
    await nodes.ask("UPDATE slots SET current = 1 RETURNING 1")
    await nodes.ask("SELECT move_1(0::smallint, 100)")
    sweeper = Sweeper(node, clock, unused)
    clock.now += CLEAN_SECONDS
    await sweeper.turn()
    left = await nodes.ask("SELECT payload FROM delivery JOIN message USING (id, slot) ORDER BY id")
    assert left == [(b"sent",), (b"waits",)]
    assert len(await nodes.ask("SELECT FROM message WHERE slot = 9")) == 2


async def test_filters_that_are_long_gone_are_forgotten(nodes: Nodes, clock: Clock) -> None:
    """They would be read by each node that begins. The name may come again."""
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "old", "new", "used")
    for name in ("old", "new"):
        gone = Group(subscribes=[Subscribe(owner.session, owner.epoch, name, None)], ends=[name])
        await node.write(gone)
        if name == "old":
            await nodes.ask(f"UPDATE progress SET grp = grp + {GONE} RETURNING 1")
            node.grp += GONE
    sweeper = Sweeper(node, clock, unused)
    clock.now += CLEAN_SECONDS
    await sweeper.turn()
    assert await nodes.ask("SELECT name FROM filter ORDER BY name") == [("new",), ("used",)]
    await node.write(Group(subscribes=[Subscribe(owner.session, owner.epoch, "old", 1)]))
    assert "old" in [each.name for each in await node.feed()]
