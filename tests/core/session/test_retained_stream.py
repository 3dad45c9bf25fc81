"""Retained messages on their way to a new subscription: thousands, tiny queues, and whatever can happen meanwhile.

Promise: none is lost, nothing older follows something newer, they go at the receiver's pace, and nobody else waits.
"""

from __future__ import annotations

from itertools import product

import pytest

from canopy_mqtt.core.codec.packets import PUBACK, V5, V311, Ack, Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.ledger import TOO_LARGE
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.session.retained_stream import STEP, TOPICS
from tests.core.harness import Client, Network, limits, total_ledger
from tests.support.losses import dropped_by_cause

MANY = 5_000


def filled(count: int, qos: int = 1, size: int = 0, **changes: int) -> tuple[Network, Client]:
    """A broker with retained messages r/0 … r/count-1, whose payload is their number, and who published them."""
    network = Network(limits(**changes))
    publisher = network.client("publisher")
    for number in range(count):
        publisher.post(f"r/{number}", b"%d" % number + b"." * size, qos, retain=True)
        if number % 500 == 499:
            network.settle()
    network.settle()
    assert len(network.router.retained) == count
    return network, publisher


def numbers(client: Client) -> list[int]:
    """The numbers of the retained messages that came, in order of arrival."""
    return [int(packet.payload.rstrip(b".")) for packet in client.take() if packet.retain]


@pytest.mark.crowd
@pytest.mark.parametrize(("version", "qos"), [*product((V311, V5), (0, 1, 2))])
def test_all_of_many_through_a_tiny_send_buffer(version: int, qos: int) -> None:
    """One SUBSCRIBE, thousands of messages, room for a few: none lost, none doubled [MQTT-3.3.1-9] [MQTT3-3.3.1-6]."""
    network, _ = filled(MANY, live_messages=4, live_bytes=1_000, session_messages=3, session_bytes=500, max_inflight=3)
    subscriber = network.client("s", version)
    subscriber.subscribe("r/#", qos=qos)
    assert sorted(numbers(subscriber)) == list(range(MANY))
    assert network.router.counters.dropped_in_all() == 0
    assert subscriber.wire.send_buffer.high_water <= 4
    assert total_ledger([subscriber.session]) == []
    assert subscriber.session.streams is None


def test_too_large_ones_do_not_stop_the_rest() -> None:
    """Hundreds in a row that the receiver cannot take are counted; those after them arrive [MQTT-3.1.2-25]."""
    network, publisher = filled(1_000, size=200)
    publisher.publish("r/x", b"77", 1, retain=True)
    subscriber = network.client("s", max_packet=100)
    subscriber.subscribe("r/#", qos=1)
    assert numbers(subscriber) == [77]
    assert dropped_by_cause(subscriber.session)[TOO_LARGE] == 1_000
    assert total_ledger([subscriber.session]) == []


def test_a_topic_that_becomes_retained_during_the_stream_comes_once_at_least() -> None:
    """As a live message, amid 500 retained ones of which the receiver has read the first few."""
    network, publisher = filled(500, live_messages=8, max_inflight=100)
    subscriber = network.client("s")
    subscriber.send(_subscribe(subscriber, Request("r/#", 1)))
    subscriber.wire.to_channel()
    for _ in range(10):
        subscriber.wire.flush(1)
        subscriber.wire.to_client()
        subscriber.wire.to_channel()
    subscriber.wire.frozen = True
    network.settle()
    assert 0 < len(subscriber.inbox) < 400
    publisher.publish("r/500", b"500", 1, retain=True)
    subscriber.wire.frozen = False
    network.settle()
    assert subscriber.session.streams is None
    assert {int(packet.payload) for packet in subscriber.take()} == set(range(501))
    assert total_ledger([subscriber.session]) == []


@pytest.mark.parametrize("clear", [False, True])
def test_nothing_stale_behind_a_shut_window(clear: bool) -> None:
    """A value that waited for the window is not sent once a newer one was [MQTT-3.3.1-5]."""
    network = Network()
    publisher, subscriber = network.client("p"), network.client("s", receive_maximum=1)
    for topic in ("r/a", "r/b", "r/c"):
        publisher.publish(topic, b"old", 1, retain=True)
    subscriber.answering = False
    subscriber.subscribe("r/+", qos=1)
    [first] = subscriber.take()
    for topic in ("r/a", "r/b", "r/c"):
        publisher.publish(topic, b"" if clear else b"new", 0, retain=True)
    while subscriber.unanswered:
        subscriber.answer()
    got = [(packet.topic, packet.payload) for packet in subscriber.take()]
    assert len([each for each in got if each[1] != b"old"]) >= 3
    assert not [each for each in got if each[1] == b"old"], f"{first.topic!r} came first, then {got}"


@pytest.mark.parametrize("qos", [0, 1])
def test_nothing_stale_behind_a_full_send_buffer(qos: int) -> None:
    """A large value that waited for room is not sent once a small newer one was [MQTT-3.3.1-5]."""
    network = Network(limits(live_bytes=1_000))
    publisher, subscriber = network.client("p"), network.client("s")
    subscriber.subscribe("live")
    publisher.publish("r/a", b"x" * 800, 1, retain=True)
    subscriber.wire.frozen = True
    publisher.publish("live", b"y" * 300)
    subscriber.send(_subscribe(subscriber, Request("r/+", 1)))
    network.settle()
    publisher.publish("r/a", b"new", qos, retain=True)
    subscriber.wire.frozen = False
    network.settle()
    got = [packet.payload for packet in subscriber.take() if packet.topic == b"r/a"]
    assert got
    assert set(got) == {b"new"}


def test_no_stream_where_nothing_can_match() -> None:
    """Filters whose first levels lead nowhere start no stream, whatever else is retained."""
    network, _ = filled(10)
    subscriber = network.client("s")
    subscriber.wire.frozen = True
    subscriber.send(Subscribe(1, [Request(f"device/{number}/#", 1) for number in range(100)]))
    network.settle()
    assert subscriber.session.streams is None
    subscriber.send(Subscribe(2, [Request("r/3", 1), Request("r/x", 1), Request("r/#", 1)]))
    subscriber.wire.to_channel()
    subscriber.wire.frozen = False
    network.settle()
    assert sorted(numbers(subscriber)) == sorted([3, *range(10)])


def test_only_the_first_stream_walks() -> None:
    """Those that wait for their turn hold no cursor: thousands of them are a few bytes each."""
    network, _ = filled(50)
    subscriber = network.client("s", receive_maximum=5)
    subscriber.answering = False
    subscriber.send(Subscribe(1, [Request(f"r/{'+' if number % 2 else number % 50}", 1) for number in range(40)]))
    network.settle()
    streams = subscriber.session.streams
    assert streams is not None
    assert len(streams.streams) > 15
    assert sum(stream.walk is not None for stream in streams.streams.values()) <= 1


def test_topics_that_came_while_a_stream_waited_for_its_turn() -> None:
    """A topic that is new since the SUBSCRIBE comes once, as a live message, and not again as a retained one."""
    network, publisher = filled(20)
    subscriber = network.client("s", receive_maximum=1)
    subscriber.answering = False
    subscriber.subscribe("r/#", "r/+", qos=1)
    publisher.publish("r/100", b"100", 0, retain=True)
    while subscriber.unanswered:
        subscriber.answer()
    got = [(int(packet.payload), packet.retain) for packet in subscriber.take()]
    assert sorted(got) == sorted([*product(range(20), [True]), *product(range(20), [True]), (100, False)])


def test_acknowledgements_share_one_turn() -> None:
    """A thousand PUBACKs in one read look at no more of the retained tree than one does."""
    network, publisher = filled(1, receive_maximum=60_000)
    publisher.publish("r/0", b"", 0, retain=True)
    for number in range(20_000):
        message = Message(b"many/%d" % number, b"x", 0, True, b"", 0.0, "p")
        network.router.retained_store.put(f"many/{number}", message, network.router.accounts.internal)
    subscriber = network.client("s")
    publisher_2 = network.client("p2")
    subscriber.subscribe("live", qos=1)
    subscriber.answering = False
    for number in range(1_000):
        publisher_2.post("live", b"%d" % number, 1)
    network.settle()
    acks = [packet for packet in subscriber.take() if packet.qos == 1]
    assert len(acks) == 1_000
    request = _subscribe(subscriber, Request("+/+/none", 0))
    subscriber.send(request)
    # The writer has no turn: only what comes from the client drives the stream.
    subscriber.wire.frozen = True
    subscriber.wire.to_channel()
    streams = subscriber.session.streams
    assert streams is not None
    [stream] = streams.streams.values()
    cursor = stream.walk
    assert cursor is not None
    before = cursor.steps
    for packet in acks:
        subscriber.send(Ack(PUBACK, packet.packet_id))
    subscriber.wire.to_channel()
    assert not subscriber.session.inflight
    assert cursor.steps - before <= 2 * STEP * TOPICS
    assert not cursor.done
    subscriber.wire.frozen = False
    network.settle()
    assert subscriber.session.streams is None
    assert cursor.done


def _subscribe(client: Client, request: Request) -> Subscribe:
    return Subscribe(client.take_id(), [request])
