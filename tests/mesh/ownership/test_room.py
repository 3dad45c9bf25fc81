"""One session for a client identifier, whichever node its client comes to."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.codec.packets import V311, Disconnect, Publish, Will
from broker.mesh.bus import ProtocolFault
from broker.mesh.ownership.claims import NOTIFIED
from broker.mesh.ownership.messages import MOST, Answer, Ask, Held, Hello, Message, Noted, Part, decode, encode
from broker.mesh.ownership.moves.giving import WINDOW
from broker.mesh.ownership.moves.records import PART_BYTES
from tests.core.harness import Client, limits, total_ledger
from tests.mesh.ownership.world import TIMEOUT, TOPIC, World, quiet


def subscriber(world: World, name: str = "a", client_id: str = "x", qos: int = 2) -> Client:
    """A client with a session that lasts, which has subscribed."""
    client = world.client(client_id)
    world.connect(client, name)
    world.settle()
    assert client.subscribe(TOPIC, qos=qos) == [qos]
    world.settle()
    return client


def move(world: World, client: Client, name: str, **connect: Any) -> None:
    """The client connects to another node, and everything settles."""
    world.connect(client, name, **connect)
    world.settle()


def payloads(client: Client) -> list[bytes]:
    return [each.payload for each in client.take()]


def test_a_session_follows_its_client() -> None:
    world = World("a", "b", "c")
    client = subscriber(world)
    client.cut()
    world.settle()
    sent = [world.publish(name, qos) for name, qos in (("a", 1), ("b", 2), ("c", 1))]
    world.settle()
    move(world, client, "b")
    assert client.connack.session_present
    assert payloads(client) == sent
    assert (world.owners(), world.holders()) == (["b"], ["b"])
    assert [node.room.giver.moved for node in world.nodes.values()] == [1, 0, 0]
    for node in world.nodes.values():
        assert not node.room.claims.pending
        assert not node.room.taker.coming
        assert total_ledger(node.network.router.sessions.values()) == []
    sent = [world.publish(name) for name in "abc"]
    world.settle()
    assert sorted(payloads(client)) == sent


def test_the_earlier_connection_ends_with_0x8e() -> None:
    """[MQTT-3.1.4-3]"""
    world = World("a", "b")
    first = subscriber(world)
    second = world.client()
    move(world, second, "b")
    assert first.end == 0x8E
    assert second.connack.session_present
    assert world.owners() == ["b"]


def test_a_3_1_1_client_is_disconnected_without_a_word() -> None:
    world = World("a", "b")
    first = world.client(version=V311)
    world.connect(first, "a", expiry=None)
    world.settle()
    move(world, world.client(version=V311), "b", expiry=None)
    assert first.closed
    assert first.got(Disconnect) == []


def test_a_client_that_comes_back_here_asks_nobody() -> None:
    world = World("a", "b", "c")
    client = subscriber(world)
    client.cut()
    world.settle()
    world.connect(client, "a")
    assert client.connack.session_present
    assert not any(world.lanes.values())


def test_a_new_client_waits_for_each_node_once() -> None:
    world = World("a", "b", "c")
    client = world.client()
    world.connect(client, "a")
    world.run("a")
    assert {lane: len(waiting) for lane, waiting in world.lanes.items() if waiting} == {("a", "b"): 1, ("a", "c"): 1}
    assert client.connack.reason_code == -1
    world.settle()
    assert client.connack.reason_code == 0
    assert not client.connack.session_present


def test_the_claims_of_a_turn_go_as_one_message() -> None:
    world = World("a", "b")
    for number in range(20):
        world.connect(world.client(f"c{number}"), "a")
    world.run("a")
    [(_, data)] = world.lanes["a", "b"]
    assert len(decode(data)) == 20
    assert len(data) < 20 * 40


def test_claims_that_a_later_one_has_beaten_do_not_wait_for_each_other() -> None:
    """The client runs from node to node while the first is still being asked: in the end it has its session."""
    world = World("a", "b", "c")
    client = subscriber(world)
    for name in "bca":
        for node in world.nodes.values():
            node.network.now += 0.001
        world.connect(client, name)
        if name == "c":
            world.run("c")
            world.step("c", "a")
    world.settle()
    assert client.connack.reason_code == 0
    assert client.connack.session_present
    assert (world.owners(), world.holders()) == (["a"], ["a"])
    quiet(world)


def test_a_client_without_an_identifier_asks_nobody() -> None:
    """What it is given nobody else has [MQTT-3.1.3-6]."""
    world = World("a", "b")
    client = world.client("")
    world.connect(client, "a", clean=True)
    assert client.connack.reason_code == 0
    assert not any(world.lanes.values())


def test_a_clean_start_ends_the_session_elsewhere() -> None:
    """[MQTT-3.1.2-4]"""
    world = World("a", "b")
    client = subscriber(world)
    client.cut()
    world.publish("a")
    move(world, client, "b", clean=True)
    assert not client.connack.session_present
    assert world.holders() == ["b"]
    assert payloads(client) == []


@pytest.mark.parametrize("clean", [False, True])
def test_the_will_is_published_as_when_the_client_had_come_back_here(clean: bool) -> None:
    """One without a delay at once; a delayed one when the session ends, and else never [MQTT-3.1.3-9]."""
    for delay, published in ((0, True), (60, clean)):
        world = World("a", "b")
        witness = subscriber(world, "a", "witness")
        first = world.client()
        world.connect(first, "a", will=Will(TOPIC, b"gone", 1, delay=delay))
        world.settle()
        move(world, world.client(), "b", clean=clean)
        world.advance(100)
        assert payloads(witness) == [b"gone"] * published


def test_what_is_in_flight_goes_on_where_it_was() -> None:
    """PUBREL, DUP and packet identifiers; what the client has not released [MQTT-4.4.0-1] [MQTT-4.3.3-10]."""
    world = World("a", "b")
    client = subscriber(world)
    client.answering = False
    sent = [world.publish("b", 2), world.publish("b", 1)]
    world.settle()
    assert [each.packet_id for each in client.got(Publish)] == [1, 2]
    client.cut()
    client.answering = True
    move(world, client, "b")
    assert [(each.packet_id, each.dup) for each in client.got(Publish)] == [(1, True), (2, True)]
    assert payloads(client) == [*sent, sent[1]]


def test_another_users_session_stays_where_it_is() -> None:
    """0x85 [MQTT-3.1.3-8]; its connection goes on."""
    world = World("a", "b")
    owner = world.client()
    world.connect(owner, "a", user_name="owner")
    world.settle()
    other = world.client()
    move(world, other, "b", user_name="other")
    assert other.connack.reason_code == 0x85
    assert (owner.end, world.owners()) == (-2, ["a"])


def test_of_two_at_once_the_later_one_wins() -> None:
    """The other client is refused with 0x88, whatever the order of messages."""
    for order in (("a", "b"), ("b", "a")):
        world = World("a", "b", "c")
        clients = {}
        for name in order:
            clients[name] = world.client()
            world.connect(clients[name], name)
            world[order[1]].network.now += 0.001
        world.settle()
        assert [clients[name].connack.reason_code for name in order] == [0x88, 0]
        assert world.owners() == [order[1]]
        assert sum(node.room.claims.lost for node in world.nodes.values()) == 1


def test_a_session_goes_to_the_winner_though_the_loser_got_it_first() -> None:
    world = World("a", "b", "c")
    client = subscriber(world, "c")
    client.cut()
    sent = world.publish("c")
    world.settle()
    first, second = world.client(), world.client()
    world.connect(first, "a")
    world.run("a")
    world.step("a", "c")
    world.run("c")
    world.step("c", "a", 10)
    world["b"].network.now += 1
    world.connect(second, "b")
    world.settle()
    assert first.connack.reason_code == 0x88
    assert second.connack.session_present
    assert payloads(second) == [sent]
    assert world.holders() == ["b"]


def test_a_client_that_goes_while_its_claim_is_under_way_leaves_nothing() -> None:
    world = World("a", "b")
    client = world.client()
    world.connect(client, "a")
    client.cut()
    world.settle()
    assert world.holders() == []
    assert not world["a"].room.claims.pending
    world.advance(2 * TIMEOUT)
    assert world["a"].room.due == 0.0


def test_two_connections_at_one_node_wait_for_one_claim() -> None:
    world = World("a", "b")
    first, second = world.client(), world.client()
    world.connect(first, "a")
    world.connect(second, "a")
    world.settle()
    assert world["a"].room.claims.made == 1
    assert (first.end, second.connack.reason_code) == (0x8E, 0)


def test_who_comes_to_the_old_node_while_the_session_goes_has_it_in_the_end() -> None:
    world = World("a", "b")
    client = subscriber(world)
    client.cut()
    sent = world.publish("b")
    world.settle()
    away = world.client()
    world.connect(away, "b")
    world.run("b")
    world.step("b", "a")
    assert "x" in world["a"].room.giver.givings
    world.connect(client, "a")
    world.settle()
    assert client.connack.session_present
    assert payloads(client) == [sent]
    assert world.owners() == world.holders() == ["a"]


def test_a_node_that_leaves_counts_as_having_nothing() -> None:
    world = World("a", "b", "c")
    client = world.client()
    world.connect(client, "a")
    world.run("a")
    world.step("a", "b")
    world.run("b")
    world.step("b", "a")
    assert client.connack.reason_code == -1
    world.cut("a", "c")
    world.settle()
    assert client.connack.reason_code == 0


def test_very_many_that_waited_for_a_node_open_their_sessions_in_turns() -> None:
    """Other clients are served in between."""
    world = World("a", "b")
    clients = [world.client(f"c{number}") for number in range(3 * NOTIFIED)]
    for client in clients:
        world.connect(client, "a")
    world.run("a")
    world.cut("a", "b")
    let_in: list[int] = []
    while world.run("a"):
        let_in.append(sum(client.connack.reason_code == 0 for client in clients))
    assert let_in[:3] == [NOTIFIED, 2 * NOTIFIED, 3 * NOTIFIED]


def test_a_node_that_does_not_answer_in_time_counts_as_having_nothing() -> None:
    """Its late answer is fenced; a session that comes late comes into the one that is here."""
    world = World("a", "b")
    client = subscriber(world)
    client.cut()
    sent = world.publish("a")
    world.settle()
    world.connect(client, "b")
    world.run("b")
    world["b"].network.now += TIMEOUT
    assert world["b"].room.due <= world["b"].network.now
    world["b"].room.tick()
    world.run("b")
    assert (client.connack.reason_code, client.connack.session_present) == (0, False)
    assert world["b"].room.claims.timed_out == 1
    world.settle()
    assert payloads(client) == [sent]
    assert world.holders() == ["b"]
    assert sorted(client.session.subscriptions) == [TOPIC]


def test_a_session_stays_when_the_node_leaves_that_it_goes_to() -> None:
    world = World("a", "b", "c")
    client = world.client()
    world.connect(client, "a", will=Will(TOPIC, b"gone", 1, delay=60))
    world.settle()
    client.subscribe(TOPIC, qos=1)
    client.cut()
    sent = world.publish("a")
    world.settle()
    other = world.client()
    world.connect(other, "b")
    world.run("b")
    world.step("b", "a")
    world.run("a")
    assert world["a"].room.giver.givings
    world.cut("a", "b")
    assert not world["a"].room.giver.givings
    move(world, client, "a")
    assert client.connack.session_present
    assert payloads(client) == [sent]


@pytest.mark.parametrize("part", ["gates", "barriers", "taker"])
def test_a_fault_of_one_part_keeps_nothing_waiting_for_a_node_that_left(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the session would be on its way there for ever, and its client would wait at each CONNECT."""
    world = World("a", "b")
    client = subscriber(world)
    client.cut()
    world.connect(world.client(), "b")
    world.run("b")
    world.step("b", "a")
    world.run("a")
    room = world["a"].room
    assert room.giver.givings

    def fails(node: str) -> None:
        raise KeyError(node)

    monkeypatch.setattr(getattr(room, part), "left", fails)
    with pytest.raises(KeyError):
        world.cut("a", "b")
    assert not room.giver.givings
    move(world, client, "a")
    assert client.connack.session_present


def split(world: World) -> None:
    """a is on its own."""
    world.cut("a", "b")
    world.cut("a", "c")
    world.settle()


def heal(world: World) -> None:
    world.join("a", "b")
    world.join("a", "c")
    world.settle()


def test_after_a_partition_the_later_session_takes_in_the_other() -> None:
    """Subscriptions of both; what waited at the one comes behind what waited at the other."""
    world = World("a", "b", "c")
    client = subscriber(world)
    client.subscribe("only/a", qos=1)
    client.cut()
    world.settle()
    split(world)
    sent = world.publish("a")
    again = world.client()
    move(world, again, "b")
    assert not again.connack.session_present
    again.subscribe("only/b", qos=1)
    heal(world)
    assert world.holders() == ["b"]
    assert again.end == -2
    assert payloads(again) == [sent]
    assert sorted(again.session.subscriptions) == ["only/a", "only/b", TOPIC]
    assert world["b"].room.taker.merged == 1


def test_after_a_partition_one_of_two_connected_clients_stays() -> None:
    for names in (("a", "b"), ("b", "a")):
        world = World("a", "b", "c", apart=True)
        world.join("b", "c")
        world.settle()
        first, second = world.client(), world.client()
        move(world, first, names[0])
        world.advance(1)
        move(world, second, names[1])
        heal(world)
        assert (first.end, second.end) == (0x8E, -2)
        assert world.owners() == world.holders() == [names[1]]


def test_after_a_partition_a_clean_start_stays_clean() -> None:
    world = World("a", "b", "c")
    client = subscriber(world)
    client.cut()
    split(world)
    world.publish("a")
    again = world.client()
    world.advance(1)
    move(world, again, "b", clean=True)
    heal(world)
    assert payloads(again) == []
    assert world.holders() == ["b"]
    assert list(again.session.subscriptions) == []


def test_after_a_partition_another_users_session_ends() -> None:
    world = World("a", "b", "c", apart=True)
    world.join("b", "c")
    world.settle()
    first, second = world.client(), world.client()
    world.connect(first, "a", user_name="one")
    world.advance(1)
    move(world, second, "b", user_name="two")
    heal(world)
    assert (first.end, second.end) == (0x8E, -2)
    assert world.holders() == ["b"]


def test_many_sessions_are_compared_in_pages() -> None:
    world = World("a", "b", apart=True)
    for number in range(2_500):
        for name in "ab":
            client = world.client(f"c{number}")
            if number % 500 == 0 or name == "a":
                world.connect(client, name)
                client.cut()
    world.join("a", "b")
    world.settle()
    assert len(world["a"].network.router.sessions) + len(world["b"].network.router.sessions) == 2_500


@pytest.mark.parametrize("skew", [(0.0, 3_600.0), (3_600.0, 0.0)])
def test_clocks_that_are_wrong_keep_nobody_out(skew: tuple[float, ...]) -> None:
    world = World("a", "b", skew=skew)
    client = world.client()
    for name in "abababba":
        move(world, client, name)
        assert client.connack.reason_code == 0
        assert client.connack.session_present or name == "a"
        client.cut()
        world.settle()
    assert world.holders() == ["a"]


def test_what_counts_as_lost_is_what_has_no_room() -> None:
    world = World("a", "b", given=limits(session_messages=3))
    client = subscriber(world)
    client.cut()
    sent = [world.publish("a") for _ in range(3)]
    world.settle()
    move(world, client, "b")
    assert payloads(client) == sent
    assert world["b"].room.taker.dropped == 0


@pytest.mark.parametrize(
    "nonsense",
    [
        [Hello(1, 1)],
        [Part("x", 1, True, b"")],
        [Part("x", 1, False, b"\x90")],
        [Part("x", 1, False, b"no part")],
    ],
)
def test_a_node_that_says_what_no_node_says_is_told_apart(nonsense: list[Message]) -> None:
    world = World("a", "b")
    with pytest.raises(ProtocolFault):
        world["a"].room.received("b", encode(nonsense))


DEEP = b"\x91" * 100_000
"""Arrays in arrays, where a decoder passes over what a later version may have added."""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91\x01",
        b"\xc1",
        b"\x91\x93\x02\xa0\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\x93\x0e\xa1x" + DEEP,
        encode([Noted("x")] * (MOST + 1)),
    ],
    ids=["empty", "kind", "type", "field", "length", "deep", "many"],
)
def test_bytes_that_are_no_messages_are_a_fault(data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        decode(data)


def test_late_answers_and_unknown_names_change_nothing() -> None:
    world = World("a", "b")
    room = world["a"].room
    room.received("b", encode([Answer("x", 1, 0), Held([("nobody", 5)])]))
    assert room.claims.fenced == 1
    world.settle()


def test_links_programs_and_nodes_keep_their_sessions() -> None:
    world = World("a", "b")
    client = subscriber(world)
    client.session.own = True
    world["b"].room.say("a", Ask("x", None, False, False, 9))
    world.settle()
    assert client.end == -2


def test_who_claims_while_nodes_meet_asks_the_new_one_too() -> None:
    world = World("a", "b", "c", apart=True)
    world.join("a", "c")
    world.join("b", "c")
    world.settle()
    first, second = world.client(), world.client()
    world.connect(first, "a")
    world["b"].network.now += 1
    world.connect(second, "b")
    world.join("a", "b")
    world.settle()
    assert [first.connack.reason_code, second.connack.reason_code] == [0x88, 0]
    assert world.owners() == ["b"]


def test_what_of_sessions_is_on_the_way_to_a_node_is_bounded() -> None:
    world = World("a", "b")
    client = subscriber(world)
    client.cut()
    world.settle()
    for number in range(300):
        world._route(world["a"], b"1:%d:" % number + 10_000 * b".", 1, "p")
    world.connect(client, "b")
    while world.run("a") or world.run("b") or world.step("b", "a"):
        pass
    on_the_way = sum(len(data) for _, data in world.lanes["a", "b"])
    assert WINDOW <= on_the_way < WINDOW + 2 * PART_BYTES
    world.settle()
    assert len(payloads(client)) == 300
    quiet(world)
