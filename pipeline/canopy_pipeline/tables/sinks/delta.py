"""Tables as Delta Lake has them: each batch one commit of each table.

Promises: a batch is in a table once: its commit carries the number of the batch as a transaction of Delta's, and one
that is there already is not made again. The commit's metadata say which sequence numbers it stands for. New columns are
one commit of metadata; a column of int32 that becomes int64 is one commit that writes the table anew, since Delta's
writer widens no type. Columns that somebody else added stay, and are null in new rows. Small files are merged now and
then, by a commit that changes no row; those of before stay for a week, for readers of earlier versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from canopy_pipeline.errors import MisuseError, PipelineError, needed, with_remedy
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.tables.evolution import newest
from canopy_pipeline.tables.output import Output, Sink
from canopy_pipeline.tables.plans import DATE, SEQ
from canopy_pipeline.tables.staged import Batch, among, filled, rows
from canopy_pipeline.tables.views import Versions

_STRANGE: Final = re.compile(r"[%\[\]^|\\]")
"""Characters of paths that are none to Delta's writer, which makes an address of a path."""
MERGE_AFTER: Final = 100
"""Batches after which the small files of all tables are merged: each batch has made a file for each table and day."""


class DeltaSink(Sink):
    """Tables of Delta Lake in a folder of this machine, or in S3."""

    delta = True
    kinds = MappingProxyType(
        {
            "bool": "boolean", "int8": "byte", "int32": "integer", "int64": "long", "double": "double",
            "string": "string", "binary": "binary", "timestamp[us, tz=UTC]": "timestamp",
        }
    )  # fmt: skip

    def __init__(self, out: Output, stream: str) -> None:
        """Raises MisuseError: deltalake is not there; a table has another layout, or would be elsewhere."""
        super().__init__(out)
        self._lake = needed("deltalake", "--format delta", "pip install '.[delta]'")
        self._root, self._options = _root(out)
        self._stream = f"canopy-tables-{stream}"
        # Before anything is written or committed.
        for name in self.schemas:
            if (table := self._table(name)) is not None:
                self.check(name, _kinds(table))

    def _table(self, name: str) -> Any:
        """Return a table; None if it is not there. Raises PipelineError."""
        with self._told(name):
            there = self._lake.DeltaTable.is_deltatable(self._at(name), self._options)
            return self._lake.DeltaTable(self._at(name), storage_options=self._options) if there else None

    @contextmanager
    def _told(self, name: str, then: str = "") -> Iterator[None]:
        """Make a line of what Delta's library says of a table within the block, and of its files."""
        try:
            yield
        except (self._lake.exceptions.DeltaError, pa.ArrowException) as error:
            # Its other lines may be the rows.
            why = with_remedy(str(error)) or str(error).partition("\n")[0]
            raise PipelineError(f"{self._at(name)}: {why}{then}") from error

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def rows(self, table: str, numbers: Numbers) -> Iterator[Any]:
        """Yield the rows from the first to the last of these numbers."""
        if (found := self._table(table)) is not None:
            import pyarrow.dataset as ds

            wanted = (ds.field(SEQ) >= numbers.first) & (ds.field(SEQ) <= numbers.last)
            with self._told(table):
                yield from found.to_pyarrow_dataset().to_batches(filter=wanted)

    def gone(self) -> list[str]:
        return [name for name in self.out.kept if self._table(name) is None]

    def versions(self) -> Versions:
        return {name: {name: newest(said)[1]} for name, said in self.out.kept.items()}

    def forget(self, table: str) -> list[str]:
        """Vacuum a table, so that no earlier version can be read any more."""
        place = self._at(table)
        if (found := self._table(table)) is None:
            return []
        try:
            # In full: also what a killed run has written and no version names.
            found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        except self._lake.exceptions.DeltaError as error:
            return [f"{place}: earlier versions ({str(error).partition(chr(10))[0]}); vacuum the table"]
        return [f"{place}/_delta_log: least and greatest values of files of before, until Delta removes these entries"]

    def _widen(self, name: str, table: Any) -> None:
        new, wider = self.lacking(name, _kinds(table))
        if wider:
            names = {each.name for each in wider}
            there = pa.schema(table.schema().to_arrow())
            fields = [each.with_type(pa.int64()) if each.name in names else each for each in there]
            schema = pa.schema([*fields, *new])
            batches = (filled(each, schema) for each in table.to_pyarrow_dataset().to_batches())
            self._lake.write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(schema, batches),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=[DATE],
            )
        elif new:
            kind = self._lake.schema.PrimitiveType
            table.alter.add_columns([self._lake.Field(each.name, kind(self.kind(each))) for each in new])

    def publish(self, batch: Batch) -> None:
        """A commit for each table that the batch has rows of, after one for its columns if they have changed.

        Raises:
            PipelineError: Delta does not take it; the next run does it again.
        """
        for name, files in batch.of_tables():
            with self._told(name, "; what is not in the table yet comes with the next run"):
                self._commit(name, files, batch)
        if batch.version % MERGE_AFTER == 0:
            for table in filter(None, map(self._table, self.schemas)):
                # Another writer may have been quicker: the next merge takes these files, too.
                with suppress(self._lake.exceptions.DeltaError):
                    table.optimize.compact()
                    table.vacuum(dry_run=False)

    def _commit(self, name: str, files: list[tuple[str, str]], batch: Batch) -> None:
        lake, remade = self._lake, batch.remade
        table = lake.DeltaTable.create(
            self._at(name), self.schemas[name], mode="ignore", partition_by=[DATE], storage_options=self._options
        )
        if (table.transaction_version(self._stream) or 0) >= batch.version:
            return
        self.check_staged(self._at(name), files)
        self._widen(name, table)
        table.update_incremental()
        schema = pa.schema(table.schema().to_arrow())
        lake.write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(schema, rows(self.place, files, schema)),
            mode="append" if remade is None else "overwrite",
            predicate=None if remade is None else among(remade.first, remade.last),
            commit_properties=lake.CommitProperties(
                custom_metadata={**batch.about, "canopy.batch": str(batch.version)},
                app_transactions=[lake.Transaction(self._stream, batch.version)],
            ),
        )


def _root(out: Output) -> tuple[str, dict[str, str] | None]:
    """Return where the tables are, and the options of deltalake for that. It takes AWS's environment variables itself.

    Raises:
        MisuseError: Delta's writer cannot be trusted there.
    """
    if out.place.local is not None:
        if found := _STRANGE.search(str(out.place.local)):
            raise MisuseError(f"--format delta: Delta's library cannot write to a path with {found[0]}: give another")
        return str(out.place.local), None
    if out.place.s3 is None:
        raise MisuseError("--format delta: --output must be a folder of this machine, or s3://BUCKET/PREFIX")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    plain = {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
    return out.place.s3, ({"AWS_ENDPOINT_URL": endpoint} if endpoint else {}) | plain


def _kinds(table: Any) -> dict[str, str]:
    """Return the types of a table's columns."""
    return {each.name: getattr(each.type, "type", str(each.type)) for each in table.schema().fields}
