"""Receive Maximum of a session that is resumed, in both directions (5.0 sections 3.3.4 and 4.9)."""

from __future__ import annotations

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBCOMP, PUBREC, PUBREL, V5, V311, Ack, Publish
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from tests.core.harness import Client, Network, limits
from tests.support.runs import for_each

EXPIRY = 100
MAXIMUM = 4


def test_a_pubrec_for_what_was_to_be_sent_again_takes_a_place_as_well() -> None:
    """The client had the PUBLISH on its last connection, and answers before it comes again [MQTT-3.3.4-9]."""
    network = Network()
    client = network.idle("sub")
    client.connect(clean=False, expiry=EXPIRY, receive_maximum=2)
    client.subscribe(Request("t", 2))
    client.answering = False
    publisher = network.client("p")
    publisher.publish("t", b"1", 2)
    publisher.publish("t", b"2", 2)
    client.cut()
    client.connect(clean=False, expiry=EXPIRY, receive_maximum=1)
    first, second = (each.packet_id for each in client.session.inflight.values())
    assert [each.packet_id for each in client.got(Publish)] == [first]
    client.send(Ack(PUBREC, second))
    network.settle()
    publisher.publish("t", b"3", 2)
    assert client.session.window.quota == -1
    for kind, packet_id in ((PUBCOMP, second), (PUBREC, first)):
        client.send(Ack(kind, packet_id))
        network.settle()
        assert len(client.got(Publish)) == 1
    client.send(Ack(PUBCOMP, first))
    network.settle()
    assert [each.payload for each in client.got(Publish)] == [b"1", b"3"]


def _publisher(version: int = V5) -> tuple[Network, Client]:
    """A publisher that comes back with `MAXIMUM` QoS 2 publishes that have their PUBREC."""
    network = Network(limits(receive_maximum=MAXIMUM))
    client = network.idle("p", version)
    client._on_ack = lambda packet: None  # type: ignore[method-assign]  # noqa: ARG005  # it sends no PUBREL by itself
    client.connect(clean=False, expiry=EXPIRY if version == V5 else None)
    _one_read(client, *_publishes(1, MAXIMUM))
    assert len(client.session.received_qos2 or ()) == MAXIMUM
    client.cut()
    client.connect(clean=False, expiry=EXPIRY if version == V5 else None)
    return network, client


def _one_read(client: Client, *sent: p.Packet) -> None:
    """All of it comes before the broker writes anything."""
    for packet in sent:
        client.send(packet)
    while client.wire.to_channel() or client.wire.go_on():
        pass


def _publishes(first: int, count: int) -> list[Publish]:
    return [Publish(b"t", b"", 2, packet_id=number) for number in range(first, first + count)]


@for_each("version", [V311, V5])
def test_publishes_of_an_earlier_connection_count_against_nobody(version: int) -> None:
    """Neither they nor their PUBCOMPs that are not written yet (section 4.9): a client that sends its PUBRELs and as
    many publishes as it may at once is in its right [MQTT-3.3.4-7]."""
    network, client = _publisher(version)
    _one_read(client, *(Ack(PUBREL, number) for number in range(1, MAXIMUM + 1)), *_publishes(100, MAXIMUM))
    assert not client.wire.protocol.close_cause
    network.settle()
    assert [each.packet_id for each in client.acks(PUBCOMP)] == list(range(1, MAXIMUM + 1))
    assert {each.reason_code for each in client.acks(PUBCOMP)} == {0}
    assert len(client.acks(PUBREC)) == MAXIMUM
    assert client.wire.send_buffer.unwritten == 0
    if version == V5:
        _one_read(client, *_publishes(200, 1))
        assert client.wire.protocol.close_text == f"more than {MAXIMUM} publishes in flight"
