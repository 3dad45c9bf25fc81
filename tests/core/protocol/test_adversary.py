"""Clients that mean harm, asked of the core alone, where the cost of a packet is counted and not timed."""

from __future__ import annotations

from typing import Final

import pytest

from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.router import Router
from tests.e2e import wire

MAX_REMAINING: Final = 268_435_455
"""Bytes behind the fixed header at most, section 2.1.4."""


def channel(router: Router, connect: bytes) -> ServerProtocol:
    """A connected client of a core without sockets; its CONNACK is taken."""
    limits = router.limits
    send_buffer = SendBuffer(router.peers.touched, router.counters, limits.live_messages, limits.live_bytes)
    made = ServerProtocol(router, send_buffer, Origin("nowhere"))
    made.receive(connect, 0.0)
    send_buffer.take_batch(1 << 20, 0.0)
    assert made.accepted
    return made


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_no_packet_of_the_receiver_can_hold(qos: int) -> None:
    """The largest PUBLISH of 3.1.1 has no form in 5.0, where a byte of property length comes in."""
    limits = Limits()
    limits.live_bytes = 0
    limits.session_bytes = 0
    router = Router(limits)
    receiver = channel(router, wire.connect("receiver"))
    receiver.receive(wire.subscribe(1, [("t", qos)]), 1.0)
    receiver.send_buffer.take_batch(1 << 20, 1.0)
    size = MAX_REMAINING - 3 - (2 if qos else 0)
    router.publish(Message(b"t", bytes(size), qos, False, b"", 0.0, "sender"), None)
    assert receiver.send_buffer.take_batch(1 << 30, 1.0) == []
    assert sum(router.counters.dropped) == 1


@pytest.mark.parametrize("taken", [True, False], ids=["in flight", "waiting"])
def test_a_share_is_not_lost_with_a_member_who_unsubscribes(taken: bool) -> None:
    """Section 4.8.2: what its session leaves unfinished is for another member, also after it unsubscribed."""
    limits = Limits()
    limits.max_inflight = 1
    router = Router(limits)
    share = wire.subscribe(1, [("$share/g/t", 1)])
    leaving = channel(router, wire.connect("leaving"))
    leaving.receive(share, 1.0)
    for number in range(1 if taken else 2):
        router.publish(Message(b"t", b"%d" % number, 1, False, b"", 0.0, ""), None)
    if taken:
        leaving.send_buffer.take_batch(1 << 20, 1.0)
    staying = channel(router, wire.connect("staying"))
    staying.receive(share, 1.0)
    staying.send_buffer.take_batch(1 << 20, 1.0)
    leaving.receive(wire.unsubscribe(2, ["$share/g/t"]), 1.0)
    leaving.end("connection-lost", 1.0)
    assert "leaving" not in router.sessions
    session = staying.session
    assert session is not None
    assert session.queued() == (1 if taken else 2)


def test_a_retained_message_does_not_keep_its_wire_forms() -> None:
    """`retained.max_bytes` counts a payload once."""
    router = Router(Limits())
    for name, version, qos in (("a", 4, 0), ("b", 5, 0), ("c", 5, 1)):
        client = channel(router, wire.connect(name, version=version))
        client.receive(wire.subscribe(1, [("#", qos)], version=version), 1.0)
    publisher = channel(router, wire.connect("p"))
    publisher.receive(wire.publish("t", b"x" * 1_000, qos=1, packet_id=1, retain=True), 1.0)
    for send_buffer in router.peers.send_buffers.values():
        send_buffer.take_batch(1 << 20, 1.0)
    kept = router.retained.get("t")
    assert isinstance(kept, Message)
    assert (kept.frame_v3, kept.frame_v5) == (None, None)
    assert kept.payload() == b"x" * 1_000
