"""The table and the data: medians, ratios, notes, alignment."""

from __future__ import annotations

from benchmarks.network.measure import Missed, Sample, Spent
from benchmarks.network.report import HEADINGS, Result, RowResult, cells
from benchmarks.network.rows import ROWS


def sample(units: int = 1000, cpu: float = 0.5, generator: float = 0.2, lost: int = 0) -> Sample:
    return Sample(units, Spent(1.0, cpu, generator), resident=10_000_000, lost=lost)


def cell(line: list[str], heading: str) -> str:
    return line[HEADINGS.index(heading)]


def test_generator_bound_means_busy_beside_a_broker_that_is_not() -> None:
    assert sample(cpu=0.6, generator=0.99).generator_bound
    assert not sample(cpu=0.99, generator=0.99).generator_bound
    assert not sample(cpu=0.6, generator=0.6).generator_bound


def test_medians_ratios_and_sums() -> None:
    ours = Result("canopy", [sample(1000), sample(9000), sample(2000, lost=3)])
    theirs = Result("mosquitto", [sample(500, lost=1), sample(500, lost=1)])
    row = RowResult(ROWS["pairs"], [ours, theirs])
    first, second = cells(row)
    assert cell(first, "row") == "100 pairs, QoS 0"
    assert cell(second, "row") == ""
    assert cell(first, "rate/s") == "2,000"
    assert cell(first, "CPU µs") == "250"
    assert cell(first, "CPU ×") == "0.25"
    assert cell(first, "rate ×") == "4.00"
    assert (cell(second, "CPU ×"), cell(second, "rate ×")) == ("", "")
    assert (cell(first, "lost"), cell(second, "lost")) == ("3", "2")
    assert cell(first, "RSS MB") == "10.0"
    assert cell(first, "p99 µs") == "–"


def test_notes_tell_of_those_who_did_not_read() -> None:
    runs = [sample(), sample()]
    runs[0].without = sample()
    runs[0].p99_us, runs[0].without.p99_us = 3.0, 2.0
    runs[0].missed = Missed(clients=10, messages=4000, cut=0, full=True)
    runs[1].missed = Missed(clients=10, messages=5000, cut=0, full=True)
    ratios = "CPU 1.00×, rate 1.00×, p99 1.50× of without"
    assert Result("canopy", runs).notes() == [ratios, "10 frozen missed 9,000"]
    runs[1].missed = Missed(clients=10, messages=5000, cut=3, full=False)
    assert Result("canopy", runs).notes()[1:] == [
        "10 frozen missed 9,000",
        "3 of 20 frozen disconnected",
        "the queues of the frozen were not full",
    ]
