"""What a record's manifests say, as they stand: which segments there should be, which are replaced, which removed.

Promises: all of them are read once for a job. One that is spoilt is named; a merged segment's stops the job, since
nobody knows then which segments count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from pipeline.errors import PipelineError
from pipeline.storage import MANIFESTS, File


class Shelf(Protocol):
    """A place that files are listed and read in, as `Storage` is."""

    calls: int

    def files(self, suffix: str, under: str = "") -> list[File]:
        """All files whose names end so."""

    def text(self, place: str) -> str:
        """A small file, whole."""


@dataclass
class Manifests:
    """What a record's manifests say, by the place of the segment."""

    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Segments that merged ones stand for."""
    vouched: set[str] | None = None
    """Merged segments that are in force; None where there are no manifests at all."""
    spoilt: dict[str, str] = field(default_factory=dict)
    """Segments whose manifest cannot be read, and why."""


def manifests(shelf: Shelf, known: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> Manifests:
    """Read all manifests of a record, but for those that are `known` from an earlier look: they do not change.

    Raises:
        PipelineError: that of a merged segment cannot be read: nobody knows then which segments count.
    """
    made = Manifests()
    listed = shelf.files(".json", MANIFESTS)
    if listed:
        made.vouched = set()
    with ThreadPoolExecutor(shelf.calls) if shelf.calls > 1 else nullcontext() as pool:
        texts = (map if pool is None else pool.map)(partial(_about, shelf, known), listed)
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
    return made


def _segment(file: File) -> str:
    return file.place.removeprefix(f"{MANIFESTS}/").removesuffix(".json") + ".parquet"


def _about(shelf: Shelf, known: Mapping[str, dict[str, Any]], file: File) -> dict[str, Any] | Exception:
    """What a manifest says, or why it cannot be read."""
    place = _segment(file)
    if place in known:
        return known[place]
    try:
        about = json.loads(shelf.text(file.place))
    except (OSError, ValueError) as error:
        return error
    return about if isinstance(about, dict) else ValueError("no JSON object")


def numbers(about: Mapping[str, Any]) -> tuple[int, int] | None:
    """The first and the last sequence number of a segment, as its manifest says; None where it says none."""
    first, last = about.get("from_seq"), about.get("to_seq")
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def is_merged(place: str) -> bool:
    """Whether a place, of a segment or a manifest, is a merged segment's."""
    return place.rpartition("/")[2].startswith("merged-")


def removed(shelf: Shelf) -> list[dict[str, Any]]:
    """What retention wrote down before it removed it."""
    found = []
    for file in shelf.files("removed.jsonl", MANIFESTS):
        for line in shelf.text(file.place).splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                # The machine went down while it was written: nothing had been removed for it.
                continue
            if isinstance(entry, dict):
                found.append(entry)
    return found
