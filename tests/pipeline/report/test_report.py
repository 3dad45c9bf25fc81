"""All jobs in one session: which are run, what the page says, and what the exit code is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from canopy_mqtt.pages import Page
from canopy_pipeline.cli import app
from canopy_pipeline.compact import erase_job
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.record.events_schema import CONNECT, GAP, PUBLISH
from canopy_pipeline.report import report_job
from canopy_pipeline.report.picture import Picture, _clients, _messages
from tests.pipeline.recorded import Story, write_segment
from tests.pipeline.tables.fleet import SAMPLE
from tests.pipeline.tables.fleet import story as plant

Made = Callable[[], report_job.JobResult]


def story(folder: Path, deliveries: bool) -> str:
    """One message to one subscriber."""
    told = Story()
    told.subscribe("s", "a/#")
    sent = told.publish("p", "a/b")
    if deliveries:
        told.deliver("s", sent)
    told.write(folder)
    return str(folder)


def lost_segment(told: Story) -> list[dict[str, Any]]:
    """Three more events, which are not in what was written."""
    before = len(told.events)
    for _ in range(3):
        told.publish("p", "elsewhere")
    return told.events[before:]


def broken() -> report_job.JobResult:
    raise PipelineError("segment X: cannot be read")


def test_the_verdict_is_that_of_all_jobs(duck: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def judged() -> report_job.JobResult:
        (tmp_path / "out" / "oracle").mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / "oracle" / "index.html").write_text(Page("Oracle").html())
        return report_job.JobResult("agrees", True, "Every message went where it should.")

    made: dict[str, Made] = {"rollup": lambda: report_job.JobResult("12 messages"), "oracle": judged}
    monkeypatch.setattr(report_job, "_jobs", lambda *_: made)
    out = tmp_path / "out"
    assert report_job.run(duck, ["x"], str(out)).fine
    page = (out / "index.html").read_text()
    assert "Every message went where it should" in page
    assert 'href="oracle/index.html"' in page
    # What left no page is not linked; what did leads back.
    assert 'href="rollup/index.html"' not in page
    assert '<a href="../index.html">overview</a><b>oracle</b>' in (out / "oracle" / "index.html").read_text()

    # One that cannot be done does not keep the others from being run, and is no success.
    made["tree"] = broken
    made["plan"] = lambda: report_job.JobResult("3 filters")
    said: list[str] = []
    assert not report_job.run(duck, ["x"], str(out), say=said.append).fine
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


def test_what_was_not_recorded_is_left_out(duck: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []

    def jobs(source: str) -> list[str]:
        return [*report_job._jobs(duck, [source], str(tmp_path), said.append, report_job.ReportOutcome())]

    assert jobs(story(tmp_path / "with", True)) == ["rollup", "tree", "oracle", "plan"]
    assert not said
    assert jobs(story(tmp_path / "without", False)) == ["rollup", "tree", "plan"]
    assert "deliveries were not recorded" in said[0]
    erase_job.run(story(tmp_path / "erased", True), erase_job.Chosen(clients=("s",)))
    assert jobs(str(tmp_path / "erased")) == ["rollup", "tree", "plan"]
    assert "deliveries were erased" in said[1]


@pytest.mark.timeout(400)
def test_the_headline_says_what_was_lost_by_whom_and_what_is_missing(tmp_path: Path) -> None:
    told = Story()
    told.subscribe("healthy", "a/#", qos=1)
    told.subscribe("slow", "a/#", qos=1)
    for number in range(6):
        sent = told.publish("p", "a/b", qos=1)
        told.deliver("healthy", sent, 1)
        if number < 4:
            told.deliver("slow", sent, 1)
        else:
            told.drop("slow", "queue-full", ref_seq=sent)
    told.add("connect", client_id="x", protocol=5)
    record, out = tmp_path / "record", tmp_path / "out"
    told.write(record)
    gone = write_segment(record, lost_segment(told))
    gone.unlink()

    said = CliRunner().invoke(app, ["report", "--input", str(record), "--output", str(out)])
    assert said.exit_code == 3, said.output
    summary, page = json.loads((out / "summary.json").read_text()), (out / "index.html").read_text()
    headline, missing = summary["headline"]
    assert "The broker dropped 2 messages: 2 from p to slow (queue-full). At least 2 of them were published" in headline
    assert missing == "The record is INCOMPLETE: 21 events in 1 segment read, 3 are missing (12.5 %)."
    assert page.count("INCOMPLETE") == 1
    assert "dropped none" not in page
    assert headline in page
    # Drops and clients are in the picture, by their causes and names.
    plots = {each["key"]: each for each in json.loads(page.split('id="charts">')[1].split("</script>")[0])}
    assert [(series["name"], series["values"]) for series in plots["drops"]["series"]] == [("queue-full", [2])]
    assert sum(plots["clients"]["series"][1]["values"]) == 1
    assert "The recorder names no gap." in page
    assert re.search(r'<td class="left">slow</td><td>0</td><td>4</td><td>2</td>', page)
    oracle = json.loads((out / "oracle" / "summary.json").read_text())
    assert (oracle["verdict"], oracle["reliable"], oracle["receivers"]) == ("drops", 2, 1)
    # Every job names the segment: in its last lines, its JSON and its page.
    assert said.stderr.splitlines()[-2].endswith(f"{gone.name}: is not there (numbers 22 to 24)")
    for name in ("", "rollup", "tree", "oracle", "plan"):
        about = json.loads((out / name / "summary.json").read_text())["coverage"]
        assert (about["complete"], about["kinds"], about["missing_events"]) == (False, {"missing": 1}, 3)
        assert gone.name in (out / name / "index.html").read_text()


def test_rows_and_dead_letters_of_payload_tables_are_on_the_page(tmp_path: Path) -> None:
    """As in `make demo`, which writes both into one folder."""
    record, out = tmp_path / "record", tmp_path / "out"
    plant().write(record)
    words = ["--input", str(record), "--output"]
    done = CliRunner().invoke(app, ["tables", *words, str(out / "tables"), "--mapping", str(SAMPLE / "tables.toml")])
    assert done.exit_code == 0, done.output
    CliRunner().invoke(app, ["report", *words, str(out)])
    page = (out / "index.html").read_text()
    assert re.search(r"power</td><td>3</td><td>3</td><td[^>]*>3 wrong-type</td>", page)
    assert re.search(r"notes</td><td>3</td><td>0</td>", page)


def test_time_of_which_the_recorder_lost_events_is_shaded_and_not_a_time_without_messages() -> None:
    shown = Picture(
        start=1_000,
        step=1,
        pieces=7,
        counts={(PUBLISH, None): {0: 5, 5: 7}, (GAP, "queue-full"): {4: 90, 5: 1}, (CONNECT, None): {1: 1}},
    )
    chart = _messages(shown)
    assert [(each.begin, each.end) for each in chart.stages] == [(1_002, 1_005), (1_005, 1_006)]
    assert chart.series[0].values == [5, 0, None, None, None, 7, 0]
    clients = _clients(shown)
    assert clients.stages == chart.stages
    assert [each.values for each in clients.series] == [
        [0, 1, None, None, None, None, 1],
        [0, 1, None, None, None, None, 0],
        [0, 0, None, None, None, None, 0],
    ]
