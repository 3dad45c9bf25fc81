"""From filters to receivers: of two kinds, and how a member of a share group is found."""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.fanout import MAX_MEMBERS_TRIED
from canopy_mqtt.core.routing.peers import PeerDisconnected
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Recipient, SharedGroup
from tests.core.harness import Client, Network, limits
from tests.support.losses import dropped_by_cause
from tests.support.sessions import members

MANY = 2_000


def message(topic: bytes = b"t", qos: int = 0) -> Message:
    """A message of the broker's own."""
    return Message(topic, b"x", qos, False, b"", 0.0, "")


def test_there_are_two_kinds_of_recipients_at_most() -> None:
    """More would make each check of a receiver's type walk its base classes."""
    assert len(Recipient.__subclasses__()) == 2
    assert not any(kind.__subclasses__() for kind in Recipient.__subclasses__())


def group_of(network: Network) -> SharedGroup:
    entry = network.router.trie.find("t")
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
        router.peers.events.append(PeerDisconnected(session, session.send_buffer, "connection-lost"))
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
        refused = members(group.connected)[MAX_MEMBERS_TRIED].session
        assert isinstance(refused, Session)
        assert sum(dropped_by_cause(refused)) == 1

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
