"""What is said of one message, case by case; the machine beside this file holds all of it against what happens."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST
from canopy_mqtt.observe.explain.answer import MAX_SHOWN
from canopy_mqtt.observe.explain.explainer import RECEIVER_STEPS, Explainer, Question
from tests.core.harness import Network, limits
from tests.observe.explain.asking import explain, run, traces
from tests.support.losses import dropped_by_cause


def test_who_gets_it_by_which_filters_and_how() -> None:
    network = Network()
    network.client("publisher")
    subscriber = network.client("sensor-7")
    subscriber.subscribe("plant/+/temp", qos=1, identifier=5)
    subscriber.subscribe("plant/#", qos=0)
    network.client("logger").subscribe("other/#")
    answer = explain(network.router, network.now, "plant/1/temp", publisher="publisher", qos=2)
    [receiver] = answer.receivers
    assert (receiver.client_id, receiver.gets, receiver.outcome, receiver.qos) == ("sensor-7", True, "sent", 1)
    assert sorted(each.topic_filter for each in receiver.subscriptions) == ["plant/#", "plant/+/temp"]
    assert "sensor-7 gets it at QoS 1 through " in receiver.sentence
    assert "published at QoS 2, but granted a lower one" in receiver.sentence
    assert sorted(each.topic_filter for each in answer.filters) == ["plant/#", "plant/+/temp"]
    assert answer.cursor is None
    assert answer.unknown


def test_receivers_that_are_left_out_take_no_place_on_a_page() -> None:
    network = Network()
    for name in ("link-w1", "link-w2", "sensor-7"):
        network.client(name).subscribe("a")
    explainer = Explainer(network.router)
    explainer.leaves_out = "link-"
    answer, _ = run(explainer.answer(Question("a"), network.now, "", 1))
    assert [each.client_id for each in answer.receivers] == ["sensor-7"]
    assert answer.cursor is None


def test_a_client_that_has_no_matching_subscription_is_told_why_not() -> None:
    network = Network()
    network.client("a").subscribe("x/1")
    network.client("empty")
    network.client("root").subscribe("#")
    assert explain(network.router, network.now, "y", client="nobody").receivers[0].sentence == (
        "nobody does not get it: it has no session here"
    )
    assert explain(network.router, network.now, "y", client="empty").receivers[0].sentence == (
        "empty does not get it: it has no subscription"
    )
    [receiver] = explain(network.router, network.now, "y", client="a").receivers
    assert (receiver.outcome, receiver.gets) == ("none", False)
    assert receiver.sentence == "a does not get it: its only subscription does not match y"
    [receiver] = explain(network.router, network.now, "$other/y", client="root").receivers
    assert "no topic that begins with $" in receiver.sentence


class Denies(AccessControl):
    """Denies one client to be sent anything, and another to publish."""

    def __init__(self) -> None:
        self.filters_deliveries = True
        self.epoch = 1

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del topic, qos, retain
        return principal.client_id != "silent"

    def receive_qos(self, principal: Principal, topic: str) -> int:
        del topic
        return -1 if principal.client_id == "logger" else 1

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        del qos, retain
        return False, f"rule[12] for {principal.client_id} to {action} {topic}"


def test_the_rule_that_denies_is_named() -> None:
    network = Network()
    network.router.access_control = Denies()
    network.client("silent")
    network.client("logger").subscribe("t", qos=1)
    network.client("other").subscribe("t", qos=2)
    explainer = Explainer(network.router)
    answer, _ = run(explainer.answer(Question("t", qos=2), network.now))
    denied, capped = answer.receivers
    assert denied.outcome == "denied"
    assert denied.sentence == (
        "logger does not (through t): it may not receive this topic, refused by rule[12] for logger to receive t"
    )
    assert (capped.client_id, capped.qos) == ("other", 1)
    answer, _ = run(explainer.answer(Question("t", publisher="silent", qos=1), network.now))
    assert (answer.publisher.accepted, answer.publisher.reason_code) == (False, reason_codes.NOT_AUTHORIZED)
    assert answer.publisher.rule == "rule[12] for silent to publish t"
    assert answer.publisher.sentence == (
        "silent is refused with 0x87 (refused by rule[12] for silent to publish t), and nobody gets it"
    )
    assert answer.receivers == []


@pytest.mark.parametrize(
    ("changed", "asked", "code", "ends"),
    [
        ({"max_qos": 1}, {"qos": 2}, reason_codes.QOS_NOT_SUPPORTED, True),
        ({"retain_available": False}, {"retain": True}, reason_codes.RETAIN_NOT_SUPPORTED, True),
        ({"max_topic_levels": 2}, {"topic": "a/b/c"}, reason_codes.TOPIC_NAME_INVALID, False),
        ({"max_payload_size": 5}, {"size": 6}, reason_codes.QUOTA_EXCEEDED, False),
        ({"max_packet_size": 64}, {"size": 100}, reason_codes.PACKET_TOO_LARGE, True),
        ({}, {"topic": "$SYS/broker/version"}, reason_codes.NOT_AUTHORIZED, False),
        ({}, {"topic": "a\x01"}, reason_codes.MALFORMED_PACKET, True),
    ],
)
def test_a_publish_that_is_refused_reaches_nobody(
    changed: dict[str, int], asked: dict[str, Any], code: int, ends: bool
) -> None:
    network = Network(limits(**changed))
    network.client("publisher")
    network.client("all").subscribe("#", "$SYS/#")
    answer = explain(network.router, network.now, **{"topic": "t", "publisher": "publisher"} | asked)
    assert (answer.publisher.accepted, answer.publisher.reason_code) == (False, code)
    assert answer.publisher.disconnected == ends
    assert answer.receivers == []


def test_what_is_published_to_nobody_remembers_no_topic_and_takes_no_turn() -> None:
    network = Network()
    for name in ("w1", "w2", "w3"):
        network.client(name).subscribe("$share/workers/jobs/+", qos=1)
    publisher = network.client("publisher")
    before = traces(network.router)
    said = []
    for number in range(6):
        answer = explain(network.router, network.now, "jobs/1", publisher="publisher", qos=1)
        assert traces(network.router) == before
        [group] = answer.groups
        assert group.next is not None
        assert group.next.client_id in group.sentence
        said.append(group.next.client_id)
        publisher.publish("jobs/1", b"%d" % number, qos=1)
        before = traces(network.router)
    got = {
        name: sorted(int(each) for each in network.links[at].client.payloads())
        for at, name in enumerate(("w1", "w2", "w3"))
    }
    assert got == {name: [at for at, one in enumerate(said) if one == name] for name in got}


def test_a_member_of_a_group_is_told_of_the_group_and_not_of_others() -> None:
    network = Network()
    network.client("w1").subscribe("$share/g/t")
    network.client("w2").subscribe("$share/other/t")
    answer = explain(network.router, network.now, "t", client="w1")
    assert "member of a share group" in answer.receivers[0].sentence
    assert [group.name for group in answer.groups] == ["g"]


def test_a_group_with_nobody_connected_has_a_queue() -> None:
    network = Network()
    member = network.client("w1", clean=False, expiry=100)
    member.subscribe("$share/g/t", qos=1)
    member.disconnect()
    publisher = network.client("publisher")
    for waiting in (0, 1):
        before = traces(network.router)
        [group] = explain(network.router, network.now, "t", qos=1).groups
        assert traces(network.router) == before
        assert group.next is not None
        assert (group.next.client_id, group.next.outcome, group.waiting) == ("$share/g/t", "waits", waiting)
        assert "waits in the queue of the group" in group.sentence
        publisher.publish("t", b"x", qos=1)


def test_no_local_and_offline_and_away() -> None:
    network = Network()
    own = network.client("own")
    own.send(p.Subscribe(own.take_id(), [Request("t", 1, True)]))
    keeper = network.client("keeper", clean=False, expiry=100)
    keeper.subscribe("t", qos=1)
    keeper.cut()
    network.settle()
    network.advance(0)
    answer = explain(network.router, network.now, "t", publisher="own", qos=1)
    waits, mine = answer.receivers
    assert (waits.client_id, waits.outcome, waits.connected) == ("keeper", "waits", False)
    assert "until its client is back" in waits.sentence
    assert (mine.client_id, mine.outcome) == ("own", "own")
    assert "No Local" in mine.sentence
    [away, _] = explain(network.router, network.now, "t", publisher="own").receivers
    assert (away.outcome, away.cause) == ("dropped", "disconnected")
    assert away.ledger is not None
    assert away.ledger.dropped == {}


def test_a_mounted_client_is_shown_its_own_names() -> None:
    network = Network()
    network.mounted("tenant", p.V5, "t1/").subscribe("a")
    answer = explain(network.router, network.now, "t1/a", publisher="tenant")
    assert answer.publisher.topic == "a"
    assert answer.receivers[0].topic == "a"
    assert not explain(network.router, network.now, "t2/a", publisher="tenant").publisher.accepted


def test_the_limit_that_refuses_a_retained_message_is_named() -> None:
    network = Network(limits(max_retained_messages=1))
    publisher = network.client("publisher")
    publisher.publish("a", b"x", retain=True)
    answer = explain(network.router, network.now, "b", publisher="publisher", retain=True)
    assert answer.retained is not None
    assert (answer.retained.stored, answer.retained.refused_by) == (False, "retained.max_messages")
    answer = explain(network.router, network.now, "a", publisher="publisher", retain=True, size=0)
    assert answer.retained is not None
    assert (answer.retained.clears, answer.retained.present_publisher) == (True, "publisher")


def test_pages_have_everybody_once_in_order_whoever_matches_twice() -> None:
    network = Network()
    names = [f"c{number:03d}" for number in range(230)]
    for name in names:
        network.client(name).subscribe("t/#", "t/1")
    explainer = Explainer(network.router)
    found: list[str] = []
    after = ""
    for _ in range(100):
        answer, _ = run(explainer.answer(Question("t/1"), network.now, after, 7))
        assert len(answer.receivers) <= 7
        found += [receiver.client_id for receiver in answer.receivers]
        if answer.cursor is None:
            break
        after = answer.cursor
    assert found == names


def test_others_have_a_turn_after_each_so_many_steps() -> None:
    network = Network()
    for number in range(300):
        network.client(f"c{number:03d}").subscribe("t")
    explainer = Explainer(network.router, turn=50)
    _, turns = run(explainer.answer(Question("t"), network.now, "", 10))
    assert turns >= (300 + 10 * RECEIVER_STEPS) // 128
    assert run(Explainer(network.router, turn=1_000_000).answer(Question("t"), network.now, "", 10))[1] == 0


def test_who_leaves_while_it_is_worked_out_is_left_out() -> None:
    network = Network()
    for number in range(200):
        network.client(f"c{number:03d}", clean=True).subscribe("t")
    coroutine = Explainer(network.router, turn=20).answer(Question("t"), network.now, "", 100)
    coroutine.send(None)
    for link in list(network.links)[:50]:
        link.client.disconnect()
    network.settle()
    answer, _ = run(coroutine)
    assert [each.client_id for each in answer.receivers] == [f"c{number:03d}" for number in range(50, 100)]


def test_filters_and_groups_of_an_answer_are_bounded() -> None:
    network = Network()
    client = network.client("many")
    client.subscribe(*[f"$share/g{number:03d}/t" for number in range(100)])
    network.client("more").subscribe(*[f"$share/h{number:03d}/t" for number in range(50)])
    answer = explain(network.router, network.now, "t")
    assert (len(answer.groups), answer.more_groups) == (MAX_SHOWN, 50)


def test_a_large_message_takes_no_room_while_it_is_asked_about() -> None:
    network = Network()
    network.client("reader", max_packet=1_000).subscribe("t")
    [receiver] = explain(network.router, network.now, "t", size=200_000_000).receivers
    assert (receiver.outcome, receiver.cause) == ("dropped", "too-large")


@pytest.mark.parametrize(
    ("policy", "gets", "disconnects"),
    [(DROP_NEWEST, False, False), (DROP_OLDEST, True, False), (DISCONNECT, False, True)],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_full_queue_is_said_to_be_full_and_what_its_policy_makes_of_it(
    policy: int, gets: bool, disconnects: bool, qos: int
) -> None:
    network = Network(limits(queue_policy=policy, live_messages=1, session_messages=1, max_inflight=1))
    reader = network.client("reader", clean=False, expiry=100)
    reader.subscribe("t", qos=1)
    reader.wire.frozen, reader.answering = True, False
    sender = network.client("sender")
    for _ in range(1 + qos):
        sender.publish("t", b"x", qos=qos)
    [receiver] = explain(network.router, network.now, "t", qos=qos).receivers
    assert (receiver.gets, receiver.certain, receiver.disconnects) == (gets, False, disconnects)
    sender.publish("t", b"x", qos=qos)
    lost = dropped_by_cause(network.router.sessions["reader"])
    assert lost[DROP_CAUSES.index(receiver.cause or "full-messages")] > 0
    assert ("and its client is disconnected for it" in receiver.sentence) is disconnects


@pytest.mark.parametrize(("size", "certain"), [(100, True), (1_000, False)])
def test_where_all_queues_together_are_full_nothing_is_certain(size: int, certain: bool) -> None:
    network = Network(limits(total_bytes=2_000))
    for name in ("a", "b"):
        network.client(name).subscribe("t")
    answer = explain(network.router, network.now, "t", size=size)
    assert [(each.gets, each.certain) for each in answer.receivers] == [(True, certain)] * 2


def test_the_latest_of_a_topic_replaces_what_waits_also_in_a_full_queue() -> None:
    network = Network(limits(queue_policy=LATEST, session_messages=1))
    reader = network.client("reader", clean=False, expiry=100)
    reader.subscribe("#", qos=1)
    reader.cut()
    network.advance(0)
    network.client("sender").publish("t", b"x", qos=1)
    [same] = explain(network.router, network.now, "t", qos=1).receivers
    [other] = explain(network.router, network.now, "u", qos=1).receivers
    assert (same.outcome, same.certain) == ("waits", True)
    assert (other.outcome, other.cause, other.certain) == ("dropped", "full-messages", False)
