"""The command ``canopy record files``: lists a folder of this machine, or a record on an object store.

Owns the choice of the reader: the recorder's own for a folder, which needs no Spark and no network; the pipeline's file
layer for a URL such as s3://. Both keep the same promise: each event is in one of the files.

Promises: as the other commands of `canopy record`; exit code 1 if a segment is missing, or has another size than its
manifest.
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

from canopy_mqtt.command.record import app, failures_in_one_line
from canopy_mqtt.terminal import FAILED, MISUSED, fail
from canopy_pipeline.runtime.storage import local_path

LOOKS: Final = 3
"""Times that an object store is listed if a segment with a manifest is missing: it may have been merged in between."""


@app.command()
@failures_in_one_line
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
        _list_folder(local, begin, end, lacking)
        if local is not None
        else _list_object_store(directory, since, until, as_json, lacking)
    )
    for path, about in found:
        sys.stdout.write((json.dumps({"path": path, **about}, ensure_ascii=False) if as_json else path) + "\n")
    sys.stdout.flush()
    if lacking:
        fail("\n".join(lacking))


Found = Iterator[tuple[str, dict[str, Any]]]
"""Paths, and their manifests."""

GONE: Final = "its manifest is there, and it is not"
CUT: Final = "not as large as its manifest says"


def _list_folder(directory: Path, since: datetime | None, until: datetime | None, lacking: list[str]) -> Found:
    """List a folder of this machine. `lacking` gets a line for each segment that is missing or cut off."""
    from canopy_mqtt.record.files import current_files
    from canopy_mqtt.record.files.parts import parts
    from canopy_mqtt.record.reader import check_folder

    check_folder(directory)
    for folder in parts(directory):
        for file in current_files.files(folder, since, until):
            yield str(file.path), file.about
            # Files that vanish meanwhile are reported as missing, unless a job removed them.
            with suppress(FileNotFoundError):
                if file.about.get("bytes", size := file.path.stat().st_size) != size:
                    lacking.append(f"{file.path}: {CUT}")
        lacking += [f"{folder / place}: {GONE}" for place in current_files.missing(folder)]


def _list_object_store(path: str, since: str | None, until: str | None, tell: bool, lacking: list[str]) -> Found:
    """List a record through pyarrow. `tell`: with the manifests, which are then read once more."""
    from canopy_pipeline.errors import PipelineError, in_a_line
    from canopy_pipeline.record.manifests import manifests
    from canopy_pipeline.record.parts import parts
    from canopy_pipeline.record.segments import Choice, covering, find
    from canopy_pipeline.runtime.storage import storage

    choice = Choice(since=since, until=until)
    try:
        for _ in range(LOOKS):
            coverage = covering(choice)
            listed = find(None, [path], coverage=coverage, choice=choice)
            if not coverage.kinds["missing"]:
                break
        said: dict[str, dict[str, Any]] = {}
        for root in (storage(None, folder) for folder in parts(None, path) if tell):
            said |= {root.at(place): about for place, about in manifests(root).said.items()}
    except PipelineError as error:
        fail(str(error), error.exit_code if error.exit_code == MISUSED else FAILED)
    except OSError as error:
        fail(f"{path}: {in_a_line(error)}")
    for file in listed:
        yield file.path, said.get(file.path, {})
    why = {"missing": GONE, "damaged": CUT}
    for each in coverage.findings:
        if each.segment and each.kind in why:
            # Below the folder of its part.
            folder = each.said.partition(each.segment)[0]
            lacking.append(f"{folder}{each.segment}: {why[each.kind]}")


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} {text}: must be a time, such as 2026-11-21T16:00 or 2026-11-21", MISUSED)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


__all__ = ["app", "files"]
