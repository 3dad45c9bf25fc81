"""Receive Maximum of a session that is resumed, in both directions (5.0 sections 3.3.4 and 4.9)."""

from __future__ import annotations

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBCOMP, PUBREC, PUBREL, V5, V311, Ack, Publish
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from tests.core.harness import Client, Network, limits
from tests.support.runs import for_each

EXPIRY = 100
MAXIMUM = 4


def _resumed(network: Network, released: int, receive_maximum: int) -> Client:
    """A subscriber that comes back: so many QoS 2 messages wait for its PUBCOMP, and three more are queued."""
    client = network.idle("sub")
    client.connect(clean=False, expiry=EXPIRY, receive_maximum=max(released, 1))
    client.subscribe(Request("t", 2))
    client.answering = False
    publisher = network.client("p")
    for number in range(released):
        publisher.publish("t", b"%d" % number, 2)
    client.answer(released)  # PUBRECs
    client.cut()
    for number in range(3):
        publisher.publish("t", b"later %d" % number, 2)
    client.take()
    client.answering = False
    client.connect(clean=False, expiry=EXPIRY, receive_maximum=receive_maximum)
    return client


@for_each(("released", "receive_maximum"), [(1, 1), (3, 1), (3, 3), (2, 3)])
def test_a_publish_that_is_released_takes_a_place_in_the_send_quota(released: int, receive_maximum: int) -> None:
    """[MQTT-3.3.4-9]: a PUBLISH counts until its PUBCOMP, also where only its PUBREL is sent again."""
    client = _resumed(Network(), released, receive_maximum)
    assert len(client.acks(PUBREL)) == released
    for complete in range(released + 1):
        unacknowledged = released - complete
        room = max(receive_maximum - unacknowledged, 0)
        assert len(client.inbox) == min(room, 3)
        assert client.session.window.quota == receive_maximum - unacknowledged - len(client.inbox)
        if complete < released:
            client.send(Ack(PUBCOMP, client.acks(PUBREL)[complete].packet_id))
            client.network.settle()


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


def test_before_their_pubrels_they_do_not_count_either() -> None:
    network, client = _publisher()
    _one_read(client, *_publishes(100, MAXIMUM))
    network.settle()
    assert len(client.acks(PUBREC)) == MAXIMUM
    # Those of this connection count as ever, and the PUBRELs of the others buy nothing.
    _one_read(client, *(Ack(PUBREL, number) for number in range(1, MAXIMUM + 1)))
    network.settle()
    _one_read(client, *_publishes(200, 1))
    assert client.wire.protocol.close_text == f"more than {MAXIMUM} publishes in flight"


def test_one_that_comes_again_counts_on_this_connection() -> None:
    """[MQTT-3.3.4-7]: it is a PUBLISH of this connection."""
    _, client = _publisher()
    again = [Publish(b"t", b"", 2, False, True, number) for number in range(1, MAXIMUM + 1)]
    _one_read(client, *again)
    assert not client.wire.protocol.close_cause
    _one_read(client, *again[:1], Ack(PUBREL, 1), *_publishes(100, 1))
    assert client.wire.protocol.close_text == f"more than {MAXIMUM} publishes in flight"


def test_what_no_connection_completes_is_bounded() -> None:
    """A client that comes back over and over, publishes as much as it may and releases nothing."""
    network, client = _publisher()
    _one_read(client, *_publishes(100, MAXIMUM))
    client.cut()
    client.connect(clean=False, expiry=EXPIRY)
    _one_read(client, *_publishes(200, MAXIMUM))
    assert client.wire.protocol.close_text == f"more than {MAXIMUM} publishes in flight"
    network.settle()
    assert len(client.session.received_qos2 or ()) == 2 * MAXIMUM
