"""The snippets of docs/recorder.md for other readers, run as they stand there, over a record that is being merged."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from canopy_mqtt.record.files.delta_follower import DeltaFollower
from canopy_mqtt.record.files.folder import first_seq
from canopy_pipeline.compact import compact_job
from tests.pipeline.command_on_path import put_command_on_path
from tests.pipeline.folder import NOW, record

ROOT: Final = Path(__file__).parents[3]
HOUR: Final = timedelta(hours=1)
COUNTS: Final = {f"a/{number}": 15 for number in range(4)}
"""Publishes of each topic in the record; a fifth more where those are counted that merged segments stand for."""


def snippets() -> dict[str, str]:
    """By the first word of the line before them."""
    text = (ROOT / "docs" / "recorder.md").read_text()
    part = text.partition("## Reading it elsewhere")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for line, code in re.findall(r"\n([^\n]+)\n\n```python\n(.*?)```", part, re.DOTALL):
        name = "Python" if line.endswith("Python:") else re.split(r"\W", line)[0]
        found[name] = code
    return found


def delta() -> str:
    """That of the table of Delta Lake."""
    text = (ROOT / "docs" / "recorder.md").read_text()
    part = text.partition("## As a table of Delta Lake")[2].partition("\n## ")[0]
    return part.partition("```python\n")[2].partition("```")[0]


def run(name: str, files: list[str]) -> dict[str, Any]:
    """What a snippet leaves."""
    names: dict[str, Any] = {"files": files}
    exec(snippets()[name], names)
    return names


def counts(printed: str) -> dict[str, int]:
    """The topics in a printed table, and the first number beside each."""
    return {topic: int(count) for topic, count in re.findall(r"(a/\d)\W+?(\d+)\b", printed)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What the first of them lists, in the folder that is the working directory; `canopy` is what is tested here."""
    top = tmp_path_factory.mktemp("snippets")
    record(top / "canopy-record")
    assert compact_job.run(str(top / "canopy-record"), HOUR, 1 << 20, HOUR, now=NOW).removed == 0
    with pytest.MonkeyPatch.context() as patch:
        put_command_on_path(top, patch)
        found: list[str] = run("Python", [])["files"]
        assert [first_seq(path) for path in found] == [1, 21, 52, 67]
        yield found


def test_each_of_them_is_run_here() -> None:
    assert set(snippets()) == {"Python", "DuckDB", "pandas", "Polars", "Spark", "Trino"}


@pytest.mark.parametrize("name", ["DuckDB", "pandas", "Polars"])
def test_a_reader(files: list[str], capsys: pytest.CaptureFixture[str], name: str) -> None:
    run(name, files)
    assert counts(capsys.readouterr().out) == COUNTS


@pytest.mark.usefixtures("spark")
def test_spark(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    # The session's Java machine may have begun in another folder.
    run("Spark", [os.path.abspath(path) for path in files])
    assert counts(capsys.readouterr().out) == COUNTS


def test_delta(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The same files, whatever lies beside them in the folder."""
    DeltaFollower(Path("canopy-record")).follow(None)
    names: dict[str, Any] = {}
    exec(delta(), names)
    assert counts(capsys.readouterr().out) == COUNTS
    assert sorted(map(Path, names["files"])) == sorted(map(Path.absolute, map(Path, files)))


def test_trino(files: list[str]) -> None:
    """Its condition, by an engine that is here: all files of the folder, told apart by the same column."""
    folder = "read_parquet('canopy-record/date=*/hour=*/*.parquet', filename = '$path')"
    query: str = run("Trino", files)["query"]
    assert query.count("hive.canopy.record") == 1
    with duckdb.connect() as engine:
        assert dict(engine.execute(query.replace("hive.canopy.record", folder)).fetchall()) == COUNTS
        without = query.replace("hive.canopy.record", folder).partition("AND")[0]
        assert Counter(dict(engine.execute(f"{without} GROUP BY topic").fetchall())) > Counter(COUNTS)
