"""All jobs in one session: which are run, what the page says, and what the exit code is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import MisuseError, PipelineError
from pipeline.report import job
from tests.pipeline.recorded import Story

Made = Callable[[], tuple[str, bool | None]]


def story(folder: Path, deliveries: bool) -> str:
    """One message to one subscriber."""
    told = Story()
    told.subscribe("s", "a/#")
    sent = told.publish("p", "a/b")
    if deliveries:
        told.deliver("s", sent)
    told.write(folder)
    return str(folder)


def broken() -> tuple[str, bool | None]:
    raise PipelineError("segment X: cannot be read")


def test_the_verdict_is_that_of_all_jobs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Made] = {"rollup": lambda: ("12 messages", None), "oracle": lambda: ("agrees", True)}
    monkeypatch.setattr(job, "_jobs", lambda *_: made)
    out = tmp_path / "out"
    assert job.run(spark, ["x"], str(out)).fine
    page = (out / "index.html").read_text()
    assert "Every message went where it should" in page
    assert 'href="oracle/index.html"' in page

    # One that cannot be done does not keep the others from being run, and is no success.
    made["tree"] = broken
    made["plan"] = lambda: ("3 filters", None)
    said: list[str] = []
    assert not job.run(spark, ["x"], str(out), say=said.append).fine
    assert said[-2:] == ["tree: segment X: cannot be read", "plan: 3 filters"]
    assert "see tree." in (out / "index.html").read_text()
    jobs = json.loads((out / "summary.json").read_text())["jobs"]
    assert {name: found["fine"] for name, found in jobs.items()} == {
        "rollup": None,
        "oracle": True,
        "tree": False,
        "plan": None,
    }
    source = tmp_path / "record"
    source.mkdir()
    assert CliRunner().invoke(app, ["report", "--input", str(source), "--output", str(out)]).exit_code == 1


def test_what_is_misuse_is_said_before_any_job(spark: SparkSession, tmp_path: Path) -> None:
    record = story(tmp_path / "record", False)
    with pytest.raises(MisuseError, match="--load none: no such folder"):
        job.run(spark, [record], str(tmp_path / "out"), load="none")
    assert not (tmp_path / "out").exists()
    with pytest.raises(MisuseError, match="lies in --input"):
        job.run(spark, [record], f"{record}/out")


def test_what_was_not_recorded_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []

    def jobs(source: str, load: str | None) -> list[str]:
        return [*job._jobs(spark, [source], str(tmp_path), load, False, said.append)]

    assert jobs(story(tmp_path / "with", True), "load") == ["rollup", "tree", "oracle", "loadtest", "plan"]
    assert not said
    assert jobs(story(tmp_path / "without", False), None) == ["rollup", "tree", "plan"]
    assert "deliveries were not recorded" in said[0]
