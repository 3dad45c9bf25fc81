"""Copies of records at an object store: whole at any moment, each segment once; nothing goes that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app as canopy
from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.retention import retention_job as retention
from canopy_pipeline.runtime.locks import alone_with
from canopy_pipeline.runtime.storage import Storage, storage
from canopy_pipeline.upload import upload_job
from canopy_pipeline.upload.upload_job import UploadOutcome
from tests.pipeline.folder import NOW, Broken, down_after, record, seen
from tests.pipeline.record.test_killed import killed
from tests.support import s3
from tests.support.s3 import BUCKET, Server

HOUR = timedelta(hours=1)
OLD = timedelta(hours=4, minutes=45)
"""Six segments of the record are older."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from s3.server()


@pytest.fixture
def bucket(server: Server, request: pytest.FixtureRequest) -> str:
    """A place of this test's own."""
    del server
    return f"s3://{BUCKET}/{request.node.name}"


def upload(folder: Path, to: str, keep: timedelta | None = None) -> UploadOutcome:
    return upload_job.run(str(folder), to, keep, [""].append, now=lambda: NOW)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["upload", *words])
    return done.exit_code, done.output


def test_what_is_finished_is_there_and_is_sent_once(tmp_path: Path, server: Server, bucket: str) -> None:
    written = record(tmp_path)
    unfinished = written[0].with_name(".seg-0a1b2c3d-000000000099999.parquet.inprogress")
    unfinished.write_bytes(b"half")
    code, said = run("--input", str(tmp_path), "--output", bucket)
    assert (code, said.split(" (")[0]) == (0, "uploaded 12 segments")
    assert seen(bucket) == seen(tmp_path)
    there = storage(None, bucket)
    assert not there.listed(".inprogress", hidden=True)
    server.counts()
    assert upload(tmp_path, bucket).sent == []
    assert server.counts()["PUT"] == 0


def test_a_record_of_workers_is_one_there(tmp_path: Path, bucket: str) -> None:
    for name in ("w0", "w1"):
        record(tmp_path / name, hours=1, segments=2)
    assert len(upload(tmp_path, bucket).sent) == 4
    for name in ("w0", "w1"):
        assert seen(f"{bucket}/{name}") == seen(tmp_path / name)


def test_it_goes_only_when_it_is_there(tmp_path: Path, bucket: str) -> None:
    record(tmp_path)
    before = seen(tmp_path)
    assert len(upload(tmp_path, bucket, OLD).removed) == 6
    lines = [json.loads(line) for line in (tmp_path / "_manifests/removed.jsonl").read_text().splitlines()]
    assert [line["why"] for line in lines] == ["uploaded"] * 6
    assert seen(bucket) == before
    assert len(seen(tmp_path)) < len(before)
    verified = CliRunner().invoke(canopy, ["record", "verify", str(tmp_path)])
    assert verified.exit_code == 0, verified.output
    # The newest one stays, however old: the next start of the recorder asks it for the last number.
    assert len(upload(tmp_path, bucket, timedelta(0)).removed) == 5
    assert upload(tmp_path, bucket, timedelta(0)).sent == []
    assert seen(bucket) == before


def test_what_retention_removed_before_is_listed_there_as_removed(tmp_path: Path, bucket: str) -> None:
    record(tmp_path)
    upload(tmp_path, bucket)
    retention.run(str(tmp_path), OLD, now=NOW)
    before = seen(bucket)
    upload(tmp_path, bucket)
    # They are there: nobody may take them for removed.
    assert seen(bucket) == before
    other = f"{bucket}-2"
    (tmp_path / ".upload").unlink()
    upload(tmp_path, other)
    assert seen(other) == seen(tmp_path)
    lines = storage(None, other).text("_manifests/removed.jsonl").splitlines()
    assert [json.loads(line)["why"] for line in lines] == ["age"] * 6
    upload(tmp_path, other)
    assert storage(None, other).text("_manifests/removed.jsonl").splitlines() == lines


def test_merged_segments_replace_there_what_they_replaced_here(tmp_path: Path, bucket: str) -> None:
    record(tmp_path)
    before = seen(tmp_path)
    upload(tmp_path, bucket)
    compact.run(str(tmp_path), HOUR, 1 << 20, timedelta(0), now=NOW)
    upload(tmp_path, bucket)
    assert seen(bucket) == before


def test_what_was_merged_or_removed_there_is_not_sent_again(tmp_path: Path, bucket: str) -> None:
    record(tmp_path)
    upload(tmp_path, bucket)
    compact.run(bucket, HOUR, 1 << 20, timedelta(0), now=NOW)
    compact.run(bucket, HOUR, 1 << 20, timedelta(0), now=NOW)
    assert upload(tmp_path, bucket).sent == []
    retention.run(bucket, timedelta(hours=4), now=NOW)
    left = seen(bucket)
    assert upload(tmp_path, bucket).sent == []
    assert seen(bucket) == left != seen(tmp_path)


def test_a_damaged_segment_is_named_and_not_sent(tmp_path: Path, bucket: str) -> None:
    written = record(tmp_path)
    content = bytearray(written[3].read_bytes())
    content[100] ^= 1
    written[3].write_bytes(content)
    code, said = run("--input", str(tmp_path), "--output", bucket, "--keep", "0s")
    assert code == 3
    assert f"{written[3].name}: damaged, and not uploaded" in said
    assert written[3].exists()
    place = str(written[3].relative_to(tmp_path))
    assert place not in storage(None, bucket).listed(".parquet")


def test_two_records_never_share_a_copy(tmp_path: Path, bucket: str) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        record(folder, hours=1, segments=2)
    upload(one, bucket)
    code, said = run("--input", str(other), "--output", bucket)
    assert code == 2
    assert "the copy of another record" in said
    # Nor does it go where some tool has copied one.
    storage(None, bucket).remove(".upload")
    with pytest.raises(MisuseError, match="a record is there that was not uploaded"):
        upload(other, bucket)
    with alone_with(one / ".upload.lock", ""), pytest.raises(PipelineError, match="another upload is at work"):
        upload(one, bucket)


@pytest.mark.parametrize("to", ["s3://no-such-bucket/record", "ftp://plant/record"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, server: Server, to: str) -> None:
    del server
    record(tmp_path, hours=1, segments=1)
    code, said = run("--input", str(tmp_path), "--output", to)
    assert (code, len(said.splitlines())) == (1, 1)
    assert to.split("/")[2] in said
    assert not (tmp_path / "_manifests/removed.jsonl").exists()


def test_it_goes_on_wherever_it_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    """At each step the copy is a record, and here and there together all rows are kept."""
    steps = 0
    while True:
        folder, to = tmp_path / str(steps), f"{bucket}/{steps}"
        record(folder, hours=2, segments=2)
        before = seen(folder)
        try:
            with down_after(monkeypatch, steps):
                upload(folder, to, OLD)
        except Broken:
            there = seen(to) if storage(None, to).listed(".parquet") else []
            assert len(there) == len({*there})
            assert {*there, *seen(folder)} == {*before}
        else:
            break
        upload(folder, to, OLD)
        assert seen(to) == before
        steps += 1
    assert steps >= 15


@pytest.mark.timeout(300)
def test_killed_at_each_step_it_goes_on(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    record(whole / "record", hours=2, segments=2)
    before = seen(whole / "record")
    folders, made = killed("upload", whole, tmp_path)
    assert len(made) >= 20
    for folder in folders:
        there = seen(folder / "copy") if list((folder / "copy").rglob("*.parquet")) else []
        assert {*there, *seen(folder / "record")} == {*before}
        upload(folder / "record", str(folder / "copy"), HOUR * 5)
        assert seen(folder / "copy") == before


def test_it_follows_the_recorder_and_waits_for_a_store_that_is_away(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "record"
    record(folder, hours=1, segments=2)
    metrics = tmp_path / "upload.prom"
    pauses: list[float] = []
    figures: list[dict[str, float]] = []
    write: Callable[[Storage, str, bytes], None] = Storage.write

    def away(store: Storage, place: str, content: bytes) -> None:
        if len(pauses) in (1, 2):
            raise OSError("it does not answer")
        write(store, place, content)

    def sleep(seconds: float) -> None:
        """Each pause, something happens."""
        pauses.append(seconds)
        found = re.findall(r"^canopy_job_(\w+)\{.*\} (\S+)$", metrics.read_text(), re.MULTILINE)
        figures.append({name: float(value) for name, value in found})
        if len(pauses) == 1:
            record(folder, hours=2, segments=2)
        elif len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "write", away)
    monkeypatch.setattr(upload_job, "sleep", sleep)
    words = ("--input", str(folder), "--output", bucket, "--follow", "--every", "5s", "--metrics", str(metrics))
    code, said = run(*words)
    assert code == 130
    assert pauses == [5.0, 5.0, 10.0, 5.0]
    assert seen(bucket) == seen(folder)
    lines = said.splitlines()
    assert [line.split(" (")[0].split(":")[0] for line in lines] == [
        "uploaded 2 segments", "canopy", "canopy", "uploaded 2 segments", "canopy",
    ]  # fmt: skip
    assert "it does not answer; it is tried again" in lines[1]
    assert lines[2].endswith("is reached again")
    assert [each["upload_waiting_segments"] for each in figures] == [0, 2, 2, 0]
