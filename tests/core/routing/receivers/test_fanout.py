"""From filters to receivers: merged plans and what they hold, and how a member of a share group is found."""

from __future__ import annotations

from broker.core.codec.packets import SubscriptionRequest as Request
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import Message
from broker.core.routing.peers import PeerDisconnected
from broker.core.routing.receivers.fanout import SLOW, TRIES
from broker.core.routing.receivers.plans import Recipient
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.topics.match_cache import NODE_WEIGHT
from broker.core.topics.subscription import SharedGroup, Subscription
from tests.core.harness import Client, Network, limits
from tests.support.losses import dropped_by_cause

MANY = 2_000


def message(topic: bytes = b"t", qos: int = 0) -> Message:
    """A message of the broker's own."""
    return Message(topic, b"x", qos, False, b"", 0.0, "")


def subscription(identifier: int = 0, qos: int = 0, no_local: bool = False, as_published: bool = False) -> Subscription:
    return Subscription(Session("c", 0, 0, Router(limits()).counters), "t", qos, no_local, as_published, 0, identifier)


def target(*subscriptions: Subscription) -> tuple[Recipient, int]:
    """A settled target, and what it says that it holds."""
    made = Recipient(Session("c", 0, 0, Router(limits()).counters))
    for one in subscriptions:
        made.add(one)
    made.settle()
    return made, int(made.references())


class TestTarget:
    """One session's share."""

    def test_joins(self) -> None:
        """The highest QoS, every identifier in order, and the flags that any of them has [MQTT-3.3.4-2]."""
        made, held = target(subscription(7), subscription(0, 2), subscription(9, 1, as_published=True))
        assert (made.qos, made.identifiers, made.retain_as_published, made.no_local) == (2, (7, 9), True, False)
        assert made.rest is None
        assert held == 1 + 2

    def test_rest_without_no_local(self) -> None:
        """What a session's own messages get is worked out once, with the plan [MQTT-3.8.3-3]."""
        made, held = target(subscription(7, 2, no_local=True), subscription(8, 1), subscription(9, no_local=True))
        assert (made.qos, made.identifiers, made.no_local) == (2, (7, 8, 9), True)
        rest = made.rest
        assert rest is not None
        assert (rest.qos, rest.identifiers, rest.no_local) == (1, (8,), False)
        assert held == (1 + 3) + (1 + 1)
        nothing, held = target(subscription(7, no_local=True))
        assert nothing.rest is None
        assert held == 2

    def test_thousands_of_identifiers(self) -> None:
        """They are one tuple, made when all are there, and the same one for every message."""
        made = Recipient(Session("c", 0, 0, Router(limits()).counters))
        for number in range(1, MANY + 1):
            made.add(subscription(number))
            assert made.identifiers == ()
        made.settle()
        assert made.references() == 1 + MANY
        assert made.identifiers == tuple(range(1, MANY + 1))


def overlapping(count: int) -> list[str]:
    """Filters that all match `a/a/…` of eleven levels."""
    assert count <= 1 << 11
    return ["/".join("+" if number >> bit & 1 else "a" for bit in range(11)) for number in range(count)]


class TestPlan:
    """What is remembered for a topic that several filters match."""

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
        plan = route.plan
        publisher.publish(topic, b"2")
        assert route.plan is plan
        received = client.take()
        assert [sorted(packet.subscription_ids) for packet in received] == [list(range(1, MANY + 1))] * 2
        assert route.weight == 1 + MANY + 1 + MANY
        assert network.router.cache.weight == route.weight + 11 * NODE_WEIGHT
        client.unsubscribe(overlapping(2)[1])
        publisher.publish(topic, b"3")
        [packet] = client.take()
        assert sorted(packet.subscription_ids) == [1, *range(3, MANY + 1)]

    def test_making_a_plan_is_charged(self) -> None:
        """Whoever has a large one made again and again does not get it for the price of a message."""
        router = Network().router
        before = router.work
        session = Session("c", 0, 0, router.counters)
        for topic_filter in overlapping(64):
            router.subscribe(session, "", topic_filter, Request(topic_filter), 5)
        topic = "/".join("a" * 11).encode()
        router.publish(message(topic), None)
        assert router.work - before >= 64
        before = router.work
        router.publish(message(topic), None)
        assert router.work - before == SLOW

    def test_a_new_filter_is_charged(self) -> None:
        """By what it matches among the topics that are remembered; one that is there already costs nothing."""
        router = Network().router
        for number in range(200):
            router.publish(message(b"t/%d" % number), None)
        session = Session("c", 0, 0, router.counters)
        before = router.work
        router.subscribe(session, "", "t/+", Request("t/+", 0), 0)
        assert router.work - before >= 2 * 200
        before = router.work
        router.subscribe(session, "", "t/+", Request("t/+", 1), 0)
        assert router.work == before

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
        session, _ = router.connect(f"away{number}", False, Outbox([], router.counters, 0, 0), 5, 1, True, network.now)
        session.expiry_interval = 1_000
        router.subscribe(session, "g", "t", Request("$share/g/t", 1), 0)
        assert session.outbox is not None
        router.peers.post(PeerDisconnected(session, session.outbox, "connection-lost"))
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
        count = 3 * TRIES
        clients = [network.client(f"m{number}") for number in range(count)]
        for client in clients:
            client.subscribe("$share/g/t")
            client.wire.frozen = True
        group, router = group_of(network), network.router
        for number in range(count):
            router.publish(message(), None)
            assert group.connected.cursor == number + 1
        assert [client.wire.outbox.messages for client in clients] == [1] * count
        group.connected.cursor = 0
        router.publish(message(), None)
        assert group.connected.cursor == TRIES + 1
        refused = group.connected.members[TRIES].session
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
    if client.session.outbox is None:
        client.connect(clean=False, expiry=1_000)
    else:
        client.cut()
        client.network.settle()
