"""When the coverage of a run is enough, and what is told."""

from __future__ import annotations

import re

from tests.support.runs import for_each
from tests.support.tools import load

tool = load("coverage_floor")
verdict = tool.verdict


def test_make_runs_the_tests_of_each_measured_room() -> None:
    makefile = (tool.ROOT / "Makefile").read_text()
    run = [name for line in re.findall(r"^(?:COMPILED|PLAIN) := (.*)$", makefile, re.M) for name in line.split()]
    assert sorted(run) == sorted(tool.rooms())


@for_each(
    ("percent", "floor", "highest", "passed", "told"),
    [
        (90.0, 90.0, 90.0, True, "the floor is 90.0 %"),
        (89.99, 90.0, 90.0, False, "89.99 % of the lines are run by a test"),
        (90.99, 90.0, 0.0, True, "the floor is 90.0 %"),
        (91.08, 90.0, 90.0, True, "raise the floor in .ci/coverage from 90.0 to 91.0"),
        (95.0, 90.0, 90.1, False, "fell from 90.1 to 90.0"),
    ],
)
def test_the_floor_may_only_rise(percent: float, floor: float, highest: float, passed: bool, told: str) -> None:
    good, said = verdict(percent, floor, highest)
    assert good is passed
    assert told in said
