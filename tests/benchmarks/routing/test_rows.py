"""The rows at tiny sizes, and that a wrong answer is an error and never a figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import growth, runner
from benchmarks.routing import footprint, loads
from benchmarks.routing.bench import BENCH
from benchmarks.routing.loads import Load
from benchmarks.routing.loops import Table, WrongRoute, match_all, route_all, visit_all
from benchmarks.routing.measure import Reading
from benchmarks.routing.rabbitmq import flat
from benchmarks.routing.row import CPU, LAYOUTS, OURS
from benchmarks.runner import Case
from canopy_mqtt.core.codec.topic_names import validate_filter, validate_topic
from canopy_mqtt.core.topics.trie import LAYOUTS as ALL_LAYOUTS
from tests.support.runs import for_each

TINY = 1_000
"""The divisor of the rows' counts."""

EVERY_LOAD = [
    loads.churn(40),
    loads.devices(10),
    loads.same_key(7),
    loads.same_key(3, 4),
    loads.unicast(10),
    loads.broadcast(10),
    loads.exact(5),
    loads.plus(5),
    loads.hashes(5),
    loads.mixed(12),
    loads.many_wildcards(),
    loads.emqx(3, 4),
    loads.emqx(4, 3, 5),
]


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "LEAST", 10_000)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BENCH.rows)
def test_a_row_runs_and_has_a_value(name: str, layout: str) -> None:
    [line] = BENCH.rows[name].run(Case(BENCH.entrants[layout], divide=TINY))
    assert (line.figures[OURS] or 0) > 0
    assert (line.figures.get(CPU) or 0) >= 0


def test_the_counts_are_the_authors() -> None:
    assert set(LAYOUTS) < set(ALL_LAYOUTS)
    assert len(loads.churn(8_000).filters) == 8_000
    assert loads.churn(8_000).each == 4
    assert loads.broadcast(10_000).destinations() == [10_000]
    assert loads.many_wildcards().destinations() == [64]


@for_each("load", EVERY_LOAD)
@for_each("layout", LAYOUTS)
def test_every_load_is_valid_and_finds_what_it_says(layout: str, load: Load) -> None:
    for name in load.filters:
        validate_filter(name)
    for topic in load.topics:
        validate_topic(topic)
    table = Table(layout, load)
    table.fill()
    table.check()
    assert min(load.destinations()) >= 1
    table.empty(range(len(load.filters)))
    assert len(table.trie) == 0


@for_each("measure", [match_all, route_all, visit_all])
@for_each(
    "wrong",
    [
        replace(loads.plus(3), matches=[["site/0/+"], ["site/1/+"], ["site/0/+"]]),
        replace(loads.plus(3), topics=["site/0/state", "site/1/state", "elsewhere/2"]),
        replace(loads.plus(3), topics=["nobody"], matches=[[]]),
        Load(["a/b", "a/b", "a/+"], ["a/b"], [["a/b"]]),
    ],
)
def test_a_wrong_route_is_an_error(wrong: Load, measure: Callable[[Table, int], Reading]) -> None:
    table = Table("nodes", wrong)
    table.fill()
    with pytest.raises(WrongRoute):
        measure(table, 10)


def test_a_destination_too_few_is_an_error() -> None:
    table = Table("nodes", loads.same_key(5))
    table.fill()
    left = table.subscriptions[2]
    assert left.entry is not None
    left.entry.discard(left)
    with pytest.raises(WrongRoute, match="reached 4 destinations instead of 5"):
        visit_all(table, 1)
    with pytest.raises(WrongRoute, match="1 subscriptions hang nowhere"):
        table.empty(range(5))


def test_a_trie_with_other_filters_is_an_error() -> None:
    table = Table("nodes", loads.exact(3))
    table.trie.insert("one/more")
    with pytest.raises(WrongRoute, match="4 filters are in the trie instead of 3"):
        table.fill()
    table = Table("nodes", loads.exact(3))
    table.fill()
    table.trie.insert("one/more")
    with pytest.raises(WrongRoute, match="1 filters and 0 records are left in an empty trie"):
        table.empty(range(3))


@for_each("layout", LAYOUTS)
def test_memory_is_measured_in_a_process_of_its_own(layout: str) -> None:
    found = footprint.measure(layout, 10, 200)
    assert found.filters == 2_000
    # Not less than the bare bytes of what is in it, and not a hundred times that.
    assert 40 < found.index / found.filters < 4_000
    assert 40 < found.strings / found.filters < 4_000
    assert found.with_subscriptions > found.with_strings > found.index


def test_memory_that_cannot_be_measured_says_why() -> None:
    with pytest.raises(ValueError, match="no trie layout 'moss'"):
        footprint.measure("moss", 1, 1)


@for_each("shuffled", [False, True])
def test_a_crowd_stays_as_it_was(shuffled: bool) -> None:
    inserting, deleting = flat("compact", 10, 100, shuffled)
    assert inserting > 0
    assert deleting > 0


@pytest.mark.long
def test_growth_has_a_point_for_each_layout_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LEAST", 100)
    monkeypatch.setattr(growth, "ROUNDS", 100)
    monkeypatch.setattr(growth, "DELIVERIES", 1)
    file = tmp_path / "growth.json"
    assert runner.main(growth.BENCH, ["--repeats", "1", "--sizes", "100,200", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    found = [(each["row"], each["size"], each["broker"]) for each in data["results"]]
    assert found == [(row, size, layout) for row in growth.BENCH.rows for size in (100, 200) for layout in LAYOUTS]
    assert all(value > 0 for each in data["results"] for value in each["steps"][""].values())


def test_the_command_tells_authors_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(BENCH, ["unicast", "send-path", "--quick", "--brokers", "nodes"]) == 0
    out = capsys.readouterr().out
    assert "RabbitMQ: 250K → 460K; ≥ 460,000 routes/s: not judged" in out
    assert "offers 1.00" in out


@for_each(
    ("name", "layout", "value", "told"),
    [
        ("unicast", "compact", 459_999.0, "≥ 460,000 routes/s: MISSED"),
        ("unicast", "compact", 460_000.0, "≥ 460,000 routes/s: reached"),
        ("same-key-fan-out", "nodes", 3_100.0, "≥ 3,100 routes/s: reached"),
        ("emqx-100k-memory", "nodes", 29.1, "≤ 29 MB: MISSED"),
        ("emqx-100k-memory", "compact", 20.0, "≤ 20 MB: reached"),
        ("emqx-80k-lookup", "compact", 3_001.0, "≤ 3,000 ns: MISSED"),
        ("emqx-100k-probes", "compact", 12.0, "≤ 12 probes: reached"),
    ],
)
def test_a_bar_is_judged_with_the_authors_counts(name: str, layout: str, value: float, told: str) -> None:
    judge = BENCH.rows[name].judge
    assert judge is not None
    assert told in judge(layout, {OURS: value}, True)
    assert f"{told.split(': ')[0]}: not judged" in judge(layout, {OURS: value}, False)
