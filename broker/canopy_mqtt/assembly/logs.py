"""Configures the log of the `canopy` command: lines for people on a terminal, JSON objects elsewhere, on standard
error.

A line below the level costs one call of an empty method. One event is one line, and no text of a client (its
identifier, a topic) can end the line or control a terminal. Types that JSON does not know (bytes, addresses) are
written as their `repr`. The lines of the standard library's log look the same, and so do those that go to `json_write`,
in the order of all. Only the command calls `configure`: a program that embeds the broker keeps its own logging.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, cast

import structlog

from canopy_mqtt.assembly.logwriter import BackgroundWriter

if TYPE_CHECKING:
    from structlog.typing import Processor

    from canopy_mqtt.settings.sections import LogLevel

Stream: TypeAlias = TextIO | BackgroundWriter
Format: TypeAlias = Literal["auto", "console", "json"]

LEVELS: Final[dict[LogLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Configured:
    """The log as the last `configure` has set it up."""

    def __init__(self) -> None:
        # The class of all loggers, so that their level can be changed.
        self.bound: type[Any] | None = None
        self.write: Callable[[str], object] | None = None

    def begin(self, level: LogLevel) -> type[Any]:
        """Make a class of loggers for a new configuration."""
        self.bound = type("Logger", (structlog.make_filtering_bound_logger(LEVELS[level]),), {})
        return self.bound


_configured: Final = _Configured()


def set_level(level: LogLevel) -> None:
    """Change the level of the log that `configure` has set up: give its loggers, those in use too, the methods of this
    level. Without it, nothing happens."""
    if _configured.bound is not None:
        for name, member in vars(structlog.make_filtering_bound_logger(LEVELS[level])).items():
            if not name.startswith("__"):
                setattr(_configured.bound, name, member)
        logging.getLogger().setLevel(_root_level(level))


def json_write() -> Callable[[str], object] | None:
    """Return the function that takes lines of the log that `configure` has set up; None: they are no JSON."""
    return _configured.write


def _root_level(level: LogLevel) -> int:
    # asyncio tells at debug and info what no operator wants; its warnings and errors are worth a line.
    return max(LEVELS[level], logging.WARNING)


def configure(
    level: LogLevel = "info",
    format: Format = "auto",  # noqa: A002
    stream: Stream | None = None,
) -> None:
    """Send logs of this process to `stream` (standard error when None), from `level` upwards.

    May be called again; the last call counts for loggers that have not been used yet.
    """
    target = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    final = _renderer(format, target)
    _configured.write = None if for_people(format, target) else target.write
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=_configured.begin(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, target)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_root_level(level))
    # OpenTelemetry logs each attempt to reach a collector that is away; the broker says so once (`observe.spans`).
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


def for_people(format: Format, target: Stream) -> bool:  # noqa: A002
    """Return True if people read this format on this stream, and not programs."""
    return format == "console" or (format == "auto" and target.isatty())


def _renderer(format: Format, target: Stream) -> list[Processor]:  # noqa: A002
    if for_people(format, target):
        colours = target.isatty() and "NO_COLOR" not in os.environ
        return [
            structlog.dev.ConsoleRenderer(
                colors=colours,
                # As they are written where they are logged: the client comes first.
                sort_keys=False,
                exception_formatter=structlog.dev.plain_traceback,
                repr_native_str=True,  # a client may call itself an escape sequence
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]
