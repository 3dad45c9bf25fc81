"""Lanes: messages with terms of their own. The account itself, the bound on age wherever it is held, and on depth.

Age is held at three places: when something is about to be written, when something else arrives, and by `sweep`. Each
is tried for QoS 0 and 1, for a client that does not read, one that does not acknowledge, and one that is away.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.causes import QUEUE_FULL
from canopy_mqtt.core.codec.packets import V5, V311, Subscribe, Unsubscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import OVERHEAD, Message
from canopy_mqtt.core.queues.queue_terms import (
    DISCONNECT,
    DROP_NEWEST,
    DROP_OLDEST,
    LATEST,
    MAX_STALE_PLACES,
    MessageTerms,
    QueueRule,
)
from tests.core.harness import Client, Network, bag
from tests.core.recount import Tally, ask, burst, check, losses, numbers, user_wish
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
        message_terms = MessageTerms(any_session(), policy, max_age, 0)
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
        message_terms = MessageTerms(any_session(), LATEST, 10.0, 0)
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


def aged(policy: int = DROP_NEWEST, max_age: float = AGE, queue_qos0: bool = True) -> Network:
    """A network in which a message waits for so long at most."""
    given_limits = Limits()
    given_limits.queue_policy, given_limits.queue_max_age, given_limits.queue_qos0 = policy, max_age, queue_qos0
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
        """Nobody looks meanwhile; at the moment of writing it is too old."""
        network = aged()
        publisher = network.client("p")
        client = place(network, version)
        publisher.publish("t/a", b"old", qos)
        network.now += AGE / 2
        publisher.publish("t/a", b"young", qos)
        network.now += AGE / 2 + 1
        assert returned(client) == [b"young"]
        assert losses(client.session) == {"age": 1}
        check(network, network.router.sessions.values())

    @for_each("version", [V311, V5])
    @for_each(("place", "qos"), PLACES)
    def test_exactly_that_age_is_not_too_old(self, place: Place, qos: int, version: int) -> None:
        """The bound itself is allowed."""
        network = aged()
        publisher = network.client("p")
        client = place(network, version)
        publisher.publish("t/a", b"1", qos)
        network.now += AGE
        network.router.sweep(network.now)
        assert returned(client) == [b"1"]

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
        network.now += AGE - 1
        network.router.sweep(network.now)
        assert session.queued() == 3
        network.now += 2
        network.router.sweep(network.now)
        if place is live and qos:
            assert session.queued() == 3
        else:
            assert session.queued() == 0
            assert losses(session) == {"age": 3}
            # Nothing is left to look at.
            network.router.sweep(network.now)
            assert not network.router.counters.load.aging
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


class TestAgeElsewhere:
    """Age in the corners."""

    @for_each("way", ["unsubscribe", "other terms", "no terms"])
    @for_each("qos", [0, 1])
    def test_what_waits_keeps_its_terms(self, way: str, qos: int) -> None:
        """What was accepted on terms that have gone since is swept by them [MQTT-3.10.4-3]."""
        network = Network(_kept())
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        ask(client, "t", qos=1, user=user_wish(max_age="5"))
        client.cut()
        publisher.publish("t", b"old", qos)
        client.connect(clean=False, expiry=HOUR, receive_maximum=1, frozen=True)
        _let_go(client, way)
        network.settle()
        network.advance(6)
        network.router.sweep(network.now)
        client.wire.frozen = False
        network.settle()
        assert client.payloads() == []
        assert losses(client.session) == {"age": 1}
        check(network, network.router.sessions.values())

    @for_each("way", ["unsubscribe", "other terms", "no terms", "nothing"])
    @for_each("end", ["expiry", "clean start"])
    def test_the_session_ends_with_what_waits(self, way: str, end: str) -> None:
        """It is counted once, as `session-ended`, also where its terms have gone before; a sweep finds nothing more."""
        network = Network()
        publisher = network.client("p")
        client = network.client("c", clean=False, expiry=10, receive_maximum=1)
        client.answering = False
        ask(client, "t", qos=1, user=user_wish(max_age="50"))
        session = client.session
        for payload in numbers(4):
            publisher.publish("t", payload, 1)
        assert session.queued() == 3
        _let_go(client, way)
        network.settle()
        client.cut()
        if end == "expiry":
            network.advance(11)
        else:
            client.connect(clean=True)
        assert losses(session) == {"session-ended": 3}
        network.advance(100)
        network.router.sweep(network.now)
        assert losses(session) == {"session-ended": 3}
        assert session.queued() == 0
        check(network, [*network.router.sessions.values(), session])
        assert not network.router.counters.load.aging

    def test_a_client_with_other_terms_than_before(self) -> None:
        """Queue rules by user name: what waited on the former user's terms ends with its session, once."""
        given_limits = Limits()
        given_limits.any_user_takes_over = True
        given_limits.rules = (QueueRule(user="aged", max_age=AGE),)
        network = Network(given_limits)
        publisher = network.client("p")
        client = network.client("c", clean=False, expiry=10, user_name="aged")
        client.subscribe("t", qos=1)
        client.cut()
        session = network.session("c")
        for payload in numbers(3):
            publisher.publish("t", payload, 1)
        client.connect(clean=False, expiry=10, user_name="other", frozen=True)
        client.cut()
        network.advance(11)
        network.router.sweep(network.now)
        network.advance(11)
        network.router.sweep(network.now)
        assert sum(losses(session).values()) == 3
        check(network, [*network.router.sessions.values(), session])

    def test_a_takeover(self) -> None:
        """QoS 0 that waited goes with the old connection, and out of the account."""
        network = aged()
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        client.subscribe("t")
        client.wire.frozen = True
        burst(publisher, "t", numbers(3))
        client.connect(clean=False, expiry=HOUR, frozen=True)
        burst(publisher, "t", numbers(2))
        network.now += AGE + 1
        network.router.sweep(network.now)
        assert losses(client.session) == {"disconnected": 3, "age": 2}
        check(network, network.router.sessions.values())

    def test_another_member_gets_what_is_left(self) -> None:
        """A shared message that another member left waits there for as long as it may there (section 4.8.2)."""
        network = aged()
        publisher = network.client("p")
        one = network.client("one", clean=False, expiry=HOUR, receive_maximum=1)
        other = network.client("other", receive_maximum=1)
        one.judge.enabled = False
        one.answering = other.answering = False
        one.subscribe("$share/g/t", qos=1)
        for payload in numbers(3):
            publisher.publish("t", payload, 1)
        network.now += AGE - 1
        other.subscribe("$share/g/t", qos=1)
        one.cut()
        network.settle()
        check(network, network.router.sessions.values())
        assert network.session("one").queued() == 0
        assert other.payloads() == numbers(1)
        network.now += AGE - 1
        network.router.sweep(network.now)
        assert other.session.queued() == 2
        network.now += 2
        network.router.sweep(network.now)
        assert losses(other.session) == {"age": 2}
        assert losses(network.session("one")) == {}
        check(network, network.router.sessions.values())

    def test_a_shared_message_in_the_place_of_another(self) -> None:
        """Renewed by one that was chosen for a share group, it is the group's, and goes on to another member."""
        network = aged(LATEST, 0.0)
        publisher = network.client("p")
        one, other = network.client("one", clean=False, expiry=HOUR, receive_maximum=1), network.client("other")
        one.judge.enabled = False
        one.answering = False
        one.subscribe("filler", qos=1)
        publisher.publish("filler", b"", 1)
        # Each message comes to `one` by both; the group's comes second, and takes the place of the first.
        one.subscribe("t", qos=1)
        one.subscribe("$share/g/t", qos=1)
        publisher.publish("t", b"1", 1)
        assert one.session.queued() == 1
        other.subscribe("$share/g/t", qos=1)
        one.cut()
        network.settle()
        assert other.payloads() == [b"1"]
        assert network.session("one").queued() == 0
        check(network, network.router.sessions.values())

    def test_sent_once_it_is_not_too_old(self) -> None:
        """What was delivered and not acknowledged is sent again, whatever its age [MQTT-4.4.0-1]."""
        network = aged()
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        client.judge = Tally()
        client.answering = False
        client.subscribe("t", qos=1)
        publisher.publish("t", b"1", 1)
        client.cut()
        network.advance(10 * AGE)
        network.router.sweep(network.now)
        client.connect(clean=False, expiry=HOUR)
        assert [packet.dup for packet in client.take()] == [False, True]
        assert losses(client.session) == {}

    def test_an_identifier_is_free_again(self) -> None:
        """QoS 1 that grew too old in the live queue gives its packet identifier and its quota back."""
        network = aged()
        publisher, client = network.client("p"), network.client("c", receive_maximum=2)
        client.subscribe("t", qos=1)
        client.wire.frozen = True
        for payload in numbers(5):
            publisher.publish("t", payload, 1)
        network.now += AGE + 1
        client.wire.frozen = False
        network.settle()
        assert losses(client.session) == {"age": 5}
        assert not client.session.inflight
        for payload in numbers(5):
            publisher.publish("t", payload, 1)
        assert client.payloads() == numbers(5)


def _kept() -> Limits:
    made = Limits()
    made.queue_qos0 = True
    return made


def _let_go(client: Client, way: str) -> None:
    """Change the terms of the subscription `t`, without waiting for the answer."""
    if way == "unsubscribe":
        client.send(Unsubscribe(client.take_id(), ["t"]))
    elif way != "nothing":
        options = user_wish("drop-newest", "60") if way == "other terms" else []
        client.send(Subscribe(client.take_id(), [Request("t", 1)], bag(*options)))


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

    @for_each(("policy", "kept"), [("drop-newest", [0, 1, 2]), ("drop-oldest", [7, 8, 9]), ("latest", [9])])
    @for_each(("place", "qos"), [(live, 0), (full, 1), (away, 1), (away, 0)])
    def test_it_holds_wherever_they_wait(self, place: Place, qos: int, policy: str, kept: list[int]) -> None:
        """One topic, ten messages, a depth of three; others of the client are not counted."""
        network = Network(_kept())
        publisher = network.client("p")
        client = network.client("c", clean=False, expiry=HOUR, receive_maximum=1)
        ask(client, "d", qos=2, user=user_wish(policy, depth="3"))
        client.cut()
        client.connect(clean=False, expiry=HOUR, receive_maximum=1)
        client.subscribe("t/#", qos=2)
        if place is live:
            client.wire.frozen = True
        elif place is away:
            client.cut()
        else:
            client.answering = False
            publisher.publish("t/filler", b"", 1)
            client.take()
        for number, payload in enumerate(numbers(10)):
            publisher.publish("d", payload, qos)
            if number % 2:
                publisher.publish("t/other", b"other", qos)
        check(network, network.router.sessions.values())
        got = returned(client)
        assert got.count(b"other") == 5
        assert [payload for payload in got if payload != b"other"] == [b"%04d" % number for number in kept]
        assert sum(losses(client.session).values()) == 10 - len(kept)

    def test_the_oldest_of_its_own(self) -> None:
        """`drop-oldest` sheds what came first, be it in the live queue or in the session's."""
        network = Network(_kept())
        publisher = network.client("p")
        client = network.client("c", receive_maximum=1)
        ask(client, "d", qos=1, user=user_wish("drop-oldest", depth="3"))
        client.answering = False
        publisher.publish("d", b"in flight", 1)
        client.take()
        client.wire.frozen = True
        for payload, qos in ((b"0", 0), (b"1", 1), (b"2", 0), (b"3", 1), (b"4", 1)):
            network.now += 1
            publisher.publish("d", payload, qos)
        check(network, network.router.sessions.values())
        client.wire.frozen = False
        network.settle()
        client.answering = True
        client.answer()
        assert sorted(client.payloads()) == [b"2", b"3", b"4"]
        assert losses(client.session) == {"full-messages": 2}

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

    @for_each("bound", ["session_messages", "session_bytes"])
    def test_drop_oldest_in_a_full_session(self, bound: str) -> None:
        """The same for what waits in the session: of this subscription the oldest goes, and of the others nothing."""
        given_limits = Limits()
        given_limits.rules = (QueueRule(topic_filter="d", policy=DROP_OLDEST),)
        setattr(given_limits, bound, {"session_messages": 4, "session_bytes": 4 * (OVERHEAD + 5)}[bound])
        network = Network(given_limits)
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        client.subscribe("d", qos=1)
        client.subscribe("o", qos=1)
        client.cut()
        publisher.publish("o", b"kept", 1)
        for payload in numbers(20):
            publisher.publish("d", payload, 1)
        publisher.publish("o", b"late", 1)
        client.connect(clean=False, expiry=HOUR)
        assert client.payloads() == [b"kept", *numbers(20)[-3:]]
        assert sum(losses(client.session).values()) == 18
        check(network, network.router.sessions.values())

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
