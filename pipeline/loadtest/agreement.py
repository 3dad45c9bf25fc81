"""The job's figures beside those of the load tester's own report.

Owns: which figure is held against which, and the pairs that differ.

Promises: every count must be the same, and every latency to a billionth (a mean is a quotient). What one of the two
has and the other has not is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.loadtest.tables import COUNTS
from pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMES: Final = ("count", "min", "mean", "p50", "p90", "p99", "p999", "max")
"""What is said of a distribution."""
STRAYS: Final = "deliveries that no filter of the subscriber matches"
"""What the load tester calls them among its errors."""
NEAR: Final = 1e-9


@dataclass(frozen=True)
class Figure:
    """One figure of the job (`here`) and of the load tester's report (`there`)."""

    name: str
    here: float | None
    there: float | None

    @property
    def agrees(self) -> bool:
        """Whether they are the same."""
        if self.here is None or self.there is None:
            return self.here is self.there
        return math.isclose(self.here, self.there, rel_tol=NEAR, abs_tol=0.0)


def figures(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[Figure]:
    """All figures that both have; `here` has the shape of the load tester's `summary.json`."""
    found = [Figure(name, here[name], there.get(name)) for name in ("sent", "received")]
    found += _part("", here, there)
    found.append(Figure("strays", here["strays"], there.get("errors", {}).get(STRAYS, 0)))
    ours = {group["name"]: group for group in here["groups"]}
    theirs = {group["name"]: group for group in there["groups"]}
    for name in dict.fromkeys((*theirs, *ours)):
        nothing: dict[str, Any] = {}
        mine, other = ours.get(name, nothing), theirs.get(name, nothing)
        found.append(Figure(f"groups.{name}.sent", mine.get("sent"), other.get("sent")))
        found += _part(f"groups.{name}.", mine, other)
    return found


def _part(prefix: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Figure]:
    for part, names in (("deliveries", COUNTS), ("latency", TIMES)):
        for name in names:
            yield Figure(f"{prefix}{part}.{name}", here.get(part, {}).get(name), there.get(part, {}).get(name))


def differing(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """Pairs of which the two say different things: publisher, subscriber, group, and each count as `here_…` and
    `there_…`, null where only one of the two knows the pair."""
    key = ["publisher", "subscriber", "group"]
    # Of the load tester's pairs there may be several of one name; so they are added up here too.
    here, there = (
        table.groupBy(*key).agg(*(f.sum(name).alias(f"{side}_{name}") for name in COUNTS))
        for side, table in (("here", ours), ("there", theirs))
    )
    same = f.lit(True)
    for name in COUNTS:
        same = same & f.col(f"here_{name}").eqNullSafe(f.col(f"there_{name}"))
    return here.join(there, key, "full").where(~same)
