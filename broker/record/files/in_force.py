"""Which files of a record count: not those that a merged one stands for, nor a merged one that nobody vouches for.

Owns that choice, while `canopy pipeline compact` and `retention` change the folder: what is listed holds each event
once, and is there. Blocks; reads the manifests of merged segments, and of all where somebody asks for a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.record.files.folder import RecorderError, manifests, read_manifest, reason, removed, segments
from broker.record.files.segment import MANIFESTS, manifest_path

LOOKS: Final = 20
"""Times that a folder is looked at which changes all the while; a change takes a merge of a whole hour."""


@dataclass(frozen=True)
class File:
    """A segment that counts. `about`: its manifest; empty where there is none yet."""

    path: Path
    about: dict[str, Any]


def is_merged(place: str) -> bool:
    """Whether it is a merged segment's name, or its manifest's."""
    return place.rpartition("/")[2].startswith("merged-")


def replaced(root: Path) -> set[str]:
    """The places of segments that merged ones stand for, whether these are still there or not.

    Raises:
        RecorderError: a manifest cannot be read.
    """
    return {name for names in _merges(root).values() for name in names}


def in_force(root: Path) -> list[str]:
    """The places of the segments that count, in order.

    Raises:
        RecorderError: a manifest cannot be read, or there is none and what counts cannot be known.
    """
    for _ in range(LOOKS):
        merges = _merges(root)
        there = segments(root)
        # Where the same are in force before and after, what was listed belongs to them.
        if {_segment_of(root, path) for path in _merged(root)} == merges.keys():
            break
    else:
        raise RecorderError(f"{root}: its segments are merged faster than they can be listed")
    gone = {name for names in merges.values() for name in names}
    found = [place for place in there if place not in gone and (place in merges or not is_merged(place))]
    if not found and there and next(manifests(root), None) is None:
        raise RecorderError(f"{root}: merged segments, and no manifest says what they hold; copy {MANIFESTS} too")
    return found


def files(root: Path, since: datetime | None = None, until: datetime | None = None) -> Iterator[File]:
    """The segments that count, with what their manifests say; with a time, those that may hold events from `since` to
    before `until`.

    Raises:
        RecorderError: a manifest cannot be read.
    """
    for place in in_force(root):
        about: dict[str, Any] = {}
        # The recorder writes it last.
        with suppress(FileNotFoundError):
            about = _read(manifest_path(root, place))
        if not about or _within(about, since, until):
            yield File(root / place, about)


def missing(root: Path) -> list[str]:
    """The places of segments that manifests tell of, that count, and that are not there.

    Raises:
        RecorderError: a manifest cannot be read.
    """
    told = [_segment_of(root, path) for path in manifests(root)]
    lacking = [place for place in told if not (root / place).exists()]
    if not lacking:
        return []
    # Whoever removes one begins with its manifest; the recorder ends with it.
    known = replaced(root) | {str(entry.get("segment")) for entry in removed(root)}
    return sorted(
        place
        for place in lacking
        if place not in known and manifest_path(root, place).exists() and not (root / place).exists()
    )


def _merged(root: Path) -> Iterator[Path]:
    return (path for path in manifests(root) if is_merged(path.name))


def _merges(root: Path) -> dict[str, list[str]]:
    """The merged segments that are in force, and what each stands for."""
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


def _within(about: dict[str, Any], since: datetime | None, until: datetime | None) -> bool:
    try:
        first, last = (_moment(about[name]) for name in ("first_ts", "last_ts"))
    except ValueError:
        # Nobody knows: it may.
        return True
    return (since is None or last >= since) and (until is None or first < until)


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
