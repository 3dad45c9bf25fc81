"""Figures side by side: medians, ratios, and whose they are."""

from __future__ import annotations

import io

from rich.console import Console

from canopy_load.compare.compare_table import table
from canopy_load.compare.comparison import FIGURES, Comparison
from canopy_load.report.result import Deliveries, Reconciled, Result
from tests.loadtest.compare.compared import comparison, result
from tests.support.runs import for_each

FIGURE = {figure.key: figure for figure in FIGURES}


def printed(what: Comparison) -> str:
    """The table as it stands where nobody watches."""
    console = Console(file=io.StringIO(), width=80)
    console.print(table(what))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_figure_is_the_median_with_the_least_and_the_greatest() -> None:
    runs = [result(broker_us=us) for us in (3.0, 9.0, 4.0)]
    spread = comparison({"canopy": runs}).entrants[0].spread(FIGURE["cpu_us"])
    assert spread is not None
    assert (spread.median, spread.low, spread.high, spread.runs) == (4.0, 3.0, 9.0, 3)


def test_a_figure_that_was_not_had_is_none() -> None:
    runs = [result(broker_us=None), result(broker_us=2.0), result(broker_us=None)]
    entrant = comparison({"canopy": runs}).entrants[0]
    spread = entrant.spread(FIGURE["cpu_us"])
    assert spread is not None
    assert (spread.median, spread.runs) == (2.0, 1)
    nothing = result(broker_us=None, receive_rate=0.0, broker_memory=None, deliveries=Deliveries())
    empty = comparison({"canopy": [nothing]}).entrants[0]
    assert [empty.spread(FIGURE[key]) for key in ("cpu_us", "rate", "memory_mb", "loss_percent")] == [None] * 4


def test_ratios_are_to_the_first_broker_that_has_runs() -> None:
    both = comparison({"canopy": [result(broker_us=4.0)], "mosquitto": [result(broker_us=2.0)]})
    assert both.ratio(both.entrants[1], FIGURE["cpu_us"]) == 0.5
    assert both.ratio(both.entrants[0], FIGURE["cpu_us"]) == 1.0
    assert both.ratio(both.entrants[1], FIGURE["loss_percent"]) is None  # nothing was lost: there is no ratio to 0
    without = comparison({"canopy": [], "mosquitto": [result()], "amqtt": [result(broker_us=30.0)]})
    assert without.first is without.entrants[1]
    assert without.ratio(without.entrants[2], FIGURE["cpu_us"]) == 3.0
    assert without.ratio(without.entrants[0], FIGURE["cpu_us"]) is None


@for_each("which", [0, 1])
def test_where_the_generator_was_the_limit_speed_is_nobodys(which: int) -> None:
    runs = [[result(), result()], [result(), result()]]
    runs[which][1] = result(limit="generator")
    both = comparison({"canopy": runs[0], "mosquitto": runs[1]})
    second = both.entrants[1]
    for key in ("rate", "p50_us", "p99_us"):
        assert both.ratio(second, FIGURE[key]) is None
        assert both.entrants[which].is_not_its(FIGURE[key])
        assert not both.entrants[1 - which].is_not_its(FIGURE[key])
    assert both.ratio(second, FIGURE["cpu_us"]) == 1.0  # what a delivery costs the broker stays the broker's
    assert any("limit in 1 of 2 runs" in note for note in both.entrants[which].notes())
    text = printed(both)
    assert "1,000*" in text
    assert "not the broker's" in text
    data = both.as_json()["brokers"][which]["figures"]
    assert data["rate"]["generator_was_the_limit"] is True
    assert data["cpu_us"]["generator_was_the_limit"] is False


def test_a_run_broken_off_counts_only_where_there_is_no_other() -> None:
    broken = result(broker_us=99.0, interrupted=True)
    several = comparison({"canopy": [result(broker_us=1.0), broken]}).entrants[0]
    assert several.counted == [several.results[0]]
    alone = comparison({"canopy": [broken]}).entrants[0]
    spread = alone.spread(FIGURE["cpu_us"])
    assert spread is not None
    assert spread.median == 99.0
    assert any("broken off" in note for note in alone.notes())


def test_whatever_changes_the_reading_is_noted() -> None:
    run = result(
        deliveries=Deliveries(expected=10, received=10, duplicates=2, reordered=3),
        errors={"connection lost": 4, "CONNECT refused \x1b[2J": 1},
        reconciled=Reconciled(seen=1, reported=2, agrees=False),
    )
    entrant = comparison({"canopy": [run, run]}).entrants[0]
    entrant.failure = "failed in round 3: it ended"
    entrant.waited = 0.251
    assert entrant.notes() == [
        "others had its core for up to 25 % of a run: the machine was busy",
        "4 duplicates",
        "6 reordered",
        "connection lost (8 times)",
        "CONNECT refused \\x1b[2J (2 times)",
        "what it says it dropped is not what was seen missing",
        "failed in round 3: it ended",
    ]


def test_the_table_says_all_in_80_columns() -> None:
    runs: dict[str, list[Result]] = {
        "canopy": [result(receive_rate=123_456.0), result(receive_rate=234_567.0), result(receive_rate=200_000.0)],
        "mosquitto": [result(receive_rate=400_000.0)] * 3,
        "aedes": [],
    }
    what = comparison(runs, interrupted=True, remarks=["a remark"])
    what.entrants[2].failure = "aedes is not installed (npm install aedes)"
    text = printed(what)
    assert all(len(line) <= 80 for line in text.splitlines())
    line = next(line for line in text.splitlines() if line.startswith("deliveries a second"))
    assert line.split()[3:] == ["canopy", "200,000", "123,456", "234,567", "1.00"]
    assert any(line.split() == ["mosquitto", "400,000", "400,000", "400,000", "2.00"] for line in text.splitlines())
    for words in ("a remark", "aedes: aedes is not installed", "Interrupted"):
        assert words in text
    assert "Nothing was measured." in printed(comparison({"aedes": []}))
