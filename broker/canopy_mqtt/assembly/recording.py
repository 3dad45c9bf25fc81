"""Makes the recorder of a broker, if the settings ask for one and pyarrow is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Recorder as Wanted

if TYPE_CHECKING:
    from canopy_mqtt.record.recorder import Recorder
    from canopy_mqtt.record.writer import Options


def recorder(wanted: Wanted, router: Router, log: Any, workers: int = 1, worker: int = 0) -> Recorder | None:
    """Make the recorder of the settings, or return None. Raises StartupError without pyarrow.

    `worker`: which of so many `workers` the broker is; 1: it is no worker.
    """
    options = _options(wanted)
    if options is None:
        return None
    from canopy_mqtt.record.recorder import Recorder

    return Recorder(options, router, log, workers, worker)


def _options(wanted: Wanted) -> Options | None:
    if not wanted.directory:
        return None
    try:
        from canopy_mqtt.record.writer import Options
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise StartupError(
            "recorder.directory needs pyarrow: in a clone of Canopy run `make setup` or pip install '.[record]'"
        ) from error
    if wanted.table == "delta":
        try:
            import canopy_mqtt.record.files.delta_follower  # noqa: F401  the recorder's thread needs it
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
