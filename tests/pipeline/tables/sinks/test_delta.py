"""Tables of Delta Lake that somebody damaged, removed or replaced: one line, and the record as the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from canopy_pipeline.errors import PipelineError
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.sinks.sink_of import DELTA
from canopy_pipeline.tables.tables_job import TablesOptions, run
from tests.pipeline.recorded import Story
from tests.support.runs import for_each

AGAIN = TablesOptions(DELTA, replace=Range(1))


def spoil_log(table: Path) -> None:
    (table / "_delta_log/00000000000000000001.json").write_text("half a li")


def spoil_rows(table: Path) -> None:
    [file] = table.rglob("*.parquet")
    file.write_text("no Parquet")


def replace_table(table: Path) -> None:
    shutil.rmtree(table)
    at = pa.array([datetime.now(UTC)], pa.timestamp("us", tz="UTC"))
    columns = {"seq": pa.array([1]), "ts": at, "topic": ["a"], "event_time": at, "value": ["b"], "date": ["2026-11-21"]}
    deltalake.write_deltalake(table, pa.table(columns))


@for_each(
    ("damage", "options", "why"),
    [
        (spoil_log, TablesOptions(DELTA), "Kernel error: Json error"),
        (spoil_rows, AGAIN, "Could not open Parquet input source"),
        (shutil.rmtree, TablesOptions(DELTA), "lacks rows that were written to it"),
        (replace_table, TablesOptions(DELTA), "lacks rows that were written to it"),
    ],
)
def test_what_happened_to_a_table_is_a_line(
    tmp_path: Path, damage: Callable[[Path], None], options: TablesOptions, why: str
) -> None:
    story = Story()
    story.publish("p", "a/b")
    story.write(tmp_path / "record")
    mapping, out = tmp_path / "tables.toml", tmp_path / "out"
    mapping.write_text('[tables.t]\nfilter = "#"\nformat = "text"\n')
    run(str(tmp_path / "record"), str(out), str(mapping), TablesOptions(DELTA))
    damage(out / "t")
    with pytest.raises(PipelineError) as told:
        run(str(tmp_path / "record"), str(out), str(mapping), options)
    assert str(told.value).startswith(f"{out / 't'}: {why}")
    assert "\n" not in str(told.value)
