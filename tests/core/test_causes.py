"""Causes of ends: they differ, and one of them discards the will."""

from __future__ import annotations

from canopy_mqtt.core import causes
from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.routing.peers import PeerDisconnected
from tests.core.harness import Network
from tests.support.runs import for_each

ENDS = {name: value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


def test_causes_are_distinct() -> None:
    """Logs and totals tell them apart."""
    assert len(set(ENDS.values())) == len(ENDS) > 5


@for_each("cause", sorted(ENDS.values()))
def test_which_end_discards_the_will(cause: str) -> None:
    """Only the client's DISCONNECT 0x00 does [MQTT-3.1.2-8] [MQTT-3.14.4-3]."""
    network = Network()
    witness = network.client("witness")
    witness.subscribe("will")
    client = network.client("c", will=Will("will", b"gone"))
    network.router.peers.events.append(PeerDisconnected(client.session, client.wire.send_buffer, cause))
    network.router.peers.drain(network.router, network.now)
    network.settle()
    assert witness.payloads() == ([] if cause == "client-disconnect" else [b"gone"])
