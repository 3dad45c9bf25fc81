"""The event loop of the load generator."""

from __future__ import annotations

from typing import Any


def loop_factory() -> Any:
    """Return the function that makes event loops; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
