"""How the daemon logs: lines for people on a terminal, JSON objects elsewhere, on standard error.

Owns: the structlog and `logging` set-up of the `canopy` command.

Promises: a line below the level costs one call of an empty method. One event is one line, and nothing that a client
sends (its identifier, a topic) can end the line or steer a terminal. Anything can be logged; what JSON does not know
(bytes, addresses) is written as its `repr`. What the standard library logs (asyncio's complaints) comes out in the same
form.

Refuses: to be imported by the library. Broker code calls `structlog.get_logger()` and nothing more; only the command
calls `configure`, so that a program which embeds the broker keeps its own logging.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, Literal, TextIO, TypeAlias, cast

import structlog
from structlog.typing import Processor

from broker.logwriter import BackgroundWriter

Stream: TypeAlias = TextIO | BackgroundWriter
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json"]

LEVELS: Final[dict[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: Level = "info", format: Format = "auto", stream: Stream | None = None) -> None:  # noqa: A002
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
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
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
    # asyncio tells at debug and info what no operator wants; its warnings and errors are worth a line.
    root.setLevel(max(LEVELS[level], logging.WARNING))


def _renderer(format: Format, target: Stream) -> list[Processor]:  # noqa: A002
    terminal = target.isatty()
    if format == "console" or (format == "auto" and terminal):
        colours = terminal and "NO_COLOR" not in os.environ
        return [
            structlog.dev.ConsoleRenderer(
                colors=colours,
                exception_formatter=structlog.dev.plain_traceback,
                repr_native_str=True,  # a client may call itself an escape sequence
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]
