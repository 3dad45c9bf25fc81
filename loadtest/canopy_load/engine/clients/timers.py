"""Timers of the event loop by name: at most one of each name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """The timers of one client. `clear` leaves none behind."""

    def __init__(self) -> None:
        self.handles: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.handles

    def set(self, name: str, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        """Call after so many seconds, in place of the timer of that name."""
        self.cancel(name)
        self.handles[name] = asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def cancel(self, name: str) -> None:
        handle = self.handles.pop(name, None)
        if handle is not None:
            handle.cancel()

    def clear(self) -> None:
        for name in list(self.handles):
            self.cancel(name)
