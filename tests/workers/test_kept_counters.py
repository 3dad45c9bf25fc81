"""Counters of all workers do not fall when one of them hangs or begins anew."""

from __future__ import annotations

from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.catalogue import Found
from canopy_mqtt.workers.kept_counters import KeptCounters

COUNTER = "connections_opened"
Answers = dict[str, dict[str, Found]]


def told(**counts: int) -> Answers:
    return {worker: {COUNTER: [((), count)]} for worker, count in counts.items()}


def total(found: Answers) -> float:
    samples = [each[COUNTER] for each in found.values() if COUNTER in each]
    return sum(value for some in samples if isinstance(some, list) for _, value in some if not isinstance(value, str))


def test_a_counter_does_not_fall_while_a_worker_is_away_or_begins_anew() -> None:
    kept = KeptCounters()
    assert total(kept.settle(told(w0=700, w1=300), [])) == 1_000
    assert total(kept.settle(told(w0=710), ["w1"])) == 1_010
    assert total(kept.settle(told(w0=710, w1=310), [])) == 1_020
    assert total(kept.settle(told(w0=710, w1=5), [])) == 1_025
    assert total(kept.settle(told(w0=710), ["w1"])) == 1_025
    assert total(kept.settle(told(w0=710, w1=2), [])) == 1_027


def test_one_that_was_never_there_has_no_counters() -> None:
    assert KeptCounters().settle(told(w0=7), ["w1"])["w1"] == {}


def test_a_gauge_of_a_worker_that_is_away_is_not_kept() -> None:
    kept = KeptCounters()
    kept.settle({"w1": {"connections": [((), 5)]}}, [])
    assert kept.settle({}, ["w1"]) == {"w1": {}}


def test_durations_are_kept_too() -> None:
    def counted(times: int) -> Answers:
        made = Histogram()
        for _ in range(times):
            made.add(0.002)
        return {"w1": {"event_loop_lag": made}}

    kept = KeptCounters()
    counts = []
    for found, missing in ((counted(5), []), ({}, ["w1"]), (counted(2), []), (counted(3), [])):
        made = kept.settle(found, missing)["w1"]["event_loop_lag"]
        assert isinstance(made, Histogram)
        counts.append(made.count)
    assert counts == [5, 5, 7, 8]
