"""Both engines come to the same numbers, tables, summaries and exit codes, over whole records and damaged ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from canopy_pipeline.errors import DamagedError, PipelineError
from canopy_pipeline.oracle import oracle_job as oracle
from canopy_pipeline.plan import plan_job as plan
from canopy_pipeline.record.segments import Choice
from canopy_pipeline.report import report_job as report
from canopy_pipeline.rollup import rollup_job as rollup
from canopy_pipeline.runtime import engine
from canopy_pipeline.runtime.duck.duckdb_session import connected
from canopy_pipeline.runtime.engine import DUCKDB, SPARK, at_work, chosen
from canopy_pipeline.runtime.spark_session import SparkOptions
from canopy_pipeline.tree import tree_job as tree
from canopy_pipeline.tree import tree_transforms
from tests.pipeline.oracle.toy import Toy
from tests.pipeline.recorded import BEGIN, Story
from tests.pipeline.rollup.stories import traffic

Job = Callable[[SparkSession, Path, Path], Any]


@contextmanager
def duckdb() -> Iterator[SparkSession]:
    """A session of DuckDB, as the jobs take one."""
    with connected("1g") as session, at_work(DUCKDB):
        yield cast("SparkSession", session)


def whole(folder: Path) -> Path:
    """Publishes with latencies and without, over three hours."""
    traffic(400).write(folder, 3)
    return folder


def judged(folder: Path) -> Path:
    """A broker that makes every fault, with share groups, in two runs of which one lost events."""
    one = Toy("0a1b2c3d", 5, faults=True)
    one.live(250)
    one.lose(len(one.events) // 2, 9)
    one.write(folder, 3)
    other = Toy("0a1b2c3e", 7, one.seq, faults=True)
    other.live(150)
    other.write(folder)
    return folder


def damaged(folder: Path) -> Path:
    """As `judged`, and one segment is not there any more."""
    judged(folder)
    sorted(folder.rglob("seg-*.parquet"))[1].unlink()
    return folder


RECORDS = {"whole": whole, "judged": judged, "damaged": damaged}
JOBS: dict[str, Job] = {
    "rollup": lambda spark, record, out: rollup.run(spark, [str(record)], str(out)),
    "tree": lambda spark, record, out: tree.run(spark, [str(record)], str(out), hottest=7),
    "oracle": lambda spark, record, out: oracle.run(spark, [str(record)], str(out)),
    "report": lambda spark, record, out: report.run(spark, [str(record)], str(out)),
    "plan": lambda spark, record, out: plan.run(spark, [str(record)], str(out), headroom=30.0),
}


def tables(out: Path) -> dict[str, tuple[Any, list[str]]]:
    """The types and the rows of each table in a folder, in no order."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for path in sorted(out.rglob("*.parquet")):
        read = pq.ParquetFile(path).read()
        place = str(path.parent.relative_to(out))
        types = {field.name: str(field.type).replace(" not null", "") for field in read.schema}
        before = found.get(place, (types, []))[1]
        found[place] = (
            types,
            before + [repr(row) for row in read.to_pylist()],
        )
    return {place: (types, sorted(rows)) for place, (types, rows) in found.items()}


def said(out: Path) -> Any:
    """What a job says of itself, but where it wrote and how long it took."""
    found = json.loads((out / "summary.json").read_text().replace(str(out), ""))
    for part in found.get("jobs", {}).values():
        part["seconds"] = 0
    return found


@pytest.mark.parametrize(
    ("record", "job"),
    [
        ("whole", "rollup"),
        *(
            pytest.param(record, job, marks=pytest.mark.long)
            for record, job in (
                ("judged", "oracle"), ("damaged", "tree"), ("damaged", "plan"), ("damaged", "report"),
            )
        ),
    ],
)  # fmt: skip
def test_both_engines_come_to_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, job: str
) -> None:
    for name, value in (("MANY", 3), ("GROWING", 2), ("PER_CHILD", 1000.0), ("STEADY", 1)):
        monkeypatch.setattr(tree_transforms, name, value)
    folder = RECORDS[record](tmp_path / "record")
    JOBS[job](spark, folder, tmp_path / "spark")
    with duckdb() as session:
        JOBS[job](session, folder, tmp_path / "duckdb")
    assert said(tmp_path / "duckdb") == said(tmp_path / "spark")
    assert tables(tmp_path / "duckdb") == tables(tmp_path / "spark")
    # It was a record in which there is something to find.
    assert any(rows for _, rows in tables(tmp_path / "spark").values())


def test_a_file_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    story = Story()
    story.publish("p", "a")
    # Without a manifest nothing says how long it is, nor what is in it.
    story.publish("p", "b")
    segment, _ = story.write(tmp_path / "record", 2, manifests=False)
    content = bytearray(segment.read_bytes())
    content[-60:-8] = b"\xff" * 52
    segment.write_bytes(content)
    with duckdb() as session, pytest.raises(DamagedError, match=f"{segment.name}: is damaged"):
        rollup.run(session, [str(tmp_path / "record")], str(tmp_path / "out"))


def test_a_time_is_cut_out_of_the_record_and_an_empty_one_is_no_error(tmp_path: Path) -> None:
    story = traffic(400)
    story.write(tmp_path / "record", 3)
    since, until = BEGIN + timedelta(minutes=30), BEGIN + timedelta(minutes=70)
    inside = [event for event in story.events if event["kind"] == "publish" and since <= event["ts"] < until]
    assert inside
    for choice, messages in (
        (Choice(since=since.isoformat(), until=until.isoformat()), len(inside)),
        (Choice(since="2027-01-01"), 0),
    ):
        with duckdb() as session:
            outcome = rollup.run(session, [str(tmp_path / "record")], str(tmp_path / "out"), choice=choice)
        assert outcome.messages == messages
    # A run that is not there is a mistake.
    for choice in (Choice(run="nosuch"), Choice(run=story.run_id, since="2027-01-01")):
        with duckdb() as session, pytest.raises(PipelineError, match=f"--run {choice.run}: no event of such a run"):
            tree.run(session, [str(tmp_path / "record")], str(tmp_path / "out"), choice)


def test_patterns_in_the_names_of_folders_are_names(tmp_path: Path) -> None:
    record = whole(tmp_path / "a[b]*?")
    whole(tmp_path / "ab")
    with duckdb() as session:
        assert rollup.run(session, [str(record)], str(tmp_path / "o[u]t")).messages == 400


def test_auto_takes_duckdb_for_small_records_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = str(whole(tmp_path / "record"))
    assert chosen("auto", [record], "out") == DUCKDB
    assert chosen("spark", [record], "out") == SPARK
    assert chosen("auto", [record], "s3a://bucket/out") == SPARK
    assert chosen("auto", [record, "s3a://bucket/record"], "out") == SPARK
    assert chosen("auto", [record], "out", SparkOptions("local[2]")) == SPARK
    with monkeypatch.context() as patch:
        patch.setattr(engine, "AUTO_BYTES", 1000)
        assert chosen("auto", [record], "out") == SPARK
    with monkeypatch.context() as patch:
        patch.setattr(engine, "find_spec", lambda _: None)
        assert chosen("auto", [record], "out") == SPARK
        with pytest.raises(PipelineError, match=r"needs DuckDB: .*pip install"):
            chosen("duckdb", [record], "out")


@pytest.mark.parametrize(
    "command",
    ["rollup", *(pytest.param(each, marks=pytest.mark.long) for each in ("tree", "oracle", "plan", "report"))],
)
def test_the_command_says_first_which_engine_it_takes_and_starts_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a Spark was started")

    monkeypatch.setattr("canopy_pipeline.runtime.engine.spark_session", started)
    record, out = damaged(tmp_path / "record"), tmp_path / "out"
    told = CliRunner().invoke(app, [command, "--input", str(record), "--output", str(out)])
    assert told.stderr.splitlines()[0].removeprefix("canopy: ") == "engine: duckdb", told.output
    # The oracle finds the faults; to the others something is missing.
    assert told.exit_code == (1 if command in ("oracle", "report") else 3), told.output
    assert "is not there" in told.stderr
    assert (out / "index.html").exists()


def test_duckdb_needs_no_pyspark(tmp_path: Path) -> None:
    record = damaged(tmp_path / "record")
    without = "import sys; sys.path[:0] = {path!r}; sys.modules.update(pyspark=None, py4j=None)"
    line = f"{without.format(path=[each for each in sys.path if each])}; from canopy_pipeline.cli import app; app()"
    command = [sys.executable, "-P", "-c", line, "report", "--input", str(record), "--output", str(tmp_path / "out")]
    done = subprocess.run([*command, "--engine", "duckdb"], capture_output=True, text=True, timeout=120, check=False)
    # The oracle finds the faults that are in it.
    assert done.returncode == 1, done.stderr
    assert {name: part["fine"] for name, part in said(tmp_path / "out")["jobs"].items()} == {
        "rollup": None, "tree": None, "oracle": False, "plan": None,
    }  # fmt: skip
