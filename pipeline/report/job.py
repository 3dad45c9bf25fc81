"""Rollup, tree, oracle and plan: one after the other.

Owns: which of them can be run on what there is, the page that links theirs, and the verdict over all.

Promises: `fine` only when every job that gives a verdict gave a good one. A job that fails is named on the page, and
the others are run all the same. The page begins with what is so: who lost what and why, what nobody checked, and what
of the record is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from canopy_pages import Page, linked
from pipeline.errors import MisuseError, PipelineError, foreseen, in_a_line
from pipeline.outputs import PAGE, begin, check, finish
from pipeline.record.coverage import Coverage
from pipeline.record.schema import DELIVER
from pipeline.record.segments import Choice, Say, events, reading, unsaid
from pipeline.report.picture import COLUMNS, Picture, draw, picture
from pipeline.runtime.storage import storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT: Final = {
    "rollup": "Messages, bytes, sizes, publishers and latency, by topic, minute and hour",
    "tree": "The topic tree: what is busy, what is hot, what explodes",
    "oracle": "Whether every message went to everybody who should have it, and to nobody else",
    "plan": "Which few topic filters an upstream link should subscribe to, and what that costs",
}


@dataclass
class Part:
    """What one job came to. `fine` None: it gives no verdict."""

    line: str
    fine: bool | None = None
    headline: str = ""
    """What it found of the messages' fate, in sentences; empty where it says nothing of that."""
    good: bool = True
    """Whether the headline has nothing but good to say."""
    name: str = ""
    seconds: float = 0.0


@dataclass
class Outcome:
    """What all jobs came to; `summary.json` has the same names."""

    parts: list[Part] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    picture: Picture = field(default_factory=Picture)

    @property
    def fine(self) -> bool:
        return all(part.fine is not False for part in self.parts)

    def summary(self) -> dict[str, Any]:
        jobs = {part.name: {"fine": part.fine, "said": part.line, "seconds": part.seconds} for part in self.parts}
        headline = [text for text, _ in headlines(self)]
        return {"fine": self.fine, "headline": headline, "jobs": jobs, "coverage": self.coverage.summary()}


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    skip_corrupt: bool = False,
    say: Say = unsaid,
) -> Outcome:
    """Run them all; each has a folder of its own below `output`, and the page beside them is `index.html`.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: there is nothing to read.
    """
    check(inputs, output)
    outcome = Outcome()
    expected: tuple[type[Exception], ...] = (PipelineError, *foreseen())
    place = storage(spark, output)
    for each in ("", *ABOUT):
        begin(storage(spark, f"{output.rstrip('/')}/{each}".rstrip("/")))
    for name, job in _jobs(spark, inputs, output, skip_corrupt, say, outcome).items():
        begun = time.monotonic()
        try:
            found = job()
        except MisuseError:
            raise
        except expected as error:
            found = Part(in_a_line(error), False, good=False)
        found.name, found.seconds = name, round(time.monotonic() - begun, 1)
        outcome.parts.append(found)
        say(f"{name}: {found.line}")
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
    skip_corrupt: bool,
    say: Say,
    outcome: Outcome,
) -> dict[str, Callable[[], Part]]:
    """What can be run, in the order in which people read it."""
    from pipeline.oracle import job as oracle
    from pipeline.plan import job as plan
    from pipeline.rollup import job as rollup
    from pipeline.tree import job as tree

    def to(name: str) -> str:
        return f"{output.rstrip('/')}/{name}"

    def rolled() -> Part:
        return Part(rollup.run(spark, inputs, to("rollup"), skip_corrupt=skip_corrupt, say=say).line())

    def treed() -> Part:
        return Part(tree.run(spark, inputs, to("tree"), skip_corrupt=skip_corrupt, say=say).line())

    def judged() -> Part:
        found = oracle.run(spark, inputs, to("oracle"), skip_corrupt=skip_corrupt, say=say)
        return Part(found.line(), found.fine, *found.headline())

    def planned() -> Part:
        try:
            return Part(plan.run(spark, inputs, to("plan"), skip_corrupt=skip_corrupt, say=say).line())
        except plan.NothingError as error:
            return Part(str(error))

    jobs: dict[str, Callable[[], Part]] = {"rollup": rolled, "tree": treed}
    with reading():
        outcome.picture = picture(events(spark, inputs, Choice(), COLUMNS, skip_corrupt, coverage=outcome.coverage))
    if outcome.picture.of(DELIVER):
        jobs["oracle"] = judged
    else:
        say("oracle: left out, since deliveries were not recorded (recorder.deliveries)")
    jobs["plan"] = planned
    return jobs


def headlines(outcome: Outcome) -> list[tuple[str, str]]:
    """What is so, sentence by sentence, with the tone of each."""
    told: list[tuple[str, str]] = []
    wrong = [part.name for part in outcome.parts if part.fine is False]
    if wrong:
        told.append((f"Something is wrong: see {', '.join(wrong)}.", "bad"))
    told += [(part.headline, "good" if part.good else "bad") for part in outcome.parts if part.headline]
    if not any(part.name == "oracle" for part in outcome.parts):
        told.append(("Nobody checked where messages went: deliveries were not recorded.", "note"))
    return told


def page(outcome: Outcome, inputs: Sequence[str], pages: Container[str] = ()) -> Page:
    """The page that links the others, as far as they are there."""
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
    return made
