"""Spark reads the tables by their views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from canopy_pipeline.tables.plans import DEAD_LETTERS
from canopy_pipeline.tables.tables_job import run
from tests.pipeline.tables.fleet import mapping, story


@pytest.mark.long
def test_spark_reads_what_duckdb_reads(spark: SparkSession, tmp_path: Path) -> None:
    story().write(tmp_path / "record", segments=2)
    file = str(mapping(tmp_path / "maps"))
    here = run(str(tmp_path / "record"), str(tmp_path / "here"), file)
    for statement in (tmp_path / "here/views.spark.sql").read_text().split(";\n"):
        if statement.strip():
            spark.sql(statement)
    with duckdb.connect() as session:
        session.sql("set timezone = 'UTC'")
        session.sql((tmp_path / "here/views.duckdb.sql").read_text())
        for name in (*here.rows, DEAD_LETTERS):
            expected = session.sql(f"select * from {name} order by all").to_arrow_table().to_pylist()
            found = [row.asDict() for row in spark.table(name).collect()]
            assert sorted(map(_plain, found)) == sorted(map(_plain, expected))
            spark.catalog.dropTempView(name)


def _plain(row: dict[str, Any]) -> str:
    times = {name: value.timestamp() if hasattr(value, "timestamp") else value for name, value in row.items()}
    return repr({name: bytes(value) if isinstance(value, bytearray) else value for name, value in times.items()})
