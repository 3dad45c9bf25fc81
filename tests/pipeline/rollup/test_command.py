"""The command line of the rollup: what it refuses before a Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from tests.support.runs import for_each


@for_each(
    ("arguments", "why"),
    [
        (["--update"], "--update replaces all that is known of some hours: give --since, and no --run"),
        (["--update", "--since", "2026-11-21", "--run", "0a1b2c3d"], "give --since, and no --run"),
        (["--update", "--since", "2026-11-21T16:20"], "--since 2026-11-21T16:20: with --update it must be a full hour"),
        (
            ["--update", "--since", "2026-11-21", "--until", "2026-11-21T16:00:01"],
            "--until 2026-11-21T16:00:01: with --update it must be a full hour",
        ),
    ],
)
def test_misuse_is_one_line(arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    told = CliRunner().invoke(app, ["rollup", "--input", "a", "--output", "o", "--engine", "duckdb", *arguments])
    assert told.exit_code == 2
    _, line = told.stderr.splitlines()
    assert why in line


@for_each(
    ("command", "option"),
    [
        *((name, "--input") for name in ("compact", "oracle", "plan", "report", "rollup", "tree")),
        ("plan", "--traffic"),
    ],
)
def test_a_folder_that_is_not_there_is_told_before_a_java_is_started(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a Spark was started")

    monkeypatch.setattr("canopy_pipeline.runtime.engine.session", started)
    monkeypatch.chdir(tmp_path)
    there = [] if option == "--input" else ["--input", str(tmp_path)]
    output = [] if command == "compact" else ["--output", "o"]
    told = CliRunner().invoke(app, [command, *there, *output, option, "nosuch"])
    assert (told.exit_code, told.stderr) == (2, f"canopy: {option} nosuch: no such folder\n")


def test_the_commands_are_there_without_the_libraries() -> None:
    loaded = "import sys, canopy_pipeline.cli; print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    path = [each for each in sys.path if each]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {path!r}; {loaded}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "[]"
