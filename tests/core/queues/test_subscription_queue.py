"""Lanes: messages with terms of their own. The account itself, and the bound on age wherever it is held.

Age is held at three places: when something is about to be written, when something else arrives, and by `sweep`. Each
is tried for QoS 0 and 1, for a client that does not read, one that does not acknowledge, and one that is away.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.causes import QUEUE_FULL
from canopy_mqtt.core.codec.packets import V5, V311
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import (
    DISCONNECT,
    DROP_NEWEST,
    DROP_OLDEST,
    LATEST,
    MAX_STALE_PLACES,
    MessageTerms,
    QueueRule,
    SubscriptionTerms,
)
from tests.core.harness import Client, Network
from tests.core.recount import ask, burst, check, losses, numbers, user_wish
from tests.support.runs import examples, for_each
from tests.support.sessions import any_session

HOUR = 3_600
AGE = 5.0


def delivery(number: int = 0, topic: bytes = b"t", qos: int = 0) -> Delivery:
    return Delivery(Message(topic, b"%d" % number, qos, False, b"", 0.0, "p"), qos, False, (), None)


class TestAccount:
    """`MessageTerms` alone."""

    @given(
        policy=st.sampled_from((DROP_NEWEST, DROP_OLDEST, LATEST)),
        max_age=st.sampled_from((0.0, 4.0)),
        steps=st.lists(st.tuples(st.sampled_from(("enter", "leave", "renew", "wait")), st.integers(0, 9)), max_size=60),
    )
    @settings(max_examples=examples(100), deadline=None)
    def test_against_a_list(self, policy: int, max_age: float, steps: list[tuple[str, int]]) -> None:
        """How many wait, which is the oldest, and which are too old: by one list in order of age."""
        message_terms = MessageTerms(any_session(), SubscriptionTerms(policy, max_age))
        now = 100.0
        waiting: list[tuple[float, Delivery]] = []
        keeps_order = max_age > 0.0 or policy == DROP_OLDEST
        for what, number in steps:
            if what == "wait":
                now += number
            elif what == "enter":
                entering = delivery(number, b"t%d" % len(waiting))
                message_terms.enter(entering, now)
                waiting.append((now, entering))
            elif waiting:
                _, chosen = waiting.pop(number % len(waiting))
                if what == "leave":
                    message_terms.leave(chosen)
                    message_terms.leave(chosen)  # once is enough
                else:
                    message_terms.renew(chosen, now)
                    waiting.append((now, chosen))
            assert message_terms.waiting == len(waiting)
            oldest = message_terms.oldest()
            if keeps_order and waiting:
                assert oldest is not None
                assert oldest.since == waiting[0][0]
                assert oldest in [one for _, one in waiting]
            else:
                assert oldest is None
            stale = message_terms.stale(now)
            assert (stale is not None) == (max_age > 0.0 and bool(waiting) and now - waiting[0][0] > max_age)
            assert all(one.waits for _, one in waiting)

    def test_what_it_remembers_is_bounded(self) -> None:
        """However often the same few messages are renewed, or come and go out of order."""
        message_terms = MessageTerms(any_session(), SubscriptionTerms(LATEST, 10.0))
        first = delivery(0, b"first")
        message_terms.enter(first, 1.0)
        stays = [delivery(number, b"%d" % number) for number in range(10)]
        for one in stays:
            message_terms.enter(one, 1.0)
        assert message_terms._by_age is not None
        for turn in range(2_000):
            message_terms.renew(stays[turn % 10], 2.0 + turn)
            other = delivery(turn, b"other")
            message_terms.enter(other, 2.0 + turn)
            message_terms.leave(other)
            assert len(message_terms._by_age) <= 2 * (message_terms.waiting + 1) + MAX_STALE_PLACES
        assert message_terms.oldest() is first
        assert message_terms._topics is not None
        assert len(message_terms._topics) == message_terms.waiting == 11


def aged(policy: int = DROP_NEWEST, max_age: float = AGE) -> Network:
    """A network in which a message waits for so long at most."""
    given_limits = Limits()
    given_limits.queue_policy, given_limits.queue_max_age, given_limits.queue_qos0 = policy, max_age, True
    return Network(given_limits)


def live(network: Network, version: int) -> Client:
    """A client that does not read."""
    client = network.client("c", version, clean=False, **_expiry(version))
    client.subscribe("t/#", qos=2)
    client.wire.frozen = True
    return client


def _expiry(version: int) -> dict[str, int]:
    return {"expiry": HOUR} if version == V5 else {}


def full(network: Network, version: int) -> Client:
    """A client that does not acknowledge."""
    network.router.limits.max_inflight = 1
    client = live(network, version)
    client.wire.frozen = False
    client.answering = False
    network.client("filler").publish("t/filler", b"", 1)
    client.take()
    return client


def away(network: Network, version: int) -> Client:
    """A client that is not there."""
    client = live(network, version)
    client.cut()
    return client


def returned(client: Client) -> list[bytes]:
    """It reads, acknowledges and is there; what it gets."""
    if client.wire.cut:
        client.connect(clean=False, expiry=HOUR if client.version == V5 else None)
    client.wire.frozen = False
    client.answering = True
    client.answer()
    return client.payloads()


PLACES = [(live, 0), (live, 1), (full, 1), (full, 2), (away, 0), (away, 1)]
Place = Callable[[Network, int], Client]


class TestAge:
    """Nothing that has waited longer is delivered, and it is counted as `age`, once."""

    @for_each("version", [V311, V5])
    @for_each(("place", "qos"), PLACES)
    def test_when_it_is_written(self, place: Place, qos: int, version: int) -> None:
        """Nobody looks meanwhile; at the moment of writing it is too old. Exactly that age is not."""
        network = aged()
        publisher = network.client("p")
        client = place(network, version)
        publisher.publish("t/a", b"old", qos)
        network.now += 1
        publisher.publish("t/a", b"young", qos)
        network.now += AGE
        assert returned(client) == [b"young"]
        assert losses(client.session) == {"age": 1}
        check(network, network.router.sessions.values())

    @for_each("version", [V311, V5])
    @for_each(("place", "qos"), PLACES)
    def test_when_another_arrives(self, place: Place, qos: int, version: int) -> None:
        """What is too old makes room before the newcomer is judged."""
        network = aged()
        limits = network.router.limits
        publisher = network.client("p")
        limits.live_messages = limits.session_messages = 3
        client = place(network, version)
        for payload in numbers(3):
            publisher.publish("t/a", payload, qos)
        network.now += AGE + 1
        publisher.publish("t/a", b"new", qos)
        session = network.session("c")
        if session.inflight and place is live:
            # QoS 1 that stands in the send buffer is in flight, and too old only when it would be written.
            assert losses(session) == {}
        else:
            assert losses(session) == {"age": 3}
            assert session.queued() == 1
        assert returned(client) == [b"new"]
        assert losses(session) == {"age": 3}

    @for_each("version", [V311, V5])
    @for_each(("place", "qos"), PLACES)
    def test_by_a_sweep(self, place: Place, qos: int, version: int) -> None:
        """Where nothing comes or goes."""
        network = aged()
        publisher = network.client("p")
        client = place(network, version)
        for payload in numbers(3):
            publisher.publish("t/a", payload, qos)
        session = network.session("c")
        network.now += AGE
        network.router.sweep(network.now)
        assert session.queued() == 3
        network.now += 1
        network.router.sweep(network.now)
        if place is live and qos:
            assert session.queued() == 3
        else:
            assert session.queued() == 0
            assert losses(session) == {"age": 3}
            # Nothing is left to look at.
            network.router.sweep(network.now)
            assert not network.router.counters.totals.aging
        check(network, network.router.sessions.values())
        assert returned(client) == []
        assert losses(session) == {"age": 3}

    @for_each("version", [V311, V5])
    @for_each(("place", "qos"), PLACES)
    @for_each(("age_first", "swept"), [(False, False), (False, True), (True, False), (True, True)])
    def test_expired_and_too_old(self, place: Place, qos: int, version: int, age_first: bool, swept: bool) -> None:
        """Whatever comes first: it is one loss, under one cause."""
        network = aged()
        publisher = network.client("p")
        client = place(network, version)
        publisher.publish("t/a", b"", qos, expiry=10 if age_first else 3)
        network.now += 7 if age_first else 4
        if swept:
            network.router.sweep(network.now)
        network.now += 20
        if swept:
            network.router.sweep(network.now)
        assert returned(client) == []
        found = losses(client.session)
        assert found in ({"age": 1}, {"expired": 1})
        if age_first and swept and not (place is live and qos):
            assert found == {"age": 1}
        check(network, network.router.sessions.values())

    @for_each("version", [V311, V5])
    @for_each(("place", "qos"), PLACES)
    def test_a_newer_message_begins_anew(self, place: Place, qos: int, version: int) -> None:
        """Under `latest`, the age is that of the message that waits."""
        network = aged(LATEST)
        publisher = network.client("p")
        client = place(network, version)
        publisher.publish("t/a", b"1", qos)
        network.now += AGE - 1
        publisher.publish("t/a", b"2", qos)
        network.now += AGE - 1
        network.router.sweep(network.now)
        publisher.publish("t/b", b"3", qos)
        in_flight = place is live and qos > 0
        assert returned(client) == [b"2", b"3"]
        assert losses(client.session) == ({"age": 1} if in_flight else {"replaced-by-latest": 1})


def _kept() -> Limits:
    made = Limits()
    made.queue_qos0 = True
    return made


def test_who_reads_and_does_not_acknowledge_has_messages_that_wait() -> None:
    """For as long as the oldest has, until it is away."""
    network = aged(max_age=0.0)
    publisher = network.client("p")
    client = full(network, V5)
    publisher.publish("t/a", qos=1)
    assert client.wire.send_buffer.messages == 0
    network.now += 3.0
    assert client.session.waited(network.now) == 3.0
    client.cut()
    assert client.session.waited(network.now) == 0.0


class TestExpiry:
    """What has expired is no reason to drop what has not [MQTT-3.3.2-5]."""

    @for_each(
        ("place", "qos", "expiry"),
        [
            *((place, qos, 50) for place, qos in PLACES),
            *((place, qos, -1) for place, qos in PLACES),
        ],
    )
    def test_it_takes_no_room(self, place: Place, qos: int, expiry: int) -> None:
        """A queue that is full of it is not full."""
        network = Network(_kept())
        network.router.limits.live_messages = network.router.limits.session_messages = 4
        publisher = network.client("p")
        client = place(network, V5)
        for payload in numbers(4):
            publisher.publish("t/a", payload, qos, expiry=5)
        session = network.session("c")
        assert session.queued() == 4
        network.now += 6
        for payload in (b"new", b"newer"):
            publisher.publish("t/a", payload, qos, expiry=expiry)
        assert returned(client) == [b"new", b"newer"]
        assert losses(session) == {"expired": 4}
        check(network, network.router.sessions.values())


class TestDepth:
    """The messages of one subscription that wait."""

    def test_what_an_absent_client_costs_is_bounded(self) -> None:
        """However much passes through its queue behind another message: gaps, and places in the order of age."""
        network = aged(max_age=1_000.0)
        network.router.limits.rules = (QueueRule(topic_filter="t/d", policy=DROP_OLDEST, depth=3),)
        publisher = network.client("p")
        client = network.client("c", clean=False, expiry=HOUR)
        client.subscribe("t/d", "t/o", qos=1)
        client.cut()
        publisher.publish("t/o", qos=1)
        for _ in range(1_000):
            publisher.publish("t/d", qos=1)
        session = client.session
        message_terms = session.subscriptions["t/d"].message_terms
        assert message_terms is not None
        assert message_terms.waiting == 3
        assert session.queue.messages == 4
        assert session.queue.pending is not None
        assert len(session.queue.pending) < 100
        assert message_terms._by_age is not None
        assert len(message_terms._by_age) < 100

    @for_each("bound", ["live_messages", "live_bytes"])
    def test_drop_oldest_in_a_full_queue(self, bound: str) -> None:
        """What was granted holds when the client's queue is full of nothing but this subscription's messages."""
        given_limits = Limits()
        given_limits.rules = (QueueRule(topic_filter="d", policy=DROP_OLDEST),)
        setattr(given_limits, bound, {"live_messages": 4, "live_bytes": 400}[bound])
        network = Network(given_limits)
        publisher, client = network.client("p"), network.client("c")
        client.subscribe("d")
        client.wire.frozen = True
        burst(publisher, "d", numbers(20))
        client.wire.frozen = False
        network.settle()
        assert client.payloads()[-1:] == numbers(20)[-1:]

    @for_each(("qos", "bound"), [(0, "live_messages"), (0, "live_bytes"), (1, "session_messages")])
    def test_disconnect_in_a_full_queue(self, qos: int, bound: str) -> None:
        """A subscription whose wish it is ends the connection when its message does not fit; another's does not."""
        given_limits = Limits()
        given_limits.max_inflight = 1
        given_limits.rules = (QueueRule(topic_filter="d", policy=DISCONNECT),)
        setattr(given_limits, bound, {"live_messages": 3, "live_bytes": 600, "session_messages": 3}[bound])
        network = Network(given_limits)
        publisher, client = network.client("p"), network.client("c")
        client.subscribe("d", qos=1)
        client.subscribe("o", qos=1)
        client.answering = False
        client.wire.frozen = True
        for payload in numbers(30):
            publisher.publish("o", payload, qos)
        assert client.wire.protocol.close_cause == ""
        publisher.publish("d", b"x" * 60, qos)
        assert client.wire.protocol.close_cause == QUEUE_FULL


class TestOrder:
    """Terms change what is lost, and not the order of the rest [MQTT-4.6.0-5] [MQTT-4.6.0-6]."""

    @given(
        options=st.sampled_from([user_wish("latest"), user_wish("drop-oldest", depth="3"), user_wish(max_age="3")]),
        steps=st.lists(st.one_of(st.integers(0, 2), st.sampled_from(("take", "wait", "freeze"))), max_size=40),
        receive=st.integers(1, 3),
    )
    @settings(max_examples=examples(80), deadline=None)
    def test_of_one_topic(self, options: list[tuple[str, str]], steps: list[int | str], receive: int) -> None:
        """Of each topic and QoS what arrives is in the order of its publication, with whatever gaps."""
        network = Network()
        publisher, client = network.client("p"), network.client("c", receive_maximum=receive)
        ask(client, "t/#", qos=2, user=options)
        count = 0
        for step in steps:
            if step == "take":
                client.wire.frozen = False
                network.settle()
            elif step == "wait":
                network.advance(1)
            elif step == "freeze":
                client.wire.frozen = True
            else:
                count += 1
                publisher.publish(f"t/{count % 2}", b"%04d" % count, int(step))
        client.wire.frozen = False
        network.settle()
        got = client.take()
        for topic in (b"t/0", b"t/1"):
            for qos in range(3):
                mine = [packet.payload for packet in got if (packet.topic, packet.qos) == (topic, qos)]
                assert mine == sorted(mine)
        check(network, network.router.sessions.values())
