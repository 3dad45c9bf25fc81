"""What jobs read of a record, and what of it is missing: for their last lines, their pages and their JSON.

Owns: the account of a record's manifests. Every sequence number from 1 to the last is in a segment that is read, was
removed by retention, or is in a finding: a gap that the recorder named, a segment that is missing, damaged or left out,
a draft that nobody finishes, or a hole that nothing accounts for.

Promises: what it keeps is bounded (`LISTED` findings; all are counted). It changes nothing in the folder.
"""

from __future__ import annotations

import fcntl
import os
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import TYPE_CHECKING, Any, Final

from pipeline.record.manifests import Manifests, is_merged, removed
from pipeline.runtime.storage import MANIFESTS, Storage

if TYPE_CHECKING:
    from canopy_pages import Page

LISTED: Final = 1_000
"""Findings that are kept one by one, for the JSON; beyond that they are only counted."""
SHOWN: Final = 5
"""Findings of a kind that people are told."""

GAP: Final = "gap"
MISSING: Final = "missing"
DAMAGED: Final = "damaged"
LEFT_OUT: Final = "left out"
HOLE: Final = "hole"
UNVOUCHED: Final = "no manifest"
UNFINISHED: Final = "unfinished"

_NAME: Final = re.compile(r"(?:seg-[0-9a-f]+|merged)-(\d+)")
_STATE: Final = Struct("<qq")
_RUNNING: Final = 0
_GAVE_UP: Final = 2
"""`.recorder`: the last number that was given, and how the run ended (docs/recorder.md)."""


@dataclass(frozen=True)
class Finding:
    """Something of a record that was not read; `said` is for people. `to_seq` None: nobody knows how far it goes."""

    kind: str
    segment: str | None
    from_seq: int | None
    to_seq: int | None
    events: int
    said: str


@dataclass(frozen=True)
class _Stretch:
    """Numbers that something accounts for, and when those events happened."""

    first: int
    last: int
    rows: int
    place: str
    begin: datetime | None = None
    end: datetime | None = None


@dataclass
class Coverage:
    """What a job read of all its inputs, and what it did not.

    `since` and `until` (not included) narrow what is asked for: what is surely outside of them is not missed.
    """

    since: datetime | None = None
    until: datetime | None = None
    ignored: frozenset[str] = frozenset()
    """Kinds of findings that are of no matter to the job."""
    had: int = field(default=0, compare=False)
    """The number up to which a stream has read the record before: what went since then is not missed."""
    segments: int = 0
    events: int = 0
    """In the segments that are read, as their manifests say."""
    removed: int = 0
    """Events that retention removed."""
    open: int = 0
    """Events that the recorder, which is at work, has in no finished segment yet."""
    missing: int = 0
    """Events that are in findings, as far as they can be counted."""
    findings: list[Finding] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """How many findings of each kind there are."""

    @property
    def complete(self) -> bool:
        """Whether nothing that was asked for is missing."""
        return not self.kinds

    @property
    def share(self) -> float:
        """The missing events, in per cent of those and the ones that were read."""
        return 100.0 * self.missing / (self.missing + self.events) if self.missing else 0.0

    def add(self, finding: Finding) -> None:
        """Take note of something that is not read."""
        if finding.kind in self.ignored:
            return
        self.kinds[finding.kind] += 1
        self.missing += finding.events
        if len(self.findings) < LISTED:
            self.findings.append(finding)

    def asks(self, about: Mapping[str, Any]) -> bool:
        """Whether a segment may hold events of the times that are asked for, as its manifest says."""
        if self.since is None and self.until is None:
            return True
        stretch = _stretch("", about)
        return stretch is None or self.within(stretch.begin, stretch.end)

    def within(self, begin: datetime | None, end: datetime | None) -> bool:
        """Whether something from `begin` to `end` is within the times that are asked for; None: nobody knows."""
        early = self.since is not None and end is not None and end < self.since
        late = self.until is not None and begin is not None and begin >= self.until
        return not early and not late

    def headline(self) -> str:
        """In a line, whether everything was read."""
        several = "" if self.segments == 1 else "s"
        read = (
            f"{self.events:,} events in {self.segments:,} segment{several} read"
            if self.events
            else f"{self.segments:,} file{several} read"
        )
        if self.complete:
            text = f"the record is complete: {read}"
        elif self.missing:
            text = f"the record is INCOMPLETE: {read}, {self.missing:,} are missing ({self.share:.1f} %)"
        else:
            text = f"the record is INCOMPLETE: {read}, and nobody can say how many are missing"
        if self.removed:
            text += f"; retention removed {self.removed:,} before"
        if self.open:
            text += f"; {self.open:,} are in no finished segment yet"
        return text

    def lines(self) -> list[str]:
        """The headline, and what is missing: `SHOWN` of each kind."""
        told = [self.headline()]
        for kind, count in self.kinds.items():
            shown = [each.said for each in self.findings if each.kind == kind][:SHOWN]
            told += shown
            if count > len(shown):
                told.append(f"{kind}: {count - len(shown):,} more")
        return told

    def show(self, page: Page) -> None:
        """The same on a page."""
        headline, *others = self.lines()
        page.paragraph(f"{headline[:1].upper()}{headline[1:]}.", "note" if self.complete else "bad")
        for line in others:
            page.paragraph(line, "note")

    def summary(self) -> dict[str, Any]:
        """For a job's JSON."""
        return {
            "complete": self.complete,
            "segments": self.segments,
            "events": self.events,
            "missing_events": self.missing,
            "removed_events": self.removed,
            "open_events": self.open,
            "kinds": dict(self.kinds),
            "findings": [asdict(each) for each in self.findings],
        }

    def take(
        self,
        path: str,
        said: Manifests,
        shelf: Storage,
        there: dict[str, int],
        left_out: dict[str, str],
        below: str = "",
        local: Path | None = None,
    ) -> None:
        """Account for one record: `there` are its segments with their sizes in bytes, `left_out` those that are not
        read and why; `below` the day or hour that alone is read. `local`: the record's folder on this machine."""
        _Account(self, path, said, there, left_out, below).settle(removed(shelf), local)


class _Account:
    """The work of `Coverage.take`."""

    def __init__(
        self,
        coverage: Coverage,
        path: str,
        said: Manifests,
        there: dict[str, int],
        left_out: dict[str, str],
        below: str,
    ) -> None:
        self.coverage = coverage
        self.path = path.rstrip("/")
        self.said = said
        self.there = there
        self.left_out = left_out
        self.below = below
        self.held: list[_Stretch] = []
        """Segments, whether they are there or not."""
        self.named: list[_Stretch] = []
        """Gaps."""
        self.dropped: list[_Stretch] = []
        """What retention removed, and the gaps in that."""

    def settle(self, gone: list[dict[str, Any]], local: Path | None) -> None:
        """Find what is missing."""
        for about in gone:
            self._drop(about)
        going = {each.place for each in self.dropped}
        loose = []
        for place, about in self.said.said.items():
            if place in self.said.gone or (place not in self.there and place in going):
                continue
            stretch = _stretch(place, about)
            if stretch is None:
                self.said.spoilt.setdefault(place, "its manifest lacks numbers or times")
                continue
            self.held.append(stretch)
            self._segment(stretch, about)
        for place in self.there:
            known = place in self.said.said and place not in self.said.spoilt
            waits = is_merged(place) and self.said.vouched is not None and place not in self.said.vouched
            if not known and not waits and place not in self.said.gone:
                loose.append(place)
        self.held.sort(key=lambda each: (each.first, each.last))
        if self.said.vouched is None:
            self._unknown()
            return
        noted = _noted(local) if local is not None and not self.below else None
        self._loose(loose, noted is not None and noted[1] == _RUNNING and _at_work(local))
        for gap in self.named:
            if self._asked(gap.place) and self._between(gap.first, gap.last):
                numbers = _numbers(gap.first, gap.last)
                self._find(GAP, None, gap.first, gap.last, gap.rows, f"the recorder lost {numbers}")
        self._inner()
        end = self._outer()
        if noted is not None and noted[0] > end:
            self._tail(end, noted[0], noted[1], local)

    def _segment(self, stretch: _Stretch, about: dict[str, Any]) -> None:
        for gap in about.get("gaps") or ():
            first, last, lost = (int(each) for each in gap)
            self.named.append(_Stretch(first, last, lost, stretch.place))
        place, numbers = stretch.place, _numbers(stretch.first, stretch.last)
        if not self._asked(place) or not self.coverage.within(stretch.begin, stretch.end):
            return
        if place not in self.there:
            self._find(MISSING, place, stretch.first, stretch.last, stretch.rows, f"is not there ({numbers})")
        elif place in self.left_out:
            why = f"left out: {self.left_out[place]} ({numbers})"
            self._find(LEFT_OUT, place, stretch.first, stretch.last, stretch.rows, why)
        else:
            self.coverage.segments += 1
            self.coverage.events += stretch.rows
            if self.there[place] != about.get("bytes"):
                why = f"is {self.there[place]} bytes, and its manifest says {about.get('bytes')}"
                self._find(DAMAGED, place, stretch.first, stretch.last, 0, why)

    def _drop(self, about: dict[str, Any]) -> None:
        stretch = _stretch(str(about.get("segment")), about)
        if stretch is None:
            return
        self.dropped.append(stretch)
        if self._asked(stretch.place) and self.coverage.within(stretch.begin, stretch.end):
            self.coverage.removed += stretch.rows
        for gap in about.get("gaps") or ():
            first, last, lost = (int(each) for each in gap)
            self.dropped.append(_Stretch(first, last, lost, stretch.place))

    def _unknown(self) -> None:
        """Nothing vouches for anything: copies without manifests."""
        self.coverage.segments += len(self.there) - len(self.left_out)
        for place, why in self.left_out.items():
            self._find(LEFT_OUT, place, None, None, 0, f"left out: {why}")
        why = f"{self.path}: no manifests: nobody can tell what is missing (copy {MANIFESTS} too)"
        self.coverage.add(Finding(UNVOUCHED, None, None, None, 0, why))

    def _loose(self, places: list[str], running: bool) -> None:
        """Segments without a usable manifest; the recorder writes it after the segment."""
        last = max((each.last for each in self.held), default=0)
        firsts = sorted(each.first for each in self.held)
        for place in places:
            named = _NAME.match(place.rpartition("/")[2])
            first = int(named[1]) if named is not None else None
            if first is not None:
                after = bisect_right(firsts, first)
                # It goes on to where the next one begins, as far as anybody knows.
                end = firsts[after] - 1 if after < len(firsts) else first
                self.held.append(_Stretch(first, end, 0, place))
            if place in self.left_out:
                self._find(LEFT_OUT, place, first, None, 0, f"left out: {self.left_out[place]}")
                continue
            self.coverage.segments += 1
            if running and first is not None and first > last and place not in self.said.spoilt:
                continue
            why = self.said.spoilt.get(place, "it has no manifest")
            self._find(UNVOUCHED, place, first, None, 0, f"{why}: nobody can tell what it should hold")
        self.held.sort(key=lambda each: (each.first, each.last))

    def _inner(self) -> None:
        """Numbers that a segment spans and does not hold."""
        others = sorted((*self.named, *self.dropped), key=lambda each: each.first)
        begins = [each.first for each in others]
        rows = sorted(self.held, key=lambda each: each.first)
        firsts = [each.first for each in rows]
        for at in rows:
            if not at.rows or not self._asked(at.place) or not self.coverage.within(at.begin, at.end):
                continue
            short = at.last - at.first + 1 - at.rows
            if short <= 0:
                continue
            inside = others[bisect_left(begins, at.first) : bisect_right(begins, at.last)]
            inside += [e for e in rows[bisect_left(firsts, at.first) : bisect_right(firsts, at.last)] if e is not at]
            short -= sum(min(each.rows, at.last - each.first + 1) for each in inside)
            if short > 0:
                why = f"lacks {short:,} events of {_numbers(at.first, at.last)}, and no gap names them"
                self._find(HOLE, at.place, at.first, at.last, short, why)

    def _outer(self) -> int:
        """Numbers between all that is accounted for; the last one that is."""
        end, before = 0, ""
        for each in sorted((*self.held, *self.named, *self.dropped), key=lambda each: each.first):
            if each.first > end + 1:
                asked = self._asked(each.place) or (before != "" and self._asked(before))
                # A day that alone is read begins where it begins.
                if asked and (before or not self.below) and self._between(end + 1, each.first - 1):
                    numbers = _numbers(end + 1, each.first - 1)
                    lost = each.first - end - 1
                    self._find(
                        HOLE, None, end + 1, each.first - 1, lost, f"{numbers} are missing, and no gap names them"
                    )
            if each.last > end:
                end, before = each.last, each.place
        return end

    def _tail(self, end: int, last: int, ended: int, local: Path | None) -> None:
        """Numbers that the recorder gave, and that are in no finished segment."""
        if not self._between(end + 1, last):
            return
        numbers, lost = _numbers(end + 1, last), last - end
        if ended == _RUNNING and _at_work(local):
            self.coverage.open += lost
        elif ended == _RUNNING:
            why = f"{numbers} are in no finished segment, and no recorder is at work (its next start names them)"
            self._find(UNFINISHED, None, end + 1, last, lost, why)
        elif ended == _GAVE_UP:
            self._find(UNFINISHED, None, end + 1, last, lost, f"{numbers} were never written: the recorder gave up")
        else:
            self._find(HOLE, None, end + 1, last, lost, f"{numbers} are missing, and the recorder had written them")

    def _find(self, kind: str, place: str | None, first: int | None, last: int | None, lost: int, why: str) -> None:
        if kind != GAP and first is not None and (first if last is None else last) <= self.coverage.had:
            return
        where = f"{self.path}: " if place is None else f"{self.path.removesuffix(self.below).rstrip('/')}/{place}: "
        self.coverage.add(Finding(kind, place, first, last, lost, where + why))

    def _asked(self, place: str) -> bool:
        return not self.below or place.startswith(f"{self.below}/")

    def _between(self, first: int, last: int) -> bool:
        """Whether events of these numbers may have happened when it matters: between their neighbours."""
        if self.coverage.since is None and self.coverage.until is None:
            return True
        ends = [each.end for each in self.held if each.last < first and each.end is not None]
        begins = [each.begin for each in self.held if each.first > last and each.begin is not None]
        # What lies inside of a segment happened in its time.
        around = [each for each in self.held if each.first <= first and each.last >= last and each.begin and each.end]
        if around:
            return any(self.coverage.within(each.begin, each.end) for each in around)
        return self.coverage.within(max(ends, default=None), min(begins, default=None))


def _stretch(place: str, about: Mapping[str, Any]) -> _Stretch | None:
    try:
        times = [datetime.fromisoformat(about[name]) for name in ("first_ts", "last_ts")]
        begin, end = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in times)
        for gap in about.get("gaps") or ():
            _, _, _ = (int(each) for each in gap)
        return _Stretch(int(about["from_seq"]), int(about["to_seq"]), int(about["rows"]), place, begin, end)
    except (KeyError, ValueError, TypeError):
        return None


def _noted(local: Path) -> tuple[int, int] | None:
    """The last number that the recorder gave, and how its run ended; None in a copy."""
    try:
        last, ended = _STATE.unpack_from((local / ".recorder").read_bytes())
    except (OSError, StructError):
        return None
    return last, ended


def _at_work(local: Path | None) -> bool:
    """Whether a recorder holds the folder's lock."""
    if local is None:
        return False
    try:
        number = os.open(local / ".recorder", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, and given back at once: two jobs that look do not see each other.
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def _numbers(first: int, last: int) -> str:
    return f"number {first:,}" if first == last else f"numbers {first:,} to {last:,}"


def left_out(paths: Iterable[tuple[str, str]], read: int) -> Coverage:
    """The coverage of files without manifests, as a load run's: `paths` were left out (path, why), `read` were not."""
    made = Coverage(segments=read)
    for path, why in paths:
        made.add(Finding(LEFT_OUT, path, None, None, 0, f"{path}: left out: {why}"))
    return made
