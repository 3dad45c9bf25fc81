"""Rollup, tree, oracle and plan: one after the other.

Owns: the choice of jobs for a record, the page that links theirs, and the verdict over all.

Promises: `fine` only when every job that gives a verdict gave a good one. A job that fails is named on the page, and
the others run all the same. The page begins with the findings: losses by publisher, receiver and cause, unchecked
parts, and missing parts of the record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.pages import Page, linked
from canopy_pipeline.errors import MisuseError, PipelineError, foreseen, in_a_line
from canopy_pipeline.outputs import PAGE, SUMMARY, begin, check, finish
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.events_schema import DELIVER, ERASED
from canopy_pipeline.record.segments import Choice, Say, events, reading, unsaid
from canopy_pipeline.report.picture import COLUMNS, Picture, draw, picture
from canopy_pipeline.runtime.storage import storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES: Final = "tables"
"""The folder of payload tables below the output that the page shows, where `canopy pipeline tables` wrote some."""
ABOUT: Final = {
    "rollup": "Messages, bytes, sizes, publishers and latency, by topic, minute and hour",
    "tree": "The topic tree: what is busy, what is hot, what explodes",
    "oracle": "Whether every message went to everybody who should have it, and to nobody else",
    "plan": "Which few topic filters an upstream link should subscribe to, and what that costs",
}


@dataclass
class JobResult:
    """The result of one job. `fine` None: it gives no verdict."""

    line: str
    fine: bool | None = None
    headline: str = ""
    """Its finding on the messages' fate, in sentences; empty if it has none."""
    good: bool = True
    """True if the headline has nothing but good to say."""
    name: str = ""
    seconds: float = 0.0


@dataclass
class ReportOutcome:
    """The results of all jobs; `summary.json` has the same names."""

    parts: list[JobResult] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    picture: Picture = field(default_factory=Picture)
    tables: dict[str, Any] = field(default_factory=dict)
    """The summary of payload tables in the output folder; empty if there are none."""

    @property
    def why_unchecked(self) -> str:
        """Why it is not checked where messages went."""
        return "deliveries were erased" if self.picture.of(ERASED) else "deliveries were not recorded"

    @property
    def fine(self) -> bool:
        return all(part.fine is not False for part in self.parts)

    def summary(self) -> dict[str, Any]:
        jobs = {part.name: {"fine": part.fine, "said": part.line, "seconds": part.seconds} for part in self.parts}
        headline = [text for text, _ in headlines(self)]
        if not self.coverage.complete:
            headline.append(self.coverage.sentence())
        return {"fine": self.fine, "headline": headline, "jobs": jobs, "coverage": self.coverage.summary()}


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    say: Say = unsaid,
) -> ReportOutcome:
    """Run all jobs, each into a folder of its own below `output`; the page beside them is `index.html`.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: there is nothing to read.
    """
    check(inputs, output)
    outcome = ReportOutcome()
    expected: tuple[type[Exception], ...] = (PipelineError, *foreseen())
    place = storage(spark, output)
    for each in ("", *ABOUT):
        begin(storage(spark, f"{output.rstrip('/')}/{each}".rstrip("/")))
    for name, job in _jobs(spark, inputs, output, say, outcome).items():
        begun = time.monotonic()
        try:
            found = job()
        except MisuseError:
            raise
        except expected as error:
            found = JobResult(in_a_line(error), False, good=False)
        found.name, found.seconds = name, round(time.monotonic() - begun, 1)
        outcome.parts.append(found)
        say(f"{name}: {found.line}")
    with suppress(FileNotFoundError, ValueError):
        outcome.tables = dict(json.loads(place.text(f"{TABLES}/{SUMMARY}")))
    # At the top of each page are links to the others, of those that are there.
    drawn: dict[str, str] = {}
    for part in outcome.parts:
        with suppress(FileNotFoundError):
            drawn[part.name] = place.text(f"{part.name}/{PAGE}")
    pages = {"overview": PAGE} | {name: f"{name}/{PAGE}" for name in drawn}
    for name, text in drawn.items():
        links = {each: f"../{where}" for each, where in pages.items()}
        place.write(f"{name}/{PAGE}", linked(text, links, name).encode())
    finish(place, outcome.summary(), linked(page(outcome, inputs, pages).html(), pages, "overview"))
    return outcome


def _jobs(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    say: Say,
    outcome: ReportOutcome,
) -> dict[str, Callable[[], JobResult]]:
    """Return the jobs that can run, in the order in which people read their results."""
    from canopy_pipeline.oracle import oracle_job as oracle
    from canopy_pipeline.plan import plan_job as plan
    from canopy_pipeline.rollup import rollup_job as rollup
    from canopy_pipeline.tree import tree_job as tree

    def to(name: str) -> str:
        return f"{output.rstrip('/')}/{name}"

    def rolled() -> JobResult:
        return JobResult(rollup.run(spark, inputs, to("rollup"), say=say).line())

    def treed() -> JobResult:
        return JobResult(tree.run(spark, inputs, to("tree"), say=say).line())

    def judged() -> JobResult:
        found = oracle.run(spark, inputs, to("oracle"))
        return JobResult(found.line(), found.fine, *found.headline())

    def planned() -> JobResult:
        try:
            return JobResult(plan.run(spark, inputs, to("plan")).line())
        except plan.NothingError as error:
            return JobResult(str(error))

    jobs: dict[str, Callable[[], JobResult]] = {"rollup": rolled, "tree": treed}
    with reading():
        outcome.picture = picture(events(spark, inputs, Choice(), COLUMNS, coverage=outcome.coverage))
    if outcome.picture.of(DELIVER):
        jobs["oracle"] = judged
    else:
        say(f"oracle: left out, since {outcome.why_unchecked} (recorder.deliveries)")
    jobs["plan"] = planned
    return jobs


def headlines(outcome: ReportOutcome) -> list[tuple[str, str]]:
    """Return the sentences at the top of the page, with the tone of each."""
    told: list[tuple[str, str]] = []
    wrong = [part.name for part in outcome.parts if part.fine is False]
    if wrong:
        told.append((f"Something is wrong: see {', '.join(wrong)}.", "bad"))
    told += [(part.headline, "good" if part.good else "bad") for part in outcome.parts if part.headline]
    if not any(part.name == "oracle" for part in outcome.parts):
        told.append((f"Nobody checked where messages went: {outcome.why_unchecked}.", "note"))
    return told


def page(outcome: ReportOutcome, inputs: Sequence[str], pages: Container[str] = ()) -> Page:
    """Return the page that links the others, as far as they exist."""
    made = Page("What was recorded", " ".join(inputs))
    for text, tone in headlines(outcome):
        made.paragraph(text, tone)
    outcome.coverage.show(made)
    draw(made, outcome.picture)
    for part in outcome.parts:
        made.heading(part.name)
        made.paragraph(ABOUT[part.name], "note")
        made.paragraph(part.line, "bad" if part.fine is False else "")
        if part.name in pages:
            made.links({f"{part.name} ({part.seconds:.1f} s)": f"{part.name}/index.html"})
    if outcome.tables:
        made.heading(TABLES)
        made.paragraph(f"Rows that were made of payloads, up to number {outcome.tables['through']:,}.", "note")
        dead = outcome.tables["dead_letters"]
        made.table(
            ["table", "rows", "dead letters", "of these"],
            [
                [
                    name,
                    rows,
                    sum(dead.get(name, {}).values()),
                    ", ".join(f"{n:,} {why}" for why, n in dead.get(name, {}).items()),
                ]
                for name, rows in outcome.tables["rows"].items()
            ],
        )
        made.paragraph(
            "A dead letter is a payload that does not fit: a row of the table dead_letters says why.", "note"
        )
    return made
