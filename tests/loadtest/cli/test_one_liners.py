"""`canopy load pub`, `sub` and `conn`: each line of the guide against a broker, and what the options make."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from canopy_load.brokers.process import BrokerProcess, free_port
from canopy_load.brokers.registry import PEERS
from canopy_load.cli import common, one_liners
from canopy_load.cli.app import app
from canopy_load.engine.job import Job
from canopy_load.scenario import library
from tests.support.runs import for_each

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "load.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| .* \| `canopy load ((?:pub|sub|conn) .+)` \|$", GUIDE, re.MULTILINE)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A broker's."""
    found = free_port()
    command = PEERS["canopy"].command(found, tmp_path_factory.mktemp("canopy"), settings=["sys.interval=0.1"])
    with BrokerProcess(command, found, None, patience=60):
        yield found


def as_users(job: Job, who: common.Credentials) -> Job:
    return replace(job, scenario=library.with_users(job.scenario, who.user, who.password, who.users))


def made(monkeypatch: pytest.MonkeyPatch, line: str) -> Job:
    """What a line would play."""
    jobs: list[Job] = []
    monkeypatch.setattr(one_liners, "play_and_report", lambda job, _, who: jobs.append(as_users(job, who)))
    result = CliRunner().invoke(app, shlex.split(line))
    assert result.exit_code == 0, result.output
    return jobs[0]


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


def test_the_guide_has_lines_of_all_three() -> None:
    assert {line.split()[0] for line in LINES} == {"pub", "sub", "conn"}
    assert len(LINES) == 7


def lines() -> list[Any]:
    """Those of the guide; beside the first of each kind they are for the long runs."""
    first = {line.split()[0]: line for line in reversed(LINES)}
    return [line if line in first.values() else pytest.param(line, marks=pytest.mark.long) for line in LINES]


@pytest.mark.parametrize("line", lines())
def test_a_line_of_the_guide_is_played_but_smaller_and_elsewhere(line: str, port: int, tmp_path: Path) -> None:
    """Of an option that stands there twice the last one counts."""
    smaller = ["-c", "3", "-h", "127.0.0.1", "-p", str(port), "--duration", "0.3s", "--out", str(tmp_path)]
    wanted = [] if line.startswith("conn") else ["-q", "1"]
    result = CliRunner().invoke(app, [*shlex.split(line), *smaller, *wanted, "--processes", "1"])

    assert result.exit_code == 0, result.output
    (group, *_) = summary(tmp_path)["groups"]
    assert (group["name"], group["connects"], group["connects_failed"]) == (line.split()[0], 3, 0)
    assert summary(tmp_path)["errors"] == {}


def test_what_is_published_is_checked_by_subscribers_and_told_to_other_programs(port: int, tmp_path: Path) -> None:
    line = f"pub -p {port} -c 4 -I 20 -t bench/%i/x -q 1 --subscribers 2 --duration 500ms --strict --out {tmp_path}"
    more = f"--threshold 'lost == 0' --threshold 'p99 < 1us' --junit {tmp_path}/a.xml"
    result = CliRunner().invoke(app, shlex.split(f"{line} {more} --prometheus {tmp_path}/a.prom"))

    assert result.exit_code == common.MISSED, result.output
    found = summary(tmp_path)
    assert found["deliveries"]["received"] == 2 * found["groups"][0]["sent"] > 0
    assert [each["met"] for each in found["thresholds"]] == [True, False]
    assert "Threshold missed: p99 < 1us" in result.output
    assert 'canopy_load_threshold_met{scenario="pub",threshold="p99 < 1us"} 0' in (tmp_path / "a.prom").read_text()
    assert '<failure message="p99 &lt; 1us: it was' in (tmp_path / "a.xml").read_text()


def test_what_others_publish_is_counted_and_not_judged(port: int, tmp_path: Path) -> None:
    """A retained message, which waits for the subscribers."""
    runner = CliRunner()
    line = f"pub -p {port} -c 1 -I 10 -L 1 -t kept/%i -r -q 1 --processes 1 --out {tmp_path / 'pub'}"
    assert runner.invoke(app, shlex.split(line)).exit_code == 0
    line = f"sub -p {port} -c 3 -t kept/# -q 1 --processes 1 --duration 300ms --out {tmp_path / 'sub'}"
    assert runner.invoke(app, shlex.split(line)).exit_code == 0

    found = summary(tmp_path / "sub")
    assert sum(second["foreign"] for second in found["seconds"]) == 3
    assert found["deliveries"]["expected"] == 0


@for_each("command", ["pub", "sub", "conn"])
def test_h_alone_asks_for_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "-h"])
    assert result.exit_code == 0
    assert "--host HOST" in result.stdout


def test_the_names_of_emqtt_bench_mean_what_they_mean_there(monkeypatch: pytest.MonkeyPatch) -> None:
    job = made(
        monkeypatch,
        "pub -h a,b -p 1884 -V 4 -c 10 -n 100 -R 50 -I 20 -t 'b/%i/%u/%c/100%%' -s 1KiB -q 2 -r -L 55 -u d%i -P s%i "
        "-k 7 --no-clean --prefix x_ -S --insecure --ws",
    )
    (group,) = job.scenario.groups
    (publish,) = group.publish
    assert [str(target) for target in job.targets] == ["wss://a:1884/mqtt", "wss://b:1884/mqtt"]
    assert (group.clients, group.version, group.keep_alive, group.clean_start) == (10, "3.1.1", 7, False)
    assert (group.client_id, group.connect_rate) == ("x_%{c+100}", 50)
    assert (group.user_name, group.password) == ("d%{c+100}", "s%{c+100}")
    assert publish.topic == "b/%{c+100}/d%{c+100}/x_%{c+100}/100%%"
    assert (publish.rate, publish.qos, publish.retain, publish.payload.size) == (50, 2, True, 1024)
    assert publish.messages == 5
    assert "s%{c" not in job.scenario_text


def test_subscribers_hear_every_topic_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    job = made(monkeypatch, "pub -t bench/x%i/%r/temp --subscribers 3 -q 1 -x 60")
    publishers, subscribers = job.scenario.groups
    assert subscribers.subscribe[0].filter == "bench/+/+/temp"
    assert (subscribers.clients, subscribers.subscribe[0].qos, publishers.session_expiry) == (3, 1, 60)


@for_each(
    ("line", "why"),
    [
        ("pub -t a/%u", "%u is the user name"),
        ("pub -t a -s 3", "greater than or equal to 16"),
        ("pub -t a --duration soon", "a duration is a number of seconds"),
        ("pub -t a/#", "topic 'a/#'"),
        ("conn -V 6", "3 and 4 are MQTT 3.1.1"),
        ("conn -V 4 -x 5", "exists in MQTT 5.0 only"),
        ("conn -S --cert a.pem", "--cert a.pem: no such file"),
        ("conn -S --key a.pem", "--key needs --cert"),
        ("conn --threshold 'p99 < 1ms' --threshold nothing", "a threshold is FIGURE COMPARISON VALUE"),
        ("conn --users none.csv", "none.csv: cannot be read"),
    ],
)
def test_what_is_wrong_is_told_with_exit_code_2(line: str, why: str) -> None:
    result = CliRunner().invoke(app, shlex.split(line))
    assert result.exit_code == 2, result.output
    assert why in " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())
