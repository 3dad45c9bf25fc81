"""Access control on the way of a message: who may publish and who is sent what, and how seldom it has to be asked."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V311, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.hooks import FORBIDDEN, UNSTEADY, AccessControl
from canopy_mqtt.core.ledger import NOT_AUTHORIZED
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.send_window import TURN
from canopy_mqtt.store.memory import MemoryStore
from tests.core.harness import Client, Network, limits, total_ledger

HOUR = 3600


class Rules(AccessControl):
    """Forbids what it is told to, and counts how often it is asked."""

    def __init__(self, steady: bool = True) -> None:
        self.epoch = 0 if steady else UNSTEADY
        self.filters_deliveries = True
        self.ask_work = 100
        self.no_publish: set[tuple[str, str]] = set()
        self.no_receive: set[tuple[str, str]] = set()
        self.publishes = 0
        self.receives = 0

    def change(self) -> None:
        """Other rules."""
        self.epoch += 1

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del qos, retain
        self.publishes += 1
        return (principal.client_id, topic) not in self.no_publish

    def may_receive(self, principal: Principal, topic: str) -> bool:
        self.receives += 1
        return (principal.client_id, topic) not in self.no_receive


def ruled(steady: bool = True) -> tuple[Network, Rules]:
    network = Network()
    rules = Rules(steady)
    network.router.access_control = rules
    return network, rules


def burst(client: Client, topic: str, count: int, qos: int = 0) -> None:
    """So many publishes in one read."""
    for number in range(count):
        client.post(topic, b"%d" % number, qos)
    client.network.settle()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
class TestPublish:
    def test_it_is_asked_once(self, version: int, qos: int) -> None:
        """Of a topic that is published all the time, as long as the rules stay; and what goes, goes."""
        network, rules = ruled()
        reader, writer = network.client("r", version), network.client("w", version)
        reader.subscribe("t/#", qos=qos)
        for _ in range(10):
            burst(writer, "t/1", 10, qos)
        assert len(reader.payloads()) == 100
        # Before the topic had a route, and then once for the way that it takes from there on.
        assert rules.publishes == 2
        assert rules.receives == 1
        rules.change()
        burst(writer, "t/1", 10, qos)
        assert (rules.publishes, rules.receives) == (3, 2)

    def test_a_change_counts_from_the_next_packet_on(self, version: int, qos: int) -> None:
        network, rules = ruled()
        reader, writer = network.client("r", version), network.client("w", version)
        reader.subscribe("t", qos=qos)
        burst(writer, "t", 5, qos)
        rules.no_publish.add(("w", "t"))
        rules.change()
        burst(writer, "t", 5, qos)
        assert len(reader.payloads()) == 5
        if version == V5 and qos > 0:
            kind = p.PUBACK if qos == 1 else p.PUBREC
            answers = [one.reason_code for one in writer.got(p.Ack) if one.kind == kind]
            assert answers == [0] * 5 + [0x87] * 5
        assert not writer.closed
        rules.no_publish.clear()
        rules.change()
        burst(writer, "t", 5, qos)
        assert len(reader.payloads()) == 5


def test_a_burst_stays_in_one_piece() -> None:
    """Runs of publishes side by side."""
    network, rules = ruled()
    reader, writer = network.client("r"), network.client("w")
    reader.subscribe("t/#")
    for topic in ("t/1", "t/2"):
        burst(writer, topic, 2)
    send_buffer = network.session("r").send_buffer
    assert send_buffer is not None
    reader.wire.frozen = True
    for number in range(60):
        writer.post(f"t/{number % 2 + 1}", b"x")
    network.settle()
    assert send_buffer.messages == 60
    assert len(send_buffer.take_batch(1 << 20, network.now)) == 1
    assert rules.publishes == 4


class TestDeliveries:
    """Who may be sent it."""

    def test_subscribers_that_come_and_go_are_not_asked_about_again(self) -> None:
        """What costs most is asked once for each receiver and topic, whatever others do with the filter."""
        network, rules = ruled()
        writer = network.client("w")
        readers = [network.client(f"r{number}") for number in range(50)]
        for reader in readers:
            reader.subscribe("t")
        writer.publish("t", b"0")
        assert rules.receives == 50
        restless = network.client("x")
        for _ in range(20):
            restless.subscribe("t")
            writer.publish("t", b"x")
            restless.unsubscribe("t")
            writer.publish("t", b"x")
        # The restless one, each time that it came: nothing is kept of who has gone.
        assert rules.receives == 70

    def test_what_is_worked_out_is_charged(self) -> None:
        """To who publishes, in turns; and its references to the cache."""
        network, rules = ruled()
        writer = network.client("w")
        for number in range(100):
            network.client(f"r{number}").subscribe("t")
        before = network.router.budget.used
        writer.publish("t", b"0")
        assert network.router.budget.used - before >= 100 * rules.ask_work
        route = network.router.cache.lookup(b"t")
        assert route is not None
        assert route.weight >= 100
        before = network.router.budget.used
        writer.publish("t", b"0")
        assert network.router.budget.used - before < 100 * rules.ask_work

    def test_verdicts_that_may_not_be_remembered(self) -> None:
        """They are asked for with each message."""
        network, rules = ruled(steady=False)
        reader, writer = network.client("r"), network.client("w")
        reader.subscribe("t")
        for number in range(5):
            if number == 3:
                rules.no_receive.add(("r", "t"))
            if number == 4:
                rules.no_publish.add(("w", "t"))
            writer.publish("t", b"%d" % number)
        assert reader.payloads() == [b"0", b"1", b"2"]
        assert (rules.publishes, rules.receives) == (5, 4)


def test_what_a_member_leaves_behind_goes_to_one_who_may_have_it() -> None:
    network, rules = ruled()
    writer = network.client("w")
    leaving, barred = network.client("leaving"), network.client("barred")
    leaving.answering = False
    leaving.subscribe("$share/g/t", qos=1)
    writer.publish("t", b"x", 1)
    barred.subscribe("$share/g/t", qos=1)
    rules.no_receive.add(("barred", "t"))
    leaving.disconnect()
    assert barred.payloads() == []
    assert total_ledger(network.router.sessions.values()) == []


def test_a_turn_of_retained_messages_counts_what_was_asked() -> None:
    """However many there are that the subscriber may not have."""
    network, rules = ruled()
    rules.ask_work = 640
    writer = network.client("w")
    for number in range(300):
        writer.publish(f"t/{number}", b"x", 0, retain=True)
        rules.no_receive.add(("r", f"t/{number}"))
    reader = network.client("r")
    rules.receives = 0
    most = 0
    reader.send(p.Subscribe(1, [p.SubscriptionRequest("#", 0)]))
    reader.wire.to_channel()
    session = network.session("r")
    while session.streams is not None:
        before = rules.receives
        session.refill(network.now)
        most = max(most, rules.receives - before)
    assert rules.receives == 300
    assert most <= 256 // 40 + 1


class TestWaiting:
    """Messages that waited for their client while the rules changed."""

    def waiting(self, queue_qos0: bool = False) -> tuple[Network, Rules, Client]:
        network = Network(limits(queue_qos0=queue_qos0))
        rules = Rules()
        network.router.access_control = rules
        reader = network.client("r", clean=False, expiry=HOUR)
        reader.subscribe("#", qos=1)
        reader.cut()
        writer = network.client("w")
        for number in range(10):
            writer.publish(f"t{number % 2}", b"%d" % number, number % 2 if queue_qos0 else 1)
        return network, rules, reader

    def test_it_is_looked_at_once(self) -> None:
        network, rules, reader = self.waiting()
        rules.change()
        rules.receives = 0
        reader.answering = False
        reader.connect(clean=False, expiry=HOUR, receive_maximum=1)
        for _ in range(5):
            reader.ping()
            network.session("r").refill(network.now)
        assert rules.receives == 2
        reader.answering = True
        reader.answer()
        assert len(reader.payloads()) == 10
        assert rules.receives == 10

    @pytest.mark.crowd
    @pytest.mark.parametrize("in_flight", [False, True])
    def test_very_many_are_looked_at_in_turns(self, in_flight: bool) -> None:
        """What waits for the client, or was in flight to it and never written."""
        network = Network(limits(session_messages=0, live_messages=0, live_bytes=0, max_inflight=65_535))
        rules = Rules()
        network.router.access_control = rules
        reader = network.client("r", clean=False, expiry=HOUR)
        reader.subscribe("#", qos=1)
        reader.wire.frozen = True
        if not in_flight:
            reader.cut()
        writer = network.client("w")
        for _ in range(12):
            for _ in range(TURN // 4):
                writer.post("no", b"", 1)
            network.settle()
        writer.publish("yes", b"", 1)
        session = network.session("r")
        assert (len(session.inflight), session.queue.messages) == (3 * TURN + 1, 0)[:: 1 if in_flight else -1]
        reader.cut()
        rules.no_receive.add(("r", "no"))
        rules.change()
        rules.receives = 0
        reader.connect(clean=False, expiry=HOUR, settle=False, frozen=True)
        reader.wire.to_channel()
        turns = 0
        while session.queued() > 1 or turns == 0:
            before = rules.receives
            network.session("r").refill(network.now)
            assert 0 < rules.receives - before <= TURN
            turns += 1
        assert turns >= 2
        reader.wire.frozen = False
        network.settle()
        assert [each.topic for each in reader.take()] == [b"yes"]

    def test_what_is_dropped_holds_nobody_up(self) -> None:
        """The last QoS 0 that waited is one that may not be sent any more: the next goes straight to the buffer."""
        network = Network(limits(queue_qos0=True))
        network.router.access_control = rules = Rules()
        reader, writer = network.client("r", clean=False, expiry=HOUR), network.client("w")
        reader.subscribe("#")
        reader.cut()
        writer.publish("t", b"x")
        rules.no_receive.add(("r", "t"))
        rules.change()
        reader.connect(clean=False, expiry=HOUR)
        assert reader.payloads() == []
        assert reader.session.fast_path


def test_a_will_that_is_forbidden_at_once() -> None:
    network, rules = ruled()
    rules.no_publish.add(("a", "t"))
    assert network.idle("a").connect(will=Will("t", b"x")).reason_code == 0x87


class Users(AccessControl):
    """Some users may publish nothing."""

    def __init__(self, *barred: str) -> None:
        self.epoch = 0
        self.barred = barred

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del topic, qos, retain
        return principal.user_name not in self.barred


@pytest.mark.parametrize("withdrawn", ["old", "new"])
class TestWillsOfOthers:
    """A will is its client's, whoever has the client identifier when it is published."""

    def test_of_a_session_that_expired_and_was_not_looked_at_yet(self, withdrawn: str) -> None:
        network = Network()
        network.router.access_control = users = Users()
        reader = network.client("r")
        reader.subscribe("t")
        network.client("x", clean=False, expiry=10, user_name="old", will=Will("t", b"x", delay=5)).cut()
        users.barred = (withdrawn,)
        users.epoch += 1
        network.now += 20
        network.client("x", clean=False, expiry=10, user_name="new")
        network.advance(1)
        assert reader.payloads() == ([] if withdrawn == "old" else [b"x"])

    def test_of_one_who_was_taken_over_while_it_waits_for_its_turn(self, withdrawn: str) -> None:
        network = Network(limits(any_user_takes_over=True))
        router = network.router
        router.access_control = users = Users()
        reader = network.client("r")
        reader.subscribe("t")
        network.client("x", clean=False, expiry=HOUR, user_name="old", will=Will("t", b"x"))
        users.barred = (withdrawn,)
        users.epoch += 1
        newcomer = network.idle("x")
        newcomer.connect(clean=False, expiry=HOUR, user_name="new", settle=False)
        router.fanout.broadcasting = True
        newcomer.wire.to_channel()
        assert router.jobs.waiting
        router.fanout.broadcasting = False
        network.advance(1)
        assert reader.payloads() == ([] if withdrawn == "old" else [b"x"])


class TestInFlight:
    """What was in flight when the connection ended, and the rules have changed meanwhile."""

    @pytest.mark.parametrize("qos", [1, 2])
    def test_what_was_never_written_is_not_sent(self, qos: int) -> None:
        network, rules = ruled()
        reader, writer = network.client("r", clean=False, expiry=HOUR, receive_maximum=4), network.client("w")
        reader.subscribe("#", qos=qos)
        reader.wire.frozen = True
        for topic in ("t", "u", "t", "t", "t"):
            writer.publish(topic, topic.encode(), qos)
        reader.cut()
        rules.no_receive.add(("r", "t"))
        rules.change()
        reader.connect(clean=False, expiry=HOUR, receive_maximum=4)
        assert reader.payloads() == [b"u"]
        assert network.router.counters.dropped[NOT_AUTHORIZED] == 4
        assert reader.session.window.quota == 4
        assert total_ledger(network.router.sessions.values()) == []

    def test_what_was_is_not_sent_again_but_with_qos_2(self) -> None:
        """Whose client may know the packet identifier: it would take the next message with it for the same."""
        network, rules = ruled()
        reader, writer = network.client("r", clean=False, expiry=HOUR), network.client("w")
        reader.answering = False
        reader.subscribe("#", qos=2)
        for qos in (1, 2):
            writer.publish("t", b"t%d" % qos, qos)
            writer.publish("u", b"u%d" % qos, qos)
        assert len(reader.payloads()) == 4
        reader.cut()
        rules.no_receive.add(("r", "t"))
        rules.change()
        reader.answering = True
        reader.judge.withheld = {b"t"}
        reader.connect(clean=False, expiry=HOUR)
        again = [packet.payload for packet in reader.got(p.Publish)]
        assert again == [b"u1", b"t2", b"u2"]
        assert reader.session.inflight.count == 0
        assert total_ledger(network.router.sessions.values()) == []


class Half(AccessControl):
    """Grants QoS 1 at most, and nothing on `no`."""

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        del principal
        return FORBIDDEN if topic_filter.startswith("no") else min(qos, 1)


@pytest.mark.parametrize("version", [V311, V5])
def test_subscriptions_are_granted_less(version: int) -> None:
    """Each filter for itself [MQTT-3.8.4-6]; what is granted is what is delivered [MQTT-3.8.4-8]."""
    network = Network()
    network.router.access_control = Half()
    reader = network.client("r", version)
    refused = 0x87 if version == V5 else 0x80
    assert reader.subscribe("a", "no/a", "$share/g/no", "$share/g/b", qos=2) == [1, refused, refused, 1]
    network.client("w").publish("a", b"x", 2)
    assert [packet.qos for packet in reader.inbox] == [1]


def test_links_are_not_asked_about() -> None:
    """The session of a link to an upstream broker stands for many clients there."""
    network, rules = ruled()
    reader, writer = network.client("r"), network.client("w")
    reader.subscribe("t", qos=1)
    network.session("r").internal = True
    rules.no_receive.add(("r", "t"))
    writer.publish("t", b"x", 1)
    assert rules.receives == 0
    assert network.session("r").offered == 1


def test_what_is_worked_out_for_a_route_is_bounded_by_its_receivers() -> None:
    network, _ = ruled()
    writer = network.client("w")
    for number in range(20):
        client = network.client(f"r{number}")
        client.subscribe("t")
        writer.publish("t", b"x")
        if number % 2:
            client.disconnect()
            writer.publish("t", b"x")
    route = network.router.cache.lookup(b"t")
    assert route is not None
    assert route.verdicts is not None
    assert len(route.verdicts) == 10


class Capped(Rules):
    """Lets nobody have more than it is told to, by client and topic."""

    def __init__(self) -> None:
        super().__init__()
        self.most: dict[tuple[str, str], int] = {}

    def receive_qos(self, principal: Principal, topic: str) -> int:
        self.receives += 1
        return self.most.get((principal.client_id, topic), 2)


def qos_of(client: Client) -> list[int]:
    """With which QoS the messages since the last call came."""
    return [packet.qos for packet in client.take()]


class TestQos:
    """Access control says with which QoS a message is sent, at most; what was granted is not asked again."""

    def capped(self) -> tuple[Network, Capped, Client]:
        network, rules = Network(), Capped()
        network.router.access_control = rules
        return network, rules, network.client("w")

    def test_what_was_granted_is_no_less(self) -> None:
        """A rule of QoS 1 costs nothing where nobody has more: the route is open, and bursts stay whole."""
        network, rules, writer = self.capped()
        a = network.client("a")
        a.subscribe("t", qos=1)
        rules.most["a", "t"] = 1
        writer.publish("t", b"x", 1)
        fanout = network.router.fanout
        keys = []
        for qos in (1, 2):
            a.subscribe("t", qos=qos)
            route = fanout.route(b"t")
            assert route is not None
            keys.append(route.run_key is not None)
        assert keys == [True, False]
        writer.publish("t", b"x", 2)
        assert qos_of(a) == [1, 1]

    @pytest.mark.parametrize("most", [0, 1])
    @pytest.mark.parametrize("away", [True, False])
    def test_what_waits_while_the_rules_change(self, most: int, away: bool) -> None:
        """It has the QoS that is allowed when it is sent; the accounts agree, and a store forgets it."""
        network, rules, writer = self.capped()
        store = MemoryStore()
        network.router.journal = store.journal
        a = network.client("a", clean=False, expiry=HOUR, receive_maximum=1)
        a.subscribe("#", qos=2)
        a.answering = False
        writer.publish("first", b"", 1)
        if away:
            a.cut()
        for topic in ("t", "u", "t"):
            writer.publish(topic, b"x", 2)
        rules.most["a", "t"] = most
        rules.change()
        a.answering = True
        if away:
            a.connect(clean=False, expiry=HOUR, receive_maximum=1)
        else:
            a.answer()
        assert [(each.topic, each.qos) for each in a.take() if each.topic != b"first"] == [
            (b"t", most),
            (b"u", 2),
            (b"t", most),
        ]
        assert a.session.queued() == a.session.queue.qos0 == a.session.inflight.count == 0
        assert total_ledger([a.session]) == []
        assert not store.journal.sessions["a"].deliveries  # type: ignore[attr-defined]


class Meddling(Rules):
    """Has another client subscribe while it is asked, as a hook of an embedding program may."""

    def __init__(self, network: Network, late: Client) -> None:
        super().__init__()
        self.network = network
        self.late = late

    def may_receive(self, principal: Principal, topic: str) -> bool:
        if "t" not in self.late.session.subscriptions:
            self.network.router.subscribe(self.late.session, "", "t", Request("t", 0), 0)
        return super().may_receive(principal, topic)


def test_who_subscribes_while_access_control_is_asked_is_asked_about_next() -> None:
    """Answers are kept with the version of the subscriptions from before anybody was asked."""
    network = Network()
    publisher, receiver, late = network.client("p"), network.client("r"), network.client("late")
    receiver.subscribe("t")
    network.router.access_control = Meddling(network, late)
    for payload in (b"1", b"2"):
        publisher.publish("t", payload)
    assert receiver.payloads() == [b"1", b"2"]
    assert late.payloads() == [b"2"]
