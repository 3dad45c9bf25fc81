"""One connection's packets: what is answered, what ends it, and that nobody else notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import V5, V311, Connect, Disconnect, Publish
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.share_homes import MAX_NAME
from tests.core.codec.wire_cases import CASES, MAX_PACKET_SIZE, Case
from tests.core.harness import Network, limits, untouched
from tests.support.runs import for_each

FROM_CLIENTS = [case for case in CASES if case.direction in ("c2s", "both")]


def _first_bytes(network: Network, raw: bytes, pace: int) -> ServerProtocol:
    """A connection that begins with these bytes."""
    protocol = ServerProtocol(
        network.router, SendBuffer(network.router.peers.touched, network.router.counters, 0, 0), Origin("somebody")
    )
    for read in [raw[at : at + 1] for at in range(len(raw))] if pace else [raw]:
        protocol.receive(read, network.now)
    assert protocol.send_buffer.take_batch(1 << 20, network.now) == []
    network.router.peers.touched.clear()
    return protocol


def _check_refusal(case: Case, final_packet: bytes) -> None:
    """What a refused CONNECT is told: nothing, or a CONNACK with the right code in the form of its version."""
    if not final_packet:
        return
    decoder = Decoder(1 << 20, server=False, version=V311 if final_packet[1] == 2 else V5)
    if b"MQTT\x05" in case.raw:
        assert decoder.version == V5
    elif case.reason != reason_codes.UNSUPPORTED_PROTOCOL_VERSION:
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
        assert answer.reason_code == reason_codes.v3_connack(case.reason) > 0


class TestWireCases:
    """Every named wire case, sent to a channel among two other clients; each case names its statements."""

    @pytest.mark.parametrize("pace", [0, 1])
    @for_each("case", [one for one in FROM_CLIENTS if one.packet is None])
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

    @for_each("case", [one for one in FROM_CLIENTS if one.packet is not None])
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


class TestTurns:
    """A read may hold more than one connection should be served at once."""

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
        flood.wire.protocol.end("stalled", network.now)
        flood.wire.protocol.go_on(network.now)
        network.settle()
        assert 0 < len(other.take()) < 20_000


class TestSubscribing:
    """SUBSCRIBE and UNSUBSCRIBE."""

    def test_limits_per_filter(self) -> None:
        """What the settings refuse has its own code; the others are subscribed [MQTT-3.9.3-2]."""
        network = Network(limits(max_topic_levels=3, max_subscriptions_per_client=2, max_qos=1))
        filters = ["a", "a/b/c/d", "b", "c", "a"]
        client = network.client("c")
        assert client.subscribe(*filters, qos=2) == [1, 0x8F, 1, 0x97, 1]  # [MQTT-3.2.2-10]
        assert network.client("o", V311).subscribe(*filters, qos=2) == [1, 0x80, 1, 0x80, 1]

    def test_a_filter_that_the_store_cannot_keep(self) -> None:
        """What is to be written together with it could not be. Sessions that are not kept may have it."""
        network = Network(limits(max_stored_name=6))
        network.router.journal = Journal()
        filters = ["\u6c34" * 2, "\u6c34" * 3]
        assert network.client("kept", expiry=9).subscribe(*filters) == [0, 0x8F]
        assert network.client("c").subscribe(*filters) == [0, 0]

    @for_each(("home_of", "codes"), [(None, [0, 0]), (lambda _: "", [0, 0x8F])])
    def test_a_share_group_that_another_worker_could_not_be_told_of(
        self, home_of: Callable[[str], str] | None, codes: list[int]
    ) -> None:
        network = Network(limits())
        network.router.table.home_of = home_of
        names = [f"$share/g/{'a' * (MAX_NAME - len('$share/g/') + more)}" for more in (0, 1)]
        assert network.client("c").subscribe(*names) == codes
