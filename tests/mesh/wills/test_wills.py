"""The wills of clients whose node dies: one of the others publishes each, or nobody does where the client is back."""

from __future__ import annotations

import pytest

from broker.core.codec.packets import Will
from broker.core.queues.message import Message
from broker.mesh.bus import ProtocolFault
from broker.mesh.wills import replicating, room
from broker.mesh.wills.messages import HELD, Copies, Hello, ProcessState, WillCopy, encode, encode_will
from broker.mesh.wills.room import AGAIN, MOST_STANDS
from broker.store.memory import MemoryStore
from tests.mesh.wills.world import DEAD_AFTER, KNOWN_FOR, LARGEST, TIMEOUT, World

MANY = 100


@pytest.fixture
def world() -> World:
    """Three nodes."""
    return World("a", "b", "c")


def test_each_is_published_once_when_the_node_is_dead(world: World) -> None:
    """[MQTT-3.1.2-8]"""
    for number in range(MANY):
        world.connect("a", f"c{number}", b"%d" % number)
    world.kill("a")
    world.advance(DEAD_AFTER - 1)
    assert world.count() == {}
    world.advance(1)
    assert world.count() == {b"%d" % number: 1 for number in range(MANY)}
    assert {name for name, _ in world.published} == {"b", "c"}
    world.advance(10 * AGAIN)
    assert world.count().total() == MANY


def test_it_is_published_as_the_client_has_said_it(world: World) -> None:
    """[MQTT-3.1.2-15] [MQTT-3.1.3-10]"""
    properties = b"\x26\x00\x01a\x00\x01b"
    world.connect("a", "x", b"gone", qos=1, retain=True, message_expiry=60, properties=properties)
    world.kill("a")
    world.advance(DEAD_AFTER)
    ((where, packet),) = world.published
    assert (packet.topic, packet.payload, packet.qos) == (b"wills/x", b"gone", 1)
    retained = world[where].network.router.retained.get("wills/x")
    assert isinstance(retained, Message)
    assert retained.expires_at == world.now + 60
    assert retained.properties == properties


def test_a_delayed_one_counts_from_the_loss_of_the_node(world: World) -> None:
    """[MQTT-3.1.3-9]"""
    world.connect("a", "x", b"late", delay=100, expiry=1_000)
    world.connect("a", "y", b"with its session", delay=100, expiry=50)
    world.kill("a")
    world.advance(49)
    assert world.count() == {}
    world.advance(1)
    assert world.count() == {b"with its session": 1}
    world.advance(49)
    assert world.count().total() == 1
    world.advance(1)
    assert world.count()[b"late"] == 1


def test_a_delay_that_runs_already_goes_on(world: World) -> None:
    world.connect("a", "x", b"runs", delay=100, expiry=1_000).cut()
    world.advance(50)
    world.kill("a")
    world.advance(49)
    assert world.count() == {}
    world.advance(1)
    assert world.count() == {b"runs": 1}


@pytest.mark.parametrize("how", ["disconnect", "cut", "moved"])
def test_one_that_is_no_more_is_not_published(world: World, how: str) -> None:
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3]"""
    client = world.connect("a", "x", b"will", expiry=1_000)
    if how == "disconnect":
        client.disconnect()
    elif how == "cut":
        client.cut()
    else:
        world.connect("b", "x", expiry=1_000)
    world.settle()
    published = world.count()
    assert published.total() == (0 if how == "disconnect" else 1)
    world.kill("a")
    world.advance(10 * DEAD_AFTER)
    assert world.count() == published


def test_the_session_that_has_moved_has_its_will_there(world: World) -> None:
    world.connect("a", "x", b"first", delay=100, expiry=1_000).cut()
    world.connect("b", "x", b"second", expiry=1_000)
    world.kill("a")
    world.advance(1_000)
    assert world.count() == {}
    world.kill("b")
    world.advance(DEAD_AFTER)
    assert world.count() == {b"second": 1}


@pytest.mark.parametrize("where", ["b", "c", "a"])
@pytest.mark.parametrize("running", [False, True])
def test_a_client_that_is_back_in_time_has_none_published(world: World, where: str, running: bool) -> None:
    """[MQTT-3.1.3-9]; at whichever node, the next process of its own among them."""
    client = world.connect("a", "x", b"delayed", delay=100, expiry=1_000)
    if running:
        client.cut()
        world.settle()
    world.kill("a")
    world.start("a")
    world.settle()
    world.connect(where, "x", expiry=1_000)
    world.advance(10_000)
    assert world.count() == {}


@pytest.mark.parametrize("where", ["b", "c", "a"])
@pytest.mark.parametrize(("clean", "delay"), [(True, 100), (False, 0)])
def test_a_connection_or_session_that_a_client_replaces_ends_with_its_will(
    world: World, where: str, clean: bool, delay: int
) -> None:
    """As where it connects to the same broker again; before the CONNACK, and not later once more."""
    world.connect("a", "x", b"replaced", delay=delay, expiry=1_000)
    world.kill("a")
    world.start("a")
    world.settle()
    client = world.connect(where, "x", clean=clean, expiry=1_000)
    assert client.connack.reason_code == 0
    assert world.count() == {b"replaced": 1}
    world.advance(10_000)
    assert world.count() == {b"replaced": 1}


def test_another_user_does_not_keep_it_from_being_published(world: World) -> None:
    world.connect("a", "x", b"delayed", delay=100, expiry=1_000)
    world.kill("a")
    world["b"].wills.claimed("x", "somebody else", False)
    world.advance(100)
    assert world.count() == {b"delayed": 1}


def test_the_next_node_publishes_where_the_first_dies(world: World) -> None:
    for number in range(MANY):
        world.connect("a", f"c{number}", b"%d" % number)
    world.kill("a")
    world.advance(DEAD_AFTER / 2)
    world.kill("b")
    world.advance(DEAD_AFTER)
    assert world.count() == {b"%d" % number: 1 for number in range(MANY)}


def test_what_a_node_does_not_hear_of_is_published_by_the_next(world: World) -> None:
    """Here one holds that it has wills, and publishes none: it hangs, or had no room for them."""
    for number in range(MANY):
        world.connect("a", f"c{number}", b"%d" % number)
    world.kill("a")
    hangs = world.nodes.pop("b")
    world.advance(DEAD_AFTER)
    some = world.count().total()
    assert 0 < some < MANY
    world.advance(AGAIN)
    assert world.count() == {b"%d" % number: 1 for number in range(MANY)}
    world.nodes["b"] = hangs
    hangs.network.now = world.now
    world.settle()
    world.advance(AGAIN)
    assert world.count().total() == MANY


def test_a_node_that_others_still_see_is_not_dead(world: World) -> None:
    world.connect("a", "x", b"alive")
    world.cut("a", "b")
    world.settle()
    world.advance(10 * DEAD_AFTER)
    assert world.count() == {}
    world.cut("a", "c")
    world.settle()
    world.advance(DEAD_AFTER - 1)
    assert world.count() == {}
    world.advance(1)
    assert world.count() == {b"alive": 1}


def test_it_is_dead_when_the_last_that_saw_it_has_gone(world: World) -> None:
    world.connect("a", "x", b"will")
    world.cut("a", "b")
    world.settle()
    world.advance(DEAD_AFTER)
    world.kill("c")
    world.kill("a")
    world.advance(DEAD_AFTER - 1)
    assert world.count() == {}
    world.advance(1)
    assert world.count() == {b"will": 1}


def test_what_was_planned_before_a_node_was_back_counts_no_more(world: World) -> None:
    world.connect("a", "x", b"will", delay=100, expiry=1_000)
    world.kill("c")
    world.cut("a", "b")
    world.advance(90)
    world.join("a", "b")
    world.step("a", "b", 1)
    world.cut("a", "b")
    world.settle()
    world.advance(99)
    assert world["b"].wills.published == 0
    world.advance(1)
    assert world["b"].wills.published == 1


def test_a_client_that_came_here_before_its_node_was_known_to_be_gone(world: World) -> None:
    """The node hangs: it does not answer the claim, and is lost after that."""
    world.connect("a", "x", b"will", delay=100, expiry=1_000)
    hangs = world.nodes.pop("a")
    client = world.connect("b", "x", expiry=1_000)
    world.advance(TIMEOUT)
    assert client.connack.reason_code == 0
    world.nodes["a"] = hangs
    for lane in world.lanes.values():
        lane.clear()
    world.kill("a")
    world.advance(1_000)
    assert world.count() == {}


def test_a_node_that_has_not_heard_that_its_client_moved_does_not_bring_its_will_back(world: World) -> None:
    world.connect("a", "x", b"will", delay=100, expiry=1_000)
    for other in "bc":
        world.cut("a", other)
    world.settle()
    world.connect("b", "x", expiry=1_000)
    for other in "bc":
        world.join("a", other)
    world["a"].run()
    for other in "bc":
        world.step("a", other, 1_000)
    world.kill("a")
    world.advance(1_000)
    assert world.count() == {}


def test_what_a_store_keeps_is_told_to_nobody(world: World) -> None:
    """Its store publishes it: when the node is back, or another broker has its sessions."""
    store = MemoryStore()
    world["a"].network.router.journal = store.journal
    world.connect("a", "x", b"kept", expiry=1_000)
    assert (world["b"].wills.kept, world["c"].wills.kept) == (0, 0)
    world.connect("a", "y", b"not kept")
    assert (world["b"].wills.kept, world["c"].wills.kept) == (1, 1)


def test_one_that_is_too_large_for_the_bus_is_told_to_nobody(world: World) -> None:
    world.connect("a", "x", LARGEST * b".")
    assert world["b"].wills.kept == 0
    assert world["a"].wills.replicator.too_large == 1
    world.connect("a", "x", (LARGEST - len("wills/x")) * b".")
    assert world["b"].wills.kept == 1


def test_after_a_partition_a_client_that_stayed_has_its_will_still(world: World) -> None:
    """Each side takes the other for dead. When the connection really ends, its will is true."""
    client = world.connect("a", "x", b"will")
    for other in "bc":
        world.cut("a", other)
    world.settle()
    world.advance(DEAD_AFTER)
    assert world.count() == {b"will": 1}
    for other in "bc":
        world.join("a", other)
    world.settle()
    client.cut()
    world.advance(10 * DEAD_AFTER)
    assert world.count() == {b"will": 2}


@pytest.mark.parametrize("delay", [0, 100])
def test_after_a_partition_a_client_that_has_moved_has_none(world: World, delay: int) -> None:
    world.connect("a", "x", b"will", delay=delay, expiry=1_000)
    for other in "bc":
        world.cut("a", other)
    world.settle()
    world.connect("b", "x", expiry=1_000)
    for other in "bc":
        world.join("a", other)
    world.settle()
    world.advance(10_000)
    assert world.count() == ({b"will": 1} if delay == 0 else {})


def test_a_node_that_stops_has_published_all_but_those_whose_delay_runs(world: World) -> None:
    """Its clients are gone by then."""
    world.connect("a", "x", b"published").cut()
    world.connect("a", "y", b"runs", delay=100, expiry=1_000).cut()
    stuck = world.connect("a", "z", b"published as well")
    world.settle()
    # Nobody hears of it by a turn of the room.
    world["a"].network.router.wills.listener = None
    stuck.cut()
    world["a"].wills.stop()
    for other in "bc":
        world.step("a", other, 1_000)
    world.kill("a")
    world.advance(1_000)
    assert world.count() == {b"published": 1, b"published as well": 1, b"runs": 1}


def test_a_node_that_comes_later_hears_of_all_in_turns() -> None:
    world = World("a", "c", without=("c",))
    many = 4 * replicating.TURN_BYTES // 400
    world.many("a", many, 400 * b".")
    world.start("c")
    before = world["a"].turns
    world.settle()
    assert world["a"].turns - before >= 4
    assert world["c"].wills.kept == many
    world.kill("a")
    world.advance(DEAD_AFTER)
    assert world.count().total() == many


def test_what_is_on_the_way_to_a_node_is_bounded() -> None:
    world = World("a", "b", without=("b",))
    world.many("a", 2 * replicating.WINDOW // 1_000, 1_000 * b".")
    world.start("b")
    world.step("b", "a", 1)
    while world["a"].run():
        pass
    assert sum(len(data) for _, data in world.lanes["a", "b"]) < replicating.WINDOW + 2 * replicating.TURN_BYTES
    world.settle()
    assert world["b"].wills.kept == 2 * replicating.WINDOW // 1_000


def test_a_node_that_begins_anew_tells_what_is_so(world: World) -> None:
    ends = world.connect("a", "x", b"ends")
    world.connect("a", "y", b"stays")
    world.cut("a", "b")
    ends.disconnect()
    world.connect("a", "z", b"comes")
    world.join("a", "b")
    world.settle()
    world.kill("c")
    world.kill("a")
    world.advance(DEAD_AFTER)
    assert world.count() == {b"stays": 1, b"comes": 1}


def test_what_was_known_stands_until_all_is_told_anew(world: World) -> None:
    world.connect("a", "x", b"known")
    world.cut("a", "b")
    world.join("a", "b")
    world.kill("c")
    world.kill("a")
    world.advance(DEAD_AFTER)
    assert world.count() == {b"known": 1}


def test_a_node_of_an_older_version_is_told_nothing() -> None:
    world = World("a", "b", "c", speak={"b": 1})
    world.connect("a", "x", b"will")
    assert not any(kind == 6 for kind, _ in world.lanes["a", "b"])
    assert (world["b"].wills.kept, world["c"].wills.kept) == (0, 1)
    with pytest.raises(ProtocolFault):
        world["a"].wills.received("b", encode(Hello(1)))
    world.kill("a")
    world.advance(DEAD_AFTER)
    assert [(name, packet.payload) for name, packet in world.published] == [("c", b"will")]


def test_the_bytes_of_a_nodes_wills_are_bounded() -> None:
    world = World("a", "b", most_bytes=20_000)
    clients = [world.connect("a", f"c{number}", 600 * b".") for number in range(30)]
    wills = world["b"].wills
    assert wills.kept_bytes <= 20_000
    assert 0 < wills.kept < 30
    assert wills.left_out == 30 - wills.kept
    for client in clients:
        client.disconnect()
    world.settle()
    assert (wills.kept, wills.kept_bytes) == (0, 0)


def test_nothing_is_known_for_ever(world: World) -> None:
    world.connect("a", "x", b"will")
    world.kill("a")
    world.advance(DEAD_AFTER)
    assert world["b"].wills.kept_bytes > 0
    world.advance(KNOWN_FOR)
    for name in "bc":
        assert world[name].wills.kept_bytes == 0
        assert world[name].wills.due == 0.0


def test_very_many_are_published_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "TURN", 10)
    monkeypatch.setattr(room, "LOOKED_AT", 20)
    world = World("a", "b", without=("b",))
    world.many("a", 200, b"")
    world.start("b")
    world.settle()
    world.kill("a")
    before = world["b"].turns
    world.advance(DEAD_AFTER)
    assert world.count().total() == 200
    assert world["b"].turns - before >= 200 // 10


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93",
        encode(Copies([WillCopy("x", 1, 0, False, encode_will(Will("a/#", b""), "{}"))])),
        encode(Copies([WillCopy("x", 1, 0, False, encode_will(Will("a", b""), "no principal"))])),
        encode(Copies([WillCopy("x", 1, 0, False, b"no will")])),
        encode(
            Copies([WillCopy("x", 1, 0, False, encode_will(Will("a", b"", properties=b"\x26"), '{"user_name": null}'))])
        ),
        encode(Copies([WillCopy("x", 1, 0, False, encode_will(Will("a", b""), "[" * 100_000))])),
        b"\x92\x02" + b"\x91" * 100_000,
    ],
)
def test_what_nobody_writes_is_a_fault(world: World, data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        world["a"].wills.received("b", data)
    assert world["a"].wills.kept == 0


def test_so_many_processes_are_known_of_what_a_node_says() -> None:
    world = World("a", "b")
    for number in range(MOST_STANDS + 5):
        world["a"].wills.received("b", encode(ProcessState("c", number + 1, HELD)))
    assert len(world["a"].wills._stands["b"]) == MOST_STANDS
