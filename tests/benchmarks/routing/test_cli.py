"""The command: its flags, its exit codes, and the file it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.routing import cli, growth, memory
from benchmarks.routing.cli import main, parse
from benchmarks.routing.loops import WrongRoute
from benchmarks.routing.measure import GC_THRESHOLDS
from benchmarks.routing.row import LAYOUTS, Case, Sample
from benchmarks.routing.rows import ROWS

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "benchmarks.routing"]


def test_the_flags_have_defaults() -> None:
    plan = parse([])
    assert [row.name for row in plan.rows] == list(ROWS)
    assert plan.layouts == list(LAYOUTS)
    assert (plan.repeats, plan.divide, plan.growth, plan.json) == (5, 1, False, None)


def test_quick_yields_to_what_is_said() -> None:
    plan = parse(["--quick", "--repeats", "2", "--rows", "exact, plus", "--layout", "compact"])
    assert ([row.name for row in plan.rows], plan.layouts) == (["exact", "plus"], ["compact"])
    assert (plan.repeats, plan.divide) == (2, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "unicorn"], "no row 'unicorn'; there are: churn-insert, "),
        (["--layout", "nodes,moss"], "no layout 'moss'; there are: nodes, compact"),
        (["--rows", ","], "at least one row"),
        (["--repeats", "0"], "--repeats"),
        (["--growth", "--rows", "exact"], "--growth measures no rows"),
        (["--json", "/nowhere/at/all.json"], "no directory /nowhere/at"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_file_has_every_row_and_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert main(["--quick", "--repeats", "2", "--rows", "exact,many-wildcards,send-path", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert data["core"] in ("compiled", "interpreted")
    assert (data["repeats"], data["divided_by"]) == (2, 10)
    assert data["gc_thresholds"] == list(GC_THRESHOLDS)
    assert data["empty_loop_ns"] > 0
    assert {"cpu", "cores", "python"} <= set(data["host"])
    found = [(row["name"], row["layout"]) for row in data["rows"]]
    assert found == [(name, layout) for name in ("exact", "many-wildcards", "send-path") for layout in LAYOUTS]
    for row in data["rows"]:
        assert len(row["runs"]) == 2
        assert min(row["runs"]) <= row["median"] <= max(row["runs"])
        assert row["failure"] is None
    out = capsys.readouterr().out
    assert "no bar is judged" in out
    assert all(ROWS[name].title in out for name in ("exact", "many-wildcards", "send-path"))


def _with_row(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[Case], Sample]) -> None:
    monkeypatch.setattr(cli, "ROWS", {**ROWS, name: replace(ROWS[name], run=run)})


@pytest.mark.parametrize(
    ("error", "told"),
    [(WrongRoute("a/b reached nobody"), "FAILED: a/b reached nobody"), (KeyError("gone"), "FAILED: KeyError: 'gone'")],
)
def test_a_failed_row_is_told_and_ends_with_1(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[Case] = []

    def fail(case: Case) -> Sample:
        tried.append(case)
        raise error

    _with_row(monkeypatch, "unicast", fail)
    assert main(["--rows", "unicast", "--repeats", "3"]) == 1
    assert told in capsys.readouterr().out
    assert tried == [Case("nodes"), Case("compact")]


def test_a_missed_bar_does_not_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_row(monkeypatch, "unicast", lambda _: Sample(459_000.0))
    assert main(["--rows", "unicast", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert "0 bars reached; 2 missed: unicast (nodes), unicast (compact)." in out


def test_an_interruption_prints_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupt(_: Case) -> Sample:
        raise KeyboardInterrupt

    _with_row(monkeypatch, "plus", interrupt)
    file = tmp_path / "out.json"
    assert main(["--quick", "--rows", "exact,plus", "--json", str(file)]) == 130
    assert "Interrupted" in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"][0]["median"] > 0


def test_growth_writes_what_the_plot_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "FILTERS", (1_000,))
    monkeypatch.setattr(growth, "SUBSCRIBERS", (100,))
    monkeypatch.setattr(growth, "LEAST", 100)
    monkeypatch.setattr(growth, "ROUNDS", 100)
    monkeypatch.setattr(growth, "DELIVERIES", 1)
    monkeypatch.setattr(memory, "LEAST", 1_000)
    file = tmp_path / "growth.json"
    assert main(["--growth", "--quick", "--layout", "compact", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert [point["count"] for point in data["growth"]["filters"]["compact"]] == [100]
    assert "rows" not in data
    assert "compact" in capsys.readouterr().out


def test_the_module_is_a_command() -> None:
    done = subprocess.run(
        [*COMMAND, "--rows", "unicorn"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("python -m benchmarks.routing: no row 'unicorn'")
    assert done.stdout == ""
