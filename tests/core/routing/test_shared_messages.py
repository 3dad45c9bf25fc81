"""What is published where brokers share sessions: what their store is given, and what is live."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, Ack, Publish, SubscriptionRequest, Will
from canopy_mqtt.core.codec.reason_codes import IMPLEMENTATION_SPECIFIC_ERROR, SUCCESS
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from tests.core.harness import Client
from tests.core.shared_store import SharedNetwork


def kept(net: SharedNetwork) -> list[tuple[bytes, str | None, int]]:
    return [(each.payload, each.client_id, each.packet_id) for each in net.store.kept]


def answers(client: Client, kind: int) -> list[int]:
    return [each.reason_code for each in client.got(Ack) if each.kind == kind]


# -- what the store is given -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_a_message_is_kept_before_it_is_acknowledged(times: int) -> None:
    """Also one of a topic that was published before, and several in one read: no shorter way is taken."""
    net = SharedNetwork()
    sender = net.client("p")
    for _ in range(times):
        sender.post("a/b", b"x", 1)
    net.settle()
    assert kept(net) == [(b"x", None, 0)] * times
    assert answers(sender, PUBACK) == []
    net.commit()
    assert answers(sender, PUBACK) == [SUCCESS] * times


def test_no_answer_says_that_there_are_no_subscribers() -> None:
    """A client of another node may have subscribed already."""
    net = SharedNetwork()
    sender = net.client("p")
    sender.publish("b", b"x", 1)
    sender.publish("b", b"y", 2)
    net.commit()
    assert answers(sender, PUBACK) == answers(sender, PUBREC) == [SUCCESS]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_kept_of_a_message(qos: int, durable: bool) -> None:
    """A durable publisher is named, for No Local; its publishes of QoS 2 have their identifiers, too."""
    net = SharedNetwork()
    packet = (net.durable("p") if durable else net.client("p")).publish("a", b"x", qos)
    expected = (b"x", "p" if durable else None, packet.packet_id if durable and qos == 2 else 0)
    assert kept(net) == [expected][: qos and 1]


def test_each_publish_of_qos_2_of_a_durable_session_is_kept_with_its_identifier() -> None:
    """So that it is not routed again at another broker. Once, however often it comes here."""
    net = SharedNetwork()
    sender = net.durable("p")
    first = sender.publish("a", b"x", 2)
    second = sender.publish("b", b"y", 2)
    sender.send(Publish(b"b", b"y", 2, False, True, second.packet_id))
    net.settle()
    assert kept(net) == [(b"x", "p", first.packet_id), (b"y", "p", second.packet_id)]
    assert answers(sender, PUBREC) == []
    net.commit()
    assert answers(sender, PUBREC) == [SUCCESS, SUCCESS, SUCCESS]


def test_a_publish_of_qos_2_of_a_durable_session_is_live_when_the_store_has_it() -> None:
    """The store knows whether its client had sent it to another broker before."""
    net = SharedNetwork()
    watcher = net.client("c")
    watcher.subscribe("#", qos=2)
    sender = net.durable("p")
    sender.publish("a", b"x", 2, retain=True)
    sender.publish("b", b"y", 2, retain=True)
    assert (watcher.inbox, net.router.retained_store.tree.get("a")) == ([], None)
    net.store.live[1]()
    net.settle()
    assert [each.payload for each in watcher.inbox] == [b"y"]
    assert [net.router.retained_store.tree.get(topic) is None for topic in "ab"] == [True, False]
    assert len(net.store.kept) == 2


def test_a_message_to_very_many_is_kept_before_they_have_it() -> None:
    net = SharedNetwork()
    net.router.fanout.at_once = 3
    for number in range(5):
        net.client(f"c{number}").subscribe("a", "+", qos=1)
    sender = net.client("p")
    sender.post("a", b"x", 1)
    sender.wire.to_channel()
    assert net.router.fanout.broadcasting
    assert kept(net) == [(b"x", None, 0)]


def test_what_another_node_sends_is_kept_there() -> None:
    net = SharedNetwork()
    link = net.client("watcher")
    link.subscribe("a", qos=1)
    net.router.publish(Message(b"a", b"x", 1, False, b"", 0.0, "$upstream/$node/b"), None)
    net.settle()
    assert [each.payload for each in link.inbox] == [b"x"]
    assert kept(net) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_that_the_store_does_not_have_is_kept_as_any_message(qos: int) -> None:
    """One of a client that was let in while the store was away."""
    net = SharedNetwork()
    client = net.idle("p")
    client.connect(will=Will("will", b"gone", qos))
    client.cut()
    assert kept(net) == [(b"gone", None, 0)][: qos and 1]


def test_what_is_refused_is_not_kept() -> None:
    net = SharedNetwork()
    net.router.access_control = Denies()
    sender = net.durable("p")
    sender.publish("a", b"x", 2)
    assert kept(net) == []


# -- what is live ------------------------------------------------------------------------------------------------------


def test_a_durable_session_gets_qos_1_and_2_from_the_store_alone() -> None:
    net = SharedNetwork()
    client = net.subscriber("c", "a")
    live = net.client("l")
    live.subscribe("a", qos=2)
    sender = net.client("p")
    for qos in range(3):
        sender.publish("a", b"%d" % qos, qos)
    assert [each.payload for each in client.inbox] == [b"0"]
    assert sorted(each.payload for each in live.inbox) == [b"0", b"1", b"2"]
    net.take("c", b"1", b"2")
    assert [each.payload for each in client.inbox] == [b"0", b"1", b"2"]
    # Its acknowledgements are the journal's.
    assert [told[2] for told in net.journal.told if told[0] == "finished"] == [b"1", b"2"]


def test_what_a_subscription_gets_with_qos_0_is_live() -> None:
    net = SharedNetwork()
    client = net.subscriber("c", "a", 0)
    net.client("p").publish("a", b"x", 1)
    assert [(each.payload, each.qos) for each in client.inbox] == [(b"x", 0)]
    assert kept(net) == [(b"x", None, 0)]


def test_what_the_store_has_is_sent_in_its_order_within_receive_maximum() -> None:
    net = SharedNetwork()
    client = net.durable("c", receive_maximum=2)
    client.answering = False
    net.take("c", b"1", b"2", b"3", qos=1)
    assert [each.payload for each in client.inbox] == [b"1", b"2"]
    client.answer(1)
    net.commit()
    assert [each.payload for each in client.inbox] == [b"1", b"2", b"3"]


def test_access_control_is_asked_about_what_the_store_has() -> None:
    net = SharedNetwork()
    net.router.access_control = Denies()
    client = net.subscriber("c", "#")
    net.take("c", b"x", topic=b"secret")
    net.take("c", b"y", topic=b"lower")
    # With QoS 0 it is live, and the store has it nevertheless.
    net.client("p").publish("lowest", b"z", 1)
    net.take("c", b"z", topic=b"lowest")
    assert [(each.payload, each.qos) for each in client.inbox] == [(b"y", 1), (b"z", 0)]
    assert sorted(told[2] for told in net.journal.told if told[0] == "finished") == [b"x", b"y", b"z"]


def test_what_the_store_does_not_know_comes_with_qos_1_at_most() -> None:
    """Retained messages: an identifier of QoS 2 would stay in use at the client alone."""
    net = SharedNetwork()
    net.client("p").publish("a", b"retained", 2, retain=True)
    client = net.durable("c")
    client.send(p.Subscribe(client.take_id(), [SubscriptionRequest("a", 2)]))
    net.settle()
    net.commit()
    [answer] = client.got(p.Suback)
    assert answer.reason_codes == [2]
    assert [each.qos for each in client.inbox] == [1]


@pytest.mark.parametrize("lasts", [True, False])
def test_a_member_of_a_share_group_gets_qos_0_alone_without_the_store(lasts: bool) -> None:
    """Also one whose session ends with its connection: the store knows its membership, and nothing else of it."""
    net = SharedNetwork()
    client = net.durable("c") if lasts else net.client("c")
    client.send(p.Subscribe(client.take_id(), [SubscriptionRequest("$share/g/a", 2)]))
    net.settle()
    net.commit()
    assert client.got(p.Suback)[0].reason_codes == [2]
    assert ("subscribed", "c", "$share/g/a", 2) in net.journal.told
    sender = net.client("p")
    for qos in (0, 1, 2):
        sender.publish("a", b"%d" % qos, qos)
    net.commit()
    assert [each.payload for each in client.inbox] == [b"0"]
    assert [each.qos for each in net.store.kept] == [1, 2]


def test_a_member_of_a_share_group_has_its_session_in_the_store() -> None:
    net = SharedNetwork()
    net.store.absent.add("c")
    client = net.client("c")
    client.send(p.Subscribe(client.take_id(), [SubscriptionRequest("$share/g/a", 1), SubscriptionRequest("a", 1)]))
    net.settle()
    assert client.got(p.Suback)[0].reason_codes == [IMPLEMENTATION_SPECIFIC_ERROR, 1]


class Denies(AccessControl):
    """Lets nobody publish to "a", nor receive what is secret; and some receive with QoS 1."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.filters_deliveries = True

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, qos, retain
        return topic != "a"

    def receive_qos(self, principal: Principal, topic: str) -> int:
        del principal
        return {"secret": -1, "lower": 1, "lowest": 0}.get(topic, 2)
