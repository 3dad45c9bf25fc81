"""Spark makes the tables that this process makes, and reads them by the views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from pipeline.tables.job import Options, run
from pipeline.tables.plans import DEAD_LETTERS
from tests.pipeline.tables.fleet import mapping, story


@pytest.mark.long
def test_spark_makes_the_same_tables_and_its_views_read_them(spark: SparkSession, tmp_path: Path) -> None:
    story().write(tmp_path / "record", segments=2)
    file = str(mapping(tmp_path / "maps"))
    here = run(str(tmp_path / "record"), str(tmp_path / "here"), file)
    # In two batches: the second resolves aliases by the births of the first.
    there = run(str(tmp_path / "record"), str(tmp_path / "there"), file, Options(batch=13), spark)
    assert there.done.version == 2
    assert (there.rows, there.done.dead, there.done.read) == (here.rows, here.done.dead, here.done.read)
    for statement in (tmp_path / "there/views.spark.sql").read_text().split(";\n"):
        if statement.strip():
            spark.sql(statement)
    with duckdb.connect() as session:
        session.sql("set timezone = 'UTC'")
        session.sql((tmp_path / "here/views.duckdb.sql").read_text())
        for name in (*here.rows, DEAD_LETTERS):
            expected = session.sql(f"select * from {name} order by all").to_arrow_table().to_pylist()
            found = spark.table(name).toArrow().to_pylist()
            assert sorted(map(_plain, found)) == sorted(map(_plain, expected))
            spark.catalog.dropTempView(name)


def _plain(row: dict[str, Any]) -> str:
    times = {name: value.timestamp() if hasattr(value, "timestamp") else value for name, value in row.items()}
    return repr({name: bytes(value) if isinstance(value, bytearray) else value for name, value in times.items()})
