"""What a `Frames` has not handed out, as tests ask for it."""

from __future__ import annotations

from broker.core.codec.framing import Frames


def pending_size(frames: Frames) -> int:
    """Bytes fed and not handed out in a frame yet."""
    return frames.held_size - frames.end
