"""Rows that are made again: a range of the record, decoded with the present mapping, in place of the rows of before.

Owns: which numbers a range has, and which rows it replaces: those of the numbers of which the record still says all.
Rows whose events are gone stay as they are.

Promises: all of it is one batch, so that it is in force once, or not at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from canopy_pipeline.errors import GoneError, MisuseError
from canopy_pipeline.record.chosen_files import choose
from canopy_pipeline.record.manifests import manifests, numbers, times
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.parts import own
from canopy_pipeline.record.segments import moment
from canopy_pipeline.runtime.storage import Storage
from canopy_pipeline.tables.births import Births, newest
from canopy_pipeline.tables.local import Buffer, born, publishes
from canopy_pipeline.tables.output import Progress, Sink
from canopy_pipeline.tables.plans import DEAD_LETTERS, SEQ
from canopy_pipeline.tables.sinks.parquet import ParquetSink
from canopy_pipeline.tables.staged import Remade, Staged

KEPT: Final = "kept"
"""The folder, in that of a batch, of rows that stay as they are."""


@dataclass(frozen=True)
class Range:
    """A part of a record. Numbers are included, and so is the time `begin`; the time `end` is not. None: no bound."""

    begin: int | datetime | None = None
    end: int | datetime | None = None

    @classmethod
    def of(cls, begin: str | None, end: str | None) -> Range:
        """The range that `--from` and `--to` name.

        Raises:
            MisuseError: one is neither a number nor a time; the end is before the beginning.
        """
        made = cls(_bound(begin, "--from"), _bound(end, "--to"))
        numbered = isinstance(made.begin, int) and isinstance(made.end, int) and made.begin > made.end
        timed = isinstance(made.begin, datetime) and isinstance(made.end, datetime) and made.begin >= made.end
        if numbered or timed or 0 in (made.begin, made.end):
            given = " ".join(f"{name} {text}" for name, text in (("--from", begin), ("--to", end)) if text is not None)
            raise MisuseError(f"{given}: an empty range; numbers begin with 1, and --to comes later")
        return made

    def numbers(self, recorded: Storage, through: int) -> tuple[int, int]:
        """Return the first and the last number of the range in tables that end at number `through`.

        Raises:
            MisuseError: nothing of the tables is in it.
        """
        since = self.begin if isinstance(self.begin, datetime) else None
        until = self.end if isinstance(self.end, datetime) else None
        held = _held(recorded, since, until) if since or until else []
        if (since or until) and not held:
            raise MisuseError("--from, --to: the record has no event of that time; give other times, or numbers")
        first = min(held)[0] if since else int(self.begin or 1)  # type: ignore[arg-type]
        last = max(each[1] for each in held) if until else int(self.end or through)  # type: ignore[arg-type]
        if first > through:
            raise MisuseError(
                f"--from: the tables end at number {through:,}, before this range; a run without --replace reads on"
            )
        if first > last:
            raise MisuseError(f"--from, --to: an empty range: it begins with number {first:,}, and ends with {last:,}")
        return first, min(last, through)


def _bound(text: str | None, option: str) -> int | datetime | None:
    if text is None:
        return None
    # A year alone is a number. No number of an event has more digits.
    return int(text) if text.isdecimal() and len(text) < 20 else moment(text, option)


def _held(recorded: Storage, since: datetime | None, until: datetime | None) -> list[tuple[int, int]]:
    """Return the first and the last number of the events from `since` to before `until` in each segment."""
    said = manifests(recorded)
    there = own(recorded.listed(".parquet"))
    chosen = choose(said, there, recorded)
    found = []
    for place in {*chosen.read, *(said.said.keys() - said.gone - chosen.found.keys())}:
        about = chosen.about(place) or {}
        when, span = times(about), numbers(about)
        if when is None or span is None or (since and when[1] < since) or (until and when[0] >= until):
            continue
        if place not in there or ((not since or when[0] >= since) and (not until or when[1] < until)):
            # One that is not there is missed later.
            found.append(span)
            continue
        try:
            with recorded.fs.open_input_file(place) as source, pq.ParquetFile(source) as opened:
                rows = opened.read(["seq", "ts"])
        except FileNotFoundError as error:
            raise GoneError(f"{recorded.at(place)}: was removed while it was to be read") from error
        if since:
            rows = rows.filter(pc.greater_equal(rows["ts"], pa.scalar(since, rows["ts"].type)))
        if until:
            rows = rows.filter(pc.less(rows["ts"], pa.scalar(until, rows["ts"].type)))
        if len(rows):
            ends = pc.min_max(rows["seq"]).as_py()
            found.append((ends["min"], ends["max"]))
    return found


def replaced(
    sink: Sink, staged: Staged, known: Numbers, now: Progress, staging: str
) -> tuple[Progress, Remade, Counter[str]]:
    """Take rows of the numbers `known` out of the tables, into which those that are `staged` come instead.

    Add rows that the commit replaces and that are to stay to `staged`. Return the progress without the rows that go,
    what becomes of the tables, and the number of rows that go from each.
    """
    out, buffer = sink.out, Buffer(sink.place, f"{staging}/{KEPT}")
    gone: Counter[str] = Counter()
    dead: Counter[tuple[str, str]] = Counter()
    for table in out.kept:
        for batch in sink.rows(table, known):
            going = known.mask(batch.column(SEQ))
            gone[table] += going.true_count
            if table == DEAD_LETTERS:
                columns = (batch.filter(going).column(name).to_pylist() for name in ("table", "reason"))
                dead.update(zip(*columns, strict=True))
        if not gone[table] and not staged.rows[table]:
            continue
        for batch in sink.rows(table, known):
            if (stays := batch.filter(pc.invert(known.mask(batch.column(SEQ))))).num_rows:
                buffer.take(table, stays)
    buffer.flush()
    staged.files += buffer.staged.files
    now = replace(now, rows=now.rows - gone, dead=now.dead - dead)
    if isinstance(sink, ParquetSink):
        return now, sink.make(now.version, staged, known, staging), gone
    changed = {table: said for table, said in out.tables.items() if gone[table] or staged.rows[table]}
    return now, Remade(known.first, known.last, changed), gone


def births_before(recorded: Storage, files: list[Any], first: int, progress: Progress, limits: Any) -> Births:
    """Return the births that were in force at a number, as far as the record or the progress has them."""
    seen = Births(limits)
    for batch in publishes(recorded, files, 0, first - 1):
        born(batch, seen)
        seen.settle()
    before = [entry for entry in progress.births if entry[3] < first]
    return Births.of(newest(seen.state(), before), limits)
