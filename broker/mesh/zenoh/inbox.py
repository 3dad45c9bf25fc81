"""What Zenoh's threads hear for the event loop: it is woken once for all that came until it looks.

Owns what waits, bounded for each source: what a source has waiting beyond is dropped, and counted. Every call but
`take` may come from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

Payload = bytes | bool
"""A frame or a greeting; or whether a process is there."""


class Inbox:
    """From threads to the event loop. `look` is called there soon after something came; it is to `take`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None], bound: int) -> None:
        self.dropped = 0
        """Pieces that did not fit."""
        self._loop = loop
        self._look = look
        self._bound = bound
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, Payload]] = []
        self._sizes: dict[str, int] = {}
        self._woken = False

    def put(self, source: str, payload: Payload, size: int) -> None:
        """Something came; `size`: what it counts of the bound, in bytes."""
        with self._lock:
            held = self._sizes.get(source, 0) + size
            if held > self._bound:
                self.dropped += 1
                return
            self._sizes[source] = held
            self._waiting.append((source, payload))
            if self._woken:
                return
            self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody looks any more
            self._loop.call_soon_threadsafe(self._look)

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def take(self) -> list[tuple[str, Payload]]:
        """All that waits, in order."""
        with self._lock:
            taken = self._waiting
            self._waiting = []
            self._sizes = {}
            self._woken = False
        return taken
