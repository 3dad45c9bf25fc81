"""The last line of a run says what it leaves out, whichever way the tests are collected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from hypothesis import given
from hypothesis import strategies as st

@pytest.mark.long
def test_long() -> None: ...

def test_short() -> None: ...

@given(st.booleans())
def test_property(value: bool) -> None: ...
"""


def last_line(folder: Path, *arguments: str, **environ: str) -> str:
    """Return pytest's last line, of a run over a long test, a short one and a property."""
    (folder / "test_three.py").write_text(TESTS)
    command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "pytest", "-p", "tests.conftest"]
    command += ["--config-file", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CANOPY_", "PYTEST_"))}
    # It runs in another folder, from where a relative path leads elsewhere.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    inherited["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths if path)
    done = subprocess.run(
        [*command, *arguments, "test_three.py"],
        cwd=folder,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.rstrip().splitlines()[-1]


def test_what_is_left_out_is_the_last_line(tmp_path: Path) -> None:
    told = last_line(tmp_path, "-m", "not long", "-k", "not short")
    assert told == (
        "canopy: left out: 1 long test, 1 property with part of its examples: make test-long; "
        "deselected by -m or -k besides: 1"
    )


def test_processes_of_xdist_tell_it_too(tmp_path: Path) -> None:
    told = last_line(tmp_path, "-m", "not long", "--numprocesses=1")
    assert told == "canopy: left out: 1 long test, 1 property with part of its examples: make test-long"


def test_a_run_of_everything_leaves_out_nothing(tmp_path: Path) -> None:
    assert "3 passed" in last_line(tmp_path, CANOPY_LONG="1")


def test_a_part_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LONG", False)
    assert [runs.examples(thorough) for thorough in (5, 30, 100, 250)] == [5, 15, 15, 25]
    monkeypatch.setattr(runs, "LONG", True)
    assert runs.examples(250) == 250


def test_each_case_stands_alone_and_is_named_where_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    @runs.for_each("case", ["a", pytest.param("b", id="second"), "c"])
    def test(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert (list(tmp_path.iterdir()), os.environ.get("CASE"), capsys.readouterr().out) == ([], None, "")
        (tmp_path / case).touch()
        monkeypatch.setenv("CASE", case)
        print(case)
        seen.append(case)
        assert case != "b"

    with pytest.raises(AssertionError) as failed:
        test(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert (seen, failed.value.__notes__) == (["a", "b"], ["case 1: second"])
