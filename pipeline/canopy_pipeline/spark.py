"""Canopy for a Spark program: MQTT as a source and a sink, and the record of a broker as a DataFrame.

Owns: the public names, which `__all__` lists and which stay; whatever else is in the distribution may change.

Promises: importing it registers the format "mqtt" on the active session, if there is one. It can be imported without
pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.mqtt import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IncompleteError", "MisuseError", "PipelineError", "read_record", "register"]


class IncompleteError(PipelineError):
    """Something of a record is missing; the message has a line for each thing."""


def read_record(
    spark: SparkSession,
    folders: str | Sequence[str],
    *,
    since: str | None = None,
    until: str | None = None,
    kinds: Sequence[str] = (),
    columns: Sequence[str] = (),
    allow_gaps: bool = False,
) -> DataFrame:
    """The events that a broker's recorder wrote, in no order; docs/recorder.md has the columns.

    `since` (included) and `until` (not included) are ISO 8601, UTC where they name no zone. No `kinds`, no `columns`:
    all of them.

    Raises:
        MisuseError: there is no such folder, or a time is none.
        IncompleteError: events are missing, and `allow_gaps` is not set.
        PipelineError: there is no segment, one is corrupt, or they hold no events.
    """
    from canopy_pipeline.record.coverage import Coverage
    from canopy_pipeline.record.segments import Choice, events

    coverage = Coverage()
    frame = events(
        spark,
        [folders] if isinstance(folders, str) else list(folders),
        Choice(tuple(kinds), since, until),
        columns,
        coverage=coverage,
    )
    if not coverage.complete and not allow_gaps:
        raise IncompleteError("\n".join(coverage.lines()))
    return frame
