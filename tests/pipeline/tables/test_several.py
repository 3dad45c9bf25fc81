"""Several records in one output: each folder with its own numbers, gaps and progress, and one view over all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from canopy_mqtt.words import counted
from canopy_pipeline.cli import app
from canopy_pipeline.errors import MisuseError, UnreadError
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.sinks.sink_of import DELTA, ICEBERG, PARQUET, POSTGRESQL
from canopy_pipeline.tables.tables_job import TablesOptions, TablesOutcome, run_all
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import mapping
from tests.pipeline.tables.sinks.postgresql_place import ask
from tests.pipeline.tables.sinks.test_iceberg import closed, configured  # noqa: F401
from tests.pipeline.tables.sinks.test_postgresql import Watched
from tests.pipeline.tables.test_backfill import of_delta, of_iceberg, place
from tests.support.runs import for_each

BEFORE = """
[tables.power]
filter = "site/{site}/power"
format = "json"
columns.watts = "int32"
"""
AFTER = BEFORE.replace("int32", "int64") + 'columns.volts = "float64"\n'
EXPECTED = [("w0", 1, 10), ("w0", 2, 20), ("w1", 1, 11), ("w1", 2, 21), ("w1", 3, 31)]
"""Record, number and watts."""


def sent(folder: Path, run_id: str, first: int, *watts: int) -> list[Path]:
    """Add messages to a record, each in a segment; they crossed to no other."""
    told = Story(run_id, first_seq=first)
    for each in watts:
        told.publish("c", "site/a/power", b'{"watts": %d}' % each)
    return told.write(folder, len(watts))


def begun(folder: Path) -> Path:
    """Two workers; what a message of the first brought to the second is no row of its own."""
    sent(folder / "record/w0", "0a0a0a0a", 1, 10, 20)
    sent(folder / "record/w1", "0b0b0b0b", 1, 11, 21, 31)
    came = Story("0b0b0b0b", first_seq=4)
    came.add(
        "arrive", client_id="$node/w0", topic="site/a/power", payload=b'{"watts": 10}', size=1, qos=0, retain=False
    )
    came.write(folder / "record/w1")
    mapping(folder / "maps", BEFORE)
    return folder


def tables(folder: Path, *inputs: Path, format_: str = PARQUET, **more: Any) -> dict[str, TablesOutcome]:
    options = TablesOptions(format_, **place(folder, format_), **more)
    sources = [str(each) for each in inputs or [folder / "record"]]
    return run_all(sources, str(folder / "out"), str(folder / "maps/tables.toml"), options)


def rows(out: Path, columns: str = "record, seq, watts") -> list[tuple[Any, ...]]:
    with duckdb.connect() as session:
        session.sql((out / "views.duckdb.sql").read_text())
        return session.sql(f"select {columns} from power order by record, seq").fetchall()


def test_a_view_has_the_rows_of_all_workers(tmp_path: Path) -> None:
    outcomes = tables(begun(tmp_path))
    assert {name: outcome.rows["power"] for name, outcome in outcomes.items()} == {"w0": 2, "w1": 3}
    assert all(outcome.coverage.complete for outcome in outcomes.values())
    assert rows(tmp_path / "out") == EXPECTED
    # One goes on, with other columns; and another worker has come.
    mapping(tmp_path / "maps", AFTER)
    sent(tmp_path / "record/w0", "0a0a0a0a", 3, 1 << 40)
    sent(tmp_path / "record/w2", "0c0c0c0c", 1, 12)
    tables(tmp_path)
    assert rows(tmp_path / "out") == [*EXPECTED[:2], ("w0", 3, 1 << 40), *EXPECTED[2:], ("w2", 1, 12)]


def test_delta_and_iceberg_have_a_table_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, tmp_path / "lake")
    begun(tmp_path / DELTA)
    tables(tmp_path / DELTA, format_=DELTA)
    found = {name: [*of_delta(tmp_path / DELTA / f"out/record={name}/power")] for name in ("w0", "w1")}
    assert all(found.values())
    begun(tmp_path / ICEBERG)
    tables(tmp_path / ICEBERG, format_=ICEBERG)
    found = {name: of_iceberg("power", f"canopy_{name}") for name in ("w0", "w1")}
    assert [duckdb.execute("select count(*) from read_parquet(?)", [each]).fetchall() for each in found.values()] == [
        [(2,)],
        [(3,)],
    ]


def test_a_view_in_postgresql(tmp_path: Path) -> None:
    begun(tmp_path)
    tables(tmp_path, format_=POSTGRESQL)
    mapping(tmp_path / "maps", AFTER)
    sent(tmp_path / "record/w0", "0a0a0a0a", 3, 1 << 40)
    tables(tmp_path, format_=POSTGRESQL)
    view = (tmp_path / "out/views.postgresql.sql").read_text()
    for _ in range(2):
        ask(tmp_path, f"do $do$ begin {view} end $do$")
    found = ask(tmp_path, "select record, seq, watts from power order by record, seq")
    assert found == [*EXPECTED[:2], ("w0", 3, 1 << 40), *EXPECTED[2:]]


def test_records_of_sites_have_the_names_of_their_folders(tmp_path: Path) -> None:
    sent(tmp_path / "north", "0a0a0a0a", 1, 10)
    sent(tmp_path / "south/w0", "0b0b0b0b", 1, 11)
    sent(tmp_path / "south/w1", "0c0c0c0c", 1, 12)
    mapping(tmp_path / "maps", BEFORE)
    sites = (tmp_path / "north", tmp_path / "south")
    assert [*tables(tmp_path, *sites)] == ["north", "south-w0", "south-w1"]
    assert rows(tmp_path / "out") == [("north", 1, 10), ("south-w0", 1, 11), ("south-w1", 1, 12)]
    sent(tmp_path / "other/north", "0d0d0d0d", 1, 10)
    with pytest.raises(MisuseError, match="a second record of the name north; name its folder otherwise"):
        tables(tmp_path, *sites, tmp_path / "other/north")


@for_each("second", ["a part of it", "link", "copy"])
def test_one_record_under_two_inputs_is_a_mistake(tmp_path: Path, second: str) -> None:
    record, other = begun(tmp_path) / "record", tmp_path / "other"
    if second == "a part of it":
        other = record / "w0"
    elif second == "link":
        other.symlink_to(record)
    else:
        shutil.copytree(record, other)
    with pytest.raises(MisuseError, match=r"is in another input already|the same record under two inputs"):
        tables(tmp_path, record, other)
    assert not (tmp_path / "out").exists()


def test_what_a_broker_recorded_before_it_had_workers_stays_where_it_is(tmp_path: Path) -> None:
    sent(tmp_path / "record", "0d0d0d0d", 1, 5)
    mapping(tmp_path / "maps", BEFORE)
    tables(tmp_path)
    begun(tmp_path)
    # The files of the workers lie below the folder of the first, and are not its own.
    assert [each.coverage.lines()[0] for each in tables(tmp_path).values()] == [
        f"the record is complete up to number {end}: {counted(events, 'event')} in {counted(segments, 'segment')} read"
        for end, events, segments in ((1, 1, 1), (2, 2, 2), (4, 4, 4))
    ]
    assert rows(tmp_path / "out") == [("", 1, 5), *EXPECTED]
    with pytest.raises(MisuseError, match="has the tables of a single record; give another folder for several"):
        tables(tmp_path, tmp_path / "record/w0", tmp_path / "record/w1")


def test_each_has_its_own_gaps(tmp_path: Path) -> None:
    begun(tmp_path)
    gone = sorted((tmp_path / "record/w1").rglob("seg-*.parquet"))[1]
    gone.rename(tmp_path / "away")
    flags = ["--input", str(tmp_path / "record"), "--output", str(tmp_path / "out")]
    flags += ["--mapping", str(tmp_path / "maps/tables.toml"), "--metrics", str(tmp_path / "metrics")]
    done = CliRunner().invoke(app, ["tables", *flags])
    assert done.exit_code == 3, done.output
    assert "w0: power: 2 rows" in done.stdout
    assert "5 events in 5 segments read, 1 is missing" in done.stderr
    assert f"{tmp_path}/record/w1/" in done.stderr
    assert 'canopy_job_tables_rows{job="tables",table="power",record="w1"} 2' in (tmp_path / "metrics").read_text()
    sent(tmp_path / "record/w1", "0b0b0b0b", 5, 41, 51)[0].unlink()
    with pytest.raises(UnreadError, match=r"w1: the tables end before these events, at number 4\. .* --allow-gaps"):
        tables(tmp_path)
    tables(tmp_path, allow_gaps=True)
    (tmp_path / "away").rename(gone)
    tables(tmp_path)
    assert rows(tmp_path / "out") == [*EXPECTED, ("w1", 6, 51)]


def test_a_worker_that_comes_later_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(tmp_path / "record/w0", "0a0a0a0a", 1, 10)
    mapping(tmp_path / "maps", BEFORE)

    def more() -> None:
        sent(tmp_path / "record/w1", "0b0b0b0b", 1, 11)

    Watched(monkeypatch, more, lambda: None)
    assert [*tables(tmp_path, max_lag=1.0)] == ["w0", "w1"]
    assert rows(tmp_path / "out") == [("w0", 1, 10), ("w1", 1, 11)]


def test_a_range_is_of_one_folder(tmp_path: Path) -> None:
    begun(tmp_path)
    tables(tmp_path)
    with pytest.raises(MisuseError, match="--replace: numbers are those of one folder of a record"):
        tables(tmp_path, replace=Range(1, 2))
    options = TablesOptions(replace=Range(1, 2))
    out, file = str(tmp_path / "out/record=w0"), str(tmp_path / "maps/tables.toml")
    assert run_all([str(tmp_path / "record/w0")], out, file, options)[""].rows == {"power": 2}
