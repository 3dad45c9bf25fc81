"""Tables as Delta Lake has them: each batch one commit of each table.

Promises: a batch is in a table once: its commit carries the number of the batch as a transaction of Delta's, and one
that is there already is not made again. The commit's metadata say which sequence numbers it stands for. New columns are
one commit of metadata; a column of int32 that becomes int64 is one commit that writes the table anew, since Delta's
writer widens no type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.runtime.storage import Local
from canopy_pipeline.tables.plans import DATE, DEAD, DEAD_LETTERS, Plan
from canopy_pipeline.tables.staged import filled, rows

_DELTA: Final = {
    "bool": "boolean", "int8": "byte", "int32": "integer", "int64": "long", "double": "double", "string": "string",
    "binary": "binary", "timestamp[us, tz=UTC]": "timestamp",
}  # fmt: skip
"""Arrow's types in Delta Lake."""


class DeltaSink:
    """Tables of Delta Lake in a folder of this machine."""

    def __init__(self, place: Local, stream: str, plans: Sequence[Plan]) -> None:
        try:
            import deltalake
        except ModuleNotFoundError as error:
            raise MisuseError(
                f"--format delta needs {error.name}: in a clone of Canopy run `make setup` or pip install '.[delta]'"
            ) from error
        self._lake = deltalake
        self._place = place
        self._stream = f"canopy-tables-{stream}"
        self._schemas = {plan.name: plan.arrow for plan in plans} | {DEAD_LETTERS: DEAD}

    def evolve(self) -> None:
        """A commit for each table that lacks columns, or has narrower ones."""
        lake = self._lake
        for name, schema in self._schemas.items():
            where = str(self._place.local / name)
            if not lake.DeltaTable.is_deltatable(where):
                continue
            table = lake.DeltaTable(where)
            there = {field.name: field.type.type for field in table.schema().fields}
            if any(there.get(each.name, _DELTA[str(each.type)]) != _DELTA[str(each.type)] for each in schema):
                self._rewrite(table, schema)
            elif new := [lake.Field(each.name, _DELTA[str(each.type)]) for each in schema if each.name not in there]:
                table.alter.add_columns(new)

    def _rewrite(self, table: Any, schema: Any) -> None:
        batches = (filled(each, schema) for each in table.to_pyarrow_dataset().to_batches())
        self._lake.write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(schema, batches),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=[DATE],
        )

    def publish(
        self, version: int, files: list[tuple[str, str, str]], folders: dict[str, str], about: dict[str, str]
    ) -> None:
        """A commit for each table that the batch has rows of."""
        del folders
        lake = self._lake
        for name in dict.fromkeys(table for table, _, _ in files):
            schema = self._schemas[name]
            table = lake.DeltaTable.create(self._place.local / name, schema, mode="ignore", partition_by=[DATE])
            if (table.transaction_version(self._stream) or 0) >= version:
                continue
            schema = pa.schema([schema.field(field.name) for field in table.schema().fields])
            mine = [(day.partition("=")[2], place) for owner, day, place in files if owner == name]
            lake.write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(schema, rows(self._place, mine, schema)),
                mode="append",
                commit_properties=lake.CommitProperties(
                    custom_metadata={**about, "canopy.batch": str(version)},
                    app_transactions=[lake.Transaction(self._stream, version)],
                ),
            )
