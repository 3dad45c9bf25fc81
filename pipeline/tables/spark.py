"""A batch by Spark: it reads the segments and writes the files, and executors decode as `local` does.

Owns: the way of rows of many tables through one `mapInArrow`: a column for each table, a struct of its columns, of
which one is filled in each row. They are written once, and taken apart from there.

Executors need `pipeline` (`--py-files`), pyarrow and, for Avro, Protobuf and Sparkplug, the extra `tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as f

from pipeline.record.schema import EVENTS, PUBLISH
from pipeline.record.segments import reading
from pipeline.runtime.storage import File, Storage, parquet
from pipeline.tables.births import Births
from pipeline.tables.decode import Batches
from pipeline.tables.plans import DATE, DEAD, DEAD_LETTERS, NEEDED, SEQ, Plan
from pipeline.tables.staged import Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DECODED: Final = "_decoded"

_TYPES: Final = {
    "bool": "boolean", "int8": "tinyint", "int32": "int", "int64": "bigint", "double": "double", "string": "string",
    "binary": "binary", "timestamp[us, tz=UTC]": "timestamp",
}  # fmt: skip
"""Arrow's types as Spark writes them."""


class SparkEngine:
    """Batches on a cluster, or on all cores of this machine."""

    def __init__(self, spark: SparkSession, place: Storage) -> None:
        self.spark = spark
        self.place = place

    def stage(
        self, files: Sequence[File], after: int, to: int, plans: Sequence[Plan], births: Births, staging: str
    ) -> Staged:
        """Write the rows of the publishes with numbers above `after`, up to `to`, into a folder aside."""
        staged = Staged()
        if not files:
            return staged
        with reading():
            seq = f.col(SEQ)
            schema = EVENTS.only(NEEDED).ddl
            rows = parquet(self.spark.read.schema(schema), *(file.path for file in files)).where(
                (f.col("kind") == PUBLISH) & (seq > after) & (seq <= to)
            )
            staged.read = rows.count()
            if any(plan.format == "sparkplug" for plan in plans):
                born = rows.where(f.col("topic").like("spBv1.0/%BIRTH/%")).select("topic", "payload", SEQ)
                for row in born.orderBy(SEQ).toLocalIterator():
                    births.take(row["topic"], None if row["payload"] is None else bytes(row["payload"]), row[SEQ])
            schemas = {plan.name: plan.arrow for plan in plans} | {DEAD_LETTERS: DEAD}
            where = f"{staging}/{DECODED}"
            decoded = rows.mapInArrow(_decoding(tuple(plans), births), _united(schemas))
            decoded.write.parquet(self.place.at(where))
            self._count(parquet(self.spark.read, self.place.at(where)), staged)
            for name in staged.rows:
                self._split(parquet(self.spark.read, self.place.at(where)), name, staging, staged)
        return staged

    def _count(self, decoded: DataFrame, staged: Staged) -> None:
        dead = f.col(DEAD_LETTERS)
        counted = decoded.groupBy("table", dead["table"].alias("of"), dead["reason"].alias("reason")).count()
        for row in counted.collect():
            staged.rows[row["table"]] += row["count"]
            if row["table"] == DEAD_LETTERS:
                staged.dead[row["of"], row["reason"]] += row["count"]

    def _split(self, decoded: DataFrame, name: str, staging: str, staged: Staged) -> None:
        where = f"{staging}/{name}"
        mine = decoded.where(f.col("table") == name).select(f"{name}.*")
        mine.write.partitionBy(DATE).option("compression", "zstd").parquet(self.place.at(where))
        for day in self.place.names(where):
            if day.startswith(f"{DATE}="):
                staged.files += [
                    (name, day, f"{where}/{day}/{file}")
                    for file in self.place.names(f"{where}/{day}")
                    if file.endswith(".parquet") and not file.startswith((".", "_"))
                ]


def _united(schemas: dict[str, Any]) -> str:
    """The schema of all tables' rows together, as Spark writes it."""
    return ", ".join(
        [
            "`table` string",
            *(
                f"`{name}` struct<{', '.join(f'`{each.name}`: {_TYPES[str(each.type)]}' for each in schema)}>"
                for name, schema in schemas.items()
            ),
        ]
    )


def _decoding(plans: tuple[Plan, ...], births: Births) -> Callable[[Iterable[Any]], Iterator[Any]]:
    return partial(_decoded, plans, births)


def _decoded(plans: tuple[Plan, ...], births: Births, batches: Iterable[Any]) -> Iterator[Any]:
    """What an executor does."""
    schemas = {plan.name: plan.arrow for plan in plans} | {DEAD_LETTERS: DEAD}
    types = {name: pa.struct([each.with_nullable(True) for each in schema]) for name, schema in schemas.items()}
    made = Batches(plans, births)
    for batch in batches:
        for table, rows in made.tables(batch):
            columns = [pa.repeat(pa.scalar(table), rows.num_rows)]
            for name, kind in types.items():
                if name == table:
                    columns.append(pa.StructArray.from_arrays(rows.columns, fields=[*kind]))
                else:
                    columns.append(pa.nulls(rows.num_rows, kind))
            yield pa.RecordBatch.from_arrays(columns, names=["table", *types])
