"""Nodes that are stopped in the midst of it, and are still there: whom others wait for, for how long, and who has the
session afterwards."""

from __future__ import annotations

import pytest

from broker.mesh.bus import ProtocolFault
from broker.mesh.ownership.messages import LOST, Abort, Answer, Ask, Part, decode, encode
from broker.mesh.ownership.room import SILENCE
from tests.core.harness import Client
from tests.mesh.ownership.test_room import payloads, subscriber
from tests.mesh.ownership.world import TIMEOUT, World, quiet

NODES = ("a", "b", "c", "d")


def come(world: World, name: str) -> Client:
    """One more connection of the client, at a node."""
    world.elapse(0.001)
    client = world.client()
    world.connect(client, name)
    return client


def stopped_while_giving(world: World) -> tuple[Client, list[bytes]]:
    """The session of a is on its way to b, whose client has it by now, and a is stopped before the rest has gone."""
    subscriber(world, "a").cut()
    world.settle()
    sent = [world.publish("a", 2)]
    world.settle()
    client = come(world, "b")
    world.run("b")
    world.step("b", "a")
    world.run("a")
    world.stop("a")
    world.settle()
    world.advance(TIMEOUT)
    world.advance(TIMEOUT)
    assert client.connack.reason_code == 0
    assert world["a"].room.giver.givings
    assert world["b"].room.taker.coming
    return client, sent


def in_the_end(world: World, owner: str) -> None:
    """All go on: one node has the session, and nothing is under way."""
    for name in world.nodes:
        world.go_on(name)
    world.settle()
    assert world.holders() == world.owners() == [owner]
    world.advance(SILENCE * TIMEOUT)
    assert world.holders() == world.owners() == [owner]
    for node in world.nodes.values():
        assert not node.room.taker.given_up
    quiet(world)


def test_who_claims_a_session_that_is_still_coming_ends_its_connection_at_once() -> None:
    """[MQTT-3.1.4-3] Though the node that gives it is stopped, and nobody knows for how long."""
    world = World(*NODES)
    first, sent = stopped_while_giving(world)
    second = come(world, "c")
    world.settle()
    assert first.end == 0x8E
    assert len(world.owners()) <= 1
    world.advance(TIMEOUT)
    assert second.connack.reason_code == 0
    assert world.owners() == ["c"]
    in_the_end(world, "c")
    assert payloads(second) == sent


def test_a_move_that_stands_still_ends_for_whoever_waits() -> None:
    """After twice the time that a node is waited for; at once if that is over when somebody begins to wait."""
    world = World(*NODES)
    stopped_while_giving(world)
    world.advance(SILENCE * TIMEOUT)
    assert world["b"].room.taker.coming
    world.elapse(0.001)
    second = come(world, "c")
    world.settle()
    assert not world["b"].room.taker.coming
    assert world["b"].room.taker.given_up
    world.advance(2 * TIMEOUT)
    assert second.connack.session_present
    assert world.owners() == ["c"]
    in_the_end(world, "c")


def test_who_comes_to_the_node_that_gives_has_its_session_though_the_other_one_is_stopped() -> None:
    """It stays where it is: no message is lost, or comes twice."""
    world = World(*NODES)
    client = subscriber(world, "a")
    client.cut()
    world.settle()
    sent = [world.publish("a", 2)]
    world.settle()
    come(world, "b")
    world.run("b")
    world.step("b", "a")
    world.run("a")
    world.stop("b")
    second = come(world, "a")
    world.settle()
    assert second.connack.reason_code == -1
    world.advance(SILENCE * TIMEOUT)
    assert second.connack.session_present
    assert not world["a"].room.giver.givings
    in_the_end(world, "a")
    assert payloads(second) == sent


def test_the_later_claim_goes_on_where_an_earlier_one_is_granted_meanwhile() -> None:
    """b has been given up waiting for d, whose claim is later, and has a session: d gets it, and b nothing."""
    world = World(*NODES)
    first = come(world, "b")
    second = come(world, "c")
    world.stop("d")
    world.settle()
    third = come(world, "b")
    world.settle()
    world.advance(TIMEOUT)
    world.advance(TIMEOUT)
    assert first.connack.reason_code == 0x88
    assert len(world.owners()) <= 1
    in_the_end(world, "b")
    assert (second.closed, third.end) == (True, -2)


def test_a_session_goes_to_a_later_claim_only() -> None:
    """One that was made without knowledge of the last: its client is refused, and what it has is found."""
    world = World("a", "b", apart=True)
    client = come(world, "a")
    world.settle()
    world.join("a", "b")
    world.settle()
    world["b"].room.say("a", Ask("x", None, False, False, 1))
    world.run("b")
    world.step("b", "a")
    world.run("a")
    answers = [each for _, data in world.lanes["a", "b"] for each in decode(data)]
    assert Answer("x", 1, LOST) in answers
    assert (client.end, world.owners()) == (-2, ["a"])


def test_a_session_of_a_claim_that_is_refused_too_late_is_compared() -> None:
    """It was granted because the other node had not answered in time; both have a session until that does."""
    world = World("a", "b", "c", apart=True)
    world.join("b", "c")
    world.settle()
    world.stop("c")
    earlier = come(world, "b")
    later = come(world, "a")
    world.join("a", "b")
    world.stop("a")
    world.advance(TIMEOUT)
    world.advance(TIMEOUT)
    assert world.owners() == ["a", "b"]
    in_the_end(world, "a")
    assert (earlier.end, later.end) == (0x8E, -2)


def test_what_comes_of_a_move_that_was_given_up_is_dropped_until_the_other_node_has_heard_of_it() -> None:
    world = World(*NODES)
    stopped_while_giving(world)
    world.advance(SILENCE * TIMEOUT)
    come(world, "c")
    world.settle()
    room = world["b"].room
    [((node, client_id), time)] = room.taker.given_up.items()
    assert (node, client_id) == ("a", "x")
    for late in (Part("x", time, False, b"late"), Part("x", time, True, b"late")):
        room.received("a", encode([late]))
    room.received("a", encode([Abort("x", time, True)]))
    assert not room.taker.given_up
    with pytest.raises(ProtocolFault):
        room.received("a", encode([Part("x", time, True, b"late")]))


def test_claims_that_wait_for_other_sessions_do_not_hold_up_one_another() -> None:
    """Parts of a large session come again and again; who waits for a node that is stopped waits as long as ever."""
    world = World("a", "b", "c")
    large = subscriber(world, "a", "large")
    large.cut()
    world.settle()
    for number in range(3_000):
        world._route(world["a"], b"1:%d:" % number + 1_000 * b".", 1, "p")
    world.settle()
    big = world.client("large")
    world.connect(big, "b")
    for _ in range(4):
        world.run("b")
        world.step("b", "a")
        world.run("a")
    assert world["a"].room.giver.givings
    world.stop("c")
    small = world.client("small")
    world.connect(small, "b")
    world.run("b")
    began = world["b"].network.now
    while small.connack.reason_code == -1:
        assert world["b"].network.now < began + 1.5 * TIMEOUT
        world.elapse(TIMEOUT / 10)
        world.step("a", "b")
        world.run("b")
        world.step("b", "a")
        world.run("a")
