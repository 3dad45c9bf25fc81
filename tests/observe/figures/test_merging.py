"""Figures of several workers as those of one broker: each row of the catalogue says what it means for all."""

from __future__ import annotations

import json

from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.catalogue import FIGURES, Found, merged, of_process, topics_of
from canopy_mqtt.observe.figures.merging import added, but_copies, by_worker, greatest, least
from canopy_mqtt.observe.figures.process import Process


def of_all(**figures: list[Found]) -> dict[str, Found]:
    """The merged figures by metric: each is given as that of w0, w1 and so on."""
    count = max(map(len, figures.values()))
    answers = {f"w{n}": {name: some[n] for name, some in figures.items() if n < len(some)} for n in range(count)}
    return {figure.metric: found for figure, found in merged(answers)}


def test_what_is_not_said_of_all_workers_is_added_by_its_labels() -> None:
    found = added({"w0": [(("a",), 1), (("b",), 2)], "w1": [(("b",), 3)]})
    assert found == [(("a",), 1), (("b",), 5)]


def test_texts_that_differ_are_told_with_their_workers() -> None:
    assert added({"w0": [((), "written")], "w1": [((), "written")]}) == [((), "written")]
    assert added({"w0": [((), "written")], "w1": [((), "full")]}) == [((), "w0: written; w1: full")]


def test_the_greatest_and_the_least() -> None:
    found: dict[str, list[tuple[tuple[str, ...], int | float | str]]] = {"w0": [((), 0)], "w1": [((), 1)]}
    assert greatest(found) == [((), 1)]
    assert least(found) == [((), 0)]


def test_a_figure_of_the_process_has_its_worker_as_a_label_and_its_topic_the_sum() -> None:
    assert by_worker({"w0": [((), 5)], "w1": [((), 6)]}) == [(("w0",), 5), (("w1",), 6)]
    answers: dict[str, dict[str, Found]] = {
        "w0": {"process_resident_memory": [((), 5)]},
        "w1": {"process_resident_memory": [((), 6)]},
    }
    assert dict(topics_of(merged(answers)))["heap/current"] == "11"


def test_what_each_worker_has_a_copy_of_counts_once() -> None:
    room = but_copies({"retained"})
    assert room({"w0": [(("retained",), 7), (("sessions",), 1)], "w1": [(("retained",), 7), (("sessions",), 2)]}) == [
        (("retained",), 7),
        (("sessions",), 3),
    ]
    found = of_all(
        queue_messages=[[((), 2)], [((), 3)]], retained_messages=[[((), 10)], [((), 10)]], stored_messages=[[((), 12)]]
    )
    assert found["canopy_stored_messages"] == [((), 15)]


def test_durations_are_added() -> None:
    one, other = Histogram(), Histogram()
    one.add(0.002)
    other.add(3.0)
    total = of_all(event_loop_lag=[one, other])["canopy_event_loop_lag_seconds"]
    assert isinstance(total, Histogram)
    assert (total.count, round(total.sum, 3)) == (2, 3.002)
    assert total.take_worst() == 3.0
    assert dict(total.cumulative())[0.0025] == 1


def test_lists_of_the_most_expensive_are_one_list() -> None:
    def top(**values: float) -> list[tuple[tuple[str, ...], int | float | str]]:
        return [(("topics", "messages"), json.dumps([{"name": name, "value": each} for name, each in values.items()]))]

    (found,) = (of_all(top=[top(a=5, b=3), top(b=4, c=1, d=0.5)])["canopy_top"],)
    assert isinstance(found, list)
    assert json.loads(str(found[0][1])) == [
        {"name": "b", "value": 7},
        {"name": "a", "value": 5},
        {"name": "c", "value": 1},
    ]


def test_the_slowest_clients_of_all_are_ranked_anew() -> None:
    def slow(*delays: float) -> list[tuple[tuple[str, ...], int | float | str]]:
        return [((str(place),), json.dumps({"delay": each})) for place, each in enumerate(delays, 1)]

    found = of_all(slowest_clients=[slow(9, 2), slow(5)])["canopy_slowest_clients"]
    assert found == slow(9, 5)


def test_parts_are_figures() -> None:
    names = {figure.name for figure in FIGURES}
    assert {part for figure in FIGURES for part in figure.parts} <= names


def test_a_process_without_a_broker_has_the_figures_of_a_process() -> None:
    found = of_process(Process())
    assert set(found) == {figure.name for figure in FIGURES if figure.process}
    assert found["process_resident_memory"] != [((), 0)]
