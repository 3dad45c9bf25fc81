"""Tables as Iceberg has them, in a catalog of pyiceberg's: each batch one commit of each table.

Promises: a batch is in a table once: the commit sets a property of the table to the number of the batch, and one that
is there already is not made again, also after its snapshot has expired. The snapshots' summaries say which sequence
numbers they stand for. Nothing of the catalog's configuration is in an error: passwords stand in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final
from warnings import catch_warnings, simplefilter

import pyarrow as pa

from canopy_pipeline.errors import MisuseError, PipelineError, needed
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.tables.output import Output, Sink
from canopy_pipeline.tables.plans import DATE
from canopy_pipeline.tables.staged import Batch, among, rows

TRIES: Final = 5
"""The number of times that a commit is tried again if another writer of the table was quicker."""
BYTES: Final = 64 << 20
"""Bytes of rows, as Arrow has them, that become files at a time."""
STREAM: Final = "canopy.stream"
BATCH: Final = "canopy.batch"


class IcebergSink(Sink):
    """Tables of one namespace of a catalog. The output folder keeps what is written aside, and the commits."""

    kinds = MappingProxyType(
        {
            "bool": "boolean", "int8": "int", "int32": "int", "int64": "long", "double": "double", "string": "string",
            "binary": "binary", "timestamp[us, tz=UTC]": "timestamptz",
        }
    )  # fmt: skip
    date = "date"
    remedy = "change it back, or give another --output and --namespace"

    def __init__(self, out: Output, stream: str, catalog: str, namespace: str) -> None:
        """`catalog`: its name in pyiceberg's own configuration.

        Raises:
            MisuseError: pyiceberg is not there, or has no such catalog; a table of that name is another's.
            PipelineError: the catalog does not answer.
        """
        super().__init__(out)
        catalogs = needed("pyiceberg.catalog", "--format iceberg", "pip install '.[iceberg]'")
        self._stream = stream
        self._name = catalog
        self._namespace = namespace
        try:
            self._catalog = catalogs.load_catalog(catalog)
        except Exception as error:
            raise MisuseError(
                f"--catalog {catalog}: pyiceberg cannot use a catalog of that name ({type(error).__name__}); it is "
                f"configured in .pyiceberg.yaml, or by PYICEBERG_CATALOG__{catalog.upper()}__URI and its neighbours"
            ) from None
        with self._told(f"namespace {namespace}"):
            self._catalog.create_namespace_if_not_exists(namespace)
        # Before anything is written or committed.
        for name in self.schemas:
            if (table := self._table(name)) is not None:
                self._check(name, table)

    def named(self, table: str, column: str) -> str:
        return f"--namespace {self._namespace}: the column {column} of its table {table}"

    def _table(self, name: str) -> Any:
        """Return a table; None if it is not there. Raises PipelineError."""
        with self._told(f"table {self._identifier(name)}"):
            there = self._catalog.table_exists(self._identifier(name))
            return self._catalog.load_table(self._identifier(name)) if there else None

    def _check(self, name: str, table: Any) -> None:
        if table.properties.get(STREAM) != self._stream:
            raise MisuseError(
                f"--namespace {self._namespace}: its table {name} is not of these tables; give a namespace of its own"
            )
        self.check(name, _kinds(table))

    def _widen(self, name: str, table: Any) -> None:
        """A commit of metadata."""
        new, wider = self.lacking(name, _kinds(table))
        if new or wider:
            wanted = self._schema(name)
            with table.update_schema() as update:
                for each in wider:
                    update.update_column(each.name, field_type=wanted.find_type(each.name))
                for each in new:
                    update.add_column(each.name, wanted.find_type(each.name))

    def rows(self, table: str, numbers: Numbers) -> Iterator[Any]:
        """Yield the rows from the first to the last of these numbers.

        Raises:
            PipelineError: the catalog does not answer.
        """
        if (found := self._table(table)) is not None:
            with self._told(f"table {self._identifier(table)}"):
                for batch in found.scan(row_filter=among(numbers.first, numbers.last)).to_arrow_batch_reader():
                    at = batch.schema.get_field_index(DATE)
                    yield batch.set_column(at, DATE, batch.column(at).cast(pa.string()))

    def gone(self) -> list[str]:
        return [name for name in self.out.kept if self._table(name) is None]

    def publish(self, batch: Batch) -> None:
        """A commit for each table that the batch has rows of, after one of metadata if its columns have changed.

        Raises:
            MisuseError: a table of that name is there and is another's.
            PipelineError: the catalog does not take it; the next run does it again.
        """
        for name, files in batch.of_tables():
            with self._told(f"table {self._identifier(name)}"):
                self._commit(name, files, batch)

    def _commit(self, name: str, files: list[tuple[str, str]], batch: Batch) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        about = {**batch.about, STREAM: self._stream, BATCH: str(batch.version)}
        for left in reversed(range(TRIES)):
            # Anew each time: what is there now says whether the batch is in it.
            table = self._made(name)
            if int(table.properties.get(BATCH, 0)) >= batch.version:
                return
            self.check_staged(f"table {self._identifier(name)}", files)
            try:
                self._widen(name, table)
                with table.transaction() as changes:
                    if batch.remade is not None:
                        with catch_warnings():
                            # The table may have no such rows.
                            simplefilter("ignore", UserWarning)
                            changes.delete(among(batch.remade.first, batch.remade.last), snapshot_properties=about)
                    for part in self._parts(files, table.schema().as_arrow()):
                        changes.append(part, snapshot_properties=about)
                    changes.set_properties({BATCH: str(batch.version)})
            except (CommitFailedException, CommitStateUnknownException):
                if not left:
                    raise
            else:
                return

    def _made(self, name: str) -> Any:
        """Return a table, made if it is not there."""
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        schema = self._schema(name)
        by_day = PartitionField(schema.find_field(DATE).field_id, 1000, IdentityTransform(), DATE)
        table = self._catalog.create_table_if_not_exists(
            self._identifier(name), schema, partition_spec=PartitionSpec(by_day), properties={STREAM: self._stream}
        )
        self._check(name, table)
        return table

    def _parts(self, files: list[tuple[str, str]], schema: Any) -> Iterator[Any]:
        """The rows in tables of some tens of megabytes each: what pyiceberg writes is in memory."""
        waiting: list[Any] = []
        size = 0
        for batch in rows(self.place, files, schema):
            waiting.append(batch)
            size += batch.nbytes
            if size >= BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    def forget(self, table: str) -> list[str]:
        """Do nothing: pyiceberg removes no files."""
        where = f"table {self._identifier(table)} of the catalog {self._name}"
        return [f"{where}: earlier snapshots and their files; run Iceberg's expire_snapshots and remove_orphan_files"]

    def _identifier(self, name: str) -> str:
        return f"{self._namespace}.{name}"

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Make a line of what a catalog says within the block."""
        try:
            yield
        except PipelineError:
            raise
        except Exception as error:
            # Not its text: clients put addresses into it, with what stands in them.
            raise PipelineError(
                f"--catalog {self._name}: {what}: {type(error).__name__}; what is not in the tables yet comes with the "
                "next run"
            ) from None

    def _schema(self, name: str) -> Any:
        """Return the columns of a table as Iceberg has them."""
        from pyiceberg.schema import Schema
        from pyiceberg.types import NestedField

        fields = enumerate(self.schemas[name], 1)
        return Schema(
            *(NestedField(number, each.name, self.kind(each), required=not each.nullable) for number, each in fields)
        )


def _kinds(table: Any) -> dict[str, str]:
    """Return the types of a table's columns."""
    return {each.name: str(each.field_type) for each in table.schema().fields}
