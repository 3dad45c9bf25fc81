"""Options that make no sense: one line that names the option, exit code 2, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from tests.pipeline.recorded import Story
from tests.support.runs import for_each

ROLLUP = ["rollup", "--input", "record", "--output", "out", "--engine", "duckdb"]
POSTGRESQL = ["tables", "--input", "record", "--output", "out", "--mapping", "m.toml", "--format", "postgresql"]
LONG = "9" * 400


@for_each(
    ("words", "line"),
    [
        (
            ["compact", "--input", "record", "--older-than", f"{LONG}d"],
            f"--older-than {LONG}d: must be at most 365000d",
        ),
        (["compact", "--input", "record", "--target-size", f"{LONG}g"], f"--target-size {LONG}g: must be a size"),
        (["retention", "--input", "record", "--keep", f"{LONG}ms"], f"--keep {LONG}ms: must be at most 365000d"),
        (["retention", "--input", "", "--keep", "1ms"], "--input: is empty; give a folder"),
        ([*ROLLUP[:3], "--output", " "], "--output: is empty; give a folder"),
        ([*ROLLUP, "--driver-memory", "0g"], "--driver-memory 0g: must be a size, such as 4g"),
        ([*ROLLUP, "--metrics", "record"], "--metrics record: is a folder; give a file"),
        (["plan", *ROLLUP[1:], "--headroom", "nan"], "--headroom nan: must be a percentage of 0 or more"),
        (
            ["tables", "--input", "record", "--output", "out", "--mapping", "m.toml", "--from", "0", "--replace"],
            "--from 0: an empty range; numbers begin with 1",
        ),
        # Else `--keep` would take each segment for its own copy, and remove it.
        (["upload", "--input", "record", "--output", "record", "--keep", "1ms"], "--output record: lies in --input"),
        (["upload", "--input", "record", "--output", "link", "--keep", "1ms"], "--output link: lies in --input record"),
        (["upload", "--input", "link", "--output", "record/copy"], "--output record/copy: lies in --input link"),
        # Not to be waited for, as a database that is away is.
        (
            [*POSTGRESQL, "--database", "postgresql://me@127.0.0.1:port/x", "--follow"],
            "--database: invalid literal for int() with base 10: 'port'",
        ),
        ([*POSTGRESQL, "--database", "postgresql:///x?sslmode=best", "--follow"], "--database: "),
    ],
)
def test_it_is_a_line_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    story = Story()
    for _ in range(4):
        story.publish("p", "a/b")
        story.pause(60)
    story.write(Path("record"), segments=2)
    Path("link").symlink_to("record")
    Path("m.toml").write_text('[tables.t]\nfilter = "#"\nformat = "text"\n')
    before = sorted(Path("record").rglob("*"))
    done = CliRunner().invoke(app, words)
    [said] = [each for each in done.stderr.splitlines() if "engine:" not in each]
    assert (done.exit_code, said.startswith(f"canopy: {line}")) == (2, True), said
    assert sorted(Path("record").rglob("*")) == before
    assert not Path("out/summary.json").exists()


def test_too_little_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    story = Story()
    story.publish("p", "a/b")
    story.write(Path("record"))
    done = CliRunner().invoke(app, [*ROLLUP, "--driver-memory", "1k"])
    assert done.exit_code == 1
    assert "too little memory" in done.stderr
    assert "damaged" not in done.stderr


@for_each(
    ("job", "name"),
    [("rollup", "minutes"), ("tree", "hot"), ("oracle", "wrong"), ("plan", "curve"), ("report", "tree")],
)
def test_a_record_that_has_the_name_of_a_table_is_not_replaced_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    story = Story()
    story.subscribe("s", "a/#")
    story.deliver("s", story.publish("p", "a/b"))
    [segment] = story.write(Path(name))
    done = CliRunner().invoke(app, [job, "--input", name, "--output", ".", "--engine", "duckdb"])
    assert (done.exit_code, "lies in --input" in done.stderr) == (2, True), done.stderr
    assert segment.exists()
