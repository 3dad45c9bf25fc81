"""SQL that makes views of the tables for their readers: DuckDB, Spark, Trino.

Promises: a view has the columns of its table, with the same names and in the same order everywhere. A table without
rows has no view, since some readers refuse a folder without files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from canopy_pipeline.tables.evolution import described
from canopy_pipeline.tables.plans import DATE

_TRINO: Final = {
    "bool": "boolean", "int8": "tinyint", "int32": "integer", "int64": "bigint", "double": "double",
    "string": "varchar", "binary": "varbinary", "timestamp[us, tz=UTC]": "timestamp(6) with time zone",
}  # fmt: skip
"""Arrow's types in Trino."""
_DUCKDB: Final = {**_TRINO, "binary": "blob", "timestamp[us, tz=UTC]": "timestamptz"}
_SPARK: Final = {**_TRINO, "int32": "int", "string": "string", "varchar": "string", "binary": "binary",
    "timestamp[us, tz=UTC]": "timestamp"}  # fmt: skip

Versions = Mapping[str, Mapping[str, Sequence[Sequence[Any]]]]
"""Of each table: its folders, and the columns in each (`evolution.Version`)."""


def views(
    schemas: Mapping[str, Any], output: str, delta: bool, written: Collection[str], versions: Versions
) -> dict[str, str]:
    """The files, by name; `schemas`: of all tables; `output`: where they are, absolute."""
    there, head = _written(schemas, written)
    made = {"duckdb": head, "spark": head, "trino": _head(delta) + head}
    for name, schema in there.items():
        parts = versions.get(name) or {name: described(schema)}
        for reader, view in (("duckdb", _duckdb), ("spark", _spark), ("trino", _trino)):
            made[reader] += view(name, schema, parts, output, delta)
    return {f"views.{reader}.sql": text for reader, text in made.items()}


def iceberg_views(
    schemas: Mapping[str, Any], written: Mapping[str, tuple[str, str]], versions: Versions
) -> dict[str, str]:
    """The same of tables of Iceberg: by their quoted names in the catalog, for DuckDB by the file of their metadata."""
    there, head = _written(schemas, written)
    parts = {name: versions.get(name, {name: described(schema)})[name] for name, schema in there.items()}
    duckdb = {name: _names(schema, parts[name], _DUCKDB) for name, schema in there.items()}
    names = {name: _names(schema, parts[name], _SPARK) for name, schema in there.items()}
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
            for name, each in duckdb.items()
        ),
        "views.spark.sql": catalog + head + spark.replace('"', "`"),
        # With the same names and types: a view would be another name for the table.
        "views.trino.sql": catalog + head + "".join(f"SELECT * FROM {written[name][0]};\n" for name in names),
    }


def _written(schemas: Mapping[str, Any], written: Collection[str]) -> tuple[dict[str, Any], str]:
    """The tables that have rows, with their schemas, and a line about the others."""
    empty = [name for name in schemas if name not in written]
    head = f"-- No rows yet, and no view: {', '.join(empty)}\n" if empty else ""
    return {name: schema for name, schema in schemas.items() if name in written}, head


def _names(schema: Any, version: Sequence[Sequence[Any]], types: Mapping[str, str]) -> str:
    """The columns of a table, out of a version of it; `types`: Arrow's, in the reader's words."""
    there = {each[0]: each[1] for each in version}
    made = []
    for field in schema:
        name, kind = _quoted(field.name), str(field.type)
        if field.name == DATE:
            made.append(f"cast({name} as date) as {name}")
        elif there.get(field.name) == kind:
            made.append(name)
        else:
            made.append(f"cast({name if field.name in there else 'null'} as {types[kind]}) as {name}")
    return ", ".join(made)


def _quoted(name: str) -> str:
    # Names are of small letters, digits and _ (patterns.NAME); some of them are words of SQL.
    return f'"{name}"'


def _text(path: str) -> str:
    return path.replace("'", "''")


def _duckdb(name: str, schema: Any, versions: Mapping[str, Any], output: str, delta: bool) -> str:
    selects = []
    for folder, version in versions.items():
        place = _text(f"{output}/{folder}")
        rows = f"delta_scan('{place}')" if delta else f"read_parquet('{place}/*/*.parquet', hive_partitioning = true)"
        selects.append(f"SELECT {_names(schema, version, _DUCKDB)} FROM {rows}")
    return f"CREATE OR REPLACE VIEW {_quoted(name)} AS {' UNION ALL '.join(selects)};\n"


def _spark(name: str, schema: Any, versions: Mapping[str, Any], output: str, delta: bool) -> str:
    kind, selects = "delta" if delta else "parquet", []
    for folder, version in versions.items():
        place = f"{output}/{folder}".replace("`", "``")
        selects.append(f"SELECT {_names(schema, version, _SPARK)} FROM ".replace('"', "`") + f"{kind}.`{place}`")
    return f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS {' UNION ALL '.join(selects)};\n"


def _head(delta: bool) -> str:
    where = "delta.default" if delta else "hive.default"
    return f"-- For a catalog with the connector of that name: {where}; put your own in its place.\n"


def _trino(name: str, schema: Any, versions: Mapping[str, Any], output: str, delta: bool) -> str:
    if delta:
        return f"CALL delta.system.register_table('default', '{name}', '{_text(f'{output}/{name}')}');\n"
    tables, selects = [], []
    for folder, version in versions.items():
        # A view from the first folder on, since none can take the place of a table. No table of a mapping begins so.
        part = f"{folder.partition('.v')[2] or 1}_{name}"
        tables.append(_trino_table(part, version, f"{output}/{folder}"))
        selects.append(f"SELECT {_names(schema, version, _TRINO)} FROM hive.default.{_quoted(part)}")
    return "".join(tables) + f"CREATE OR REPLACE VIEW hive.default.{_quoted(name)} AS {' UNION ALL '.join(selects)};\n"


def _trino_table(name: str, version: Sequence[Sequence[Any]], place: str) -> str:
    # Hive's partition column comes last, and has the type of its folder's name.
    columns = ", ".join(
        f"{_quoted(each)} {'varchar' if each == DATE else _TRINO[kind]}"
        for each, kind, *_ in sorted(version, key=lambda column: column[0] == DATE)
    )
    return (
        f"CREATE TABLE IF NOT EXISTS hive.default.{_quoted(name)} ({columns}) "
        f"WITH (external_location = '{_text(place)}', format = 'PARQUET', partitioned_by = ARRAY['{DATE}']);\n"
        f"CALL hive.system.sync_partition_metadata('default', '{name}', 'FULL');\n"
    )
