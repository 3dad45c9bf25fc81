"""A node whose process stood still: time has passed for it, and what came meanwhile is not heard yet."""

from __future__ import annotations

import pytest

from broker.mesh.ownership.room import HELD_UP
from tests.mesh.ownership.test_room import payloads, subscriber
from tests.mesh.ownership.world import TIMEOUT, World, quiet


def stand_still(world: World, name: str, seconds: float) -> None:
    """Then its timers are due, before anything else happens there."""
    node = world[name]
    node.network.advance(seconds)
    assert 0.0 < node.room.due <= node.network.now
    node.room.tick()


@pytest.mark.parametrize("steps", range(8))
def test_answers_that_came_meanwhile_are_heard_before_nodes_are_given_up(steps: int) -> None:
    """Wherever the session is on its way to this node: the client has it, and one node does."""
    world = World("a", "b", "c")
    client = subscriber(world)
    client.cut()
    world.settle()
    sent = [world.publish("a", 2) for _ in range(3)]
    world.settle()
    world.connect(client, "b")
    for _ in range(steps):
        for name in world.nodes:
            world.run(name)
        for source, target in world.lanes:
            world.step(source, target)
    if world["b"].room.due:
        stand_still(world, "b", 3 * TIMEOUT)
    world.settle()
    assert client.connack.session_present
    assert payloads(client) == sent
    assert world.holders() == ["b"]
    assert world["b"].room.claims.timed_out == 0
    quiet(world)


def test_nodes_that_have_not_answered_are_waited_for_no_longer_than_that() -> None:
    """Once: a node that stands still again and again does not put off its clients for ever."""
    world = World("a", "b")
    client = world.client()
    world.connect(client, "b")
    world.run("b")
    stand_still(world, "b", 3 * TIMEOUT)
    world.run("b")
    assert client.connack.reason_code == -1
    stand_still(world, "b", 2 * HELD_UP + 0.1)
    world.run("b")
    assert client.connack.reason_code == 0
