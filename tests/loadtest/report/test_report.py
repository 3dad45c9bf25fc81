"""The report's files: what is in them, for whom, and that they come whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canopy_load.report import report_files
from canopy_load.report.report_files import ReportError, write
from canopy_load.report.result import Result
from tests.loadtest.results import ATTACK, SCENARIO, empty_result, full_result


@pytest.fixture(scope="module")
def result() -> Result:
    return full_result()


@pytest.fixture(scope="module")
def written(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(result, tmp_path_factory.mktemp("report") / "deep" / "folder")


def test_all_files_are_there_and_nothing_else(written: Path) -> None:
    names = sorted(path.name for path in written.iterdir())

    assert names == ["report.html", "scenario.toml", "summary.json"]
    assert (written / "scenario.toml").read_text() == SCENARIO


def test_the_summary_is_the_result(result: Result, written: Path) -> None:
    summary = json.loads((written / "summary.json").read_text())

    assert summary == json.loads(json.dumps(result.as_json()))
    assert summary["deliveries"]["lost"] == 20
    assert summary["pairs"][0]["publisher"] == ATTACK


def test_an_interruption_leaves_the_earlier_report_whole(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = write(empty_result(), tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def interrupted(_: Result) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(report_files, "page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(result, tmp_path / "out")

    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert json.loads((earlier / "summary.json").read_text())["run"] == "00000000"


def test_a_report_is_never_written_over(tmp_path: Path) -> None:
    """Two runs may begin in the same second, or share a folder: the second report goes beside the first."""
    folder = tmp_path / "monday"
    first, second, third = (write(empty_result(), folder) for _ in range(3))
    assert [first, second, third] == [folder, tmp_path / "monday-2", tmp_path / "monday-3"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here is no folder")

    with pytest.raises(ReportError) as caught:
        write(empty_result(), tmp_path / "file" / "report")

    assert str(caught.value) == f"{tmp_path / 'file' / 'report'}: the report cannot be written (Not a directory)"
