"""Records on an object store: a server of S3's interface in a process of its own, asked as seldom as can be."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app as canopy
from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.manifests import manifests
from canopy_pipeline.record.record_folder import RecordFolder
from canopy_pipeline.record.segments import Choice, find
from canopy_pipeline.runtime.storage import CALLS, storage
from tests.pipeline.folder import NOW, Broken, down_after, record, seen
from tests.support import s3
from tests.support.s3 import BUCKET, Server

HOUR: Final = timedelta(hours=1)
BEGIN: Final = datetime(2026, 10, 1, tzinfo=UTC)
EVERYTHING: Final = Choice()
MINUTES: Final = 20
"""Segments of an hour."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from s3.server()


def hours(count: int) -> dict[str, bytes]:
    """A record of one segment a minute, as small as can be."""
    objects: dict[str, bytes] = {}
    for hour in range(count):
        for minute in range(MINUTES):
            at = BEGIN + timedelta(hours=hour, minutes=minute)
            first = (hour * MINUTES + minute) * 10 + 1
            place = f"{at:date=%Y-%m-%d/hour=%H}/seg-0a1b2c3d-{first:015d}"
            about = {
                "format": 1, "segment": f"{place}.parquet", "run_id": "0a1b2c3d", "rows": 10, "from_seq": first,
                "to_seq": first + 9, "first_ts": at.isoformat(), "last_ts": (at + timedelta(seconds=59)).isoformat(),
                "kinds": {"publish": 10}, "bytes": 12, "sha256": "0" * 64, "gaps": [],
            }  # fmt: skip
            objects[f"{place}.parquet"] = b"PAR1----PAR1"
            objects[f"_manifests/{place}.json"] = json.dumps(about).encode()
    return objects


def put(server: Server, name: str, objects: dict[str, bytes]) -> str:
    """Have a record there; where it is."""
    server.fill({f"{name}/{key}": content for key, content in objects.items()})
    return f"s3a://{BUCKET}/{name}"


def of(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plan(server: Server, path: str, choice: Choice = EVERYTHING) -> tuple[int, Coverage, int]:
    """How many segments a job would read, what is missing, how many requests that took."""
    covered = Coverage()
    server.counts()
    found = find(None, [path], coverage=covered, choice=choice)
    return len(found), covered, server.counts().total()


def test_a_plan_asks_for_manifests_and_lists_of_folders_and_for_no_segment(server: Server) -> None:
    path = put(server, "hours", hours(26))
    found, covered, requests = plan(server, path)
    assert (found, covered.complete, covered.events) == (26 * MINUTES, True, 26 * MINUTES * 10)
    # Two for each manifest, and what any record takes.
    assert requests <= 26 * MINUTES * 2 + 25
    chosen, _, _ = plan(server, path, Choice(since="2026-10-01T03:10", until="2026-10-01T03:20"))
    assert chosen == 10


@pytest.mark.long
def test_two_jobs_at_once_are_refused_there(server: Server, tmp_path: Path) -> None:
    record(tmp_path, hours=1)
    path = put(server, "merged", of(tmp_path))
    with RecordFolder(path).locked():
        told = CliRunner().invoke(app, ["compact", "--input", path])
        assert told.exit_code == 1
        assert "another job is at work" in told.stderr


@pytest.mark.long
def test_a_merge_that_breaks_off_anywhere_leaves_the_same_rows(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, hours=2, segments=3)
    whole = of(tmp_path)
    # tests/pipeline/compact breaks it off everywhere, in a folder; here the first and the last change of each kind.
    path = put(server, "merged-whole", whole)
    before = seen(path)
    with down_after(monkeypatch, 1_000) as made:
        compact.run(path, HOUR, 1 << 20, timedelta(0), now=NOW)
    kinds = [each.partition(" ")[0] for each in made]
    assert set(kinds) == {"publish", "remove"}
    for steps in sorted({at for kind in kinds for at in (kinds.index(kind), len(kinds) - 1 - kinds[::-1].index(kind))}):
        path = put(server, f"killed-{steps}", whole)
        with down_after(monkeypatch, steps):
            # One step after the other.
            monkeypatch.setattr("canopy_pipeline.runtime.storage.CALLS", 1)
            with pytest.raises(Broken):
                compact.run(path, HOUR, 1 << 20, timedelta(0), now=NOW)
        assert seen(path) == before, made[steps]
        # What a dead job leaves behind names itself, and is for people to remove.
        storage(None, path).remove("_manifests/.lock")
        compact.run(path, HOUR, 1 << 20, timedelta(0), now=NOW)
        assert seen(path) == before, made[steps]
        assert len(storage(None, path).files(".parquet")) == 3, made[steps]


def test_spark_s_own_settings_say_where_it_is(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(server, "settings", {"a/b.json": b"here"})
    settings = {
        "spark.hadoop.fs.s3a.endpoint": server.url,
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "secret",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    }
    for name in server.environment():
        monkeypatch.delenv(name)
    session: Any = SimpleNamespace(conf=settings)
    place = storage(session, path)
    assert [place.text(file.place) for file in place.files(".json")] == ["here"]
    assert place.calls == CALLS


def test_what_is_not_there_is_one_line(server: Server) -> None:
    path = put(server, "nothing", {"x": b""})
    for command in ("compact", "retention"):
        told = CliRunner().invoke(
            app, [command, "--input", f"{path}/at/all", *(["--keep", "1d"] * (command[0] == "r"))]
        )
        assert (told.exit_code, told.stderr.count("\n")) == (2, 1)
        assert "no such folder" in told.stderr
    told = CliRunner().invoke(app, ["compact", "--input", "nosuch://plant/record"])
    assert (told.exit_code, told.stderr.count("\n")) == (2, 1)
    assert "nothing here reaches such a place" in told.stderr


def test_duckdb_reads_there_what_it_reads_here(server: Server, tmp_path: Path) -> None:
    """Each segment is fetched once, however often the job scans it; a damaged one is named as it is there."""
    here = tmp_path / "record"
    written = record(here)
    path = put(server, "duckdb", of(here))
    server.counts()
    tables: list[dict[str, Any]] = []
    for name in (str(here), path):
        out = tmp_path / f"out-{len(tables)}"
        told = CliRunner().invoke(app, ["rollup", "--engine", "duckdb", "--input", name, "--output", str(out)])
        assert told.exit_code == 3, told.output
        tables.append({kind: pq.read_table(out / kind).to_pydict() for kind in ("minutes", "hours")})
    assert tables[0] == tables[1]
    assert tables[0]["minutes"]
    place = f"duckdb/{written[2].relative_to(here)}"
    server.fill({place: written[2].read_bytes()[:-40] + b"x" * 40})
    damaged = ["--output", str(tmp_path / "damaged")]
    told = CliRunner().invoke(app, ["rollup", "--engine", "duckdb", "--input", path, *damaged])
    assert told.exit_code == 1
    assert f"s3a://{BUCKET}/{place}: is damaged" in told.stderr


class TestRecordFiles:
    """`canopy record files s3://…`."""

    def files(self, path: str, *options: str) -> Any:
        return CliRunner().invoke(canopy, ["record", "files", path, *options], catch_exceptions=False)

    def test_the_files_in_force_with_what_their_manifests_say(self, server: Server, tmp_path: Path) -> None:
        written = record(tmp_path, hours=2, segments=3)
        path = put(server, "listed", of(tmp_path)).replace("s3a://", "s3://")
        told = self.files(path)
        assert (told.exit_code, told.stderr) == (0, "")
        assert told.stdout.splitlines() == [f"{path}/{each.relative_to(tmp_path)}" for each in written]
        first = json.loads(self.files(path, "--json").stdout.splitlines()[0])
        assert (first["path"], first["rows"], first["from_seq"]) == (f"{path}/{written[0].relative_to(tmp_path)}", 5, 1)
        compact.run(path, HOUR, 1 << 20, timedelta(hours=9), now=NOW)
        # What was merged is still there, and counts no more.
        assert len(storage(None, path).files(".parquet")) > len(merged := self.files(path).stdout.splitlines())
        assert "/merged-" in merged[0]

    def test_a_merge_between_its_two_looks_is_seen(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The manifests are read before the segments are listed."""
        record(tmp_path, hours=2, segments=3)
        path = put(server, "moving", of(tmp_path))
        before = seen(path)
        looked: list[str] = []

        def reading(*arguments: Any) -> Any:
            said = manifests(*arguments)
            if not looked:
                looked.append(path)
                compact.run(path, HOUR, 1 << 20, timedelta(0), now=NOW)
            return said

        monkeypatch.setattr("canopy_pipeline.record.manifests.manifests", reading)
        told = self.files(path)
        assert told.exit_code == 0, told.stderr
        place = storage(None, path)
        tables = [pq.read_table(io.BytesIO(place.read(line.removeprefix(f"{path}/")))) for line in told.stdout.split()]
        assert sorted(seq for table in tables for seq in table["seq"].to_pylist()) == before

    def test_what_is_not_there_or_not_reached_is_one_line(self, server: Server) -> None:
        path = put(server, "absent", {"x": b""})
        for where, code in ((f"{path}/at/all", 2), (path, 1), ("nosuch://plant/record", 1)):
            told = self.files(where)
            assert (told.exit_code, told.stdout, told.stderr.count("\n")) == (code, "", 1)
