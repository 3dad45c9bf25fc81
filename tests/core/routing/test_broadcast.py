"""A message for very many: it goes to them over some turns, and each gets what it would have got at once."""

from __future__ import annotations

from itertools import islice, product

import pytest

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.jobs import OBJECT_WORK, STEP_WORK
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.broadcast import (
    MAX_BROADCASTS,
    MAX_DIRECT_QOS0_SUBSCRIPTIONS,
    MAX_DIRECT_SUBSCRIPTIONS,
)
from canopy_mqtt.core.routing.router import Router
from tests.core.harness import Network
from tests.core.routing.test_permissions import Rules
from tests.core.routing.test_recipients import anew, crowd, whole

TOPIC = b"a/b"
FILTERS = ("a/+", "#")
MANY = MAX_DIRECT_SUBSCRIPTIONS // 2 + 100
"""Sessions with two subscriptions each."""


def message(qos: int = 0, payload: bytes = b"x", topic: bytes = TOPIC) -> Message:
    return Message(topic, payload, qos, False, b"", 0.0, "p")


def finish(router: Router, now: float) -> int:
    """Tick until nobody waits for a message any more; how many ticks, each of which is bounded."""
    ticks = 0
    while router.fanout.broadcasting:
        before = router.budget.used
        assert router.tick(now) == router.fanout.broadcasting
        # One more than there was room for.
        assert router.budget.used - before <= STEP_WORK + 2 * OBJECT_WORK
        ticks += 1
    return ticks


@pytest.mark.crowd
@pytest.mark.parametrize(
    ("qos", "count", "filters"),
    [(0, MANY, FILTERS), (1, MANY, FILTERS), (0, MAX_DIRECT_QOS0_SUBSCRIPTIONS + 1, ("#",))],
)
def test_it_goes_in_turns(qos: int, count: int, filters: tuple[str, ...]) -> None:
    """No call makes more than a turn's deliveries, and each session has the message once."""
    network = Network()
    router = network.router
    receivers = crowd(network, count, filters)
    before = router.budget.used
    assert router.publish(message(qos), None) == count * len(filters)
    assert router.budget.used - before < STEP_WORK
    assert router.deadlines.due(network.now)
    assert sum(session.offered for session in receivers) == sum(session.queued() for session in receivers) == 0
    assert finish(router, network.now) >= count * OBJECT_WORK // STEP_WORK
    assert {session.queued() for session in receivers} == {1}


def test_who_goes_or_comes_meanwhile() -> None:
    """Who has unsubscribed gets nothing, with one filter left its share; who subscribes after the message nothing."""
    network = Network()
    router = network.router
    receivers = crowd(network, MANY)
    router.publish(message(), None)
    gone, half, ended = receivers[-1], receivers[-2], receivers[-3]
    for name in FILTERS:
        router.unsubscribe(gone, name)
    router.unsubscribe(half, "a/+")
    router.end_session(ended, network.now)
    client = network.idle("late")
    client.dial()
    new, _ = router.connect("late", True, client.wire.send_buffer, 5, 10, True, network.now)
    router.subscribe(new, "", "#", Request("#", 0), 0)
    finish(router, network.now)
    assert [session.queued() for session in (gone, half, new, receivers[0])] == [0, 1, 0, 1]
    assert ended.offered == 0


def test_rules_that_are_made_meanwhile_hold_for_who_has_not_had_it() -> None:
    """Also in a share group; and those who may not have this one are not forgotten for the next."""
    network = Network()
    router = network.router
    router.access_control = rules = Rules()
    rules.ask_work = 0
    rules.filters_deliveries = False
    receivers = crowd(network, MANY)
    for session in receivers[10:12]:
        router.subscribe(session, "g", "a/#", Request("$share/g/a/#", 1), 0)
    router.publish(message(1), None)
    rules.filters_deliveries = True
    barred = receivers[11:]
    rules.no_receive |= {(session.client_id, TOPIC.decode()) for session in barred}
    rules.change()
    finish(router, network.now)
    assert [session.queued() for session in receivers[:12]] == [1] * 10 + [2, 0]
    assert not any(session.queued() for session in barred)
    assert router.counters.denied_deliveries == len(barred)
    rules.filters_deliveries = False
    rules.change()
    router.publish(message(1), None)
    finish(router, network.now)
    assert min(session.queued() for session in barred) == 1


@pytest.mark.crowd
def test_what_is_for_very_many_waits_for_what_is_before_it_and_nothing_else_does() -> None:
    """So that two messages of one client come in their order, and no more than one of each client is written down."""
    network = Network()
    receivers = crowd(network, MANY)
    listener = network.client("listener")
    listener.subscribe("other")
    publishers = [network.client(f"p{number}") for number in range(3)]
    other = network.client("q")
    other.publish("other", b"before")
    router = network.router
    for publisher in publishers:
        for number in range(3):
            publisher.post(TOPIC.decode(), b"%d" % number, 1)
        publisher.wire.to_channel()
    assert router.fanout.broadcasting
    assert len(router.fanout.broadcasts.line) == 1
    assert all(publisher.wire.protocol.unfinished for publisher in publishers)
    other.post("other", b"now")
    other.wire.to_channel()
    assert not other.wire.protocol.unfinished
    most = 1
    for _ in range(10_000):
        for publisher in publishers:
            if publisher.wire.protocol.unfinished:
                publisher.wire.protocol.go_on(network.now)
        most = max(most, len(router.fanout.broadcasts.line))
        router.tick(network.now)
        if router.counters.messages_received == 3 * 3 + 2 and not router.fanout.broadcasts.line:
            break
    assert most == 1
    for client in (listener, *publishers):
        client.wire.flush()
        client.wire.to_client()
    assert listener.payloads() == [b"before", b"now"]
    # And twice what the other client has published.
    assert {session.offered for session in receivers} == {3 * 3 + 2}
    assert router.counters.messages_received == 3 * 3 + 2
    for publisher in publishers:
        assert len(publisher.acks(4)) == 3


@pytest.mark.crowd
@pytest.mark.parametrize("qos", [0, 1])
def test_what_follows_waits_also_when_fewer_listen_by_then(qos: int) -> None:
    """The messages of a topic come in their order to those who are still there [MQTT-4.6.0-6]; no burst goes past."""
    network = Network()
    router = network.router
    receivers = crowd(network, MAX_DIRECT_SUBSCRIPTIONS, ("#",))
    router.subscribe(receivers[0], "", "a/+", Request("a/+", 1), 0)
    publisher = network.client("p")
    publisher.post("z", b"", qos)
    publisher.wire.to_channel()
    before = receivers[-1].queued()
    assert before == 1
    publisher.post(TOPIC.decode(), b"first", qos)
    publisher.wire.to_channel()
    router.unsubscribe(receivers[0], "a/+")
    assert router.fanout.broadcasting
    publisher.post("z", b"by itself", qos)
    publisher.post(TOPIC.decode(), b"second", qos)
    publisher.wire.to_channel()
    publisher.wire.protocol.go_on(network.now)
    assert receivers[-1].queued() == before + 1
    assert publisher.wire.protocol.unfinished
    finish(router, network.now)
    publisher.wire.protocol.go_on(network.now)
    finish(router, network.now)
    assert {session.queued() for session in receivers} == {before + 3}
    for session in receivers:
        send_buffer = session.send_buffer
        assert send_buffer is not None
        written = send_buffer.take(1 << 20, network.now)
        assert -1 < written.index(b"first") < written.index(b"second")
    assert not router.fanout.would_wait(TOPIC)


@pytest.mark.crowd
def test_few_are_on_their_way_at_a_time_whoever_publishes() -> None:
    """Links and the broker itself do not wait as clients do: what they publish is paid for by then, and in order.

    There is a plan for the later ones, since the first have gone: they stay behind those in line all the same.
    """
    network = Network()
    router = network.router
    receivers = crowd(network, MANY)
    sent = [b"<%d>" % number for number in range(MAX_BROADCASTS + 2)]
    for number, payload in enumerate(sent):
        before = router.budget.used
        router.publish(message(1, payload), None)
        assert len(router.fanout.broadcasts.line) == min(number + 1, MAX_BROADCASTS)
        if number >= MAX_BROADCASTS:
            assert router.budget.used - before >= MANY * OBJECT_WORK
    finish(router, network.now)
    send_buffer = receivers[-1].send_buffer
    assert send_buffer is not None
    written = send_buffer.take(1 << 20, network.now)
    places = [written.find(payload) for payload in sent]
    assert places[0] >= 0
    assert places == sorted(set(places))


def test_few_with_very_many_filters_are_known_after() -> None:
    """They are the recipients that would have been computed at once."""
    network = Network()
    router = network.router
    names = ["/".join(each) for each in islice(product("a+", repeat=13), MAX_DIRECT_SUBSCRIPTIONS + 50)]
    (session,) = crowd(network, 1, tuple(names))
    topic = b"/".join([b"a"] * 13)
    router.publish(message(1, topic=topic), None)
    assert session.queued() == 0
    finish(router, network.now)
    assert session.queued() == 1
    route = router.fanout.route(topic) or router.fanout.new_route(topic)
    assert route.built
    assert whole(route) == whole(anew(route))
    # From here on at once, also when some of it changes.
    router.unsubscribe(session, names[3])
    router.publish(message(1, topic=topic), None)
    assert not router.fanout.broadcasting
    assert session.queued() == 2


class Told(Journal):
    """Writes down who has had what, and who had it put into his queue."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[bytes] = []
        self.had: list[str] = []
        self.told: list[str] = []
        self.over: list[int] = []

    def broadcast(self, message: Message) -> int:
        self.begun.append(message.payload())
        return len(self.begun)

    def passed(self, number: int, client_id: str) -> None:
        assert 0 < number <= len(self.begun)
        self.had.append(client_id)

    def broadcast_over(self, number: int) -> None:
        self.over.append(number)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        del delivery
        self.told.append(client_id)


@pytest.mark.parametrize("filters", [("#",), FILTERS])
def test_one_that_was_interrupted_goes_on_with_those_who_have_not_had_it(filters: tuple[str, ...]) -> None:
    """Before what is published now, and not to its own publisher where that said No Local."""
    network = Network()
    router = network.router
    router.journal = journal = Told()
    journal.begun.append(b"of the broker before")
    receivers = crowd(network, 10, filters)
    for name in filters:
        router.subscribe(receivers[9], "", name, Request(name, 1, True), 0)
    for session in receivers:
        session.keep_in(journal)
    passed = {session.client_id for session in receivers[:4]}
    router.fanout.broadcasts.resume(message(1, b"<old>"), receivers[9], 1, passed)
    assert router.deadlines.due(network.now)
    router.publish(message(1, b"<new>"), None)
    assert sum(session.queued() for session in receivers) == 0
    finish(router, network.now)
    assert [session.queued() for session in receivers] == [1] * 4 + [2] * 5 + [1]
    send_buffer = receivers[4].send_buffer
    assert send_buffer is not None
    written = send_buffer.take(1 << 20, network.now)
    assert -1 < written.index(b"<old>") < written.index(b"<new>")
    assert 1 in journal.over
