"""What workers answer, put together: lists keep their order and lose nothing, figures add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from broker.admin.paging import cursor_of, name_of
from broker.workers.front.combining import WorkersCollector, figures, levels, nodes, page

SEPARATOR = "\0"

Entry = dict[str, Any]


def of_worker(entries: list[Entry], after: tuple[str, ...] | None, limit: int, most: int) -> dict[str, Any]:
    """A page as a worker makes it: of `limit` entries, or of `most`, as where names are long."""
    behind = [each for each in sorted(entries, key=key) if after is None or key(each) > after]
    data = behind[: min(limit, most)]
    more = len(data) < len(behind)
    cursor = cursor_of(SEPARATOR.join(key(data[-1]))) if more else None
    return {"data": data, "meta": {"limit": limit, "hasnext": more, "cursor": cursor}}


def key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return entry["client"], entry["topic"]


names = st.text("abc", min_size=1, max_size=3)


@given(
    entries=st.lists(st.tuples(names, names, st.integers(0, 2)), unique_by=lambda each: each[:2], max_size=30),
    limit=st.integers(1, 5),
    most=st.tuples(*[st.integers(1, 5)] * 3),
)
def test_pages_of_all_workers_have_each_entry_once_and_in_order(
    entries: list[tuple[str, str, int]], limit: int, most: tuple[int, int, int]
) -> None:
    of: list[list[Entry]] = [[], [], []]
    for client, topic, worker in entries:
        of[worker].append({"client": client, "topic": topic})
    found: list[tuple[str, ...]] = []
    after: tuple[str, ...] | None = None
    while True:
        made = page([of_worker(each, after, limit, most[at]) for at, each in enumerate(of)], limit, key, SEPARATOR)
        assert len(made["data"]) <= limit
        found += [key(each) for each in made["data"]]
        if not made["meta"]["hasnext"]:
            assert made["meta"]["cursor"] is None
            break
        after = tuple(name_of(made["meta"]["cursor"]).split(SEPARATOR))
    assert found == sorted((client, topic) for client, topic, _ in entries)


@given(
    counts=st.dictionaries(names, st.tuples(*[st.integers(0, 3)] * 3), max_size=12),
    limit=st.integers(1, 5),
    most=st.tuples(*[st.integers(1, 5)] * 3),
)
def test_levels_of_all_workers_come_once_with_what_each_counts(
    counts: dict[str, tuple[int, int, int]], limit: int, most: tuple[int, int, int]
) -> None:
    """A worker has a level where it counts something."""
    found: list[tuple[str, int, int]] = []
    after: str | None = None
    while True:
        pages = []
        for worker in range(3):
            mine = sorted(name for name, each in counts.items() if each[worker] and (after is None or name > after))
            data = [{"level": name, "topic_filter": name, "subscriptions": counts[name][worker]} for name in mine]
            shown = [{**each, "shared": 0, "below": 1} for each in data[: min(limit, most[worker])]]
            pages.append({"data": shown, "meta": {"hasnext": len(shown) < len(mine)}})
        made = levels(pages, limit)
        assert len(made["data"]) <= limit
        found += [(each["level"], each["subscriptions"], each["below"]) for each in made["data"]]
        if not made["meta"]["hasnext"]:
            break
        after = name_of(made["meta"]["cursor"])[1:]
    expected = [(name, sum(each), sum(1 for one in each if one)) for name, each in sorted(counts.items()) if any(each)]
    assert found == expected


def test_figures_add_up_but_for_what_all_have_alike() -> None:
    one = {"clients.connected": 2, "retained.messages": 7, "uptime.seconds": 4.0}
    other = {"clients.connected": 3, "retained.messages": 7, "uptime.seconds": 9.0, "sessions": 1}
    assert figures([one, other]) == {
        "clients.connected": 5,
        "retained.messages": 7,
        "uptime.seconds": 9.0,
        "sessions": 1,
    }


def test_a_worker_is_in_the_mesh_as_the_one_that_sees_the_worst_of_it() -> None:
    def node(name: str, state: str, waiting: int, **more: Any) -> dict[str, Any]:
        fine = {"down": 0.0, "filters": 3, "behind": False, "synchronized": True, "waiting_bytes": 10, "dropped": 1}
        return {"name": name, "state": state, "waiting": waiting, **fine, **more}

    counts = {"declared": 1, "left_out": 2, "sessions_in": 3, "sessions_out": 4, "claims_unanswered": 5}
    views = [
        {"mesh": "m", "node": "a", **counts, "nodes": [node("b", "connected", 1), node("c", "connected", 2)]},
        {"mesh": "m", "node": "b", **counts, "nodes": [node("a", "connected", 0), node("c", "gone", 5, down=7.0)]},
        {"mesh": "m", "node": "c", **counts, "nodes": [node("a", "connected", 0), node("b", "joined", 4, behind=True)]},
    ]
    told = nodes(views)
    assert (told["mesh"], told["node"]) == ("m", "all workers")
    assert [told[name] for name in counts] == [3, 6, 9, 12, 15]
    assert [(each["name"], each["state"], each["waiting"], each["down"], each["behind"]) for each in told["nodes"]] == [
        ("a", "connected", 0, 0.0, False),
        ("b", "joined", 5, 0.0, True),
        ("c", "gone", 7, 7.0, False),
    ]
    assert [(each["filters"], each["waiting_bytes"], each["dropped"]) for each in told["nodes"]] == [(3, 20, 2)] * 3


def test_prometheus_reads_each_workers_figures_under_its_name() -> None:
    text = (
        "# HELP canopy_messages_received_total Messages\n# TYPE canopy_messages_received_total counter\n"
        'canopy_messages_received_total{{qos="0"}} {count}\n'
        "# HELP canopy_seconds Time\n# TYPE canopy_seconds histogram\n"
        'canopy_seconds_bucket{{le="+Inf"}} {count}\ncanopy_seconds_count {count}\ncanopy_seconds_sum 0.5\n'
    )
    registry = CollectorRegistry(auto_describe=False)
    texts = {"w0": text.format(count=3), "w1": text.format(count=4)}
    registry.register(WorkersCollector(texts, {"w0": 0, "w1": 2, "w2": 1}))
    families = {
        family.name: family for family in text_string_to_metric_families(exposition.generate_latest(registry).decode())
    }

    def values(name: str, sample: str) -> dict[str, float]:
        found = [each for each in families[name].samples if each.name == sample]
        return {each.labels["worker"]: each.value for each in found}

    assert values("canopy_messages_received", "canopy_messages_received_total") == {"w0": 3.0, "w1": 4.0}
    assert families["canopy_messages_received"].samples[0].labels["qos"] == "0"
    assert families["canopy_seconds"].type == "histogram"
    assert values("canopy_seconds", "canopy_seconds_count") == {"w0": 3.0, "w1": 4.0}
    assert values("canopy_worker_up", "canopy_worker_up") == {"w0": 1.0, "w1": 1.0, "w2": 0.0}
    assert values("canopy_worker_restarts", "canopy_worker_restarts_total") == {"w0": 0.0, "w1": 2.0, "w2": 1.0}
