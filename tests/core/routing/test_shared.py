"""Shared subscriptions: who gets a message, and what becomes of it when that member goes."""

from __future__ import annotations

from itertools import product

from canopy_mqtt.core.codec.packets import V5, V311
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import Properties
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.support.runs import for_each

GROUP = "$share/g/t/#"


def members(
    network: Network, count: int, qos: int = 2, expiry: int = 1_000, topic_filter: str = GROUP, **connect: int
) -> list[Client]:
    """Members of one group, with sessions to keep."""
    made = []
    for number in range(count):
        member = network.idle(f"m{number}")
        member.connect(clean=False, expiry=expiry, **connect)  # type: ignore[arg-type]
        assert member.subscribe(topic_filter, qos=qos) == [qos]
        made.append(member)
    return made


def held(clients: list[Client]) -> list[bytes]:
    """All payloads that some clients got, sorted."""
    return sorted(payload for client in clients for payload in client.payloads())


class TestBalance:
    """Each message goes to one member, in turn."""

    @for_each(("version", "qos"), [*product((V311, V5), (0, 1, 2))])
    def test_one_each(self, version: int, qos: int) -> None:
        """Members of both versions share evenly [MQTT-4.8.2-1]."""
        network = Network()
        clients = [network.client(f"m{number}", version) for number in range(4)]
        for client in clients:
            client.subscribe(GROUP, qos=2)
        publisher = network.client("p")
        for number in range(40):
            publisher.publish("t/a", bytes((number,)), qos)
        shares = [client.payloads() for client in clients]
        assert [len(share) for share in shares] == [10] * 4
        assert sorted(payload for share in shares for payload in share) == [bytes((number,)) for number in range(40)]

    def test_groups_are_apart(self) -> None:
        """Two groups and an ordinary subscription each get every message."""
        network = Network()
        one, two, plain = (network.client(name) for name in ("one", "two", "plain"))
        one.subscribe("$share/g/t")
        two.subscribe("$share/h/t")
        plain.subscribe("t")
        network.client("p").publish("t", b"x")
        assert [client.payloads() for client in (one, two, plain)] == [[b"x"]] * 3

    def test_shared_and_ordinary_at_once(self) -> None:
        """A client with both gets both copies; unsubscribing the one leaves the other [MQTT-3.10.4-1]."""
        network = Network()
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("t", identifier=1)
        client.subscribe("$share/g/t", identifier=2)
        publisher.publish("t", b"x")
        assert sorted(packet.subscription_ids for packet in client.take()) == [(1,), (2,)]
        assert client.unsubscribe("$share/g/t") == [0]
        publisher.publish("t", b"y")
        assert [packet.subscription_ids for packet in client.take()] == [(1,)]

    @for_each("qos", [0, 1])
    def test_member_without_room_is_passed_over(self, qos: int) -> None:
        """A member that does not read does not hold up the group."""
        network = Network(limits(live_messages=2, max_inflight=2))
        clients = members(network, 3, qos=1)
        clients[1].wire.frozen = True
        publisher = network.client("p")
        for number in range(60):
            publisher.publish("t/a", bytes((number,)), qos)
        clients[1].wire.frozen = False
        network.settle()
        assert held(clients) == [bytes((number,)) for number in range(60)]

    def test_offline_member_is_passed_over(self) -> None:
        """With somebody connected nobody waits for those who are away."""
        network = Network()
        clients = members(network, 3)
        for client in clients[:2]:
            client.cut()
        publisher = network.client("p")
        for number in range(9):
            publisher.publish("t/a", bytes((number,)), number % 3)
        assert clients[2].payloads() == [bytes((number,)) for number in range(9)]

    def test_all_away(self) -> None:
        """With nobody connected a kept session takes the message, and gives it when its client is back."""
        network = Network()
        clients = members(network, 2)
        for client in clients:
            client.cut()
        publisher = network.client("p")
        for number in range(6):
            publisher.publish("t/a", bytes((number,)), 1)
        for client in clients:
            client.connect(clean=False, expiry=1_000)
        assert held(clients) == [bytes((number,)) for number in range(6)]


class TestLeaving:
    """What a member leaves behind goes to another; QoS 2 that was sent does not."""

    @for_each(("expiry", "how"), [*product((0, 1_000), ("cut", "disconnect", "takeover"))])
    def test_unacknowledged_goes_to_another(self, expiry: int, how: str) -> None:
        """QoS 1 without PUBACK, and what had not been sent, arrives at another member."""
        network = Network()
        leaving, staying = members(network, 2, qos=1, expiry=expiry, receive_maximum=2)
        leaving.answering = False
        publisher = network.client("p")
        for number in range(20):
            publisher.publish("t/a", bytes((number,)), 1)
        kept = set(staying.payloads())
        leaving.answering = True
        leaving.unanswered = []
        if how == "cut":
            leaving.cut()
            network.settle()
        elif how == "disconnect":
            leaving.disconnect()
        else:
            leaving.take()
            leaving.connect(clean=True)
        assert kept | set(staying.payloads()) == {bytes((number,)) for number in range(20)}
        assert total_ledger(network.router.sessions.values()) == []

    def test_not_sent_quality_two_goes_to_another(self) -> None:
        """QoS 2 that waits behind the window has not been sent: another member gets it, once."""
        network = Network()
        leaving, staying = members(network, 2, receive_maximum=1)
        leaving.answering = False
        publisher = network.client("p")
        for number in range(10):
            publisher.publish("t/a", bytes((number,)), 2)
        [sent] = leaving.payloads()
        leaving.cut()
        network.settle()
        assert sorted([sent, *staying.payloads()]) == [bytes((number,)) for number in range(10)]
        leaving.answering = True
        leaving.connect(clean=False, expiry=1_000)
        assert leaving.payloads() == []  # DUP of what it has already

    def test_last_member_keeps_its_own(self) -> None:
        """With nobody to take them, messages wait for their member."""
        network = Network()
        [member] = members(network, 1, qos=1)
        member.answering = False
        publisher = network.client("p")
        publisher.publish("t/a", b"1", 1)
        member.take()
        member.cut()
        publisher.publish("t/a", b"2", 1)
        member.answering = True
        member.connect(clean=False, expiry=1_000)
        assert [(packet.payload, packet.dup) for packet in member.take()] == [(b"1", True), (b"2", False)]

    def test_expired_session_of_an_offline_member(self) -> None:
        """What waited in a session that expires goes to another member, even one that is away, too."""
        network = Network()
        first, second = members(network, 2, qos=1)
        first.cut()
        second.disconnect(properties=_expiry(10_000))
        publisher = network.client("p")
        for number in range(6):
            publisher.publish("t/a", bytes((number,)), 1)
        network.advance(1_001)
        assert "m0" not in network.router.sessions
        second.connect(clean=False, expiry=1_000)
        assert sorted(second.payloads()) == [bytes((number,)) for number in range(6)]

    def test_nothing_is_left_in_the_trie(self) -> None:
        """Groups go with their last member."""
        network = Network()
        clients = members(network, 3)
        for client in clients:
            client.disconnect(properties=_expiry(0))
        assert len(network.router.trie) == 0
        assert network.router.subscription_count == 0


class TestRules:
    """What may not be asked for."""


def _expiry(seconds: int) -> Properties:
    return bag(i={0x11: seconds})


@for_each("keeps", [False, True])
def test_retain_as_published_is_of_the_member_that_gets_it(keeps: bool) -> None:
    """Also of a message that another member left behind: its own option counts [MQTT-3.3.1-12] [MQTT-3.3.1-13]."""
    network = Network()
    leaves, stays, publisher = network.client("leaves"), network.client("stays"), network.client("p")
    leaves.subscribe(Request("$share/g/t", 1, False, not keeps, 0))
    leaves.wire.frozen = True
    publisher.publish("t", b"x", 1, True)
    stays.subscribe(Request("$share/g/t", 1, False, keeps, 0))
    leaves.cut()
    network.settle()
    assert [(packet.payload, packet.retain) for packet in stays.take()] == [(b"x", keeps)]
