"""Runs: a burst in one read must do exactly what its packets do one by one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.framing import frame_count
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.bursts import QUEUE_PART, RUN_BYTES, RUN_MESSAGES, longest, same_bytes
from canopy_mqtt.core.routing.router import Router
from tests.core.recount import frames as frames_of
from tests.e2e import wire
from tests.support.losses import dropped_by_cause

TOPICS = ("a/b", "a/c", "a/b/c", "x", "ä/€", "a/" + "long" * 40)
FILTERS = ("a/b", "a/+", "a/#", "#", "x", "+", "ä/€", "$share/g/a/b", "nobody/there")


@dataclass(frozen=True)
class Listener:
    """A subscriber: how it differs from the plain one."""

    topic_filter: str
    version: int
    qos: int
    identifier: bool
    max_packet: int
    aliases: bool


@dataclass(frozen=True)
class Sent:
    """A publish of the burst."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    props: bool


listeners = st.lists(
    st.builds(
        Listener,
        st.sampled_from(FILTERS),
        st.sampled_from([4, 5]),
        st.integers(0, 1),
        st.booleans(),
        st.sampled_from([0, 0, 60]),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=4,
)
bursts = st.lists(
    st.builds(
        Sent,
        st.sampled_from(TOPICS),
        st.sampled_from([b"", b"x", b"same", b"long" * 30, b"y" * 300]),
        st.sampled_from([0, 0, 0, 0, 1]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=40,
)


class Side:
    """A broker's core with its clients."""

    def __init__(self, those: list[Listener], version: int, queue: int, no_local: bool) -> None:
        limits = Limits()
        limits.live_messages = queue
        # When a loss is told depends on what is written together.
        limits.tell_loss = False
        self.router = Router(limits)
        self.clients: list[ServerProtocol] = []
        for number, each in enumerate(those):
            props = [(0x27, each.max_packet)] if each.max_packet else []
            if each.aliases:
                props.append((0x22, 5))
            client = self.join(
                wire.connect(f"c{number}", version=each.version, props=props if each.version == 5 else [])
            )
            mine = [(0x0B, 7)] if each.identifier and each.version == 5 else []
            client.receive(wire.subscribe(1, [(each.topic_filter, each.qos)], mine, version=each.version), 1.0)
            self.clients.append(client)
        self.publisher = self.join(wire.connect("publisher", version=version))
        options = 4 if no_local and version == 5 else 0
        self.publisher.receive(wire.subscribe(1, [("a/b", options)], version=version), 1.0)
        self.clients.append(self.publisher)
        self.written = [b""] * len(self.clients)
        self.take()
        self.written = [b""] * len(self.clients)

    def join(self, connect: bytes) -> ServerProtocol:
        send_buffer = SendBuffer(self.router.peers.touched, self.router.counters, self.router.limits.live_messages, 0)
        made = ServerProtocol(self.router, send_buffer, Origin("nowhere"))
        made.receive(connect, 1.0)
        return made

    def warm(self, version: int) -> None:
        """Have every topic in the match cache, so that the hot path is taken."""
        for topic in TOPICS:
            self.publisher.receive(wire.publish(topic, b"", version=version), 1.0)
            self.finish()
            self.take()
        self.written = [b""] * len(self.clients)

    def take(self, most: int = 1 << 30) -> None:
        for at, client in enumerate(self.clients):
            while batch := client.send_buffer.take_batch(most, 1.0):
                self.written[at] += b"".join(batch)
            client.send_buffer.listed = False
            if client.session is not None:
                client.refill(1.0)

    def finish(self) -> None:
        """What the shell does for a turn that ended early."""
        while self.publisher.unfinished:
            self.take()
            self.publisher.go_on(1.0)

    def ledger(self) -> list[tuple[int, int, list[int]]]:
        found = []
        for client in self.clients:
            session = client.session
            assert session is not None
            found.append((session.offered, client.send_buffer.offered, dropped_by_cause(session)))
        return found


def totals(counters: Counters) -> list[object]:
    return [
        counters.packets_received, counters.messages_received, counters.messages_sent, counters.bytes_received,
        counters.dropped,
    ]  # fmt: skip


def frames(burst: list[Sent], version: int) -> list[bytes]:
    made = []
    for number, each in enumerate(burst):
        props = [(0x26, ("k", "v"))] if each.props and version == 5 else []
        packet_id = number + 1 if each.qos else None
        made.append(
            wire.publish(
                each.topic,
                each.payload,
                qos=each.qos,
                props=props,
                retain=each.retain,
                packet_id=packet_id,
                version=version,
            )
        )
    return made


@given(listeners, bursts, st.sampled_from([4, 5]), st.booleans(), st.booleans())
def test_a_burst_does_what_its_packets_do(
    those: list[Listener], burst: list[Sent], version: int, no_local: bool, warm: bool
) -> None:
    """The same bytes to everybody, the same ledgers and counters, however many packets a read has."""
    whole, single = Side(those, version, 10_000, no_local), Side(those, version, 10_000, no_local)
    if warm:
        whole.warm(version)
        single.warm(version)
    packets = frames(burst, version)
    whole.publisher.receive(b"".join(packets), 1.0)
    whole.finish()
    whole.take()
    for packet in packets:
        single.publisher.receive(packet, 1.0)
        single.finish()
        single.take()
    assert whole.publisher.close_cause == single.publisher.close_cause == ""
    assert [sorted(frames_of(data)) for data in whole.written] == [sorted(frames_of(data)) for data in single.written]
    for ours, theirs, client in zip(whole.written, single.written, whole.clients, strict=True):
        if client is not whole.publisher:
            # The publisher's acknowledgements may stand elsewhere among what it gets.
            assert ours == theirs
    assert whole.ledger() == single.ledger()
    assert totals(whole.router.counters) == totals(single.router.counters)


def test_a_burst_is_one_piece() -> None:
    """What it is all for: one entry in the send buffer, however many messages."""
    side = Side([Listener("a/+", 4, 0, False, 0, False)], 4, 10_000, False)
    side.publisher.receive(wire.unsubscribe(2, ["a/b"], version=4), 1.0)
    side.warm(4)
    packets = [wire.publish(topic, b"%d" % number, version=4) for number in range(30) for topic in ("a/b", "a/c")]
    side.publisher.receive(b"".join(packets), 1.0)
    assert side.clients[0].send_buffer.messages == 60
    assert side.clients[0].send_buffer.take_batch(1 << 20, 1.0) == [b"".join(packets)]


@given(st.data(), st.lists(st.sampled_from([0, 1, 255]), min_size=1, max_size=60).map(bytes))
def test_bytes_are_compared_as_slices_are(draw: st.DataObject, data: bytes) -> None:
    """Any two places and any size: below eight bytes, a whole number of eights, and between."""
    size = draw.draw(st.integers(0, len(data)))
    places = st.integers(0, len(data) - size)
    one, other = draw.draw(places), draw.draw(places)
    assert same_bytes(data, one, other, size) == (data[one : one + size] == data[other : other + size])


def test_how_long_a_run_may_be() -> None:
    side = Side([Listener("x", 4, 0, False, 0, False)], 4, 10_000, False)
    side.warm(4)
    packet = wire.publish("x", b"", version=4)
    side.publisher.receive(packet * (3 * RUN_MESSAGES + 1), 1.0)
    pieces = side.clients[0].send_buffer.take_batch(1 << 30, 1.0)
    assert [frame_count(piece) for piece in pieces] == [RUN_MESSAGES] * 3 + [1]
    large = wire.publish("x", b"x" * 80_000, version=4)
    side.publisher.receive(large * 7, 1.0)
    pieces = side.clients[0].send_buffer.take_batch(1 << 30, 1.0)
    assert b"".join(pieces) == large * 7
    assert max(map(len, pieces)) <= RUN_BYTES
    assert longest(0, RUN_MESSAGES) == RUN_MESSAGES
    assert longest(QUEUE_PART * 5, RUN_MESSAGES) == 5
    assert longest(1, RUN_MESSAGES) == 1


def test_what_is_wrong_in_a_burst_is_found() -> None:
    """A packet that breaks the protocol ends the connection, after what stood before it was routed."""
    for wrong in (b"\x30\x05\x00\x01+ab", b"\x30\x02\x00\x05", b"\x36\x05\x00\x01xab", b"\x30\xff\xff\xff\xff\x01"):
        side = Side([Listener("x", 4, 0, False, 0, False)], 4, 10_000, False)
        side.warm(4)
        packet = wire.publish("x", b"ok", version=4)
        side.publisher.receive(packet * 3 + wrong + packet, 1.0)
        assert side.publisher.close_cause == "protocol-error"
        side.clients[0].send_buffer.listed = False
        assert b"".join(side.clients[0].send_buffer.take_batch(1 << 20, 1.0)) == packet * 3
