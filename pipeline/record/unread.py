"""What of a growing record lies above the number that a stream has reached: which files hold it, and what is missing.

Owns: the look at segments, manifests and what retention removed. It reads no events.

Promises: what was merged meanwhile is found in the merged segment. What cannot be found again is a finding, and none is
passed over silently.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.errors import MisuseError, PipelineError
from pipeline.record.coverage import GAP, LEFT_OUT, MISSING, UNFINISHED, Coverage, Finding
from pipeline.record.manifests import manifests, numbers, removed
from pipeline.record.segments import fault
from pipeline.runtime.storage import File, Storage, local_path

SHOWN: Final = 5
"""Findings that a stop names; there may be more."""


@dataclass(frozen=True)
class Look:
    """What lies above the number that is reached."""

    files: list[File]
    to: int
    findings: list[Finding]

    @property
    def surely(self) -> list[Finding]:
        """What is missing and was not left out on request."""
        return [each for each in self.findings if each.kind != LEFT_OUT]


def named(findings: list[Finding]) -> list[str]:
    """The first of what is missing, for people."""
    shown = [each.said for each in findings[:SHOWN]]
    if len(findings) > SHOWN:
        shown.append(f"{len(findings) - SHOWN:,} more")
    return shown


class Unread:
    """One record, as a stream reads it."""

    def __init__(self, source: str, recorded: Storage, skip_corrupt: bool = False) -> None:
        self.source = source
        self.recorded = recorded
        self.skip_corrupt = skip_corrupt
        # Manifests that were read: they do not change.
        self._known: dict[str, dict[str, Any]] = {}

    def look(self, through: int, to: int | None = None, most: int | None = None, begun: bool = True) -> Look | None:
        """What lies above the number `through`, up to `to` where that is given; None where nothing is.

        `most`: so many numbers, or a single segment where that has more. `begun`: whether the stream has read before:
        what retention removed earlier is no matter to it.

        Raises:
            MisuseError: there are no manifests.
            PipelineError: it is another record, or a segment cannot be read.
        """
        # Segments first: who removes one begins with its manifest.
        there = {file.place: file for file in self.recorded.files(".parquet")}
        said = manifests(self.recorded, self._known)
        self._known = said.said
        if there and said.vouched is None:
            raise MisuseError(f"--input {self.source}: no manifests: a stream goes by them (copy _manifests too)")
        gone = removed(self.recorded)
        spans = {place: numbers(about) for place, about in said.said.items() if place not in said.gone}
        ends = sorted({span[1] for span in (*spans.values(), *map(numbers, gone)) if span is not None})
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
        files, left = [], {}
        for place, span in spans.items():
            if span is None or place not in there or span[1] <= through or span[0] > to:
                continue
            why = fault(self.recorded, there[place], said.said[place], self.skip_corrupt)
            if why and not self.skip_corrupt:
                raise PipelineError(f"{there[place].path}: {why}; --skip-corrupt leaves it out")
            if why:
                left[place] = why
            else:
                files.append(there[place])
        account = Coverage(had=through, ignored=frozenset({GAP, UNFINISHED}))
        sizes = {place: file.size for place, file in there.items()}
        account.take(self.source, said, self.recorded, sizes, left, local=local_path(self.source))
        findings = [each for each in account.findings if each.from_seq is not None and each.from_seq <= to]
        if begun:
            findings += self._removed(gone, there, through, to)
        return Look(files, to, findings)

    def _removed(self, gone: list[dict[str, Any]], there: dict[str, File], through: int, to: int) -> list[Finding]:
        """What retention removed before it was read."""
        found = []
        for about in gone:
            span, place = numbers(about), str(about.get("segment"))
            if span is not None and through < span[1] and span[0] <= to and place not in there:
                rows = min(int(about.get("rows") or 0), span[1] - max(span[0] - 1, through))
                why = f"{self.source}: retention removed numbers {span[0]:,} to {span[1]:,} before they were read"
                found.append(Finding(MISSING, place, span[0], span[1], rows, why))
        return found

    def coverage(self, lost: Coverage, through: int) -> Coverage:
        """What the record lacks by now, and what was missing when it was to be read (`lost`)."""
        made = replace(lost, findings=[*lost.findings], kinds=Counter(lost.kinds), had=through)
        there = {file.place: file.size for file in self.recorded.files(".parquet")}
        said = manifests(self.recorded, self._known)
        if there or said.said:
            made.take(self.source, said, self.recorded, there, {}, local=local_path(self.source))
        return made
