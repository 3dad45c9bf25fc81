"""QoS 1 and 2 in runs: what is dealt with in one go comes to the same as packet by packet."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V311, Ack, Packet, Publish
from canopy_mqtt.core.queues.send_window import ACK_RUN
from tests.core.harness import Client, Network, limits, total_ledger
from tests.support.runs import examples


def publish(topic: bytes, payload: bytes, qos: int, dup: bool, packet_id: int) -> Publish:
    """A PUBLISH; of QoS 0 without what that has not."""
    return Publish(topic, payload, qos, False, dup and qos > 0, packet_id if qos else 0)


publishes = st.builds(
    publish,
    topic=st.sampled_from((b"t", b"t", b"t", b"u", b"v", b"nobody")),
    payload=st.sampled_from((b"", b"1", b"2", b"22")),
    qos=st.sampled_from((0, 1, 1, 1, 2, 2)),
    dup=st.sampled_from((False, False, True)),
    packet_id=st.integers(1, 6),
)
releases = st.builds(Ack, kind=st.just(p.PUBREL), packet_id=st.integers(1, 6))
streams = st.lists(
    st.one_of(publishes, st.lists(publishes, max_size=1).map(lambda some: some * 5), releases).map(
        lambda one: one if isinstance(one, list) else [one]
    ),
    max_size=30,
)


def heard(client: Client) -> list[tuple[object, ...]]:
    """The packets that a client got, in order."""
    return [
        (each.topic, each.payload, each.qos, each.dup, each.packet_id)
        if isinstance(each, Publish)
        else (each.kind, each.packet_id, each.reason_code)
        for each in client.packets
        if isinstance(each, Publish | Ack)
    ]


def play(
    stream: list[Packet], version: int, window: int, room: int, together: bool, own: bool
) -> tuple[list[Any], Network]:
    """What everybody hears of a stream that comes in one read, or in one for each packet."""
    network = Network(limits(session_messages=room, live_messages=room, max_inflight=window, receive_maximum=20))
    publisher = network.client("p", version)
    listeners = [network.client(name, V5 if name == "v" else V311, clean=False, expiry=9) for name in "tuv"]
    for listener in listeners:
        listener.answering = False
        listener.subscribe(listener.client_id, qos=2 if listener.client_id == "t" else 1)
    if own:
        publisher.subscribe("u", qos=1)
    publisher.answering = False
    publisher.packets.clear()
    raw = [encoder.encode(packet, version) for packet in stream]
    publisher.wire.up += b"".join(raw)
    if not together:
        # What the publisher answers comes behind all of it, as in one read.
        for packet in raw:
            publisher.wire.to_channel(len(packet))
    network.settle()
    got: list[Any] = [heard(client) for client in listeners]
    # Between its acknowledgements and its own messages the order is nobody's business.
    got.append([each for each in heard(publisher) if len(each) == 3])
    got.append([each for each in heard(publisher) if len(each) == 5])
    got.append(publisher.end)
    assert total_ledger(network.router.sessions.values()) == []
    return got, network


@settings(deadline=None, max_examples=examples(60))
@given(
    stream=streams.map(lambda some: [each for one in some for each in one]),
    version=st.sampled_from((V311, V5)),
    window=st.sampled_from((1, 3, 100)),
    room=st.sampled_from((4, 1_000)),
    own=st.booleans(),
)
def test_a_stream_is_answered_in_one_read_as_packet_by_packet(
    stream: list[Packet], version: int, window: int, room: int, own: bool
) -> None:
    """The same acknowledgements in the same order, the same messages, the same end."""
    whole, network = play(stream, version, window, room, True, own)
    apart, other = play(stream, version, window, room, False, own)
    if room > len(stream):
        assert whole == apart
        for name in ("messages_received", "packets_received", "messages_sent"):
            assert getattr(network.router.counters, name) == getattr(other.router.counters, name), name
    else:
        # What is dropped when a queue is full depends on when its writer had its turn, and so does how much is
        # unacknowledged; what is answered does not.
        assert all(one == other for one, other in zip(whole[3], apart[3], strict=False))


def test_runs_of_acknowledgements_of_every_kind() -> None:
    """Longer than one go, with one in between that is unknown, and one that carries a reason code."""
    network = Network(limits(receive_maximum=5_000, max_inflight=5_000))
    publisher = network.client("p")
    subscriber = network.client("s")
    subscriber.answering = False
    subscriber.subscribe("t", qos=2)
    for qos in (1, 2):
        count = ACK_RUN + 6
        for number in range(count):
            publisher.post("t", b"%d" % number, qos)
        network.settle()
        assert len(subscriber.session.inflight) == count
        kinds = (p.PUBACK,) if qos == 1 else (p.PUBREC, p.PUBCOMP)
        for kind in kinds:
            owed = subscriber.unanswered
            assert len(owed) == count
            assert all(isinstance(each, Ack) and each.kind == kind for each in owed)
            # Nobody knows this one: it is passed over, or told so.
            subscriber.unanswered = [*owed[:5], Ack(kind, 65_000), *owed[5:]]
            if kind == p.PUBACK:
                refused = subscriber.unanswered[9]
                assert isinstance(refused, Ack)
                refused.reason_code = 0x97
            subscriber.answer()
            unknown = [each for each in subscriber.acks(p.PUBREL) if each.reason_code == 0x92]
            assert len(unknown) == (0 if kind == p.PUBACK else 1)
            if kind == p.PUBREC:
                # Its PUBREL for nothing is answered with a PUBCOMP for nothing.
                subscriber.unanswered = [each for each in subscriber.unanswered if each.packet_id != 65_000]  # type: ignore[attr-defined]
        assert not subscriber.session.inflight
        assert subscriber.session.window.quota == subscriber.session.window.limit
        subscriber.take()
    assert total_ledger(network.router.sessions.values()) == []
