"""Acknowledgements in any order, true and bogus, in both directions: held against models of section 3.3.4 and 4.3."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V311, Ack
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from tests.core.harness import Client, Network, limits

MAXIMUM = 3
IDS = st.integers(1, 5)


def _send(client: Client, packet: p.Packet) -> None:
    """Have one packet reach the broker; nothing is written to anybody."""
    client.send(packet)
    while client.wire.to_channel() or client.wire.go_on():
        pass


_PUBLISH = st.tuples(st.just("publish"), st.sampled_from((1, 2)), IDS, st.sampled_from((b"t", b"u", b"$SYS/x")))
_ACK = st.tuples(st.just("ack"), st.sampled_from((PUBACK, PUBREC, PUBREL, PUBCOMP)), IDS, st.just(b""))
_WRITE = st.tuples(st.just("write"), st.sampled_from((1, 9, 1 << 20)), st.just(0), st.just(b""))


@given(st.lists(st.one_of(_PUBLISH, _ACK, _WRITE), max_size=60), st.sampled_from((V311, V5)))
@example(
    [*[("publish", 1, 1, b"t")] * 2, ("publish", 2, 2, b"t"), ("ack", PUBREL, 1, b""), ("ack", PUBREL, 2, b"")], V311
)
@example(
    [
        ("publish", 1, 1, b"t"),
        ("ack", PUBREL, 1, b""),
        ("publish", 1, 1, b"t"),
        ("ack", PUBACK, 1, b""),
        ("ack", PUBREL, 1, b""),
        ("write", 1, 0, b""),
    ],
    V311,
)
def test_what_a_client_publishes(steps: list[tuple[str, int, int, bytes]], version: int) -> None:
    """The Receive Maximum counts exactly the publishes whose last acknowledgement is not written.

    With QoS 1 and 2, topics with and without a subscriber, refused ones, and acknowledgements for nothing in between
    [MQTT-3.3.4-7] [MQTT-4.3.3-9] [MQTT-4.3.3-12].
    """
    network = Network(limits(receive_maximum=MAXIMUM))
    network.client("s").subscribe("t")
    client = network.client("c", version)
    link, protocol = client.wire, client.wire.protocol
    session, v5 = client.session, version == V5
    known: set[int] = set()
    # What is queued, each by its length, and whether it counts.
    queued: list[tuple[int, bool]] = []
    for step, kind, packet_id, topic in steps:
        if step == "write":
            link.send_buffer.take_batch(kind, network.now)
            size = 0
            while queued and size < kind:
                size += queued.pop(0)[0]
            # A client of 3.1.1 that was behind is read from again.
            while link.to_channel() or link.go_on():
                pass
        elif not v5 and sum(counts for _, counts in queued) >= MAXIMUM:
            continue  # it is not read from until it has read
        elif step == "ack":
            _send(client, Ack(kind, packet_id))
            if kind == PUBREL:
                found = packet_id in known
                known.discard(packet_id)
                queued.append((4 if found or not v5 else 5, found or not v5))
            elif kind == PUBREC:
                queued.append((5 if v5 else 4, False))
        else:
            counted = len(known) + sum(counts for _, counts in queued)
            again = kind == 2 and packet_id in known
            if not v5 and counted >= MAXIMUM:
                continue  # 3.1.1 has no Receive Maximum for it to exceed
            _send(client, p.Publish(topic, b"", kind, packet_id=packet_id))
            if not again and counted >= MAXIMUM:
                assert protocol.close_text == f"more than {MAXIMUM} publishes in flight"
                return
            refused = topic == b"$SYS/x" and not again and v5
            told = v5 and topic != b"t" and not again
            if kind == 2 and not refused:
                known.add(packet_id)
            queued.append((5 if told else 4, kind == 1 or refused))
        assert not protocol.close_cause
        assert (session.received_qos2 or set()) == known
        if v5 or not protocol.throttled:
            assert link.send_buffer.unwritten == sum(counts for _, counts in queued)
        assert link.send_buffer.unqueued == 0


@given(st.lists(st.tuples(st.sampled_from((0, 1, 2, PUBACK, PUBREC, PUBCOMP)), IDS, st.booleans()), max_size=80))
def test_what_a_client_acknowledges(steps: list[tuple[int, int, bool]]) -> None:
    """The send quota is the window less what is unacknowledged, whatever a client acknowledges, and never above it.

    A wrong acknowledgement for an identifier in use ends the connection; one for another is ignored, or answered
    [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.3.3-4].
    """
    network = Network()
    publisher, client = network.client("p"), network.client("c", receive_maximum=MAXIMUM)
    client.answering = False
    client.subscribe(Request("q/1", 1), Request("q/2", 2))
    session = client.session
    state: dict[int, str] = {}
    seen = 0
    for kind, packet_id, refuses in steps:
        if kind < PUBACK:
            if kind:
                publisher.publish(f"q/{kind}", b"", kind)
        else:
            now = state.get(packet_id, "")
            client.send(Ack(kind, packet_id, 0x80 if refuses and kind != PUBCOMP else 0))
            network.settle()
            wrong = {PUBACK: ("sent 2", "released"), PUBREC: ("sent 1",), PUBCOMP: ("sent 1", "sent 2")}[kind]
            if now in wrong:
                assert client.end == 0x82
                return
            if kind == PUBREC and now and not refuses:
                state[packet_id] = "released"
            elif now:
                del state[packet_id]
        assert not client.closed
        for packet in client.inbox[seen:]:
            assert packet.packet_id not in state
            state[packet.packet_id] = f"sent {packet.qos}"
        seen = len(client.inbox)
        assert sorted(each.packet_id for each in session.inflight.values()) == sorted(state)
        assert session.window.quota == MAXIMUM - len(state) >= 0
