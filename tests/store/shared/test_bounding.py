"""What waits in a shared store for a session stays within the terms of its client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from canopy_mqtt.core.ledger import FULL_BYTES, FULL_MESSAGES
from canopy_mqtt.core.queues.queue_terms import QueueRule
from canopy_mqtt.store.shared import bounding
from canopy_mqtt.store.shared.bounding import QueueBounds
from canopy_mqtt.store.shared.calls import SENT, Change, Claimed, Group, Hint, Written
from canopy_mqtt.store.shared.database import SharedDatabase
from tests.store.shared.brokers import Broker, client_of, connect, publish, subscribe
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import message, waiting
from tests.store.shared.place import publish as write
from tests.store.shared.place import subscribe as owner_of
from tests.store.shared.test_watching import Clock
from tests.support.waiting import until

EACH = 4_001
"""Bytes of a message of these tests: the payload and the topic."""


class Clients:
    """Clients with terms; what was dropped is noted."""

    def __init__(self, terms: Callable[[str], tuple[int, int]]) -> None:
        self.terms_of = terms
        self.told: list[tuple[str, int, bool]] = []

    def terms(self, client_id: str, principal: str) -> tuple[int, int]:
        assert principal == "{}"
        return self.terms_of(client_id)

    def dropped(self, client_id: str, principal: str, count: int, *, messages: bool) -> None:
        assert principal == "{}"
        self.told.append((client_id, count, messages))


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each message looked at."""
    monkeypatch.setattr(bounding, "MESSAGES", 1)
    monkeypatch.setattr(bounding, "SECONDS", 0.0)


async def fill(node: SharedDatabase, bounds: QueueBounds, count: int, *, size: int = 1) -> None:
    """Publish messages to the filter a in one group, each with its number."""
    await node.feed()
    [[number]] = await node._reads.fetch("SELECT id FROM filter WHERE name = 'a'")
    publishes = [message(b"%0*d" % (size, each), [number]) for each in range(count)]
    bounds.wrote(publishes, await node.write(Group(publishes=publishes)))


async def payloads(nodes: Nodes, owner: Claimed) -> list[int]:
    """Return what is queued or sent, in order."""
    rows = await nodes.ask(
        f"SELECT payload FROM delivery JOIN message USING (id, slot) WHERE session = {owner.session} ORDER BY id"
    )
    return [int(row[0]) for row in rows]


async def test_the_newest_messages_stay(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was sent stays, too; other sessions keep what their own terms allow. Rows go in batches."""
    monkeypatch.setattr(bounding, "DELIVERIES", 80)
    node = await nodes.open("a")
    owner, other = await owner_of(node, "s", "a"), await owner_of(node, "t", "a")
    clients = Clients(lambda client_id: (1_000, 0) if client_id == "s" else (0, 0))
    bounds = QueueBounds(node, clients)
    await fill(node, bounds, 1_201)
    first = (await waiting(node, owner.session))[0]
    await node.write(Group(changes=[Change(owner.session, owner.epoch, 0, first.id, first.slot, SENT, 1)]))
    await bounds.turn(Clock())
    assert await payloads(nodes, owner) == [0, *range(201, 1_201)]
    assert await payloads(nodes, other) == [*range(1_201)]
    assert clients.told == [("s", 80, True), ("s", 80, True), ("s", 40, True)]


async def test_bytes_are_bounded_too(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the newest message, which stays however large it is."""
    small(monkeypatch)
    node = await nodes.open("a")
    owner = await owner_of(node, "s", "a")
    allowed = 3 * EACH
    clients = Clients(lambda _: (10, allowed))
    bounds = QueueBounds(node, clients)
    await fill(node, bounds, 5, size=EACH - 1)
    await bounds.turn(Clock())
    assert await payloads(nodes, owner) == [2, 3, 4]
    allowed = 1
    await fill(node, bounds, 1)
    await bounds.turn(Clock())
    assert await payloads(nodes, owner) == [0]
    assert clients.told == [("s", 2, False), ("s", 3, False)]


async def test_what_is_locked_is_left_to_the_next_turn(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits."""
    small(monkeypatch)
    node = await nodes.open("a")
    owner = await owner_of(node, "s", "a")
    clients = Clients(lambda _: (1, 0))
    bounds = QueueBounds(node, clients)
    await fill(node, bounds, 3)
    row = (await waiting(node, owner.session))[0]
    async with node._reads._lock:
        connection = node._reads._connection
        async with connection.transaction():
            await connection.fetch("SELECT FROM delivery WHERE id = $1 FOR UPDATE", row.id)
            await bounds.turn(Clock())
            assert clients.told == [("s", 1, True)]
    await fill(node, bounds, 1)
    await bounds.turn(Clock())
    assert await payloads(nodes, owner) == [0]
    assert clients.told == [("s", 1, True), ("s", 2, True)]


async def test_a_queue_is_looked_at_once_it_has_grown(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """By some messages, or some bytes; and before the growth of too many sessions is counted."""
    looked: list[list[int]] = []

    class Database:
        async def sweep(self, _: str, sessions: list[int]) -> list[tuple[int, str, str]]:
            looked.append(sorted(sessions))
            return []

    monkeypatch.setattr(bounding, "MESSAGES", 3)
    monkeypatch.setattr(bounding, "BYTES", 100)
    monkeypatch.setattr(bounding, "MANY", 2)
    bounds = QueueBounds(Database(), Clients(lambda _: (0, 0)))  # type: ignore[arg-type]
    clock = Clock()

    async def wrote(size: int, *sessions: int) -> list[list[int]]:
        hints = [Hint(each, 1, 1) for each in sessions]
        bounds.wrote([message(b"x" * size, [1])], Written(False, False, False, False, frozenset(), frozenset(), hints))
        looked.clear()
        clock.now += bounding.SECONDS
        await bounds.turn(clock)
        return [*looked]

    del nodes
    assert await wrote(1, 1, 2) == []
    assert await wrote(1, 1) == []
    assert await wrote(1, 1) == [[1]]
    assert await wrote(100, 1) == [[1]]
    assert await wrote(1, 1) == []
    assert await wrote(1, 3) == [[1, 2, 3]]


async def test_a_session_that_has_ended_is_not_looked_at_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    node = await nodes.open("a")
    await owner_of(node, "s", "a")
    clients = Clients(lambda _: (1, 0))
    bounds = QueueBounds(node, clients)
    await fill(node, bounds, 3)
    await nodes.ask("DELETE FROM session RETURNING 1")
    await bounds.turn(Clock())
    assert (bounds._due, clients.told) == (set(), [])


async def test_a_turn_ends_in_time_and_the_next_one_goes_on(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    monkeypatch.setattr(bounding, "DELIVERIES", 2)
    node = await nodes.open("a")
    owner = await owner_of(node, "s", "a")
    bounds = QueueBounds(node, Clients(lambda _: (1, 0)))
    await fill(node, bounds, 5)
    ticking = Clock(step=1.0)
    await bounds.turn(ticking)
    assert await payloads(nodes, owner) == [2, 3, 4]
    await bounds.turn(ticking)
    assert await payloads(nodes, owner) == [4]


async def test_what_has_moved_to_another_slot_counts(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    node = await nodes.open("a")
    owner = await owner_of(node, "s", "a")
    bounds = QueueBounds(node, Clients(lambda _: (2, 0)))
    await fill(node, bounds, 2)
    await nodes.ask("UPDATE slots SET current = 2 RETURNING 1")
    await nodes.ask("SELECT move_1(0::smallint, 1)")
    await write(node, b"2", "a")
    await write(node, b"3", "a")
    await bounds.turn(Clock())
    assert await payloads(nodes, owner) == [2, 3]


async def test_what_is_dropped_is_counted_for_its_client(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the terms that a rule has for it."""
    small(monkeypatch)
    made: list[Broker] = []
    node = Broker(made, await nodes.open("a"), session_messages=1, rules=(QueueRule("s", session_messages=2),))
    await node.open()
    dropped = node.router.counters.dropped
    client, publisher = await client_of(node, "s"), await client_of(node, "p")
    await subscribe(client, "a")
    client.disconnect()
    for number in range(5):
        await publish(publisher, b"%d" % number)
    await until(lambda: dropped[FULL_MESSAGES] == 3)
    [ledger] = node.router.counters.totals.unreported
    assert (ledger.client_id, ledger.in_all(), dropped[FULL_BYTES]) == ("s", 3, 0)
    await connect(client, node)
    await until(lambda: len(client.inbox) == 2)
    assert client.payloads() == [b"3", b"4"]
    await node.store.close()
