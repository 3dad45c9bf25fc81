"""Puts what workers have answered together: pages of lists, numbers, Prometheus' figures.

Pure. Each worker's answer is about what it has itself; together they are about the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from broker.admin.paging import cursor_of

THE_SAME: Final = frozenset({"retained.messages", "retained.bytes", "uptime.seconds", "bans.current"})
"""Figures that all workers have alike, where a sum would count them several times: the largest counts."""

STATES: Final = ("connected", "joined", "gone")
"""Of another node, from good to bad."""

Key = Callable[[Mapping[str, Any]], tuple[str, ...]]


def page(pages: Sequence[Mapping[str, Any]], limit: int, key: Key, separator: str) -> dict[str, Any]:
    """The page that begins all of these, each of which begins at the same cursor.

    `key`: by what the list is in order; joined by `separator` it is the name in its cursors.
    """
    # Behind the last entry of a page that goes on, that worker may have others that come before those of another.
    ends = [key(each["data"][-1]) for each in pages if each["meta"]["hasnext"] and each["data"]]
    entries = sorted((entry for each in pages for entry in each["data"]), key=key)
    known = [entry for entry in entries if not ends or key(entry) <= min(ends)]
    data = known[:limit]
    more = len(data) < len(entries) or bool(ends)
    cursor = cursor_of(separator.join(key(data[-1]))) if more and data else None
    return {"data": data, "meta": {"limit": limit, "hasnext": cursor is not None, "cursor": cursor}}


def levels(pages: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """The page of levels of topic filters that begins all of these: what workers count at the same level adds up."""
    # With all that is there: of a level, what each worker counts is on its page, or behind all of this one.
    whole = page(pages, sum(len(each["data"]) for each in pages), lambda each: (f"/{each['level']}",), "")
    found: dict[str, dict[str, Any]] = {}
    for entry in whole["data"]:
        level = found.setdefault(entry["level"], {**entry, "subscriptions": 0, "shared": 0, "below": 0})
        for name in ("subscriptions", "shared", "below"):
            level[name] += entry[name]
    data = list(found.values())[:limit]
    more = len(data) < len(found) or whole["meta"]["hasnext"]
    cursor = cursor_of(f"/{data[-1]['level']}") if more and data else None
    return {"data": data, "meta": {"limit": limit, "hasnext": cursor is not None, "cursor": cursor}}


def figures(all_figures: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    """Figures by name, added up."""
    found: dict[str, int | float] = {}
    for each in all_figures:
        for name, value in each.items():
            found[name] = max(found.get(name, 0), value) if name in THE_SAME else found.get(name, 0) + value
    return found


def nodes(views: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mesh of the workers, of what each sees of the other nodes; a node is as the worst of these views."""
    found: dict[str, dict[str, Any]] = {}
    for node in (node for view in views for node in view["nodes"]):
        known = found.get(node["name"])
        if known is None:
            found[node["name"]] = dict(node)
            continue
        known["state"] = max(known["state"], node["state"], key=STATES.index)
        known["behind"] = known["behind"] or node["behind"]
        known["synchronized"] = known["synchronized"] and node["synchronized"]
        for name in ("down", "filters"):
            known[name] = max(known[name], node[name])
        for name in ("waiting", "waiting_bytes", "dropped"):
            known[name] += node[name]
    counts = ("declared", "left_out", "sessions_in", "sessions_out", "claims_unanswered")
    return {
        "mesh": views[0]["mesh"],
        "node": "all workers",
        **{name: sum(view[name] for view in views) for name in counts},
        "nodes": [found[name] for name in sorted(found)],
    }


class WorkersCollector(Collector):
    """The figures of all workers, each with the label `worker`, as Prometheus' library wants them."""

    def __init__(self, texts: Mapping[str, str], restarts: Mapping[str, int]) -> None:
        """`texts`: what each of those that are there answers at /metrics. `restarts`: of each that there should be."""
        self._texts = texts
        self._restarts = restarts

    def describe(self) -> Iterator[Metric]:
        """Nothing: whoever registers it need not read everything for that."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """How things are now."""
        up = GaugeMetricFamily("canopy_worker_up", "Whether the worker serves", labels=["worker"])
        again = CounterMetricFamily(
            "canopy_worker_restarts", "How often the worker was started again after it had ended", labels=["worker"]
        )
        for worker, count in self._restarts.items():
            up.add_metric([worker], float(worker in self._texts))
            again.add_metric([worker], float(count))
        yield up
        yield again
        families: dict[str, Metric] = {}
        for worker, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "worker": worker}
                    merged.samples.append(Sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar))
        yield from families.values()
