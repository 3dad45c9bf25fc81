"""From filters to receivers: merged recipients and what they hold, and how a member of a share group is found."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.jobs import OBJECT_WORK
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.fanout import MAX_MEMBERS_TRIED
from canopy_mqtt.core.routing.peers import PeerDisconnected
from canopy_mqtt.core.routing.recipients import MERGED_WEIGHT, lowered, merge
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import NODE_WEIGHT
from canopy_mqtt.core.topics.route import Recipient, subscription_identifiers, without_own
from canopy_mqtt.core.topics.subscription import SharedGroup, Subscription
from tests.core.harness import Client, Network, limits
from tests.support.losses import dropped_by_cause
from tests.support.sessions import any_session

MANY = 2_000


def message(topic: bytes = b"t", qos: int = 0) -> Message:
    """A message of the broker's own."""
    return Message(topic, b"x", qos, False, b"", 0.0, "")


def subscription(identifier: int = 0, qos: int = 0, no_local: bool = False, as_published: bool = False) -> Subscription:
    return Subscription(any_session(), "t", qos, no_local, as_published, 0, identifier)


class TestMerge:
    """One session's share."""

    def test_joins(self) -> None:
        """The highest QoS, every identifier in order, and the flags that any of them has [MQTT-3.3.4-2]."""
        made = merge([subscription(7), subscription(0, 2), subscription(9, 1, as_published=True)])
        assert (made.qos, made.retain_as_published, made.no_local, made.plain) == (2, True, False, False)
        assert subscription_identifiers(made) == (7, 9)
        assert without_own(made) is None

    def test_one_alone_is_the_recipient(self) -> None:
        """Nothing is made for it; its own messages with No Local do not come to it [MQTT-3.8.3-3]."""
        one = subscription(7, no_local=True)
        assert merge([one]) is one
        assert without_own(one) is None
        assert subscription_identifiers(one) == (7,)

    def test_rest_without_no_local(self) -> None:
        """What a session's own messages get is worked out once, with the recipient [MQTT-3.8.3-3]."""
        other = subscription(8, 1)
        made = merge([subscription(7, 2, no_local=True), other, subscription(9, no_local=True)])
        assert (made.qos, subscription_identifiers(made), made.no_local) == (2, (7, 8, 9), True)
        assert without_own(made) is other

    def test_lowered(self) -> None:
        """Access control allows less: the QoS is lower, and what else was agreed stays."""
        plain = lowered(subscription(0, 2), 1)
        assert (plain.qos, plain.plain, subscription_identifiers(plain)) == (1, True, ())
        made = merge([subscription(7, 2, no_local=True), subscription(8, 2), subscription(9, 1)])
        lower = lowered(made, 1)
        assert (lower.qos, lower.no_local, subscription_identifiers(lower)) == (1, True, (7, 8, 9))
        others = without_own(lower)
        assert others is not None
        assert (others.qos, subscription_identifiers(others)) == (1, (8, 9))

    def test_at_most_two_kinds(self) -> None:
        """More would make each check of a receiver's type walk its base classes."""
        assert len(Recipient.__subclasses__()) == 2
        assert not any(kind.__subclasses__() for kind in Recipient.__subclasses__())


def overlapping(count: int) -> list[str]:
    """Filters that all match `a/a/…` of eleven levels."""
    assert count <= 1 << 11
    return ["/".join("+" if number >> bit & 1 else "a" for bit in range(11)) for number in range(count)]


class TestPlan:
    """What is remembered for a topic that several filters match."""

    @pytest.mark.crowd
    def test_overlapping_filters_with_identifiers(self) -> None:
        """One delivery with all identifiers [MQTT-3.3.4-3]; the plan is made once, and weighs what it holds."""
        network = Network()
        client, publisher = network.client("c"), network.client("p")
        for number, topic_filter in enumerate(overlapping(MANY), 1):
            client.subscribe(topic_filter, identifier=number)
        topic = "/".join("a" * 11)
        publisher.publish(topic, b"1")
        route = network.router.cache.lookup(topic.encode())
        assert route is not None
        sole = route.sole
        publisher.publish(topic, b"2")
        assert sole is not None
        assert route.sole is sole
        received = client.take()
        assert [sorted(packet.subscription_ids) for packet in received] == [list(range(1, MANY + 1))] * 2
        assert route.weight == 1 + MANY + 1 + MERGED_WEIGHT + MANY
        assert network.router.cache.weight == route.weight + 11 * NODE_WEIGHT
        client.unsubscribe(overlapping(2)[1])
        publisher.publish(topic, b"3")
        [packet] = client.take()
        assert sorted(packet.subscription_ids) == [1, *range(3, MANY + 1)]

    def test_making_a_plan_is_charged(self) -> None:
        """Whoever has a large one made again and again does not get it for the price of a message."""
        router = Network().router
        before = router.budget.used
        session = Session("c", 0, 0, router.counters)
        for topic_filter in overlapping(64):
            router.subscribe(session, "", topic_filter, Request(topic_filter), 5)
        topic = "/".join("a" * 11).encode()
        router.publish(message(topic), None)
        assert router.budget.used - before >= 64
        before = router.budget.used
        router.publish(message(topic), None)
        assert router.budget.used - before == OBJECT_WORK

    def test_a_new_filter_is_charged(self) -> None:
        """By what it matches among the topics that are remembered; one that is there already costs nothing."""
        router = Network().router
        for number in range(200):
            router.publish(message(b"t/%d" % number), None)
        session = Session("c", 0, 0, router.counters)
        before = router.budget.used
        router.subscribe(session, "", "t/+", Request("t/+", 0), 0)
        assert router.budget.used - before >= 2 * 200
        before = router.budget.used
        router.subscribe(session, "", "t/+", Request("t/+", 1), 0)
        assert router.budget.used == before

    def test_own_messages(self) -> None:
        """Subscriptions with No Local count for others' messages only, each time [MQTT-3.8.3-3]."""
        network = Network()
        client, other = network.client("c"), network.client("o")
        client.subscribe(Request("t/+", 1, no_local=True), qos=1, identifier=1)
        client.subscribe(Request("t/#", 0), identifier=2)
        for _ in range(2):
            client.publish("t/a", b"own", 1)
            other.publish("t/a", b"other", 1)
            got = [(packet.payload, packet.qos, sorted(packet.subscription_ids)) for packet in client.take()]
            assert got == [(b"own", 0, [2]), (b"other", 1, [1, 2])]


def group_of(network: Network, name: str = "$share/g/t") -> SharedGroup:
    entry = network.router.trie.find(name.split("/", 2)[2])
    assert entry is not None
    return entry.groups["g"]


def absent(network: Network, count: int) -> None:
    """Sessions that subscribed to the group and left."""
    router = network.router
    for number in range(count):
        session, _ = router.connect(
            f"away{number}", False, SendBuffer([], router.counters, 0, 0), 5, 1, True, network.now
        )
        session.expiry_interval = 1_000
        router.subscribe(session, "g", "t", Request("$share/g/t", 1), 0)
        assert session.send_buffer is not None
        router.peers.post(PeerDisconnected(session, session.send_buffer, "connection-lost"))
    router.peers.drain(router, network.now)


class TestShared:
    """Whose turn it is."""

    def test_absent_members_cost_nothing(self) -> None:
        """Counted in members asked: one, however many are away (section 4.8.2)."""
        network = Network()
        absent(network, MANY)
        clients = [network.client(f"m{number}") for number in range(3)]
        for client in clients:
            client.subscribe("$share/g/t", qos=1)
        group = group_of(network)
        assert (group.connected.count, group.away.count) == (3, MANY)
        for number in range(30):
            assert network.router.publish(message(qos=number % 2), None) == 1
            assert group.connected.cursor == number % 3 + 1
        network.settle()
        assert [len(client.take()) for client in clients] == [10] * 3

    def test_search_for_room_is_bounded(self) -> None:
        """With nobody ready, so many are asked and no more; then the next in turn takes it, ready or not."""
        network = Network(limits(live_messages=1))
        count = 3 * MAX_MEMBERS_TRIED
        clients = [network.client(f"m{number}") for number in range(count)]
        for client in clients:
            client.subscribe("$share/g/t")
            client.wire.frozen = True
        group, router = group_of(network), network.router
        for number in range(count):
            router.publish(message(), None)
            assert group.connected.cursor == number + 1
        assert [client.wire.send_buffer.messages for client in clients] == [1] * count
        group.connected.cursor = 0
        router.publish(message(), None)
        assert group.connected.cursor == MAX_MEMBERS_TRIED + 1
        refused = group.connected.members[MAX_MEMBERS_TRIED].session
        assert isinstance(refused, Session)
        assert sum(dropped_by_cause(refused)) == 1

    def test_those_without_room_take_turns(self) -> None:
        """Where none of a few has room, the load is not laid upon one of them alone."""
        network = Network(limits(live_messages=1))
        clients = [network.client(f"m{number}") for number in range(4)]
        for client in clients:
            client.subscribe("$share/g/t", qos=1)
            client.wire.frozen = True
        for _ in range(4 + 40):
            network.router.publish(message(qos=1), None)
        waiting = [len(client.session.queue.pending or ()) for client in clients]
        assert waiting == [10] * 4

    def test_rotation_is_fair_while_others_come_and_go(self) -> None:
        """Who stays connected gets as much as the others who do."""
        network = Network()
        steady = [network.client(f"s{number}") for number in range(4)]
        moving = [network.client(f"m{number}", expiry=1_000) for number in range(3)]
        for client in [*steady, *moving]:
            client.subscribe("$share/g/t")
        for turn in range(70):
            _come_or_go(moving[turn % 3])
            for _ in range(12):
                network.router.publish(message(), None)
            network.settle()
        shares = [len(client.take()) for client in steady]
        assert sum(shares) > 70 * 12 // 2
        assert max(shares) - min(shares) <= sum(shares) // 20


def _come_or_go(client: Client) -> None:
    if client.session.send_buffer is None:
        client.connect(clean=False, expiry=1_000)
    else:
        client.cut()
        client.network.settle()
