"""`canopy pipeline compact --erase`: exactly the named events are gone, from the record and from its tables."""

from __future__ import annotations

import fcntl
import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from canopy_mqtt.command.record_verify import check_part as check
from canopy_mqtt.record.files.current_files import current_files
from canopy_mqtt.record.files.delta_follower import DeltaFollower
from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job, erase_job
from canopy_pipeline.compact.erase_job import Chosen
from canopy_pipeline.record.segments import find
from canopy_pipeline.retention import retention_job
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.sinks.sink_of import DELTA, PARQUET
from canopy_pipeline.tables.tables_job import TablesOptions
from canopy_pipeline.tables.tables_job import run as tables
from tests.pipeline.folder import NOW, manifests, record, seen
from tests.pipeline.record.test_killed import held, killed
from tests.pipeline.recorded import Story, beside
from tests.pipeline.tables.fleet import mapping
from tests.pipeline.tables.sinks.test_iceberg import closed, configured  # noqa: F401
from tests.pipeline.tables.test_backfill import FORMATS, moved, place, read
from tests.support.runs import for_each

NONE, HOUR = timedelta(0), timedelta(hours=1)
PLACED = ("seq", "ts", "recv_ns", "run_id")


def two_clients(folder: Path, segments: int = 4) -> list[dict[str, Any]]:
    """Messages of p and q to each other and to r, with their deliveries; returns the events."""
    told = Story()
    for client in "pqr":
        told.add("connect", client_id=client, address="192.0.2.1:5", user_name=f"user of {client}")
        told.subscribe(client, "a/#")
    for number in range(1, 11):
        client = "q" if number % 3 == 0 else "p"
        sent = told.publish(
            client, f"a/{number % 2}", b"secret" if client == "q" else b"other", properties=[{"key": "k", "value": "v"}]
        )
        for receiver in "pqr":
            told.deliver(receiver, sent)
        told.pause(1)
    told.drop("q", "expired", 2)
    told.drop("p", "expired", 2)
    events = list(told.events)
    told.write(folder, segments)
    return events


def events(folder: Path) -> list[dict[str, Any]]:
    """All events that a job would read, in order."""
    files = [file.path.removeprefix("file:") for file in find(None, [str(folder)])]
    rows: list[dict[str, Any]] = pa.concat_tables([pq.ParquetFile(file).read() for file in files]).to_pylist()
    return sorted(rows, key=lambda row: int(row["seq"]))


def whole(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if value is not None}


def goes(event: dict[str, Any], gone: set[int], chosen: Chosen) -> bool:
    """The rule, said once more."""
    of_topic = event["kind"] == "publish" and event["topic"] in chosen.topics
    return of_topic or event.get("client_id") in chosen.clients or event.get("ref_seq") in gone


CHOSEN = [Chosen(clients=("q",)), Chosen(("a/1",)), Chosen(("a/0",), ("r", "q")), Chosen(clients=("nobody",))]


@for_each("chosen", CHOSEN)
@for_each("segments", [1, 4, 16])
def test_exactly_the_named_events_are_gone(tmp_path: Path, chosen: Chosen, segments: int) -> None:
    before = two_clients(tmp_path, segments)
    outcome = erase_job.run(str(tmp_path), chosen)
    gone: set[int] = set()
    found = events(tmp_path)
    assert [event["seq"] for event in found] == [event["seq"] for event in before]
    for event, after in zip(before, found, strict=True):
        if goes(event, gone, chosen):
            gone.add(event["seq"])
            assert whole(after) == {"kind": "erased"} | {name: event[name] for name in PLACED}
        else:
            assert whole(after) == whole(event)
    assert outcome.events == len(gone) == len(outcome.erased)
    assert outcome.unreached == []
    # Nor in a file that nobody reads.
    left = pa.concat_tables([pq.ParquetFile(path).read() for path in tmp_path.rglob("*.parquet")])
    assert len(left) == len(before)
    assert not set(chosen.clients) & set(left["client_id"].to_pylist())
    assert erase_job.run(str(tmp_path), chosen).events == 0


def test_the_manifest_says_who_erased_how_many_when_and_why_and_verify_tells_erased_from_lost(tmp_path: Path) -> None:
    two_clients(tmp_path)
    found = check(tmp_path)
    assert (found.faults, found.erased) == ([], [])
    count = erase_job.run(str(tmp_path), Chosen(("a/1",), ("q",)), now=NOW).events
    notes = [note for about in manifests(tmp_path) for note in about.get("erased", ())]
    assert sum(note["events"] for note in notes) == count
    assert {(note["erased_at"], *note["topics"], *note["clients"]) for note in notes} == {
        (NOW.isoformat(timespec="microseconds"), "a/1", "q")
    }
    assert all("@" in note["by"] for note in notes)
    found = check(tmp_path)
    assert (found.faults, found.kinds["erased"], len(found.erased)) == ([], count, len(notes))
    assert "topic a/1, client q" in found.erased[0]
    erase_job.run(str(tmp_path), Chosen(clients=("r",)))
    assert check(tmp_path).faults == []
    # A lost segment is still a fault; so are erased events that no note explains.
    path, about = next((path, json.loads(path.read_text())) for path in (tmp_path / "_manifests").rglob("*.json"))
    path.write_text(json.dumps({**about, "erased": []}))
    assert "erased, and its manifest says 0" in check(tmp_path).faults[0]
    (tmp_path / about["segment"]).unlink()
    assert "is not there" in check(tmp_path).faults[0]


def test_merged_segments_are_erased_with_what_they_replaced(tmp_path: Path) -> None:
    record(tmp_path)
    before = seen(tmp_path)
    # What is replaced stays for an hour.
    compact_job.run(str(tmp_path), HOUR, 1 << 20, HOUR, now=NOW)
    outcome = erase_job.run(str(tmp_path), Chosen(("a/1",)))
    assert seen(tmp_path) == before
    assert outcome.events == 15
    kinds = [event["kind"] for event in events(tmp_path)]
    assert (kinds.count("erased"), kinds.count("gap")) == (15, 1)
    assert len(list(tmp_path.rglob("*.parquet"))) == len(manifests(tmp_path)) == 4
    assert ["0a1b2c3d", "ffffffff"] in [about.get("runs") for about in manifests(tmp_path)]
    assert check(tmp_path).faults == []


def test_a_backup_brings_nothing_back_after_retention(tmp_path: Path) -> None:
    record(tmp_path / "record")
    shutil.copytree(tmp_path / "record", tmp_path / "backup")
    erase_job.run(str(tmp_path / "record"), Chosen(("a/#",)))
    before = seen(tmp_path / "record")
    retention_job.run(str(tmp_path / "record"), timedelta(hours=5, minutes=15), now=NOW)
    left = seen(tmp_path / "record")
    assert len(left) < len(before)
    shutil.copytree(tmp_path / "backup", tmp_path / "record", dirs_exist_ok=True)
    assert seen(tmp_path / "record") == left
    assert {tmp_path / "record" / place for place in current_files(tmp_path / "record")} == {
        Path(file.path.removeprefix("file:")) for file in find(None, [str(tmp_path / "record")])
    }
    compact_job.run(str(tmp_path / "record"), HOUR, 1 << 20, NONE, now=NOW)
    assert seen(tmp_path / "record") == left


def test_small_segments_are_merged_after_an_erasure(tmp_path: Path) -> None:
    record(tmp_path)
    erase_job.run(str(tmp_path), Chosen(("a/1",)))
    assert [number for _, number in compact_job.run(str(tmp_path), HOUR, 1 << 20, NONE, now=NOW).merged] == [4, 4, 3]
    assert check(tmp_path).faults == []
    assert sum(note["events"] for about in manifests(tmp_path) for note in about.get("erased", ())) == 15
    retention_job.run(str(tmp_path), None, 1)
    assert check(tmp_path).faults == []


def test_what_is_not_reached_is_named(tmp_path: Path) -> None:
    two_clients(tmp_path)
    paths = sorted(tmp_path.rglob("seg-*.parquet"))
    paths[0].write_bytes(paths[0].read_bytes()[:-9])
    beside(tmp_path, paths[1]).unlink()
    (paths[0].parent / ".seg-0a1b2c3d-000000000000099.arrows").touch()
    done = command(tmp_path, "--erase-client", "q")
    assert done.exit_code == 3
    assert f"{paths[1].relative_to(tmp_path)}: it has no manifest" in done.stderr
    assert f"{paths[0].relative_to(tmp_path)}: not what its manifest's checksum says" in done.stderr
    assert "events that are in no finished segment yet" in done.stderr
    assert "payload tables that --tables does not name" in done.stderr


def command(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["compact", "--input", str(folder), *more])


def test_the_command(tmp_path: Path) -> None:
    two_clients(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert "would erase 22 events in 4 segments" in command(tmp_path, "--erase-client", "q", "--dry-run").stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before
    done = command(tmp_path, "--erase-client", "q")
    assert (done.exit_code, done.stdout) == (0, "erased 22 events in 4 segments\n")


def test_tables_that_are_none_are_refused_before_anything_is_erased(tmp_path: Path) -> None:
    two_clients(tmp_path / "record")
    before = sorted(path.name for path in (tmp_path / "record").rglob("*.parquet"))
    done = command(tmp_path / "record", "--erase-client", "q", "--tables", str(tmp_path / "elsewhere"))
    assert (done.exit_code, "no tables of canopy pipeline tables" in done.stderr) == (2, True)
    assert sorted(path.name for path in (tmp_path / "record").rglob("*.parquet")) == before


@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_at_every_step_the_record_has_each_event_once(tmp_path: Path) -> None:
    """A record that is a table of Delta Lake, too, and that was merged before."""
    place = tmp_path / "whole"
    record(place, hours=2, segments=3)
    DeltaFollower(place).follow(None)
    compact_job.run(str(place), HOUR, 1 << 20, HOUR, now=NOW)
    before = seen(place)
    folders, made = killed("erase", place, tmp_path)
    assert len(made) >= 20
    for folder in folders:
        assert held(folder) == before == seen(folder), folder.name
        erase_job.run(str(folder), Chosen(("a/1",), ("q",)))
        assert held(folder) == before == seen(folder), folder.name
        kinds = [event["kind"] for event in events(folder)]
        assert (kinds.count("erased"), len(manifests(folder))) == (10, len(list(folder.rglob("*.parquet"))))
        assert check(folder).faults == []


def in_tables(folder: Path, format_: str) -> None:
    """A record of ten messages, of which q sent some, and tables of them."""
    told = Story()
    for number in range(1, 11):
        client = "q" if number % 3 == 0 else "p"
        told.publish(client, "site/a/power", b"no JSON" if number in (6, 7) else b'{"w": %d}' % number)
        told.pause(1)
    told.write(folder / "record", 3)
    mapping(folder / "maps", '[tables.power]\nfilter = "site/{site}/power"\nformat = "json"\ncolumns.w = "float64"\n')
    made(folder, format_, batch=3)


def made(folder: Path, format_: str, **more: Any) -> Any:
    options = TablesOptions(format_, **place(folder, format_), **more)
    return tables(str(folder / "record"), str(folder / "out"), str(folder / "maps/tables.toml"), options)


LEFT = [(n,) for n in (1, 2, 4, 5, 8, 10)]


@pytest.mark.parametrize("format_", FORMATS)
def test_tables_that_were_made_of_the_record_are_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    configured(monkeypatch, tmp_path / "lake")
    in_tables(tmp_path, format_)
    done = command(tmp_path / "record", "--erase-client", "q", "--tables", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert f"{tmp_path}/out/power: 2 rows erased" in done.stderr
    assert read(tmp_path / "out", format_, columns="seq") == LEFT
    assert read(tmp_path / "out", format_, "dead_letters", "seq") == [(7,)]
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert (summary["rows"], list(summary["dead_letters"])) == ({"power": 6}, ["power"])
    history = {"delta": "power/_delta_log: least and greatest", "iceberg": "expire_snapshots", "postgresql": "backups"}
    assert history.get(format_, "") in done.stderr
    # They stay erased, whatever is made again.
    outcome = made(tmp_path, format_, replace=Range(1, 10))
    assert (outcome.rows, outcome.coverage.complete) == ({"power": 6}, True)
    assert read(tmp_path / "out", format_, columns="seq") == LEFT
    made(tmp_path, format_)
    assert read(tmp_path / "out", format_, columns="seq") == LEFT


def test_a_table_of_delta_has_no_earlier_version_any_more_nor_what_a_killed_run_left(tmp_path: Path) -> None:
    in_tables(tmp_path, "delta")
    written = Path(unquote(urlsplit(DeltaTable(tmp_path / "out/power").file_uris()[0]).path))
    written.with_name("part-00000-left.snappy.parquet").write_bytes(written.read_bytes())
    DeltaTable(tmp_path / "out/power").create_checkpoint()
    command(tmp_path / "record", "--erase-client", "q", "--tables", str(tmp_path / "out"))
    files = {path.name for path in (tmp_path / "out/power").rglob("*.parquet") if "_delta_log" not in path.parts}
    assert files == {Path(each).name for each in DeltaTable(tmp_path / "out/power").file_uris()}
    with duckdb.connect() as session:
        query = f"select seq from read_parquet('{tmp_path}/out/power/date=*/*.parquet') order by 1"
        assert session.sql(query).fetchall() == LEFT


@pytest.mark.parametrize("client", ["q", "nobody"])
def test_rows_of_events_that_retention_removed_are_named(tmp_path: Path, client: str) -> None:
    in_tables(tmp_path, "parquet")
    retention_job.run(str(tmp_path / "record"), None, 1)
    (last,) = (each["from_seq"] for each in manifests(tmp_path / "record"))
    done = command(tmp_path / "record", "--erase-client", client, "--tables", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert f"not reached: {tmp_path}/out: the rows of numbers 1 to {last - 1}: their events were" in done.stderr


def test_tables_of_another_record_are_refused(tmp_path: Path) -> None:
    in_tables(tmp_path / "one", "parquet")
    told = Story(begin=NOW)
    for _ in range(9):
        told.publish("q", "site/a/power", b"{}")
    told.write(tmp_path / "record")
    done = command(tmp_path / "record", "--erase-client", "q", "--tables", str(tmp_path / "one/out"))
    assert (done.exit_code, "these tables were made of another record" in done.stderr) == (2, True)
    assert len(read(tmp_path / "one/out", "parquet", columns="seq")) == 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize("format_", [PARQUET, pytest.param(DELTA, marks=pytest.mark.long)])
def test_killed_at_every_step_the_tables_have_each_other_row_once(tmp_path: Path, format_: str) -> None:
    in_tables(tmp_path / "whole", format_)
    folders, steps = killed("erase-tables", tmp_path / "whole", tmp_path)
    assert len(steps) >= 20
    for folder in folders:
        before = [row for row in read(moved(folder, tmp_path / "whole"), format_, columns="seq") if row[0] % 3]
        assert before == LEFT, folder.name
        done = command(folder / "record", "--erase-client", "q", "--tables", str(folder / "out"))
        assert done.exit_code == 0, done.output
        assert read(folder / "out", format_, columns="seq") == LEFT, folder.name
        assert read(folder / "out", format_, "dead_letters", "seq") == [(7,)]
        assert "q" not in [event["client_id"] for event in events(folder / "record")]
        assert len(list((folder / "out/_commits").iterdir())) == 1
        # A range that is made again brings nothing back.
        made(folder, format_, replace=Range(1, 10))
        assert read(folder / "out", format_, columns="seq") == LEFT, folder.name


def test_the_newest_segment_of_a_recorder_at_work_is_left(tmp_path: Path) -> None:
    """It may be about to be named in a table."""
    two_clients(tmp_path)
    last = max(tmp_path.rglob("seg-*.parquet"))
    with open(tmp_path / ".recorder", "wb") as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        outcome = erase_job.run(str(tmp_path), Chosen(clients=("q",)))
    assert last.exists()
    assert f"{last.name}: the newest segment of a recorder that is at work" in outcome.unreached[0]
    assert erase_job.run(str(tmp_path), Chosen(clients=("q",))).unreached == []
    assert not last.exists()
