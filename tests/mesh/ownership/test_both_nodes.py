"""What comes to the old node of a session and to the new one, while it moves."""

from __future__ import annotations

import pytest

from tests.mesh.ownership.test_room import payloads, subscriber
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
