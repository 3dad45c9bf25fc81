"""The files of a record that are read: each event is in one of them, whatever was copied or moved.

Owns the choice between the files that are there and the manifests that tell of them. A file counts that a manifest
tells of, under its place or, if it was moved, by its name or checksum. A second file with the same content does not
count, nor does a segment that a merged one replaces, nor what is no segment of a recorder.

Promises: what does not count and lies among the segments all the same is named. It reads no file but those of this
machine without a manifest that are as large as a segment with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.folder import NAME
from canopy_pipeline.record.manifests import Manifests
from canopy_pipeline.runtime.storage import Storage


@dataclass
class ChosenFiles:
    """The files that are read, and their manifests."""

    said: Manifests
    there: Mapping[str, int]
    """All files, with their sizes in bytes."""
    read: list[str] = field(default_factory=list)
    """Places of the files that count."""
    origins: dict[str, str] = field(default_factory=dict)
    """Of a file that counts and was moved: the place where its manifest says it is."""
    copies: dict[str, str] = field(default_factory=dict)
    """Of a file that does not count: the place of the one that holds the same."""
    strange: list[str] = field(default_factory=list)
    """Files that are no segments of a recorder."""

    def about(self, place: str) -> dict[str, Any] | None:
        """Return the manifest of a file that counts; None if there is none."""
        return self.said.said.get(self.origins.get(place, place))

    @property
    def found(self) -> dict[str, str]:
        """Return the present place of a manifest's moved segment."""
        return {origin: place for place, origin in self.origins.items()}


def choose(said: Manifests, there: Mapping[str, int], storage: Storage) -> ChosenFiles:
    """Choose among the files of `storage` that are `there`, with their sizes in bytes."""
    made = ChosenFiles(said, there)
    files = set(there)
    if said.vouched is None:
        # Without manifests: only names tell.
        named: dict[str, str] = {}
        for place in sorted(files):
            original = named.setdefault(_name(place), place)
            if original != place and NAME.match(_name(place)):
                made.copies[place] = original
            else:
                made.read.append(place)
        return made
    in_force = [place for place in said.said if place not in said.gone]
    made.read = [place for place in in_force if place in files]
    known: dict[str, str] = {}
    for place in sorted(made.read, key=lambda place: said.said[place].get("segment") != place):
        # The one that lies where its manifest says comes first.
        for mark in _marks(place, said.said[place]):
            if known.setdefault(mark, place) != place:
                made.copies[place] = known[mark]
    for place in sorted(said.gone):
        known.setdefault(_name(place), place)
    away = [place for place in in_force if place not in files]
    lost = {mark: place for place in away for mark in _marks(place, said.said[place])}
    for place in made.read:
        # Its manifest was copied, and it was moved.
        for mark in _marks(place, said.said[place]):
            if mark in lost and place not in made.copies and lost[mark] not in made.found:
                made.origins[place] = lost[mark]
    contents = {(about.get("bytes"), about.get("sha256")): place for place in in_force for about in [said.said[place]]}
    sizes = {size for size, _ in contents}
    for place in sorted(files - said.said.keys() - said.gone):
        marks = [_name(place)]
        if there[place] in sizes and not is_merged(place):
            like = contents.get((there[place], storage.sha256(place)))
            marks += [] if like is None else _marks(like, said.said[like])
        if same := [known[mark] for mark in marks if mark in known]:
            made.copies[place] = same[0]
        elif origins := [lost[mark] for mark in marks if mark in lost]:
            known |= dict.fromkeys(marks, place)
            made.origins[place] = origins[0]
            made.read.append(place)
        elif is_merged(place):
            # One that is being made: what it is to replace still counts.
            continue
        elif NAME.match(_name(place)) is None:
            made.strange.append(place)
        else:
            made.read.append(place)
    made.read = sorted(place for place in made.read if place not in made.copies)
    return made


def _marks(place: str, about: dict[str, Any]) -> Iterator[str]:
    """Yield the marks that two files with the same content have in common."""
    yield _name(place)
    if about.get("sha256"):
        yield f"{about['sha256']} {about.get('from_seq')} {about.get('to_seq')}"


def _name(place: str) -> str:
    return place.rpartition("/")[2]
