"""The files of a batch in the staging folder, before they are published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from canopy_pipeline.runtime.storage import Storage
from canopy_pipeline.tables.evolution import Kept
from canopy_pipeline.tables.plans import DATE, SEQ


@dataclass
class Staged:
    """The staged files of a batch, and their counts."""

    files: list[tuple[str, str, str]] = field(default_factory=list)
    """Table, day (date=2026-11-21), and the file's place under the output folder."""
    rows: Counter[str] = field(default_factory=Counter)
    """By table."""
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Dead letters by table and reason."""
    read: int = 0
    """Publishes."""


@dataclass
class Remade:
    """The tables whose rows of some numbers are replaced by a batch."""

    first: int
    last: int
    """All rows from one number to the other are in the batch, those that stay as they were included."""
    tables: dict[str, Kept] = field(default_factory=dict)
    """The tables that change, as they are afterwards."""
    folders: dict[str, str] = field(default_factory=dict)
    """Parquet: the new folders, and their places until then."""


@dataclass(frozen=True)
class Batch:
    """A committed batch, whose files become part of the tables."""

    version: int
    files: list[tuple[str, str, str]]
    """Table, day, place of each."""
    folders: dict[str, str]
    """The folder of each table when the batch was committed."""
    about: dict[str, str]
    """Which numbers it has, for the metadata of a table."""
    remade: Remade | None
    """The rows that the tables have of these numbers go, in the same commit."""

    def of_tables(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield the tables that change, and the files of each: day and place."""
        tables = self.remade.tables if self.remade is not None else dict.fromkeys(table for table, _, _ in self.files)
        for name in tables:
            yield name, [(day.partition("=")[2], place) for owner, day, place in self.files if owner == name]


def among(first: int, last: int) -> str:
    """Return the condition of SQL for rows from one number to another."""
    return f"{SEQ} >= {first} AND {SEQ} <= {last}"


def rows(place: Storage, files: Sequence[tuple[str, str]], schema: Any) -> Iterator[Any]:
    """Yield the rows of files of one table (day and place of each) as record batches, with the day as a column. What a
    file lacks, which was staged before the table had that column, is null."""
    for day, staged in files:
        with (
            place.fs.open_input_file(staged) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as opened,
        ):
            for batch in opened.iter_batches():
                days = pa.repeat(pa.scalar(day), batch.num_rows)
                yield filled(batch, schema, {DATE: days})


def filled(batch: Any, schema: Any, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return the rows of a record batch with the columns of a schema: some of `more`, and nulls for what it lacks."""
    there = {**dict(zip(batch.schema.names, batch.columns, strict=True)), **more}
    columns = [
        there[each.name].cast(each.type) if each.name in there else pa.nulls(len(batch), each.type) for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
