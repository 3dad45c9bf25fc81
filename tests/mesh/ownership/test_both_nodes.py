"""What comes to the old node of a session and to the new one, while it moves."""

from __future__ import annotations

import pytest

from tests.mesh.ownership.test_room import move, payloads, subscriber
from tests.mesh.ownership.world import World


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_what_comes_to_the_old_node_and_to_the_new_one_comes_once(at: str) -> None:
    """Whoever it is published with: the old node, the new one, or another."""
    world = World("a", "b", "c")
    client = subscriber(world)
    client.cut()
    world.settle()
    world.connect(client, "b")
    sent: list[bytes] = []
    for _ in range(40):
        for name in world.nodes:
            world.run(name)
        for source, target in world.lanes:
            world.step(source, target)
            world.flow(source, target)
        sent.append(world.publish(at, 2))
    world.settle()
    assert client.connack.session_present
    assert payloads(client) == sent


@pytest.mark.parametrize("to", ["a", "b"], ids=["the old node", "the new node"])
@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_what_is_on_its_way_for_longer_than_the_session_comes_once(at: str, to: str) -> None:
    """It is late at the old node, or at the new one: there the rest waits for it."""
    world = World("a", "b", "c")
    client = subscriber(world)
    client.cut()
    world.settle()
    world.connect(client, "b")
    sent: list[bytes] = []
    for _ in range(100):
        for name in world.nodes:
            world.run(name)
        for source, target in world.lanes:
            world.step(source, target)
            if (source, target) != (at, to):
                world.flow(source, target)
        if len(sent) < 20:
            sent.append(world.publish(at, 2))
    world.settle()
    assert client.connack.session_present
    assert sorted(payloads(client)) == sorted(sent)


def test_what_waits_in_two_copies_of_a_session_comes_once_when_they_meet() -> None:
    """The nodes lose each other, again and again, when the session is there and its old node does not know it yet."""
    world = World("a", "b")
    client = subscriber(world)
    client.cut()
    world.settle()
    sent = [world.publish("a", qos) for qos in (1, 2, 1, 2)]
    world.settle()
    for old, new in (("a", "b"), ("b", "a"), ("a", "b")):
        for node in world.nodes.values():
            node.network.now += 0.001
        world.connect(client, new)
        while not world[new].room.taker.moved:
            world.run(old)
            world.run(new)
            world.step(old, new)
            world.step(new, old)
            world.flow(old, new)
            world.flow(new, old)
        # What its client is sent does not get there.
        client.cut()
        world.cut("a", "b")
        assert world.holders() == ["a", "b"]
        world.settle()
        world.join("a", "b")
        world.settle()
        assert len(world.holders()) == 1
        world[new].room.taker.moved = 0
    move(world, client, "a")
    assert sorted(payloads(client)) == sorted(sent)
