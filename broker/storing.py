"""The store of a broker, seen from outside: what is told when it fails, and when it goes on.

Owns the log lines, two in `LINES_APART` seconds at most, however often a disk comes and goes. Whoever publishes the
state is told of every change. Refuses: to keep anything itself, and to decide what clients are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broker.store.base import StoreListener

if TYPE_CHECKING:
    from broker.net.server import Server

LINES_APART: Final = 10.0
"""Seconds between two lines about failures."""

WRITTEN: Final = "written"
"""The state of a store that keeps what it is told."""


class StoreWatch(StoreListener):
    """Hears from one server's store. `changed` is called when the state may be another."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.changed: Callable[[], None] | None = None
        self.failures = 0
        """How often it began to fail."""
        self._reason = ""
        self._since = 0.0
        # Whether the log knows of this failure; when the next line may be written, and the timer for that.
        self._told = False
        self._next_line = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """WRITTEN, or why it cannot be."""
        return self._reason or WRITTEN

    def failed(self, reason: str) -> None:
        """Tell of it, unless it is known."""
        if reason == self._reason:
            return
        if not self._reason:
            self.failures += 1
            self._since = self._server.loop.time()
        self._reason = reason
        self._tell()
        self._change()

    def recovered(self) -> None:
        """Tell of it where the failure was told of."""
        if not self._reason:
            return
        self._reason = ""
        self.stop()
        if self._told:
            self._told = False
            seconds = round(self._server.loop.time() - self._since, 3)
            self._server.log.warning("store is written again", seconds=seconds, failures=self.failures)
        self._change()

    def figures(self) -> Iterator[tuple[str, object]]:
        """Topic below `$SYS/broker/store/` and value; nothing for a store of the process's own memory."""
        store = self._server.store
        if store is None:
            return
        found = list(store.figures())
        if found:
            yield "state", self.state
            yield "failures", self.failures
            yield from found

    def stop(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        if not self._reason:
            return
        now = self._server.loop.time()
        if now >= self._next_line:
            self._next_line = now + LINES_APART
            self._told = True
            self._server.log.error("store cannot be written", reason=self._reason, failures=self.failures)
        elif self._timer is None:
            self._timer = self._server.loop.call_at(self._next_line, self._tell)

    def _change(self) -> None:
        if self.changed is not None:
            self.changed()
