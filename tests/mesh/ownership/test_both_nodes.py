"""What comes to the old node of a session and to the new one, while it moves."""

from __future__ import annotations

import pytest

from broker.core.codec.packets import PUBREL, Publish
from broker.core.queues.delivery import RELEASED
from tests.mesh.ownership.test_room import move, payloads, subscriber
from tests.mesh.ownership.world import TOPIC, World, quiet


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


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_that_goes_to_a_node_which_does_not_know_yet_is_heard_in_order(qos: int) -> None:
    """[MQTT-4.6.0-6] First at c, whose messages come to both nodes; d has not heard of the new one."""
    world = World("a", "b", "c", "d")
    client = subscriber(world)
    client.cut()
    world.settle()
    world.connect(client, "b")

    def go_on() -> None:
        for _ in range(40):
            for name in world.nodes:
                world.run(name)
            for lane in world.lanes:
                if lane != ("b", "d") or not world["b"].wants:
                    world.step(*lane)
                world.flow(*lane)

    go_on()
    assert world["c"].wanted == {"a", "b"}
    assert world["d"].wanted == {"a"}
    sent = []
    for name in ("c", "d", "d", "c"):
        sent.append(world.publish(name, qos))
        go_on()
    world.settle()
    assert client.connack.session_present
    assert payloads(client) == sent
    quiet(world)


@pytest.mark.parametrize("to", ["a", "b"], ids=["the old node", "the new node"])
def test_what_is_on_its_way_to_very_many_comes_once(to: str) -> None:
    """A node has it when the session has not: it is delivered in turns."""
    world = World("a", "b", "c")
    client = subscriber(world)
    other = world.client("other")
    world.connect(other, to)
    world.settle()
    other.subscribe(TOPIC, qos=2)
    client.cut()
    world.settle()
    world[to].network.router.fanout.at_once = 1
    world.connect(client, "b")
    room = world["a"].room
    sent = [world.publish("c", 2)] if to == "a" else []
    while not room.giver.givings or not room.giver.givings["x"].rest:
        for name in world.nodes:
            world.run(name)
        for lane in world.lanes:
            world.step(*lane)
            if lane != ("c", "a"):
                world.flow(*lane)
    if to == "b":
        sent.append(world.publish("c", 2))
    # Each node acts at once on what the others say; what it delivers in turns has its turn afterwards.
    for _ in range(40):
        for name, node in world.nodes.items():
            if name != to:
                world.run(name)
            else:
                for _ in range(len(node.calls)):
                    node.calls.popleft()()
        for lane in world.lanes:
            world.step(*lane)
            world.flow(*lane)
    assert world[to].network.router.fanout.broadcasting
    world.settle()
    assert client.connack.session_present
    assert payloads(client) == sent
    assert payloads(other) == sent
    quiet(world)


@pytest.mark.parametrize("answers", [True, False], ids=["", "not acknowledged"])
def test_what_came_to_the_old_node_before_and_to_the_new_one_after_the_session_comes_once(answers: bool) -> None:
    """[MQTT-4.3.3-10] A third node's messages take longer to the new node, whose clients want the same."""
    world = World("a", "b", "c")
    client = subscriber(world)
    other = world.client("other")
    world.connect(other, "b")
    world.settle()
    assert other.subscribe(TOPIC, qos=2) == [2]
    world.settle()
    client.answering = answers
    sent = [world.publish("c", 2) for _ in range(3)]
    world.flow("c", "a", 3)
    world.run("a")
    assert payloads(client) == sent
    client.cut()
    client.answering = True
    world.connect(client, "b")
    for _ in range(40):
        for name in world.nodes:
            world.run(name)
        for source, target in world.lanes:
            world.step(source, target)
            if (source, target) != ("c", "b"):
                world.flow(source, target)
    world.settle()
    last = world.publish("c", 2)
    world.settle()
    assert client.connack.session_present
    assert payloads(client) == [last]
    assert payloads(other) == [*sent, last]
    quiet(world)


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


def test_a_packet_identifier_that_the_client_may_know_is_released_before_it_is_used_again() -> None:
    """[MQTT-4.3.3-7] It would take another message for the one of QoS 2 that it had of the session that ended."""
    world = World("a", "b")
    client = subscriber(world)
    client.answering = False
    world.publish("a", 2)
    world.settle()
    [first] = client.take()
    assert first.packet_id
    client.cut()
    world.cut("a", "b")
    client.answering = True
    move(world, client, "b")
    assert client.subscribe(TOPIC, qos=2) == [2]
    world.join("a", "b")
    world.settle()
    assert world.holders() == ["b"]
    inflight = world["b"].network.router.sessions["x"].inflight
    assert [(each.packet_id, each.state) for each in inflight.values()] == [(first.packet_id, RELEASED)]
    sent = world.publish("b", 2)
    world.settle()
    assert [each.packet_id != first.packet_id for each in client.got(Publish)] == [True]
    client.cut()
    move(world, client, "b")
    assert [ack.packet_id for ack in client.acks(PUBREL)] == [first.packet_id]
    assert not inflight.values()
    assert payloads(client) == [sent]
    quiet(world)
