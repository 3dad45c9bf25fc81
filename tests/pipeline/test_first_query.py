"""The first queries of docs/pipeline.md, run as they stand there over a record and tables like those of `make demo`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from canopy_pipeline.tables.tables_job import run
from tests.pipeline.command_on_path import put_command_on_path
from tests.pipeline.tables.fleet import mapping, story

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/pipeline.md").read_text()


def snippets() -> list[str]:
    """Those of DuckDB, Polars and Spark."""
    part = PAGE.partition("## From a demo to a query")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make demo` leaves, in the working directory; `canopy` is what is tested here."""
    made = tmp_path / "canopy-demo/1"
    story().write(made / "record", segments=2)
    run(str(made / "record"), str(made / "tables"), str(mapping(tmp_path / "maps")))
    (tmp_path / "canopy-demo/last").symlink_to("1")
    put_command_on_path(tmp_path, monkeypatch)


@pytest.mark.usefixtures("demo")
def test_duckdb_and_polars_print_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    duckdb, polars, _ = snippets()
    names: dict[str, Any] = {}
    for code in (duckdb, polars):
        exec(code, names)
        printed = capsys.readouterr().out
        assert re.search(r"publish\W+25\b", printed)
        assert re.search(r"s1\W+d1\W+3\W+231\.5", printed)


@pytest.mark.long
@pytest.mark.usefixtures("demo")
def test_spark_prints_the_same(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    duckdb, _, of_spark = snippets()
    names: dict[str, Any] = {}
    exec(duckdb, names)
    capsys.readouterr()
    exec(of_spark, names)
    printed = capsys.readouterr().out
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)
    assert re.search(r"publish\W+25\b", printed)
    assert re.search(r"s1\W+d1\W+3\W+231\.5", printed)
