"""`canopy_mqtt.core.codec.encoder`: the wire cases' bytes, everything back through the decoder, and what has no
encoding.
"""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import Packet, Publish
from tests.core.codec.wire_cases import VALID, Case, props, senders
from tests.support.frames import pending_size
from tests.support.runs import for_each


def back(raw: bytes, server: bool, version: int) -> Packet:
    """The one packet in `raw`."""
    decoder = Decoder(268_435_460, server, version)
    decoder.feed(raw)
    assert decoder.next_frame()
    packet = decoder.packet()
    assert pending_size(decoder) == 0
    return packet


@for_each("case", [pytest.param(case, id=case.name) for case in VALID])
def test_wire_cases(case: Case) -> None:
    assert case.packet is not None
    raw = encode(case.packet, case.version)
    assert (raw == case.raw) == case.canonical
    for server in senders(case):
        assert back(raw, server, case.version) == case.packet


@for_each(("kind", "packet_id"), [(3, 1), (8, 1), (4, 0), (4, -1), (4, 65_536)])
def test_an_acknowledgement_that_is_refused(kind: int, packet_id: int) -> None:
    """The fast path of acknowledgements."""
    with pytest.raises(ValueError, match=r"acknowledgement|packet identifier"):
        encoder.ack(kind, packet_id)


IMPOSSIBLE: list[tuple[Packet, int]] = [
    (Publish(b"t", b"", 3), 4),
    (Publish(b"t", b"", -1), 4),
    (Publish(b"t", b"", 1), 4),
    (Publish(b"t", b"", 1, packet_id=65_536), 4),
    (Publish(b"t", b"", 0, packet_id=1), 4),  # [MQTT-2.2.1-2]
    (Publish(b"t", b"", 0, dup=True), 4),  # [MQTT-3.3.1-2]
    (Publish(b"t" * 65_536, b""), 4),
    (Publish(b"t", b"", topic_alias=65_536), 5),
    (Publish(b"t", b"", message_expiry=4_294_967_296), 5),
    (Publish(b"t", b"", subscription_ids=(0,)), 5),
    (Publish(b"t", b"", subscription_ids=(268_435_456,)), 5),
    (p.Connect("\0"), 0),  # [MQTT-1.5.4-2]
    (p.Connect("\ud800"), 0),  # [MQTT-1.5.4-1]
    (p.Connect("x" * 65_536), 0),
    (p.Connect("x", 2), 0),
    (p.Connect("x", keep_alive=65_536), 0),
    (p.Connect("x", keep_alive=-1), 0),
    (p.Connect("x", password=b"p"), 0),  # [MQTT3-3.1.2-22]
    (p.Connect("x", 5, bridge=True), 0),
    (p.Connect("x", will=p.Will("w", b"", 3)), 0),  # [MQTT-3.1.2-12]
    (p.Connect("x", 5, will=p.Will("w", b"", delay=-1)), 0),
    (p.Connect("x", will=p.Will("w", bytes(65_536))), 0),
    (p.Connack(reason_code=0x84), 4),
    (p.Connack(reason_code=-1), 4),
    (p.Connack(reason_code=256), 5),
    (p.Connack(True, 0x84), 5),  # [MQTT-3.2.2-6]
    (p.Ack(p.PUBACK, 0), 4),
    (p.Ack(p.SUBACK, 1), 4),
    (p.Ack(p.SUBACK, 1, 0, props(("a", "b"))), 5),
    (p.Ack(p.PUBACK, 1, 256), 5),
    (p.Subscribe(1, []), 4),  # [MQTT-3.8.3-2]
    (p.Subscribe(0, [p.SubscriptionRequest("a")]), 4),
    (p.Subscribe(1, [p.SubscriptionRequest("a", 3)]), 5),
    (p.Subscribe(1, [p.SubscriptionRequest("a", 0, False, False, 3)]), 5),
    (p.Suback(0, [0]), 4),
    (p.Suback(1, [256]), 5),
    (p.Unsubscribe(1, []), 4),  # [MQTT-3.10.3-2]
    (p.Unsubscribe(0, ["a"]), 4),
    (p.Unsuback(0), 4),
    (p.Disconnect(256), 5),
    (p.Auth(0x18), 4),
    (Packet(), 4),
]


@for_each(("packet", "version"), IMPOSSIBLE)
def test_what_has_no_encoding(packet: Packet, version: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode(packet, version)


def test_larger_than_any_packet() -> None:
    """Nothing is joined before the size is known to be writable."""
    with pytest.raises(ValueError, match="268435456"):
        encode(Publish(b"t", bytes(268_435_453)), 4)
