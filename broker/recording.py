"""The recorder put into a broker, where the settings ask for one and what it needs is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.core.routing.router import Router
from broker.net.listening.listeners import StartupError
from broker.settings import Recorder as Wanted

if TYPE_CHECKING:
    from broker.record.recorder import Recorder
    from broker.record.writer import Options


def recorder(wanted: Wanted, router: Router, log: Any) -> Recorder | None:
    """The recorder of the settings, if they ask for one. Raises StartupError without pyarrow."""
    options = _options(wanted)
    if options is None:
        return None
    from broker.record.recorder import Recorder

    return Recorder(options, router, log)


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
        wanted.when_full,
        wanted.hold_timeout,
    )
