"""A watch: a connection's bytes become packets however they are cut, and a fault of it harms nobody."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.net.connections.ends import OPEN
from canopy_mqtt.observe.trace.packet_watch import MAX_KNOWN_TOPICS, PacketSink, PacketWatch, packet_size, topic_alias
from tests.e2e import wire
from tests.support.runs import examples

EVERY = 1
TOPICAL = 2


class Kept(PacketSink):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[tuple[bool, bytes, int, int]] = []
        self.asked: list[bytes] = []
        self.ended: list[bool] = []
        self.errors: list[Exception] = []
        self.fails = False

    def packet(self, inward: bool, data: bytes, size: int, mask: int) -> None:
        if self.fails:
            raise RuntimeError("no")
        self.packets.append((inward, data, size, mask))

    def wanting(self, topic: bytes) -> int:
        self.asked.append(topic)
        return TOPICAL if topic.startswith(b"wanted") else 0

    def asking(self, data: bytes) -> int:
        return TOPICAL if b"wanted" in data else 0

    def unreadable(self, inward: bool) -> None:
        self.ended.append(inward)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class Decoder:
    def __init__(self, begun: bytes) -> None:
        self._begun = begun

    def begun(self) -> bytes:
        return self._begun


class Below:
    """A transport, a stream and a connection, as far as a watch knows them."""

    def __init__(self, begun: bytes = b"") -> None:
        self.stream = self.transport = self.protocol = self
        self.version = 0
        self.state = OPEN
        self.decoder = Decoder(begun)
        self.upper: Any = self
        self.send: Any = self.write
        self.read: list[bytes] = []
        self.written: list[bytes] = []

    def set_protocol(self, protocol: Any) -> None:
        self.upper = protocol

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def data_received(self, data: bytes) -> None:
        self.read.append(data)


def watching(begun: bytes = b"", most: int = 1_000, every: int = EVERY, topical: bool = False) -> tuple[Any, Kept, Any]:
    below, sink = Below(begun), Kept()
    watch = PacketWatch(below, sink, {}, most)
    watch.every, watch.topical = every, topical
    watch.begin()
    return below, sink, watch


packets = st.one_of(
    st.builds(wire.publish, st.just("a/b"), st.binary(max_size=300)),
    st.just(b"\xc0\x00"),
    st.builds(lambda packet_id: wire.ack(wire.PUBACK, packet_id), st.integers(1, 65_535)),
)


class TestCutting:
    @given(st.lists(packets, max_size=8), st.data())
    @settings(max_examples=examples(300), deadline=None)
    def test_reads_cut_anywhere_are_the_same_packets(self, sent: list[bytes], data: st.DataObject) -> None:
        stream = b"".join(sent)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
        reads = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        below, sink, _ = watching(most=100)
        for read in reads:
            below.upper.data_received(read)
            below.send(read)
        told = [(packet[:100], len(packet), EVERY) for packet in sent]
        assert [one[1:] for one in sink.packets if one[0]] == told
        assert [one[1:] for one in sink.packets if not one[0]] == told
        assert below.read == below.written == reads

    def test_it_begins_where_the_connection_stands(self) -> None:
        """The connection holds the beginning of a packet, and what it has not come to act on."""
        whole = wire.publish("a", b"x" * 50)
        below, sink, _ = watching(begun=b"\xc0\x00" + whole[:20])
        below.upper.data_received(whole[20:] + b"\xc0\x00")
        assert [one[1] for one in sink.packets] == [b"\xc0\x00", whole, b"\xc0\x00"]

    def test_of_a_long_packet_no_more_than_the_beginning_is_held(self) -> None:
        below, sink, watch = watching(most=64)
        whole = wire.publish("a", bytes(1_000_000))
        for at in range(0, len(whole), 4_096):
            below.upper.data_received(whole[at : at + 4_096])
            assert len(watch._in.part) <= 64
        assert sink.packets == [(True, whole[:64], len(whole), EVERY)]

    def test_what_is_no_packet_ends_the_looking_in_that_direction(self) -> None:
        below, sink, _ = watching()
        below.upper.data_received(b"\x10\xff\xff\xff\xff\xff")
        below.upper.data_received(b"\xc0\x00")
        below.send(b"\xd0\x00")
        assert sink.ended == [True]
        assert [one[1] for one in sink.packets] == [b"\xd0\x00"]
        assert len(below.read) == 2

    def test_a_fault_of_the_sink_ends_the_looking_and_nothing_else(self) -> None:
        below, sink, _ = watching()
        sink.fails = True
        below.upper.data_received(b"\xc0\x00")
        below.send(b"\xd0\x00")
        assert [str(error) for error in sink.errors] == ["no"]
        assert below.read == [b"\xc0\x00"]
        assert below.written == [b"\xd0\x00"]

    def test_in_the_end_the_connection_has_its_place_back(self) -> None:
        below, _, watch = watching()
        assert below.upper is watch
        watch.end()
        watch.end()
        assert below.upper is below
        assert below.send == below.write

    @given(st.binary(min_size=1, max_size=8))
    def test_sizes_are_those_of_the_specification(self, data: bytes) -> None:
        size = packet_size(data, 0, len(data))
        digits = data[1:5]
        ends = [at for at, digit in enumerate(digits) if digit < 128]
        if ends:
            value = sum((digit & 127) << 7 * at for at, digit in enumerate(digits[: ends[0] + 1]))
            assert size == 2 + ends[0] + value
        else:
            assert size == (-1 if len(digits) == 4 else 0)


class TestTopics:
    """A trace that is about topics gets what goes with them, and nothing else."""

    def told(self, sink: Kept) -> list[str]:
        return [f"{'in' if one[0] else 'out'} {wire.NAMES[one[1][0] >> 4]}" for one in sink.packets]

    def test_a_publish_and_its_acknowledgements(self) -> None:
        below, sink, _ = watching(every=0, topical=True)
        below.upper.data_received(wire.publish("wanted/1", b"", version=4, qos=2, packet_id=9))
        below.upper.data_received(wire.publish("other", b"", version=4, qos=1, packet_id=10))
        below.send(wire.ack(wire.PUBREC, 9) + wire.ack(wire.PUBACK, 10))
        below.upper.data_received(wire.ack(wire.PUBREL, 9))
        below.send(wire.ack(wire.PUBCOMP, 9))
        # The identifier is free again, and the broker's own is another's.
        below.send(wire.ack(wire.PUBCOMP, 9))
        below.upper.data_received(wire.ack(wire.PUBACK, 9))
        assert self.told(sink) == ["in PUBLISH", "out PUBREC", "in PUBREL", "out PUBCOMP"]

    def test_an_identifier_that_is_used_again_is_not_the_same_packet(self) -> None:
        below, sink, _ = watching(every=0, topical=True)
        below.upper.data_received(wire.publish("wanted", b"", version=4, qos=1, packet_id=9))
        below.upper.data_received(wire.publish("other", b"", version=4, qos=1, packet_id=9))
        below.send(wire.ack(wire.PUBACK, 9))
        assert self.told(sink) == ["in PUBLISH"]

    def test_subscribing_to_it(self) -> None:
        below, sink, _ = watching(every=0, topical=True)
        below.upper.data_received(wire.subscribe(1, [("wanted/#", 0)]) + wire.subscribe(2, [("x", 0)]))
        below.send(wire.packet(wire.SUBACK, 0, b"\0\2\0\0") + wire.packet(wire.SUBACK, 0, b"\0\1\0\0"))
        assert self.told(sink) == ["in SUBSCRIBE", "out SUBACK"]
        assert sink.packets[1][1][2:4] == b"\0\1"

    def test_topic_aliases_are_the_topics_that_they_stand_for(self) -> None:
        below, sink, _ = watching(every=0, topical=True)
        below.upper.data_received(wire.connect("c"))
        user = (wire.USER_PROPERTY, ("a", "b"))
        below.upper.data_received(wire.publish("wanted", b"1", props=[user, (wire.TOPIC_ALIAS, 3)]))
        below.upper.data_received(wire.publish("other", b"2", props=[(wire.TOPIC_ALIAS, 4)]))
        below.upper.data_received(wire.publish("", b"3", props=[(wire.TOPIC_ALIAS, 3)]))
        below.upper.data_received(wire.publish("", b"4", props=[(wire.TOPIC_ALIAS, 4)]))
        # In the other direction they are others.
        below.send(wire.publish("", b"5", props=[(wire.TOPIC_ALIAS, 3)]))
        assert [one[1][-1:] for one in sink.packets] == [b"1", b"3"]

    def test_topics_are_asked_about_once_and_only_so_many_are_remembered(self) -> None:
        below, sink, watch = watching(every=0, topical=True)
        for _ in range(3):
            below.upper.data_received(wire.publish("wanted", version=4))
        assert sink.asked == [b"wanted"]
        long = "x" * 1_000
        below.upper.data_received(wire.publish(long, version=4) * 2)
        assert sink.asked[1:] == [long.encode()] * 2
        for number in range(MAX_KNOWN_TOPICS + 10):
            below.upper.data_received(wire.publish(f"t/{number}", version=4))
        assert len(watch._known) <= MAX_KNOWN_TOPICS

    @given(st.binary(max_size=60))
    @settings(max_examples=examples(500), deadline=None)
    def test_nothing_that_is_sent_makes_it_fail_for_the_client(self, data: bytes) -> None:
        below, _, _ = watching(every=0, topical=True)
        below.upper.data_received(wire.connect("c"))
        below.upper.data_received(wire.publish("wanted", b"", qos=1, packet_id=1))
        below.upper.data_received(data)
        below.send(data)
        assert below.read[-1] == data
        assert below.written[-1] == data

    def test_where_an_alias_stands(self) -> None:
        section = wire.properties([(wire.MESSAGE_EXPIRY, 5), (wire.SUBSCRIPTION_ID, 400), (wire.TOPIC_ALIAS, 77)])
        assert topic_alias(section, 0, len(section)) == 77
        assert topic_alias(b"\0", 0, 1) == 0
        # Of a long packet only the beginning is kept; and a client may send what is no property.
        assert topic_alias(section, 0, len(section) - 1) == 0
        assert topic_alias(b"\3\x7f\0\1", 0, 4) == 0
