"""What a threshold may say, and what is said about one that is none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from canopy_load.scenario.scenario_schema import Scenario
from canopy_load.scenario.thresholds import of, parse
from tests.support.runs import for_each

GROUPS = ["sensors", "a"]


@for_each(
    ("text", "figure", "group", "comparison", "value"),
    [
        ("p99 < 50ms", "p99", None, "<", 50_000),
        ("p99<1.5s", "p99", None, "<", 1_500_000),
        ("p99_9 <= 1m", "p999", None, "<=", 60_000_000),
        ("lost == 0", "lost", None, "==", 0),
        ("rate >= 10000", "rate", None, ">=", 10_000),
        ("rate >= 10,000/s", "rate", None, ">=", 10_000),
        ("unjudged_share < 1%", "unjudged_share", None, "<", 0.01),
        ("connect_max != 2s", "connect_max", None, "!=", 2_000_000),
        ("sensors.p50 > 1us", "p50", "sensors", ">", 1),
    ],
)
def test_what_is_one(text: str, figure: str, group: str | None, comparison: str, value: float) -> None:
    found = parse(text, GROUPS)
    assert (found.figure, found.group, found.comparison, found.value) == (figure, group, comparison, value)


@for_each(
    ("text", "said"),
    [
        ("", "a threshold is FIGURE COMPARISON VALUE"),
        ("p99", "a threshold is FIGURE COMPARISON VALUE"),
        ("p99 < 1ms < 2ms", "write it with its unit"),
        ("p98 < 50ms", "did you mean p9"),
        ("p99 < 50", 'write it with its unit, like "50ms"'),
        ("lost == 1%", "write a plain number"),
        ("lost_share < 5", "write it in per cent"),
        ("rate > fast", "write a plain number"),
        ("sensor.p99 < 1ms", "did you mean sensors"),
        ("a.rate > 1", "no figure of group a called 'rate'"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text, GROUPS)


def test_the_scenarios_stand_before_the_command_lines() -> None:
    found = of({"p99": "< 1s"}, ["lost == 0"], GROUPS)
    assert [each.text for each in found] == ["p99 < 1s", "lost == 0"]


def test_a_scenario_names_the_key_of_a_wrong_one() -> None:
    data = {"name": "a", "stages": [{"name": "go", "seconds": 1}], "groups": [{"name": "g", "clients": 1}]}
    assert Scenario.model_validate({**data, "thresholds": {"g.p99": "< 1s"}}).thresholds == {"g.p99": "< 1s"}
    with pytest.raises(ValidationError, match=r"thresholds.p99: p99 is a time"):
        Scenario.model_validate({**data, "thresholds": {"p99": "< 50"}})
