"""Very many sessions that go to other nodes at once: how many bytes of them move, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.mesh.ownership.moves.giving import Giving
from broker.mesh.ownership.moves.leaving import AT_ONCE
from broker.mesh.ownership.moves.turns import ITEM
from broker.mesh.ownership.room import SILENCE
from tests.core.harness import Client
from tests.mesh.ownership.test_room import payloads, subscriber
from tests.mesh.ownership.world import TIMEOUT, World, quiet

LONG = 4_000 * b"."
MOST = 100_000


def bounded(*names: str) -> World:
    """Nodes that have no more than `MOST` bytes of sessions move to another, and for which a few messages are many."""
    world = World(*names)
    for node in world.nodes.values():
        node.room.giver.turns.most_bytes = MOST
        node.room.giver.turns.small = len(LONG)
    return world


def away(world: World, count: int, name: str = "a") -> list[Client]:
    """Clients with sessions at a node that are away."""
    clients = [subscriber(world, name, f"c{number}") for number in range(count)]
    for client in clients:
        client.cut()
    world.settle()
    return clients


def publish(world: World, count: int, name: str = "a", size: bytes = LONG) -> list[bytes]:
    """So many messages that wait in all sessions of a node."""
    sent = [b"1:%d:" % number + size for number in range(count)]
    for payload in sent:
        world._route(world[name], payload, 1, "p")
    return sent


def large(world: World, count: int) -> tuple[list[Client], list[bytes]]:
    """Sessions of which a few fill a half."""
    clients = away(world, count)
    return clients, publish(world, 4)


def held(world: World, name: str) -> int:
    """Bytes of messages that a node has of sessions that are not all there."""
    records = [
        record
        for coming in world[name].room.taker.coming.values()
        for record in (coming.reader._record, coming.record)
        if record is not None
    ]
    return sum(len(each.message.payload) for record in records for each in record.deliveries if each.message)


def watch(world: World, look: Callable[[], None]) -> None:
    """Move everything message by message, and look after each."""
    moved = True
    while moved:
        moved = False
        for name in world.nodes:
            moved = world.run(name) or moved
        for source, target in world.lanes:
            moved = world.step(source, target) or moved
            moved = world.flow(source, target) or moved
            look()


def nothing_counts(world: World) -> None:
    """Nothing is left of any move."""
    quiet(world)
    for node in world.nodes.values():
        turns = node.room.giver.turns
        assert (turns.bytes, turns.due, turns._halves) == (0, 0.0, {})


def test_of_300_sessions_that_are_claimed_at_once_some_move_at_a_time() -> None:
    """All come in the end: nothing is lost, and nothing comes twice."""
    world = bounded("a", "b")
    clients, sent = large(world, 300)
    for client in clients:
        world.connect(client, "b")
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, held(world, "b"))
        assert world["a"].room.giver.turns.bytes <= MOST // 2

    watch(world, look)
    assert MOST // 4 < most <= MOST // 2
    for client in clients:
        assert client.connack.session_present
        assert payloads(client) == sent
    nothing_counts(world)


def test_of_the_sessions_of_a_node_that_is_about_to_go_some_move_at_a_time() -> None:
    world = bounded("a", "b")
    clients, sent = large(world, AT_ONCE + 20)
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, held(world, "b"))

    while world["a"].room.hand_over() > 0:
        watch(world, look)
    assert MOST // 4 < most <= MOST // 2
    assert not world["a"].network.router.sessions
    for client in clients:
        world.connect(client, "b")
        world.settle()
        assert payloads(client) == sent
    nothing_counts(world)


def stand_still(world: World, name: str) -> Callable[[], None]:
    """Have a node find out no more what others know of its clients, so that no session comes there: what goes on."""
    taker = world[name].room.taker
    settle = taker._settle
    waiting: list[Callable[[set[str]], None]] = []
    taker._settle = waiting.append

    def go_on() -> None:
        taker._settle = settle
        for call in waiting:
            settle(call)
        world.settle()

    return go_on


def come(world: World, clients: list[Client], name: str) -> None:
    """They connect to a node that stands still: the session of the first moves there, and that of the last waits."""
    for client in clients:
        world.connect(client, name)
        world.settle()
    giver = world["a"].room.giver
    assert [*giver.turns.moving(name)] == [giver.givings[clients[0].client_id]]
    assert giver.turns.waiting(giver.givings[clients[-1].client_id])


def huge(world: World) -> tuple[list[Client], list[bytes]]:
    """Two sessions of which each is larger than a half."""
    clients = away(world, 2)
    return clients, publish(world, 20)


def test_a_session_that_is_larger_than_a_half_moves_alone() -> None:
    world = bounded("a", "b")
    clients, sent = huge(world)
    go_on = stand_still(world, "b")
    come(world, clients, "b")
    go_on()
    assert [payloads(client) for client in clients] == [sent, sent]
    nothing_counts(world)


def test_a_small_session_passes_large_ones() -> None:
    world = bounded("a", "b")
    clients, sent = huge(world)
    small = subscriber(world, "a", "small")
    small.cut()
    world.settle()
    taker = world["b"].room.taker
    settle = taker._settle
    go_on = stand_still(world, "b")
    come(world, clients, "b")
    taker._settle = settle
    world.connect(small, "b")
    world.settle()
    assert small.connack.session_present
    assert clients[1].connack.reason_code == -1
    go_on()
    assert [payloads(client) for client in clients] == [sent, sent]
    nothing_counts(world)


def test_who_waits_for_a_session_whose_turn_has_not_come_goes_on_waiting() -> None:
    """However long that takes, while its node says so."""
    world = bounded("a", "b")
    clients, sent = huge(world)
    go_on = stand_still(world, "b")
    come(world, clients, "b")
    world.advance(10 * TIMEOUT)
    assert clients[1].connack.reason_code == -1
    go_on()
    assert clients[1].connack.session_present
    assert payloads(clients[1]) == sent
    nothing_counts(world)


def test_a_node_that_does_not_say_so_counts_as_having_nothing() -> None:
    world = bounded("a", "b")
    clients, sent = huge(world)
    go_on = stand_still(world, "b")
    come(world, clients, "b")
    world.stop("a")
    world.advance(2 * TIMEOUT)
    assert clients[1].connack.reason_code == 0
    assert not clients[1].connack.session_present
    world.go_on("a")
    go_on()
    assert payloads(clients[1]) == sent
    nothing_counts(world)


@pytest.mark.parametrize("other", ["a", "c"])
def test_a_session_whose_turn_has_not_come_goes_at_once_where_its_client_comes_then(other: str) -> None:
    world = bounded("a", "b", "c")
    clients, sent = huge(world)
    go_on = stand_still(world, "b")
    come(world, clients, "b")
    world.elapse(0.001)
    second = world.client(clients[1].client_id)
    world.connect(second, other)
    world.settle()
    assert second.connack.session_present
    assert payloads(second) == sent
    assert world["a"].room.giver.givings.keys() == {clients[0].client_id}
    go_on()
    assert world.owners(clients[1].client_id) == [other]
    nothing_counts(world)


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_what_a_node_had_under_way_counts_no_more_when_it_is_gone(steps: int) -> None:
    world = bounded("a", "b")
    clients, sent = large(world, 12)
    for client in clients:
        world.connect(client, "b")
    for _ in range(steps):
        for name in "ab":
            world.run(name)
        for lane in world.lanes:
            world.step(*lane)
    turns = world["a"].room.giver.turns
    begun: list[Giving] = []
    begin, turns._begin = turns._begin, begun.append
    world.cut("a", "b")
    world.settle()
    turns._begin = begin
    assert not begun
    nothing_counts(world)
    world.join("a", "b")
    world.settle()
    nothing_counts(world)
    for client in clients:
        # What came before may come again.
        assert {*payloads(client)} == {*sent}


def test_a_session_whose_time_is_over_while_it_waits_is_gone() -> None:
    world = bounded("a", "b")
    clients, _ = huge(world)
    go_on = stand_still(world, "b")
    come(world, clients, "b")
    router = world["a"].network.router
    router.end_session(router.sessions[clients[1].client_id], world["a"].network.now)
    go_on()
    assert clients[1].connack.reason_code == 0
    assert not clients[1].connack.session_present
    nothing_counts(world)


def test_the_node_that_is_about_to_go_waits_for_those_whose_turn_has_not_come() -> None:
    """As long as others move; then as long as a move may stand still."""
    world = bounded("a", "b")
    clients, _ = huge(world)
    go_on = stand_still(world, "b")
    room = world["a"].room
    assert room.hand_over() == 2
    world.settle()
    for _ in range(4):
        world.advance(TIMEOUT)
        # The other node goes on with the first.
        room.giver.took("b", 0)
        assert room.hand_over() == 2
    for _ in range(2 * SILENCE):
        world.advance(TIMEOUT)
    assert room.hand_over() == 0
    go_on()
    assert not world["a"].network.router.sessions
    assert all(world.holders(client.client_id) == ["b"] for client in clients)


def test_users_have_their_turns_one_after_the_other() -> None:
    """Whoever has very many sessions is not before one who has a single one; and none that was fetched is before one
    whose client waits."""
    world = bounded("a", "b")
    many = away(world, 6)
    other = subscriber(world, "a", "other")
    fetched = subscriber(world, "a", "fetched")
    for client in (other, fetched):
        client.cut()
    world.settle()
    publish(world, 20)
    begun: list[str] = []
    giver = world["a"].room.giver
    begin = giver.turns._begin
    giver.turns._begin = lambda giving: (begun.append(giving.client_id), begin(giving))[1]  # type: ignore[func-returns-value]
    sessions = world["a"].network.router.sessions
    sessions["other"].principal.user_name = "somebody"
    world["b"].room.claims.fetch("c5", None, "a", world["a"].room.claims.time_of("c5"))
    world["b"].room.claims.fetch("fetched", None, "a", world["a"].room.claims.time_of("fetched"))
    world.run("b")
    world.step("b", "a")
    for client in many[:5]:
        world.connect(client, "b")
    world.connect(other, "b", user_name="somebody")
    world.settle()
    assert begun == ["c5", "c0", "other", "c1", "c2", "c3", "c4", "fetched"]
    assert other.connack.session_present
    nothing_counts(world)


def test_a_session_counts_for_what_waits_in_it() -> None:
    world = bounded("a", "b")
    [client] = away(world, 1)
    sent = publish(world, 3)
    world.connect(client, "b")
    world.run("b")
    world.step("b", "a")
    size = world["a"].room.giver.turns.bytes
    assert sum(map(len, sent)) + ITEM < size < sum(map(len, sent)) + 3_000
    world.settle()
    nothing_counts(world)
