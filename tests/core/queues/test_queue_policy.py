"""What a full queue does, by policy: held against a plain list that does the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.core.causes import QUEUE_FULL
from broker.core.codec.packets import V5, V311, Disconnect, Publish, Subscribe, Will
from broker.core.codec.packets import SubscriptionRequest as Request
from broker.core.counters import AGE, DISCONNECTED, FULL_BYTES, FULL_MESSAGES, NO_QUOTA, REPLACED
from broker.core.queues.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST
from broker.core.queues.queue_rules import QueueRule
from broker.core.queues.subscription_queue import SubscriptionQueue, queue_of
from tests.core.harness import Client, Network, bag, limits


def scene(policy: int, max_age: float = 0.0, **changes: int) -> tuple[Network, Client, Client]:
    """A subscriber to everything with QoS 2 under a policy that does not read, and a publisher."""
    given = limits(queue_policy=policy, **changes)
    given.queue_max_age = max_age
    given.tell_loss = False
    network = Network(given)
    client = network.client("c", expiry=1_000)
    client.subscribe("#", qos=2)
    publisher = network.client("p")
    client.wire.frozen = True
    return network, client, publisher


def thaw(client: Client) -> list[tuple[bytes, bytes]]:
    """Let it read again: topics and payloads, in order."""
    client.inbox.clear()
    client.wire.frozen = False
    client.network.settle()
    return [(packet.topic, packet.payload) for packet in client.inbox]


Sent = list[tuple[str, bytes]]


def newest_goes(sent: Sent, room: int) -> Sent:
    return sent[:room]


def oldest_goes(sent: Sent, room: int) -> Sent:
    return sent[-room:]


def latest_stays(sent: Sent, room: int) -> Sent:
    kept: dict[str, bytes] = {}
    for topic, payload in sent:
        if topic in kept or len(kept) < room:
            kept[topic] = payload
    return list(kept.items())


MODELS: list[tuple[int, Callable[[Sent, int], Sent]]] = [
    (DROP_NEWEST, newest_goes),
    (DROP_OLDEST, oldest_goes),
    (LATEST, latest_stays),
]

loads = st.lists(st.sampled_from(["a", "b", "c/d", "e"]), min_size=1, max_size=90).map(
    lambda topics: [(topic, bytes((number,))) for number, topic in enumerate(topics)]
)


@pytest.mark.parametrize(("policy", "model"), MODELS)
@given(sent=loads, room=st.integers(1, 40), burst=st.booleans())
@example(sent=[("a", bytes((number,))) for number in range(90)], room=33, burst=True)
@example(sent=[("a", bytes((number,))) for number in range(90)], room=39, burst=True)
def test_live(policy: int, model: Callable[[Sent, int], Sent], sent: Sent, room: int, burst: bool) -> None:
    """QoS 0 to one who does not read, in one read of the publisher (so that runs form) or one by one."""
    network, client, publisher = scene(policy, live_messages=room)
    for topic in ("a", "b", "c/d", "e"):
        # Known to the match cache from here on.
        publisher.publish(topic)
    client.wire.frozen = False
    network.settle()
    client.wire.frozen = True
    before = sum(client.session.dropped_by_cause())
    for topic, payload in sent:
        publisher.post(topic, payload)
        if not burst:
            network.settle()
    network.settle()
    expected = model(sent, room)
    dropped = client.session.dropped_by_cause()
    assert sum(dropped) - before == len(sent) - len(expected)
    got = thaw(client)
    assert [(topic.decode(), payload) for topic, payload in got] == expected


@pytest.mark.parametrize(("policy", "model"), MODELS)
@given(sent=loads, room=st.integers(1, 40), qos=st.sampled_from([1, 2]))
def test_while_the_client_is_away(
    policy: int, model: Callable[[Sent, int], Sent], sent: Sent, room: int, qos: int
) -> None:
    network, client, publisher = scene(policy, session_messages=room)
    client.cut()
    for topic, payload in sent:
        publisher.publish(topic, payload, qos=qos)
    expected = model(sent, room)
    assert client.session.pending_messages == len(expected)
    client.connect(clean=False, expiry=1_000)
    network.settle()
    assert [(packet.topic.decode(), packet.payload) for packet in client.inbox] == expected


@pytest.mark.parametrize(
    ("policy", "kept", "cause"),
    [(DROP_NEWEST, [0, 1, 2, 3, 4], NO_QUOTA), (DROP_OLDEST, [0, 1, 5, 6, 7], FULL_MESSAGES)],
)
def test_what_is_in_flight_is_never_dropped(policy: int, kept: list[int], cause: int) -> None:
    """Two are in flight and three wait; of the others the policy says which goes."""
    _, client, publisher = scene(policy, max_inflight=2, session_messages=3)
    for number in range(8):
        publisher.publish("t", bytes((number,)), qos=1)
    assert client.session.dropped_by_cause()[cause] == 3
    assert [payload[0] for _, payload in thaw(client)] == kept


def test_a_large_message_makes_as_much_room_as_it_needs_and_none_where_it_never_fits() -> None:
    _, client, publisher = scene(DROP_OLDEST, live_bytes=400)
    for number in range(6):
        publisher.publish("t", bytes((number,)) * 50)
    publisher.publish("t", b"x" * 300)
    publisher.publish("t", b"y" * 500)
    assert client.session.dropped_by_cause()[FULL_BYTES] == 5 + 1
    assert [payload[:1] for _, payload in thaw(client)] == [b"\5", b"x"]


class TestDisconnect:
    @pytest.mark.parametrize(("version", "qos"), [(V5, 0), (V311, 0), (V5, 1)])
    def test_the_client_is_told_and_goes(self, version: int, qos: int) -> None:
        network = Network(limits(queue_policy=DISCONNECT, live_messages=3, max_inflight=2, session_messages=3))
        will = Will("gone", b"c")
        client = network.client("c", version, will=will, clean=version == V5, expiry=1_000 if version == V5 else None)
        client.subscribe("t", qos=1)
        other, publisher = network.client("o"), network.client("p")
        other.subscribe("t", "gone", qos=1)
        client.wire.frozen = True
        for number in range(10):
            publisher.publish("t", bytes((number,)), qos=qos)
        link = client.wire
        assert link.protocol.close_cause == QUEUE_FULL
        assert client.session.outbox is None
        assert len([packet for packet in other.inbox if packet.topic == b"t"]) == 10
        assert [packet.payload for packet in other.inbox if packet.topic == b"gone"] == [b"c"]
        link.frozen = False
        link.flush()
        network.settle()
        ends = client.got(Disconnect)
        if version == V5:
            assert [end.reason_code for end in ends] == [0x97]
        else:
            assert ends == []
        assert client.closed
        # The session goes on as its expiry says, and what it may keep is there.
        client.connect(clean=False, expiry=1_000 if version == V5 else None)
        assert client.connack.session_present
        network.settle()
        assert [packet.payload[0] for packet in client.inbox if packet.qos] == ([0, 1, 2, 3, 4] if qos else [])

    def test_the_rest_of_the_burst_is_counted(self) -> None:
        _, client, publisher = scene(DISCONNECT, live_messages=3)
        for _ in range(10):
            publisher.post("t")
        publisher.network.settle()
        dropped = client.session.dropped_by_cause()
        assert dropped[FULL_MESSAGES] == 1
        assert dropped[DISCONNECTED] == 9
        assert client.session.queued() == 0


class TestLatest:
    @pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 2), (2, 1), (0, 0), (1, 1)])
    def test_one_for_each_topic_whatever_the_quality(self, first: int, second: int) -> None:
        """Behind a window that is used up, so that QoS 1 and 2 wait as well."""
        network, client, publisher = scene(LATEST, max_inflight=1)
        client.answering = False
        publisher.publish("block", qos=1)
        publisher.publish("t", b"old", qos=first)
        publisher.publish("t", b"new", qos=second)
        assert client.session.dropped_by_cause()[REPLACED] == 1
        client.answering = True
        client.wire.frozen = False
        network.settle()
        assert [packet.payload for packet in client.inbox if packet.topic == b"t"] == [b"new"]
        assert [packet.qos for packet in client.inbox if packet.topic == b"t"] == [second]

    def test_a_larger_one_that_does_not_fit_leaves_the_older(self) -> None:
        _, client, publisher = scene(LATEST, live_bytes=300)
        publisher.publish("t", b"small")
        publisher.publish("t", bytes(400))
        assert client.session.dropped_by_cause()[FULL_BYTES] == 1
        assert thaw(client) == [(b"t", b"small")]

    def test_little_is_put_in_flight_ahead_of_a_reader_who_lags(self) -> None:
        """What is in flight cannot be replaced any more."""
        _, client, publisher = scene(LATEST, max_inflight=1_000)
        for number in range(200):
            publisher.publish(f"t/{number % 100}", bytes((number,)), qos=1)
        assert len(client.session.inflight) <= 16
        got = dict(thaw(client))
        assert len(got) == 100
        assert [got[b"t/%d" % number] for number in range(16, 100)] == [bytes((100 + n,)) for n in range(16, 100)]

    def test_options_are_those_of_the_newer_message(self) -> None:
        network = Network(limits())
        client, publisher = network.client("c"), network.client("p")
        request = Request("t", 0, False, True)
        client.send(Subscribe(1, [request], bag(("canopy-queue", "latest"), i={0x0B: 5})))
        network.settle()
        client.wire.frozen = True
        publisher.publish("t", b"1")
        publisher.publish("t", b"2", retain=True, expiry=90)
        thaw(client)
        [packet] = client.inbox
        assert (packet.payload, packet.retain, packet.subscription_ids, packet.message_expiry) == (b"2", True, (5,), 90)


class TestAge:
    @pytest.mark.parametrize("qos", [0, 1])
    @pytest.mark.parametrize("away", [False, True])
    def test_what_is_too_old_goes_though_nothing_comes(self, qos: int, away: bool) -> None:
        network, client, publisher = scene(DROP_NEWEST, max_age=5.0, queue_qos0=True, max_inflight=1)
        publisher.publish("block", qos=1)
        if away:
            client.cut()
        publisher.publish("t", b"old", qos=qos)
        network.now += 4.0
        publisher.publish("t", b"young", qos=qos)
        network.router.sweep(network.now + 0.9)
        assert client.session.dropped_by_cause()[AGE] == 0
        network.router.sweep(network.now + 1.1)
        assert client.session.dropped_by_cause()[AGE] == 1
        network.now += 1.1
        if away:
            client.connect(clean=False, expiry=1_000)
            network.settle()
        else:
            thaw(client)
        assert [packet.payload for packet in client.inbox if packet.topic == b"t"] == [b"young"]
        network.router.sweep(network.now + 100)
        assert not network.router.counters.load.aging

    def test_at_the_write_and_at_an_offer(self) -> None:
        network, client, publisher = scene(DROP_NEWEST, max_age=5.0, live_messages=1)
        publisher.publish("t", b"1")
        network.now += 6.0
        publisher.publish("t", b"2")
        assert client.session.dropped_by_cause()[AGE] == 1
        network.now += 6.0
        assert thaw(client) == []
        assert client.session.dropped_by_cause()[AGE] == 2
        assert sum(client.session.dropped_by_cause()) == 2

    def test_what_is_in_flight_and_was_never_written_is_too_old_as_well(self) -> None:
        network, client, publisher = scene(DROP_NEWEST, max_age=5.0)
        publisher.publish("t", b"1", qos=1)
        assert len(client.session.inflight) == 1
        network.now += 6.0
        assert thaw(client) == []
        assert client.session.dropped_by_cause()[AGE] == 1
        assert not client.session.inflight
        assert client.session.quota == client.session.window

    def test_the_age_of_a_newer_message_in_an_older_ones_place_is_its_own(self) -> None:
        network, client, publisher = scene(LATEST, max_age=5.0)
        publisher.publish("a", b"1")
        publisher.publish("b", b"1")
        network.now += 4.0
        publisher.publish("a", b"2")
        network.now += 2.0
        network.router.sweep(network.now)
        assert client.session.dropped_by_cause()[AGE] == 1
        assert thaw(client) == [(b"a", b"2")]


class TestLanes:
    def test_a_depth_is_for_one_subscription(self) -> None:
        given = limits()
        given.rules = (QueueRule(topic_filter="a/#", policy=DROP_OLDEST, depth=2),)
        network = Network(given)
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("a/#", "b/#")
        client.wire.frozen = True
        for number in range(5):
            publisher.publish("a/1", bytes((number,)))
            publisher.publish("b/1", bytes((number,)))
        got = thaw(client)
        assert [payload[0] for topic, payload in got if topic == b"a/1"] == [3, 4]
        assert [payload[0] for topic, payload in got if topic == b"b/1"] == [0, 1, 2, 3, 4]

    def test_a_frozen_lane_costs_no_more_however_much_passes_through(self) -> None:
        """Gaps in the queue, and places in the order of age, stay in proportion to what waits."""
        given = limits()
        given.rules = (QueueRule(topic_filter="a/#", policy=DROP_OLDEST, depth=3, max_age=1_000.0),)
        network = Network(given)
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("a/#", "b")
        client.wire.frozen = True
        publisher.publish("b")
        for _ in range(3_000):
            publisher.publish("a/1")
        assert client.wire.outbox.messages == 4
        sub_queue = queue_of(client.session.subscriptions["a/#"])
        assert sub_queue is not None
        assert sub_queue.waiting == 3
        assert client.session.dropped_by_cause()[FULL_MESSAGES] == 2_997
        assert len(client.wire.outbox._queue) < 100
        assert remembered(sub_queue) < 100
        assert len(thaw(client)) == 4

    def test_nor_one_that_keeps_the_latest(self) -> None:
        network, client, publisher = scene(LATEST, max_age=1_000.0)
        publisher.publish("t/2")
        for number in range(3_000):
            network.now += 0.01
            publisher.publish(f"t/{number % 2}")
        sub_queue = client.session.sub_queue
        assert sub_queue is not None
        assert (sub_queue.waiting, client.wire.outbox.messages) == (3, 3)
        assert remembered(sub_queue) < 100

    @pytest.mark.parametrize("policy", [DROP_OLDEST, LATEST])
    def test_nor_a_session_whose_client_is_away(self, policy: int) -> None:
        _, client, publisher = scene(policy, max_age=1_000.0, session_messages=3)
        client.cut()
        for number in range(1_000):
            publisher.publish(f"t/{number % 3}", qos=1)
        sub_queue = client.session.sub_queue
        assert sub_queue is not None
        assert sub_queue.waiting == 3
        assert client.session.pending is not None
        assert len(client.session.pending) < 100
        assert remembered(sub_queue) < 100


def remembered(sub_queue: SubscriptionQueue) -> int:
    """Places in a lane's order of age."""
    assert sub_queue._by_age is not None
    return len(sub_queue._by_age)


class TestSlow:
    def test_time_in_the_queue(self) -> None:
        network, client, publisher = scene(DROP_NEWEST)
        publisher.publish("t")
        network.now += 3.0
        publisher.publish("t")
        assert client.session.waited(network.now) == pytest.approx(3.0)
        network.now += 1.0
        assert client.session.waited(network.now) == pytest.approx(4.0)
        thaw(client)
        assert client.session.waited(network.now) == 0.0
        assert client.wire.outbox.delay == pytest.approx(4.0)

    def test_who_reads_and_does_not_acknowledge_is_slow_too(self) -> None:
        network, client, publisher = scene(DROP_NEWEST, max_inflight=1)
        client.wire.frozen = False
        client.answering = False
        for _ in range(3):
            publisher.publish("t", qos=1)
        assert client.wire.outbox.messages == 0
        network.now += 3.0
        assert client.session.waited(network.now) == pytest.approx(3.0)
        client.cut()
        assert client.session.waited(network.now) == 0.0


class TestTellPublisher:
    @pytest.mark.parametrize("retain", [False, True])
    @pytest.mark.parametrize("qos", [1, 2])
    def test_refused_by_all(self, qos: int, retain: bool) -> None:
        """0x97, and with such a PUBREC the identifier is free at once [MQTT-4.3.3-9]."""
        network, client, publisher = scene(DROP_NEWEST, max_inflight=1, session_messages=1, tell_publisher=True)
        answers = []
        for _ in range(3):
            publisher.publish("t", b"x", qos=qos, retain=retain)
            answers.append(acknowledged(publisher, qos))
        assert answers == [0, 0, 0x97]
        assert not publisher.session.incoming_qos2
        other = network.client("o")
        other.subscribe("t", qos=1)
        publisher.publish("t", b"x", qos=qos)
        assert acknowledged(publisher, qos) == 0
        assert client.session.offered == client.session.queued() + sum(client.session.dropped_by_cause())

    def test_not_where_nobody_has_a_queue_or_is_asked(self) -> None:
        network, client, publisher = scene(DROP_NEWEST, tell_publisher=True)
        publisher.publish("nobody/else", qos=1)
        assert acknowledged(publisher, 1) == 0
        client.disconnect()
        quiet = network.client("q", expiry=1_000)
        quiet.subscribe("q")
        quiet.cut()
        publisher.publish("q", qos=1)
        # The one who left with QoS 2 keeps it; who is away with QoS 0 has no queue that could be full.
        assert acknowledged(publisher, 1) == 0

    def test_not_by_default_and_not_in_3_1_1(self) -> None:
        for told, version in ((False, V5), (True, V311)):
            network, _, _ = scene(DROP_NEWEST, max_inflight=1, session_messages=1, tell_publisher=told)
            publisher = network.client("p2", version)
            for _ in range(4):
                publisher.publish("t", qos=1)
                assert acknowledged(publisher, 1) == 0


def acknowledged(publisher: Client, qos: int) -> int:
    """The reason code of the last PUBACK or PUBREC that a publisher got."""
    return [packet.reason_code for packet in publisher.acks(4 if qos == 1 else 5)][-1]


class TestFullQueueAndLanes:
    """The policy of a subscription holds also where it is the client's queue that is full, and not its own depth."""

    @pytest.mark.parametrize("qos", [0, 1])
    def test_drop_oldest(self, qos: int) -> None:
        given = limits(live_messages=5, session_messages=3, max_inflight=2)
        given.rules = (QueueRule(topic_filter="a/#", policy=DROP_OLDEST),)
        network = Network(given)
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("a/#", qos=1)
        client.wire.frozen = True
        for number in range(9):
            publisher.publish("a/1", bytes((number,)), qos=qos)
        assert [payload[0] for _, payload in thaw(client)] == ([4, 5, 6, 7, 8] if qos == 0 else [0, 1, 6, 7, 8])

    @pytest.mark.parametrize("qos", [0, 1])
    def test_disconnect(self, qos: int) -> None:
        given = limits(live_messages=5, session_messages=3, max_inflight=2)
        given.rules = (QueueRule(topic_filter="a/#", policy=DISCONNECT),)
        network = Network(given)
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("a/#", "b", qos=1)
        client.wire.frozen = True
        for _ in range(9):
            publisher.publish("b", qos=qos)
        assert client.session.outbox is not None
        publisher.publish("a/1", qos=qos)
        assert client.wire.protocol.close_cause == QUEUE_FULL

    @pytest.mark.parametrize("qos", [0, 1])
    def test_nobody_goes_for_a_message_that_would_never_fit(self, qos: int) -> None:
        _, client, publisher = scene(DISCONNECT, live_bytes=500, session_bytes=500)
        publisher.publish("t", bytes(1_000), qos=qos)
        assert not client.wire.protocol.close_cause
        assert client.session.dropped_by_cause()[FULL_BYTES] == 1

    def test_a_message_of_its_own_is_not_handed_on_with_a_shared_one(self) -> None:
        """What takes the place of a shared message is the session's own [MQTT-4.8.2-4]."""
        given = limits(max_inflight=1)
        given.rules = (QueueRule(client_id="m1", policy=LATEST),)
        network = Network(given)
        one, two, publisher = network.client("m1", expiry=1_000), network.client("m2"), network.client("p")
        one.answering = False
        one.subscribe("$share/g/t", qos=1)
        publisher.publish("t", b"first", qos=1)
        publisher.publish("t", b"shared, waits", qos=1)
        one.subscribe("t", qos=1)
        two.subscribe("$share/g/t", qos=1)
        publisher.publish("t", b"mine", qos=1)
        before = len(two.inbox)
        one.cut()
        assert b"mine" not in [packet.payload for packet in two.inbox[before:]]


def test_a_message_that_is_sent_again_tells_nothing() -> None:
    """The client may know it already, and look at nothing of it."""
    network = Network(limits(live_messages=2, max_inflight=1))
    client, publisher = network.client("c", expiry=1_000), network.client("p")
    client.answering = False
    client.subscribe("t", qos=2)
    publisher.publish("t", b"1", qos=2)
    client.wire.frozen = True
    for _ in range(4):
        publisher.publish("t")
    client.cut()
    client.answering = True
    client.inbox.clear()
    client.connect(clean=False, expiry=1_000)
    assert [(packet.dup, bool(packet.properties)) for packet in client.got(Publish)] == [(True, False)]
    publisher.publish("t", b"2")
    assert client.inbox[-1].properties
