"""Requests over links: the acknowledgement of a publish with a Response Topic tells whether anybody was reached."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.causes import CONNECTION_LOST
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Ack, Publish
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.codec.reason_codes import QUOTA_EXCEEDED, SUCCESS
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import LATEST
from canopy_mqtt.core.queues.requests import Peer, Request
from canopy_mqtt.core.routing.links import LINK
from tests.core.harness import Client, Network, bag, limits, total_ledger, untouched

PATIENCE = Limits().answer_timeout
ASKS = encode_forward(response_topic="answers/1", correlation_data=b"1")


def link(network: Network, name: str = "link", qos: int = 1, topic_filter: str = "q/#", **connect: Any) -> Client:
    """A link of another Canopy that asks for everything below `q/`, and acknowledges when it is told to."""
    network.router.limits.link_client_ids = ("*",)
    client = network.idle(name)
    client.connect(clean=False, expiry=100, properties=bag((LINK, f"id-{name}")), **connect)
    client.answering = False
    client.subscribe(topic_filter, qos=qos)
    return client


def ask(client: Client, qos: int = 1, topic: str = "q/a", **more: Any) -> Publish:
    """A request, which has arrived."""
    return client.publish(topic, b"?", qos, properties=ASKS, **more)


def say(client: Client, *codes: int) -> None:
    """The link acknowledges its oldest deliveries with these reason codes, one after the other."""
    for code in codes:
        owed = client.unanswered[0]
        assert isinstance(owed, Ack)
        owed.reason_code = code
        client.answer(1)


def told(client: Client) -> list[tuple[int, int]]:
    """The packet identifiers that were acknowledged with PUBACK or PUBREC, and how."""
    return [(each.packet_id, each.reason_code) for each in client.got(Ack) if each.kind in (p.PUBACK, p.PUBREC)]


def open_requests(network: Network) -> int:
    """Deliveries that are still to tell whom they reach."""
    count = 0
    for session in network.router.sessions.values():
        for delivery in [*session.inflight.values(), *(session.queue.pending or ())]:
            count += delivery.on_settled is not None
    return count


def window(client: Client) -> tuple[int, int]:
    """Last acknowledgements that are not written, and those that are held."""
    send_buffer = client.wire.send_buffer
    return send_buffer.unwritten, send_buffer.unqueued


class TestOneLink:
    """A request that only a link took."""

    def test_of_its_own(self) -> None:
        """A link that takes what it publishes itself answers itself; its end is nobody's loss."""
        network = Network()
        below = link(network)
        packet = ask(below)
        say(below, 0x10)
        assert told(below) == [(packet.packet_id, 0x10)]
        ask(below)
        below.cut()
        network.settle()
        assert open_requests(network) == 0


class TestAtOnce:
    """What needs no waiting is acknowledged as ever."""

    def test_a_link_at_qos_0_with_terms(self) -> None:
        """The same where deliveries of QoS 0 wait as such, and newer ones take their place."""
        network = Network(limits(queue_policy=LATEST))
        below, publisher = link(network, qos=0), network.client("p")
        below.wire.frozen = True
        packets = [ask(publisher) for _ in range(3)]
        assert told(publisher) == [(each.packet_id, SUCCESS) for each in packets]
        assert open_requests(network) == 0
        below.wire.frozen = False
        network.settle()
        assert len(below.take()) == 1

    @pytest.mark.parametrize("qos", [1, 2])
    def test_full_and_told(self, qos: int) -> None:
        """0x97 where the publisher is to be told, if every queue has refused it; with one that took it, it is known."""
        network = Network(limits(session_messages=1, tell_publisher=1))
        below, publisher = link(network, receive_maximum=1), network.client("p")
        ask(publisher)
        ask(publisher)
        packet = ask(publisher, qos)
        assert told(publisher) == [(packet.packet_id, QUOTA_EXCEEDED)]
        assert packet.packet_id not in (publisher.session.received_qos2 or ())
        second = link(network, "second")
        packet = ask(publisher, qos)
        # What the full one had no room for counts as reached.
        assert told(publisher)[1:] == [(packet.packet_id, SUCCESS)]
        say(second, 0x10)
        say(below, 0x10)
        assert len(told(publisher)) == 3


class TestEnds:
    """However a delivery ends, its request is settled."""

    def test_each_has_its_own_time(self) -> None:
        """Though all of a connection fall due as one thing."""
        network = Network()
        _, publisher = link(network), network.client("p")
        ask(publisher)
        network.advance(PATIENCE / 2)
        ask(publisher)
        network.advance(PATIENCE / 2)
        assert len(told(publisher)) == 1
        network.advance(PATIENCE / 2)
        assert len(told(publisher)) == 2

    def test_nothing_falls_due_for_a_connection_that_is_over(self) -> None:
        network = Network()
        _, publisher = link(network), network.client("p")
        ask(publisher)
        publisher.disconnect(0)
        assert len(network.router.deadlines) == 0

    def test_session_ended_while_connected(self) -> None:
        """As a link of this broker's own does that is taken out of the settings."""
        network = Network()
        below, publisher = link(network, receive_maximum=1), network.client("p")
        packets = [ask(publisher) for _ in range(2)]
        session = below.session
        network.router.end_session(session, network.now)
        network.settle()
        assert told(publisher) == [(each.packet_id, SUCCESS) for each in packets]
        session.send_buffer = None
        below.wire.lose(CONNECTION_LOST)

    def test_shed_for_the_broker(self) -> None:
        """All queues together hold too much: the fullest one gives."""
        network = Network(limits(total_messages=4))
        below, publisher = link(network, receive_maximum=1), network.client("p")
        other = network.idle("s")
        other.connect(clean=False, expiry=100)
        other.subscribe("t", qos=1)
        other.cut()
        packets = [ask(publisher) for _ in range(4)]
        assert told(publisher) == []
        publisher.publish("t", b"x", 1)
        assert (packets[1].packet_id, SUCCESS) in told(publisher)
        assert other.session.queue.messages == 1
        below.cut()
        network.settle()
        assert [code for _, code in told(publisher)] == [0] * 5
        assert open_requests(network) == 0

    def test_replaced_by_latest(self) -> None:
        """A newer message of the topic takes its place, and may be a request itself."""
        network = Network(limits(queue_policy=LATEST))
        below, publisher = link(network, receive_maximum=1), network.client("p")
        first, second, third = (ask(publisher) for _ in range(3))
        assert told(publisher) == [(second.packet_id, SUCCESS)]
        say(below, 0x10, 0x10)
        assert told(publisher)[1:] == [(first.packet_id, 0x10), (third.packet_id, 0x10)]
        fourth, fifth = (ask(publisher) for _ in range(2))
        plain = publisher.publish("q/a", b"no request", 1)
        assert set(told(publisher)[3:]) == {(fifth.packet_id, SUCCESS), (plain.packet_id, SUCCESS)}
        say(below, 0x10, 0x10)
        assert told(publisher)[5:] == [(fourth.packet_id, 0x10)]
        assert total_ledger(network.router.sessions.values()) == []


class TestRequester:
    """The publisher of a request, while it waits."""

    @pytest.mark.parametrize("qos", [1, 2])
    def test_sent_again_meanwhile(self, qos: int) -> None:
        """It has no early acknowledgement, and is not routed again [MQTT-4.3.3-10]."""
        network = Network()
        below, publisher = link(network), network.client("p")
        packet = ask(publisher, qos)
        packet.dup = True
        publisher.send(packet)
        network.settle()
        assert told(publisher) == []
        assert len(below.take()) == 1
        say(below, 0x10)
        assert told(publisher) == [(packet.packet_id, 0x10)]
        packet.dup = False
        publisher.outgoing[packet.packet_id] = packet
        publisher.send(packet)
        network.settle()
        # Complete: the same identifier is a new message.
        assert len(below.take()) == 1

    def test_released_too_early(self) -> None:
        """PUBREL before PUBREC ends the connection, and no other."""
        network = Network()
        below, publisher = link(network), network.client("p")
        with untouched(network.client("witness"), network.client("bystander")):
            packet = ask(publisher, 2)
            publisher.send(Ack(p.PUBREL, packet.packet_id))
            network.settle()
            assert publisher.end == 0x82
            say(below, 0x10)
        assert open_requests(network) == 0

    def test_writer_that_takes_all_in_one_piece(self) -> None:
        """The way in which a writer takes things makes no difference to what still waits."""
        network = Network(limits(receive_maximum=2))
        below, publisher = link(network), network.client("p")
        send_buffer = publisher.wire.send_buffer
        ask(publisher)
        publisher.wire.frozen = True
        publisher.publish("elsewhere", b"", 1)
        assert window(publisher) == (1, 1)
        assert send_buffer.take(1 << 20, network.now)
        assert window(publisher) == (0, 1)
        say(below, 0x10)
        assert window(publisher) == (1, 0)
        assert send_buffer.take(1 << 20, network.now)
        assert window(publisher) == (0, 0)


def somebody() -> Peer:
    """Whoever is told: a connection that has asked nothing itself, and so says nothing."""
    return Network().client("somebody").wire.protocol


class TestAsking:
    """`Router.ask`, for whoever has requests that did not come from a client."""

    def send(self, network: Network, peer: Peer, topic: bytes = b"q/a") -> tuple[Request, int, bool]:
        """A request: how many it was for, and whether its answer waits."""
        request = Request(7, 1)
        message = Message(topic, b"?", 1, False, ASKS, 0.0, "north")
        count = network.router.ask(message, None, request)
        waits = request.waits(peer, count)
        network.settle()
        return request, count, waits

    def test_three_levels(self) -> None:
        """A broker in the middle asks its own links, and answers the one above when they have answered."""
        top, middle = Network(), Network()
        client, up = top.client("p"), link(top)
        bottom = [link(middle, f"b{number}") for number in range(2)]
        for said, answer in (((0x10, 0x10), 0x10), ((0x10, 0x00), 0x00), ((0x00, 0x10), 0x00)):
            packet = ask(client)
            request, count, waits = self.send(middle, somebody())
            assert (count, waits) == (2, True)
            for below, code in zip(bottom, said, strict=True):
                say(below, code)
            assert request.peer is None
            say(up, 0x00 if request.reached else 0x10)
            assert told(client)[-1] == (packet.packet_id, answer)


def test_a_link_whose_queue_is_closed() -> None:
    """A request that comes while the link's end is known and not applied yet waits for that, and no longer."""
    network = Network()
    below, publisher = link(network), network.client("p")
    below.wire.send_buffer.close()
    packet = ask(publisher)
    assert told(publisher) == []
    below.cut()
    network.settle()
    assert told(publisher) == [(packet.packet_id, SUCCESS)]
    assert below.session.queue.messages == 1


def test_what_is_handed_on_later_asks_nobody() -> None:
    """A share group's message goes to another link when the first is gone: its request was answered with that."""
    network = Network()
    first, second = link(network, "b1", 1, "$share/g/q/#"), link(network, "b2", 1, "$share/g/q/#")
    publisher = network.client("p")
    packet = ask(publisher)
    taken = first if first.unanswered else second
    other = second if taken is first else first
    assert told(publisher) == []
    taken.cut()
    network.settle()
    assert told(publisher) == [(packet.packet_id, SUCCESS)]
    assert len(other.unanswered) == 1
    assert [each.on_settled for each in other.session.inflight.values()] == [None]
