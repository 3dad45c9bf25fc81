"""Tables as folders of Parquet: TABLE/date=2026-11-21/part-000000000001-00000.parquet, and TABLE.v2 for later columns.

Promises: a file that has its name never changes. To make rows again, the folders that hold some of them are made anew
beside the old ones, with links to the files that stay; the views name either the old folders or the new ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.runtime.storage import Local
from canopy_pipeline.tables.evolution import Version, following, newest
from canopy_pipeline.tables.output import Sink
from canopy_pipeline.tables.plans import DATE, SEQ
from canopy_pipeline.tables.staged import Batch, Remade, Staged, rows
from canopy_pipeline.tables.views import Versions


class ParquetSink(Sink):
    def publish(self, batch: Batch) -> None:
        if batch.remade is not None:
            for staged, folder in batch.remade.folders.items():
                # One that is not there any more was moved before the machine stopped.
                if self.place.names(staged):
                    self.place.publish(staged, folder)
            return
        there = self.staged(staged for _, _, staged in batch.files)
        for number, (table, day, staged) in enumerate(batch.files):
            if staged in there:
                self.place.move(staged, f"{batch.folders[table]}/{day}/{_name(batch.version, number)}")

    def rows(self, table: str, numbers: Numbers) -> Iterator[Any]:
        """Yield the rows of the files that hold some of these numbers."""
        for folder in self.out.kept[table].versions:
            for place in self._files(folder):
                if self._holds(place, numbers):
                    day = place.split("/")[1].partition("=")[2]
                    yield from rows(self.place, [(day, place)], self.schemas[table])

    def make(self, version: int, staged: Staged, numbers: Numbers, staging: str) -> Remade:
        """Make the new folders of tables in the folder `staging`; `staged` has the rows that go into them.

        Raises:
            MisuseError: there are no links where the tables are.
        """
        if not isinstance(self.place, Local):
            raise MisuseError("--output: must be a folder of this machine; over an object store use --format iceberg")
        made, kept, tables = Remade(numbers.first, numbers.last), self.out.kept, self.out.tables
        for table in tables:
            before = dict(kept[table].versions) if table in kept else {}
            own = [(day, place) for name, day, place in staged.files if name == table]
            if own:
                target, columns = newest(tables[table])
                before.setdefault(target, columns)
            last = [*before][-1] if before else ""
            after: dict[str, Version] = {}
            for folder, columns in before.items():
                files = self._files(folder)
                stay = [place for place in files if not self._holds(place, numbers)]
                adds = own if folder == last else []
                if not adds and len(stay) == len(files):
                    after[folder] = columns
                    continue
                new = following(table, [*before, *after]) if table in kept else folder
                aside = f"{staging}/{new}"
                for day in dict.fromkeys(place.split("/")[1] for place in stay):
                    self.place.link([place for place in stay if place.split("/")[1] == day], f"{aside}/{day}")
                for number, (day, place) in enumerate(adds):
                    self.place.publish(place, f"{aside}/{day}/{_name(version, number)}")
                if stay or adds:
                    made.folders[aside] = new
                if stay or adds or folder == last:
                    after[new] = columns
            if list(after) != (list(kept[table].versions) if table in kept else []):
                made.tables[table] = replace(tables[table], versions=after)
        return made

    def versions(self) -> Versions:
        # Old days may have been removed.
        return {
            name: {each: version for each, version in said.versions.items() if self.place.names(each)}
            for name, said in self.out.kept.items()
        }

    def stale(self) -> list[str]:
        """Return the folders whose rows are in others since they were made again."""
        kept = self.out.kept
        present = {folder for said in kept.values() for folder in said.versions}
        named = re.compile(rf"({'|'.join(kept)})(\.v\d+)?")
        return [name for name in self.place.names("") if name not in present and kept and named.fullmatch(name)]

    def _files(self, folder: str) -> list[str]:
        """The places of a table's files, in order of their days."""
        days = (f"{folder}/{day}" for day in self.place.names(folder) if day.startswith(f"{DATE}="))
        return [f"{day}/{name}" for day in days for name in self.place.names(day) if name.endswith(".parquet")]

    def _holds(self, place: str, numbers: Numbers) -> bool:
        """Return True if a file has rows of these numbers.

        Raises:
            PipelineError: it is no file of these tables.
        """
        with self.place.fs.open_input_file(place) as source, _opened(place, source) as opened:
            at = opened.schema_arrow.names.index(SEQ)
            for number in range(opened.num_row_groups):
                known = opened.metadata.row_group(number).column(at).statistics
                if known is not None and known.has_min_max and not numbers.overlaps(known.min, known.max):
                    continue
                seq = opened.read_row_group(number, columns=[SEQ]).column(SEQ).combine_chunks()
                if numbers.mask(seq).true_count:
                    return True
        return False


@contextmanager
def _opened(place: str, source: Any) -> Iterator[Any]:
    try:
        with pq.ParquetFile(source) as opened:
            if SEQ not in opened.schema_arrow.names:
                raise PipelineError(f"{place}: it has no column {SEQ}: not a file of these tables; move it away")
            yield opened
    except pa.ArrowException as error:
        raise PipelineError(f"{place}: not a whole Parquet file; make these tables again elsewhere") from error


def _name(version: int, number: int) -> str:
    return f"part-{version:012d}-{number:05d}.parquet"
