"""The broker's log, and its lines about exceptions that a guard has stopped.

`Log` writes to the host's structlog if the program has set that up, otherwise to the standard library's logger
`canopy`. The broker adds no handler and sets no level: the host decides what is shown. `Faults` counts the exceptions
of hooks, timers and single connections by place. It logs each kind once with its traceback, and the others as a number,
at most one line for a place and interval.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from canopy_mqtt.guards.hook_guards import HookReporter

NAME: Final = "canopy"
"""The logger, for structlog and for `logging`."""

INTERVAL: Final = 60.0
"""Seconds between two lines about one place whose exceptions go on: a hook may raise for every message."""

LOG: Final = "log"
"""The place of exceptions of the log itself."""

TRACES: Final = 256
"""Kinds of exceptions that have one trace each in the log; the log has only the number of further ones."""


class Log:
    """Writes events with their fields. No call raises, whatever the host's handlers do."""

    def __init__(self) -> None:
        # A program that has set it up has imported it; no other needs it.
        structlog: Any = sys.modules.get("structlog")
        self._structlog: Any = structlog.get_logger(NAME) if structlog and structlog.is_configured() else None
        self._logging = logging.getLogger(NAME)
        if self._structlog is None and not self._logging.handlers:
            # As every library: a host that has not configured logging gets no lines, not even by `lastResort`.
            self._logging.addHandler(logging.NullHandler())
        self.failed = 0
        """Lines that raised in the host's handlers."""

    def debug(self, event: str, **fields: Any) -> None:
        self._line("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._line("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._line("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._line("error", event, fields)

    def is_enabled_for(self, level: int) -> bool:
        """Return whether lines of a level (of `logging`) are written anywhere; True if that cannot be asked."""
        if self._structlog is None:
            return self._logging.isEnabledFor(level)
        asked = getattr(self._structlog, "is_enabled_for", None)
        return asked is None or bool(asked(level))

    def _line(self, level_name: str, event: str, fields: dict[str, Any]) -> None:
        try:
            level = getattr(logging, level_name.upper())
            if self._structlog is not None:
                getattr(self._structlog, level_name)(event, **fields)
            elif self._logging.isEnabledFor(level):
                error = fields.pop("exc_info", None)
                # As repr: what a client sends can neither end the line nor steer a terminal.
                text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
                self._logging.log(level, "%s", text, exc_info=error, extra={"event": event, "fields": fields})
        except Exception:
            # There is no other place that could report it.
            self.failed += 1


class Faults(HookReporter):
    """Counts caught exceptions, which would otherwise stay unnoticed, by the place where they were caught."""

    def __init__(self, log: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`log` returns the log that is written to at the time."""
        super().__init__()
        self._log = log
        self._clock = clock
        self.counts: dict[str, int] = {}
        self.slow_calls = 0
        self._told: set[tuple[str, str]] = set()
        self._unreported: dict[str, int] = {}
        self._report_at: dict[str, float] = {}
        self._slow_at = 0.0

    def watch(self, place: str) -> None:
        """Show the count of a place from the start on, as 0 until something happens."""
        self.counts.setdefault(place, 0)

    def failed(self, hook: str, error: Exception) -> None:
        """Count and log that a hook has raised (`hook_guards`)."""
        self._note(hook, "a hook failed", error, {"hook": hook})

    def broke(self, place: str, error: Exception, **fields: Any) -> None:
        """Count and log that something of the broker's own has raised: a timer, or the code of one connection."""
        self._note(place, "internal error", error, {"place": place, **fields})

    def _note(self, place: str, event: str, error: Exception, fields: dict[str, Any]) -> None:
        """Count an exception. Log it with its trace when it is the first of its kind at this place."""
        self.counts[place] = self.counts.get(place, 0) + 1
        kind = (place, _where(error))
        now = self._clock()
        if kind not in self._told and len(self._told) < TRACES:
            self._told.add(kind)
            self._say("error", event, exc_info=error, **fields)
            self._report_at.setdefault(place, now + INTERVAL)
            return
        self._unreported[place] = self._unreported.get(place, 0) + 1
        if now >= self._report_at.get(place, 0.0):
            self._report_at[place] = now + INTERVAL
            count = self._unreported.pop(place)
            self._say(
                "error", f"{event}, again", count=count, total=self.counts[place], error=repr(error)[:256], **fields
            )

    def slow(self, hook: str, call: str, seconds: float) -> None:
        """Log that a hook kept the event loop waiting, in at most one line for an interval."""
        self.slow_calls += 1
        now = self._clock()
        if now >= self._slow_at:
            self._slow_at = now + INTERVAL
            self._say(
                "warning",
                "a hook keeps the event loop waiting",
                hook=hook,
                call=call,
                seconds=round(seconds, 3),
                total=self.slow_calls,
            )

    def _say(self, method: str, event: str, **fields: Any) -> None:
        try:
            getattr(self._log(), method)(event, **fields)
        except Exception:
            # Nothing else could report a log that raises.
            self.counts[LOG] = self.counts.get(LOG, 0) + 1


def _where(error: Exception) -> str:
    """Return the type of an exception, and the line that raised it."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{type(error).__name__} {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
