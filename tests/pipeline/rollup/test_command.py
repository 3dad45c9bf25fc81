"""The command line of the rollup: what it refuses before a Spark is started."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pipeline.cli import app


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--once"], "--once and --every are for a stream"),
        (["--every", "10s"], "--once and --every are for a stream"),
        (["--checkpoint", "c", "--once", "--every", "10s"], "--once and --every: one of them"),
        (["--checkpoint", "c", "--every", "soon"], "--every soon: a number and a unit"),
        (["--checkpoint", "c", "--since", "2026-11-21"], "--since, --until and --run are not for a stream"),
        (["--checkpoint", "c", "--input", "b"], "a stream reads one folder"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], why: str) -> None:
    told = CliRunner().invoke(app, ["rollup", "--input", "a", "--output", "o", *arguments])
    assert told.exit_code == 2
    assert why in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_the_commands_are_there_without_the_libraries() -> None:
    loaded = "import sys, pipeline.cli; print(sorted({'pyspark', 'pyarrow', 'plotly', 'pandas'} & set(sys.modules)))"
    path = [each for each in sys.path if each]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {path!r}; {loaded}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "[]"
