"""Rows of erased events are taken out of the tables that were made of a record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from canopy_mqtt.words import counted
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.outputs import SUMMARY
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.segments import Say
from canopy_pipeline.runtime.storage import storage
from canopy_pipeline.tables.backfill import replaced
from canopy_pipeline.tables.output import Output, Sink, alone
from canopy_pipeline.tables.plans import DEAD_LETTERS, SEQ, TS
from canopy_pipeline.tables.sinks.sink_of import sink_of
from canopy_pipeline.tables.staged import Staged
from canopy_pipeline.tables.tables_job import TablesOutcome, these


def check(output: str) -> None:
    """Raises MisuseError if there are no tables in an output folder."""
    try:
        Output(output, storage(None, output)).identity()
    except FileNotFoundError:
        raise MisuseError(f"--tables {output}: no tables of canopy pipeline tables") from None


def erase(output: str, numbers: Numbers, times: Sequence[pa.RecordBatch], reached: Numbers, say: Say) -> list[str]:
    """Take the rows of events with these numbers out of all tables of an output folder, and out of their history.
    Return lines for the places that this does not reach. `times`: the `seq` and `ts` of these events; `reached`: the
    numbers of all events that were looked at.

    Raises:
        FileNotFoundError: there are no tables, which `check` finds before.
        MisuseError: they are of another record.
        PipelineError: another process writes these tables, or they cannot be changed.
    """
    place = storage(None, output)
    out = Output(output, place)
    with alone(output, place.local):
        about = out.identity()
        if not out.kept:
            return []
        sink = sink_of(out, about, str(about["stream"]))
        out.load(sink)
        # What these rows are of is not known: the record does not have their events any more, or not for us.
        left = Numbers([(1, out.done.through)]).without(reached).without(Numbers(out.done.unread))
        lines = [f"{output}: {these(left)}: their events were not found in the record"] if left else []
        if not numbers:
            return lines
        _check(sink, numbers, pa.Table.from_batches(times))
        staging, staged, before = out.staging(), Staged(), out.done
        births = [entry for entry in before.births if not numbers.overlaps(entry[3], entry[3])]
        now = replace(before, version=before.version + 1, births=births)
        now, remade, gone = replaced(sink, staged, numbers, now, staging)
        if gone.total() or births != before.births:
            out.commit(sink, staged, now, numbers.first, numbers.last, remade)
        _finish(sink)
        out.forget()
        for table, rows in (+gone).items():
            say(f"{output}/{table}: {counted(rows, 'row')} erased")
        return [*lines, *(line for table in out.kept for line in sink.forget(table))]


def _check(sink: Sink, numbers: Numbers, times: pa.Table) -> None:
    """Compare the times of rows with those of the events of these numbers."""
    for table in sink.out.kept:
        for batch in sink.rows(table, numbers):
            going = batch.filter(numbers.mask(batch[SEQ]))
            expected = times[TS].take(pc.index_in(going[SEQ], value_set=times[SEQ].combine_chunks()))
            if not pc.all(pc.equal(going[TS], expected.combine_chunks())).as_py() and going.num_rows:
                raise MisuseError(f"--tables {sink.out.output}: these tables were made of another record")


def _finish(sink: Sink) -> None:
    out = sink.out
    tables = tuple(name for name in out.kept if name != DEAD_LETTERS)
    summary: dict[str, Any] = {}
    with suppress(FileNotFoundError, ValueError):
        summary = json.loads(out.place.text(SUMMARY))
    out.finish(sink, {**summary, **TablesOutcome(out.output, out.done, tables, Coverage()).summary()})
