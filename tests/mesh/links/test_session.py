"""When what goes to another node is kept in the store, and what a process that begins anew makes of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from broker.core.codec.packets import PUBACK
from broker.core.counters import FULL_BYTES
from tests.mesh.links.link import EXPIRY, PATIENCE, Node
from tests.support.losses import dropped_by_cause


def node(store: bool = True) -> Node:
    """One that is connected, and whose messages need not be kept."""
    made = Node(store)
    made.subscribe("x/#")
    made.connect()
    if store:
        made.commit()
    return made


def acknowledged(a: Node) -> int:
    """How many publishes of QoS 1."""
    return len(a.publisher.acks(PUBACK))


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_told_to_the_store_while_the_node_takes_and_confirms_messages(qos: int) -> None:
    a = node()
    assert a.store is not None
    told = a.store.gate.told
    for number in range(30):
        a.publisher.publish("x/1", b"%d" % number, qos)
        a.act()
        a.hear()
    a.finish()
    assert a.other.got == [*range(30)]
    assert a.store.gate.told == told


def test_what_is_on_its_way_when_the_connection_ends_is_acknowledged_when_the_store_has_it() -> None:
    a = node()
    a.publisher.publish("x/1", b"0", 1)
    a.lose()
    a.publisher.publish("x/1", b"1", 1)
    assert acknowledged(a) == 0
    a.commit()
    assert acknowledged(a) == 2
    assert a.on_disk() == [0, 1]


def with_much(qos: int) -> Node:
    """Six messages are on their way to the node; the store is told of two in a turn."""
    a = Node(piece=2)
    a.subscribe("x/#")
    a.connect()
    a.commit()
    for number in range(6):
        a.publisher.publish(f"x/{qos}", b"%d" % number, qos)
    return a


def test_very_much_is_kept_in_turns_and_acknowledged_when_the_store_has_it() -> None:
    """What is published meanwhile stays behind it."""
    a = with_much(1)
    assert a.store is not None
    a.lose()
    a.publisher.publish("x/1", b"6", 1)
    assert acknowledged(a) == 0
    for told in (2, 4, 6, 7):
        a.turn()
        # Those that were acknowledged were published one after the other, with the packet identifiers from 1 on.
        assert {ack.packet_id - 1 for ack in a.publisher.acks(PUBACK)} <= {*a.on_disk()}
        a.store.close_group()
        a.store.commit()
        assert a.on_disk() == [*range(told)]
    a.commit()
    assert acknowledged(a) == 7


@pytest.mark.parametrize("turns", range(4))
def test_a_process_that_is_killed_while_much_is_kept_does_not_go_on_with_its_packet_identifiers(
    turns: int,
) -> None:
    """The node may know one of which the store was not told [MQTT-4.3.3-10]."""
    a = with_much(2)
    assert a.store is not None
    a.act()
    a.lose()
    for _ in range(turns):
        a.turn()
    a.store.close_group()
    a.store.commit()
    a.kill()
    assert a.session.known is (turns == 3)


def test_what_is_due_is_kept_at_once_when_the_node_comes_back_or_this_one_stops() -> None:
    for stops in (False, True):
        a = with_much(1)
        a.lose()
        assert a.session.keeper is not None
        assert a.session.keeper.due
        if stops:
            a.session.keep_at_once()
        else:
            a.connect()
        assert not a.session.keeper.due
        assert a.store is not None
        a.store.close_group()
        a.store.commit()
        assert a.on_disk() == [*range(6)]


def test_without_a_store_it_is_acknowledged_when_the_publisher_has_waited_in_vain() -> None:
    a = node(store=False)
    a.publisher.publish("x/1", b"0", 1)
    a.lose()
    assert acknowledged(a) == 0
    a.network.advance(PATIENCE + 1.0)
    assert acknowledged(a) == 1
    a.connect()
    a.finish()
    assert a.other.got == [0]


def test_what_has_waited_is_kept_until_the_node_has_it_and_what_follows_is_not() -> None:
    a = node()
    a.lose()
    for number in range(8):
        a.publisher.publish("x/1", b"%d" % number, 1)
    a.commit()
    a.connect(window=3)
    # More is published than the window takes, until the queue is empty.
    a.publisher.publish("x/1", b"8", 1)
    while a.session.queue.pending is not None:
        a.act(1)
        a.hear(1)
    a.commit()
    a.publisher.publish("x/1", b"9", 1)
    assert acknowledged(a) == 9
    assert 9 not in a.on_disk()
    a.finish()
    assert acknowledged(a) == 10
    assert a.on_disk() == []
    assert a.other.got == [*range(10)]


def test_what_is_kept_is_released_when_the_store_knows_that_the_node_has_it() -> None:
    """A process that begins before does not publish again what the node has released [MQTT-4.3.3-6]."""
    a = node()
    a.lose()
    for number in range(2):
        a.publisher.publish("x/2", b"%d" % number, 2)
    a.commit()
    a.connect(window=1)  # the second waits, and is kept
    a.commit()
    a.act()
    a.hear()
    assert a.wire is not None
    assert not a.wire.there
    a.kill()
    a.connect()
    a.commit()
    a.finish()
    assert a.other.got == [0, 1]
    assert a.other.known == set()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_process_goes_on_with_packet_identifiers_only_where_the_store_had_them_all(at_once: bool) -> None:
    """The node knows one of a QoS 2 publish that the store never had: it does not take the next message for that one.

    [MQTT-4.3.3-10]
    """
    a = node()
    a.publisher.publish("x/2", b"0", 2)
    a.act()
    if not at_once:
        a.lose()
        a.commit()
    a.kill()
    assert a.session.known is not at_once
    a.connect()
    assert a.wire is not None
    assert a.wire.clean_start is at_once
    a.publisher.publish("x/2", b"1", 2)
    a.commit()
    a.finish()
    assert a.other.got == [0, 1]


def test_a_node_is_given_up_when_it_has_been_away_for_so_long_also_between_processes() -> None:
    a = node()
    a.lose()
    a.publisher.publish("x/1", b"0", 1)
    a.commit()
    a.network.now += EXPIRY - 1.0
    a.kill()
    assert a.session.queued() == 1
    assert a.network.now - a.session.away_since == EXPIRY - 1.0
    a.network.now += 2.0
    a.kill()
    assert a.log.named("node is given up") == [{"node": "c", "messages": 1}]
    assert a.network.router.table.count == 0
    a.commit()
    assert a.on_disk() == []


@pytest.mark.parametrize("why", ["no mesh", "fewer workers"])
def test_what_waits_for_a_node_that_there_cannot_be_is_given_up(why: str) -> None:
    a = node()
    a.lose()
    a.publisher.publish("x/1", b"0", 1)
    a.commit()
    if why == "no mesh":
        a.settings = a.settings.model_copy(update={"name": ""})
    else:
        a.companions = SimpleNamespace(may_come=lambda name: name != "c")
    a.kill()
    assert a.log.named("node is given up") == [{"node": "c", "messages": 1}]
    a.commit()
    assert a.on_disk() == []


def test_the_bound_holds_for_what_comes_back() -> None:
    """What finds no room is dropped and counted."""
    a = node()
    a.lose()
    for number in range(20):
        a.publisher.publish("x/1", b"%05d" % number, 1)
    a.commit()
    a.settings = a.settings.model_copy(update={"queue_bytes": int(a.session.queue.bytes) // 2})
    a.kill()
    assert a.session.queued() == 10
    assert dropped_by_cause(a.session)[FULL_BYTES] == 10
    a.commit()
    assert a.on_disk() == [*range(10)]


def test_no_member_of_a_share_group_counts_as_connected_before_the_node_says_so() -> None:
    a = node()
    a.subscribe("$share/g/y")
    a.lose()
    a.commit()
    a.kill()
    member = a.session.subscriptions["$share/g/y"]
    assert (member.weight, member.present) == (0, False)
    a.publisher.publish("y", b"7", 1)
    a.commit()
    assert a.on_disk() == [7]


@pytest.mark.parametrize(("qos", "connected"), [(0, True), (1, True), (1, False)])
def test_share_groups_leave_room_for_others(qos: int, connected: bool) -> None:
    """One client in a hundred groups makes a hundred messages of one, which would fill the queue of its node."""
    a = Node(store=False, queue_bytes=1 << 22, pipe_bytes=1 << 16)
    a.subscribe("x")
    for number in range(100):
        a.subscribe(f"$share/{number}/y")
    a.connect(window=1)
    assert a.wire is not None
    if connected:
        a.publisher.publish("x", b"0", 1)
        a.wire.frozen = True
    else:
        a.lose()
    a.publisher.publish("y", bytes(80_000), qos)
    lost = dropped_by_cause(a.session)[FULL_BYTES]
    assert 50 < lost < 70
    a.publisher.publish("x", bytes(800_000), qos)
    assert dropped_by_cause(a.session)[FULL_BYTES] == lost


def test_qos_2_keeps_its_order_when_two_connections_end_between_commits() -> None:
    """What was committed and sent stays before what the window of that connection left waiting [MQTT-4.6.0-6]."""
    a = Node()
    a.subscribe("x/#")
    a.commit()
    store = a.store
    assert store is not None
    for number in range(2):
        a.publisher.post("x/2", b"%d" % number, 2)
    a.network.settle()
    a.connect(window=100)
    a.lose()
    a.connect(window=1)
    for _ in range(2):
        if not store.commit():
            store.close_group()
        a.network.settle()
    a.lose()
    a.connect(window=100)
    a.commit()
    a.finish()
    assert a.other.got == [0, 1]
