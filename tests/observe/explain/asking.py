"""Asking an explainer without an event loop, and what of a router nobody may change by asking."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.topics.subscription import SharedGroup
from canopy_mqtt.observe.explain.answer import Answer
from canopy_mqtt.observe.explain.explainer import Explainer, Question

Made = TypeVar("Made")


def run(coroutine: Coroutine[Any, Any, Made]) -> tuple[Made, int]:
    """What it returns, and how many turns it gave the event loop."""
    turns = 0
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value, turns
        turns += 1


def explain(router: Router, now: float, topic: str, **asked: Any) -> Answer:
    """All receivers, on one page."""
    return run(Explainer(router).answer(Question(topic, **asked), now))[0]


def turns(group: SharedGroup) -> list[tuple[int, int]]:
    """Whose turn it is in a share group."""
    return [(each.cursor, len(each.takers)) for each in (group.connected, group.away)]


def traces(router: Router) -> dict[str, Any]:
    """What a look must leave as it was."""
    cache, totals = router.cache, router.counters.totals
    groups: dict[str, Any] = {}
    queues: dict[str, Any] = {}
    for name, session in router.sessions.items():
        send_buffer = session.send_buffer
        queues[name] = (
            session.offered,
            session.queued(),
            session.made_queue is None or (session.made_queue.bytes, session.made_queue.messages),
            session.made_window is None or (session.made_window.quota, session.made_window.inflight.count),
            session.fast_path,
            None
            if send_buffer is None
            else (send_buffer.messages, send_buffer.bytes, send_buffer.closed, len(send_buffer.items)),
            session.ledger.in_all(),
        )
        for topic_filter, subscription in session.subscriptions.items():
            if subscription.group is not None:
                groups[name + topic_filter] = (turns(subscription.group), subscription.slot)
    return {
        "cache": (len(cache), cache.hits, cache.misses, cache.weight, cache.evicted, router.trie.probes),
        "work": router.budget.used,
        "load": (totals.messages, totals.bytes, totals.inflight, len(totals.unreported), len(totals.overflowed)),
        "dropped": list(router.counters.dropped),
        "denied": (router.counters.denied_publishes, router.counters.oversized, router.counters.retained_refused),
        "retained": (len(router.retained), router.retained_store.bytes),
        "groups": groups,
        "queues": queues,
    }
