"""Clients that are other brokers: bridges of 3.1 and 3.1.1, and how many links a message may pass."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec.packets import V31, V311
from canopy_mqtt.core.routing.links import with_hop
from tests.core.harness import Network, limits, total_ledger


def named(hop_limit: int = 8, **given: int) -> Network:
    """A broker that is called `here`."""
    network = Network(limits(hop_limit=hop_limit, **given))
    network.router.broker_id = "here"
    return network


def path(*broker_ids: str) -> bytes:
    """The properties of a message that came this way."""
    properties = b""
    for broker_id in broker_ids:
        properties = with_hop(properties, broker_id)
    return properties


def test_no_limit_of_hops() -> None:
    """0 lets any number through."""
    network = named(hop_limit=0)
    listener, publisher = network.client("s"), network.client("p")
    listener.subscribe("t")
    publisher.publish("t", b"x", properties=path(*(str(number) for number in range(300))))
    publisher.publish("t", b"y", properties=path("here"))
    assert listener.payloads() == [b"x"]


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
