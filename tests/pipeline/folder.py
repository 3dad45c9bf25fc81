"""A recorder's folder for tests of the jobs that change it: hours of small segments, and what a reader sees of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from canopy_pipeline.record.segments import find
from canopy_pipeline.runtime.storage import Local, Storage, storage
from tests.pipeline.recorded import BEGIN, Story, write_segment

NOW = BEGIN + timedelta(hours=6)


def record(folder: Path, hours: int = 3, segments: int = 4, rows: int = 5) -> list[Path]:
    """So many hours with so many small segments each; two runs of the broker, with a gap between them."""
    story = Story()
    written = []
    for hour in range(hours):
        for number in range(segments):
            story.now = BEGIN + timedelta(hours=hour, minutes=10 * number)
            if (hour, number) == (1, 1):
                story.run_id = "ffffffff"
                story.seq += 10
                story.gap(story.seq - 10, story.seq - 1, "crash")
            for _ in range(rows):
                story.publish("p", f"a/{number}", b"x" * 100)
            written.append(write_segment(folder, story.events))
            story.events = []
    return written


def seen(folder: Path | str) -> list[int]:
    """The sequence numbers that a job would read, as often as it would. `folder`: here, or at an object store."""
    place = storage(None, str(folder))
    read = [
        pq.read_table(io.BytesIO(place.read(file.path.removeprefix(f"{place.path}/"))), columns=["seq"])
        for file in find(None, [str(folder)])
    ]
    return sorted(seq for table in read for seq in table["seq"].to_pylist())


def manifests(folder: Path, pattern: str = "*.json") -> list[dict[str, Any]]:
    """All manifests, by name; each one's segment is there."""
    found = []
    for path in sorted((folder / "_manifests").rglob(pattern)):
        said = json.loads(path.read_text())
        assert (folder / said["segment"]).exists(), said["segment"]
        found.append(said)
    return found


def elsewhere(folder: Path) -> Storage:
    """A folder of this machine, reached as one elsewhere would be."""
    return Storage(f"file:{folder}", LocalFileSystem(), str(folder))


class Broken(Exception):
    """The machine went down."""


@contextmanager
def down_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> Iterator[list[str]]:
    """The machine goes down after so many changes of the folder; yields those that were made."""
    made: list[str] = []
    with monkeypatch.context() as patch:
        for owner in (Storage, Local):
            for name in ("publish", "remove", "append"):
                patch.setattr(owner, name, step(name, getattr(owner, name), made, steps))
        yield made


def step(name: str, change: Callable[..., None], made: list[str], steps: int) -> Callable[..., None]:
    def taken(owner: object, *arguments: str) -> None:
        if len(made) == steps:
            raise Broken
        made.append(f"{name} {arguments[-1]}")
        change(owner, *arguments)

    return taken
