"""Sessions: what expired goes bit by bit, and what a client of QoS 0 does without."""

from __future__ import annotations

import gc

from canopy_mqtt.core.ledger import ACCEPTED, TOO_LARGE
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.message_queue import STALE
from canopy_mqtt.core.session.session import Session
from tests.core.harness import Network, total_ledger
from tests.support.losses import dropped_by_cause


def test_of_a_queue_full_of_what_expired_some_goes_with_each_that_comes() -> None:
    """As much as makes room for many more, and not all in one call [MQTT-3.3.2-5]."""
    network = Network()
    session = Session("s", 100 * STALE, 0, network.router.counters)
    network.router.adopt(session)
    old = Message(b"t", b"", 1, False, b"", network.now + 1.0, "p")
    new = Message(b"t", b"", 1, False, b"", 0.0, "p")
    for _ in range(100 * STALE):
        assert session.deliver(old, 1, False, (), None) == ACCEPTED
    network.router.counters.totals.now = network.now + 2.0
    for came in range(1, 1_000):
        before = session.queue.messages
        assert session.deliver(new, 1, False, (), None) == ACCEPTED
        assert before - session.queue.messages <= 16 * STALE
        if came == 1:
            assert session.queue.messages < 100 * STALE - STALE
    assert sum(dropped_by_cause(session)) == 16 * STALE


def test_a_client_of_qos_0_has_neither_queue_nor_window() -> None:
    """Subscribing, receiving, a visit of its timers, and leaving need neither; the first QoS 1 message makes a window.

    A window made late begins at the client's Receive Maximum [MQTT-4.9.0-1].
    """
    network = Network()
    publisher, client = network.client("p"), network.client("c", receive_maximum=2)
    client.subscribe("t")
    publisher.publish("t", b"1")
    network.advance(1)
    assert client.payloads() == [b"1"]
    session = client.session
    assert (session.made_queue, session.made_window) == (None, None)
    client.answering = False
    client.subscribe("u", qos=1)
    for number in range(3):
        publisher.publish("u", bytes((number,)), 1)
    assert client.payloads() == [b"\x00", b"\x01"]
    assert session.made_window is not None
    assert session.made_window.quota == 0
    assert (session.waiting_messages(), session.in_flight_messages()) == (1, 2)
    idle = publisher.session
    publisher.cut()
    assert idle.ended
    assert (idle.made_queue, idle.made_window) == (None, None)


def test_a_session_that_ends_is_freed_with_its_queue_and_needs_no_collection() -> None:
    """Each of many short sessions would take memory until the collector's next long pass."""

    def alive() -> list[str]:
        kinds = [type(thing).__name__ for thing in gc.get_objects()]
        return sorted(kind for kind in kinds if kind in {"Session", "MessageQueue"})

    network = Network()
    publisher, client = network.client("p"), network.client("c", receive_maximum=1)
    client.answering = False
    client.subscribe("t", qos=1)
    for _ in range(3):
        publisher.publish("t", b"", 1)
    assert client.session.waiting_messages() == 2
    client.unsubscribe("t")
    publisher.publish("t", b"")  # the topic's recipients are known anew
    gc.collect()
    gc.disable()
    try:
        before = alive()
        client.cut()
        assert alive() == before[1:-1]
    finally:
        gc.enable()


def test_what_is_too_large_on_return() -> None:
    """A client that comes back with a smaller Maximum Packet Size loses what does not fit, as if it had been sent.

    [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    """
    network = Network()
    subscriber, publisher = network.client("s", clean=False, expiry=1_000), network.client("p")
    subscriber.subscribe("t/#", qos=2)
    subscriber.answering = False
    publisher.publish("t/a", b"x" * 500, 1)
    publisher.publish("t/a", b"y", 1)
    subscriber.take()
    subscriber.cut()
    publisher.publish("t/a", b"z" * 500, 1)
    publisher.publish("t/a", b"!", 1)
    subscriber.answering = True
    subscriber.connect(clean=False, expiry=1_000, max_packet=100)
    assert subscriber.payloads() == [b"y", b"!"]
    assert dropped_by_cause(subscriber.session)[TOO_LARGE] == 1
    assert not subscriber.session.inflight
    assert total_ledger([subscriber.session]) == []
