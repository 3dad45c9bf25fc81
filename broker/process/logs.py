"""How the `canopy` command logs: lines for people on a terminal, JSON objects elsewhere, on standard error.

A line below the level costs one call of an empty method. One event is one line, and nothing that a client sends (its
identifier, a topic) can end the line or steer a terminal. What JSON does not know (bytes, addresses) is written as its
`repr`. What the standard library logs comes out in the same form. Only the command calls `configure`: a program which
embeds the broker keeps its own logging.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, cast

import structlog

from broker.process.logwriter import BackgroundWriter

if TYPE_CHECKING:
    from structlog.typing import Processor

Stream: TypeAlias = TextIO | BackgroundWriter
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json"]

LEVELS: Final[dict[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Levels:
    """The methods of all loggers that one call of `configure` stands behind, so that their level can be changed."""

    def __init__(self) -> None:
        self.bound: type[Any] | None = None

    def begin(self, level: Level) -> type[Any]:
        """A class of loggers of its own, for a new configuration."""
        self.bound = type("Logger", (structlog.make_filtering_bound_logger(LEVELS[level]),), {})
        return self.bound

    def set(self, level: Level) -> None:
        """Give the loggers of the last configuration, those in use too, the methods of this level."""
        if self.bound is not None:
            for name, member in vars(structlog.make_filtering_bound_logger(LEVELS[level])).items():
                if not name.startswith("__"):
                    setattr(self.bound, name, member)
            logging.getLogger().setLevel(_root_level(level))


_levels: Final = _Levels()


def set_level(level: Level) -> None:
    """Change the level of what `configure` has set up. Without it, nothing happens."""
    _levels.set(level)


def _root_level(level: Level) -> int:
    # asyncio tells at debug and info what no operator wants; its warnings and errors are worth a line.
    return max(LEVELS[level], logging.WARNING)


def configure(
    level: Level = "info",
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
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=_levels.begin(level),
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
    # It tells of each try to reach a collector that is away; the broker says so once (`observe.spans`).
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


def for_people(format: Format, target: Stream) -> bool:  # noqa: A002
    """Whether lines in this format, on this stream, are read by people and not by programs."""
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


def open_missing_streams() -> None:
    """Put /dev/null in the place of each standard stream that is closed. Call it before anything else is opened."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
