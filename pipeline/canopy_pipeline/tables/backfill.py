"""Rows that are made again: a range of the record, decoded with the present mapping, in place of the rows of before.

Owns: which numbers a range has, and which rows it replaces: those of the numbers of which the record still says all.
Rows whose events are gone stay as they are.

Promises: all of it is one batch, so that it is in force once, or not at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow.compute as pc

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.runtime.storage import Storage
from canopy_pipeline.tables.births import Births, newest
from canopy_pipeline.tables.local import Buffer, born, publishes
from canopy_pipeline.tables.output import Output, Progress, Sink
from canopy_pipeline.tables.plans import DEAD_LETTERS, SEQ
from canopy_pipeline.tables.sinks.parquet import ParquetSink
from canopy_pipeline.tables.staged import Remade, Staged

KEPT: Final = "kept"
"""The folder, in that of a batch, of rows that stay as they are."""


@dataclass(frozen=True)
class Range:
    """Numbers of a record, both included; None: to the end of the tables."""

    begin: int = 1
    end: int | None = None

    def numbers(self, through: int) -> tuple[int, int]:
        """Return the first and the last number of the range in tables that end at number `through`.

        Raises:
            MisuseError: nothing of the tables is in it.
        """
        if self.begin > through:
            raise MisuseError(
                f"--from: the tables end at number {through:,}, before this range; a run without --replace reads on"
            )
        if self.end is not None and self.begin > self.end:
            raise MisuseError(f"--from {self.begin} --to {self.end}: an empty range")
        return self.begin, min(self.end or through, through)


def replaced(
    out: Output, sink: Sink, staged: Staged, known: Numbers, now: Progress, staging: str
) -> tuple[Progress, Remade, Counter[str]]:
    """Take rows of the numbers `known` out of the tables, into which those that are `staged` come instead.

    Add rows that the commit replaces and that are to stay to `staged`. Return the progress without the rows that go,
    what becomes of the tables, and the number of rows that go from each.
    """
    buffer = Buffer(out.place, f"{staging}/{KEPT}")
    gone: Counter[str] = Counter()
    dead: Counter[tuple[str, str]] = Counter()
    for table, said in out.kept.items():
        for batch in sink.rows(table, [*said["versions"]], known):
            going = known.mask(batch.column(SEQ))
            gone[table] += going.true_count
            if table == DEAD_LETTERS:
                columns = (batch.filter(going).column(name).to_pylist() for name in ("table", "reason"))
                dead.update(zip(*columns, strict=True))
        if not gone[table] and not staged.rows[table]:
            continue
        for batch in sink.rows(table, [*said["versions"]], known):
            if (stays := batch.filter(pc.invert(known.mask(batch.column(SEQ))))).num_rows:
                buffer.take(table, stays)
    buffer.flush()
    staged.files += buffer.staged.files
    now = replace(now, rows=now.rows - gone, dead=now.dead - dead)
    if isinstance(sink, ParquetSink):
        return now, sink.make(now.version, staged, out.kept, known, staging), gone
    changed = {table: said for table, said in out.tables.items() if gone[table] or staged.rows[table]}
    return now, Remade(known.first, known.last, changed), gone


def births_before(recorded: Storage, files: list[Any], first: int, progress: Progress, limits: Any) -> Births:
    """Return the births that were in force at a number, as far as the record or the progress has them."""
    seen = Births(limits)
    for batch in publishes(recorded, files, 0, first - 1):
        born(batch, seen)
        seen.settle()
    before = [entry for entry in progress.births if int(entry[3]) < first]
    return Births.of(newest(seen.state(), before), limits)
