"""A mapping that has grown: the same tables go on, their history stays, and each row is there once after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyspark.sql import SparkSession

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.record.segments import Say, unsaid
from canopy_pipeline.tables.sinks.sink_of import DELTA, ICEBERG, PARQUET
from canopy_pipeline.tables.tables_job import TablesOptions, TablesOutcome, run
from tests.pipeline.record.test_killed import killed
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import mapping
from tests.pipeline.tables.sinks.test_iceberg import configured, stopped
from tests.pipeline.tables.test_tables import numbers, rows
from tests.support.runs import for_each

BEFORE = """
[tables.power]
filter = "site/{site}/power"
format = "json"
columns.phase = "int32"
columns.watts = { path = "w", type = "float64" }
columns.more = "json"
"""
AFTER = """
[tables.power]
filter = "site/{site}/power"
format = "json"
late = "1d"
columns.volts = "float64"
columns.phase = "int64"
columns.watts = { path = ["power", "watts"], type = "float64" }
columns.more = "json"

[tables.notes]
filter = "site/{site}/notes"
format = "text"
"""
WIDE = 1 << 40
EXPECTED = [(1, 1.5, None), (2, 2.5, None), (WIDE, 3.5, 230.0), (1, 4.5, None)]
"""Phase, watts and volts."""


def first(folder: Path, format_: str = PARQUET) -> None:
    """Two messages in tables."""
    told = Story()
    for number in (1, 2):
        told.publish("c", "site/a/power", b'{"phase": %d, "w": %d.5}' % (number, number))
    told.write(folder / "record")
    mapping(folder / "maps", BEFORE)
    tables(folder, format_)


def begun(folder: Path, format_: str = PARQUET) -> None:
    """Two messages in tables, and two more, by a newer firmware, in the record alone."""
    first(folder, format_)
    told = Story(first_seq=3)
    told.publish("c", "site/a/power", b'{"phase": %d, "power": {"watts": 3.5}, "volts": 230}' % WIDE)
    told.publish("c", "site/a/power", b'{"phase": 1, "power": {"watts": 4.5}}')
    told.publish("c", "site/a/notes", b"new")
    told.publish("c", "site/a/power", b"no JSON")
    told.write(folder / "record", segments=3)
    mapping(folder / "maps", AFTER)


def tables(folder: Path, format_: str = PARQUET, out: str = "out", say: Say = unsaid) -> TablesOutcome:
    options = TablesOptions(format_, catalog="plant")
    return run(str(folder / "record"), str(folder / out), str(folder / "maps/tables.toml"), options, say)


def test_folders_of_parquet_have_a_new_version_and_one_view_over_all(tmp_path: Path) -> None:
    begun(tmp_path)
    said: list[str] = []
    outcome = tables(tmp_path, say=said.append)
    assert outcome.rows == {"power": 4, "notes": 1}
    [line] = [line for line in said if "views" in line]
    assert line.startswith("power: its columns have changed, and its rows from number 3 on are in power.v2: ")
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir() if path.is_dir() and path.name[0] != "_") == [
        "dead_letters", "notes", "power", "power.v2",
    ]  # fmt: skip
    assert rows(out, "power", "phase, watts, volts") == EXPECTED
    assert rows(out, "notes", "value") == [("new",)]
    read = [pl.scan_parquet(f"{out}/{each}/**/*.parquet", hive_partitioning=True) for each in ("power", "power.v2")]
    found = pl.concat(read, how="diagonal_relaxed").sort("seq").select("phase", "watts", "volts").collect()
    assert found.rows() == EXPECTED
    # The same mapping again makes no version.
    tables(tmp_path)
    assert not (out / "power.v3").exists()


@pytest.mark.parametrize("format_", [PARQUET, DELTA])
def test_a_mistake_can_be_taken_back_until_a_row_has_its_columns(tmp_path: Path, format_: str) -> None:
    first(tmp_path, format_)
    wrong = BEFORE.replace("int32", "int64") + 'columns.voltz = "float64"\n'
    mapping(tmp_path / "maps", wrong + '[tables.typo]\nfilter = "typo"\nformat = "text"\n')
    told = Story(first_seq=3)
    told.publish("c", "elsewhere", b"")
    told.write(tmp_path / "record", segments=3)
    assert tables(tmp_path, format_).done.through == 3
    view = (tmp_path / "out/views.duckdb.sql").read_text()
    assert 'cast("phase" as bigint) as "phase", ' in view
    assert 'cast(null as double) as "voltz"' in view
    mapping(tmp_path / "maps", BEFORE)
    told = Story(first_seq=4)
    told.publish("c", "site/a/power", b'{"phase": 3, "w": 3.5}')
    told.write(tmp_path / "record", segments=4)
    assert tables(tmp_path, format_).rows == {"power": 3}
    assert not (tmp_path / "out/power.v2").exists()
    if format_ == DELTA:
        found = pl.read_delta(str(tmp_path / "out/power"))
        assert found.schema["phase"] == pl.Int32
        assert "voltz" not in found.columns


def test_a_run_that_failed_before_its_first_commit_binds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path / "lake", uri="sqlite:////no/such/folder/catalog.db")
    with pytest.raises(PipelineError, match="--catalog plant"):
        first(tmp_path, ICEBERG)
    mapping(tmp_path / "maps", BEFORE.replace("int32", "string").replace("tables.power", "tables.other"))
    assert tables(tmp_path).done.dead == {("other", "wrong-type"): 2}
    mapping(tmp_path / "maps", BEFORE)
    assert tables(tmp_path).done.through == 2


def test_tables_of_an_earlier_format_are_a_line(tmp_path: Path) -> None:
    first(tmp_path)
    place = tmp_path / "out/_tables.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "format": 1}))
    with pytest.raises(PipelineError, match="made by an earlier Canopy; give another --output"):
        tables(tmp_path)


@for_each("text", [AFTER, AFTER.replace("int64", "int32")], ids=["wider", "new columns"])
def test_a_column_that_somebody_added_to_a_table_of_delta_stays(tmp_path: Path, text: str) -> None:
    begun(tmp_path, DELTA)
    place = tmp_path / "out/power"
    deltalake.DeltaTable(place).alter.add_columns(
        [deltalake.Field("checked", deltalake.schema.PrimitiveType("string"))]
    )
    deltalake.DeltaTable(place).update(updates={"checked": "'yes'"})
    mapping(tmp_path / "maps", text)
    tables(tmp_path, DELTA)
    found = pl.read_delta(str(place)).sort("seq").select("seq", "checked", "volts").rows()
    later = [(3, None, 230.0)] if text == AFTER else []
    assert found == [(1, "yes", None), (2, "yes", None), *later, (4, None, None)]


def test_rows_that_a_table_of_delta_does_not_take_are_a_line(tmp_path: Path) -> None:
    begun(tmp_path, DELTA)
    place = tmp_path / "out/power"
    deltalake.DeltaTable(place).alter.add_constraint({"small": "watts < 3"})
    with pytest.raises(PipelineError, match=rf"{place}: .*not in the table yet comes with the next run"):
        tables(tmp_path, DELTA)
    deltalake.DeltaTable(place).alter.drop_constraint("small")
    tables(tmp_path, DELTA)
    assert found(tmp_path / "out", DELTA) == EXPECTED


def test_a_table_of_delta_has_the_new_columns(tmp_path: Path) -> None:
    begun(tmp_path, DELTA)
    tables(tmp_path, DELTA)
    place = tmp_path / "out/power"
    table = deltalake.DeltaTable(place)
    columns = ["phase", "watts", "volts"]
    assert pl.read_delta(str(place)).sort("seq").select(columns).rows() == EXPECTED
    files = table.file_uris()
    assert (
        duckdb.execute(
            f"select phase, watts, volts from read_parquet({files}, union_by_name = true) order by seq"
        ).fetchall()
        == EXPECTED
    )
    # A batch, the columns, a batch.
    assert [each["operation"] for each in table.history()][::-1] == ["CREATE TABLE", "WRITE", "WRITE", "WRITE"]
    assert table.transaction_version(f"canopy-tables-{stream(tmp_path)}") == 2
    assert deltalake.DeltaTable(place, version=1).to_pyarrow_table().num_rows == 2


def stream(folder: Path) -> str:
    return str(json.loads((folder / "out/_tables.json").read_text())["stream"])


def test_new_columns_alone_are_a_commit_of_metadata(tmp_path: Path) -> None:
    begun(tmp_path, DELTA)
    mapping(tmp_path / "maps", AFTER.replace("int64", "int32"))
    tables(tmp_path, DELTA)
    table = deltalake.DeltaTable(tmp_path / "out/power")
    assert [each["operation"] for each in table.history()][::-1] == ["CREATE TABLE", "WRITE", "ADD COLUMN", "WRITE"]
    assert pl.read_delta(str(tmp_path / "out/power")).height == 3


def test_a_table_of_iceberg_has_the_new_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, tmp_path / "lake")
    begun(tmp_path, ICEBERG)
    tables(tmp_path, ICEBERG)
    with pyiceberg.catalog.load_catalog("plant") as catalog:
        table = catalog.load_table("canopy.power")
        found = table.scan(selected_fields=("seq", "phase", "watts", "volts")).to_arrow().sort_by("seq").to_pylist()
        assert [(each["phase"], each["watts"], each["volts"]) for each in found] == EXPECTED
        assert len(table.snapshots()) == 2
        files = table.inspect.files()["file_path"].to_pylist()
        read = f"select phase, watts, volts from read_parquet({files}, union_by_name = true) order by seq"
        assert duckdb.execute(read).fetchall() == EXPECTED
        lazily = pl.scan_iceberg(table, reader_override="pyiceberg")
        assert lazily.sort("seq").select("phase", "watts", "volts").collect().rows() == EXPECTED


@for_each("steps", range(9))
def test_stopped_at_every_commit_to_a_catalog_each_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Before and after each: the columns, and the rows of three tables; the last one is not stopped."""
    configured(monkeypatch, tmp_path / "lake")
    begun(tmp_path, ICEBERG)
    with stopped(monkeypatch, steps) as made:
        tables(tmp_path, ICEBERG)
        assert len(made) == steps
    assert tables(tmp_path, ICEBERG).rows == {"power": 4, "notes": 1}
    with pyiceberg.catalog.load_catalog("plant") as catalog:
        power = catalog.load_table("canopy.power").scan().to_arrow().sort_by("seq").to_pylist()
        assert [(each["phase"], each["watts"], each["volts"]) for each in power] == EXPECTED
        for name in ("notes", "dead_letters"):
            assert catalog.load_table(f"canopy.{name}").scan().to_arrow().num_rows == 1


@for_each("owner", ["canopy", "somebody else"])
def test_a_table_of_iceberg_that_is_anothers_is_not_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    configured(monkeypatch, tmp_path / "lake")
    begun(tmp_path, ICEBERG)
    with pyiceberg.catalog.load_catalog("plant") as catalog:
        if owner == "somebody else":
            catalog.drop_table("canopy.power")
            catalog.create_table("canopy.power", pa.schema([("x", pa.int32())]))
        before = catalog.load_table("canopy.power").metadata
        with pytest.raises(MisuseError, match="--namespace canopy: its table power is not of these tables"):
            tables(tmp_path, ICEBERG, "other")
        assert catalog.load_table("canopy.power").metadata == before
    assert not (tmp_path / "other/_commits").exists()


@pytest.mark.long
def test_spark_reads_all_versions_by_its_view(spark: SparkSession, tmp_path: Path) -> None:
    begun(tmp_path)
    tables(tmp_path)
    for statement in (tmp_path / "out/views.spark.sql").read_text().split(";\n"):
        if statement.strip():
            spark.sql(statement)
    found = [tuple(row) for row in spark.sql("select phase, watts, volts from power order by seq").collect()]
    for name in ("power", "notes"):
        spark.catalog.dropTempView(name)
    assert found == EXPECTED


@for_each(
    ("text", "why"),
    [
        (
            BEFORE.replace("int32", "int64").replace("float64", "string"),
            r"power\.columns\.watts was float64 .* now string",
        ),
        (BEFORE.replace('columns.phase = "int32"\n', ""), r"power\.columns\.phase is no longer in the mapping: put it"),
        (BEFORE.replace("{site}", "{plant}"), r"power\.columns\.site is no longer"),
        (BEFORE.replace('more = "json"', 'more = "string"'), r"power\.columns\.more was json .* now string"),
        (
            BEFORE.replace("site/{site}/power", "{site}/+/power"),
            r"power\.columns\.site was level 2 of the topic .* now level 1 of the topic",
        ),
        (
            BEFORE.replace("{site}", "+") + 'columns.site = "string"\n',
            r"power\.columns\.site was level 2 of the topic .* now string",
        ),
        (BEFORE + 'event_time = "at"\ncolumns.at = "timestamp"\n', r"power\.event_time was not set .* now at"),
        (BEFORE.replace("tables.power", "tables.other"), r"tables\.power is no longer in the mapping"),
    ],
)
def test_what_would_change_older_rows_is_refused(tmp_path: Path, text: str, why: str) -> None:
    begun(tmp_path)
    mapping(tmp_path / "maps", text)
    before = (tmp_path / "out/_tables.json").read_text()
    with pytest.raises(MisuseError, match=why) as raised:
        tables(tmp_path)
    assert str(raised.value).startswith(f"--mapping {tmp_path}/maps/tables.toml: tables.")
    assert "--output" in str(raised.value)
    assert (tmp_path / "out/_tables.json").read_text() == before


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "format_", "text"),
    [
        pytest.param("tables", PARQUET, AFTER, id="parquet"),
        pytest.param("tables-delta", DELTA, AFTER, id="delta, wider", marks=pytest.mark.long),
        pytest.param("tables-delta", DELTA, AFTER.replace('"int64"', '"int32"'), id="delta", marks=pytest.mark.long),
    ],
)
def test_killed_at_every_step_each_row_is_there_once(tmp_path: Path, job: str, format_: str, text: str) -> None:
    whole = tmp_path / "whole"
    begun(whole, format_)
    mapping(whole / "maps", text)
    expected = EXPECTED if text == AFTER else [each for each in EXPECTED if each[0] != WIDE]
    folders, made = killed(job, whole, tmp_path)
    assert len(made) >= 20
    assert {"open", "os.rename"} <= {each.partition(" ")[0] for each in made}
    for folder in folders:
        assert tables(folder, format_).rows == {"power": len(expected), "notes": 1}
        assert found(folder / "out", format_) == expected, folder.name
        assert not list((folder / "out").glob("_staging-*"))


def found(out: Path, format_: str) -> list[Any]:
    if format_ == DELTA:
        return pl.read_delta(str(out / "power")).sort("seq").select("phase", "watts", "volts").rows()
    assert numbers(out) == {"power": [1, 2], "power.v2": [3, 4], "notes": [5], "dead_letters": [6]}
    return rows(out, "power", "phase, watts, volts")
