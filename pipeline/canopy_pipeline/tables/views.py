"""SQL that makes views of the tables for their readers: DuckDB, Spark, Trino.

Promises: a view has the columns of its table, with the same names and in the same order everywhere. A table without
rows has no view, since some readers refuse a folder without files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from canopy_pipeline.tables.plans import DATE, DEAD, DEAD_LETTERS, Plan

_TRINO: Final = {
    "bool": "boolean", "int8": "tinyint", "int32": "integer", "int64": "bigint", "double": "double",
    "string": "varchar", "binary": "varbinary", "timestamp[us, tz=UTC]": "timestamp(6) with time zone",
}  # fmt: skip
"""Arrow's types in Trino."""


def views(plans: Sequence[Plan], output: str, delta: bool, written: Collection[str]) -> dict[str, str]:
    """The files, by name; `output`: where the tables are, absolute."""
    there, head = _written(plans, written)
    return {
        "views.duckdb.sql": head + "".join(_duckdb(name, each, output, delta) for name, each in there.items()),
        "views.spark.sql": head + "".join(_spark(name, each, output, delta) for name, each in there.items()),
        "views.trino.sql": _head(delta)
        + head
        + "".join(_trino(name, each, output, delta) for name, each in there.items()),
    }


def iceberg_views(plans: Sequence[Plan], written: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The same of tables of Iceberg: by their quoted names in the catalog, for DuckDB by the file of their metadata."""
    there, head = _written(plans, written)
    names = {name: _names(schema) for name, schema in there.items()}
    catalog = "-- For a catalog of the name that pyiceberg has for it; put your own in its place.\n"
    spark = "".join(
        f'CREATE OR REPLACE TEMPORARY VIEW "{name}" AS SELECT {each} FROM {written[name][0]};\n'
        for name, each in names.items()
    )
    return {
        "views.duckdb.sql": "-- The tables as they were when this was written; needs DuckDB's extension iceberg.\n"
        + head
        + "".join(
            f"CREATE OR REPLACE VIEW \"{name}\" AS SELECT {each} FROM iceberg_scan('{_text(written[name][1])}');\n"
            for name, each in names.items()
        ),
        "views.spark.sql": catalog + head + spark.replace('"', "`"),
        # With the same names and types: a view would be another name for the table.
        "views.trino.sql": catalog + head + "".join(f"SELECT * FROM {written[name][0]};\n" for name in names),
    }


def _written(plans: Sequence[Plan], written: Collection[str]) -> tuple[dict[str, Any], str]:
    """The tables that have rows, with their schemas, and a line about the others."""
    schemas = {plan.name: plan.arrow for plan in plans} | {DEAD_LETTERS: DEAD}
    empty = [name for name in schemas if name not in written]
    head = f"-- No rows yet, and no view: {', '.join(empty)}\n" if empty else ""
    return {name: schema for name, schema in schemas.items() if name in written}, head


def _names(schema: Any) -> str:
    return ", ".join(
        f"cast({_quoted(name)} as date) as {_quoted(name)}" if name == DATE else _quoted(name) for name in schema.names
    )


def _quoted(name: str) -> str:
    # Names are of small letters, digits and _ (patterns.NAME); some of them are words of SQL.
    return f'"{name}"'


def _text(path: str) -> str:
    return path.replace("'", "''")


def _duckdb(name: str, schema: Any, output: str, delta: bool) -> str:
    place = _text(f"{output}/{name}")
    rows = f"delta_scan('{place}')" if delta else f"read_parquet('{place}/*/*.parquet', hive_partitioning = true)"
    return f"CREATE OR REPLACE VIEW {_quoted(name)} AS SELECT {_names(schema)} FROM {rows};\n"


def _spark(name: str, schema: Any, output: str, delta: bool) -> str:
    place = f"{output}/{name}".replace("`", "``")
    names = _names(schema).replace('"', "`")
    kind = "delta" if delta else "parquet"
    return f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT {names} FROM {kind}.`{place}`;\n"


def _head(delta: bool) -> str:
    where = "delta.default" if delta else "hive.default"
    return f"-- For a catalog with the connector of that name: {where}; put your own in its place.\n"


def _trino(name: str, schema: Any, output: str, delta: bool) -> str:
    place = _text(f"{output}/{name}")
    if delta:
        return f"CALL delta.system.register_table('default', '{name}', '{place}');\n"
    # Hive's partition column comes last, and has the type of its folder's name.
    columns = ", ".join(
        f"{_quoted(each.name)} {'varchar' if each.name == DATE else _TRINO[str(each.type)]}" for each in schema
    )
    return (
        f"CREATE TABLE IF NOT EXISTS hive.default.{_quoted(name)} ({columns}) "
        f"WITH (external_location = '{place}', format = 'PARQUET', partitioned_by = ARRAY['{DATE}']);\n"
        f"CALL hive.system.sync_partition_metadata('default', '{name}', 'FULL');\n"
    )
