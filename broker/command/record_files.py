"""The command ``canopy record files``: of a folder of this machine, and of a record on an object store.

Owns which of the two readers answers: the recorder's own for a folder, which needs no Spark and no network; the
pipeline's file layer for what has a scheme, as s3://. Both keep the same promise: each event is in one of the files.

Promises: as the other commands of `canopy record`; exit code 1 where a segment is not there, or not as large as its
manifest says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.command.commands import FAILED, MISUSED, fail
from broker.record.cli import app, told
from pipeline.runtime.storage import local_path

LOOKS: Final = 3
"""Times that an object store is listed where a segment is not there that a manifest tells of: it may have been merged
between the two."""


@app.command()
@told
def files(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="The recorder's folder (recorder.directory), or a record on an object store: s3://bucket/record.",
        ),
    ],
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Files with events from this time on: ISO 8601; UTC by default."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="With events before this time.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each file: its path and manifest.")
    ] = False,
) -> None:
    """List the current Parquet files: each event is in exactly one of them, also while segments are merged.

    The exit code is 1 where a segment is missing that a manifest tells of, or is not as large as that says; its name
    goes to standard error, and the others are printed all the same.
    """
    begin, end = _moment(since, "--since"), _moment(until, "--until")
    local = local_path(directory)
    lacking: list[str] = []
    found = (
        _here(local, begin, end, lacking) if local is not None else _there(directory, since, until, as_json, lacking)
    )
    for path, about in found:
        sys.stdout.write((json.dumps({"path": path, **about}, ensure_ascii=False) if as_json else path) + "\n")
    sys.stdout.flush()
    if lacking:
        fail("\n".join(lacking))


Found = Iterator[tuple[str, dict[str, Any]]]
"""Paths, and what their manifests say."""

GONE: Final = "its manifest is there, and it is not"
CUT: Final = "not as large as its manifest says"


def _here(directory: Path, since: datetime | None, until: datetime | None, lacking: list[str]) -> Found:
    """A folder of this machine. `lacking` takes a line for each segment that is missing or cut off, in the end."""
    from broker.record.files import in_force
    from broker.record.reading import check_folder

    check_folder(directory)
    for file in in_force.files(directory, since, until):
        yield str(file.path), file.about
        # What goes meanwhile is told, if nobody removed it, with those that are missing.
        with suppress(FileNotFoundError):
            if file.about.get("bytes", size := file.path.stat().st_size) != size:
                lacking.append(f"{file.path}: {CUT}")
    lacking += [f"{directory / place}: {GONE}" for place in in_force.missing(directory)]


def _there(path: str, since: str | None, until: str | None, tell: bool, lacking: list[str]) -> Found:
    """What pyarrow reaches. `tell`: with what the manifests say, for which they are read once more."""
    from pipeline.errors import PipelineError, in_a_line
    from pipeline.record.coverage import DAMAGED, MISSING
    from pipeline.record.manifests import manifests
    from pipeline.record.segments import Choice, covering, find
    from pipeline.runtime.storage import storage

    choice = Choice(since=since, until=until)
    try:
        for _ in range(LOOKS):
            coverage = covering(choice)
            listed = find(None, [path], coverage=coverage, choice=choice)
            if not coverage.kinds[MISSING]:
                break
        root = storage(None, path)
        said = manifests(root).said if tell else {}
    except PipelineError as error:
        fail(str(error), error.exit_code if error.exit_code == MISUSED else FAILED)
    except OSError as error:
        fail(f"{path}: {in_a_line(error)}")
    for file in listed:
        yield file.path, said.get(file.place, {})
    why = {MISSING: GONE, DAMAGED: CUT}
    for each in coverage.findings:
        if each.segment and each.kind in why:
            lacking.append(f"{root.at(each.segment)}: {why[each.kind]}")


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} {text}: must be a time, such as 2026-11-21T16:00 or 2026-11-21", MISUSED)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


__all__ = ["app", "files"]
