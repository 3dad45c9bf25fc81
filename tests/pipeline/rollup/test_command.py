"""The command line of the rollup: what it refuses before a Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli import app


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--once"], "--once and --every need --checkpoint DIR"),
        (["--every", "10s"], "--once and --every need --checkpoint DIR"),
        (["--checkpoint", "c", "--once", "--every", "10s"], "--once and --every exclude each other"),
        (["--checkpoint", "c", "--every", "soon"], "--every soon: must be a number and a unit"),
        (["--checkpoint", "c", "--since", "2026-11-21"], "--since, --until and --run do not work with --checkpoint"),
        (["--checkpoint", "c", "--input", "b"], "with --checkpoint give one folder"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
    told = CliRunner().invoke(app, ["rollup", "--input", "a", "--output", "o", *arguments])
    assert told.exit_code == 2
    assert why in told.stderr
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((name, "--input") for name in ("compact", "loadtest", "oracle", "plan", "report", "rollup", "tree")),
        ("plan", "--traffic"),
        ("report", "--load"),
    ],
)
def test_a_folder_that_is_not_there_is_told_before_a_java_is_started(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a Spark was started")

    monkeypatch.setattr("pipeline.runtime.engine.session", started)
    monkeypatch.chdir(tmp_path)
    there = [] if option == "--input" else ["--input", str(tmp_path)]
    output = [] if command == "compact" else ["--output", "o"]
    told = CliRunner().invoke(app, [command, *there, *output, option, "nosuch"])
    assert (told.exit_code, told.stderr) == (2, f"canopy: {option} nosuch: no such folder\n")


def test_the_commands_are_there_without_the_libraries() -> None:
    loaded = "import sys, pipeline.cli; print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    path = [each for each in sys.path if each]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {path!r}; {loaded}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "[]"
