"""A job that is killed by SIGKILL at each of its changes of a record, each time over a copy of its own.

`python -m tests.pipeline.record.dying JOB WHOLE COPIES` leaves COPIES/0, COPIES/1, … (killed before its first change,
before its second, …; the last is of a job that lived), and prints what the changes were. A change is what Python tells
audit hooks of (a file opened to be written, named, removed), and the beginning and the end of a commit to a table of
Delta Lake and of a statement in PostgreSQL.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import deltalake
import pyarrow.parquet  # noqa: F401  # the children need it, and would each import it
from typer.testing import CliRunner

from canopy_mqtt.delta import table as tables
from canopy_mqtt.record.files.delta_follower import DeltaFollower
from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.compact import erase_job as erase
from canopy_pipeline.retention import retention_job as retention
from canopy_pipeline.tables import tables_job
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.sinks.sink_of import DELTA, PARQUET, POSTGRESQL
from canopy_pipeline.upload import upload_job as upload
from tests.pipeline.folder import NOW
from tests.pipeline.tables.sinks.postgresql_place import terms

HOUR: Final = timedelta(hours=1)


def payload_tables(folder: Path, format_: str, again: Range | None = None, max_lag: float | None = None) -> object:
    """`canopy pipeline tables` over a folder of a record, a mapping and their tables."""
    place = terms(folder) if format_ == POSTGRESQL else {}
    options = tables_job.TablesOptions(format_, batch=1, max_lag=max_lag, replace=again, **place)
    return tables_job.run(str(folder / "record"), str(folder / "out"), str(folder / "maps/tables.toml"), options)


def followed(folder: Path, format_: str) -> object:
    """`canopy pipeline tables --follow` of a record that gets a segment of `later`, beside the copies, after each look;
    Ctrl-C when it has all."""
    later = folder.parents[1] / "later"
    waiting = [
        each for each in sorted(later.rglob("*.json")) if not (folder / "record" / each.relative_to(later)).exists()
    ]

    def sleep(seconds: float) -> None:
        assert 0 <= seconds <= 1
        if not waiting:
            raise KeyboardInterrupt
        manifest = waiting.pop(0)
        for file in (later / json.loads(manifest.read_text())["segment"], manifest):
            # It may have been killed between the two. The recorder's own changes are not those of the job.
            with suppress(FileExistsError):
                os.link(file, folder / "record" / file.relative_to(later))

    with patch.object(tables_job, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)):
        return payload_tables(folder, format_, max_lag=1.0)


def erased(folder: Path) -> None:
    """`canopy pipeline compact --erase-client` over a record and the tables that were made of it."""
    done = CliRunner().invoke(
        app, ["compact", "--input", str(folder / "record"), "--erase-client", "q", "--tables", str(folder / "out")]
    )
    assert done.exit_code == 0, done.output


def uploaded(folder: Path) -> None:
    """`canopy pipeline upload` of a record to another folder, which removes here what is old."""
    upload.run(str(folder / "record"), str(folder / "copy"), HOUR * 5, [""].append, now=lambda: NOW)


JOBS: Final[dict[str, Callable[[Path], object]]] = {
    "compact": lambda folder: compact.run(str(folder), HOUR, 1 << 20, timedelta(0), now=NOW),
    "erase": lambda folder: erase.run(str(folder), erase.Chosen(("a/1",), ("q",)), now=NOW),
    "erase-tables": erased,
    "retention": lambda folder: retention.run(str(folder), HOUR * 5, now=NOW),
    "follow": lambda folder: DeltaFollower(folder).follow(None),
    "upload": uploaded,
    "tables": lambda folder: payload_tables(folder, PARQUET),
    "tables-delta": lambda folder: payload_tables(folder, DELTA),
    "tables-postgresql": lambda folder: (
        payload_tables(folder, POSTGRESQL),
        payload_tables(folder, POSTGRESQL, Range(3, 6)),
    ),
    "tables-followed": lambda folder: followed(folder, PARQUET),
    "tables-followed-delta": lambda folder: followed(folder, DELTA),
    "tables-followed-postgresql": lambda folder: followed(folder, POSTGRESQL),
    "backfill": lambda folder: payload_tables(folder, PARQUET, Range(5, 12)),
    "backfill-delta": lambda folder: payload_tables(folder, DELTA, Range(5, 12)),
}
CHANGES: Final = frozenset({"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir"})


def killed(job: str, folder: Path, step: int) -> list[str]:
    """Run a job, and kill this process before the change after so many; the changes, where it lived."""
    made: list[str] = []

    def change(name: str) -> None:
        if len(made) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(name)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or written) and str(arguments[0]).startswith(f"{folder}/"):
            change(f"{event} {Path(str(arguments[0])).relative_to(folder)}")

    def commits(holder: Any, name: str) -> None:
        commit = getattr(holder, name)

        def committed(*arguments: Any, **options: Any) -> Any:
            change("before commit")
            done = commit(*arguments, **options)
            change("after commit")
            return done

        setattr(holder, name, committed)

    def statements(connections: Any, name: str) -> None:
        made_ = getattr(connections, name)

        async def stated(connection: Any, text: str, *arguments: Any, **options: Any) -> Any:
            change(f"before {text}")
            done = await made_(connection, text, *arguments, **options)
            change(f"after {text}")
            return done

        setattr(connections, name, stated)

    with suppress(ModuleNotFoundError):
        # Without the extra no job needs it.
        import asyncpg

        statements(asyncpg.Connection, "execute")
        statements(asyncpg.Connection, "copy_to_table")
    commits(tables.Table, "_commit")
    commits(deltalake, "write_deltalake")
    commits(deltalake.table.TableAlterer, "add_columns")
    sys.addaudithook(heard)
    JOBS[job](folder)
    return made


def main(job: str, whole: Path, copies: Path) -> None:
    """Copy after copy, until one lives."""
    for step in range(1_000):
        folder = copies / str(step)
        shutil.copytree(whole, folder)
        child = os.fork()
        if not child:
            code = 1
            try:
                print(json.dumps(killed(job, folder, step)), flush=True)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))
        assert os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
