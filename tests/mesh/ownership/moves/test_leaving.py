"""Sessions whose clients are away, and their node about to go: each is fetched by one of the others."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.mesh.ownership.messages import Offer, encode
from broker.mesh.ownership.moves.leaving import AT_ONCE, chosen
from tests.core.harness import Client
from tests.mesh.ownership.world import TIMEOUT, TOPIC, World


def away(world: World, name: str, client_id: str, expiry: int = 1_000) -> Client:
    """A client that has subscribed at a node, and is away."""
    client = world.client(client_id)
    world.connect(client, name, expiry=expiry)
    world.settle()
    client.subscribe(TOPIC, qos=1)
    client.cut()
    world.settle()
    return client


def hand_over(world: World, name: str) -> int:
    """All that can go goes. What is left to go, when time has passed for those that are not taken."""
    room = world[name].room
    for _ in range(20):
        if room.hand_over() == 0:
            break
        world.settle()
    return room.hand_over()


def test_sessions_of_clients_that_are_away_go() -> None:
    """With what waits in them; those of connected clients stay until these have gone."""
    world = World("a", "b", "c")
    clients = [away(world, "a", f"c{number}") for number in range(20)]
    here = world.client("here")
    world.connect(here, "a")
    world.settle()
    sent = world.publish("b")
    world.settle()
    assert hand_over(world, "a") == 0
    assert [*world["a"].network.router.sessions] == ["here"]
    holders = Counter(holder for client in clients for holder in world.holders(client.client_id))
    assert holders.keys() == {"b", "c"}
    assert holders.total() == 20
    for number, client in enumerate(clients):
        world.connect(client, "abc"[number % 3])
        world.settle()
        assert client.connack.session_present
        assert [each.payload for each in client.take()] == [sent]
    here.cut()
    world["a"].room.stay()
    assert hand_over(world, "a") == 0
    assert "here" not in world["a"].network.router.sessions


def test_sessions_go_to_the_nodes_that_are_to_take_them() -> None:
    world = World("a", "b", "c")
    for number in range(20):
        away(world, "a", f"c{number}")
    world["a"].takers = lambda nodes: [node for node in nodes if node != "b"]  # type: ignore[method-assign]
    assert hand_over(world, "a") == 0
    assert {holder for number in range(20) for holder in world.holders(f"c{number}")} == {"c"}


@pytest.mark.parametrize("comes_to", ["b", "c"])
@pytest.mark.parametrize("steps", range(5))
def test_a_client_that_comes_meanwhile_has_its_session(comes_to: str, steps: int) -> None:
    world = World("a", "b", "c")
    client = away(world, "a", "x")
    sent = world.publish("a")
    world["a"].room.hand_over()
    for _ in range(steps):
        for name in "abc":
            world.run(name)
        for source, target in world.lanes:
            world.step(source, target)
    world.connect(client, comes_to)
    world.settle()
    assert client.connack.reason_code == 0
    assert client.connack.session_present
    assert [each.payload for each in client.take()] == [sent]
    assert (world.owners(), world.holders()) == ([comes_to], [comes_to])


def test_nodes_that_are_about_to_go_take_none() -> None:
    """Whoever offers them is not held up for longer than a node is waited for."""
    world = World("a", "b")
    away(world, "a", "x")
    world["b"].room.hand_over()
    assert world["a"].room.hand_over() == 1
    world.settle()
    assert world["a"].room.hand_over() == 1
    world.advance(2 * TIMEOUT)
    assert world["a"].room.hand_over() == 0
    assert world.holders() == ["a"]
    world["b"].room.stay()
    world["a"].room.stay()
    assert hand_over(world, "a") == 0
    assert world.holders() == ["b"]


def test_without_another_node_all_stay() -> None:
    world = World("a")
    away(world, "a", "x")
    assert world["a"].room.hand_over() == 0
    assert world.holders() == ["a"]


def test_so_many_are_under_way_at_a_time() -> None:
    world = World("a", "b")
    for number in range(AT_ONCE + 10):
        away(world, "a", f"c{number}")
    assert world["a"].room.hand_over() == AT_ONCE + 10
    assert len(world["a"].room.giver.givings) == 0
    world.run("a")
    assert sum(len(data) for _, data in world.lanes["a", "b"]) < AT_ONCE * len(encode([Offer("c000", None, 1 << 50)]))
    world.settle()
    assert world["a"].room.hand_over() == 10
    world.settle()
    assert world["a"].room.hand_over() == 0


def test_a_session_has_its_node() -> None:
    """However many others there are; with one less, only those that were its own move."""
    nodes = ["a", "b", "c", "d"]
    names = [f"client {number}" for number in range(1_000)]
    before = {name: chosen(name, nodes) for name in names}
    assert all(200 < count < 300 for count in Counter(before.values()).values())
    for name in names:
        after = chosen(name, ["d", "c", "b"])
        assert after == before[name] or before[name] == "a"
