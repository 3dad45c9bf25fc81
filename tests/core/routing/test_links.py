"""Clients that are other brokers: links that say who they are, bridges of 3.1.1, and messages that go in circles."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V31, V311
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import decode_forward, encode_forward
from canopy_mqtt.core.routing.links import LINK, VIA, with_hop
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.support.runs import for_each


def named(hop_limit: int = 8, **given: int) -> Network:
    """A broker that is called `here`."""
    network = Network(limits(hop_limit=hop_limit, **given))
    network.router.broker_id = "here"
    return network


def link(network: Network, client_id: str = "link", broker_id: str = "below", **connect: Any) -> Client:
    """A link of another Canopy, which the settings let in as one."""
    network.router.limits.link_client_ids = (client_id,)
    return network.client(client_id, properties=bag((LINK, broker_id)), **connect)


def path(*broker_ids: str) -> bytes:
    """The properties of a message that came this way."""
    properties = b""
    for broker_id in broker_ids:
        properties = with_hop(properties, broker_id)
    return properties


class TestLinkClients:
    """A 5.0 client with the user property `canopy-link` is the link of another broker."""

    def test_both_know(self) -> None:
        """The session knows whose link it is, and the CONNACK says who is here."""
        network = named()
        client = link(network)
        assert client.session.link_peer == "below"
        assert client.connack.properties.user == [(LINK, "here")]

    def test_others_are_told_nothing(self) -> None:
        """Clients that are no links."""
        network = named()
        for name, version in (("3", V31), ("4", V311), ("5", V5)):
            client = network.client(name, version)
            assert client.session.link_peer == ""
            assert client.connack.properties.user == []

    @pytest.mark.parametrize("bad", ["", "x" * 65])
    def test_what_is_no_id(self, bad: str) -> None:
        """It is ignored; the first that is one counts."""
        network = named()
        client = network.client("c", properties=bag((LINK, bad), ("other", "x")))
        assert client.session.link_peer == ""
        assert client.connack.properties.user == []
        client = network.client("d", properties=bag((LINK, bad), (LINK, "y" * 64), (LINK, "z")))
        assert client.session.link_peer == "y" * 64

    def test_at_each_connect(self) -> None:
        """A session is a link's while the connection is one."""
        network = named()
        client = link(network, clean=False, expiry=100)
        client.cut()
        client.connect(clean=False, expiry=100)
        assert client.connack.session_present
        assert client.session.link_peer == ""
        client.cut()
        client.connect(clean=False, properties=bag((LINK, "other")))
        assert client.session.link_peer == "other"

    def test_left_out_where_it_does_not_fit(self) -> None:
        """The CONNACK is not too large for the property's sake [MQTT-3.2.2-20]."""
        network = named(receive_maximum=65_535, topic_alias_maximum=0, max_packet_size=268_435_460)
        whole = 5 + 1 + 2 + len(LINK) + 2 + len("here")
        client = link(network, max_packet=whole)
        assert client.connack.properties.user == [(LINK, "here")]
        client = link(network, "second", max_packet=whole - 1)
        assert client.connack.properties.user == []
        assert client.session.link_peer == "below"


class TestReserved:
    """Identifiers of the broker's own sessions."""

    @pytest.mark.parametrize(("version", "code"), [(V31, 2), (V311, 2), (V5, 0x85)])
    def test_refused(self, version: int, code: int) -> None:
        """Nobody comes in as one of them [MQTT-3.1.3-8] [MQTT3-3.1.3-9]."""
        network = named()
        client = network.idle("$upstream/north", version)
        assert client.connect().reason_code == code
        assert client.closed
        assert not network.router.sessions

    def test_nothing_else_is(self) -> None:
        """Only what begins with it."""
        network = named()
        for name in ("$upstream", "upstream/north", "x$upstream/north", "$Upstream/north"):
            network.client(name)


class TestPath:
    """A message that has been here, or has come over too many links, goes nowhere and is acknowledged."""

    @for_each("qos", [0, 1, 2])
    @for_each(
        "properties",
        [
            path("a", "here", "b"),
            path("here"),
            encode_forward(user=[("x", "y")]) + path("here"),
            path("a", "b", "c"),
            path("a", "b", "c", "d"),
            path("a", "a", "a"),
        ],
    )
    def test_goes_nowhere(self, qos: int, properties: bytes) -> None:
        """Neither to subscribers nor to the retained messages; success, whatever it was for."""
        network = named(hop_limit=3)
        listener, publisher = network.client("s"), network.client("p")
        listener.subscribe("t", qos=2)
        publisher.publish("t", b"x", qos, retain=True, properties=properties)
        assert listener.take() == []
        assert len(network.router.retained) == 0
        assert network.router.counters.looped == 1
        assert [each.reason_code for each in publisher.got(p.Ack)] == [0] * qos
        assert publisher.outgoing == {}
        assert not publisher.session.received_qos2
        assert not publisher.closed

    @pytest.mark.parametrize("properties", [path("a", "b"), path("Here", "here2"), path(""), b""])
    def test_goes_on(self, properties: bytes) -> None:
        """With fewer links behind it than are allowed, and its path as it came [MQTT-3.3.2-18]."""
        network = named(hop_limit=3)
        listener, publisher = network.client("s"), network.client("p")
        listener.subscribe("t", qos=2)
        publisher.publish("t", b"x", 1, properties=properties)
        [message] = listener.take()
        assert message.properties == properties
        assert network.router.counters.looped == 0

    def test_no_limit(self) -> None:
        """0 lets any number through."""
        network = named(hop_limit=0)
        listener, publisher = network.client("s"), network.client("p")
        listener.subscribe("t")
        publisher.publish("t", b"x", properties=path(*(str(number) for number in range(300))))
        publisher.publish("t", b"y", properties=path("here"))
        assert listener.payloads() == [b"x"]

    def test_again_at_qos_2(self) -> None:
        """One that was sent again is acknowledged again, and counted once [MQTT-4.3.3-10]."""
        network = named()
        publisher = network.client("p")
        again = p.Publish(b"t", b"x", 2, packet_id=7, properties=path("here"))
        publisher.send(again)
        publisher.send(again)
        network.settle()
        assert [each.reason_code for each in publisher.acks(p.PUBREC)] == [0, 0]
        assert network.router.counters.looped == 1


class TestBridges:
    """The top bit of the protocol level: a bridge of 3.1 or 3.1.1, as mosquitto's are."""

    @pytest.mark.parametrize("version", [V31, V311])
    def test_no_local(self, version: int) -> None:
        """Nothing that it published comes back to it."""
        network = named()
        bridge = network.client("b", version, bridge=True)
        other = network.client("o", version)
        for client in (bridge, other):
            assert client.subscribe("t/#", qos=1) == [1]
        bridge.publish("t/a", b"from the bridge", 1)
        other.publish("t/a", b"from elsewhere", 1)
        assert bridge.payloads() == [b"from elsewhere"]
        assert other.payloads() == [b"from the bridge", b"from elsewhere"]

    @pytest.mark.parametrize("version", [V31, V311])
    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_retain_as_published(self, version: int, qos: int) -> None:
        """It sees which messages are retained; an ordinary client of these versions does not [MQTT3-3.3.1-9]."""
        network = named()
        bridge, publisher = network.client("b", version, bridge=True), network.client("p")
        plain = network.client("o", version)
        for client in (bridge, plain):
            client.subscribe("t/#", qos=2)
        publisher.publish("t/a", b"1", qos, retain=True)
        publisher.publish("t/a", b"2", qos)
        publisher.publish("t/a", b"", qos, retain=True)
        assert [(each.payload, each.retain, each.qos) for each in bridge.take()] == [
            (b"1", True, qos), (b"2", False, qos), (b"", True, qos),
        ]  # fmt: skip
        assert [each.retain for each in plain.take()] == [False] * 3
        assert total_ledger(network.router.sessions.values()) == []

    def test_several_filters_at_once(self) -> None:
        """The same where more than one filter matches."""
        network = named()
        bridge, publisher = network.client("b", V311, bridge=True), network.client("p")
        bridge.subscribe("t/#", "t/a", qos=1)
        publisher.publish("t/a", b"x", 1, retain=True)
        bridge.publish("t/a", b"y", 1)
        assert [(each.payload, each.retain) for each in bridge.take()] == [(b"x", True)]

    def test_shared(self) -> None:
        """In a share group there is no No Local, and its own messages may come to it [MQTT-3.8.3-4]."""
        network = named()
        bridge = network.client("b", V311, bridge=True)
        assert bridge.subscribe("$share/g/t", qos=1) == [1]
        bridge.publish("t", b"x", 1, retain=True)
        assert [(each.payload, each.retain) for each in bridge.take()] == [(b"x", True)]

    def test_only_with_the_bit(self) -> None:
        """A client that comes back without it subscribes as everybody does."""
        network = named()
        bridge = network.client("b", V311, bridge=True, clean=False)
        bridge.cut()
        bridge.connect(clean=False)
        assert bridge.connack.session_present
        bridge.subscribe("t", qos=1)
        bridge.publish("t", b"x", 1)
        assert bridge.payloads() == [b"x"]

    def test_a_link_needs_no_bit(self) -> None:
        """5.0 says for each subscription what a bridge says once."""
        network = named()
        client = link(network)
        client.subscribe(Request("t", 1, True, True))
        client.subscribe(Request("u", 1))
        client.publish("t", b"x", 1, retain=True)
        client.publish("u", b"y", 1, retain=True)
        network.client("p").publish("t", b"z", 1, retain=True, properties=path("a"))
        got = client.take()
        assert [(each.payload, each.retain) for each in got] == [(b"y", False), (b"z", True)]
        assert decode_forward(got[1].properties).user == [(VIA, "a")]
