"""The process of a broker, as operators control it: rereads its settings, and changes the log's level for a time.

Owns the time after which the log returns to the level of the settings. A program that embeds a broker has its own log
and settings: there is nothing to control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from canopy_mqtt.settings import Settings
    from canopy_mqtt.settings.sections import LogLevel


class Process:
    """The process of one broker. `read`: reads its settings, in a thread; None: there is nothing to read them from."""

    def __init__(
        self,
        read: Callable[[], Settings] | None = None,
        set_level: Callable[[LogLevel], None] | None = None,
    ) -> None:
        """`set_level` sets the log's level; None: the log is not the broker's."""
        self.read = read
        self._set_level = set_level
        self.changed: Callable[[], None] | None = None
        """Called when the level has changed."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def logs(self) -> bool:
        return self._set_level is not None

    def log_at(self, level: LogLevel, seconds: float, after: Callable[[], LogLevel]) -> None:
        """Log at this level for `seconds`, then at the level that `after` returns."""
        self.stop()
        self._apply(level)
        self._timer = asyncio.get_running_loop().call_later(seconds, lambda: self._apply(after()))

    def level(self, level: LogLevel) -> None:
        self.stop()
        self._apply(level)

    def stop(self) -> None:
        """Cancel the timer. The level stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _apply(self, level: LogLevel) -> None:
        if self._set_level is not None:
            self._set_level(level)
        if self.changed is not None:
            self.changed()
