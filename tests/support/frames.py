"""Counts the bytes that a `Frames` holds, for tests."""

from __future__ import annotations

from canopy_mqtt.core.codec.framing import Frames


def pending_size(frames: Frames) -> int:
    """Bytes fed and not handed out in a frame yet."""
    return frames.held_size - frames.end
