"""What a client makes the broker do counts in its own turn, so that others have theirs. Counted in units, not timed."""

from __future__ import annotations

from itertools import islice, product
from typing import Final

import pytest

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import V311, Publish, Subscribe, SubscriptionRequest, Unsubscribe
from canopy_mqtt.core.codec.reason_codes import QUOTA_EXCEEDED
from canopy_mqtt.core.jobs import (
    DECODE_WORK,
    LEVEL_WORK,
    MISS_WORK,
    NODE_SHIFT,
    OBJECT_WORK,
    OUTDATED_WORK,
    PACKET_WORK,
    RETAIN_WORK,
    TURN_WORK,
)
from canopy_mqtt.core.routing.bursts import RUN_MESSAGES, SLOW_DELIVERIES
from canopy_mqtt.core.routing.subscription_table import DROP_NODES, DROPS, DROPS_AT_ONCE
from canopy_mqtt.core.topics.match_cache import NAME_BYTES, SHORT_NAME_BYTES, MatchCache
from canopy_mqtt.core.topics.trie import create
from tests.core.harness import Client, Network, limits

LEVELS: Final = 10
"""Levels of `a` or `+`: 2 ** LEVELS filters, and about twice as many nodes that a topic of `a/a/…` leads to."""


@pytest.mark.crowd
def test_a_publish_pays_for_the_filters_it_walks_over() -> None:
    """Topics that are new each time, below filters that all begin to match and none of which does."""
    network = Network()
    client = network.client("walker")
    names = ["/".join(levels) + "/z" for levels in product("a+", repeat=LEVELS)]
    client.subscribe(*names)
    router = network.router
    trie = router.trie
    topics = [b"a/" * LEVELS + b"%d" % number for number in range(1_000)]
    read = b"".join(encoder.encode(Publish(topic, b""), 5) for topic in topics)
    turns = 0
    before = trie.probes
    protocol = client.wire.protocol
    protocol.receive(read, network.now)
    most = trie.probes - before
    each = 2 ** (LEVELS + 1)
    while protocol.unfinished:
        before = trie.probes
        protocol.go_on(network.now)
        most = max(most, trie.probes - before)
        turns += 1
    assert most <= TURN_WORK + each
    assert turns >= len(topics) * each // TURN_WORK - 1
    assert router.counters.messages_received == len(topics)


@pytest.mark.crowd
def test_a_plan_that_is_made_again_is_paid_for() -> None:
    """One of 1,000 filters that match a topic is changed before each PUBLISH to it: the plan has to look at all."""
    network = Network()
    client = network.client("changer")
    names = ["/".join(levels) for levels in islice(product("a+", repeat=LEVELS), 1_000)]
    client.subscribe(*names)
    topic = b"/".join([b"a"] * LEVELS)
    client.publish(topic.decode())
    changes = 200
    again = Subscribe(1, [SubscriptionRequest(names[0], 0)])
    read = (encoder.encode(again, 5) + encoder.encode(Publish(topic, b""), 5)) * changes
    protocol = client.wire.protocol
    router = network.router
    before = router.budget.used
    protocol.receive(read, network.now)
    turns = 1
    while protocol.unfinished:
        protocol.go_on(network.now)
        turns += 1
    assert router.budget.used - before >= changes * len(names)
    assert turns >= changes * len(names) // TURN_WORK


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_deliveries_that_are_objects_count_more(qos: int) -> None:
    """A turn has as many of them as take some milliseconds: QoS 1 and 2, or with an identifier."""
    network = Network()
    subscribers = [network.client(f"s{number}") for number in range(50)]
    for subscriber in subscribers:
        subscriber.subscribe("t", qos=qos, identifier=1)
        subscriber.wire.frozen = True
    publisher = network.client("publisher", V311)
    publisher.publish("t")
    reads = [encoder.encode(Publish(b"t", b"", qos, packet_id=number if qos else 0), 4) for number in range(1, 1_000)]
    counters = network.router.counters
    protocol = publisher.wire.protocol
    before = counters.messages_received
    protocol.receive(b"".join(reads), network.now)
    most = TURN_WORK // (OBJECT_WORK * len(subscribers)) + 1
    # A run of QoS 0 is taken whole.
    assert counters.messages_received - before <= (most if qos else RUN_MESSAGES * 3)
    assert protocol.unfinished


@pytest.mark.crowd
def test_a_run_is_short_for_many_who_cannot_take_it_as_it_came() -> None:
    network = Network()
    count = 300
    for number in range(count):
        client = network.client(f"s{number}")
        client.subscribe("t", identifier=1)
        client.wire.frozen = True
    publisher = network.client("publisher", V311)
    publisher.publish("t")
    counters = network.router.counters
    protocol = publisher.wire.protocol
    before = counters.messages_received
    protocol.receive(encoder.encode(Publish(b"t", b""), 4) * 1_000, network.now)
    # Nobody knew yet.
    assert counters.messages_received - before == RUN_MESSAGES
    short = SLOW_DELIVERIES // count
    while protocol.unfinished:
        before = counters.messages_received
        protocol.go_on(network.now)
        assert counters.messages_received - before <= 2 * short


@pytest.mark.crowd
@pytest.mark.parametrize("deep", [1, 100])
def test_retained_messages_pay_for_their_place_in_the_tree(deep: int) -> None:
    network = Network()
    client = network.client("retainer")
    topics = [b"%d" % number + b"/x" * (deep - 1) for number in range(4_000)]
    read = b"".join(encoder.encode(Publish(topic, b"x", retain=True), 5) for topic in topics)
    most = TURN_WORK // (RETAIN_WORK + LEVEL_WORK * deep) + 1
    protocol = client.wire.protocol
    protocol.receive(read, network.now)
    assert len(network.router.retained) <= most
    while protocol.unfinished:
        before = len(network.router.retained)
        protocol.go_on(network.now)
        assert len(network.router.retained) - before <= most
    assert len(network.router.retained) == len(topics)


@pytest.mark.crowd
@pytest.mark.parametrize("room", [True, False])
def test_topics_that_nobody_knows_are_paid_for(room: bool) -> None:
    """Also what is refused: it was decoded, its route was made, and its place in the tree was looked for."""
    network = Network(limits() if room else limits(max_retained_messages=1))
    client = network.client("flooder")
    read = b"".join(encoder.encode(Publish(b"%d" % number, b"x", retain=True), 5) for number in range(4_000))
    most = TURN_WORK // (DECODE_WORK + MISS_WORK + RETAIN_WORK) + 1
    counters = network.router.counters
    protocol = client.wire.protocol
    before = counters.messages_received
    protocol.receive(read, network.now)
    assert 0 < counters.messages_received - before <= most
    while protocol.unfinished:
        before = counters.messages_received
        protocol.go_on(network.now)
        assert counters.messages_received - before <= most
    assert counters.retained_refused == (0 if room else 3_999)


def test_identifiers_are_paid_for_where_they_are_sent() -> None:
    """A small message with thousands of them is a large one, each time it is written."""
    network = Network()
    client = network.client("collector")
    names = ["/".join(levels) for levels in islice(product("a+", repeat=LEVELS), 1_000)]
    client.subscribe(*names, identifier=200_000_000)
    topic = "/".join(["a"] * LEVELS)
    publisher = network.client("publisher")
    publisher.publish(topic)
    before = network.router.budget.used
    publisher.publish(topic)
    assert network.router.budget.used - before >= len(names)


class TestSharedSubscriptions:
    """One client in very many share groups is so many deliveries of each message of anybody."""

    def join(self, most: int) -> Client:
        return Network(limits(max_shared_subscriptions_per_client=most)).client("member")

    def test_no_more_than_the_bound(self) -> None:
        client = self.join(3)
        codes = client.subscribe(*[f"$share/g{number}/t" for number in range(5)])
        assert codes == [0] * 3 + [QUOTA_EXCEEDED] * 2
        before = client.network.router.budget.used
        client.publish("t")
        assert client.network.router.budget.used - before == PACKET_WORK + DECODE_WORK + MISS_WORK + 3 * OBJECT_WORK
        assert len(client.inbox) == 3

    def test_what_is_there_may_be_changed_and_what_left_makes_room(self) -> None:
        client = self.join(2)
        client.subscribe("$share/g0/t", "$share/g1/t")
        assert client.subscribe("$share/g0/t", qos=1) == [1]
        client.unsubscribe("$share/g0/t")
        assert client.subscribe("$share/h/u", "$share/h/v") == [0, QUOTA_EXCEEDED]

    def test_ordinary_subscriptions_do_not_count(self) -> None:
        client = self.join(1)
        assert client.subscribe("$share/g/t", "t", "u", "+") == [0] * 4

    def test_no_bound(self) -> None:
        client = self.join(0)
        assert client.subscribe(*[f"$share/g{number}/t" for number in range(150)]) == [0] * 150


def test_the_match_cache_counts_the_names_of_topics() -> None:
    """16,384 topics of a kilobyte are 16 MB of keys, and as much again in the tree that finds them."""
    cache = MatchCache(create("nodes"), 16_384, max_weight=10_000)
    for number in range(1_000):
        cache.store(b"%d" % number + b"x" * 1_000)
    assert 0 < len(cache) <= 10_000 // ((1_000 - SHORT_NAME_BYTES) // NAME_BYTES)
    cache.clear()
    assert cache.weight == 0


def test_who_subscribes_widely_pays_for_what_the_next_publishers_do() -> None:
    """Each cached topic is compared with the filter when it is next published to: a subscriber causes that in turns."""
    network = Network()
    router = network.router
    topics = 5_000
    for number in range(topics):
        router.cache.store(b"device/%d/b" % number)
    client = network.client("c")
    before = router.budget.used
    client.subscribe("nowhere/+/nothing")
    narrow = router.budget.used - before
    assert narrow < topics
    filters = [f"+/+/{number}" for number in range(20)]
    protocol = client.wire.protocol
    before = router.budget.used
    protocol.receive(encoder.encode(Subscribe(7, [SubscriptionRequest(each, 0) for each in filters]), 5), network.now)
    turns = 1
    while protocol.unfinished:
        protocol.go_on(network.now)
        turns += 1
    assert router.budget.used - before >= OUTDATED_WORK * topics * len(filters)
    assert turns >= OUTDATED_WORK * topics * len(filters) // TURN_WORK


def _deep(count: int) -> list[str]:
    """So many filters of 128 levels that share none of them."""
    return [f"{number}" + "/x" * 126 + "/+" for number in range(count)]


def test_filters_pay_for_the_nodes_that_they_make_and_take_away() -> None:
    """A filter of 128 levels is ten times the work of a short one: 100 of them were 10 milliseconds in one turn."""
    network = Network()
    client = network.client("deep")
    names = _deep(300)
    protocol = client.wire.protocol
    trie = network.router.trie
    most = (TURN_WORK << NODE_SHIFT) + trie.cost(names[0])
    subscribe = encoder.encode(Subscribe(1, [SubscriptionRequest(name, 0) for name in names]), 5)
    for read in (subscribe, encoder.encode(Unsubscribe(2, names), 5)):
        before = trie.bytes
        protocol.receive(read, network.now)
        assert abs(int(trie.bytes) - int(before)) <= most
        while protocol.unfinished:
            before = trie.bytes
            protocol.go_on(network.now)
            assert abs(int(trie.bytes) - int(before)) <= most
    assert (trie.bytes, network.router.table.count) == (0, 0)


def test_ends_of_sessions_pay_for_the_nodes_that_they_take_away() -> None:
    """In one tick as many go as take half a millisecond or one, however many levels they have."""
    network = Network()
    router = network.router
    client = network.client("deep")
    names = _deep(300)
    client.subscribe(*names)
    each = router.trie.cost(names[0])
    most = (DROPS << DROP_NODES) + each
    before = router.trie.bytes
    client.cut()
    assert before - router.trie.bytes <= (DROPS_AT_ONCE << DROP_NODES) + each
    more = True
    while more:
        before = router.trie.bytes
        more = router.tick(network.now)
        assert before - router.trie.bytes <= most
    assert router.trie.bytes == 0
