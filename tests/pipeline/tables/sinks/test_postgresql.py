"""Tables in PostgreSQL: each batch once, whoever is killed, in a server of the tests' own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from canopy_pipeline.errors import AwayError, MisuseError, PipelineError
from canopy_pipeline.record.segments import Say, unsaid
from canopy_pipeline.tables import tables_job
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.sinks import postgresql as sink
from canopy_pipeline.tables.sinks.sink_of import POSTGRESQL
from canopy_pipeline.tables.tables_job import TablesOptions, TablesOutcome, run
from tests.pipeline.mortal import environment
from tests.pipeline.mqtt.conftest import publish, until
from tests.pipeline.record.test_killed import killed
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import mapping, story
from tests.pipeline.tables.sinks.postgresql_place import URL, ask, terms
from tests.pipeline.tables.test_tables import rows
from tests.support import postgresql
from tests.support.daemon import Daemon
from tests.support.runs import for_each

pytestmark = pytest.mark.skipif(find_spec("asyncpg") is None, reason="the extra postgresql is not installed")

BEFORE: Final = """
[tables.power]
filter = "site/{site}/power"
format = "json"
columns.watts = "int32"
"""
AFTER: Final = BEFORE.replace("int32", "int64") + 'columns.volts = "float64"\n'


def tables(folder: Path, say: Say = unsaid, **more: Any) -> TablesOutcome:
    options = TablesOptions(POSTGRESQL, **{**terms(folder), **more})
    return run(str(folder / "record"), str(folder / "out"), str(folder / "maps/tables.toml"), options, say)


def powered(folder: Path, first: int, last: int, segments: int = 1) -> None:
    """Add messages with these numbers to a record."""
    told = Story(first_seq=first)
    for number in range(first, last + 1):
        told.publish("c", "site/a/power", b'{"watts": %d}' % number)
    told.write(folder / "record", segments)


def begun(folder: Path) -> Path:
    """Six messages in three segments."""
    powered(folder, 1, 6, 3)
    mapping(folder / "maps", BEFORE)
    return folder


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    return begun(tmp_path)


def test_every_table_has_the_rows_that_parquet_has(tmp_path: Path) -> None:
    story().write(tmp_path / "record", segments=4)
    mapping(tmp_path / "maps")
    outcome = tables(tmp_path, batch=8)
    run(str(tmp_path / "record"), str(tmp_path / "parquet"), str(tmp_path / "maps/tables.toml"))
    assert outcome.rows["metrics"] == 4
    for table in (*outcome.rows, "dead_letters"):
        found, expected = ask(tmp_path, f"select * from {table} order by seq"), rows(tmp_path / "parquet", table)
        assert [[*map(str, row)] for row in found] == [[*map(str, row)] for row in expected], table
    assert ask(tmp_path, "select through, batch from canopy_progress") == [(25, 4)]


def test_a_text_is_in_the_table_as_it_was_whatever_copy_makes_of_it(tmp_path: Path) -> None:
    """PostgreSQL alone has no U+0000."""
    texts = ["", "\\N", "a\n\\.\nb", "\\.", "\t\r\n\\", '"', "ü\u2028", "\\x41", "x" * 100_000, "\0"]
    told = Story()
    for text in texts:
        told.publish("c\\t", "site/a\\b/note", json.dumps({"text": text, "any": [text]}).encode())
    told.publish("c", "site/a/note", b"{}")
    told.publish("c", "site/a/note", b"\0\\.\n\xff")
    told.write(tmp_path / "record")
    mapping(
        tmp_path / "maps",
        '[tables.notes]\nfilter = "site/{site}/note"\nformat = "json"\nkeep = ["client_id"]\n'
        'columns.text = "string"\ncolumns.any = "json"\n',
    )
    assert tables(tmp_path).rows == {"notes": len(texts) + 1}
    found = ask(tmp_path, 'select text, "any" from notes order by seq')
    assert [text for text, _ in found] == [*texts[:-1], "\N{REPLACEMENT CHARACTER}", None]
    assert [json.loads(each) for _, each in found[:-1]] == [[text] for text in texts]
    assert ask(tmp_path, "select site, client_id from notes limit 1") == [("a\\b", "c\\t")]
    assert ask(tmp_path, "select payload from dead_letters") == [(b"\0\\.\n\xff",)]


def test_new_and_wider_columns_come_with_the_first_rows_of_them(plant: Path) -> None:
    tables(plant)
    mapping(plant / "maps", AFTER)
    tables(plant)
    assert {name for [name] in ask(plant, "select column_name from information_schema.columns")} >= {"watts"}
    kinds = "select data_type::text from information_schema.columns where table_schema = current_schema and "
    assert ask(plant, f"{kinds} column_name = 'watts'") == [("integer",)]
    told = Story(first_seq=7)
    told.publish("c", "site/a/power", b'{"watts": %d, "volts": 230}' % (1 << 40))
    told.write(plant / "record")
    assert tables(plant).rows == {"power": 7}
    assert ask(plant, f"{kinds} column_name = 'watts'") == [("bigint",)]
    assert ask(plant, "select watts, volts from power order by seq desc limit 2") == [(1 << 40, 230.0), (6, None)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_at_every_step_each_row_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SIGKILL, at each change of a file and each statement: of three batches, and of a range that is made again."""
    monkeypatch.setenv(URL, postgresql.shared().url)
    powered(tmp_path / "whole", 1, 6, 3)
    mapping(tmp_path / "whole/maps", AFTER)
    folders, made = killed("tables-postgresql", tmp_path / "whole", tmp_path)
    assert len(made) >= 60
    assert {"before COMMIT;", "after COMMIT;", "before power", "after power"} <= set(made)
    for folder in folders:
        tables(folder)
        found = tables(folder, replace=Range(3, 6))
        assert found.rows == {"power": 6}
        assert ask(folder, "select watts from power order by seq") == [(number,) for number in range(1, 7)], made


class Watched:
    """What happens between the looks of a job that follows, one thing after each; it ends after the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *happens: Callable[[], None]) -> None:
        self.said: list[str] = []
        self._happens = [*happens]
        # Of the job alone: a server that is started sleeps, too.
        monkeypatch.setattr(tables_job, "time", SimpleNamespace(monotonic=time.monotonic, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        assert seconds <= 1.0
        if not self._happens:
            raise KeyboardInterrupt
        self._happens.pop(0)()


@pytest.fixture
def server() -> Iterator[postgresql.Server]:
    yield from postgresql.server()


def test_a_database_that_is_away_is_waited_for(
    plant: Path, monkeypatch: pytest.MonkeyPatch, server: postgresql.Server
) -> None:
    def away() -> None:
        server.kill()
        powered(plant, 7, 8)

    def later() -> None:
        powered(plant, 9, 9)

    watched = Watched(monkeypatch, away, later, server.start, lambda: None)
    outcome = tables(plant, watched.said.append, database=server.url, max_lag=1.0)
    assert outcome.rows == {"power": 9}
    assert [line.partition(":")[0] for line in watched.said if "batch" not in line] == [
        "postgresql",
        "the database answers again",
        "stopped",
    ]
    name = terms(plant)["namespace"]
    assert server.ask(f"select watts from {name}.power order by seq") == [(n,) for n in range(1, 10)]


@for_each("moment", ["BEGIN", "COPY", "before COMMIT", "after COMMIT"])
def test_a_database_that_is_killed_in_the_midst_of_a_batch_has_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: postgresql.Server, moment: str
) -> None:
    import asyncpg

    plant = begun(tmp_path)
    execute, encoded, moments = asyncpg.Connection.execute, sink.encoded, [moment]

    def kill() -> None:
        moments.clear()
        server.kill()

    def copied(batch: Any) -> bytes:
        if "COPY" in moments:
            kill()
        return encoded(batch)

    async def executed(connection: Any, text: str, *arguments: Any, **options: Any) -> Any:
        # The transaction of a batch, and not that of the start.
        commit = text == "COMMIT;" and statements[-1].startswith("UPDATE")
        if (commit and "before COMMIT" in moments) or (text.startswith("BEGIN") and "BEGIN" in moments and statements):
            kill()
        done = await execute(connection, text, *arguments, **options)
        statements.append(text)
        if commit and "after COMMIT" in moments:
            kill()
            raise ConnectionError("no answer")
        return done

    statements: list[str] = []
    monkeypatch.setattr(sink, "encoded", copied)
    monkeypatch.setattr(asyncpg.Connection, "execute", executed)
    watched = Watched(monkeypatch, server.start, lambda: None)
    assert tables(plant, watched.said.append, database=server.url, max_lag=1.0).rows == {"power": 6}
    assert not moments
    name = terms(plant)["namespace"]
    assert server.ask(f"select watts from {name}.power order by seq") == [(n,) for n in range(1, 7)]
    assert "the database answers again" in watched.said


def test_without_follow_a_database_that_is_away_is_a_line(plant: Path, server: postgresql.Server) -> None:
    server.kill()
    with pytest.raises(AwayError, match=r"^postgresql://127\.0\.0\.1:\d+/postgres: ConnectionRe(fused|set)Error"):
        tables(plant, database=server.url)
    assert not (plant / "out/_commits").exists()
    server.start()
    assert tables(plant, database=server.url).rows == {"power": 6}


def test_a_schema_of_somebody_else_is_left_alone(plant: Path) -> None:
    tables(plant)
    name = terms(plant)["namespace"]
    (plant / "out").rename(plant / "before")
    with pytest.raises(MisuseError, match=f"--namespace {name}: its table canopy_progress is of another output folder"):
        tables(plant)
    ask(plant, f"alter schema {name} rename to {name}_old")
    ask(plant, f"create schema {name} create table power (x int)")
    with pytest.raises(MisuseError, match="its table power is of another output folder, or of something else"):
        tables(plant)
    assert ask(plant, "select * from power") == []


def test_a_column_of_another_type_is_a_line_with_the_remedy(plant: Path) -> None:
    tables(plant)
    ask(plant, "alter table power alter column watts type text")
    with pytest.raises(MisuseError, match="the column watts of its table power is text, and integer by the mapping"):
        tables(plant)


def test_an_older_copy_of_the_database_is_not_gone_on_with(plant: Path) -> None:
    tables(plant, batch=1)
    ask(plant, "update canopy_progress set batch = 1")
    with pytest.raises(PipelineError, match=r"has batches up to 1, and this output folder up to 3: .* an older copy"):
        tables(plant)


def test_a_database_may_move(plant: Path) -> None:
    tables(plant)
    moved = terms(plant)["database"].replace("127.0.0.1", "localhost")
    powered(plant, 7, 7)
    assert tables(plant, database=moved).rows == {"power": 7}


@pytest.mark.long
def test_rows_of_a_live_broker_come_while_it_records(tmp_path: Path) -> None:
    mapping(tmp_path / "maps", BEFORE)
    flags = ["--input", str(tmp_path / "record"), "--output", str(tmp_path / "out"), "--format", "postgresql"]
    flags += ["--mapping", str(tmp_path / "maps/tables.toml"), "--follow", "--max-lag", "1s"]
    flags += [part for name, value in terms(tmp_path).items() for part in (f"--{name}", value)]
    settings = [f"recorder.directory={tmp_path / 'record'}", "recorder.segment_seconds=0.1"]
    with Daemon(*(f"--set={each}" for each in settings)) as daemon, open(tmp_path / "log", "wb") as log:
        publish(daemon.port, "site/a/power", [b'{"watts": %d}' % number for number in range(300)])
        until("a segment", lambda: [*(tmp_path / "record").rglob("seg-*.json")])
        command = [sys.executable, "-P", "-m", "canopy_mqtt", "pipeline", "tables", *flags]
        running = subprocess.Popen(command, stdout=log, stderr=log, env=environment(tmp_path))
        try:
            progress = "select to_regclass('canopy_progress') is not null"
            until("the first batch", lambda: ask(tmp_path, progress) == [(True,)])
            publish(daemon.port, "site/a/power", [b'{"watts": %d}' % number for number in range(300, 600)])
            rows_there = "select count(*) from power"
            until("the first rows", lambda: ask(tmp_path, "select to_regclass('power') is not null") == [(True,)])
            until("all rows", lambda: ask(tmp_path, rows_there) == [(600,)])
        finally:
            running.kill()
            running.wait(60)
    assert ask(tmp_path, "select watts from power order by seq") == [(number,) for number in range(600)]
