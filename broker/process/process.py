"""What an operator may ask of the process that a broker runs in: to read its settings again, to log more for a time.

Owns the time after which the log's level is the one of the settings again. A program that embeds a broker has a log and
settings of its own: there is nothing to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from broker.settings import Settings

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Process:
    """The process of one broker. `read`: reads its settings, in a thread; None: there are none to read."""

    def __init__(
        self,
        read: Callable[[], Settings] | None = None,
        set_level: Callable[[Level], None] | None = None,
    ) -> None:
        """`set_level` sets the log's level; None: the log is not the broker's."""
        self.read = read
        self._set_level = set_level
        self.changed: Callable[[], None] | None = None
        """Called when the level is another."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def logs(self) -> bool:
        return self._set_level is not None

    def log_at(self, level: Level, seconds: float, after: Callable[[], Level]) -> None:
        """Log at this level for so long, then at the one that `after` names."""
        self.stop()
        self._apply(level)
        self._timer = asyncio.get_running_loop().call_later(seconds, lambda: self._apply(after()))

    def level(self, level: Level) -> None:
        self.stop()
        self._apply(level)

    def stop(self) -> None:
        """Leave no timer behind. The level stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _apply(self, level: Level) -> None:
        if self._set_level is not None:
            self._set_level(level)
        if self.changed is not None:
            self.changed()
