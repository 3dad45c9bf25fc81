"""The account of a record's sequence numbers: each is in a segment, removed, or missing.

Owns the account: every number from 1 to the last is in one segment that is read, was removed by retention, or is in a
finding: a gap that the recorder named, a segment that is missing or damaged, an abandoned draft, a hole that
nothing accounts for; or it is in two segments. The jobs account by what manifests say, and `canopy record verify` by
what is in the files.

Promises: it changes nothing in the folder. Numbers of two records in one folder do not fill each other's holes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.folder import GAVE_UP, NAME, RUNNING, at_work, noted
from canopy_pipeline.record.chosen_files import ChosenFiles
from canopy_pipeline.record.coverage import Coverage, Finding, Kind
from canopy_pipeline.record.manifests import numbers, recorded_gaps, times
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.runtime.storage import MANIFESTS

SPANS: Final = "spans"
"""In place of a manifest: the unbroken stretches of numbers in a segment."""
BARE: Final = "bare"
"""In place of a manifest: there is none."""


@dataclass(frozen=True)
class _Stretch:
    """A stretch of accounted numbers, and the time of their events."""

    first: int
    last: int
    rows: int
    place: str
    begin: datetime | None = None
    end: datetime | None = None
    runs: tuple[str, ...] = ()
    """The runs of the broker that they are of, in order."""


def account(coverage: Coverage, path: str, chosen: ChosenFiles, local: Path | None = None) -> None:
    """Add one record to a coverage; `local`: its folder on this machine."""
    _Account(coverage, path, chosen).settle(local)


class _Account:
    def __init__(self, coverage: Coverage, path: str, chosen: ChosenFiles) -> None:
        self.coverage = coverage
        self.path = path.rstrip("/")
        self.chosen = chosen
        self.said = chosen.said
        self.there = chosen.there
        self.held: list[_Stretch] = []
        """Segments, whether they are there or not."""
        self.named: list[_Stretch] = []
        """Gaps."""
        self.dropped: list[_Stretch] = []
        """The numbers that retention removed, and the gaps in them."""

    def settle(self, local: Path | None) -> None:
        """Find the numbers that are missing, and those that are there twice."""
        for about in self.said.removed:
            self._drop(about)
        for place, original in self.chosen.copies.items():
            self._find("copy", place, None, None, 0, f"holds the same as {original}: not read")
        for place in self.chosen.strange:
            self._find("strange", place, None, None, 0, "is no segment of a recorder: not read")
        if self.said.vouched is None and self.there:
            self.coverage.segments += len(self.chosen.read)
            why = f"{self.path}: no manifests: nobody can tell what is missing (copy {MANIFESTS} too)"
            self.coverage.add(Finding("no manifest", None, None, None, 0, why))
            return
        loose = []
        for place in self.chosen.read:
            told = self.chosen.about(place)
            if told is None or not self._segment(place, told) or BARE in told:
                loose.append(place)
        self._missing()
        last, ended = (noted(local) if local is not None else None) or (0, None)
        running = local is not None and ended == RUNNING and at_work(local)
        self._loose(loose, running)
        self.held.sort(key=lambda each: (each.first, each.last))
        for gap in self.named:
            if self._between(gap.first, gap.last):
                self._find(
                    "gap", None, gap.first, gap.last, gap.rows, f"the recorder lost {_numbers(gap.first, gap.last)}"
                )
        self._inner()
        mixed = self._twice()
        end = self._outer(self.held)
        for run in sorted(mixed):
            # Another record's numbers are in its holes.
            self._outer([each for each in self.held if run in each.runs], run)
        self.coverage.end = end
        if last > end:
            self._tail(end, last, ended, running)
        elif end and last < end:
            self.coverage.up_to.append(end)

    def _segment(self, place: str, about: dict[str, Any]) -> bool:
        """Add a segment that is there; return False if its manifest does not say enough."""
        stretches = _stretches(place, about)
        if not stretches:
            self.said.spoilt.setdefault(place, "its manifest lacks numbers or times")
            return False
        self._hold(stretches, about)
        first, last, rows = stretches[0].first, stretches[-1].last, sum(each.rows for each in stretches)
        which = _numbers(first, last)
        if not self.coverage.within(stretches[0].begin, stretches[0].end):
            return True
        self.coverage.segments += 1
        self.coverage.events += rows
        if self.there[place] != about.get("bytes"):
            why = f"is {self.there[place]} bytes, and its manifest says {about.get('bytes')}"
            self._find("damaged", place, first, last, 0, why)
        if (origin := self.chosen.origins.get(place)) is not None:
            self._find("moved", place, first, last, 0, f"is read here, and its manifest says {origin} ({which})")
        return True

    def _hold(self, stretches: list[_Stretch], about: dict[str, Any]) -> None:
        self.held += stretches
        for first, last, lost in recorded_gaps(about):
            self.named.append(_Stretch(first, last, lost, stretches[0].place, runs=stretches[0].runs))

    def _missing(self) -> None:
        """Add the segments that manifests name and that are nowhere."""
        accounted = {*self.there, *self.said.gone, *self.chosen.found}
        going = {each.place for each in self.dropped}
        for place, about in self.said.said.items():
            if place in accounted or place in going or not (stretches := _stretches(place, about)):
                continue
            self._hold(stretches, about)
            if self.coverage.within(stretches[0].begin, stretches[0].end):
                first, last, rows = stretches[0].first, stretches[-1].last, sum(each.rows for each in stretches)
                self._find("missing", place, first, last, rows, f"is not there ({_numbers(first, last)})")

    def _drop(self, about: dict[str, Any]) -> None:
        place, span = str(about.get("segment")), numbers(about)
        bare = [] if span is None else [_Stretch(*span, int(about.get("rows") or 0), place)]
        for stretch in _stretches(place, about) or bare:
            self.dropped.append(stretch)
            if self.coverage.within(stretch.begin, stretch.end):
                self.coverage.removed += stretch.rows
            for first, last, lost in recorded_gaps(about):
                self.dropped.append(_Stretch(first, last, lost, place, runs=stretch.runs))

    def _loose(self, places: list[str], running: bool) -> None:
        """Add the segments without a usable manifest; the recorder writes it after the segment."""
        known, wanted = {each.place for each in self.held}, set(places)
        last = max((each.last for each in self.held if each.place not in wanted), default=0)
        firsts = sorted(each.first for each in self.held)
        for place in places:
            named = NAME.match(place.rpartition("/")[2])
            first = int(named[1]) if named is not None else None
            if first is not None and place not in known:
                after = bisect_right(firsts, first)
                # It goes on to where the next one begins, as far as anybody knows.
                end = firsts[after] - 1 if after < len(firsts) else first
                self.held.append(_Stretch(first, end, 0, place))
            self.coverage.segments += place not in known
            if running and first is not None and first > last and place not in self.said.spoilt:
                continue
            why = self.said.spoilt.get(place, "it has no manifest")
            then = "the recorder's next start writes it" if place in known else "nobody can tell what it should hold"
            self._find("no manifest", place, first, None, 0, f"{why}: {then}")

    def _inner(self) -> None:
        """Find numbers that a segment spans and does not hold, or holds although a gap names them."""
        named, dropped = _Overlaps(self.named), _Overlaps(self.dropped)
        firsts = [each.first for each in self.held]
        for number, at in enumerate(self.held):
            if not at.rows or not self.coverage.within(at.begin, at.end):
                continue
            short = at.last - at.first + 1 - at.rows - named.rows(at)
            if is_merged(at.place):
                # What was missing when it was merged, and is there again.
                among = self.held[number + 1 : bisect_right(firsts, at.last)]
                short -= sum(each.rows for each in among if each.last <= at.last)
            which = _numbers(at.first, at.last)
            if short < 0:
                why = f"holds {-short:,} events of {which} that are named as lost, or are in another segment, too"
                self._find("twice", at.place, at.first, at.last, -short, why)
            elif short and (short := short - dropped.rows(at)) > 0:
                why = f"lacks {short:,} events of {which}, and no gap names them"
                self._find("hole", at.place, at.first, at.last, short, why)

    def _twice(self) -> set[str]:
        """Find numbers that are in two segments; return the runs whose numbers overlap another run's."""
        mixed: set[str] = set()
        reach: _Stretch | None = None
        for each in self.held:
            if reach is not None and each.first <= reach.last and each.rows and reach.rows:
                # What lies in the midst of a merged one may be what was missing when that was made: `_inner` counts.
                if not is_merged(reach.place) or each.last > reach.last or each.place == reach.place:
                    last = min(each.last, reach.last)
                    lost = min(last - each.first + 1, each.rows, reach.rows)
                    where = "" if reach.place == each.place else f", and in {reach.place}"
                    if self._between(each.first, last):
                        why = f"{_are(_numbers(each.first, last))} in it{where or ' twice'}"
                        self._find("twice", each.place, each.first, last, lost, why)
                if reach.runs != each.runs:
                    mixed.update(reach.runs, each.runs)
            if reach is None or each.last > reach.last:
                reach = each
        return mixed

    def _outer(self, held: Iterable[_Stretch], run: str = "") -> int:
        """Find numbers between all that is accounted for; return the last one that is. `run`: of that run alone, and
        only what is in another run's segments."""
        others = [each for each in (*self.named, *self.dropped) if not run or run in each.runs]
        known = Numbers((each.first, each.last) for each in (*held, *others))
        if not known:
            return 0
        for first, last in Numbers([(known.first if run else 1, known.last)]).without(known):
            hidden = not run or any(each.first <= first and each.last >= last for each in self.held)
            if hidden and self._between(first, last):
                which = _are(_numbers(first, last), f" of the run {run}" if run else "")
                self._find("hole", None, first, last, last - first + 1, f"{which} missing, and no gap names them")
        return known.last

    def _tail(self, end: int, last: int, ended: int | None, running: bool) -> None:
        """Find numbers that the recorder gave and that are in no finished segment."""
        if not self._between(end + 1, last):
            return
        which, lost = _numbers(end + 1, last), last - end
        if running:
            self.coverage.open += lost
        elif ended == RUNNING:
            why = f"{_are(which)} in no finished segment, and no recorder is at work (its next start names them)"
            self._find("unfinished", None, end + 1, last, lost, why)
        elif ended == GAVE_UP:
            self._find("unfinished", None, end + 1, last, lost, f"{_are(which)} not written: the recorder gave up")
        else:
            self._find("hole", None, end + 1, last, lost, f"{_are(which)} missing, and the recorder had written them")

    def _find(self, kind: Kind, place: str | None, first: int | None, last: int | None, lost: int, why: str) -> None:
        if kind != "gap" and first is not None and (first if last is None else last) <= self.coverage.had:
            return
        where = f"{self.path}: " if place is None else f"{self.path}/{place}: "
        self.coverage.add(Finding(kind, place, first, last, lost, where + why))

    def _between(self, first: int, last: int) -> bool:
        """Return True if events of these numbers, between their neighbours, may have happened in the wanted times."""
        if self.coverage.since is None and self.coverage.until is None:
            return True
        ends = [each.end for each in self.held if each.last < first and each.end is not None]
        begins = [each.begin for each in self.held if each.first > last and each.begin is not None]
        # What lies inside of a segment happened in its time.
        around = [each for each in self.held if each.first <= first and each.last >= last and each.begin and each.end]
        if around:
            return any(self.coverage.within(each.begin, each.end) for each in around)
        return self.coverage.within(max(ends, default=None), min(begins, default=None))


class _Overlaps:
    """Stretches, to be asked for those that overlap another one; they do not overlap each other."""

    def __init__(self, stretches: Iterable[_Stretch]) -> None:
        self._all = sorted(stretches, key=lambda each: each.first)
        self._firsts = [each.first for each in self._all]

    def rows(self, at: _Stretch) -> int:
        """Return the number of their events within another stretch, at most."""
        begin = bisect_left(self._firsts, at.first)
        if begin and self._all[begin - 1].last >= at.first:
            begin -= 1
        found = self._all[begin : bisect_right(self._firsts, at.last)]
        return sum(min(each.rows, min(each.last, at.last) - max(each.first, at.first) + 1) for each in found)


def _stretches(place: str, about: Mapping[str, Any]) -> list[_Stretch]:
    """Return the numbers that a segment holds; empty if its manifest does not say."""
    when = times(about)
    if when is None:
        return []
    try:
        runs = tuple(str(each) for each in about.get("runs") or [about.get("run_id")])
        spans = about.get(SPANS)
        if spans is not None:
            return [_Stretch(first, last, last - first + 1, place, *when, runs) for first, last in spans]
        return [_Stretch(int(about["from_seq"]), int(about["to_seq"]), int(about["rows"]), place, *when, runs)]
    except (KeyError, ValueError, TypeError):
        return []


def _numbers(first: int, last: int) -> str:
    return f"number {first:,}" if first == last else f"numbers {first:,} to {last:,}"


def _are(which: str, of: str = "") -> str:
    return f"{which}{of} {'is' if which.startswith('number ') else 'are'}"
