"""Requests over links: the acknowledgement of a publish with a Response Topic tells whether anybody was reached."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.causes import CONNECTION_LOST
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Ack, Publish
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.codec.reason_codes import SUCCESS
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import LATEST
from canopy_mqtt.core.queues.requests import Peer, Request
from canopy_mqtt.core.routing.links import LINK
from tests.core.harness import Client, Network, bag, limits, untouched

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


def test_a_link_at_qos_0_with_terms() -> None:
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
