"""The metrics of a job's run, as a text file that node_exporter's textfile collector reads.

Promises: the file is replaced in one step, so that nobody reads half of it. After a failure it says so, and keeps the
time of the last run that wrote its results.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from canopy_pipeline.errors import INCOMPLETE

HELP: Final = {
    "canopy_job_end_timestamp_seconds": "The end of the last run, or of the last look of one that goes on.",
    "canopy_job_written_timestamp_seconds": "The end of the last run that wrote its results (exit codes 0 and 3).",
    "canopy_job_duration_seconds": "The time that the last run took, or has taken so far.",
    "canopy_job_exit_code": "0 complete, 1 failed, 2 misused, 3 written with named holes; none of a job that goes on.",
    "canopy_job_segments": "Segments that were read.",
    "canopy_job_events": "Events in these segments.",
    "canopy_job_missing_events": "Events that are missing, as far as they can be counted.",
    "canopy_job_tables_through": "The sequence number up to which the tables have read the record.",
    "canopy_job_tables_lag_seconds": "How long the newest events have waited for the tables, at most.",
    "canopy_job_tables_rows": "Rows of each payload table.",
    "canopy_job_tables_dead_letters": "Dead letters of each payload table, by reason.",
    "canopy_job_erased_events": "Events that the last run erased.",
    "canopy_job_merged_segments": "Segments that the last run merged.",
    "canopy_job_removed_segments": "Segments that the last run removed.",
    "canopy_job_uploaded_segments": "Segments that the last run, or the last look of one that goes on, uploaded.",
    "canopy_job_upload_waiting_segments": "Segments that are not uploaded yet.",
    "canopy_job_upload_waiting_bytes": "Their bytes.",
}

_job: ContextVar[JobMetrics | None] = ContextVar("job metrics", default=None)


class JobMetrics:
    """The metrics of one run."""

    def __init__(self, job: str, file: Path) -> None:
        self._job = job
        self._file = file
        self._begun = time.time()
        self._noted: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def note(self, name: str, value: float, **labels: str) -> None:
        """Set the metric `canopy_job_NAME`."""
        self._noted[f"canopy_job_{name}", tuple(labels.items())] = value

    def write(self, exit_code: int | None = None, *, wrote: bool = True) -> None:
        """Replace the file; without an exit code the job goes on. `wrote`: False if it cannot write its results now.
        Raises OSError."""
        now = time.time()
        self.note("end_timestamp_seconds", now)
        self.note("duration_seconds", now - self._begun)
        if exit_code is not None:
            self.note("exit_code", exit_code)
        written = now if wrote and exit_code in (None, 0, INCOMPLETE) else self._written_before()
        if written is not None:
            self.note("written_timestamp_seconds", written)
        lines = []
        for name, text in HELP.items():
            found = [(labels, value) for (noted, labels), value in self._noted.items() if noted == name]
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"] if found else []
            for labels, value in found:
                named = ",".join(f'{key}="{_escaped(each)}"' for key, each in (("job", self._job), *labels))
                lines.append(f"{name}{{{named}}} {value!r}")
        draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        draft.write_text("\n".join([*lines, ""]))
        # node_exporter runs as another user.
        draft.chmod(0o644)
        draft.replace(self._file)

    def _written_before(self) -> float | None:
        try:
            found = re.search(
                r"^canopy_job_written_timestamp_seconds\{.*\} (\S+)$", self._file.read_text(), re.MULTILINE
            )
            return None if found is None else float(found[1])
        except (OSError, ValueError):
            return None


def note(name: str, value: float, **labels: str) -> None:
    """Set a metric of the job that runs, if its metrics are asked for."""
    if (job := _job.get()) is not None:
        job.note(name, value, **labels)


def write(wrote: bool = True) -> None:
    """Write the metrics of a job that goes on, if they are asked for. `wrote`: see `JobMetrics.write`."""
    if (job := _job.get()) is not None:
        job.write(wrote=wrote)


@contextmanager
def measured(job: str, file: str | None) -> Iterator[None]:
    """Write the metrics of what runs within the block to a file when it ends, with its exit code; None: to no file."""
    if file is None:
        yield
        return
    metrics = JobMetrics(job, Path(file))
    token = _job.set(metrics)
    code: Any = 0
    try:
        yield
    except BaseException as error:
        code = getattr(error, "exit_code", 1)
        raise
    finally:
        _job.reset(token)
        metrics.write(code)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
