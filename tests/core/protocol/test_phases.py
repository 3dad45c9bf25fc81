"""The table of phases, walked whole: every packet type in every phase, on a real connection."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import NAMES, V5, V31, V311, Connect, Disconnect, Packet
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.hooks import LATER, AuthExchange, AuthMethod
from canopy_mqtt.core.protocol import phases
from canopy_mqtt.core.protocol.phases import (
    ADMITTING,
    AUTHENTICATING,
    CLOSED,
    CONNECTED,
    CONNECTING,
    ERRORS,
    NEXT,
    PHASES,
)
from tests.core.harness import Client, Network, bag
from tests.support.gate import Gate
from tests.support.runs import for_each

METHOD: Final = bag(s={0x15: "m"})

PACKETS: Final[dict[int, Packet]] = {
    p.CONNECT: Connect("c", V5),
    p.CONNACK: p.Connack(),
    p.PUBLISH: p.Publish(b"t", b"x"),
    p.PUBACK: p.Ack(p.PUBACK, 1),
    p.PUBREC: p.Ack(p.PUBREC, 1),
    p.PUBREL: p.Ack(p.PUBREL, 1),
    p.PUBCOMP: p.Ack(p.PUBCOMP, 1),
    p.SUBSCRIBE: p.Subscribe(1, [Request("t")]),
    p.SUBACK: p.Suback(1, [0]),
    p.UNSUBSCRIBE: p.Unsubscribe(1, ["t"]),
    p.UNSUBACK: p.Unsuback(1, [0]),
    p.PINGREQ: p.Pingreq(),
    p.PINGRESP: p.Pingresp(),
    p.DISCONNECT: p.Disconnect(),
    p.AUTH: p.Auth(0x18, METHOD),
}

ALLOWED: Final = {
    CONNECTING: {p.CONNECT},
    AUTHENTICATING: {p.DISCONNECT, p.AUTH},
    ADMITTING: set(range(16)),
    CONNECTED: {
        *(p.PUBLISH, p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP, p.SUBSCRIBE, p.UNSUBSCRIBE),
        *(p.PINGREQ, p.DISCONNECT, p.AUTH),
    },
    CLOSED: set(),
}
"""By the specification: what may come from a client, section by section."""


class Rounds(AuthMethod):
    """Goes on for ever."""

    def begin(self) -> AuthExchange:
        exchange = AuthExchange()
        exchange.reason_code = 0x18
        return exchange


def _in(phase: int) -> Client:
    """A client whose connection is in that phase."""
    network = Network()
    network.router.auth_methods["m"] = Rounds()
    client = network.idle("c")
    if phase == ADMITTING:
        network.router.access_control = Gate(LATER)
    if phase == CONNECTING:
        client.dial()
    else:
        client.connect(properties=METHOD if phase == AUTHENTICATING else None)
    if phase == CLOSED:
        client.disconnect()
    client.packets.clear()
    assert client.wire.protocol.state == phase
    return client


@for_each(("phase", "kind"), [*product(range(5), PACKETS)])
def test_every_packet_in_every_phase(phase: int, kind: int) -> None:
    """What may come is acted on, or waits; anything else ends the connection with the error of the table.

    [MQTT-3.1.0-1] [MQTT-3.1.0-2] [MQTT-3.1.2-30] [MQTT-3.1.4-6] [MQTT-4.12.0-7]
    """
    client = _in(phase)
    protocol = client.wire.protocol
    text = protocol.close_text
    action = phases.action(phase, kind)
    assert (action < phases.NOT_CONNECT) is (kind in ALLOWED[phase]), (PHASES[phase], NAMES[kind])
    before = client.network.router.counters.packets_received
    protocol.receive(encode(PACKETS[kind], V5), client.network.now)
    received = client.network.router.counters.packets_received - before
    if phase in (ADMITTING, CLOSED):
        # Neither is read at all.
        assert (protocol.state, received) == (phase, 0)
        assert protocol.close_text == text
    elif action >= phases.NOT_CONNECT:
        assert protocol.state == CLOSED
        assert (protocol.close_cause, protocol.close_text) == ("protocol-error", ERRORS[action])
        # Said with a DISCONNECT to whoever was accepted, with a CONNACK to whoever has told a version.
        said = protocol.final_packet[:1]
        assert said == {CONNECTING: b"", AUTHENTICATING: b"\x20", CONNECTED: b"\xe0"}[phase]
    elif kind == p.DISCONNECT:
        assert (protocol.state, protocol.close_cause) == (CLOSED, "client-disconnect")
    elif phase == CONNECTED and kind == p.AUTH:
        # It has no exchange to go on with.
        assert protocol.close_text == "AUTH without an authentication method in CONNECT"
    elif kind == p.CONNECT:
        assert protocol.state == CONNECTED
    else:
        assert (protocol.state, received) == (phase, 1)
        client.network.settle()
        answers = {
            p.AUTH: p.AUTH, p.PUBREC: p.PUBREL, p.PUBREL: p.PUBCOMP, p.SUBSCRIBE: p.SUBACK,
            p.UNSUBSCRIBE: p.UNSUBACK, p.PINGREQ: p.PINGRESP,
        }  # fmt: skip
        assert [packet.kind for packet in client.packets] == ([answers[kind]] if kind in answers else [])


@for_each(("phase", "to"), [*product(range(5), range(5))])
def test_every_step(phase: int, to: int) -> None:
    """Phases follow each other in one direction, and end closed; any other step is a fault of ours."""
    if to in NEXT[phase]:
        assert to > phase
        assert phases.follow(phase, to) == to
    else:
        with pytest.raises(RuntimeError):
            phases.follow(phase, to)
    assert (CLOSED in NEXT[phase]) is (phase != CLOSED)


@for_each("version", [V31, V311, V5])
@for_each("first", [b"\x00", b"\x0a\xc0", b"\x0f", b"\x20", b"\x20\xff\xff\x7f", b"\x10", b"\x90\x80", b"\xd0"])
def test_the_rest_of_what_may_not_come_is_not_waited_for(version: int, first: bytes) -> None:
    """A reserved type, a second CONNECT, what only a server sends: the first byte is enough."""
    client = Network().client("c", version)
    client.raw(first)
    assert client.closed
    told = [packet.reason_code for packet in client.got(Disconnect)]
    assert told == ([0x81 if first[0] < 0x10 else 0x82] if version == V5 else [])


@for_each("first", [b"\x30", b"\x32\x80", b"\x82", b"\xc0", b"\xe0", b"\x40\x02\x00"])
def test_what_may_come_is_waited_for(first: bytes) -> None:
    """However few bytes there are."""
    client = Network().client("c")
    client.raw(first)
    assert not client.closed
