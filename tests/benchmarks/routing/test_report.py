"""The table and the data: medians, spread, bars that were missed, failures."""

from __future__ import annotations

import json

from benchmarks.routing.report import HEADINGS, Result, bars, cells, growth_table, table
from benchmarks.routing.row import Bar, Row, Sample, at_least, at_most, reported
from benchmarks.routing.rows import ROWS


def result(name: str = "unicast", *values: float, layout: str = "nodes", judged: bool = True) -> Result:
    return Result(ROWS[name], layout, judged, [Sample(value, 100.0) for value in values])


def cell(line: list[str], heading: str) -> str:
    return line[HEADINGS.index(heading)]


def test_a_missed_bar_is_shown_as_missed() -> None:
    missed = result("unicast", 459_999, 400_000, 500_000)
    assert missed.reached is False
    line = cells(missed)
    assert cell(line, "ours") == "459,999 routes/s"
    assert cell(line, "min–max") == "400,000–500,000"
    assert cell(line, "author") == "250K → 460K"
    assert cell(line, "bar") == "≥ 460,000 routes/s"
    assert cell(line, "reached") == "NO"
    assert bars([missed, result("unicast", 460_000, layout="compact")]) == "1 bars reached; 1 missed: unicast (nodes)."
    assert " NO " in table([missed])


def test_a_bar_that_is_reached_exactly_is_reached() -> None:
    assert Bar(3_100, True).reached(3_100)
    assert Bar(29, False).reached(29)
    assert not Bar(29, False).reached(29.01)
    assert cell(cells(result("emqx-100k-memory", 28.0)), "reached") == "yes"
    assert cell(cells(result("emqx-100k-memory", 20.5, layout="compact")), "reached") == "NO"


def test_the_bars_are_those_of_the_issue() -> None:
    found = {(name, layout): bar.text(row.unit) for name, row in ROWS.items() for layout, bar in row.bars.items()}
    assert found[("unicast", "nodes")] == found[("unicast", "compact")] == "≥ 460,000 routes/s"
    assert found[("same-key-fan-out", "nodes")] == "≥ 3,100 routes/s"
    assert found[("emqx-100k-memory", "nodes")] == "≤ 29 MB"
    assert found[("emqx-100k-memory", "compact")] == "≤ 20 MB"
    assert found[("emqx-80k-lookup", "compact")] == "≤ 3,000 ns"
    assert found[("emqx-100k-probes", "compact")] == "≤ 12 probes"
    assert ("emqx-100k-probes", "nodes") not in found
    assert {"flat-insert", "flat-delete"} <= {name for name, _ in found}


def test_a_quick_run_judges_nothing() -> None:
    quick = result("unicast", 1.0, judged=False)
    assert quick.reached is None
    assert cell(cells(quick), "reached") == "not judged"
    assert bars([quick]) == "0 bars reached; 0 missed; 1 not judged."


def test_a_failure_is_told_and_not_judged() -> None:
    failed = result("unicast")
    failed.failure = "queue/1 reached 0 destinations instead of 1"
    line = cells(failed)
    assert cell(line, "ours") == "– routes/s"
    assert cell(line, "reached") == "not judged"
    assert cell(line, "what differs") == "FAILED: queue/1 reached 0 destinations instead of 1"


def test_the_table_says_each_row_once_and_its_author_above() -> None:
    results = [result("unicast", 1e6), result("unicast", 2e6, layout="compact"), result("send-path", 40.0)]
    results[2].samples = [Sample(40.0, 39.0, {"offers": 1.0})]
    lines = table(results).splitlines()
    assert [line for line in lines if line.endswith(":")] == ["RabbitMQ:", "zmq.rs:"]
    assert sum(ROWS["unicast"].title in line for line in lines) == 1
    assert lines[-1] == "    offers 1.00"
    end = lines[0].index("ours") + len("ours")
    assert [line[:end].split()[-2] for line in lines if "routes/s" in line] == ["1,000,000", "2,000,000"]


def test_the_data_holds_every_run() -> None:
    made = result("same-key-fan-out", 3_000, 3_200, 3_100)
    made.samples[0] = Sample(3_000, 90.0, {"a": 1.0})
    made.samples[1] = Sample(3_200, 95.0, {"a": 3.0})
    made.samples[2] = Sample(3_100, 92.0, {"a": 2.0})
    data = json.loads(json.dumps(made.as_dict()))
    assert data["median"] == 3_100
    assert data["runs"] == [3_000, 3_200, 3_100]
    assert data["cpu_ns"] == 92.0
    assert data["details"] == {"a": 2.0}
    assert data["bar"] == "≥ 3,100 routes/s"
    assert data["reached"] is True
    assert data["author"] == "1,170 → 3,100"
    assert data["failure"] is None
    assert data["differs"]


def test_helpers_cover_both_layouts() -> None:
    row = Row("x", "x", "me", "ns", lambda _: Sample(1.0), "nothing", reported("1 ns"), at_most(2.0))
    assert all(Result(row, layout, True, [Sample(1.0)]).reached for layout in ("nodes", "compact"))
    assert not at_least(2.0)["compact"].reached(1.0)


def test_the_growth_table_has_a_line_for_each_point() -> None:
    filters = {"count": 1000.0, "insert_ns": 1.0, "match_ns": 2.0, "remove_ns": 3.0, "bytes": 4.0, "bytes_index": 5.0}
    subscribers = {"count": 10.0, "add_ns": 6.0, "discard_ns": 7.0, "deliver_ns": 8.0}
    text = growth_table(
        {"filters": {"nodes": [filters], "compact": [filters]}, "subscribers": {"nodes": [subscribers]}}
    )
    lines = [line.split() for line in text.splitlines() if line.startswith(("nodes", "compact"))]
    assert lines == [
        ["nodes", "1,000", "1.00", "2.00", "3.00", "4.00", "5.00"],
        ["compact", "1,000", "1.00", "2.00", "3.00", "4.00", "5.00"],
        ["nodes", "10.0", "6.00", "7.00", "8.00"],
    ]
