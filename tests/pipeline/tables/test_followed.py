"""`canopy pipeline tables --follow` killed by SIGKILL at each step, and begun again: each row is in the tables once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from canopy_pipeline.tables.sinks.sink_of import DELTA, PARQUET, POSTGRESQL
from tests.pipeline.record.dying import JOBS
from tests.pipeline.record.test_killed import killed
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import mapping
from tests.pipeline.tables.sinks.postgresql_place import URL, ask
from tests.support import postgresql

MAPPING = """
[tables.power]
filter = "site/{site}/power"
format = "json"
columns.watts = "int32"
"""
ROWS = [(number, 10 * number) for number in range(1, 9)]
DEAD = [(9,)]


def record(folder: Path) -> None:
    """Eight messages and a bad one in three segments: one is there at first, two come while the job follows."""
    told = Story()
    for number, watts in ROWS:
        assert told.publish("c", "site/a/power", b'{"watts": %d}' % watts) == number
    told.publish("c", "site/a/power", b"no JSON")
    later, told.events = told.events[3:], told.events[:3]
    told.write(folder / "whole/record")
    told.events = later
    told.write(folder / "later", segments=2)
    mapping(folder / "whole/maps", MAPPING)


def read(folder: Path, format_: str, table: str, columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table; none if it is not there yet."""
    if format_ == POSTGRESQL:
        there = ask(
            folder,
            f"select 1 from information_schema.tables where table_name = '{table}' and table_schema = current_schema",
        )
        return ask(folder, f"select {columns} from {table} order by seq") if there else []
    place = folder / "out" / table
    if format_ == DELTA:
        files = DeltaTable(place).file_uris() if DeltaTable.is_deltatable(str(place)) else []
    else:
        files = [str(file) for file in place.glob("date=*/*.parquet")]
    return duckdb.read_parquet(files).order("seq").project(columns).fetchall() if files else []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "format_"),
    [
        ("tables-followed", PARQUET),
        pytest.param("tables-followed-delta", DELTA, marks=pytest.mark.long),
        pytest.param(
            "tables-followed-postgresql",
            POSTGRESQL,
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(find_spec("asyncpg") is None, reason="the extra postgresql is not installed"),
            ],
        ),
    ],
)
def test_killed_at_every_step_each_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, format_: str
) -> None:
    if format_ == POSTGRESQL:
        monkeypatch.setenv(URL, postgresql.shared().url)
    record(tmp_path)
    folders, made = killed(job, tmp_path / "whole", tmp_path)
    assert len(made) >= 20
    begun = set[int]()
    for folder in folders:
        before = read(folder, format_, "power", "seq, watts")
        # Batch by batch, and nothing twice.
        assert before == ROWS[: len(before)], (folder.name, made)
        begun.add(len(before))
        JOBS[job](folder)
        assert read(folder, format_, "power", "seq, watts") == ROWS, (folder.name, made)
        assert read(folder, format_, "dead_letters", "seq") == DEAD, (folder.name, made)
    # Kills came before, between and after the segments that came while it followed.
    assert begun == {0, 3, 6, 8}
