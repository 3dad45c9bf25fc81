"""Rollup, tree, oracle, plan and, where there are the records of a load run, loadtest: one after the other.

Owns: which of them can be run on what there is, the page that links theirs, and the verdict over all.

Promises: `fine` only when every job that gives a verdict gave a good one. A job that fails is named on the page, and
the others are run all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from pipeline.errors import MisuseError, PipelineError, foreseen, in_a_line
from pipeline.outputs import Results, check
from pipeline.pages import Page
from pipeline.schema import DELIVER
from pipeline.segments import Choice, Say, events, reading, unsaid
from pipeline.storage import storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT: Final = {
    "rollup": "Messages, bytes, sizes, publishers and latency, by topic, minute and hour",
    "tree": "The topic tree: what is busy, what is hot, what explodes",
    "oracle": "Whether every message went to everybody who should have it, and to nobody else",
    "loadtest": "The load run, worked out again from every single message",
    "plan": "Which few topic filters an upstream link should subscribe to, and what that costs",
}

FAULTS: Final = ("lost", "duplicates", "reordered", "altered")
"""What no delivery of a load run may be, for the verdict to be good."""


@dataclass
class Part:
    """What one job came to. `fine` None: it gives no verdict."""

    name: str
    line: str
    seconds: float
    fine: bool | None = None


@dataclass
class Outcome:
    """What all jobs came to; `summary.json` has the same names."""

    parts: list[Part] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        """Whether the exit code is 0."""
        return all(part.fine is not False for part in self.parts)

    def summary(self) -> dict[str, Any]:
        """For `summary.json`."""
        jobs = {part.name: {"fine": part.fine, "said": part.line, "seconds": part.seconds} for part in self.parts}
        return {"fine": self.fine, "jobs": jobs}


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    load: str | None = None,
    skip_corrupt: bool = False,
    say: Say = unsaid,
) -> Outcome:
    """Run them all; each has a folder of its own below `output`, and the page beside them is `index.html`.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: there is nothing to read.
    """
    check(inputs, output)
    if load is not None and not storage(spark, load).exists():
        raise MisuseError(f"--load {load}: no such folder")
    outcome = Outcome()
    expected: tuple[type[Exception], ...] = (PipelineError, *foreseen())
    results = Results(spark, output)
    for name, job in _jobs(spark, inputs, output, load, skip_corrupt, say).items():
        begun = time.monotonic()
        try:
            line, fine = job()
        except MisuseError:
            raise
        except expected as error:
            line, fine = in_a_line(error), False
        outcome.parts.append(Part(name, line, round(time.monotonic() - begun, 1), fine))
        say(f"{name}: {line}")
    results.text("summary.json", json.dumps(outcome.summary(), indent=2) + "\n")
    results.text("index.html", page(outcome, inputs).html())
    return outcome


def _jobs(
    spark: SparkSession, inputs: Sequence[str], output: str, load: str | None, skip_corrupt: bool, say: Say
) -> dict[str, Callable[[], tuple[str, bool | None]]]:
    """What can be run, in the order in which people read it."""
    from pipeline.loadtest import job as loadtest
    from pipeline.oracle import job as oracle
    from pipeline.plan import job as plan
    from pipeline.rollup import job as rollup
    from pipeline.tree import job as tree

    def to(name: str) -> str:
        return f"{output.rstrip('/')}/{name}"

    def rolled() -> tuple[str, bool | None]:
        return rollup.run(spark, inputs, to("rollup"), skip_corrupt=skip_corrupt, say=say).line(), None

    def treed() -> tuple[str, bool | None]:
        return tree.run(spark, inputs, to("tree"), skip_corrupt=skip_corrupt, say=say).line(), None

    def judged() -> tuple[str, bool | None]:
        found = oracle.run(spark, inputs, to("oracle"), skip_corrupt=skip_corrupt, say=say)
        return found.line(), found.fine

    def planned() -> tuple[str, bool | None]:
        try:
            return plan.run(spark, inputs, to("plan"), skip_corrupt=skip_corrupt, say=say).line(), None
        except plan.NothingError as error:
            return str(error), None

    jobs: dict[str, Callable[[], tuple[str, bool | None]]] = {"rollup": rolled, "tree": treed}
    if _has_deliveries(spark, inputs, skip_corrupt):
        jobs["oracle"] = judged
    else:
        say("oracle: left out, since deliveries were not recorded (recorder.deliveries)")
    if load is not None:
        records = load

        def tested() -> tuple[str, bool | None]:
            found = loadtest.run(spark, records, to("loadtest"), skip_corrupt=skip_corrupt, say=say)
            return found.line(), found.fine and not any(found.deliveries[name] for name in FAULTS)

        jobs["loadtest"] = tested
    jobs["plan"] = planned
    return jobs


def _has_deliveries(spark: SparkSession, inputs: Sequence[str], skip_corrupt: bool) -> bool:
    with reading():
        found = events(spark, inputs, Choice((DELIVER,)), ["kind"], skip_corrupt)
        return bool(found.select(f.lit(1)).limit(1).collect())


def page(outcome: Outcome, inputs: Sequence[str]) -> Page:
    """The page that links the others."""
    made = Page("What was recorded", " ".join(inputs))
    verdicts = [part for part in outcome.parts if part.fine is not None]
    if verdicts:
        made.paragraph(
            "Every message went where it should, and none was lost on the way."
            if outcome.fine
            else "Something is wrong: see "
            + ", ".join(part.name for part in outcome.parts if part.fine is False)
            + ".",
            "good" if outcome.fine else "bad",
        )
    for part in outcome.parts:
        made.heading(part.name)
        made.paragraph(ABOUT[part.name], "note")
        made.paragraph(part.line, "bad" if part.fine is False else "")
        made.links({f"{part.name} ({part.seconds:.1f} s)": f"{part.name}/index.html"})
    return made
