"""Tables as Iceberg has them, in a catalog of pyiceberg's: each batch one commit of each table.

Promises: a batch is in a table once: the commit sets a property of the table to the number of the batch, and one that
is there already is not made again, also after its snapshot has expired. The snapshots' summaries say which sequence
numbers they stand for. Nothing of the catalog's configuration is in an error: passwords stand in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from warnings import catch_warnings, simplefilter

import pyarrow as pa

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.runtime.storage import Storage
from canopy_pipeline.tables.output import Sink
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

    def __init__(self, place: Storage, stream: str, schemas: Mapping[str, Any], catalog: str, namespace: str) -> None:
        """`catalog`: its name in pyiceberg's own configuration.

        Raises:
            MisuseError: pyiceberg is not there, or has no such catalog; a table of that name is another's.
            PipelineError: the catalog does not answer.
        """
        try:
            import pyiceberg.catalog
        except ModuleNotFoundError as error:
            raise MisuseError(
                f"--format iceberg needs {error.name}: in a clone of Canopy, pip install '.[iceberg]'"
            ) from error
        self._place = place
        self._stream = stream
        self._name = catalog
        self._namespace = namespace
        self._schemas = schemas
        try:
            self._catalog = pyiceberg.catalog.load_catalog(catalog)
        except Exception as error:
            raise MisuseError(
                f"--catalog {catalog}: pyiceberg cannot use a catalog of that name ({type(error).__name__}); it is "
                f"configured in .pyiceberg.yaml, or by PYICEBERG_CATALOG__{catalog.upper()}__URI and its neighbours"
            ) from None
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
        except Exception as error:
            raise self._told(f"namespace {namespace}", error) from None

        # Before anything is written or committed.
        for name in self._schemas:
            try:
                table = None
                if self._catalog.table_exists(self._identifier(name)):
                    table = self._catalog.load_table(self._identifier(name))
            except Exception as error:
                raise self._told(f"table {self._identifier(name)}", error) from None
            if table is not None:
                self._check(name, table)

    def _check(self, name: str, table: Any) -> None:
        if table.properties.get(STREAM) != self._stream:
            raise MisuseError(
                f"--namespace {self._namespace}: its table {name} is not of these tables; give a namespace of its own"
            )
        there = {each.name: str(each.field_type) for each in table.schema().fields}
        for each in _schema(self._schemas[name]).fields:
            kind = str(each.field_type)
            found = there.get(each.name, "not there" if each.required else kind)
            if found != kind and {found, kind} != {"int", "long"}:
                raise MisuseError(
                    f"--namespace {self._namespace}: the column {each.name} of its table {name} is {found}, and {kind} "
                    "by the mapping; change it back, or give another --output and --namespace"
                )

    @staticmethod
    def _widen(table: Any, wanted: Any) -> None:
        """Add the columns that a table lacks, and widen those that are narrower: a commit of metadata. A column that is
        wider already stays so."""
        from pyiceberg import types as t

        there = {each.name: each.field_type for each in table.schema().fields}
        new = [each for each in wanted.fields if each.name not in there]
        wider = [
            each
            for each in wanted.fields
            if isinstance(there.get(each.name), t.IntegerType) and isinstance(each.field_type, t.LongType)
        ]
        if new or wider:
            with table.update_schema() as update:
                for each in wider:
                    update.update_column(each.name, field_type=each.field_type)
                for each in new:
                    update.add_column(each.name, each.field_type)

    def rows(self, table: str, folders: Sequence[str], numbers: Numbers) -> Iterator[Any]:
        """Yield the rows from the first to the last of these numbers.

        Raises:
            PipelineError: the catalog does not answer.
        """
        del folders
        try:
            if self._catalog.table_exists(self._identifier(table)):
                found = self._catalog.load_table(self._identifier(table))
                for batch in found.scan(row_filter=among(numbers.first, numbers.last)).to_arrow_batch_reader():
                    at = batch.schema.get_field_index(DATE)
                    yield batch.set_column(at, DATE, batch.column(at).cast(pa.string()))
        except Exception as error:
            raise self._told(f"table {self._identifier(table)}", error) from None

    def publish(self, batch: Batch) -> None:
        """A commit for each table that the batch has rows of, after one of metadata if its columns have changed.

        Raises:
            MisuseError: a table of that name is there and is another's.
            PipelineError: the catalog does not take it; the next run does it again.
        """
        for name, files in batch.of_tables():
            try:
                self._commit(name, files, batch)
            except PipelineError:
                raise
            except Exception as error:
                raise self._told(f"table {self._identifier(name)}", error) from None

    def _commit(self, name: str, files: list[tuple[str, str]], batch: Batch) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        about = {**batch.about, STREAM: self._stream, BATCH: str(batch.version)}
        for left in reversed(range(TRIES)):
            # Anew each time: what is there now says whether the batch is in it.
            table = self._table(name)
            if int(table.properties.get(BATCH, 0)) >= batch.version:
                return
            try:
                self._widen(table, _schema(self._schemas[name]))
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

    def _table(self, name: str) -> Any:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        schema = _schema(self._schemas[name])
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
        for batch in rows(self._place, files, schema):
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

    def _told(self, what: str, error: Exception) -> PipelineError:
        # Not its text: clients put addresses into it, with what stands in them.
        return PipelineError(
            f"--catalog {self._name}: {what}: {type(error).__name__}; what is not in the tables yet comes with the "
            "next run"
        )


def _schema(arrow: Any) -> Any:
    """The columns as Iceberg has them; the day is a date there."""
    from pyiceberg import types as t
    from pyiceberg.schema import Schema

    kinds = {
        "bool": t.BooleanType(), "int8": t.IntegerType(), "int32": t.IntegerType(), "int64": t.LongType(),
        "double": t.DoubleType(), "string": t.StringType(), "binary": t.BinaryType(),
        "timestamp[us, tz=UTC]": t.TimestamptzType(),
    }  # fmt: skip
    return Schema(
        *(
            t.NestedField(
                number,
                each.name,
                t.DateType() if each.name == DATE else kinds[str(each.type)],
                required=not each.nullable,
            )
            for number, each in enumerate(arrow, 1)
        )
    )
