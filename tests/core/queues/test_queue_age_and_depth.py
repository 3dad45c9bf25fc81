"""What waits too long, subscriptions with a depth of their own, and clients that fall behind."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.ledger import FULL_MESSAGES
from canopy_mqtt.core.queues.queue_terms import (
    DROP_NEWEST,
    DROP_OLDEST,
    LATEST,
    MessageTerms,
    QueueRule,
)
from tests.core.harness import Client, Network, limits
from tests.support.losses import dropped_by_cause
from tests.support.runs import for_each


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


class TestLanes:
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
        assert client.wire.send_buffer.messages == 4
        message_terms = client.session.subscriptions["a/#"].message_terms
        assert message_terms is not None
        assert message_terms.waiting == 3
        assert dropped_by_cause(client.session)[FULL_MESSAGES] == 2_997
        assert len(client.wire.send_buffer.items) < 100
        assert remembered(message_terms) < 100
        assert len(thaw(client)) == 4

    @for_each("policy", [DROP_OLDEST, LATEST])
    def test_nor_a_session_whose_client_is_away(self, policy: int) -> None:
        _, client, publisher = scene(policy, max_age=1_000.0, session_messages=3)
        client.cut()
        for number in range(1_000):
            publisher.publish(f"t/{number % 3}", qos=1)
        message_terms = client.session.message_terms
        assert message_terms is not None
        assert message_terms.waiting == 3
        assert client.session.queue.pending is not None
        assert len(client.session.queue.pending) < 100
        assert remembered(message_terms) < 100


def remembered(message_terms: MessageTerms) -> int:
    """Places in a lane's order of age."""
    assert message_terms._by_age is not None
    return len(message_terms._by_age)


class TestSlow:
    def test_who_reads_and_does_not_acknowledge_is_slow_too(self) -> None:
        network, client, publisher = scene(DROP_NEWEST, max_inflight=1)
        client.wire.frozen = False
        client.answering = False
        for _ in range(3):
            publisher.publish("t", qos=1)
        assert client.wire.send_buffer.messages == 0
        network.now += 3.0
        assert client.session.waited(network.now) == pytest.approx(3.0)
        client.cut()
        assert client.session.waited(network.now) == 0.0
