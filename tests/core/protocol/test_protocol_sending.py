"""What a channel says by itself: to the one that is taken over, and never more than the client takes."""

from __future__ import annotations

from itertools import product

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V311, Ack, Connect, Disconnect
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from tests.core.harness import Client, Network, bag, limits
from tests.support.runs import for_each


class TestTakeover:
    """A second connection with the same client identifier."""

    @for_each(("old", "new"), [*product((V311, V5), (V311, V5))])
    def test_first_one_goes(self, old: int, new: int) -> None:
        """It gets DISCONNECT 0x8E (5.0) and is closed; the session goes on [MQTT-3.1.4-3] [MQTT3-3.1.4-2]."""
        network = Network()
        client = network.idle("c", old)
        client.connect(clean=False, expiry=100 if old == V5 else None)
        client.subscribe("t", qos=1)
        client.version = new
        assert client.connect(clean=False, expiry=100 if new == V5 else None).session_present
        [ghost] = client.ghosts
        assert ghost.closed
        assert ghost.end == (0x8E if old == V5 else -1)
        network.client("p").publish("t", b"x", 1)
        assert client.payloads() == [b"x"]
        assert len(network.router.peers.send_buffers) == 2

    def test_in_the_middle_of_everything(self) -> None:
        """What the old connection did not take is sent on the new one: nothing of QoS 1 and 2 is lost."""
        network = Network(limits(max_inflight=5))
        client, publisher = network.client("c", clean=False, expiry=100), network.client("p")
        client.subscribe("t", qos=2)
        client.wire.frozen = True
        for number in range(20):
            publisher.publish("t", bytes((number,)), 1 + number % 2)
        for _ in range(3):
            client.connect(clean=False, expiry=100, frozen=True)
        client.wire.frozen = False
        network.settle()
        assert client.payloads() == [bytes((number,)) for number in range(20)]


class TestOutgoingSizes:
    """Nothing larger than the client's Maximum Packet Size is sent, whatever it is; the harness's judge looks."""

    def test_suback(self) -> None:
        """A SUBACK for many filters that does not fit is not sent [MQTT-3.1.2-24]."""
        network = Network()
        client = network.client("c", max_packet=60)
        client.send(p.Subscribe(1, [Request(f"t/{number}") for number in range(100)]))
        network.settle()

    def test_acknowledgements(self) -> None:
        """No acknowledgement carries a text that could make it too large, whatever it has to say.

        [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-1] [MQTT-3.6.2-2] [MQTT-3.6.2-3]
        [MQTT-3.7.2-1] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]
        """
        # With nothing to announce, the CONNACK has five bytes.
        given = limits(receive_maximum=65_535, topic_alias_maximum=0, max_packet_size=268_435_460, max_topic_levels=1)
        network = Network(given)
        client = network.client("c", max_packet=6, properties=bag(i={0x17: 1}))
        for topic, qos in product(("a", "a/b"), (1, 2)):
            client.publish(topic, b"", qos)
        client.send(Ack(p.PUBREL, 99))
        client.send(Ack(p.PUBREC, 99))
        assert client.subscribe("a/b") == [0x8F]
        assert client.unsubscribe("a/b") == [0x11]
        assert [ack.reason_code for ack in client.acks(p.PUBACK)] == [0x10, 0x90]
        assert [ack.reason_code for ack in client.acks(p.PUBREC)] == [0x10, 0x90]
        assert {ack.reason_code for ack in client.acks(p.PUBCOMP)} == {0, 0x92}
        assert [ack.reason_code for ack in client.acks(p.PUBREL)] == [0x92]

    def test_disconnect(self) -> None:
        """A Reason String that does not fit is left out [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.14.2-2]."""
        network = Network()
        client = network.client("c", max_packet=20)
        client.send(Connect("c", V5))
        network.settle()
        assert client.end == 0x82
        assert not client.got(Disconnect)[0].properties
        told = network.client("d")
        told.send(Connect("d", V5))
        network.settle()
        assert 0x1F in told.got(Disconnect)[0].properties.strings
        assert 0x11 not in told.got(Disconnect)[0].properties.integers

    def test_aliases_towards_the_client(self) -> None:
        """An alias makes a frame longer: still never above the maximum.

        [MQTT-3.1.2-24] [MQTT-3.1.2-26] [MQTT-3.3.2-11]
        """
        network = Network(limits(topic_alias_outbound=5))
        client, publisher = network.client("c", max_packet=40, properties=bag(i={0x22: 2})), network.client("p")
        client.subscribe("#", qos=1)
        for size, qos in product(range(40), (0, 1)):
            publisher.publish(f"t/{size % 3}", b"x" * size, qos, expiry=9 if size % 2 else -1)
        got = client.take()
        assert {packet.topic_alias for packet in got} <= {0, 1, 2}
        assert {packet.topic for packet in got} == {b"t/0", b"t/1", b"t/2"}
        assert len(got) > 40

    def test_no_aliases_towards_a_client_that_takes_none(self) -> None:
        """[MQTT-3.1.2-27]."""
        network = Network(limits(topic_alias_outbound=5))
        clients: list[Client] = [network.client("c"), network.client("o", V311)]
        for client in clients:
            client.subscribe("#")
        publisher = network.client("p")
        publisher.publish("t", b"x")
        publisher.publish("t", b"x")
        assert [[packet.topic_alias for packet in client.take()] for client in clients] == [[0, 0]] * 2
