"""Sessions: what is kept over connections, the window towards the client, packet identifiers, and resumption."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V311, Ack
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.ledger import ACCEPTED, DISCONNECTED, EXPIRED, TOO_LARGE
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.message_queue import STALE
from canopy_mqtt.core.session.session import Session
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.support.losses import dropped_by_cause
from tests.support.runs import for_each

FOREVER = 0xFFFFFFFF


def pair(given: object = None, qos: int = 2, **connect: int) -> tuple[Network, Client, Client]:
    """A subscriber to `t/#` with a session to keep, and a publisher."""
    network = Network(given)  # type: ignore[arg-type]
    subscriber = network.idle("s")
    subscriber.connect(clean=False, expiry=1_000, **connect)  # type: ignore[arg-type]
    subscriber.subscribe("t/#", qos=qos)
    return network, subscriber, network.client("p")


def back(subscriber: Client, **connect: int) -> bool:
    """Connect again to the session; whether it was there."""
    return subscriber.connect(clean=False, expiry=1_000, **connect).session_present  # type: ignore[arg-type]


class TestKeeping:
    """Which sessions stay, and for how long."""

    def test_expired_though_nobody_looked(self) -> None:
        """The interval counts even when the timer comes late [MQTT-4.1.0-2]."""
        network, subscriber, _ = pair()
        subscriber.cut()
        network.now += 1_001
        assert not back(subscriber)

    def test_limit(self) -> None:
        """A longer interval than allowed is cut and told in the CONNACK, section 3.2.2.3.2."""
        network = Network(limits(max_session_expiry=60))
        client = network.client("c", expiry=FOREVER)
        assert client.connack.properties.integers[0x11] == 60
        old = network.client("o", V311, clean=False)
        client.cut()
        old.cut()
        network.advance(61)
        assert network.router.sessions == {}

    def test_a_limit_of_0_is_none(self) -> None:
        """Then it is what the client asks for, and for ever where 3.1.1 asks for a session that stays."""
        network = Network(limits(max_session_expiry=0))
        client = network.client("c", expiry=1000)
        assert 0x11 not in client.connack.properties.integers
        old = network.client("o", V311, clean=False)
        endless = network.client("e", expiry=FOREVER)
        for peer in (client, old, endless):
            peer.cut()
        network.advance(999)
        assert set(network.router.sessions) == {"c", "o", "e"}
        network.advance(2)
        assert set(network.router.sessions) == {"o", "e"}

    def test_disconnect_is_held_to_the_limit_too(self) -> None:
        """What it asks for is cut as the CONNECT's is, section 3.14.2.2.2."""
        for longest, left in ((60, 61), (0, 101)):
            network = Network(limits(max_session_expiry=longest))
            network.client("c", expiry=10).disconnect(properties=_expiry(100))
            network.advance(left - 2)
            assert "c" in network.router.sessions
            network.advance(2)
            assert "c" not in network.router.sessions


def _expiry(seconds: int) -> Properties:
    return bag(i={0x11: seconds})


class TestOffline:
    """What waits for a client that is away."""

    @for_each("version", [V311, V5])
    def test_quality_waits_and_qos0_does_not(self, version: int) -> None:
        """QoS 1 and 2 are queued for a disconnected session, QoS 0 is dropped and counted [MQTT3-3.1.2-5]."""
        network = Network()
        subscriber, publisher = network.idle("s", version), network.client("p")
        keep = 1_000 if version == V5 else None
        subscriber.connect(clean=False, expiry=keep)
        subscriber.subscribe("t", qos=2)
        subscriber.cut()
        for qos in (0, 1, 2, 1):
            publisher.publish("t", bytes((qos,)), qos)
        assert subscriber.connect(clean=False, expiry=keep).session_present
        assert subscriber.payloads() == [b"\1", b"\2", b"\1"]
        assert dropped_by_cause(subscriber.session)[DISCONNECTED] == 1

    def test_qos0_waits_when_told_to(self) -> None:
        """With the setting, QoS 0 waits too, in its place."""
        _network, subscriber, publisher = pair(limits(queue_qos0=1))
        subscriber.cut()
        sent = [bytes((number,)) for number in range(9)]
        for number, payload in enumerate(sent):
            publisher.publish("t/a", payload, number % 3)
        assert back(subscriber)
        assert subscriber.payloads() == sent

    def test_waiting_qos0_is_not_overtaken(self) -> None:
        """A live QoS 0 message does not pass one of its topic that still waits behind the window [MQTT-4.6.0-5]."""
        _network, subscriber, publisher = pair(limits(queue_qos0=1))
        subscriber.cut()
        for number, qos in enumerate((1, 1, 0, 0)):
            publisher.publish("t/a", bytes((number,)), qos)
        subscriber.answering = False
        back(subscriber, receive_maximum=1)
        publisher.publish("t/a", b"\4", 0)
        while subscriber.unanswered:
            subscriber.answer()
        qos0 = [packet.payload for packet in subscriber.take() if packet.qos == 0]
        assert qos0 == [b"\2", b"\3", b"\4"]

    def test_what_is_too_large_on_return(self) -> None:
        """A client that comes back with a smaller Maximum Packet Size loses what does not fit, as if it had been sent.

        [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        """
        _network, subscriber, publisher = pair()
        subscriber.answering = False
        publisher.publish("t/a", b"x" * 500, 1)
        publisher.publish("t/a", b"y", 1)
        subscriber.take()
        subscriber.cut()
        publisher.publish("t/a", b"z" * 500, 1)
        publisher.publish("t/a", b"!", 1)
        subscriber.answering = True
        back(subscriber, max_packet=100)
        assert subscriber.payloads() == [b"y", b"!"]
        assert dropped_by_cause(subscriber.session)[TOO_LARGE] == 1
        assert not subscriber.session.inflight
        assert total_ledger([subscriber.session]) == []


class TestWindow:
    """Never more in flight than the receiver takes; the judge of the harness counts."""

    @for_each("version", [V311, V5])
    def test_the_brokers_own_limit(self, version: int) -> None:
        """A client that takes more, or cannot say, gets no more at once than the setting allows [MQTT-4.9.0-1]."""
        network = Network(limits(max_inflight=3))
        subscriber, publisher = network.client("s", version), network.client("p")
        subscriber.answering = False
        subscriber.subscribe("t", qos=2)
        for number in range(9):
            publisher.publish("t", bytes((number,)), 1 + number % 2)
        assert len(subscriber.inbox) == 3
        while subscriber.unanswered:
            subscriber.answer(1)
        assert subscriber.payloads() == [bytes((number,)) for number in range(9)]

    @for_each(("qos", "kind"), [(2, p.PUBACK), (1, p.PUBREC), (1, p.PUBCOMP), (2, p.PUBCOMP)])
    def test_wrong_acknowledgement(self, qos: int, kind: int) -> None:
        """An acknowledgement of the wrong kind is a protocol error [MQTT-4.13.1-1]."""
        network, subscriber, publisher = pair()
        subscriber.answering = False
        publisher.publish("t/a", b"x", qos)
        subscriber.send(Ack(kind, subscriber.take()[0].packet_id))
        network.settle()
        assert subscriber.end == 0x82

    @for_each("qos", [1, 2])
    def test_expired_in_the_send_buffer_frees_the_window(self, qos: int) -> None:
        """What expires before it was written gives back its identifier; the next one goes out [MQTT-3.3.2-5]."""
        network, subscriber, publisher = pair(receive_maximum=1)
        subscriber.wire.frozen = True
        publisher.publish("t/a", b"old", qos, expiry=5)
        publisher.publish("t/a", b"new", qos)
        network.advance(6)
        subscriber.wire.frozen = False
        network.settle()
        assert subscriber.payloads() == [b"new"]
        assert dropped_by_cause(subscriber.session)[EXPIRED] == 1
        assert total_ledger([subscriber.session]) == []


class TestIdentifiers:
    """Packet identifiers towards the client."""

    @pytest.mark.crowd
    def test_all_in_use(self) -> None:
        """With every identifier in flight the next message waits for one, and gets none that is in use.

        [MQTT-2.2.1-4] [MQTT-2.2.1-5] [MQTT-4.3.2-1]
        """
        network, subscriber, publisher = pair(
            limits(max_inflight=65_535, live_messages=0, live_bytes=0, session_messages=0, session_bytes=0), qos=1
        )
        subscriber.answering = False
        publisher.publish("t/a", b"x", 1)
        session = subscriber.session
        delivery = session.inflight.get(1)
        assert delivery is not None
        message = delivery.message
        for _ in range(65_540):
            network.router.publish(message, None)
        network.settle()
        assert len(session.inflight) == 65_535
        assert session.queued() == 6
        first = [packet.packet_id for packet in subscriber.take()]
        assert sorted(first) == list(range(1, 65_536))
        subscriber.unanswered = subscriber.unanswered[30_000:]
        subscriber.answer(4)
        assert sorted(packet.packet_id for packet in subscriber.take()) == sorted(first[30_000:30_004])
        assert session.queued() == 2


class TestResumption:
    """What is sent again, and what is not."""

    def test_cut_while_sending_again(self) -> None:
        """The connection ends again before everything was sent again: what was sent before is still DUP.

        [MQTT-3.3.1-1]
        """
        _network, subscriber, publisher = pair(qos=1)
        subscriber.answering = False
        for number in range(4):
            publisher.publish("t/a", bytes((number,)), 1)
        subscriber.cut()
        subscriber.connect(clean=False, expiry=1_000, receive_maximum=1, frozen=True)
        assert total_ledger([subscriber.session]) == []
        subscriber.cut()
        assert total_ledger([subscriber.session]) == []
        subscriber.take()
        subscriber.answering = True
        back(subscriber)
        assert [(packet.payload, packet.dup) for packet in subscriber.take()] == [(bytes((n,)), True) for n in range(4)]
        assert total_ledger([subscriber.session]) == []

    def test_released_ones_take_part_in_the_window(self) -> None:
        """QoS 2 whose PUBREL is sent again is still incomplete; its PUBCOMP makes room for one, not for two.

        [MQTT-3.3.4-9]
        """
        _network, subscriber, publisher = pair(receive_maximum=2)
        subscriber.answering = False
        for number in range(8):
            publisher.publish("t/a", bytes((number,)), 2)
        subscriber.answer(2)
        subscriber.cut()
        back(subscriber, receive_maximum=2)
        while subscriber.unanswered:
            subscriber.answer(1)
        assert subscriber.payloads() == [bytes((number,)) for number in range(8)]

    def test_late_acknowledgement_of_an_earlier_connection(self) -> None:
        """PUBACK for what was not sent again yet completes it, and makes no room that was not taken [MQTT-3.3.4-9]."""
        network, subscriber, publisher = pair(qos=1)
        subscriber.answering = False
        for number in range(6):
            publisher.publish("t/a", bytes((number,)), 1)
        first = subscriber.take()
        subscriber.cut()
        back(subscriber, receive_maximum=1)
        subscriber.send(Ack(p.PUBACK, first[3].packet_id))
        subscriber.send(Ack(p.PUBACK, first[5].packet_id))
        network.settle()
        while subscriber.unanswered:
            subscriber.answer(1)
        assert subscriber.payloads() == [b"\0", b"\1", b"\2", b"\4"]

    def test_late_pubrec_of_an_earlier_connection(self) -> None:
        """PUBREC for what was not sent again yet is answered PUBREL; its PUBLISH is not sent after that.

        [MQTT-4.3.3-6]
        """
        network, subscriber, publisher = pair()
        subscriber.answering = False
        for number in range(3):
            publisher.publish("t/a", bytes((number,)), 2)
        first = subscriber.take()
        subscriber.cut()
        back(subscriber, receive_maximum=1)
        subscriber.send(Ack(p.PUBREC, first[2].packet_id))
        network.settle()
        while subscriber.unanswered:
            subscriber.answer(1)
        sent = [packet.packet_id for packet in subscriber.got(p.Publish)]
        assert sent == [first[0].packet_id, first[1].packet_id]
        assert not subscriber.session.inflight

    @for_each("qos", [1, 2])
    def test_acknowledged_while_it_waits_to_be_sent_again(self, qos: int) -> None:
        """Acknowledged late, with the second sending queued already: that one is not made.

        [MQTT-4.3.3-6] [MQTT-4.4.0-1]
        """
        network, subscriber, publisher = pair()
        subscriber.answering = False
        for number in range(2):
            publisher.publish("t/a", bytes((number,)), qos)
        first = subscriber.take()
        subscriber.cut()
        subscriber.connect(clean=False, expiry=1_000, frozen=True)
        subscriber.send(Ack(p.PUBACK if qos == 1 else p.PUBREC, first[0].packet_id))
        network.settle()
        subscriber.answering = True
        subscriber.wire.frozen = False
        network.settle()
        assert [packet.packet_id for packet in subscriber.got(p.Publish)] == [first[1].packet_id]
        assert not subscriber.session.inflight
        assert total_ledger([subscriber.session]) == []

    def test_acknowledged_before_it_was_written(self) -> None:
        """A client that acknowledges what it cannot have got does not upset the ledger."""
        network, subscriber, publisher = pair()
        subscriber.judge.enabled = False
        subscriber.wire.frozen = True
        for number in range(4):
            publisher.publish("t/a", bytes((number,)), 1 + number % 2)
        for number, kind in ((1, p.PUBACK), (2, p.PUBREC)):
            subscriber.send(Ack(kind, number))
        network.settle()
        assert total_ledger([subscriber.session]) == []
        subscriber.cut()
        assert total_ledger([subscriber.session]) == []
        back(subscriber)
        assert total_ledger([subscriber.session]) == []
        assert {b"\2", b"\3"} <= set(subscriber.payloads())


def test_of_a_queue_full_of_what_expired_some_goes_with_each_that_comes() -> None:
    """As much as makes room for many more, and not all in one call [MQTT-3.3.2-5]."""
    network = Network()
    session = Session("s", 100 * STALE, 0, network.router.counters)
    network.router.adopt(session)
    old = Message(b"t", b"", 1, False, b"", network.now + 1.0, "p")
    new = Message(b"t", b"", 1, False, b"", 0.0, "p")
    for _ in range(100 * STALE):
        assert session.deliver(old, 1, False, (), None) == ACCEPTED
    network.router.counters.load.now = network.now + 2.0
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
