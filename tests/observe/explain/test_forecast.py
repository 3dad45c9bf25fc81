"""What one queue would do with a message, and then does: the cases that the machine meets too seldom."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.codec.packets import Subscribe
from broker.core.codec.packets import SubscriptionRequest as Request
from broker.core.counters import AGE, EXPIRED, FULL_MESSAGES, NO_QUOTA
from broker.core.queues.policies.queue_policy import DISCONNECT
from broker.observe.explain.answer import Receiver
from tests.core.harness import Client, Network, bag, limits
from tests.core.recount import user_wish
from tests.observe.explain.asking import explain
from tests.support.losses import dropped_by_cause

Scene = tuple[Network, Client, Client]


def scene(frozen: bool = False, options: list[tuple[str, str]] | None = None, **changes: int | float) -> Scene:
    """A sender, and a reader of everything below t with QoS 1."""
    made = limits()
    for name, value in changes.items():
        setattr(made, name, value)
    network = Network(made)
    reader = network.client("reader", clean=False, expiry=1_000)
    reader.judge.enabled = False
    reader.send(Subscribe(reader.take_id(), [Request("t/#", 1)], bag(*(options or []))))
    network.settle()
    reader.wire.frozen = frozen
    return network, network.client("sender"), reader


def said(network: Network, topic: str = "t/1", **asked: Any) -> Receiver:
    network.router.counters.load.now = network.now
    [receiver] = explain(network.router, network.now, topic, publisher="sender", **asked).receivers
    return receiver


def test_a_client_that_acknowledges_nothing_loses_by_no_quota() -> None:
    network, sender, reader = scene(max_inflight=1, session_messages=1)
    reader.answering = False
    for _ in range(2):
        sender.publish("t/1", b"x", qos=1)
    receiver = said(network, qos=1)
    assert (receiver.outcome, receiver.cause, receiver.sheds) == ("dropped", "no-quota", 0)
    sender.publish("t/1", b"x", qos=1)
    assert dropped_by_cause(reader.session)[NO_QUOTA] == 1


def test_what_has_expired_makes_room_in_the_session() -> None:
    network, sender, reader = scene(session_messages=1)
    reader.cut()
    network.advance(0)
    sender.publish("t/1", b"x", qos=1, expiry=1)
    assert said(network, qos=1).cause == "full-messages"
    network.advance(2)
    receiver = said(network, qos=1)
    assert (receiver.outcome, receiver.sheds) == ("waits", 1)
    sender.publish("t/1", b"y", qos=1)
    assert dropped_by_cause(reader.session)[EXPIRED] == 1
    assert reader.session.queue.messages == 1


def test_what_has_expired_makes_room_in_the_queue_of_the_connection() -> None:
    network, sender, reader = scene(frozen=True, live_messages=1)
    sender.publish("t/1", b"x", expiry=1)
    assert said(network).cause == "full-messages"
    network.advance(2)
    receiver = said(network)
    assert (receiver.outcome, receiver.sheds) == ("sent", 1)
    sender.publish("t/1", b"y")
    assert dropped_by_cause(reader.session)[EXPIRED] == 1


def test_what_is_too_old_makes_room() -> None:
    network, sender, reader = scene(session_messages=1, queue_max_age=2.0)
    reader.cut()
    network.advance(0)
    sender.publish("t/1", b"x", qos=1)
    assert said(network, qos=1).cause == "full-messages"
    network.advance(3)
    receiver = said(network, qos=1)
    assert (receiver.outcome, receiver.sheds) == ("waits", 1)
    sender.publish("t/1", b"y", qos=1)
    assert dropped_by_cause(reader.session)[AGE] == 1


@pytest.mark.parametrize("options", [[], user_wish("disconnect", depth="1")])
def test_a_client_that_is_disconnected_for_a_full_queue(options: list[tuple[str, str]]) -> None:
    policy = {} if options else {"queue_policy": DISCONNECT}
    network, sender, reader = scene(frozen=True, options=options, live_messages=1, **policy)
    sender.publish("t/1", b"x")
    receiver = said(network)
    assert (receiver.outcome, receiver.cause, receiver.disconnects) == ("dropped", "full-messages", True)
    assert "and its client is disconnected for it" in receiver.sentence
    outbox = reader.wire.outbox
    sender.publish("t/1", b"y")
    assert outbox.closed
    assert dropped_by_cause(reader.session)[FULL_MESSAGES] == 1


def test_what_has_terms_of_its_own_waits_where_much_is_on_its_way() -> None:
    network, sender, reader = scene(frozen=True, options=user_wish("latest"), max_inflight=100)
    for number in range(40):
        before = reader.session.queue.messages
        receiver = said(network, f"t/{number}", qos=1)
        sender.publish(f"t/{number}", b"x", qos=1)
        assert (receiver.outcome == "waits") == (reader.session.queue.messages > before)
    assert reader.session.queue.messages > 0
    assert said(network, "t/39", qos=1).outcome == "replaces"
