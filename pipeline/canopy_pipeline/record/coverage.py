"""The part of a record that a job read, and the missing part: for its last lines, its page and its JSON.

Owns the findings, their sums, and the words for them; `account` finds them.

Promises: what it keeps is bounded (`LISTED` findings; all are counted).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from canopy_mqtt.words import counted

if TYPE_CHECKING:
    from canopy_mqtt.pages import Page

LISTED: Final = 1_000
"""Findings that are kept one by one, for the JSON; beyond that they are only counted."""
SHOWN: Final = 5
"""Findings of a kind that are shown to people."""

Kind = Literal["gap", "missing", "damaged", "hole", "no manifest", "unfinished", "twice", "copy", "moved", "strange"]
"""What a finding is (docs/pipeline.md). `twice`: in two segments, both of which are read. `copy`: a file with the
content of another one. `strange`: a file that is no segment of a recorder. These two are not read."""

_HARMLESS: Final = frozenset({"twice", "copy", "moved", "strange"})
"""Of which nothing is missing."""


@dataclass(frozen=True)
class Finding:
    """A part of a record that was not read; `said` is for people. `to_seq` None: its end is not known."""

    kind: Kind
    segment: str | None
    from_seq: int | None
    to_seq: int | None
    events: int
    said: str


@dataclass
class Coverage:
    """The events that a job read of all its inputs, and the missing ones.

    `since` and `until` (not included) narrow the wanted times: events that are surely outside of them are not missed.
    """

    since: datetime | None = None
    until: datetime | None = None
    ignored: frozenset[Kind] = frozenset()
    """Kinds of findings that are of no matter to the job."""
    had: int = field(default=0, compare=False)
    """The number up to which a stream has read the record before; numbers removed since then are not missed."""
    segments: int = 0
    events: int = 0
    """In the segments that are read, as their manifests say."""
    removed: int = 0
    """Events that retention removed."""
    open: int = 0
    """Events that the recorder, which is at work, has in no finished segment yet."""
    missing: int = 0
    """Events that are in findings, as far as they can be counted."""
    twice: int = 0
    """Events that are read more than once."""
    end: int = 0
    """The last number that is accounted for."""
    up_to: list[int] = field(default_factory=list)
    """The last numbers of records that may go on: copies, in which no note of the recorder's says where it ended."""
    findings: list[Finding] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of findings of each kind."""

    @property
    def complete(self) -> bool:
        """True if nothing of the wanted times is missing."""
        return not self.kinds

    @property
    def nothing_missing(self) -> bool:
        """True if nothing can be missing; files may be there twice, or where they do not belong."""
        return self.kinds.keys() <= _HARMLESS

    @property
    def share(self) -> float:
        """The missing events, in per cent of those and the ones that were read."""
        return 100.0 * self.missing / (self.missing + self.events) if self.missing else 0.0

    def add(self, finding: Finding) -> None:
        if finding.kind in self.ignored:
            return
        self.kinds[finding.kind] += 1
        if finding.kind == "twice":
            self.twice += finding.events
        else:
            self.missing += finding.events
        if len(self.findings) < LISTED:
            self.findings.append(finding)

    def beside(self, other: Coverage) -> Coverage:
        """Return this and the same of another record together."""
        both = replace(self, findings=[*self.findings, *other.findings][:LISTED], kinds=self.kinds + other.kinds)
        both.up_to = [*self.up_to, *other.up_to]
        for name in ("segments", "events", "removed", "open", "missing", "twice"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def without(self, first: int, last: int) -> Coverage:
        """The same, as if these numbers had not been missing."""
        made = Coverage(self.since, self.until, self.ignored, self.had, self.segments, self.events)
        listed = Counter[str](each.kind for each in self.findings)
        made.kinds.update({kind: count - listed[kind] for kind, count in self.kinds.items() if count > listed[kind]})
        made.missing = self.missing - sum(each.events for each in self.findings if each.kind != "twice")
        made.twice = self.twice
        for each in self.findings:
            begin, end = each.from_seq, each.to_seq if each.to_seq is not None else each.from_seq
            if each.kind == "twice":
                made.kinds["twice"] += 1
                made.findings.append(each)
            elif begin is None or end is None or end < first or begin > last:
                made.add(each)
            elif begin < first or end > last:
                back = min(end, last) - max(begin, first) + 1
                left = max(each.events - back, 0)
                said = f"{each.said}; {back:,} of them are there again"
                if left:
                    made.add(replace(each, events=left, said=said))
        return made

    def asks(self, about: Mapping[str, Any]) -> bool:
        """Return True if a segment may hold events of the wanted times, as its manifest says."""
        if self.since is None and self.until is None:
            return True
        # Not above: the commands are there without pyarrow.
        from canopy_pipeline.record.manifests import times

        when = times(about)
        return when is None or self.within(*when)

    def within(self, begin: datetime | None, end: datetime | None) -> bool:
        """Return True if events from `begin` to `end` may lie within the wanted times; None: not known."""
        early = self.since is not None and end is not None and end < self.since
        late = self.until is not None and begin is not None and begin >= self.until
        return not early and not late

    def headline(self) -> str:
        """Say in a line if everything was read."""
        read = (
            f"{counted(self.events, 'event')} in {counted(self.segments, 'segment')} read"
            if self.events
            else f"{counted(self.segments, 'file')} read"
        )
        if self.complete:
            ends = " and ".join(f"{each:,}" for each in self.up_to)
            text = f"the record is complete{f' up to number {ends}' if ends else ''}: {read}"
        elif self.missing:
            missing = f"{self.missing:,} {'is' if self.missing == 1 else 'are'}"
            text = f"the record is INCOMPLETE: {read}, {missing} missing ({self.share:.1f} %)"
        elif self.nothing_missing:
            text = f"the record is NOT IN ORDER: {read}, none is missing"
        else:
            text = f"the record is INCOMPLETE: {read}, and nobody can say how many are missing"
        if self.twice:
            text += f"; {self.twice:,} are there twice"
        if self.removed:
            text += f"; retention removed {self.removed:,} before"
        if self.open:
            text += f"; {self.open:,} are in no finished segment yet"
        return text

    def sentence(self) -> str:
        """Return the headline as a sentence."""
        text = self.headline()
        return f"{text[:1].upper()}{text[1:]}."

    def lines(self) -> list[str]:
        """Return the headline and the findings: `SHOWN` of each kind."""
        told = [self.headline()]
        for kind, count in self.kinds.items():
            shown = [each.said for each in self.findings if each.kind == kind][:SHOWN]
            told += shown
            if count > len(shown):
                told.append(f"{kind}: {count - len(shown):,} more")
        return told

    def show(self, page: Page) -> None:
        """Put headline and findings on a page."""
        page.paragraph(self.sentence(), "note" if self.complete else "bad")
        for line in self.lines()[1:]:
            page.paragraph(line, "note")

    def summary(self) -> dict[str, Any]:
        """For a job's JSON."""
        return {
            "complete": self.complete,
            "segments": self.segments,
            "events": self.events,
            "up_to": self.up_to,
            "missing_events": self.missing,
            "twice_events": self.twice,
            "removed_events": self.removed,
            "open_events": self.open,
            "kinds": dict(self.kinds),
            "findings": [asdict(each) for each in self.findings],
        }
