"""Reads a record for people and scripts: a list of segments, and the events. Its parts (`files.parts`) are one record.

Blocks; a batch of rows of each part bounds the memory. `canopy_mqtt.command.record_verify` checks a folder.
"""

from __future__ import annotations

import base64
import heapq
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from canopy_mqtt.record.files.current_files import current_files
from canopy_mqtt.record.files.drafts import left_drafts
from canopy_mqtt.record.files.folder import (
    RecorderError,
    at_work,
    check_columns,
    describe,
    read_manifest,
    reason,
    segments,
)
from canopy_mqtt.record.files.parts import parts
from canopy_mqtt.record.files.segment import manifest_path

BATCH: Final = 65_536


def check_folder(root: Path) -> None:
    """Check that this is a record: a recorder's folder, or the folders of workers.

    Raises:
        RecorderError: it is not there, may not be read, or holds no segment.
    """
    if not root.is_dir():
        raise RecorderError(f"{root}: no such folder")
    try:
        # `glob` finds nothing where it may not look, and says nothing of it.
        os.listdir(root)
    except OSError as error:
        raise RecorderError(f"{root}: cannot be read: {error.strerror}") from None
    folders = parts(root)
    if not any(segments(folder) for folder in folders):
        if any(left_drafts(folder) and not at_work(folder) for folder in folders):
            raise RecorderError(
                f"{root}: no segment in it, but what a killed recorder left unfinished: "
                f"canopy record verify --repair {root}"
            )
        raise RecorderError(f"{root}: no segment in it (the recorder finishes one every minute, or when it stops)")


def listing(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the manifests of all current segments, in order, one part after the other; if there is none yet, one made
    from the segment. The segment's path is that below `root`.

    Raises:
        RecorderError: it is no record, or a segment cannot be read.
    """
    check_folder(root)
    for folder in parts(root):
        for place in current_files(folder):
            path = manifest_path(folder, place)
            try:
                about = read_manifest(path) if path.exists() else describe(folder, place)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise RecorderError(f"{folder / place}: cannot be read ({reason(error)})") from error
            yield about if folder == root else {**about, "segment": f"{folder.name}/{about['segment']}"}


def events(
    root: Path, kinds: frozenset[str] = frozenset(), topic: Callable[[str], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events in order, without null columns; `topic` selects among those with a topic. Those of several parts
    by their times.

    Raises:
        RecorderError: it is no record, or a segment cannot be read.
    """
    check_folder(root)
    each = [_events(folder, kinds, topic) for folder in parts(root)]
    return each[0] if len(each) == 1 else heapq.merge(*each, key=lambda event: event["ts"])


def _events(root: Path, kinds: frozenset[str], topic: Callable[[str], bool] | None) -> Iterator[dict[str, Any]]:
    for place in current_files(root):
        try:
            with pq.ParquetFile(root / place) as file:
                check_columns(file)
                for batch in file.iter_batches(BATCH // 8):
                    for row in batch.to_pylist():
                        if kinds and row["kind"] not in kinds:
                            continue
                        if topic is not None and (row["topic"] is None or not topic(row["topic"])):
                            continue
                        yield {name: value for name, value in row.items() if value is not None}
        except (OSError, ValueError, pa.ArrowException) as error:
            raise RecorderError(f"{root / place}: cannot be read ({reason(error)})") from error


def plain(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as JSON values: times in ISO 8601, bytes as text if they are UTF-8 and else in base64."""
    made: dict[str, Any] = {}
    for name, value in event.items():
        if isinstance(value, bytes):
            try:
                made[name] = value.decode()
            except UnicodeDecodeError:
                made[f"{name}_base64"] = base64.b64encode(value).decode()
        elif name == "ts":
            made[name] = value.isoformat(timespec="microseconds")
        elif name == "properties":
            made[name] = [[pair["key"], pair["value"]] for pair in value]
        else:
            made[name] = value
    return made
