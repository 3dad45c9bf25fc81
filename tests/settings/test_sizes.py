"""Limits in bytes that contradict each other are named at the start and by `canopy check-config`."""

from __future__ import annotations

from typing import Any

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.ineffective import WAITING, contradicting
from tests.support.runs import for_each


def lines(**sections: Any) -> list[str]:
    return list(contradicting(Settings(**sections)))


def test_the_defaults_contradict_nothing() -> None:
    assert lines() == []


def test_a_payload_above_the_largest_packet() -> None:
    [line] = lines(limits={"max_packet_size": 50_000, "max_payload_size": 60_000})
    assert line == "limits.max_payload_size = 60000 has no effect, because limits.max_packet_size = 50000 is lower"


def test_a_packet_larger_than_all_incomplete_ones() -> None:
    [line] = lines(limits={"max_partial_bytes": 1_000_000})
    assert "is above limits.max_partial_bytes = 1000000" in line


@for_each("name", WAITING)
def test_a_queue_smaller_than_a_message(name: str) -> None:
    section, key = name.split(".")
    [line] = lines(**{section: {key: 1_000}})
    assert line.startswith(f"limits.max_packet_size = 8388608 is above {name} = 1000: ")


def test_no_limit_on_packets_is_the_largest_that_there_is() -> None:
    [line] = lines(limits={"max_packet_size": 0, "max_partial_bytes": 0})
    assert line.startswith("limits.max_packet_size = 0 (267386884) is above queue.live_bytes = 8388608, ")


def test_a_record_that_takes_no_large_message() -> None:
    [line] = lines(recorder={"directory": "/nowhere", "queue_bytes": 1_000_000})
    assert "recorder.queue_bytes" in line
