"""Options that make no sense: one line that names the option, exit code 2, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from tests.pipeline.recorded import Story
from tests.support.runs import for_each

COMPACT, RETENTION, UPLOAD = ([name, "--input", "record"] for name in ("compact", "retention", "upload"))
ROLLUP, TREE, PLAN = ([name, "--input", "record", "--output", "out"] for name in ("rollup", "tree", "plan"))
UPDATE = [*ROLLUP, "--update", "--since"]
TABLES = ["tables", "--input", "record", "--output", "out", "--mapping"]
POSTGRESQL = [*TABLES, "m.toml", "--format", "postgresql", "--database"]
LONG = "9" * 400


@for_each(
    ("words", "line"),
    [
        *(
            ([name, "--input", "nosuch", *["--output", "out"] * (name != "compact")], "--input nosuch: no such folder")
            for name in ("compact", "oracle", "plan", "report", "rollup", "tree", "upload")
        ),
        (["retention", "--input", "", "--keep", "1ms"], "--input: is empty; give a folder"),
        ([*ROLLUP[:3], "--output", " "], "--output: is empty; give a folder"),
        (["report", "--input", "record", "--output", "record/out"], "--output record/out: lies in --input record"),
        ([*ROLLUP[:3], "--output", "m.toml"], "--output m.toml: m.toml is no folder; give one"),
        ([*ROLLUP[:3], "--output", "loop"], "--output loop: loop is no folder; give one"),
        (["rollup", "--input", LONG, "--output", "out"], f"--input {LONG}: file name too long; give another"),
        (["compact", "--input", "loop"], "--input loop: too many levels of symbolic links; give another"),
        ([*ROLLUP, "--metrics", "record"], "--metrics record: is a folder; give a file"),
        ([*ROLLUP, "--metrics", "no/a.prom"], "--metrics no/a.prom: its folder is not there"),
        ([*ROLLUP, "--engine", "polars"], "--engine polars: must be one of auto, spark, duckdb"),
        ([*ROLLUP, "--engine", "duckdb", "--master", "local[2]"], "--engine duckdb: --master, --conf, --packages are"),
        ([*ROLLUP, "--engine", "duckdb", "--output", "s3a://b/o"], "--engine duckdb: s3a://b/o is not a folder of"),
        ([*ROLLUP, "--driver-memory", "0g"], "--driver-memory 0g: must be a size, such as 4g"),
        ([*ROLLUP, "--driver-memory", f"{LONG}g"], f"--driver-memory {LONG}g: is larger than any memory"),
        ([*ROLLUP, "--latency", "property:"], "--latency property:: must be auto, mark, none or property:NAME"),
        ([*ROLLUP, "--update"], "--update replaces all that is known of some hours: give --since, and no --run"),
        ([*UPDATE, "2026-11-21", "--run", "0a1b2c3d"], "--update replaces all that is known of some hours"),
        ([*UPDATE, "2026-11-21T16:20"], "--since 2026-11-21T16:20: with --update it must be a full hour"),
        ([*UPDATE, "2026-11-21", "--until", "2026-11-21T16:00:01"], "--until 2026-11-21T16:00:01: with --update it"),
        ([*TREE, "--since", "2026-11-21", "--until", "2026-11-20"], "--since 2026-11-21 --until 2026-11-20: an empty"),
        ([*TREE, "--since", ""], "--since : must be a time, such as"),
        ([*TREE, "--hot", "0"], "--hot 0: must be at least 1"),
        ([*PLAN, "--traffic", "nosuch"], "--traffic nosuch: no such folder"),
        ([*PLAN, "--max-filters", "0"], "--max-filters 0: must be at least 1"),
        ([*PLAN, "--headroom", "nan"], "--headroom nan: must be a percentage of 0 or more"),
        (["compact", "--input", "s3://"], "--input s3://: names no bucket; give s3://BUCKET/PREFIX"),
        ([*COMPACT, "--older-than", "old"], "--older-than old: must be a number and a unit"),
        ([*COMPACT, "--older-than", f"{LONG}d"], f"--older-than {LONG}d: must be at most 365000d"),
        ([*COMPACT, "--target-size", "much"], "--target-size much: must be a size"),
        ([*COMPACT, "--target-size", f"{LONG}g"], f"--target-size {LONG}g: must be a size"),
        ([*COMPACT, "--erase", "a/#/b"], "--erase a/#/b: topic filter holds # before its end"),
        ([*COMPACT, "--erase", "$share/g/a"], "--erase $share/g/a: a shared subscription"),
        ([*COMPACT, "--erase-client", ""], "--erase-client: give a client identifier"),
        ([*COMPACT, "--tables", "x"], "--tables needs --erase or --erase-client"),
        (RETENTION, "--keep or --keep-bytes: one of them must say what stays"),
        ([*RETENTION, "--keep", "7x"], "--keep 7x: must be a number and a unit"),
        (["upload", "--input", "s3://plant/record", "--output", "out"], "--input s3://plant/record: not a folder of"),
        ([*UPLOAD, "--output", "out", "--keep", "soon"], "--keep soon: must be a number and a unit"),
        ([*UPLOAD, "--output", "out", "--every", "0s"], "--every 0s: at least 100ms"),
        # Else `--keep` would take each segment for its own copy, and remove it.
        ([*UPLOAD, "--output", "record", "--keep", "1ms"], "--output record: lies in --input record"),
        ([*UPLOAD, "--output", "link", "--keep", "1ms"], "--output link: lies in --input record"),
        (["upload", "--input", "link", "--output", "record/copy"], "--output record/copy: lies in --input link"),
        ([*TABLES, "nosuch"], "--mapping nosuch: no such file"),
        ([*TABLES, "record"], "--mapping record: is a folder"),
        ([*TABLES, LONG], f"--mapping {LONG}: file name too long; give another"),
        ([*TABLES, "m.toml", "--max-lag", "1s"], "--max-lag needs --follow"),
        ([*TABLES, "m.toml", "--from", "0", "--replace"], "--from 0: an empty range; numbers begin with 1"),
        ([*TABLES, "m.toml", "--to", LONG, "--replace"], f"--to {LONG}: must be a time, such as"),
        (POSTGRESQL[:-1], "--format postgresql and --database: give both"),
        (
            [*POSTGRESQL, "postgresql://me:secret@localhost/x"],
            "--database: leave the password out; give it",
        ),
        ([*POSTGRESQL, "mysql://localhost/x"], "--database: give postgresql://USER@HOST:PORT/DATABASE"),
        # Not to be waited for, as a database that is away is.
        ([*POSTGRESQL, "postgresql://me@127.0.0.1:port/x", "--follow"], "--database: invalid literal for int()"),
        ([*POSTGRESQL, "postgresql:///x?sslmode=best", "--follow"], "--database: "),
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
    Path("loop").symlink_to("loop")
    Path("m.toml").write_text('[tables.t]\nfilter = "#"\nformat = "text"\n')
    before = sorted(Path("record").rglob("*"))
    done = CliRunner().invoke(app, words)
    [said] = [each for each in done.stderr.splitlines() if "engine:" not in each]
    assert (done.exit_code, said.startswith(f"canopy: {line}")) == (2, True), said
    assert "secret" not in said
    assert sorted(Path("record").rglob("*")) == before
    assert not Path("out/summary.json").exists()


def test_too_little_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    story = Story()
    story.publish("p", "a/b")
    story.write(Path("record"))
    done = CliRunner().invoke(app, [*ROLLUP, "--engine", "duckdb", "--driver-memory", "1k"])
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
