"""`canopy_mqtt.core.codec.framing`: reads into frames, the fixed header, and what an incomplete packet may cost."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.framing import Frames
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.core.codec.primitives import varint
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, PacketTooLarge
from tests.support.frames import pending_size
from tests.support.runs import for_each

LARGEST = 268_435_460
"""Bytes of the largest packet that the protocol knows: five of fixed header and the largest Remaining Length."""


def drain(frames: Frames) -> list[bytes]:
    """Every packet that is whole, as its bytes."""
    found = []
    while frames.next_frame():
        found.append(frames.buffer[frames.start : frames.end])
    return found


class TestReads:
    """Reads that do not line up with packets."""

    def test_several_reads_before_packets_are_taken(self) -> None:
        frames = Frames(100, 4)
        frames.feed(b"\xc0\x00\x40\x02\x00\x01")
        frames.feed(b"\xc0\x00\x40")
        assert frames.next_frame()
        frames.feed(b"\x02\x00\x02")
        assert drain(frames) == [b"\x40\x02\x00\x01", b"\xc0\x00", b"\x40\x02\x00\x02"]

    def test_empty_read(self) -> None:
        frames = Frames(100, 4)
        frames.feed(b"")
        assert drain(frames) == []
        frames.feed(b"\xc0")
        frames.feed(b"")
        assert drain(frames) == []
        frames.feed(b"\x00")
        assert drain(frames) == [b"\xc0\x00"]

    def test_nothing_is_kept_of_what_is_decoded(self) -> None:
        frames = Frames(1 << 20, 4)
        frames.feed(b"\xc0\x00" * 1000)
        assert len(drain(frames)) == 1000
        assert frames.buffer == b""

    @given(st.lists(st.binary(max_size=40), max_size=6), st.data())
    def test_what_has_begun_is_what_no_frame_has_had_yet(self, payloads: list[bytes], data: st.DataObject) -> None:
        stream = b"".join(bytes((0x30, len(payload))) + payload for payload in payloads)
        frames = Frames(1_000, 4)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        taken = fed = 0
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            frames.feed(stream[start:end])
            fed = end
            # Perhaps the turn ends before the read is through.
            for _ in range(data.draw(st.integers(0, 8))):
                if not frames.next_frame():
                    break
                taken += frames.end - frames.start
            assert frames.begun() == stream[taken:fed]


class TestFixedHeader:
    """Types, flags and lengths, section 2.1."""

    @for_each("version", [0, 4, 5])
    def test_flags(self, version: int) -> None:
        """[MQTT-2.1.3-1] [MQTT3-2.2.2-2]: only PUBLISH has flags that vary, and of those only QoS 3 is refused.

        A CONNECT may have some as long as it is not known to be one of 3.1.
        """
        accepted = set()
        for header in range(256):
            frames = Frames(100, version)
            frames.feed(bytes((header, 0)))
            try:
                assert frames.next_frame()
            except MalformedPacket:
                continue
            accepted.add(header)
        fixed = {0x10, 0x20, 0x40, 0x50, 0x62, 0x70, 0x82, 0x90, 0xA2, 0xB0, 0xC0, 0xD0, 0xE0}
        if version != 4:
            fixed.add(0xF0)
        if version == 0:
            fixed |= set(range(0x10, 0x20))
        assert accepted == fixed | {0x30 + flags for flags in range(16) if flags & 6 != 6}


class TestLimits:
    """What a peer can cost."""

    def test_a_declared_length_allocates_nothing(self) -> None:
        frames = Frames(LARGEST, 4)
        tracemalloc.start()
        try:
            frames.feed(b"\x30\xff\xff\xff\x7f\x00")
            assert not frames.next_frame()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 64 * 1024
        assert pending_size(frames) == 6

    def test_a_packet_that_trickles_in_takes_no_more_memory_than_its_size(self) -> None:
        frames = Frames(1 << 20, 4)
        frames.feed(b"\x30\x80\x80\x20")
        assert not frames.next_frame()
        tracemalloc.start()
        try:
            for index in range(20_000):
                frames.feed(bytes((index & 63, 99)))
                assert not frames.next_frame()
            now, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert pending_size(frames) == 40_004
        assert now < 60_000

    def test_a_packet_that_trickles_in_byte_by_byte(self) -> None:
        payload = bytes(range(256)) * 300
        raw = encode(Publish(b"t", payload), 4)
        frames = Frames(1 << 20, 4)
        found: list[bytes] = []
        for index in range(len(raw)):
            frames.feed(raw[index : index + 1])
            found.extend(drain(frames))
        assert found == [raw]

    @for_each("excess", [-1, 0, 1])
    def test_maximum_packet_size_counts_the_whole_packet(self, excess: int) -> None:
        raw = encode(Publish(b"t", b"x" * (200 + excess)), 4)
        frames = Frames(206, 4)
        assert len(raw) == 206 + excess
        frames.feed(raw)
        if excess <= 0:
            assert frames.next_frame()
        else:
            with pytest.raises(PacketTooLarge):
                frames.next_frame()

    def test_maximum_packet_size_may_change(self) -> None:
        frames = Frames(10, 4)
        frames.feed(b"\xc0\x00" + encode(Publish(b"t", b"x" * 100), 4))
        assert frames.next_frame()
        frames.max_packet_size = 200
        assert frames.next_frame()

    @for_each("length", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
    def test_every_size_of_remaining_length(self, length: int) -> None:
        """[MQTT-1.5.5-1] written and read at both sides of every step."""
        frames = Frames(LARGEST, 4)
        frames.feed(b"\x30" + varint(length) + b"\x00" * length)
        assert frames.next_frame()
        assert frames.end - frames.body == length
