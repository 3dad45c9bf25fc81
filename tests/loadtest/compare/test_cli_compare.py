"""The commands `compare` and `limit`: what they say, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_load.brokers.registry import PEERS
from canopy_load.checks.broker_statistics import MAX_WAIT
from canopy_load.cli.app import app
from canopy_load.engine import conductor

SCENARIO = """
name = "mini"
quiet = 0.2
drain = 2.0
[[stages]]
name = "steady"
seconds = 0.3
[[groups]]
name = "subscribers"
clients = 2
[[groups.subscribe]]
filter = "p/%c"
[[groups]]
name = "publishers"
clients = 2
[[groups.publish]]
topic = "p/%c"
in_flight = 10
"""

COMMAND = """
from canopy_load.cli.app import main
main()
"""


@pytest.fixture
def mini(tmp_path: Path) -> str:
    file = tmp_path / "mini.toml"
    file.write_text(SCENARIO)
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--broker", "rabbits"], "canopy: no broker 'rabbits'; there are: canopy, canopy-recording, "),
        (["--broker", "relay", "--set", "groups.nobody.clients=3"], "nobody"),
        (["--broker", "relay", "--set", "groups.publishers.session_expiry=9", "--mqtt", "3.1.1"], "session_expiry"),
        (["--broker", "relay", "--mqtt", "4"], "'4' is not one of"),
        (["--broker", "relay", "--rounds", "0"], "--rounds"),
        ([], "--broker"),
    ],
)
def test_a_wrong_command_line_is_told(mini: str, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["compare", mini, *arguments])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_comparison_is_played_printed_and_written(mini: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine takes longer than users wait for a broker's own figures.
    monkeypatch.setattr(conductor, "SHORT_WAIT", MAX_WAIT)
    out = tmp_path / "out"
    # Canopy from the source takes its time to start.
    other = "canopy" if PEERS["mosquitto"].missing() else "mosquitto"
    arguments = ["--broker", "relay", "--broker", other, "--rounds", "1", "--out", str(out)]
    done = CliRunner().invoke(app, ["compare", mini, *arguments])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == ["round 1 of 1: relay", f"round 1 of 1: {other}"]
    assert "deliveries a second" in done.stdout
    assert f"report: {out / 'compare.html'}" in done.stdout
    data = json.loads((out / "compare.json").read_text())
    for broker in data["brokers"]:
        (run,) = broker["runs"]
        assert run["deliveries"]["expected"] == run["deliveries"]["received"] > 0
        assert broker["figures"]["cpu_us"]["median"] > 0
        assert broker["figures"]["memory_mb"]["median"] > 1
        assert broker["figures"]["loss_percent"]["median"] == 0
    assert data["brokers"][1]["runs"][0]["reconciled"]["agrees"] is True
    again = CliRunner().invoke(app, ["compare", mini, *arguments])
    assert (again.exit_code, again.stdout) == (1, "")
    assert f"{out}: holds the report of an earlier run" in again.stderr


def test_a_broker_that_is_missing_is_an_error_at_the_end(mini: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(Path(mini).parent)
    done = CliRunner().invoke(app, ["compare", mini, "--broker", "flashmq", "--broker", "relay", "--rounds", "1"])
    assert len(list(Path(mini).parent.glob("canopy-load/compare-mini-*/compare.html"))) == 1
    assert done.exit_code == 1
    assert "canopy: flashmq: no flashmq on PATH" in done.stderr
    assert "relay" in done.stdout


def test_a_folder_that_cannot_be_written_to_is_an_error(mini: str) -> None:
    done = CliRunner().invoke(app, ["compare", mini, "--broker", "relay", "--rounds", "1", "--out", f"{mini}/x"])
    assert done.exit_code == 1
    assert f"canopy: {mini}/x: the report cannot be written" in done.stderr
    assert done.stdout == "", "no broker was started"


def test_ctrl_c_ends_everything_and_reports_what_there_is(mini: str, tmp_path: Path) -> None:
    """As a terminal does it: the interruption goes to the whole process group."""
    out = tmp_path / "out"
    arguments = ["compare", mini, "--broker", "relay", "--rounds", "1000", "--out", str(out)]
    safe = ["-P"] if sys.flags.safe_path else []
    child = subprocess.Popen(
        [sys.executable, *safe, "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("round 2 of"):
            break
    os.killpg(child.pid, signal.SIGINT)
    stdout, stderr = child.communicate()
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "Interrupted: not all rounds were played." in stdout
    (broker,) = json.loads((out / "compare.json").read_text())["brokers"]
    assert broker["failure"] is None
    assert broker["runs"]
    assert not list(tmp_path.glob("canopy-load-*"))
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
