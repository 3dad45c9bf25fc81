"""The manifests of a record: which segments there should be, which are replaced, which removed.

Promises: a job reads each of them once. It names one that is spoilt; the spoilt manifest of a merged segment stops the
job, since then it is not known which segments count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.folder import json_lines
from canopy_mqtt.record.files.segment import read_moment
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.runtime.storage import MANIFESTS, File, Storage

REMOVED: Final = f"{MANIFESTS}/removed.jsonl"


@dataclass
class Manifests:
    """The contents of a record's manifests, by the place of the segment."""

    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Segments that merged ones replace, or had replaced when retention removed these: a backup may bring them back."""
    removed: list[dict[str, Any]] = field(default_factory=list)
    """The notes of retention on the segments that it removed."""
    vouched: set[str] | None = None
    """Merged segments that are in force; None if there are no manifests at all."""
    spoilt: dict[str, str] = field(default_factory=dict)
    """Segments whose manifest cannot be read, and why."""


def manifests(storage: Storage, known: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> Manifests:
    """Read all manifests of a record except those `known` from an earlier look, which do not change.

    Raises:
        PipelineError: that of a merged segment cannot be read: then it is not known which segments count.
    """
    made = Manifests()
    listed = storage.files(".json", MANIFESTS)
    if listed:
        made.vouched = set()
    with ThreadPoolExecutor(storage.calls) if storage.calls > 1 else nullcontext() as pool:
        texts = (map if pool is None else pool.map)(partial(_about, storage, known), listed)
        for file, about in zip(listed, texts, strict=True):
            segment, merged = _segment(file), is_merged(file.place)
            try:
                if isinstance(about, Exception):
                    raise about
                if merged:
                    made.gone.update(str(name) for name in about["replaces"])
            except FileNotFoundError:
                # Whoever removes a segment begins with its manifest.
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                if merged:
                    raise PipelineError(f"{file.path}: not a manifest of a merged segment") from error
                made.spoilt[segment] = "its manifest cannot be read"
                continue
            if merged and made.vouched is not None:
                made.vouched.add(segment)
            made.said[segment] = about
    # Last: whoever removes a segment notes that first.
    with suppress(FileNotFoundError, NotADirectoryError):
        made.removed = [about for about in json_lines(storage.text(REMOVED)) if _counts(about)]
    for about in made.removed:
        if isinstance(replaced := about.get("replaces"), list):
            made.gone.update(map(str, replaced))
    return made


def _segment(file: File) -> str:
    return file.place.removeprefix(f"{MANIFESTS}/").removesuffix(".json") + ".parquet"


def _about(storage: Storage, known: Mapping[str, dict[str, Any]], file: File) -> dict[str, Any] | Exception:
    """Return the content of a manifest, or the reason why it cannot be read."""
    place = _segment(file)
    if place in known:
        return known[place]
    try:
        about = json.loads(storage.text(file.place))
    except (OSError, ValueError) as error:
        return error
    return about if isinstance(about, dict) and _counts(about) else ValueError("no manifest")


def _counts(about: Mapping[str, Any]) -> bool:
    """Return True if rows, bytes and gaps of a manifest are numbers, and its checksum and run are texts; they may be
    absent."""
    sizes = [about.get(name, 0) for name in ("rows", "bytes")]
    texts = [about.get(name, "") for name in ("sha256", "run_id")]
    try:
        counted = all(isinstance(each, int) and each >= 0 for each in sizes) and all(recorded_gaps(about))
        return counted and all(isinstance(each, str) for each in texts)
    except (ValueError, TypeError, OverflowError):
        return False


def numbers(about: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first and the last sequence number of a segment by its manifest; None if it has none."""
    first, last = about.get("from_seq"), about.get("to_seq")
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def recorded_gaps(about: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield the gaps that a segment names: first and last number, and how many of these are lost."""
    for gap in about.get("gaps") or ():
        first, last, lost = (int(each) for each in gap)
        yield first, last, lost


def times(about: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    """Return the times of the first and the last event of a segment by its manifest; None if it has none."""
    try:
        return read_moment(about["first_ts"]), read_moment(about["last_ts"])
    except (KeyError, ValueError, TypeError):
        return None


def erasures(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the notes in a segment's manifest on events that were erased in it: `erased_at`, `by`, `events`, and the
    `topics` and `clients` that they were chosen by."""
    found = about.get("erased")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
