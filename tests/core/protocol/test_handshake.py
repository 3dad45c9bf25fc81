"""CONNECT and CONNACK: what is negotiated, what is refused, and gates that answer now or later."""

from __future__ import annotations

from itertools import product

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V31, V311
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import NO_PROPERTIES
from canopy_mqtt.core.hooks import LATER
from tests.core.harness import Network, limits
from tests.support.gate import Gate
from tests.support.runs import for_each

CONNACK_REASONS = {
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
    0x9C, 0x9D, 0x9F,
}  # fmt: skip


def test_the_properties_that_all_clients_of_3_1_1_share_stay_empty() -> None:
    """Also beside clients of 5.0 who are told much, and whatever is answered."""
    network = Network(limits(receive_maximum=7, max_qos=1))
    for version in (V311, V5, V31):
        client = network.client(f"c{version}", version)
        assert client.subscribe("a/#", "$share/g/b", "c") == [0, 0, 0]
        client.unsubscribe("a/#")
        client.disconnect()
    assert not NO_PROPERTIES


class TestConnack:
    """What an accepted CONNECT is told."""

    @for_each("version", [V31, V311])
    @for_each(("asked", "limit", "code"), [(0, 0, 0), (65_535, 0, 0), (60, 60, 0), (1, 60, 0), (0, 60, 5), (61, 60, 5)])
    def test_keep_alive_of_those_who_cannot_be_told(self, version: int, asked: int, limit: int, code: int) -> None:
        """3.1.1 has no Server Keep Alive: who asks for more than there is, or for none, is refused."""
        client = Network(limits(max_keep_alive=limit)).idle("c", version)
        assert client.connect(keep_alive=asked).reason_code == code
        assert client.closed == (code != 0)
        if not client.closed:
            assert client.wire.protocol.keep_alive == asked

    def test_identifiers_that_the_broker_makes(self) -> None:
        """They begin with what the settings say, and the client is told [MQTT-3.2.2-16]."""
        network = Network()
        network.router.limits.auto_id_prefix = "auto/"
        made = [network.client("") for _ in range(2)]
        told = [client.connack.properties.strings[0x12] for client in made]
        assert sorted(network.router.sessions) == sorted(told)
        assert all(len(each) == 27 and each.startswith("auto/") for each in told)
        assert len(set(told)) == 2


@for_each(("version", "codes"), [(V311, (5, 3, 3)), (V5, (0x87, 0x97, 0x89))])
def test_room_and_names(version: int, codes: tuple[int, int, int]) -> None:
    """No anonymous clients, no room for sessions, no room for connections [MQTT-3.1.4-2] [MQTT3-4.8.0-2]."""
    changes: list[dict[str, int]] = [{"allow_anonymous": 0}, {"max_sessions": 1}, {"max_connections": 1}]
    for change, code in zip(changes, codes, strict=True):
        network = Network(limits(**change))
        network.client("first", user_name="u", password=b"p")
        client = network.idle("second", version)
        assert client.connect().reason_code == code
        assert client.closed
        assert len(network.router.sessions) == 1
        # The one that is there may come back.
        assert network.idle("first", version).connect(user_name="u").reason_code == 0


class TestGate:
    """Who may connect, publish and subscribe."""

    def gated(self, answer: int = LATER) -> tuple[Network, Gate]:
        """A network with a gate that answers so."""
        network = Network()
        network.router.access_control = gate = Gate(answer)
        return network, gate

    @for_each(("pace", "version"), [*product((0, 1), (V311, V5))])
    def test_later(self, pace: int, version: int) -> None:
        """Packets that came with the CONNECT wait for the answer, and nothing is sent before it [MQTT-3.2.0-1]."""
        network, gate = self.gated()
        network.pace = pace
        client = network.idle("c", version)
        client.connect(settle=False)
        client.post("t", b"x", 1)
        client.send(p.Subscribe(9, [Request("t")]))
        network.settle()
        waiting = [client.wire.protocol.waiting]
        assert client.packets == []
        assert network.router.sessions == {}
        [ticket] = gate.tickets
        assert gate.origins[0].address.startswith("client:")
        ticket.answer(0)
        network.settle()
        waiting.append(client.wire.protocol.waiting)
        assert waiting == [True, False]
        assert [packet.kind for packet in client.packets] == [p.CONNACK, p.PUBACK, p.SUBACK]

    @for_each("answer", [5, 1, -2, 256, 0x7F])
    @for_each("late", [False, True])
    def test_an_answer_that_is_no_reason_code_is_a_refusal(self, answer: int, late: bool) -> None:
        """The return codes of 3.1.1 among them: access control has not said that the client may come in."""
        network, gate = self.gated(LATER if late else answer)
        client = network.idle("c", V5)
        client.connect(settle=False)
        network.settle()
        if late:
            gate.tickets[0].answer(answer)
        network.settle()
        assert (client.connack.reason_code, network.router.sessions) == (0x83, {})

    def test_why_a_client_is_refused_is_for_the_log(self) -> None:
        """The client hears the name of the reason code, and whoever reads the log the detail."""
        network, gate = self.gated()
        client = network.idle("c", V5)
        client.connect(settle=False)
        network.settle()
        gate.tickets[0].detail = "staff: wrong password" + "!" * 300
        gate.tickets[0].answer(0x86)
        network.settle()
        assert client.connack.properties.strings[0x1F] == "Bad User Name or Password"
        assert client.wire.protocol.close_text == "staff: wrong password" + "!" * 235

    @for_each(("cause", "code"), [("connect-timeout", 0xA0), ("shutdown", 0x8B), ("keep-alive", 0x8D)])
    def test_closed_while_waiting(self, cause: str, code: int) -> None:
        """Before CONNACK there is no DISCONNECT, and a CONNACK has a reason of its own table.

        [MQTT-3.14.0-1] [MQTT-3.2.2-8] [MQTT-3.2.0-1]
        """
        network, _ = self.gated()
        client = network.idle("c")
        client.connect()
        client.wire.protocol.close(cause, code, "not today", network.now)
        final_packet = client.wire.protocol.final_packet
        assert final_packet == b"" or (final_packet[0] == 0x20 and final_packet[3] in CONNACK_REASONS - {0})


@for_each(
    ("first", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "looks like HTTP or WebSocket; this listener is plain MQTT"),
        # Its first bytes are those of a PUBREC that has not come whole.
        (b"PUT /x HTTP/1.1\r\n", "looks like HTTP or WebSocket; this listener is plain MQTT"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "looks like TLS; this listener is plain MQTT"),
        (b"PROXY TCP4 1.2.3.4", "looks like the PROXY protocol; this listener does not take it"),
        (b"\r\n\r\n\x00\r\nQUIT\n", "looks like the PROXY protocol; this listener does not take it"),
        (b"SSH-2.0-x", "looks like SSH; this listener is plain MQTT"),
        (b"GEX", "the first packet is not CONNECT"),
        (b"\x30", "the first packet is not CONNECT"),
    ],
)
def test_what_a_stranger_looks_like(first: bytes, text: str) -> None:
    """Ended at the first read, without an answer; the log can say what came [MQTT-3.1.0-1]."""
    client = Network().idle("c")
    client.dial()
    client.raw(first)
    protocol = client.wire.protocol
    assert (protocol.close_cause, protocol.close_text, protocol.final_packet) == ("protocol-error", text, b"")
