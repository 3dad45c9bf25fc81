"""Tables that are kept up: processes that are killed while segments are added, and tables on an object store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from canopy_mqtt.record.files.segment import manifest_path
from canopy_pipeline.runtime.storage import storage
from canopy_pipeline.tables.tables_job import TablesOptions, run
from tests.pipeline.mortal import environment
from tests.pipeline.recorded import write_segment
from tests.pipeline.tables.fleet import mapping, story
from tests.pipeline.tables.test_tables import numbers
from tests.support.s3 import BUCKET, serving

pytestmark = pytest.mark.long

PATIENCE = 120.0
"""Seconds for what takes one on an idle machine."""


def wait(running: subprocess.Popen[bytes], log: Path, until: Callable[[], bool]) -> None:
    """Until something is true; at once an error when the process has ended."""
    limit = time.monotonic() + PATIENCE
    while not until():
        assert running.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.002)


def something_new(out: Path, pattern: str) -> Callable[[], bool]:
    """Whether there are files of that pattern that are not there now."""

    def there() -> set[Path]:
        found: set[Path] = set()
        # A folder may go while it is looked at.
        with suppress(FileNotFoundError):
            found.update(out.glob(pattern))
        return found

    before = there()
    return lambda: bool(there() - before)


@pytest.mark.timeout(600)
def test_a_stream_that_is_killed_again_and_again_has_each_row_once(tmp_path: Path) -> None:
    """Delta and Iceberg are killed at each step of a batch in test_evolution.py."""
    record, out, log = tmp_path / "record", tmp_path / "out", tmp_path / "log"
    file = mapping(tmp_path / "maps")
    told = story(rounds=100)
    waiting = [told.events[at : at + 40] for at in range(0, len(told.events), 40)]
    flags = ["--input", str(record), "--output", str(out), "--mapping", str(file)]

    def add(count: int) -> None:
        # Whole under its name, and then its manifest, as the recorder does it.
        for _ in range(min(count, len(waiting))):
            draft = tmp_path / "draft"
            path = write_segment(draft, waiting.pop(0))
            for made in (path, manifest_path(draft, path.relative_to(draft).as_posix())):
                place = record / made.relative_to(draft)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(made, place)

    add(4)
    # Killed when there is something new of: what is written aside, commits, the tables themselves.
    moments = ("_staging-*/*/*", "_commits/*.json", "**/date=*/*.parquet")
    for moment in moments:
        begun = something_new(out, moment)
        with open(log, "ab") as said:
            running = subprocess.Popen(
                [sys.executable, "-P", "-m", "canopy_mqtt", "pipeline", "tables", *flags, "--follow",
                 "--max-lag", "100ms", "--batch-events", "40"],
                stdout=said, stderr=said, env=environment(tmp_path),
            )  # fmt: skip
        try:
            add(2)
            wait(running, log, begun)
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait(PATIENCE)
    add(len(waiting))
    outcome = run(str(record), str(out), str(file), TablesOptions())
    assert outcome.coverage.complete
    assert outcome.rows == dict.fromkeys(outcome.rows, 100) | {"metrics": 101}
    whole = tmp_path / "whole"
    run(str(record), str(whole), str(file))
    assert numbers(out) == numbers(whole)


def test_tables_are_made_from_one_object_store_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story().write(tmp_path / "record", segments=2)
    file = str(mapping(tmp_path / "maps"))
    with serving() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.fill(
            {
                f"record/{path.relative_to(tmp_path / 'record').as_posix()}": path.read_bytes()
                for path in (tmp_path / "record").rglob("*")
                if path.is_file()
            }
        )
        out = f"s3://{BUCKET}/out"
        outcome = run(f"s3://{BUCKET}/record", out, file, TablesOptions(batch=13))
        assert outcome.rows == dict.fromkeys(outcome.rows, 3) | {"metrics": 4}
        assert run(f"s3://{BUCKET}/record", out, file).done == outcome.done
        place = storage(None, out)
        assert "power" in place.names("")
        assert not [name for name in place.names("") if name.startswith("_staging")]
        found = [path for path in place.listed(".parquet") if path.startswith("power/")]
        assert len(found) == 2
