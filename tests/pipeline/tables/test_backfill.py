"""`canopy pipeline tables --replace`: a range made again, once, whatever it lacked before; checked by DuckDB alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest
from pyiceberg.types import StringType
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job
from canopy_pipeline.errors import MisuseError, PipelineError, UnreadError
from canopy_pipeline.record.segments import Say, unsaid
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.local import stage
from canopy_pipeline.tables.sinks.sink_of import DELTA, ICEBERG, PARQUET, POSTGRESQL
from canopy_pipeline.tables.tables_job import TablesOptions, TablesOutcome, run
from tests.pipeline.folder import NOW
from tests.pipeline.record.test_killed import killed
from tests.pipeline.recorded import Story, taken_away
from tests.pipeline.tables.fleet import mapping, sparkplug, story
from tests.pipeline.tables.sinks.postgresql_place import ask, terms
from tests.pipeline.tables.sinks.test_iceberg import closed, configured, stopped  # noqa: F401
from tests.support.runs import for_each

BEFORE = """
[tables.power]
filter = "site/{site}/power"
format = "json"
columns.watts = { path = "w", type = "float64" }
"""
AFTER = BEFORE.replace('path = "w"', 'path = ["power", "watts"]') + 'columns.volts = "float64"\n'
"""As the devices send from number 5 on."""
FORMATS = (PARQUET, DELTA, ICEBERG, POSTGRESQL)


def record(folder: Path) -> None:
    """Twelve messages in four segments."""
    told = Story()
    for number in range(1, 13):
        payload: dict[str, Any] = {"w": number} if number < 5 else {"power": {"watts": number}, "volts": 230}
        told.publish("c", "site/a/power", b"no JSON" if number == 12 else json.dumps(payload).encode())
        told.pause(1)
    told.write(folder / "record", segments=4)


def begun(folder: Path, format_: str = PARQUET) -> None:
    """The messages in tables; those from number 5 on were read with a mapping that was wrong for them."""
    record(folder)
    mapping(folder / "maps", BEFORE)
    tables(folder, format_, batch=12 if format_ == ICEBERG else 3)
    mapping(folder / "maps", AFTER)


def place(folder: Path, format_: str) -> dict[str, Any]:
    """Where the tables are, besides the output folder."""
    return terms(folder) if format_ == POSTGRESQL else {"catalog": "plant"}


def tables(folder: Path, format_: str = PARQUET, say: Say = unsaid, **more: Any) -> TablesOutcome:
    options = TablesOptions(format_, **place(folder, format_), **more)
    return run(str(folder / "record"), str(folder / "out"), str(folder / "maps/tables.toml"), options, say)


def again(folder: Path, format_: str = PARQUET, begin: str = "5", end: str = "8", **more: Any) -> TablesOutcome:
    return tables(folder, format_, replace=Range.of(begin, end), **more)


def test_segments_that_are_merged_meanwhile_are_read_where_they_are_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path)
    merged: list[int] = []

    def staged(*given: Any) -> Any:
        if not merged:
            none = timedelta(0)
            merged.append(compact_job.run(str(tmp_path / "record"), none, 1 << 20, none, now=NOW).removed)
        return stage(*given)

    monkeypatch.setattr("canopy_pipeline.tables.tables_job.stage", staged)
    assert again(tmp_path).rows == {"power": 11}
    assert merged == [3]


def read(out: Path, format_: str, table: str = "power", columns: str = "seq, watts") -> list[tuple[Any, ...]]:
    """What DuckDB finds in a table now."""
    if format_ == POSTGRESQL:
        return ask(out.parent, f"select {columns} from {table} order by seq")
    with duckdb.connect() as session:
        if format_ == PARQUET:
            session.sql((out / "views.duckdb.sql").read_text())
            return session.sql(f"select {columns} from {table} order by seq").fetchall()
        files = list(of_delta(out / table) if format_ == DELTA else of_iceberg(table))
        return session.execute(
            f"select {columns} from read_parquet(?, union_by_name = true) order by seq", [files]
        ).fetchall()


def of_delta(table: Path) -> Iterator[str]:
    """The files of a table of Delta Lake, by its log as it is: without a library of Delta's."""
    there: dict[str, None] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "remove" in action:
                there.pop(action["remove"]["path"], None)
            if "add" in action:
                there[action["add"]["path"]] = None
    return (f"{table}/{place}" for place in there)


def of_iceberg(table: str, namespace: str = "canopy") -> list[str]:
    found = pyiceberg.catalog.load_catalog("plant").load_table(f"{namespace}.{table}").inspect.files()
    return [str(each) for each in found.column("file_path").to_pylist()]


@pytest.fixture(autouse=True)
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, tmp_path / "lake")


WRONG = [(n, float(n) if n < 5 else None) for n in range(1, 12)]
AFTERWARDS = [(n, float(n)) for n in range(1, 12)]
MENDED = [(n, None if n > 8 else float(n)) for n in range(1, 12)]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_range_is_made_again_with_the_mapping_of_now(tmp_path: Path, format_: str) -> None:
    begun(tmp_path, format_)
    assert read(tmp_path / "out", format_) == WRONG
    outcome = again(tmp_path, format_)
    assert outcome.coverage.complete
    assert outcome.rows == {"power": 11}
    assert (outcome.done.read, outcome.done.through) == (12, 12)
    assert read(tmp_path / "out", format_) == MENDED
    assert read(tmp_path / "out", format_, columns="seq, volts")[4:9] == [(n, 230.0) for n in (5, 6, 7, 8)] + [
        (9, None)
    ]
    # A run without a range goes on, and changes nothing.
    assert tables(tmp_path, format_).done == outcome.done
    again(tmp_path, format_)
    assert read(tmp_path / "out", format_) == MENDED


@pytest.mark.parametrize("format_", FORMATS)
def test_dead_letters_are_decoded_again(tmp_path: Path, format_: str) -> None:
    record(tmp_path)
    told = Story(first_seq=13)
    told.publish("c", "site/a/power", b'{"volts": 1, "power": {"watts": 1.5}}')
    told.publish("c", "site/a/power", b'{"volts": "high"}')
    told.write(tmp_path / "record")
    mapping(tmp_path / "maps", AFTER)
    assert tables(tmp_path, format_).done.dead == {("power", "malformed"): 1, ("power", "wrong-type"): 1}
    mapping(tmp_path / "maps", AFTER + "[limits]\npayload_bytes = 20\n")
    outcome = again(tmp_path, format_, "13", "14")
    assert outcome.done.dead == {("power", "malformed"): 1, ("power", "wrong-type"): 1, ("power", "too-large"): 1}
    assert read(tmp_path / "out", format_, "dead_letters", "seq") == [(12,), (13,), (14,)]
    mapping(tmp_path / "maps", AFTER)
    outcome = again(tmp_path, format_, "13", "14")
    assert outcome.done.dead == {("power", "malformed"): 1, ("power", "wrong-type"): 1}
    assert read(tmp_path / "out", format_, "dead_letters", "seq") == [(12,), (14,)]
    assert read(tmp_path / "out", format_)[-1] == (13, 1.5)


@pytest.mark.parametrize("manifest_too", [False, True])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_segment_that_came_back_is_in_the_range(tmp_path: Path, format_: str, manifest_too: bool) -> None:
    """It was missing when the range was made first, and comes back between two runs."""
    record(tmp_path)
    folder = tmp_path / "record"
    back = taken_away(folder, sorted(folder.rglob("seg-*.parquet"))[1], tmp_path, manifest_too)
    mapping(tmp_path / "maps", BEFORE)
    assert tables(tmp_path, format_).coverage.missing == 3
    mapping(tmp_path / "maps", AFTER)
    lacking = again(tmp_path, format_)
    assert (lacking.coverage.complete, lacking.coverage.missing, lacking.done.read) == (False, 3, 9)
    assert read(tmp_path / "out", format_) == [each for each in MENDED if each[0] not in (4, 5, 6)]
    back()
    outcome = again(tmp_path, format_)
    assert (outcome.coverage.complete, outcome.done.read, outcome.done.unread) == (False, 11, [(4, 4)])
    assert read(tmp_path / "out", format_) == [each for each in MENDED if each[0] != 4]
    assert tables(tmp_path, format_).coverage.complete
    assert [seq for seq, _ in read(tmp_path / "out", format_)] == [seq for seq, _ in MENDED]


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_whose_events_are_gone_stay(tmp_path: Path, format_: str) -> None:
    begun(tmp_path, format_)
    sorted((tmp_path / "record").rglob("seg-*.parquet"))[1].unlink()
    before = (tmp_path / "out/summary.json").read_text()
    with pytest.raises(
        UnreadError, match=r"seg-.* is not there .*\n.*numbers 5 to 6 cannot be made again.*Nothing was"
    ):
        again(tmp_path, format_)
    assert read(tmp_path / "out", format_) == WRONG
    assert (tmp_path / "out/summary.json").read_text() == before
    said: list[str] = []
    again(tmp_path, format_, allow_gaps=True, say=said.append)
    assert "the rows of numbers 5 to 6 stay as they are" in said[1]
    assert read(tmp_path / "out", format_) == [(n, None if n in (5, 6) or n > 8 else float(n)) for n in range(1, 12)]
    with pytest.raises(UnreadError, match=r"Put the segments back$"):
        again(tmp_path, format_, "5", "6", allow_gaps=True)


def test_an_alias_has_the_name_that_it_had_then(tmp_path: Path) -> None:
    """Its last birth before the range, though another came later."""
    told = Story()
    topic = "spBv1.0/g/{}/n"
    for name in ("old", "new"):
        told.publish("e", topic.format("NBIRTH"), sparkplug({"name": name, "alias": 1, "datatype": 3, "int_value": 1}))
        told.publish("e", topic.format("NDATA"), sparkplug({"alias": 1, "int_value": 2}))
    told.write(tmp_path / "record", segments=4)
    mapping(tmp_path / "maps", '[tables.metrics]\nfilter = "spBv1.0/#"\nformat = "sparkplug"\n')
    before = tables(tmp_path).done
    outcome = again(tmp_path, begin="2", end="2")
    names = [(1, "old"), (2, "old"), (3, "new"), (4, "new")]
    assert read(tmp_path / "out", PARQUET, "metrics", "seq, metric") == names
    assert outcome.done.births == before.births


@for_each(
    ("begin", "end", "numbers"),
    [
        ("2026-11-21T16:00:04", "2026-11-21T16:00:08", (5, 8)),
        ("2026-11-21T16:00:04Z", None, (5, 12)),
        (None, "2026-11-21T16:00:00.500", (1, 1)),
        ("3", "2026-11-22", (3, 12)),
        ("11", "99", (11, 12)),
    ],
)
def test_a_range_is_of_numbers_or_times(tmp_path: Path, begin: str | None, end: str | None, numbers: object) -> None:
    begun(tmp_path)
    from canopy_pipeline.runtime.storage import Local

    assert Range.of(begin, end).numbers(Local(tmp_path / "record"), 12) == numbers


@for_each(
    ("begin", "end", "why"),
    [
        ("9", "5", "an empty range"),
        ("0", "5", "an empty range"),
        ("13", None, "the tables end at number 12, before this range; a run without --replace reads on"),
        ("2026-12-01", None, "the record has no event of that time"),
        ("yesterday", None, "--from yesterday: must be a time"),
        ("2026-11-22", "2026-11-21", "an empty range"),
    ],
)
def test_a_wrong_range_is_a_line_with_the_remedy(tmp_path: Path, begin: str, end: str | None, why: str) -> None:
    begun(tmp_path)
    with pytest.raises(MisuseError, match=why):
        tables(tmp_path, replace=Range.of(begin, end))
    assert read(tmp_path / "out", PARQUET) == WRONG


def test_the_exit_codes(tmp_path: Path) -> None:
    begun(tmp_path)
    arguments = ["tables", "--input", str(tmp_path / "record"), "--output", str(tmp_path / "out")]
    arguments += ["--mapping", str(tmp_path / "maps/tables.toml"), "--from", "5", "--to", "8"]

    def code(*more: str) -> int:
        return CliRunner().invoke(app, [*arguments, *more]).exit_code

    assert code() == 2
    assert code("--replace", "--follow") == 2
    assert code("--replace") == 0
    gone = sorted((tmp_path / "record").rglob("seg-*.parquet"))[1]
    gone.rename(tmp_path / "away")
    assert code("--replace") == 1
    assert code("--replace", "--allow-gaps") == 0
    (tmp_path / "out").rename(tmp_path / "before")
    assert CliRunner().invoke(app, arguments[:-4]).exit_code == 3
    assert code("--replace") == 3


def test_folders_that_other_rows_took_the_place_of_are_gone_and_told(tmp_path: Path) -> None:
    begun(tmp_path)
    said: list[str] = []
    again(tmp_path, say=said.append)
    assert sorted(path.name for path in (tmp_path / "out").glob("power*")) == ["power.v3", "power.v4"]
    [line] = [line for line in said if "views" in line]
    assert line.startswith("power: its rows are in power.v3 and power.v4 now: readers that keep a view of it ")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "format_"),
    [
        ("backfill", PARQUET),
        pytest.param("backfill-delta", DELTA, marks=pytest.mark.long),
    ],
)
def test_killed_at_every_step_each_row_is_there_once(tmp_path: Path, job: str, format_: str) -> None:
    """A reader has the rows of before or those of afterwards, at every step; the same command ends what was begun."""
    begun(tmp_path / "whole", format_)
    folders, made = killed(job, tmp_path / "whole", tmp_path)
    assert len(made) >= (19 if format_ == DELTA else 20)
    for folder in folders:
        if format_ == DELTA or (folder / "out/views.duckdb.sql").exists():
            before = [(seq, watts) for seq, watts in read(moved(folder, tmp_path / "whole"), format_)]
            assert before in (WRONG, AFTERWARDS), (folder.name, made)
        assert again(folder, format_, "5", "12").rows == {"power": 11}
        assert read(folder / "out", format_) == AFTERWARDS, folder.name
        assert read(folder / "out", format_, "dead_letters", "seq") == [(12,)]
        assert not list((folder / "out").glob("_staging-*"))
        assert len(list((folder / "out").glob("power*"))) <= 2


def moved(folder: Path, whole: Path) -> Path:
    """The tables of a copy, whose views name the folders of the copy."""
    views = folder / "out/views.duckdb.sql"
    if views.exists():
        views.write_text(views.read_text().replace(str(whole), str(folder)))
    return folder / "out"


@for_each("steps", range(9))
def test_stopped_at_every_commit_to_a_catalog_each_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    configured(monkeypatch, tmp_path / "lake")
    begun(tmp_path, ICEBERG)
    with stopped(monkeypatch, steps):
        again(tmp_path, ICEBERG, "5", "12")
    assert read(tmp_path / "out", ICEBERG) in (WRONG, AFTERWARDS)
    assert again(tmp_path, ICEBERG, "5", "12").rows == {"power": 11}
    assert read(tmp_path / "out", ICEBERG) == AFTERWARDS
    assert read(tmp_path / "out", ICEBERG, "dead_letters", "seq") == [(12,)]


def test_other_tables_and_days_stay(tmp_path: Path) -> None:
    """A range over all formats of payloads gives what a run over all of the record gives."""
    story(rounds=4).write(tmp_path / "record", segments=5)
    mapping(tmp_path / "maps")
    whole = tables(tmp_path)
    names = [*whole.rows, "dead_letters"]
    before = {name: read(tmp_path / "out", PARQUET, name, "* exclude (date)") for name in names}
    outcome = again(tmp_path, begin="9", end="20")
    assert outcome.rows == whole.rows
    assert outcome.done.dead == whole.done.dead
    assert {name: read(tmp_path / "out", PARQUET, name, "* exclude (date)") for name in names} == before


@pytest.mark.parametrize("format_", [DELTA, ICEBERG, POSTGRESQL])
def test_a_table_that_somebody_removed_is_a_line_and_not_begun_again(tmp_path: Path, format_: str) -> None:
    """Its later rows alone would be taken for all."""
    begun(tmp_path, format_)
    told = Story(first_seq=13)
    told.publish("c", "elsewhere", b"")
    told.write(tmp_path / "record")
    assert tables(tmp_path, format_).done.through == 13
    if format_ == DELTA:
        shutil.rmtree(tmp_path / "out/power")
    elif format_ == ICEBERG:
        pyiceberg.catalog.load_catalog("plant").drop_table("canopy.power")
    else:
        ask(tmp_path, "drop table power")
    for wanted in (None, Range(1, 5)):
        with pytest.raises(PipelineError, match="the table power is gone, which had 11 rows: put it back"):
            tables(tmp_path, format_, replace=wanted)


def test_folders_of_others_in_the_output_stay(tmp_path: Path) -> None:
    begun(tmp_path)
    for name in ("power.verified", "power.v2.old", "notes"):
        (tmp_path / "out" / name).mkdir()
    again(tmp_path)
    assert all((tmp_path / "out" / name).exists() for name in ("power.verified", "power.v2.old", "notes"))


def test_a_table_of_another_layout_is_a_line_with_the_remedy(tmp_path: Path) -> None:
    """Whatever somebody did to it; nothing is written then."""
    begun(tmp_path / DELTA, DELTA)
    strange = pa.table({"seq": ["x"], "date": ["2026-11-21"]})
    deltalake.write_deltalake(tmp_path / DELTA / "out/power", strange, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(MisuseError, match=r"out/power: its column seq is string, and long by .*; change it back"):
        again(tmp_path / DELTA, DELTA)
    begun(tmp_path / ICEBERG, ICEBERG)
    table = pyiceberg.catalog.load_catalog("plant").load_table("canopy.power")
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("watts")
    with table.update_schema() as update:
        update.add_column("watts", StringType())
    with pytest.raises(MisuseError, match=r"the column watts of its table power is string, and double by the mapping"):
        again(tmp_path / ICEBERG, ICEBERG)
    begun(tmp_path / PARQUET)
    alien = tmp_path / PARQUET / "out/power/date=2026-11-21/alien.parquet"
    pq.write_table(pa.table({"x": [1]}), alien)
    with pytest.raises(PipelineError, match=r"alien\.parquet: it has no column seq: .*move it away"):
        again(tmp_path / PARQUET)
    alien.write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match="not a whole Parquet file"):
        again(tmp_path / PARQUET)
    alien.unlink()
    again(tmp_path / PARQUET)
    assert read(tmp_path / PARQUET / "out", PARQUET) == MENDED
