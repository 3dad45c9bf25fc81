"""The command ``canopy record files``: lists a folder of this machine, or a record on an object store.

It lists both by the pipeline's file layer, which needs no Spark: each event is in one of the files.

Promises: as the other commands of `canopy record`; exit code 1 if a segment is missing, or has another size than its
manifest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from canopy_mqtt.command.record import app, failures_in_one_line
from canopy_mqtt.terminal import fail

if TYPE_CHECKING:
    from canopy_pipeline.record.chosen_files import ChosenFiles
    from canopy_pipeline.runtime.storage import Storage

LOOKS: Final = 3
"""Times that a folder is listed if a segment with a manifest is missing: it may have been merged in between."""


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
    lacking: list[str] = []
    for path, about in _list(directory, since, until, lacking):
        sys.stdout.write((json.dumps({"path": path, **about}, ensure_ascii=False) if as_json else path) + "\n")
    sys.stdout.flush()
    if lacking:
        fail("\n".join(lacking))


Found = Iterator[tuple[str, dict[str, Any]]]
"""Paths, and their manifests."""

GONE: Final = "its manifest is there, and it is not"
CUT: Final = "not as large as its manifest says"


def _list(directory: str, since: str | None, until: str | None, lacking: list[str]) -> Found:
    """List a record. `lacking` gets a line for each segment that is missing or cut off."""
    from canopy_mqtt.record.files.current_files import is_merged
    from canopy_mqtt.record.files.folder import RecorderError, by_number
    from canopy_mqtt.record.reader import check_folder
    from canopy_pipeline.errors import PipelineError, in_a_line
    from canopy_pipeline.record.segments import Choice, covering, folders
    from canopy_pipeline.runtime.storage import local_path, storage

    listed = False
    try:
        wanted = covering(Choice(since=since, until=until))
        if (local := local_path(directory)) is not None:
            check_folder(local)
        for folder in folders(None, [directory]):
            chosen, missing = _look(storage(None, folder))
            if chosen.said.vouched is None and any(map(is_merged, chosen.there)):
                raise RecorderError(
                    f"{folder}: merged segments, and no manifest says what they hold; copy _manifests too"
                )
            root = folder.rstrip("/") if local is None else str(local_path(folder))
            for place in sorted(chosen.read, key=by_number):
                listed, about = True, chosen.about(place) or {}
                if wanted.asks(about):
                    yield f"{root}/{place}", about
                    if about.get("bytes", chosen.there[place]) != chosen.there[place]:
                        lacking.append(f"{root}/{place}: {CUT}")
            lacking += [f"{root}/{place}: {GONE}" for place in missing if wanted.asks(chosen.said.said[place])]
    except PipelineError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        fail(f"{directory}: {in_a_line(error)}")
    if not listed and not lacking:
        fail(f"{directory}: no segment in it (the recorder finishes one every minute, or when it stops)")


def _look(place: Storage) -> tuple[ChosenFiles, list[str]]:
    """Return the segments of a folder that count, and those that have manifests and are missing."""
    from canopy_pipeline.record.chosen_files import choose
    from canopy_pipeline.record.manifests import manifests
    from canopy_pipeline.record.parts import own

    for _ in range(LOOKS):
        said = manifests(place)
        chosen = choose(said, own(place.listed(".parquet")), place)
        # A job removes a manifest first; the recorder writes it last.
        gone = said.gone | {str(entry.get("segment")) for entry in said.removed}
        missing = sorted(said.said.keys() - chosen.there.keys() - chosen.found.keys() - gone)
        if not missing:
            break
    return chosen, missing


__all__ = ["app", "files"]
