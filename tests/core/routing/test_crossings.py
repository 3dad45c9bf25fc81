"""Every kind of sender towards every kind of receiver: 3.1.1 and 5.0, each QoS, and what crosses or stays behind."""

from __future__ import annotations

from itertools import product

import pytest

from canopy_mqtt.core.codec.packets import V5, V31, V311, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import decode_forward, encode_forward
from tests.core.harness import Network, bag, limits
from tests.support.runs import for_each

VERSIONS = (V311, V5)
PACES = (0, 1, 7)
FULL = encode_forward(1, "text/plain", "answer/here", b"\x00\x01\xff", [("b", "2"), ("a", "1"), ("b", "1"), ("", "")])
"""Everything that is forwarded."""


@for_each(("sender", "receiver", "sent", "granted"), [*product((V31, V311, V5), (V31, V311, V5), (0, 1, 2), (0, 1, 2))])
def test_lower_of_both_qualities(sender: int, receiver: int, sent: int, granted: int) -> None:
    """The receiver gets the lower of the QoS published and granted, once.

    [MQTT-3.8.4-8] [MQTT-4.3.1-1]
    """
    network = Network()
    subscriber, publisher = network.client("s", receiver), network.client("p", sender)
    assert subscriber.subscribe("t/#", qos=granted) == [granted]  # [MQTT-3.8.4-7]
    publisher.publish("t/a", b"x", sent)
    [packet] = subscriber.take()
    assert (packet.topic, packet.payload, packet.qos) == (b"t/a", b"x", min(sent, granted))
    assert (packet.retain, packet.dup) == (False, False)
    assert (packet.packet_id > 0) == (packet.qos > 0)  # [MQTT-2.2.1-2]
    assert not publisher.outgoing
    assert not subscriber.incoming
    assert not network.session("s").inflight


@pytest.mark.crowd
@pytest.mark.parametrize(("sender", "receiver", "pace"), [*product(VERSIONS, VERSIONS, PACES)])
def test_bytes_survive_any_split(sender: int, receiver: int, pace: int) -> None:
    """Large, empty and odd payloads cross whole, however the reads fall [MQTT-4.2.0-1]."""
    network = Network(pace=pace)
    subscriber, publisher = network.client("s", receiver), network.client("p", sender)
    subscriber.subscribe("#", qos=2)
    payloads = [b"", b"\x00", bytes(range(256)) * 12, b"x" * 127, b"y" * 128, b"z" * 16_500]
    for qos in (0, 1, 2):
        for payload in payloads:
            publisher.post("t/\N{GREEK SMALL LETTER PI}", payload, qos)
    network.settle()
    assert subscriber.payloads() == payloads * 3


def test_megabyte() -> None:
    """A payload near the largest packet size crosses at each QoS."""
    network = Network(pace=65_536)
    subscriber, publisher = network.client("s", V311), network.client("p")
    subscriber.subscribe("t", qos=2)
    big = b"m" * 1_000_000
    for qos in (0, 1, 2):
        publisher.publish("t", big, qos)
    assert subscriber.payloads() == [big] * 3


def test_text_is_kept_as_it_is() -> None:
    """U+FEFF, combining signs and emoji cross unchanged, in topics and properties [MQTT-1.5.4-3] [MQTT-4.7.3-4]."""
    network = Network()
    odd = "\N{ZERO WIDTH NO-BREAK SPACE}a\N{COMBINING DIAERESIS}/\N{ROCKET}"
    subscriber, publisher = network.client("s"), network.client("p")
    subscriber.subscribe(odd)
    properties = encode_forward(user=[(odd, odd)])
    publisher.publish(odd, b"x", properties=properties)
    [packet] = subscriber.take()
    assert (packet.topic, packet.properties) == (odd.encode(), properties)


@for_each("qos", [0, 1, 2])
def test_properties_reach_a_v5_receiver_unchanged(qos: int) -> None:
    """What is forwarded arrives byte for byte, user properties in order.

    [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
    """
    network = Network()
    subscriber, publisher = network.client("s"), network.client("p")
    subscriber.subscribe("t", qos=2)
    publisher.publish("t", b"x", qos, properties=FULL)
    [packet] = subscriber.take()
    assert packet.properties == FULL
    held = decode_forward(packet.properties)
    assert held.user == [("b", "2"), ("a", "1"), ("b", "1"), ("", "")]
    assert packet.topic_alias == 0
    assert packet.message_expiry == -1


@for_each("qos", [0, 1, 2])
def test_properties_stay_behind_for_311(qos: int) -> None:
    """A 3.1.1 receiver gets topic and payload; a 5.0 receiver of a 3.1.1 message gets no properties [MQTT-2.2.2-1]."""
    network = Network()
    old, new = network.client("old", V311), network.client("new")
    for each in (old, new):
        each.subscribe("t", qos=2)
    network.client("p").publish("t", b"x", qos, properties=FULL, expiry=60)
    network.client("q", V311).publish("t", b"y", qos)
    assert [(packet.topic, packet.payload, packet.properties) for packet in old.take()] == [
        (b"t", b"x", b""),
        (b"t", b"y", b""),
    ]
    first, second = new.take()
    assert (first.properties, first.message_expiry) == (FULL, 60)
    assert (second.properties, second.message_expiry) == (b"", -1)


@for_each(("version", "qos"), [*product(VERSIONS, (0, 1, 2))])
def test_retained(version: int, qos: int) -> None:
    """Stored, replaced, cleared; RETAIN 1 on subscribing, 0 on an established subscription.

    [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-12] [MQTT3-3.3.1-6] [MQTT3-3.3.1-7]
    [MQTT3-3.3.1-8] [MQTT3-3.3.1-9]
    """
    network = Network()
    publisher = network.client("p", version)
    publisher.publish("t", b"one", qos, retain=True)
    publisher.publish("t", b"two", qos, retain=True)
    publisher.publish("t", b"not kept", qos)
    for receiver in VERSIONS:
        subscriber = network.client(f"s{receiver}", receiver)
        subscriber.subscribe("t", qos=2)
        assert [(packet.payload, packet.retain, packet.qos) for packet in subscriber.take()] == [(b"two", True, qos)]
        publisher.publish("t", b"two", qos, retain=True)
        assert [(packet.payload, packet.retain) for packet in subscriber.take()] == [(b"two", False)]
    publisher.publish("t", b"", qos, retain=True)
    assert subscriber.payloads() == [b""]
    assert len(network.router.retained) == 0
    assert network.router.retained_bytes == 0
    late = network.client("late")
    late.subscribe("t", qos=2)
    assert late.take() == []


def test_retain_as_published() -> None:
    """With Retain As Published the flag crosses as it came, without it is 0 [MQTT-3.3.1-12] [MQTT-3.3.1-13]."""
    network = Network()
    keeps, plain, publisher = network.client("k"), network.client("n"), network.client("p", V311)
    keeps.subscribe(Request("t", 1, retain_as_published=True))
    plain.subscribe(Request("t", 1))
    for qos, retain in product((0, 1), (True, False)):
        publisher.publish("t", b"x", qos, retain)
        assert [packet.retain for packet in keeps.take()] == [retain]
        assert [packet.retain for packet in plain.take()] == [False]


def test_no_local() -> None:
    """No Local keeps one's own messages away, and nobody else's [MQTT-3.8.3-3]."""
    network = Network()
    one, other = network.client("one"), network.client("other", V311)
    one.subscribe(Request("t", 2, no_local=True))
    other.subscribe("t", qos=2)
    for qos in (0, 1, 2):
        one.publish("t", b"mine", qos)
        other.publish("t", b"theirs", qos)
    assert one.payloads() == [b"theirs"] * 3
    assert other.payloads() == [b"mine", b"theirs"] * 3


def test_no_local_beside_a_wider_filter() -> None:
    """An overlapping subscription without No Local still counts for one's own message [MQTT-3.8.3-3] [MQTT-3.3.4-2]."""
    network = Network()
    one = network.client("one")
    one.subscribe(Request("t/a", 2, no_local=True), identifier=1)
    one.subscribe(Request("t/+", 1), identifier=2)
    one.publish("t/a", b"mine", 2)
    [packet] = one.take()
    assert (packet.qos, packet.subscription_ids) == (1, (2,))
    network.client("other").publish("t/a", b"theirs", 2)
    [packet] = one.take()
    assert (packet.qos, sorted(packet.subscription_ids)) == (2, [1, 2])


def test_overlapping_filters_one_delivery() -> None:
    """One copy with the highest QoS and every identifier.

    [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]
    """
    network = Network()
    subscriber, old, publisher = network.client("s"), network.client("o", V311), network.client("p")
    subscriber.subscribe("a/b", qos=0, identifier=268_435_455)
    subscriber.subscribe("a/+", qos=2, identifier=7)
    subscriber.subscribe("#", qos=1)
    subscriber.subscribe("a/#", qos=1, identifier=7)
    old.subscribe("a/b", "a/+", "#", qos=1)
    publisher.publish("a/b", b"x", 2)
    [packet] = subscriber.take()
    assert packet.qos == 2
    assert sorted(set(packet.subscription_ids)) == [7, 268_435_455]
    [packet] = old.take()
    assert (packet.qos, packet.subscription_ids) == (1, ())
    subscriber.unsubscribe("a/+", "a/#", "a/b")
    publisher.publish("a/b", b"y", 2)
    [packet] = subscriber.take()
    assert (packet.qos, packet.subscription_ids) == (1, ())


def test_overlapping_filters_of_which_one_keeps_the_flag() -> None:
    """One copy for two subscriptions keeps RETAIN when one of them asked for it [MQTT-3.3.1-13]."""
    network = Network()
    subscriber, publisher = network.client("s"), network.client("p")
    subscriber.subscribe(Request("t/a", 0, retain_as_published=True), Request("t/+", 1))
    publisher.publish("t/a", b"x", 1, retain=True)
    assert [(packet.qos, packet.retain) for packet in subscriber.take()] == [(1, True)]


def test_topic_matches_the_filter_it_is_sent_for() -> None:
    """What arrives has a topic that its subscription matches; $ stays hidden from leading wildcards.

    [MQTT-3.3.2-3] [MQTT-4.7.2-1] [MQTT-4.7.3-4]
    """
    network = Network()
    publisher = network.client("p")
    wide, exact = network.client("w"), network.client("e")
    wide.subscribe("#", "+/monitor", qos=0)
    exact.subscribe("$own/monitor", "A", "a\N{COMBINING RING ABOVE}", qos=0)
    publisher.publish("$own/monitor", b"1")
    publisher.publish("A", b"2")
    publisher.publish("a", b"3")
    publisher.publish("\N{LATIN SMALL LETTER A WITH RING ABOVE}", b"4")
    assert wide.payloads() == [b"2", b"3", b"4"]
    assert exact.payloads() == [b"1", b"2"]


@for_each("qos", [0, 1, 2])
def test_expiry_counts_down_while_waiting(qos: int) -> None:
    """The interval sent on is what came less the time in the server [MQTT-3.3.2-6]."""
    network = Network(limits(queue_qos0=1))
    subscriber, publisher = network.client("s", expiry=1_000, clean=False), network.client("p")
    subscriber.subscribe("t", qos=2)
    subscriber.cut()
    publisher.publish("t", b"x", qos, expiry=100)
    network.advance(30)
    subscriber.connect(clean=False, expiry=1_000)
    [packet] = subscriber.take()
    assert packet.message_expiry == 70


@for_each(("version", "qos"), [*product(VERSIONS, (0, 1, 2))])
def test_expired_while_away_is_deleted(version: int, qos: int) -> None:
    """A message whose expiry passed before its delivery began is not delivered, and counted [MQTT-3.3.2-5]."""
    network = Network(limits(queue_qos0=1))
    subscriber, publisher = network.idle("s", version), network.client("p")
    keep = 1_000 if version == V5 else None
    subscriber.connect(clean=False, expiry=keep)
    subscriber.subscribe("t", qos=2)
    subscriber.cut()
    publisher.publish("t", b"old", qos, expiry=10)
    publisher.publish("t", b"new", qos, expiry=100)
    network.advance(11)
    subscriber.connect(clean=False, expiry=keep)
    assert subscriber.payloads() == [b"new"]
    assert network.router.counters.dropped[3] == 1


@for_each(("version", "qos"), [*product(VERSIONS, (0, 1, 2))])
def test_expired_in_the_send_buffer_is_deleted(version: int, qos: int) -> None:
    """The same while the receiver is connected and does not read: a 3.1.1 receiver is no exception [MQTT-3.3.2-5]."""
    network = Network()
    subscriber, publisher = network.client("s", version), network.client("p")
    subscriber.subscribe("t", qos=2)
    subscriber.wire.frozen = True
    publisher.publish("t", b"old", qos, expiry=10)
    publisher.publish("t", b"new", qos, expiry=100)
    network.advance(11)
    subscriber.wire.frozen = False
    network.settle()
    assert subscriber.payloads() == [b"new"]
    assert not network.session("s").inflight
    assert network.router.counters.dropped[3] == 1


def test_retained_expiry() -> None:
    """A retained message is gone when its expiry has passed, and counts down until then.

    [MQTT-3.3.2-5] [MQTT-3.3.2-6]
    """
    network = Network()
    publisher = network.client("p")
    publisher.publish("t", b"x", 1, retain=True, expiry=100)
    network.advance(40)
    subscriber = network.client("s")
    subscriber.subscribe("t", qos=1)
    assert [packet.message_expiry for packet in subscriber.take()] == [60]
    network.advance(61)
    assert len(network.router.retained) == 0
    assert network.router.retained_bytes == 0


@for_each(("sender", "receiver"), [*product(VERSIONS, VERSIONS)])
def test_will_crosses(sender: int, receiver: int) -> None:
    """A will is a message like any other [MQTT-3.1.2-8] [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.3-10]."""
    network = Network()
    subscriber = network.client("s", receiver)
    subscriber.subscribe("will", qos=2)
    properties = FULL if sender == V5 else b""
    dying = network.client("d", sender, will=Will("will", b"gone", 1, True, 0, 50 if sender == V5 else -1, properties))
    dying.cut()
    network.settle()
    [packet] = subscriber.take()
    assert (packet.payload, packet.qos, packet.retain) == (b"gone", 1, False)
    if receiver == V5:
        assert packet.properties == properties
        assert packet.message_expiry == (50 if sender == V5 else -1)
    assert len(network.router.retained) == 1
    again = network.client("d", sender, will=Will("other", b"gone", 0, False))
    again.cut()
    assert len(network.router.retained) == 1


def test_identifier_and_expiry_for_a_changed_version() -> None:
    """A session resumed by 3.1.1 after 5.0 gets its queue in the new layout; the packet identifiers stay.

    [MQTT-4.4.0-1]
    """
    network = Network()
    subscriber, publisher = network.client("s", clean=False, expiry=500), network.client("p")
    subscriber.answering = False
    subscriber.subscribe("t", qos=1, identifier=9)
    publisher.publish("t", b"x", 1, properties=FULL, expiry=100)
    [first] = subscriber.take()
    assert first.subscription_ids == (9,)
    subscriber.cut()
    subscriber.version = V311
    assert subscriber.connect(clean=False).session_present
    [second] = subscriber.take()
    assert (second.payload, second.packet_id, second.dup) == (b"x", first.packet_id, True)


def test_alias_is_of_one_hop() -> None:
    """A sender's alias never reaches the receiver, and each alias up to the maximum is accepted.

    [MQTT-3.3.2-7] [MQTT-3.3.2-12]
    """
    network = Network(limits(topic_alias_maximum=3))
    publisher, subscriber = network.client("p"), network.client("s", properties=bag(i={0x22: 10}))
    assert publisher.connack.properties.integers[0x22] == 3
    subscriber.subscribe("#", qos=1)
    for alias in (1, 2, 3):
        publisher.publish(f"t/{alias}", b"set", alias=alias)
    for alias in (3, 1, 2):
        publisher.publish("", b"used", 1, alias=alias)
    publisher.publish("t/new", b"moved", alias=2)
    publisher.publish("", b"moved", alias=2)
    got = [(packet.topic, packet.payload, packet.topic_alias) for packet in subscriber.take()]
    assert got == [
        *((f"t/{alias}".encode(), b"set", 0) for alias in (1, 2, 3)),
        *((f"t/{alias}".encode(), b"used", 0) for alias in (3, 1, 2)),
        (b"t/new", b"moved", 0),
        (b"t/new", b"moved", 0),
    ]
