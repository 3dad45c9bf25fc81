"""`canopy pipeline tables`: rows, dead letters, exactly once, and what readers see of them."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow.parquet as pq
import pytest

from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.errors import MisuseError, PipelineError, UnreadError
from canopy_pipeline.runtime.storage import Local
from canopy_pipeline.tables import local
from canopy_pipeline.tables.sinks import delta
from canopy_pipeline.tables.sinks.sink_of import DELTA
from canopy_pipeline.tables.tables_job import TablesOptions, TablesOutcome, run
from tests.pipeline.folder import NOW
from tests.pipeline.recorded import Story, taken_away
from tests.pipeline.tables.fleet import mapping, power, story

NONE = timedelta(0)
TABLES = ("power", "notes", "temperature", "valves", "pumps", "metrics")


def rows(out: Path, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with duckdb.connect() as session:
        session.sql("set timezone = 'UTC'")
        session.sql((out / "views.duckdb.sql").read_text())
        return session.sql(f"select {columns} from {table} order by seq").fetchall()


def numbers(out: Path) -> dict[str, list[int]]:
    """The sequence numbers in each table, as often as they are there."""
    found: dict[str, list[int]] = {}
    for file in sorted(out.glob("*/date=*/*.parquet")):
        found.setdefault(file.parts[-3], []).extend(pq.ParquetFile(file).read(["seq"]).column("seq").to_pylist())
    return {name: sorted(each) for name, each in found.items()}


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    story().write(tmp_path / "record", segments=4)
    mapping(tmp_path / "maps")
    return tmp_path


def tables(plant: Path, out: str = "out", options: TablesOptions | None = None) -> TablesOutcome:
    return run(str(plant / "record"), str(plant / out), str(plant / "maps/tables.toml"), options)


def test_every_format_becomes_a_table(plant: Path) -> None:
    outcome = tables(plant)
    assert outcome.rows == {"power": 3, "notes": 3, "temperature": 3, "valves": 3, "pumps": 3, "metrics": 4}
    assert outcome.coverage.complete
    out = plant / "out"
    at = datetime(2026, 11, 21, 16, 0, tzinfo=UTC)
    assert rows(out, "power", "topic, client_id, site, device, event_time, watts, phase, date")[0] == (
        "site/s1/device/d1/power", "client of site/s1/device/d1/power", "s1", "d1", at, 230.5, 0, at.date(),
    )  # fmt: skip
    assert rows(out, "notes", "site, value")[1] == ("s2", "note 1 – ü")
    assert rows(out, "temperature", "value") == [(21.5,)] * 3
    assert rows(out, "valves", "open, position, cycles, tags")[2] == (True, 0.25, 2, '["a"]')
    assert rows(out, "pumps", "serial, rpm, flow, mode, total, alarms")[0] == (
        "p-1",
        1500,
        2.5,
        "RUNNING",
        1 << 40,
        None,
    )
    # The alias has the name and the sign that its birth gave it.
    assert rows(out, "metrics", "item, message_type, edge_node_id, metric, alias, value_int")[1] == (
        0, "NDATA", "n1", "speed", 7, -5,
    )  # fmt: skip


def test_an_output_may_have_any_name(plant: Path) -> None:
    """What is a pattern to DuckDB is none in it; Delta's library takes some characters for those of an address."""
    name = "it's {a} [b]*?"
    tables(plant, name)
    assert rows(plant / name, "temperature", "value") == [(21.5,)] * 3
    for strange in ("a%20b", "[a]"):
        with pytest.raises(MisuseError, match="--format delta: Delta's library cannot write to a path with "):
            tables(plant, strange, TablesOptions(DELTA))
        assert not (plant / strange / "_commits").exists()


def test_a_bad_payload_is_a_dead_letter_with_its_reason_and_number(plant: Path) -> None:
    tables(plant)
    found = rows(plant / "out", "dead_letters", 'seq, client_id, topic, "table", reason, detail, payload')
    assert [each[0] for each in found] == [3, 11, 19]
    assert found[0][1:6] == (
        "client of site/s1/device/d1/power",
        "site/s1/device/d1/power",
        "power",
        "wrong-type",
        "watts: a text is not float64",
    )
    assert b'"many"' in found[0][6]
    assert json.loads((plant / "out/summary.json").read_text())["dead_letters"] == {"power": {"wrong-type": 3}}


def test_late_data_are_counted_by_the_records_clock_and_none_makes_others_late(tmp_path: Path) -> None:
    told = Story()
    for at in ("2026-11-21T15:59:00Z", "2099-01-01T00:00:00Z", "2026-11-14T15:00:00Z", "2026-11-21T15:58:00Z"):
        told.publish("d", "site/a/device/b/power", power(1.0, at))
    told.write(tmp_path / "record")
    mapping(tmp_path / "maps")
    outcome = tables(tmp_path)
    assert outcome.rows["power"] == 2
    assert outcome.late == {"power": 1}
    assert [each[1:] for each in rows(tmp_path / "out", "dead_letters", "seq, reason, detail")] == [
        ("ahead", "is to happen 632,120.0 h after it came"),
        ("late", "happened 169.0 h before it came"),
    ]


def test_a_run_goes_on_where_the_last_one_ended_and_after_compaction(plant: Path) -> None:
    tables(plant)
    assert compact.run(str(plant / "record"), NONE, 1 << 20, NONE, now=NOW).removed
    told = story(rounds=2, first_seq=26)
    # Without its birth: that is in the state of the run before.
    told.events = told.events[1:]
    for number, event in enumerate(told.events, 26):
        event["seq"] = number
    told.write(plant / "record")
    outcome = tables(plant)
    assert outcome.rows == dict.fromkeys(TABLES, 5) | {"metrics": 6}
    assert tables(plant).done == outcome.done
    assert rows(plant / "out", "metrics", "metric") == [("speed",)] * 6


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_is_committed_and_not_moved_outlives_ctrl_c_and_errors(
    plant: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    tables(plant, "whole")
    expected = numbers(plant / "whole")
    move, parts = Local.move, list[str]()

    def once(self: Local, place: str, to: str) -> None:
        if "/part-" in to:
            parts.append(to)
            if len(parts) == 2:
                raise error
        move(self, place, to)

    with monkeypatch.context() as patch, suppress(OSError):
        patch.setattr(Local, "move", once)
        # Ctrl-C is how a stream ends: it leaves nothing undone.
        assert tables(plant).rows["power"] == 3
        assert numbers(plant / "out") == expected
    tables(plant)
    assert numbers(plant / "out") == expected
    assert not list((plant / "out").glob("_staging-*"))


def test_commits_that_cannot_be_read_do_not_begin_the_tables_again(plant: Path) -> None:
    tables(plant, options=TablesOptions(batch=13))
    strange = r"_commits/0+3\.json: no commit of these tables \("
    whole = json.loads((plant / "out/_commits/000000000003.json").read_text())
    for said, why in (
        ({"version": 2}, rf"{strange}from: field required\)"),
        ({**whole, "births": [["plant", "n1", None]]}, rf"{strange}births\.0\.3: field required\)"),
        ({**whole, "tables": {"power": {"event_time": None, "versions": {}}}}, rf"{strange}tables\.power\.versions: "),
        (None, "no commit can be read"),
    ):
        text = json.dumps(said) if said else "{"
        for commit in (plant / "out/_commits").iterdir():
            commit.write_text(text)
        with pytest.raises(PipelineError, match=why):
            tables(plant)


def test_a_damaged_identity_is_a_line(plant: Path) -> None:
    tables(plant)
    for text, why in (("[1]", "no JSON object"), ('{"format": 3}', "does not say what these tables are")):
        (plant / "out/_tables.json").write_text(text)
        with pytest.raises(PipelineError, match=rf"_tables\.json: {why}"):
            tables(plant)


def test_the_commits_of_a_delta_table_say_what_they_stand_for(plant: Path) -> None:
    tables(plant, "out", TablesOptions(DELTA, batch=8))
    table = deltalake.DeltaTable(plant / "out/power")
    found = table.to_pyarrow_table().sort_by("seq")
    assert found.column("seq").to_pylist() == [2, 10, 18]
    assert found.column("watts").to_pylist() == [230.5, 231.5, 232.5]
    assert {"canopy.from_seq", "canopy.to_seq", "canopy.batch"} <= set(table.history(1)[0])


def test_small_files_of_a_delta_table_are_merged_now_and_then(plant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(plant, "many", TablesOptions(DELTA, batch=1))
    many = deltalake.DeltaTable(plant / "many/power")
    monkeypatch.setattr(delta, "MERGE_AFTER", 4)
    tables(plant, "out", TablesOptions(DELTA, batch=1))
    merged = deltalake.DeltaTable(plant / "out/power")
    assert (len(many.file_uris()), len(merged.file_uris())) == (3, 1)
    assert merged.history(1)[0]["operation"] == "OPTIMIZE"
    assert merged.to_pyarrow_table().sort_by("seq") == many.to_pyarrow_table().sort_by("seq")
    # Earlier versions can be read, and the next batch comes once.
    assert deltalake.DeltaTable(plant / "out/power", version=1).to_pyarrow_table().num_rows == 1
    told = story(rounds=1, first_seq=26)
    told.write(plant / "record")
    for _ in range(2):
        assert tables(plant, "out", TablesOptions(DELTA, batch=1)).rows["power"] == 4
    assert deltalake.DeltaTable(plant / "out/power").to_pyarrow_table().num_rows == 4


def test_numbers_that_are_missing_are_named_and_stop_a_run_that_had_begun(plant: Path) -> None:
    segments = sorted((plant / "record").rglob("seg-*.parquet"))
    segments[1].unlink()
    outcome = tables(plant)
    assert not outcome.coverage.complete
    assert outcome.coverage.missing == 7
    told = story(rounds=2, first_seq=26)
    gone = told.write(plant / "record", segments=3)
    gone[1].unlink()
    with pytest.raises(UnreadError, match=r"canopy pipeline tables .*--allow-gaps"):
        tables(plant)
    assert tables(plant, options=TablesOptions(allow_gaps=True)).coverage.missing == 13


def test_another_folder_that_is_not_empty_is_refused(plant: Path) -> None:
    (plant / "other").mkdir()
    (plant / "other/file").touch()
    with pytest.raises(MisuseError, match="something else is there"):
        tables(plant, "other")


def test_a_record_without_a_finished_segment_is_told(plant: Path) -> None:
    shutil.rmtree(plant / "record")
    (plant / "record").mkdir()
    assert "no finished segment in the record yet" in tables(plant).lines()[1]


def test_large_payloads_are_read_a_few_at_a_time_though_they_stand_among_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "READ_BYTES", 100_000)
    told = Story()
    sizes = [*[10] * 2_000, *[20_000] * 40, *[10] * 500, 250_000]
    for size in sizes:
        told.publish("c", "a/b", b"x" * size)
    told.write(tmp_path / "record")
    record = Local(tmp_path / "record")
    found = [[len(each) for each in batch.column("payload").to_pylist()] for batch in local.publishes(
        record, record.files(".parquet"), 0, told.seq
    )]  # fmt: skip
    assert [size for batch in found for size in batch] == sizes
    assert all(sum(batch) <= 100_000 or len(batch) == 1 for batch in found)


def test_small_payloads_are_read_many_at_a_time(tmp_path: Path) -> None:
    told = Story()
    for _ in range(5_000):
        told.publish("c", "a/b")
    told.write(tmp_path / "record")
    record = Local(tmp_path / "record")
    found = local.publishes(record, record.files(".parquet"), 0, told.seq)
    assert [batch.num_rows for batch in found] == [4_096, 904]


@pytest.mark.parametrize("manifest_too", [False, True])
def test_a_segment_that_comes_back_is_read_once(plant: Path, manifest_too: bool) -> None:
    """Whatever was missing when the tables went past it: a file, a file with its manifest."""
    whole = tables(plant, "whole")
    record, away = plant / "record", plant / "away"
    away.mkdir()
    back = taken_away(record, sorted(record.rglob("seg-*.parquet"))[1], away, manifest_too)
    lacking = tables(plant)
    assert (lacking.coverage.complete, lacking.coverage.missing) == (False, 7)
    assert lacking.done.read < whole.done.read
    back()
    for _ in range(2):
        found = tables(plant)
        assert found.coverage.complete, found.coverage.lines()
        assert (found.rows, found.done.read, found.done.dead) == (whole.rows, whole.done.read, whole.done.dead)
