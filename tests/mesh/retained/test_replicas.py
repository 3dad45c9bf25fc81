"""Retained messages of several nodes become the same everywhere."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from zlib import crc32

import pytest

from broker.core.persistence.journal import Journal
from broker.core.queues.message import Message
from broker.core.routing.router import Router
from broker.mesh.bus import ProtocolFault
from broker.mesh.retained.peer import WINDOW_BYTES
from broker.mesh.retained.replicas import (
    BATCH_BYTES,
    BATCH_ENTRIES,
    BATCH_LOOKS,
    LONGEST_PAUSE,
    Replicas,
    ReplicaTerms,
)
from broker.mesh.retained.stamps import BUCKETS
from broker.mesh.retained.wire import TAKEN_MESSAGE, Batch, different_message, want_message
from tests.core.harness import Network, limits
from tests.mesh.retained.nodes import Nodes
from tests.mesh.retained.test_wire import PROPERTIES
from tests.support.memory_bus import MemoryMesh


def test_a_write_goes_to_all_nodes_that_are_there_and_a_clear_does() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.join_all()
    nodes.settle()
    nodes["a"].publish("room/1", b"warm")
    nodes.settle()
    assert nodes["b"].kept() == nodes["c"].kept() == {"room/1": b"warm"}
    nodes["b"].publish("room/1", b"")
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == nodes["c"].kept() == {}


def test_what_a_store_kept_goes_to_the_others_and_loses_against_what_they_wrote_since() -> None:
    nodes = Nodes("a", "b")
    nodes["a"].publish("kept", b"1")
    nodes["a"].publish("outdated", b"1")
    nodes["a"].publish("$own/kept", b"1")
    nodes.restart("a", keeps=True)
    nodes["b"].publish("outdated", b"2")
    nodes.join_all()
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == {"kept": b"1", "$own/kept": b"1", "outdated": b"2"}
    assert nodes["a"].replicas.ready


def test_what_comes_from_a_node_is_not_routed_and_not_told_on() -> None:
    nodes = Nodes("a", "c")
    network = Network(limits())
    nodes.add("b", network.router)
    nodes.join("a", "b")
    nodes.join("b", "c")
    nodes.settle()
    sent = nodes["b"].replicas.counts.sent
    listener = network.client("listener")
    listener.subscribe("#")
    nodes["a"].publish("t", b"1")
    nodes.settle()
    assert nodes["b"].kept() == {"t": b"1"}
    assert listener.take() == []
    assert nodes["b"].replicas.counts.sent == sent
    assert nodes["c"].kept() == {}
    # But what nodes compare is all that they have.
    nodes.advance(nodes.terms.digest_interval)
    nodes.settle()
    assert nodes["c"].kept() == {"t": b"1"}


def test_everything_of_a_message_arrives() -> None:
    nodes = Nodes("a", "b")
    nodes["a"].publish("t", b"1", expiry=30.0, qos=2, properties=PROPERTIES)
    nodes.now += 10.0
    nodes.join_all()
    nodes.settle()
    message = nodes["b"].router.retained.get("t")
    assert isinstance(message, Message)
    assert (message.topic, message.payload(), message.qos, message.retain) == (b"t", b"1", 2, True)
    assert (message.properties, message.publisher) == (PROPERTIES, "client")
    assert message.remaining_expiry(nodes.now) == 20


def test_each_node_has_a_message_expire_by_itself_and_an_older_one_stays_away() -> None:
    nodes = Nodes("a", "b", "c")
    nodes["c"].publish("t", b"old")
    nodes.advance(1.0)
    nodes["a"].publish("t", b"new", expiry=5.0)
    nodes.join("a", "b")
    nodes.settle()
    sent = nodes["a"].replicas.counts.sent
    nodes.advance(5.0)
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == {}
    assert nodes["a"].replicas.counts.sent == sent
    nodes.join_all()
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == nodes["c"].kept() == {}


def test_a_clear_wins_also_where_the_topic_was_not_known_yet() -> None:
    nodes = Nodes("a", "b")
    nodes["a"].publish("t", b"1")
    nodes.advance(1.0)
    nodes["b"].publish("t", b"")
    nodes.join_all()
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == {}


def test_a_node_that_was_away_longer_than_a_tombstone_lasts_brings_its_message_back() -> None:
    nodes = Nodes("a", "b", terms=ReplicaTerms(tombstone_time=100.0))
    nodes.join_all()
    nodes["a"].publish("short", b"1")
    nodes["a"].publish("long", b"1")
    nodes.settle()
    nodes.cut("a", "b")
    nodes["a"].publish("long", b"")
    nodes.advance(50.0)
    nodes["a"].publish("short", b"")
    nodes.advance(60.0)
    nodes.settle()
    assert nodes["a"].replicas.stamps.absent == 1
    nodes.join_all()
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == {"long": b"1"}
    # What is left of its time goes with a tombstone: it does not live longer by going round.
    nodes.advance(40.0)
    nodes.settle()
    assert nodes["a"].replicas.stamps.absent == nodes["b"].replicas.stamps.absent == 0


def test_tombstones_are_bounded() -> None:
    nodes = Nodes("a", terms=ReplicaTerms(tombstone_bytes=100_000))
    for number in range(1_000):
        nodes["a"].publish(f"t/{number}", b"")
    stamps = nodes["a"].replicas.stamps
    assert 90_000 < stamps.bytes == stamps.absent_bytes <= 100_000
    assert stamps.forgotten == 1_000 - stamps.absent


def test_the_broker_s_own_topics_are_each_node_s() -> None:
    nodes = Nodes("a", "b")
    nodes["a"].publish("$SYS/broker/uptime", b"1")
    nodes.join_all()
    nodes["a"].publish("$SYS/broker/uptime", b"2")
    nodes.settle()
    assert nodes["b"].router.retained.get("$SYS/broker/uptime") is None
    assert nodes["a"].replicas.counts.sent == 0


def test_what_a_node_has_no_room_for_is_counted_and_not_asked_for_again_and_again() -> None:
    nodes = Nodes("a", "b")
    nodes.restart("b", keeps=False, max_retained_messages=3)
    for number in range(10):
        nodes["a"].publish(f"t/{number}", b"x")
    nodes.join_all()
    nodes.settle()
    b = nodes["b"].replicas
    assert (len(nodes["b"].kept()), b.counts.refused, b.ready) == (3, 7, True)
    for _ in range(20):
        nodes.advance(nodes.terms.digest_interval)
        nodes.settle()
    assert b.counts.refused == 7
    # Later it may have room.
    for topic in nodes["b"].kept():
        nodes["b"].publish(topic, b"")
    nodes.advance(nodes.terms.tombstone_time)
    nodes.advance(nodes.terms.digest_interval * LONGEST_PAUSE)
    nodes.settle()
    assert len(nodes["b"].kept()) == 3


def test_nodes_that_differ_for_good_compare_less_and_less_often() -> None:
    """What is too large goes to nobody."""
    nodes = Nodes("a", "b", terms=ReplicaTerms(message_bytes=1_000))
    nodes["a"].publish("large", b"x" * 1_000)
    nodes["a"].publish("small", b"x")
    nodes.join_all()
    nodes.settle()
    assert nodes["b"].kept() == {"small": b"x"}
    for _ in range(200):
        nodes.advance(nodes.terms.digest_interval)
        nodes.settle()
    assert 4 < nodes["a"].replicas.counts.too_large < 12


def test_what_was_refused_where_it_was_published_is_gone_everywhere() -> None:
    """The old one is not what the topic says any more."""
    nodes = Nodes("a", "b", max_retained_bytes=5_000)
    nodes.join_all()
    nodes["a"].publish("t", b"1")
    nodes.settle()
    nodes["b"].publish("t", b"x" * 6_000)
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == {}


def test_a_wrong_clock_wins_once_and_not_for_ever() -> None:
    nodes = Nodes("a", "b", "c")
    nodes["c"].skew = 86_400.0
    nodes.join_all()
    nodes.settle()
    nodes["c"].publish("t", b"tomorrow")
    nodes.settle()
    assert nodes["a"].kept() == {"t": b"tomorrow"}
    assert nodes["a"].replicas.counts.corrected == 1
    nodes.advance(1.0)
    nodes["a"].publish("t", b"now")
    nodes.settle()
    assert nodes["a"].kept() == nodes["b"].kept() == nodes["c"].kept() == {"t": b"now"}
    nodes.heal()
    assert nodes["a"].kept() == nodes["b"].kept() == nodes["c"].kept() == {"t": b"now"}


def test_a_node_is_ready_when_it_has_what_was_there() -> None:
    nodes = Nodes("a", "b")
    for number in range(2_000):
        nodes["a"].publish(f"t/{number}", b"x" * 100)
    nodes.join_all()
    b = nodes["b"].replicas
    while not b.ready_with("a"):
        assert not b.ready
        nodes["a"].turn(), nodes["b"].turn(), nodes.deliver("a", "b"), nodes.deliver("b", "a")
    assert b.ready
    assert nodes["b"].kept() == nodes["a"].kept()
    assert not b.ready_with("nobody")


def test_a_node_that_does_not_read_holds_back_what_follows() -> None:
    nodes = Nodes("a", "b")
    nodes.join_all()
    nodes.settle()
    for number in range(5_000):
        nodes["a"].publish(f"t/{number % 2_000}", b"x" * 1_000)
        nodes["a"].turn()
    on_the_way = nodes.links["a", "b"]
    assert sum(map(len, on_the_way)) < WINDOW_BYTES + BATCH_BYTES + 2_000
    assert nodes["a"].replicas.due() > nodes.now
    nodes.settle()
    assert nodes["b"].kept() == nodes["a"].kept()


def test_only_what_differs_is_sent() -> None:
    nodes = Nodes("a", "b")
    for number in range(3_000):
        nodes["a"].publish(f"t/{number}", b"x")
    nodes.join_all()
    nodes.settle()
    nodes.cut("a", "b")
    nodes["a"].publish("t/1", b"y")
    nodes["b"].publish("t/2", b"y")
    sent = sum(nodes[name].replicas.counts.sent for name in "ab")
    nodes.join_all()
    nodes.settle()
    # For both topics each node lacks the other's write.
    assert sum(nodes[name].replicas.counts.sent for name in "ab") - sent <= 4
    assert nodes["a"].kept() == nodes["b"].kept()


def test_a_call_does_a_bounded_part_of_a_long_exchange() -> None:
    """Also where nearly all of a bucket is there, and where it has more topics than one message has digests."""
    nodes = Nodes("a", "b", max_retained_messages=0, max_retained_bytes=0)
    topics: list[str] = []
    number = 0
    while len(topics) < BATCH_LOOKS + 500:
        number += 1
        if crc32(b"t/%d" % number) % BUCKETS == 7:
            topics.append(f"t/{number}")
    for topic in topics:
        nodes["a"].publish(topic, b"x")
    nodes.join_all()
    entries = 0
    for _ in range(1_000):
        before = len(nodes["b"].kept()) if entries < 3 else 0
        nodes["a"].turn(), nodes["b"].turn(), nodes.deliver("b", "a")
        if nodes.deliver("a", "b") and entries < 3:
            taken = len(nodes["b"].kept()) - before
            assert taken <= BATCH_ENTRIES
            entries += taken > 0
    assert len(nodes["b"].kept()) == len(topics)


def test_wake_is_called_once_until_the_next_turn() -> None:
    nodes = Nodes("a")
    a = nodes["a"]
    assert a.replicas.due() == -1.0
    for number in range(10):
        a.publish(f"t/{number}", b"x")
    assert a.wakes == 1
    assert a.replicas.due() == nodes.now
    assert a.turn()
    a.publish("t/0", b"y")
    assert a.wakes == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x09",
        TAKEN_MESSAGE,
        TAKEN_MESSAGE + b"x",
        different_message([1]),
        Batch().message(True),
    ],
)
def test_what_comes_out_of_turn_is_a_fault(data: bytes) -> None:
    nodes = Nodes("a", "b")
    nodes.join_all()
    with pytest.raises(ProtocolFault):
        nodes["a"].replicas.received("b", data)


def test_a_node_that_wants_more_before_it_has_taken_all_is_at_fault() -> None:
    nodes = Nodes("a", "b")
    nodes.join_all()
    nodes["a"].replicas.received("b", want_message([(1, [])]))
    with pytest.raises(ProtocolFault):
        nodes["a"].replicas.received("b", want_message([(2, [])]))


def test_a_store_hears_of_what_comes_from_other_nodes() -> None:
    nodes = Nodes("a", "b")
    kept: dict[str, bytes] = {}

    class Written(Journal):
        def retained_set(self, message: Message) -> None:
            kept[message.topic.decode()] = message.payload()

        def retained_cleared(self, topic: str) -> None:
            del kept[topic]

    nodes["b"].router.journal = Written()
    nodes.join_all()
    nodes["a"].publish("t", b"1")
    nodes["a"].publish("u", b"1")
    nodes.settle()
    assert kept == {"t": b"1", "u": b"1"}
    nodes["a"].publish("t", b"")
    nodes.settle()
    assert kept == {"u": b"1"}


async def test_on_a_bus_that_loses_nodes() -> None:
    """With the promises of `broker.mesh.bus` and an event loop."""
    mesh = MemoryMesh("a", "b")
    loop = asyncio.get_running_loop()
    routers = {name: Router(limits()) for name in "ab"}
    rooms: dict[str, Replicas] = {}

    def turn(name: str) -> None:
        rooms[name].turn(loop.time())

    def wake(name: str) -> None:
        loop.call_soon(turn, name)

    for name, router in routers.items():
        terms = ReplicaTerms()
        rooms[name] = Replicas(mesh[name], router.retained_store, terms, loop.time, time.time, partial(wake, name))
    async with mesh:
        for number in range(500):
            routers["a"].publish(Message(b"a/%d" % number, b"x", 1, True, b"", 0.0, "c"), None)
            routers["b"].publish(Message(b"b/%d" % number, b"x", 1, True, b"", 0.0, "c"), None)
            if number % 100 == 50:
                mesh.lose("a", "b")
        await mesh.settle()
        assert rooms["a"].ready
        assert rooms["b"].ready
        assert len(routers["a"].retained) == len(routers["b"].retained) == 1_000
        assert rooms["a"].stamps.sums == rooms["b"].stamps.sums
