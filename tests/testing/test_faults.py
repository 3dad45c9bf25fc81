"""Each fault on the wire, seen by a client that meets it: paho where a whole client shows it, else single packets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import paho.mqtt.client as paho
import pytest

from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec.packets import Ack, Disconnect, Pingreq, Pingresp, Publish
from canopy_mqtt.testing import RawClient, RunningBroker
from canopy_mqtt.testing.proxy import BUFFER
from tests.testing.conftest import Paho

Join = Callable[..., Paho]
Connect = Callable[..., RawClient]

QUIET = 0.05
"""Seconds for which nothing arrives: what is wrong arrives at once."""


def silent(client: RawClient) -> None:
    with pytest.raises(TimeoutError):
        client.receive(QUIET)


class TestFreeze:
    def test_a_client_that_does_not_read(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("slow")
        client.subscribe("a")
        fault = canopy_broker.freeze("slow")
        canopy_broker.publish("a", "late")
        silent(client)
        fault.end()
        assert client.expect(Publish).payload == b"late"

    def test_the_broker_gives_it_up(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        """Buffers on the way are small, so that the broker notices, and its patience goes by the clock of the test."""
        canopy_client("slow").subscribe("a")
        canopy_broker.freeze("slow")
        for _ in range(100):
            canopy_broker.publish("a", bytes(16_384))
        for _ in range(20):
            canopy_broker.advance(30)
        canopy_broker.assert_disconnected("slow")

    def test_a_broker_that_does_not_read(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("fast")
        fault = canopy_broker.freeze("fast", reader="broker")
        client.publish("a", b"late")
        canopy_broker.assert_not_published("a", within=QUIET)
        fault.end()
        canopy_broker.assert_published("a", "late")


class TestHalfOpen:
    def test_neither_side_hears_of_the_other(self, canopy_broker: RunningBroker, join: Join) -> None:
        client = join("dev", "commands", will=("status", "gone", 1), keepalive=10)
        fault = canopy_broker.half_open("dev")
        canopy_broker.advance(16, silent="dev")
        canopy_broker.assert_disconnected("dev")
        canopy_broker.assert_published("status", "gone", qos=1, count=1)
        assert client.client.is_connected()
        assert client.disconnects.empty()
        fault.end()
        client.disconnects.get(timeout=10)

    def test_the_next_connection(self, canopy_broker: RunningBroker) -> None:
        fault = canopy_broker.half_open()
        with RawClient(canopy_broker.port) as client:
            client.send(packets.Connect("a", packets.V5))
            silent(client)
            assert fault.happened == 1
            fault.end()
            canopy_broker.assert_connected("a")


class TestCut:
    def test_a_program_reconnects(self, canopy_broker: RunningBroker, join: Join) -> None:
        client = join("dev", "commands")
        canopy_broker.cut("dev")
        client.disconnects.get(timeout=10)
        assert client.connects.get(timeout=10) == 0

    def test_after_bytes_from_the_broker(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        client.subscribe("a")
        fault = canopy_broker.cut("dev", after_bytes=7, sender="broker", reset=False)
        canopy_broker.publish("a", "a long message of which seven bytes arrive")
        assert client.receive() is None
        assert client._decoder.held_size == 7
        fault.wait()
        canopy_broker.assert_disconnected("dev")

    def test_after_bytes_from_the_client(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        """A message that was cut off in its middle was not published."""
        client = canopy_client("dev")
        frame = b"\x30\x05\x00\x01a\x001"
        canopy_broker.cut("dev", after_bytes=len(frame) + 3)
        client.send(frame, frame)
        canopy_broker.assert_disconnected("dev")
        canopy_broker.assert_published("a", "1", count=1)

    def test_a_reset_is_seen_as_one(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        canopy_broker.cut("dev")
        with pytest.raises(ConnectionResetError):
            client.receive()


class TestSlow:
    """The link goes by the broker's clock, so that a test need not wait for it."""

    def test_latency(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        client.subscribe("a")
        canopy_broker.slow("dev", latency=3600)
        canopy_broker.publish("a", "late")
        silent(client)
        canopy_broker.advance(3600)
        assert client.expect(Publish).payload == b"late"

    def test_bytes_per_second(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        client.subscribe("a")
        canopy_broker.slow("dev", bytes_per_second=1)
        canopy_broker.publish("a", bytes(100))
        canopy_broker.advance(60)
        silent(client)
        assert 50 <= client._decoder.held_size <= 90
        canopy_broker.advance(60)
        client.expect(Publish)

    def test_a_sender_is_held_back(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        """The bytes that wait on the link are bounded; none is lost."""
        client = canopy_client("dev")
        canopy_broker.slow("dev", latency=3600)
        frame = b"\x30\x83\x80\x01\x00\x01a" + bytes(16_384)
        client._socket.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += client._socket.send(frame[sent % len(frame) :])
                assert sent < 1 << 28, "nobody holds it back"
        (link,) = canopy_broker._serving.proxy.links
        canopy_broker.wait_for(lambda: "line" in link.up._held)
        assert link.up._waiting <= BUFFER + 262_144
        canopy_broker.heal()
        canopy_broker.assert_published("a", count=sent // len(frame), within=10)


class TestLose:
    def test_a_puback_that_paho_waits_for(self, canopy_broker: RunningBroker, join: Join) -> None:
        """It is sent again on the next connection, with DUP, and acknowledged there."""
        client = join("dev", "nothing", keep=True)
        fault = canopy_broker.lose("PUBACK", "dev")
        info = client.client.publish("a", b"1", qos=1)
        fault.wait()
        assert not info.is_published()
        canopy_broker.cut("dev")
        info.wait_for_publish(10)
        assert info.is_published()
        canopy_broker.assert_published("a", "1", count=2)

    def test_the_second_of_three(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        canopy_broker.lose("PUBACK", "dev", nth=2)
        sent = [client.publish("a", b"%d" % number, qos=1) for number in range(3)]
        assert [client.expect(Ack).packet_id for _ in range(2)] == [sent[0], sent[2]]

    def test_a_clients_puback(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        """The broker sends the message again when the client comes back."""
        client = canopy_client("dev", session_expiry=60)
        client.subscribe("a", qos=1)
        fault = canopy_broker.lose("PUBACK", "dev", sender="client")
        canopy_broker.publish("a", "1", qos=1)
        client.ack(client.expect(Publish))
        fault.wait()
        again = canopy_client("dev", clean_start=False, session_expiry=60)
        packet = again.expect(Publish)
        assert (packet.payload, packet.dup) == (b"1", True)

    def test_a_publish_cannot_be_lost(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(ValueError, match="'PUBLISH' cannot be lost or delayed; these can: PUBACK, "):
            canopy_broker.lose("PUBLISH")


class TestDelay:
    def test_until_it_is_healed(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        """Acknowledgements stay in order; other packets pass."""
        client = canopy_client("dev")
        fault = canopy_broker.delay("PUBACK", "dev")
        sent = [client.publish("a", b"1", qos=1), client.publish("a", b"2", qos=1)]
        client.send(Pingreq())
        client.expect(Pingresp)
        canopy_broker.assert_published("a", count=2)
        fault.end()
        assert [client.expect(Ack).packet_id for _ in range(2)] == sent

    def test_for_some_seconds(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        fault = canopy_broker.delay("PUBACK", "dev", seconds=600)
        client.publish("a", b"1", qos=1)
        fault.wait()
        silent(client)
        canopy_broker.advance(600)
        client.expect(Ack)


class TestDuplicate:
    def test_to_paho_by_3_1_1(self, canopy_broker: RunningBroker, join: Join) -> None:
        client = join("dev", "a", version=4)
        fault = canopy_broker.duplicate("dev")
        canopy_broker.publish("a", "0", qos=0)
        canopy_broker.publish("a", "1", qos=1)
        canopy_broker.publish("a", "2", qos=1)
        found = [client.messages.get(timeout=10) for _ in range(4)]
        assert [(each.payload, each.dup) for each in found] == [
            (b"0", False),
            (b"1", False),
            (b"1", True),
            (b"2", False),
        ]
        assert fault.happened == 1

    def test_to_paho_by_5(self, canopy_broker: RunningBroker, join: Join) -> None:
        """After a new connection, as section 4.4 allows it alone. [MQTT-4.4.0-1]"""
        client = join("dev", "a", keep=True)
        canopy_broker.duplicate("dev")
        canopy_broker.publish("a", "1", qos=1)
        found = [client.messages.get(timeout=10) for _ in range(2)]
        assert [(each.payload, each.dup) for each in found] == [(b"1", False), (b"1", True)]
        assert client.connects.get(timeout=10) == 0

    def test_exactly_once_stays_so(self, canopy_broker: RunningBroker, join: Join) -> None:
        """paho drops the second copy of a QoS 2 message."""
        client = join("dev", "a", qos=2, version=4)
        canopy_broker.duplicate("dev")
        canopy_broker.publish("a", "1", qos=2)
        canopy_broker.publish("a", "2", qos=2)
        assert [client.messages.get(timeout=10).payload for _ in range(2)] == [b"1", b"2"]


class TestRefuseConnect:
    @pytest.mark.parametrize(
        ("version", "code", "seen"), [(5, 0x88, 0x88), (5, 5, 0x87), (4, 0x87, 0x87), (4, 3, 0x88)]
    )
    def test_paho_hears_why_and_tries_again(
        self, canopy_broker: RunningBroker, join: Join, version: int, code: int, seen: int
    ) -> None:
        """paho gives the codes of 3.1.1 as those of 5.0."""
        fault = canopy_broker.refuse_connect(code, "dev")
        client = join("dev", version=version)
        assert client.connects.get(timeout=10) == seen
        assert client.connects.get(timeout=10) == 0
        assert fault.happened == 1

    def test_what_3_1_1_has_no_code_for(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.refuse_connect(0x9C)
        with RawClient(canopy_broker.port) as client, pytest.raises(AssertionError, match="the end of the connection"):
            client.connect("dev", version=4)

    def test_a_code_that_refuses_nobody(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(ValueError, match="0x00 refuses nobody"):
            canopy_broker.refuse_connect(0)


class TestRefusePackets:
    def test_a_subscribe(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        canopy_broker.refuse_subscribe(0x97, "dev", topic_filter="secret")
        assert client.subscribe("open").reason_codes == [0]
        assert client.subscribe("secret", "open").reason_codes == [0x97, 0x97]
        assert canopy_broker.subscriptions("dev") == {"open": 0}
        assert client.subscribe("secret").reason_codes == [0]

    def test_3_1_1_knows_one_code(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev", version=4)
        canopy_broker.refuse_subscribe(0x97)
        assert client.subscribe("a").reason_codes == [0x80]

    @pytest.mark.parametrize("qos", [1, 2])
    def test_a_publish(self, canopy_broker: RunningBroker, canopy_client: Connect, qos: int) -> None:
        client = canopy_client("dev")
        canopy_broker.refuse_publish(0x97, "dev", topic_filter="a/#")
        client.publish("a/1", b"1", qos=qos)
        answer = client.expect(Ack)
        assert (answer.kind, answer.reason_code) == (packets.PUBACK if qos == 1 else packets.PUBREC, 0x97)
        canopy_broker.assert_not_published("a/#")
        client.publish("a/1", b"2", qos=1)
        canopy_broker.assert_published("a/1", "2")

    def test_an_alias_that_the_broker_was_not_told_of(
        self, canopy_broker: RunningBroker, canopy_client: Connect
    ) -> None:
        client = canopy_client("dev")
        canopy_broker.refuse_publish(0x87, "dev")
        client.send(
            Publish(b"a", b"1", 1, packet_id=1, topic_alias=1), Publish(b"", b"2", 1, packet_id=2, topic_alias=1)
        )
        assert [client.expect(Ack).reason_code for _ in range(2)] == [0x87, 0x10]
        canopy_broker.assert_published("a", "2", count=1)

    def test_a_publish_by_3_1_1_ends_the_connection(self, canopy_broker: RunningBroker, join: Join) -> None:
        client = join("dev", "nothing", version=4)
        canopy_broker.refuse_publish(0x87, "dev")
        client.client.publish("a", b"1", qos=1)
        client.disconnects.get(timeout=10)
        canopy_broker.assert_published("a", "1")

    def test_codes_that_do_not_belong_there(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(ValueError, match="0x01 is no reason code of a SUBACK that refuses"):
            canopy_broker.refuse_subscribe(1)
        with pytest.raises(ValueError, match="0x10 is no reason code of a PUBACK or PUBREC that refuses"):
            canopy_broker.refuse_publish(0x10)


class TestDisconnect:
    def test_a_reason(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        client = canopy_client("dev")
        canopy_broker.disconnect("dev", 0x97)
        assert client.expect(Disconnect).reason_code == 0x97
        assert client.receive() is None

    def test_a_code_of_clients(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(ValueError, match="0x04 is no reason code of a server's DISCONNECT"):
            canopy_broker.disconnect("dev", 4)

    def test_nobody(self, canopy_broker: RunningBroker, canopy_client: Connect) -> None:
        canopy_client("other")
        with pytest.raises(AssertionError, match=r"'dev' is not connected; connected: \['other'\]"):
            canopy_broker.disconnect("dev")


def test_bytes_that_are_no_mqtt_reach_the_broker(canopy_client: Connect) -> None:
    """It is the broker that answers them, and not the wire."""
    client = canopy_client("dev")
    client.send(b"\x36\x00")
    assert client.expect(Disconnect).reason_code == 0x81


def test_a_fault_that_does_not_come_about(canopy_broker: RunningBroker) -> None:
    fault = canopy_broker.cut("nobody")
    with pytest.raises(AssertionError, match=r"cut 'nobody': happened 0 times within 0.01 s, expected 1"):
        fault.wait(within=0.01)
    assert "happened 0 times" in repr(fault)


def test_a_fault_that_is_ended_does_not_happen(canopy_broker: RunningBroker, canopy_client: Connect) -> None:
    canopy_broker.cut("dev").end()
    canopy_broker.lose("PUBACK").end()
    client = canopy_client("dev")
    client.publish("a", qos=1)
    client.expect(Ack)


def test_paho_publishes_and_receives(canopy_broker: RunningBroker, join: Join) -> None:
    client = join("dev", "a/#")
    client.client.publish("a/1", b"x", qos=1)
    message: paho.MQTTMessage = client.messages.get(timeout=10)
    assert (message.topic, message.payload) == ("a/1", b"x")
    assert canopy_broker.assert_published("a/+", "x", qos=1)[0].publisher == "dev"
