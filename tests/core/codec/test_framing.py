"""`canopy_mqtt.core.codec.framing`: what an incomplete packet may cost."""

from __future__ import annotations

import tracemalloc

from canopy_mqtt.core.codec.framing import Frames
from tests.support.frames import pending_size

LARGEST = 268_435_460
"""Bytes of the largest packet that the protocol knows: five of fixed header and the largest Remaining Length."""


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
