"""The plan from recorded segments to the files that it leaves."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from canopy_mqtt.core.codec.topic_names import covers
from canopy_mqtt.settings.loader import load_settings
from canopy_pipeline.cli import app
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.plan import plan_job
from canopy_pipeline.plan.plan_transforms import cut, subscribed
from canopy_pipeline.record.segments import events
from tests.pipeline.recorded import Story

# Many small Spark jobs: seconds on an idle machine, and not on one where others compile.
pytestmark = pytest.mark.timeout(400)


def branch(name: str, run_id: str) -> Story:
    story = Story(run_id)
    for at in range(6):
        story.subscribe(f"c{at}", f"{name}/{at}/temperature", qos=1)
        story.publish("p", f"{name}/{at}/temperature", b"x" * 10)
    story.subscribe("c0", f"$share/g/{name}/alarms/#")
    story.subscribe("c0", "$SYS/broker/uptime")
    story.subscribe("c1", 'odd/"\\/ü')
    story.unsubscribe("c1", 'odd/"\\/ü')
    story.publish("p", f"{name}/7/temperature", b"x" * 30)
    story.publish("p", f"{name}/0/noise", b"x" * 1000)
    story.publish(None, "$SYS/broker/uptime", b"x" * 9999)
    return story


def test_two_brokers_and_their_plans(duck: SparkSession, tmp_path: Path) -> None:
    for name, run_id in (("line", "0000000a"), ("plant", "0000000b")):
        branch(name, run_id).write(tmp_path / "edge" / name)
    output = tmp_path / "out"
    arguments = ["plan", "--output", str(output), "--max-filters", "3"]
    arguments += [part for name in ("line", "plant") for part in ("--input", str(tmp_path / "edge" / name))]
    said: Any = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert "line: 3 topic filters in place of 8, over-forwarding 48 bytes" in said.output
    assert "1 topic filters that begin with $ are left out" in said.output
    text = (output / "plan-plant.toml").read_text()
    assert text.startswith("# canopy pipeline plan: 3 topic filters in place of 8, over-forwarding ")
    chosen = tomllib.loads(text)["upstream"][0]["aggregate"]
    # A broker takes it as it is.
    [link] = load_settings(output / "plan-plant.toml", environ={}).upstream
    assert list(link.aggregate) == chosen
    assert chosen == ['odd/"\\/ü', "plant/+/temperature", "plant/alarms/#"]
    curve = duck.read.parquet(str(output / "curve")).where("broker = 'line'").orderBy("filters").collect()
    assert [row["filters"] for row in curve if row["recommended"]] == [3]
    assert curve[-1]["over_bytes"] == 0
    # At one filter all of both brokers' other traffic comes along.
    assert curve[0]["over_bytes"] > 1000
    assert {plan["broker"] for plan in json.loads((output / "summary.json").read_text())["plans"]} == {"line", "plant"}
    assert "plant/alarms/#" in (output / "index.html").read_text()


def test_above_the_limits_it_says_so_and_still_covers(
    duck: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = branch("line", "0000000a")
    story.write(tmp_path / "line")
    monkeypatch.setattr(plan_job, "FILTERS", 3)
    monkeypatch.setattr(plan_job, "TOPICS", 1)
    [plan] = plan_job.run(duck, [str(tmp_path / "line")], str(tmp_path / "out")).plans
    assert len(plan.filters) <= 3
    originals = [f"line/{at}/temperature" for at in range(6)] + ["line/alarms/#", 'odd/"\\/ü']
    assert all(any(covers(wide, narrow) for wide in plan.filters) for narrow in originals)
    # Exactly, though only one topic priced the curve.
    assert plan.over_bytes == 30 + len("line/7/temperature") + 1000 + len("line/0/noise")
    assert len(plan.notes) == 3
    told = events(duck, [str(tmp_path / "line")])
    assert sorted(row["filter"] for row in cut(subscribed(told), 1).collect()) == [
        "$SYS/#",
        "line/#",
        "odd/#",
    ]


def test_what_makes_no_sense_is_said(duck: SparkSession, tmp_path: Path) -> None:
    story = Story()
    story.publish("p", "a")
    story.write(tmp_path / "in")
    with pytest.raises(PipelineError, match="in: nobody subscribed"):
        plan_job.run(duck, [str(tmp_path / "in")], str(tmp_path))
