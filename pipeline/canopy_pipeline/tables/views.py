"""SQL that makes views of the tables for their readers: DuckDB and Spark.

Promises: a view has the columns of its table, with the same names and in the same order everywhere. A table without
rows has no view, since some readers refuse a folder without files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from canopy_pipeline.tables.evolution import Version, described
from canopy_pipeline.tables.plans import DATE

_DUCKDB: Final = {
    "bool": "boolean", "int8": "tinyint", "int32": "integer", "int64": "bigint", "double": "double",
    "string": "varchar", "binary": "blob", "timestamp[us, tz=UTC]": "timestamptz",
}  # fmt: skip
"""Arrow's types in DuckDB."""
_POSTGRESQL: Final = {**_DUCKDB, "int8": "smallint", "double": "double precision", "string": "text", "binary": "bytea"}
_SPARK: Final = {**_DUCKDB, "string": "string", "binary": "binary", "timestamp[us, tz=UTC]": "timestamp"}

RECORD: Final = "record="
"""The folder of the tables of one of several records begins so."""

Versions = Mapping[str, Mapping[str, Version]]
"""Of each table: its folders, and the columns in each."""


def views(
    schemas: Mapping[str, Any],
    output: str,
    delta: bool,
    written: Collection[str],
    versions: Versions,
    record: bool = False,
) -> dict[str, str]:
    """The files, by name; `schemas`: of all tables; `output`: where they are, absolute. With `record` the first column
    is the name of the record, from the folder `record=NAME` above those of the tables."""
    empty = [name for name in schemas if name not in written]
    head = f"-- No rows yet, and no view: {', '.join(empty)}\n" if empty else ""
    made = {"duckdb": head, "spark": head}
    for name in written:
        schema = schemas[name]
        parts = versions.get(name) or {name: described(schema)}
        duckdb, spark = [], []
        for folder, version in parts.items():
            which = of_record(folder) if record else ""
            place = f"{output}/{folder}".replace("'", "''")
            # A pattern, in which the folder's own name has none.
            files = re.sub(r"([*?\[])", r"[\1]", place)
            rows = (
                f"delta_scan('{place}')" if delta else f"read_parquet('{files}/*/*.parquet', hive_partitioning = true)"
            )
            duckdb.append(f"SELECT {which}{_names(schema, version, _DUCKDB)} FROM {rows}")
            place = f"{output}/{folder}".replace("`", "``")
            place = place if delta else re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", place)
            names = _names(schema, version, _SPARK).replace('"', "`")
            spark.append(f"SELECT {which}{names} FROM {'delta' if delta else 'parquet'}.`{place}`")
        made["duckdb"] += f"CREATE OR REPLACE VIEW {_quoted(name)} AS {' UNION ALL '.join(duckdb)};\n"
        made["spark"] += f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS {' UNION ALL '.join(spark)};\n"
    return {f"views.{reader}.sql": text for reader, text in made.items()}


def schema_views(schemas: Mapping[str, Any], namespace: str, versions: Versions) -> dict[str, str]:
    """The same for tables of PostgreSQL: views in a schema, over the tables `record=NAME/SCHEMA.TABLE` of others."""
    made = f"CREATE SCHEMA IF NOT EXISTS {namespace};\n"
    for name, schema in schemas.items():
        selects = [
            f"SELECT {of_record(place)}{_names(schema, version, _POSTGRESQL)} FROM {place.rpartition('/')[2]}"
            for place, version in versions[name].items()
        ]
        view = f'"{namespace}".{_quoted(name)}'
        made += f"DROP VIEW IF EXISTS {view};\nCREATE VIEW {view} AS {' UNION ALL '.join(selects)};\n"
    return {"views.postgresql.sql": made}


def _names(schema: Any, version: Version, types: Mapping[str, str]) -> str:
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


def of_record(folder: str) -> str:
    """Return the column that names the record of a table's folder."""
    return f"'{folder.rpartition('/')[0].removeprefix(RECORD)}' AS record, "
