"""Selects the current files of a record: neither segments that a merged one replaces, nor an uncommitted merged one.

Owns that choice while `canopy pipeline compact` and `retention` change the folder: the listed files exist and contain
each event once. Blocks; reads the manifests of merged segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.record.files.folder import (
    RecorderError,
    by_number,
    manifests,
    read_manifest,
    reason,
    removed,
    segments,
)
from canopy_mqtt.record.files.segment import MANIFESTS, manifest_path

LOOKS: Final = 20
"""Attempts to list a folder that keeps changing; a change takes a merge of a whole hour."""


def is_merged(place: str) -> bool:
    """Return True for the name of a merged segment, or of its manifest."""
    return place.rpartition("/")[2].startswith("merged-")


def replaced(root: Path) -> set[str]:
    """Return the paths of segments that merged ones replace, whether they still exist or not.

    Raises:
        RecorderError: a manifest cannot be read.
    """
    return _replaced(root, _merges(root))


def current_files(root: Path) -> list[str]:
    """Return the paths of the current segments, in order.

    Raises:
        RecorderError: a manifest that is needed to select the files is missing or unreadable.
    """
    for _ in range(LOOKS):
        merges = _merges(root)
        there = segments(root)
        # Where the same are in force before and after, what was listed belongs to them.
        if {_segment_of(root, path) for path in _merged(root)} == merges.keys():
            break
    else:
        raise RecorderError(f"{root}: its segments are merged faster than they can be listed")
    gone = _replaced(root, merges)
    found = [place for place in there if place not in gone and (place in merges or not is_merged(place))]
    # One that is being made stands among others, which have manifests.
    if any(map(is_merged, there)) and next(manifests(root), None) is None:
        raise RecorderError(f"{root}: merged segments, and no manifest says what they hold; copy {MANIFESTS} too")
    # A name is of one segment: a second file of that name is a copy.
    named: dict[str, str] = {}
    for place in found:
        if named.setdefault(place.rpartition("/")[2], place) != place and manifest_path(root, place).exists():
            named[place.rpartition("/")[2]] = place
    return sorted(named.values(), key=by_number)


def _replaced(root: Path, merges: Mapping[str, Collection[str]]) -> set[str]:
    """Return what these merged segments replace, and what others did that retention has removed."""
    of_removed = (entry.get("replaces") or () for entry in removed(root))
    return {str(name) for names in (*merges.values(), *of_removed) for name in names}


def missing(root: Path) -> list[str]:
    """Return the paths of current segments that have manifests, and are missing.

    Raises:
        RecorderError: a manifest cannot be read.
    """
    listed = [_segment_of(root, path) for path in manifests(root)]
    lacking = [place for place in listed if not (root / place).exists()]
    if not lacking:
        return []
    # A job removes a manifest first; the recorder writes it last.
    known = replaced(root) | {str(entry.get("segment")) for entry in removed(root)}
    return sorted(
        place
        for place in lacking
        if place not in known and manifest_path(root, place).exists() and not (root / place).exists()
    )


def _merged(root: Path) -> Iterator[Path]:
    return (path for path in manifests(root) if is_merged(path.name))


def _merges(root: Path) -> dict[str, list[str]]:
    """Return the merged segments in force, and the segments that each replaces."""
    found = {}
    for path in _merged(root):
        with suppress(FileNotFoundError):
            names = _read(path).get("replaces")
            if not isinstance(names, list):
                raise RecorderError(f"{path}: not a manifest of a merged segment: it does not say what that replaces")
            found[_segment_of(root, path)] = [str(place) for place in names]
    return found


def _segment_of(root: Path, manifest: Path) -> str:
    return manifest.relative_to(root / MANIFESTS).with_suffix(".parquet").as_posix()


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_manifest(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RecorderError(f"{path}: cannot be read ({reason(error)})") from error
