"""Durations and sizes in words, and what is none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from canopy_load.scenario.scenario_schema import Payload, Scenario
from canopy_load.scenario.units import duration, size
from tests.support.runs import for_each


@for_each(
    ("text", "seconds"),
    [("30s", 30), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400), ("1h 2m 3s", 3723), ("2d", 172_800), ("7us", 7e-6)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@for_each("text", ["", "30", "s", "30x", "30s1m", "1s1s", "-1s", "1e3s", "inf", "nan s", "s30", "1m30"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match='like "30s"'):
        duration(text)


@for_each(("text", "count"), [("512B", 512), ("1KiB", 1024), ("2MB", 2_000_000), ("1.5kB", 1500), ("1 MiB", 1_048_576)])
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@for_each("text", ["", "1", "KiB", "1.0001kB", "-1B", "1 kb", "1TB", "0x10B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match='like "512B"'):
        size(text)


def test_a_scenario_takes_both_forms() -> None:
    found = Scenario.model_validate(
        {
            "name": "units",
            "drain": "1m",
            "quiet": "500ms",
            "stages": [{"name": "go", "seconds": "1m30s"}],
            "groups": [
                {
                    "name": "all",
                    "clients": 1,
                    "session_expiry": "1h",
                    "keep_alive": "2m",
                    "maximum_packet_size": "1KiB",
                    "publish": [{"topic": "t", "rate": 1, "payload": {"between": ["16B", "1KiB"]}}],
                    "cycle": {"up": "10s", "down": "250ms"},
                }
            ],
        },
        strict=False,
    )
    (group,) = found.groups
    assert (found.drain, found.quiet, found.stages[0].seconds) == (60, 0.5, 90)
    assert (group.session_expiry, group.keep_alive, group.maximum_packet_size) == (3600, 120, 1024)
    assert group.publish[0].payload.between == (16, 1024)
    assert group.cycle is not None
    assert (group.cycle.up, group.cycle.down) == (10, 0.25)


def test_weights_of_sizes_take_units_and_refuse_the_same_size_twice() -> None:
    assert Payload.model_validate({"sizes": {"64": 9, "1KiB": 1}}).sizes == {"64": 9, "1024": 1}
    with pytest.raises(ValidationError, match="two of the sizes are the same"):
        Payload.model_validate({"sizes": {"1024": 9, "1KiB": 1}})


def test_what_takes_whole_seconds_refuses_a_part_of_one() -> None:
    data = {"name": "a", "stages": [{"name": "go", "seconds": 1}], "groups": [{"name": "g", "clients": 1}]}
    data["groups"][0]["keep_alive"] = "500ms"  # type: ignore[index]
    with pytest.raises(ValidationError, match="integer"):
        Scenario.model_validate(data)
