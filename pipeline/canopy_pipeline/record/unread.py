"""The unread part of a growing record, above the number that a stream has reached: its files, and its missing numbers.

Owns: the look at segments, manifests and the notes of retention. It reads no events.

Promises: events that were merged meanwhile are found in the merged segment. Events that cannot be found again are a
finding, and none is passed over silently.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from canopy_pipeline.errors import AWAY, DamagedError, MisuseError, PipelineError
from canopy_pipeline.record.account import account
from canopy_pipeline.record.chosen_files import ChosenFiles, choose
from canopy_pipeline.record.coverage import Coverage, Finding
from canopy_pipeline.record.manifests import manifests, numbers, recorded_gaps
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.parts import own
from canopy_pipeline.record.segments import fault
from canopy_pipeline.runtime.storage import File, Storage, local_path

SHOWN: Final = 5
"""Findings that a stop names; there may be more."""


@dataclass(frozen=True)
class UnreadPart:
    """The part of the record above the number that the stream has reached."""

    files: list[File]
    to: int
    unread: list[tuple[int, int]]
    """Numbers up to `to` that none of the files can hold; some are lost, and some may come back."""
    findings: list[Finding]
    manifests: list[dict[str, Any]]
    """Those of the files, in the same order."""


def named(findings: list[Finding]) -> list[str]:
    """Return the first findings as lines for people."""
    shown = [each.said for each in findings[:SHOWN]]
    if len(findings) > SHOWN:
        shown.append(f"{len(findings) - SHOWN:,} more")
    return shown


class Unread:
    """One record, as a stream reads it."""

    def __init__(self, source: str, recorded: Storage) -> None:
        self.source = source
        self.recorded = recorded
        # Manifests that were read: they do not change.
        self._known: dict[str, dict[str, Any]] = {}
        # Segments that span numbers which are missing, and do not hold them: merged after those were lost.
        self._barren: set[str] = set()

    def returned(self, unread: Sequence[tuple[int, int]]) -> list[tuple[File, int, int]]:
        """Find numbers that no segment held when the stream came to them, and that are there now: files, and numbers.

        Raises:
            PipelineError: a segment cannot be read.
        """
        there, chosen = self._chosen()
        found = []
        for place in chosen.read:
            about = chosen.about(place) or {}
            span = numbers(about)
            if span is None or place in self._barren:
                continue
            among = Numbers(unread).within(*span)
            if not among:
                continue
            if fault(self.recorded, there[place], about):
                # Still, or again, not what was written: that is for who reads it to say.
                continue
            held = [each for first, last in among for each in _held(self.recorded, place, first, last)]
            found += [(there[place], first, last) for first, last in held]
            if not held:
                self._barren.add(place)
        return found

    def look(
        self, through: int, to: int | None = None, most: int | None = None, begun: bool = True
    ) -> UnreadPart | None:
        """Look for events above the number `through`, up to `to` if that is given; return None if there are none.

        `most`: at most so many numbers, or a single segment that has more. `begun`: True if the stream has read before;
        segments that retention removed before its first read do not concern it.

        Raises:
            MisuseError: there are no manifests.
            PipelineError: it is another record, or a segment cannot be read.
        """
        there, chosen = self._chosen()
        said = chosen.said
        if there and said.vouched is None:
            raise MisuseError(f"--input {self.source}: no manifests: a stream goes by them (copy _manifests too)")
        spans = {place: span for place in chosen.read if (span := numbers(chosen.about(place) or {})) is not None}
        told = [numbers(about) for place, about in said.said.items() if place not in said.gone]
        ends = sorted({span[1] for span in (*told, *map(numbers, said.removed)) if span is not None})
        end = ends[-1] if ends else 0
        if end < through:
            raise PipelineError(
                f"--input {self.source}: the record ends at number {end:,}, and this stream has read up to "
                f"{through:,}: another record; begin again with new folders"
            )
        if end == through and to is None:
            return None
        if to is None:
            # Nothing is cut in two: what is missing is found once.
            to = end if most is None else ends[max(bisect_right(ends, through + most) - 1, bisect_right(ends, through))]
        files = []
        for place, span in spans.items():
            if span[1] <= through or span[0] > to:
                continue
            why = fault(self.recorded, there[place], chosen.about(place))
            if why:
                raise DamagedError(f"{there[place].path}: {why}; {AWAY}")
            files.append(there[place])
        found = Coverage(had=through, ignored=frozenset({"gap", "unfinished"}))
        account(found, self.source, chosen, local_path(self.source))
        findings = [each for each in found.findings if each.from_seq is not None and each.from_seq <= to]
        if begun:
            findings += self._removed(said.removed, there, through, to)
        abouts = [chosen.about(file.place) or {} for file in files]
        unread = Numbers([(through + 1, to)]).without(Numbers(spans[file.place] for file in files))
        return UnreadPart(files, to, unread.stretches, findings, abouts)

    def again(self, first: int, last: int) -> tuple[UnreadPart, Numbers]:
        """Look for the events from one number to another once more. Return them, and the numbers of which the record
        says all: each is of an event in these files, or the recorder lost it.

        Raises:
            PipelineError: it is another record, or a segment cannot be read.
        """
        look = self.look(first - 1, to=last) or UnreadPart([], last, [(first, last)], [], [])
        # A merged segment names them, too.
        gaps = {gap for about in self._known.values() for gap in recorded_gaps(about)}
        known = [(begin, end) for begin, end, lost in gaps if lost > end - begin]
        for file, about in zip(look.files, look.manifests, strict=True):
            begin, end = numbers(about) or (0, -1)
            lost = sum(min(lost, last - first + 1) for first, last, lost in gaps if first >= begin and last <= end)
            if int(about.get("rows") or 0) + lost > end - begin:
                known.append((begin, end))
            else:
                known += _held(self.recorded, file.place, begin, end)
        return look, Numbers(known).within(first, last)

    def _removed(self, gone: list[dict[str, Any]], there: dict[str, File], through: int, to: int) -> list[Finding]:
        """Return a finding for each stretch that retention removed before the stream read it."""
        found = []
        for about in gone:
            span, place = numbers(about), str(about.get("segment"))
            if span is not None and through < span[1] and span[0] <= to and place not in there:
                rows = min(int(about.get("rows") or 0), span[1] - max(span[0] - 1, through))
                why = f"{self.source}: retention removed numbers {span[0]:,} to {span[1]:,} before they were read"
                found.append(Finding("missing", place, span[0], span[1], rows, why))
        return found

    def coverage(self, lost: Coverage, through: int) -> Coverage:
        """Return the missing numbers: of the record as it is now, and of `lost`, from when the stream came to them."""
        made = replace(lost, findings=[*lost.findings], kinds=Counter(lost.kinds), had=through)
        there, chosen = self._chosen()
        if there or chosen.said.said:
            account(made, self.source, chosen, local_path(self.source))
        return made

    def _chosen(self) -> tuple[dict[str, File], ChosenFiles]:
        """Return all segments, and those that count."""
        # Segments first: who removes one begins with its manifest.
        there = own({file.place: file for file in self.recorded.files(".parquet")})
        said = manifests(self.recorded, self._known)
        self._known = said.said
        return there, choose(said, {place: file.size for place, file in there.items()}, self.recorded)


def _held(recorded: Storage, place: str, first: int, last: int) -> list[tuple[int, int]]:
    """The stretches of these numbers that a segment holds."""
    import pyarrow.parquet as pq

    with recorded.fs.open_input_file(place) as source, pq.ParquetFile(source) as opened:
        found = [Numbers.of(batch.column(0)) for batch in opened.iter_batches(columns=["seq"])]
    return Numbers(each for numbers in found for each in numbers).within(first, last).stretches
