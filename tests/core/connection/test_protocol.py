"""One connection's packets: what is answered, what ends it, and that nobody else notices."""

from __future__ import annotations

from itertools import product

import pytest

from broker.core.codec import packets as p
from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.packets import V5, V31, V311, Ack, Connect, Disconnect, Publish
from broker.core.codec.packets import SubscriptionRequest as Request
from broker.core.connection.protocol import ServerProtocol
from broker.core.hooks import Origin
from broker.core.queues.live.outbox import Outbox
from tests.core.codec.wire_cases import CASES, MAX_PACKET_SIZE, Case
from tests.core.harness import Network, limits, untouched
from tests.support.frames import pending_size

FROM_CLIENTS = [case for case in CASES if case.direction in ("c2s", "both")]


def _first_bytes(network: Network, raw: bytes, pace: int) -> ServerProtocol:
    """A connection that begins with these bytes."""
    protocol = ServerProtocol(
        network.router, Outbox(network.router.peers.touched, network.router.counters, 0, 0), Origin("somebody")
    )
    for read in [raw[at : at + 1] for at in range(len(raw))] if pace else [raw]:
        protocol.receive(read, network.now)
    assert protocol.outbox.take_batch(1 << 20, network.now) == []
    network.router.peers.touched.clear()
    return protocol


def _check_refusal(case: Case, final_packet: bytes) -> None:
    """What a refused CONNECT is told: nothing, or a CONNACK with the right code in the form of its version."""
    if not final_packet:
        return
    decoder = Decoder(1 << 20, server=False, version=V311 if final_packet[1] == 2 else V5)
    if b"MQTT\x05" in case.raw:
        assert decoder.version == V5
    elif case.reason != reasons.UNSUPPORTED_PROTOCOL_VERSION:
        assert decoder.version == V311
    decoder.feed(final_packet)
    assert decoder.next_frame()
    answer = decoder.packet()
    assert isinstance(answer, p.Connack)
    assert not answer.session_present
    assert case.reason is not None
    if decoder.version == V5:
        assert answer.reason_code == case.reason
    else:
        # [MQTT3-3.1.4-1]: 3.1.1 has no code for a malformed CONNECT.
        assert answer.reason_code == reasons.v3_connack(case.reason) > 0


class TestWireCases:
    """Every named wire case, sent to a channel among two other clients; each case names its statements."""

    @pytest.mark.parametrize("pace", [0, 1])
    @pytest.mark.parametrize("case", [one for one in FROM_CLIENTS if one.packet is None], ids=lambda one: one.name)
    def test_bad(self, case: Case, pace: int) -> None:
        """The connection ends with the case's reason code, and others go on.

        [MQTT-4.13.1-1] [MQTT-3.1.4-1] [MQTT-3.1.4-2] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT3-4.8.0-1]
        [MQTT3-2.2.2-2] [MQTT3-3.1.4-1]
        """
        network = Network(limits(max_packet_size=MAX_PACKET_SIZE), pace=pace)
        with untouched(network.client("witness"), network.client("publisher", V311)):
            if case.version == 0:
                protocol = _first_bytes(network, case.raw, pace)
                _check_refusal(case, protocol.final_packet)
            else:
                client = network.client("c", case.version)
                client.raw(case.raw)
                protocol = client.wire.protocol
                assert client.closed
                assert client.end == (case.reason if case.version == V5 else -1)
            assert protocol.close_cause in ("protocol-error", "refused", "not-allowed")
            before = network.router.counters.packets_received
            protocol.receive(b"\xc0\x00", network.now)  # [MQTT-3.1.4-6]: nothing more is acted on
            assert network.router.counters.packets_received == before

    @pytest.mark.parametrize("case", [one for one in FROM_CLIENTS if one.packet is not None], ids=lambda one: one.name)
    def test_good(self, case: Case) -> None:
        """A well-formed packet is answered, or ends the connection by the rules of the state; others go on."""
        network = Network(limits(max_packet_size=MAX_PACKET_SIZE), pace=1)
        with untouched(network.client("witness"), network.client("publisher", V311)):
            version = case.version
            packet = case.packet
            if isinstance(packet, Connect):
                client = network.idle("c", packet.version)
                client.dial()
            else:
                client = network.client("c", version, expiry=10 if version == V5 else None)
            client.raw(case.raw)
            if isinstance(packet, Disconnect):
                assert client.closed
                assert client.end == -1
            elif isinstance(packet, Connect):
                needs_method = 0x15 in packet.properties.strings
                nameless = not packet.client_id and not packet.clean_start and packet.version < V5
                assert client.closed == (needs_method or nameless)
            elif isinstance(packet, p.Auth):
                assert client.end == 0x82  # [MQTT-4.12.0-7]
            elif not isinstance(packet, Publish):
                assert not client.closed


class TestOrder:
    """What may come when."""

    @pytest.mark.parametrize("version", [V311, V5])
    @pytest.mark.parametrize(
        "first", [b"\xc0\x00", b"\x30\x03\x00\x01a", b"\xe0\x00", b"\x82\x06\x00\x01\x00\x01a\x00"]
    )
    def test_first_packet(self, first: bytes, version: int) -> None:
        """Anything before CONNECT closes the connection [MQTT-3.1.0-1] [MQTT-3.14.0-1] [MQTT-3.2.0-1]."""
        network = Network()
        client = network.idle("c", version)
        client.dial()
        client.raw(first)
        assert client.closed
        assert client.packets == []
        assert network.router.sessions == {}

    @pytest.mark.parametrize(("version", "code"), [(V311, -1), (V5, 0x82)])
    def test_second_connect(self, version: int, code: int) -> None:
        """A second CONNECT ends the connection; one CONNACK only [MQTT-3.1.0-2] [MQTT-3.2.0-2]."""
        network = Network()
        client = network.client("c", version)
        client.send(Connect("c", version))
        network.settle()
        assert client.closed
        assert client.end == code
        assert len(client.got(p.Connack)) == 1

    @pytest.mark.parametrize("raw", [b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00", b"\xb0\x02\x00\x01", b"\xd0\x00"])
    def test_what_only_servers_send(self, raw: bytes) -> None:
        """CONNACK, SUBACK, UNSUBACK and PINGRESP from a client are protocol errors [MQTT-4.13.1-1]."""
        client = Network().client("c")
        client.raw(raw)
        assert client.end == 0x82

    def test_nothing_after_the_end_of_a_read(self) -> None:
        """What follows a bad packet or a DISCONNECT in the same read is not acted on.

        [MQTT-3.14.4-1] [MQTT-3.14.4-2]
        """
        network = Network()
        witness = network.client("w")
        witness.subscribe("t")
        for last in (b"\xe0\x00", b"\x00\x00"):
            network.client("c", V311).raw(b"\x30\x04\x00\x01t1" + last + b"\x30\x04\x00\x01t2")
        assert witness.payloads() == [b"1", b"1"]

    @pytest.mark.parametrize("version", [V31, V311, V5])
    def test_ping(self, version: int) -> None:
        """PINGREQ is answered by PINGRESP [MQTT-3.12.4-1]."""
        Network(pace=1).client("c", version).ping()

    def test_connection_after_connection(self) -> None:
        """Ends are counted by cause for the shell: each channel tells its own once."""
        network = Network()
        client = network.client("c")
        client.disconnect()
        assert client.wire.protocol.close_cause == "client-disconnect"
        client.connect()
        client.disconnect(0x04)
        assert client.wire.protocol.close_cause == "client-disconnect-with-will"
        client.connect()
        client.cut()
        assert client.wire.protocol.close_cause == "connection-lost"
        client.wire.protocol.lost("stalled", network.now)
        assert client.wire.protocol.close_cause == "connection-lost"


class TestTurns:
    """A read may hold more than one connection should be served at once."""

    @pytest.mark.parametrize(("version", "qos"), [*product((V311, V5), (0, 1, 2))])
    def test_nothing_is_lost_between_turns(self, version: int, qos: int) -> None:
        """Thousands of messages in one read reach a receiver with little room, in order, though none may wait in it."""
        network = Network(limits(live_messages=64, receive_maximum=65_535))
        receiver, publisher = network.client("r"), network.client("p", version)
        receiver.subscribe("t", qos=qos)
        sent = [b"%d" % number for number in range(3_000)]
        for payload in sent:
            publisher.post("t", payload, qos)
        network.settle()
        assert receiver.payloads() == sent
        assert network.router.counters.dropped_in_all() == 0
        assert not publisher.wire.protocol.unfinished

    def test_others_have_their_turn(self) -> None:
        """A turn of a flood ends before all of it is through."""
        network = Network()
        flood = network.client("f", V311)
        other = network.client("o")
        other.subscribe("t")
        for _ in range(20_000):
            flood.post("t", b"x")
        flood.wire.to_channel()
        assert flood.wire.protocol.unfinished
        other.send(p.Pingreq())
        other.wire.to_channel()
        other.wire.flush(1)
        other.wire.to_client()
        assert len(other.got(p.Pingresp)) == 1
        network.settle()
        assert len(other.take()) == 20_000

    def test_311_client_that_does_not_read(self) -> None:
        """It has no Receive Maximum to keep to; its publishes wait until it takes its acknowledgements."""
        network = Network(limits(receive_maximum=10))
        witness, client = network.client("w"), network.client("c", V311)
        witness.subscribe("t", qos=1)
        client.wire.frozen = True
        for _ in range(100):
            client.post("t", b"x", 1)
        network.settle()
        assert len(witness.take()) == 10
        assert client.wire.protocol.throttled
        client.wire.frozen = False
        network.settle()
        assert len(witness.take()) == 90
        assert client.outgoing == {}

    def test_end_in_the_middle(self) -> None:
        """A connection that is given up between two turns does no more."""
        network = Network()
        flood, other = network.client("f", V311), network.client("o")
        other.subscribe("t")
        for _ in range(20_000):
            flood.post("t", b"x")
        flood.wire.to_channel()
        network.wake()
        flood.wire.protocol.lost("stalled", network.now)
        flood.wire.protocol.go_on(network.now)
        network.settle()
        assert 0 < len(other.take()) < 20_000


class TestReceiving:
    """PUBLISH from a client."""

    @pytest.mark.parametrize(("version", "qos"), [*product((V31, V311, V5), (1, 2))])
    def test_acknowledged(self, version: int, qos: int) -> None:
        """PUBACK, or PUBREC and PUBCOMP, with the identifier of the PUBLISH.

        [MQTT-3.3.4-1] [MQTT-2.2.1-5] [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11]
        """
        network = Network()
        network.client("s").subscribe("t")
        client = network.client("c", version)
        packet = client.publish("t", b"x", qos)
        kinds = [p.PUBACK] if qos == 1 else [p.PUBREC, p.PUBCOMP]
        assert [(ack.kind, ack.packet_id, ack.reason_code) for ack in client.got(Ack)] == [
            (kind, packet.packet_id, 0) for kind in kinds
        ]

    @pytest.mark.parametrize(("qos", "kind"), [(1, p.PUBACK), (2, p.PUBREC)])
    def test_nobody_listens(self, qos: int, kind: int) -> None:
        """Reason 0x10 in 5.0 when no subscription matches [MQTT-3.4.2-1] [MQTT-3.5.2-1]."""
        network = Network()
        client, old = network.client("c"), network.client("o", V311)
        client.publish("t", b"x", qos)
        assert [ack.reason_code for ack in client.acks(kind)] == [0x10]
        old.publish("t", b"x", qos)
        assert [ack.reason_code for ack in old.acks(kind)] == [0]
        client.subscribe(Request("t", 1, no_local=True))
        client.publish("t", b"x", qos)
        assert client.acks(kind)[-1].reason_code == 0x10

    @pytest.mark.parametrize("version", [V311, V5])
    def test_exactly_once(self, version: int) -> None:
        """Until PUBREL the same identifier is the same message, after it a new one, over connections too.

        [MQTT-4.3.3-10] [MQTT-4.3.3-12]
        """
        network = Network()
        witness = network.client("w")
        witness.subscribe("t", qos=2)
        client = network.idle("c", version)
        keep = 100 if version == V5 else None
        client.connect(clean=False, expiry=keep)
        packet = Publish(b"t", b"x", 2, False, False, 7)
        client.send(packet)
        client.wire.to_channel()
        client.cut()
        network.settle()
        client.connect(clean=False, expiry=keep)
        for dup in (True, False):
            packet.dup = dup
            client.send(packet)
        network.settle()
        assert witness.payloads() == [b"x"]
        assert len(client.acks(p.PUBREC)) == 2
        assert {ack.packet_id for ack in client.acks(p.PUBCOMP)} == {7}
        packet.dup = True
        client.send(packet)
        network.settle()
        assert witness.payloads() == [b"x"]

    def test_completed_though_expired(self) -> None:
        """The exchange with the publisher goes to its end when the message has expired meanwhile [MQTT-4.3.3-13]."""
        network = Network()
        witness, client = network.client("w", clean=False, expiry=100), network.client("c")
        witness.subscribe("t", qos=2)
        witness.cut()
        client.post("t", b"x", 2, expiry=1)
        client.wire.to_channel()
        network.advance(5)
        assert [ack.reason_code for ack in client.acks(p.PUBCOMP)] == [0]
        assert client.outgoing == {}
        witness.connect(clean=False, expiry=100)
        assert witness.take() == []

    def test_duplicate_is_delivered_once(self) -> None:
        """The count at the subscriber, for the same [MQTT-4.3.3-10]."""
        network = Network()
        witness, client = network.client("w"), network.client("c", V311)
        witness.subscribe("t", qos=2)
        client.raw(b"\x34\x06\x00\x01t\x00\x07x" + b"\x3c\x06\x00\x01t\x00\x07x" + b"\x3c\x06\x00\x01t\x00\x08y")
        assert witness.payloads() == [b"x", b"y"]

    def test_receive_maximum(self) -> None:
        """More unfinished QoS 1 and 2 than announced: 0x93 [MQTT-3.3.4-7]."""
        network = Network(limits(receive_maximum=3))
        client = network.client("c")
        assert client.connack.properties.integers[0x21] == 3
        client.raw(b"".join(b"\x34\x06\x00\x01t\x00" + bytes((number, 0)) for number in (1, 2, 3)))
        assert not client.closed
        client.raw(b"\x34\x06\x00\x01t\x00\x04\x00")
        # The harness released the first three by itself; send four that nobody releases.
        client = network.client("d")
        client.wire.frozen = True
        client.raw(b"".join(b"\x34\x06\x00\x01t\x00" + bytes((number, 0)) for number in (1, 2, 3, 3)))
        assert client.wire.protocol.close_cause == ""
        client.raw(b"\x32\x06\x00\x01t\x00\x04\x00")
        client.wire.frozen = False
        network.settle()
        assert client.end == 0x93

    def test_receive_maximum_with_partial_writes(self) -> None:
        """A client that keeps to two in flight is never accused, however its acknowledgements are batched.

        [MQTT-3.3.4-7]
        """
        network = Network(limits(receive_maximum=4))
        client, flood = network.client("c"), network.client("f")
        client.subscribe("big")
        link = client.wire
        link.frozen = True
        for _ in range(50):
            flood.publish("big", b"x" * 100)
        for number in range(400):
            flood.publish("big", b"x" * 100)
            if len(client.outgoing) < 2:
                client.post("t", b"%d" % number, 1)
                link.to_channel()
            link.frozen, link.batch = False, 100
            link.flush(1)
            link.frozen = True
            link.to_client()
        assert not link.outbox.empty
        assert len(client.acks(p.PUBACK)) > 8
        assert not link.protocol.close_cause

    @pytest.mark.parametrize("alias", [4, 65_535])
    def test_alias_above_the_maximum(self, alias: int) -> None:
        """0x94 [MQTT-3.3.2-9] [MQTT-3.2.2-17]."""
        client = Network(limits(topic_alias_maximum=3)).client("c")
        client.publish("t", b"x", alias=alias)
        assert client.end == 0x94

    def test_no_aliases(self) -> None:
        """None is announced and none accepted [MQTT-3.2.2-18]."""
        client = Network(limits(topic_alias_maximum=0)).client("c")
        assert 0x22 not in client.connack.properties.integers
        client.publish("t", b"x", alias=1)
        assert client.end == 0x94

    def test_alias_that_was_never_set(self) -> None:
        """A protocol error; and aliases end with their connection [MQTT-3.3.2-7]."""
        network = Network()
        client = network.client("c", clean=False, expiry=100)
        client.publish("t", b"x", alias=1)
        client.publish("", b"x", alias=1)
        assert not client.closed
        client.cut()
        client.connect(clean=False, expiry=100)
        client.publish("", b"x", alias=1)
        assert client.end == 0x82

    @pytest.mark.parametrize(
        ("change", "qos", "retain", "code"),
        [("max_qos", 2, False, 0x9B), ("max_qos", 1, False, -2), ("retain_available", 0, True, 0x9A)],
    )
    def test_not_supported(self, change: str, qos: int, retain: bool, code: int) -> None:
        """Above Maximum QoS, or RETAIN without retained messages [MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-9]."""
        client = Network(limits(**{change: 1 if change == "max_qos" else 0})).client("c")
        client.publish("t", b"x", qos, retain)
        assert client.end == code

    @pytest.mark.parametrize("version", [V311, V5])
    def test_system_topics_are_the_brokers(self, version: int) -> None:
        """A client cannot publish to $SYS; the connection stays, others see nothing [MQTT3-3.3.5-2]."""
        network = Network()
        witness, client = network.client("w"), network.client("c", version)
        witness.subscribe("$SYS/#")
        for qos in (0, 1, 2):
            client.publish("$SYS/broker/version", b"mine", qos)
        assert witness.take() == []
        assert not client.closed
        assert client.outgoing == {}
        codes = {ack.reason_code for ack in client.got(Ack) if ack.kind in (p.PUBACK, p.PUBREC)}
        assert codes == ({0x87} if version == V5 else {0})

    @pytest.mark.parametrize(("version", "code"), [(V311, -1), (V5, 0x95)])
    def test_too_large(self, version: int, code: int) -> None:
        """Refused by its declared length, before it has come [MQTT-3.2.2-15]."""
        network = Network(limits(max_packet_size=100))
        client = network.client("c", version)
        client.raw(b"\x30\xff\xff\xff\x7f")
        assert client.closed
        assert client.end == code
        assert pending_size(client.wire.protocol.decoder) < 100


class TestSubscribing:
    """SUBSCRIBE and UNSUBSCRIBE."""

    @pytest.mark.parametrize("version", [V31, V311, V5])
    def test_codes_in_order(self, version: int) -> None:
        """One SUBACK with a code for each filter, in order; UNSUBACK likewise.

        [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2]
        [MQTT-2.2.1-6] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2] [MQTT3-3.9.3-2]
        """
        client = Network().client("c", version)
        wanted = [Request(f"t/{number}", number % 3) for number in range(300)]
        assert client.subscribe(*wanted) == [number % 3 for number in range(300)]
        codes = client.unsubscribe("t/3", "t/none", "t/4", "t/3")
        assert codes == ([0, 0x11, 0, 0x11] if version == V5 else [])
        assert len(client.session.subscriptions) == 298
        assert len(client.got(p.Unsuback)) == 1

    def test_limits_per_filter(self) -> None:
        """What the settings refuse has its own code; the others are subscribed [MQTT-3.9.3-2]."""
        network = Network(limits(max_topic_levels=3, max_subscriptions_per_client=2, max_qos=1))
        filters = ["a", "a/b/c/d", "b", "c", "a"]
        client = network.client("c")
        assert client.subscribe(*filters, qos=2) == [1, 0x8F, 1, 0x97, 1]  # [MQTT-3.2.2-10]
        assert network.client("o", V311).subscribe(*filters, qos=2) == [1, 0x80, 1, 0x80, 1]

    @pytest.mark.parametrize("bad", ["a#", "a/#/b", "+a", "a/b+", "##", "#/"])
    @pytest.mark.parametrize(("version", "kind"), [*product((V311, V5), ("subscribe", "unsubscribe"))])
    def test_bad_filters(self, bad: str, version: int, kind: str) -> None:
        """A filter that section 4.7 forbids is not subscribed to [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
        network = Network()
        client = network.client("c", version)
        client.send(p.Subscribe(1, [Request(bad)]) if kind == "subscribe" else p.Unsubscribe(1, [bad]))
        network.settle()
        assert not client.got(p.Suback)
        assert not client.got(p.Unsuback)
        assert client.closed
        assert client.end == (0x81 if version == V5 else -1)
        assert network.router.subscription_count == 0

    def test_replaced(self) -> None:
        """The same filter again replaces the subscription: options, QoS, identifier [MQTT-3.8.4-3]."""
        network = Network()
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("t", qos=0, identifier=1)
        client.subscribe(Request("t", 2, retain_as_published=True), identifier=2)
        publisher.publish("t", b"x", 2, retain=True)
        [packet] = client.take()
        assert (packet.qos, packet.retain, packet.subscription_ids) == (2, True, (2,))
        client.subscribe("t", qos=1)
        publisher.publish("t", b"x", 2)
        assert [(packet.qos, packet.subscription_ids) for packet in client.take() if not packet.retain] == [(1, ())]
        assert network.router.subscription_count == 1

    def test_after_unsubscribe(self) -> None:
        """Nothing new is queued; what was under way is completed [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3]."""
        network = Network()
        client, publisher = network.client("c", receive_maximum=1), network.client("p")
        client.answering = False
        client.subscribe("t", qos=2)
        publisher.publish("t", b"1", 2)
        client.unsubscribe("t", "T")
        publisher.publish("t", b"2", 2)
        while client.unanswered:
            client.answer()
        assert client.payloads() == [b"1"]
        assert not client.session.inflight
        assert len(network.router.trie) == 0
