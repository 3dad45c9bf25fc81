"""The recorder put into a broker, or before its workers, where the settings ask for one and what it needs is there."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from broker.core.routing.router import Router
from broker.net.listening.listeners import StartupError
from broker.settings import Recorder as Wanted

if TYPE_CHECKING:
    from broker.record.recorder import Recorder
    from broker.record.workers.gathering import Gathering
    from broker.record.writer import Options

Gathered: TypeAlias = tuple[socket.socket | None, str]
"""Where a worker's events go, in place of a folder (`broker.record.workers.sending`)."""


def recorder(wanted: Wanted, router: Router, log: Any, gathered: Gathered | None = None) -> Recorder | None:
    """The recorder of the settings, if they ask for one. Raises StartupError without pyarrow.

    `gathered`: who records for several workers writes what this one sends.
    """
    options = _options(wanted)
    if options is None:
        return None
    from broker.record.recorder import Recorder
    from broker.record.workers.sending import Sending

    return Recorder(options, router, log, None if gathered is None else Sending(*gathered))


async def start_recording(wanted: Wanted, workers: int, log: Any, broken: Callable[[str], None]) -> Gathering | None:
    """Record for so many workers, if the settings ask for it. `broken` is told why it must not go on without a record.

    Raises:
        StartupError: without pyarrow, or without a record where one is required.
    """
    options = _options(wanted)
    if options is None:
        return None
    from broker.record.workers.gathering import Gathering

    made = Gathering(options, workers, log, broken if wanted.required else lambda _: None)
    await made.start()
    if wanted.required and made.failure:
        raise StartupError(f"recorder.required: {made.failure}")
    return made


def _options(wanted: Wanted) -> Options | None:
    if not wanted.directory:
        return None
    try:
        from broker.record.writer import Options
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise StartupError(
            "recorder.directory needs pyarrow: in a clone of Canopy run `make setup` or pip install '.[record]'"
        ) from error
    if wanted.table == "delta":
        try:
            import broker.record.files.delta  # noqa: F401  the recorder's thread needs it
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "deltalake":
                raise
            raise StartupError(
                'recorder.table = "delta" needs deltalake 1.6 or newer: in a clone of Canopy run `make setup` or '
                "pip install '.[record,delta]'"
            ) from error
    return Options(
        Path(wanted.directory),
        tuple(wanted.filters),
        wanted.payloads,
        wanted.deliveries,
        wanted.segment_bytes,
        wanted.segment_seconds,
        wanted.queue_events,
        wanted.queue_bytes,
        wanted.snapshot_seconds,
        wanted.draft_seconds,
        wanted.table,
    )
