"""What is published where brokers share sessions: what their store is given, and what is live."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, Ack, Publish, SubscriptionRequest, Will
from canopy_mqtt.core.codec.reason_codes import IMPLEMENTATION_SPECIFIC_ERROR, NO_MATCHING_SUBSCRIBERS, SUCCESS
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from tests.core.harness import Client
from tests.core.shared_store import SharedNetwork


def network(*filters: str) -> SharedNetwork:
    """A broker that knows these filters, numbered from 1 on."""
    net = SharedNetwork()
    assert net.store.filters is not None
    for number, each in enumerate(filters, 1):
        net.store.filters.change(number, each, False)
    return net


def kept(net: SharedNetwork) -> list[tuple[bytes, list[int], str | None, int]]:
    return [(each.payload, each.filters, each.client_id, each.packet_id) for each in net.store.kept]


def answers(client: Client, kind: int) -> list[int]:
    return [each.reason_code for each in client.got(Ack) if each.kind == kind]


# -- what the store is given -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_a_message_that_a_filter_matches_is_kept_before_it_is_acknowledged(times: int) -> None:
    """Also one of a topic that was published before, and several in one read: no shorter way is taken."""
    net = network("a/#", "+/b", "c")
    sender = net.client("p")
    for _ in range(times):
        sender.post("a/b", b"x", 1)
    net.settle()
    assert kept(net) == [(b"x", [1, 2], None, 0)] * times
    assert answers(sender, PUBACK) == []
    net.commit()
    assert answers(sender, PUBACK) == [SUCCESS] * times


def test_the_store_is_asked_about_a_message_that_no_filter_matches() -> None:
    """A client of another node may have subscribed already. QoS 0 is live."""
    net = network("a")
    sender = net.client("p")
    sender.publish("b", b"x", 1)
    sender.publish("a", b"x", 0)
    assert kept(net) == [(b"x", [], None, 0)]
    assert answers(sender, PUBACK) == []
    net.commit()
    assert answers(sender, PUBACK) == [NO_MATCHING_SUBSCRIBERS]


def test_each_message_is_kept_while_the_filters_are_not_known() -> None:
    net = network()
    net.store.filters = None
    sender = net.client("p")
    sender.publish("b", b"x", 1)
    assert kept(net) == [(b"x", [], None, 0)]
    net.commit()
    assert answers(sender, PUBACK) == [SUCCESS]


def test_a_durable_publisher_is_named_for_no_local() -> None:
    net = network("a")
    net.durable("p").publish("a", b"x", 1)
    assert kept(net) == [(b"x", [1], "p", 0)]


def test_each_publish_of_qos_2_of_a_durable_session_is_kept_with_its_identifier() -> None:
    """So that it is not routed again at another broker. Once, however often it comes here."""
    net = network("a")
    sender = net.durable("p")
    matched = sender.publish("a", b"x", 2)
    unmatched = sender.publish("b", b"y", 2)
    sender.send(Publish(b"b", b"y", 2, False, True, unmatched.packet_id))
    net.settle()
    assert kept(net) == [(b"x", [1], "p", matched.packet_id), (b"y", [], "p", unmatched.packet_id)]
    assert answers(sender, PUBREC) == []
    net.commit()
    assert answers(sender, PUBREC) == [SUCCESS, NO_MATCHING_SUBSCRIBERS, SUCCESS]


def test_a_publish_of_qos_2_of_a_clean_session_has_no_identifier() -> None:
    net = network("a")
    sender = net.client("p")
    sender.publish("a", b"x", 2)
    sender.publish("b", b"x", 2)
    assert kept(net) == [(b"x", [1], None, 0), (b"x", [], None, 0)]


def test_a_message_to_very_many_is_kept_before_they_have_it() -> None:
    net = network("a")
    net.router.fanout.at_once = 3
    for number in range(5):
        net.client(f"c{number}").subscribe("a", "+", qos=1)
    sender = net.client("p")
    sender.post("a", b"x", 1)
    sender.wire.to_channel()
    assert net.router.fanout.broadcasting
    assert kept(net) == [(b"x", [1], None, 0)]


def test_what_another_node_sends_is_kept_there() -> None:
    net = network("a")
    link = net.client("watcher")
    link.subscribe("a", qos=1)
    net.router.publish(Message(b"a", b"x", 1, False, b"", 0.0, "$upstream/$node/b"), None)
    net.settle()
    assert [each.payload for each in link.inbox] == [b"x"]
    assert kept(net) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_kept_as_any_message(qos: int) -> None:
    """One of QoS 2 comes from nobody who could send it again."""
    net = network("will")
    net.durable("p", will=Will("will", b"gone", qos, False, 0)).cut()
    assert kept(net) == [(b"gone", [1], "p" if qos == 1 else None, 0)][: qos and 1]


def test_what_is_refused_is_not_kept() -> None:
    net = network("a")
    net.router.access_control = Denies()
    sender = net.durable("p")
    sender.publish("a", b"x", 2)
    assert kept(net) == []


# -- what is live ------------------------------------------------------------------------------------------------------


def test_a_durable_session_gets_qos_1_and_2_from_the_store_alone() -> None:
    net = network("a")
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
    net = network()
    client = net.subscriber("c", "a", 0)
    net.client("p").publish("a", b"x", 1)
    assert [(each.payload, each.qos) for each in client.inbox] == [(b"x", 0)]
    assert kept(net) == [(b"x", [], None, 0)]


def test_what_the_store_has_is_sent_in_its_order_within_receive_maximum() -> None:
    net = network("a")
    client = net.durable("c", receive_maximum=2)
    client.answering = False
    net.take("c", b"1", b"2", b"3", qos=1)
    assert [each.payload for each in client.inbox] == [b"1", b"2"]
    client.answer(1)
    net.commit()
    assert [each.payload for each in client.inbox] == [b"1", b"2", b"3"]


def test_access_control_is_asked_about_what_the_store_has() -> None:
    net = network("a")
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
    net = network()
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
    net = network("a")
    client = net.durable("c") if lasts else net.client("c")
    client.send(p.Subscribe(client.take_id(), [SubscriptionRequest("$share/g/a", 2)]))
    net.settle()
    net.commit()
    assert client.got(p.Suback)[0].reason_codes == [2]
    assert ("subscribed", "c", "$share/g/a", 2) in net.journal.told
    sender = net.client("p")
    for qos in (0, 1, 2):
        sender.publish("a", b"%d" % qos, qos)
    assert [each.payload for each in client.inbox] == [b"0"]
    assert [filters for _, filters, *_ in kept(net)] == [[1], [1]]


def test_a_member_of_a_share_group_has_its_session_in_the_store() -> None:
    net = network()
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
