"""What a recorder's folder holds, for people and scripts: a list, a check, the events themselves.

Owns `verify`: every segment against its manifest, and the numbers of all segments against each other: each is in one
segment, in a gap that names it, or was removed and is listed as such. Blocks; memory is bounded by a batch of rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.record.files.drafts import left_drafts
from broker.record.files.folder import (
    ENDED,
    RUNNING,
    RecorderError,
    at_work,
    check_columns,
    describe,
    manifests,
    noted,
    read_manifest,
    reason,
    removed,
    segments,
)
from broker.record.files.in_force import in_force, replaced, unvouched
from broker.record.files.segment import manifest_path
from broker.record.schema import FORMAT

BATCH: Final = 65_536

CHECKED: Final = ("run_id", "rows", "from_seq", "to_seq", "first_ts", "last_ts", "kinds", "bytes", "sha256", "gaps")
"""What a manifest says that can be worked out again."""


@dataclass
class Found:
    """What a check came to."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """One line for each thing that is wrong."""
    gaps: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Numbers that are missing and named as such: from, to, how many, why."""
    removed: list[tuple[int, int]] = field(default_factory=list)
    """Numbers that were removed because of their age."""
    unfinished: tuple[int, int] | None = None
    """Numbers that were given and are in no finished segment yet: the recorder runs, or gave up."""
    replaced: int = 0
    """Segments that a merged one stands for, and that are still there."""


def check_folder(root: Path) -> None:
    """Refuse what is no recorder's folder.

    Raises:
        RecorderError: it is not there, or holds no segment.
    """
    if not root.is_dir():
        raise RecorderError(f"{root}: no such folder")
    if not segments(root):
        if left_drafts(root) and not at_work(root):
            raise RecorderError(
                f"{root}: no segment in it, but what a killed recorder left unfinished: canopy record recover {root}"
            )
        raise RecorderError(f"{root}: no segment in it (the recorder finishes one every minute, or when it stops)")


def listing(root: Path) -> Iterator[dict[str, Any]]:
    """The manifests of all segments that count, in order; where there is none yet, what the segment itself says.

    Raises:
        RecorderError: it is no recorder's folder, or a segment cannot be read.
    """
    check_folder(root)
    for place in in_force(root):
        path = manifest_path(root, place)
        try:
            yield read_manifest(path) if path.exists() else describe(root, place)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise RecorderError(f"{root / place}: cannot be read ({reason(error)})") from error


def verify(root: Path) -> Found:
    """Work out everything again that manifests say, and find the numbers that nothing accounts for.

    Raises:
        RecorderError: it is no recorder's folder.
    """
    check_folder(root)
    found = Found()
    gone = replaced(root)
    spans: list[tuple[int, int]] = []
    # A recorder may be at it: what is finished meanwhile is no fault, nor that the last manifest is still to come.
    last = noted(root)
    running = last is not None and last[1] == RUNNING
    there = segments(root)
    for place in there:
        if place in gone:
            found.replaced += 1
            continue
        if unvouched(root, place):
            continue
        spans += _check_segment(root, place, found, running and place == there[-1])
    for path in manifests(root):
        place = path.relative_to(root / "_manifests").with_suffix(".parquet").as_posix()
        if place not in gone and not (root / place).exists():
            found.faults.append(f"{place}: its manifest is there, and it is not")
    for entry in removed(root):
        if isinstance(entry.get("from_seq"), int) and isinstance(entry.get("to_seq"), int):
            found.removed.append((entry["from_seq"], entry["to_seq"]))
    end = _check_numbers(spans, found)
    if last is not None and last[0] > end:
        if last[1] == ENDED:
            found.faults.append(f"numbers {end + 1} to {last[0]} are missing, and the recorder had written them")
        elif last[1] == RUNNING and not at_work(root):
            found.faults.append(
                f"numbers {end + 1} to {last[0]} are in no finished segment, and no recorder is at work "
                "(its next start names them as lost)"
            )
        else:
            found.unfinished = (end + 1, last[0])
    return found


def _check_segment(root: Path, place: str, found: Found, fresh: bool) -> list[tuple[int, int]]:
    """One segment against its manifest, which may be missing of a `fresh` one; the stretches of numbers it holds."""
    path = root / place
    try:
        real = describe(root, place)
        spans = _spans(path)
        found.gaps += _gaps(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        found.faults.append(f"{place}: cannot be read ({reason(error)})")
        return []
    found.segments += 1
    found.events += real["rows"]
    found.bytes += real["bytes"]
    for kind, count in real["kinds"].items():
        found.kinds[kind] = found.kinds.get(kind, 0) + count
    beside = manifest_path(root, place)
    if not beside.exists():
        if fresh:
            return spans
        found.faults.append(f"{place}: it has no manifest (the next start of the recorder writes it)")
        return spans
    try:
        said = read_manifest(beside)
    except (OSError, ValueError) as error:
        found.faults.append(f"{place}: its manifest cannot be read ({reason(error)})")
        return spans
    if said.get("format") != FORMAT:
        found.faults.append(f"{place}: is of format {said.get('format')}, and this Canopy reads format {FORMAT}")
    for name in CHECKED:
        if name == "run_id" and "replaces" in said:
            continue
        if said.get(name) != real[name]:
            found.faults.append(f"{place}: its manifest says {name} = {said.get(name)!r}, and it is {real[name]!r}")
    return spans


def _spans(path: Path) -> list[tuple[int, int]]:
    """The stretches of numbers without a hole that a segment holds. ValueError where they do not rise."""
    spans: list[tuple[int, int]] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["seq"]):
            seq = batch.column("seq")
            # Where the difference to the place in the batch changes, numbers are missing.
            start = 0
            if batch.num_rows > 1:
                steps = pc.subtract(seq[1:], seq[:-1])
                if pc.min(steps).as_py() < 1:
                    raise ValueError("its numbers do not rise")
                for at in pc.indices_nonzero(pc.greater(steps, 1)).to_pylist():
                    spans.append((seq[start].as_py(), seq[at].as_py()))
                    start = at + 1
            spans.append((seq[start].as_py(), seq[batch.num_rows - 1].as_py()))
    return spans


def _gaps(path: Path) -> list[tuple[int, int, int, str]]:
    found: list[tuple[int, int, int, str]] = []
    with pq.ParquetFile(path) as file:
        names = ["kind", "from_seq", "to_seq", "n", "reason"]
        for batch in file.iter_batches(BATCH, columns=names):
            for row in batch.filter(pc.equal(batch.column("kind"), "gap")).to_pylist():
                found.append((row["from_seq"], row["to_seq"], row["n"], row["reason"]))
    return found


def _check_numbers(spans: list[tuple[int, int]], found: Found) -> int:
    """Every number from 1 to the last is in one segment, in a named gap, or was removed. Returns the last."""
    named = [(first, last) for first, last, _, _ in found.gaps] + found.removed
    # What is held, what is named: in the order of the numbers.
    end = 0
    for first, last in sorted([*spans, *named]):
        if first > end + 1:
            found.faults.append(f"numbers {end + 1} to {first - 1} are missing, and no gap names them")
        end = max(end, last)
    twice = _overlaps(spans)
    if twice:
        found.faults += [f"numbers {first} to {last} are there twice" for first, last in twice]
    else:
        for first, last in _overlaps([*spans, *((first, last) for first, last, _, _ in found.gaps)]):
            found.faults.append(f"numbers {first} to {last} are named as missing, and are there or are named twice")
    return end


def _overlaps(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The numbers that are in more than one of these stretches."""
    found = []
    end = 0
    for first, last in sorted(spans):
        if first <= end:
            found.append((first, min(end, last)))
        end = max(end, last)
    return found


def events(
    root: Path, kinds: frozenset[str] = frozenset(), topic: Callable[[str], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """The events in order, without the columns that are null; `topic` chooses among those that have one.

    Raises:
        RecorderError: it is no recorder's folder, or a segment cannot be read.
    """
    check_folder(root)
    for place in in_force(root):
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
    """An event as JSON can say it: times in ISO 8601, bytes as text where they are UTF-8 and else in base64."""
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
