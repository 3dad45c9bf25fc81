"""Statements about corners where a client, or a limit of the broker, leaves hardly any room.

Owns: what a client gets whose Maximum Packet Size is smaller than the answer to its CONNECT, and what becomes of a
retained message that is too large to be kept. Promises: everything is read off the wire; the broker's insides are not
looked at.
"""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import V5, V311, Connack, Disconnect, Will
from canopy_mqtt.core.queues.message import OVERHEAD
from canopy_mqtt.core.topics.topic_tree import NODE_BYTES
from tests.core.harness import Network, limits
from tests.support.runs import for_each

SMALLEST_CONNACK = 5
"""Bytes of a 5.0 CONNACK without properties, section 3.2."""


class TestNoRoomForTheAnswer:
    """Maximum Packet Size below what a CONNACK takes: silence is all that is left, and the connection closes."""

    @for_each("size", [1, 2, 4, 5, 8, 12])
    def test_accepted(self, size: int) -> None:
        """Not a byte more than fits, no DISCONNECT in place of the CONNACK, and no will: the client was never in.

        [MQTT-3.1.2-24] [MQTT-3.2.0-1] [MQTT-3.14.0-1]
        """
        network = Network()
        witness = network.client("witness")
        witness.subscribe("will")
        # Any DISCONNECT, or any packet that is too large, the harness's judge objects to by itself.
        client = network.idle("c")
        client.connect(max_packet=size, will=Will("will", b"x"))
        assert client.closed
        assert client.got(Disconnect) == []
        assert all(answer.reason_code >= 0x80 for answer in client.got(Connack))
        assert witness.payloads() == []
        witness.ping()

    def test_enough(self) -> None:
        """Exactly as much room as the CONNACK takes is enough; a byte less is not. [MQTT-3.1.2-24] [MQTT-3.1.4-5]"""
        network = Network()
        sizes = [size for size in range(1, 64) if _accepted(network, size)]
        assert SMALLEST_CONNACK <= sizes[0] < 32
        assert sizes == list(range(sizes[0], 64))
        client = network.client("c", max_packet=sizes[0])
        assert client.wire.protocol.close_cause == ""
        client.ping()

    @for_each("size", [1, 2, 4, 5, 16])
    def test_refused(self, size: int) -> None:
        """A refusal is told where it fits; the connection closes in any case. [MQTT-3.1.2-24] [MQTT-3.2.2-7]"""
        network = Network(limits(max_client_id_length=10))
        client = network.idle("x" * 11)
        client.connect(max_packet=size)
        assert client.closed
        assert [answer.reason_code for answer in client.got(Connack)] == ([0x85] if size >= SMALLEST_CONNACK else [])


def _accepted(network: Network, size: int) -> bool:
    client = network.idle("c")
    client.connect(max_packet=size)
    accepted = not client.closed and client.connack.reason_code == 0
    if accepted:
        client.disconnect()
    return accepted


@for_each("version", [V311, V5])
@for_each("qos", [0, 1, 2])
def test_retained_message_that_does_not_fit(version: int, qos: int) -> None:
    """It need not be kept, but the one before it must go: nobody gets a value that is known to be out of date.

    [MQTT3-3.3.1-7] [MQTT-3.3.1-5]
    """
    network = Network(limits(max_retained_bytes=2 * (OVERHEAD + 150) + 2 * NODE_BYTES))
    publisher = network.client("p", version)
    publisher.publish("t", b"old", retain=True)
    publisher.publish("other", b"kept", retain=True)
    publisher.publish("t", b"n" * 1_000, qos, retain=True)
    late = network.client("late", version)
    late.subscribe("#", qos=qos)
    assert late.payloads() == [b"kept"]
    # The room that it took is free again.
    publisher.publish("third", b"x" * 100, retain=True)
    again = network.client("again", version)
    again.subscribe("#")
    assert sorted(again.payloads()) == [b"kept", b"x" * 100]
