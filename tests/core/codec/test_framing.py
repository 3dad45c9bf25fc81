"""`canopy_mqtt.core.codec.framing`: what has begun in a read, and what an incomplete packet may cost."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.framing import Frames
from tests.support.frames import pending_size

LARGEST = 268_435_460
"""Bytes of the largest packet that the protocol knows: five of fixed header and the largest Remaining Length."""


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_what_has_begun_is_what_no_frame_has_had_yet(payloads: list[bytes], data: st.DataObject) -> None:
    """Reads that do not line up with packets."""
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
