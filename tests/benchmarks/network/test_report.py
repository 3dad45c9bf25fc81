"""The table and the data: medians, ratios, notes, alignment."""

from __future__ import annotations

import json

from benchmarks.network.measure import Missed, Sample, Spent
from benchmarks.network.report import HEADINGS, Result, RowResult, cells, table
from benchmarks.network.rows import ROWS


def sample(units: int = 1000, cpu: float = 0.5, generator: float = 0.2, lost: int = 0) -> Sample:
    return Sample(units, Spent(1.0, cpu, generator), resident=10_000_000, lost=lost)


def cell(line: list[str], heading: str) -> str:
    return line[HEADINGS.index(heading)]


def test_a_sample_derives_its_figures() -> None:
    each = Sample(2000, Spent(2.0, 1.0, 0.5, broker_waited=0.1, generator_waited=0.2), resident=1)
    assert (each.rate, each.cpu_us, each.broker_share, each.generator_share) == (1000.0, 500.0, 0.5, 0.25)
    assert each.waited_share == 0.1


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


def test_a_failure_is_a_note_and_no_ratio() -> None:
    row = RowResult(ROWS["pairs"], [Result("canopy", [sample()]), Result("mosquitto", failure="FAILED: it refused")])
    first, second = cells(row)
    assert cell(first, "CPU ×") == ""
    assert cell(second, "rate/s") == "–"
    assert cell(second, "notes") == "FAILED: it refused"


def test_notes_tell_the_limit_and_the_effect_of_the_extra_load() -> None:
    with_idle = sample(900, cpu=0.9, generator=0.99)
    with_idle.without = sample(1000, cpu=0.5)
    notes = Result("canopy", [with_idle]).notes()
    assert notes == ["CPU 2.00×, rate 0.90× of without", "generator-bound"]


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


def test_notes_tell_when_others_had_the_cores() -> None:
    disturbed = Sample(100, Spent(1.0, 0.5, 0.2, broker_waited=0.25), resident=1)
    assert Result("canopy", [disturbed]).notes() == ["cores busy elsewhere 25 %"]


def test_the_table_is_aligned() -> None:
    rows = [
        RowResult(ROWS["pairs"], [Result("canopy", [sample(1_234_567)]), Result("mosquitto", [sample(7)])]),
        RowResult(ROWS["one-to-one"], [Result("canopy", [sample()])]),
    ]
    lines = table(rows).splitlines()
    end = lines[0].index("rate/s") + len("rate/s")
    assert [line[:end].split()[-1] for line in lines[2:]] == ["1,234,567", "7.00", "1,000"]
    assert all(line[end : end + 2] == "  " for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_the_data_holds_every_run() -> None:
    inner = sample(500)
    outer = sample(400)
    outer.without = inner
    row = RowResult(ROWS["idle"], [Result("canopy", [outer, sample(600)]), Result("mosquitto", [sample(250)])])
    data = json.loads(json.dumps(row.as_dict()))
    assert data["ratios"]["rate"] == 2.0
    assert data["brokers"]["canopy"]["medians"]["rate"] == 500.0
    assert data["brokers"]["canopy"]["rate_of_without"] == 0.8
    assert [run["units"] for run in data["brokers"]["canopy"]["samples"]] == [400, 600]
    assert data["brokers"]["canopy"]["samples"][0]["without"]["units"] == 500
