"""The ledger of topic filters with configured aggregates: its rules one by one, with a face that records."""

from __future__ import annotations

import pytest

from broker.upstream.filters.ledger import Ledger
from tests.upstream.faces import Recorder

# Aggregates, unfolded filters, a filter, what is declared for it.
FOLDING = [
    (["a/#"], [], "a", "a/#"),
    (["a/#"], [], "a/#", "a/#"),
    (["a/#"], [], "a/+/b/#", "a/#"),
    (["a/#"], [], "ab", "ab"),
    (["a/#"], [], "+/b", "+/b"),
    (["a/#"], [], "#", "#"),
    (["a/+/c"], [], "a/b/c", "a/+/c"),
    (["a/+/c"], [], "a/b/d", "a/b/d"),
    # Wildcards at the beginning do not see $ [MQTT-4.7.2-1].
    (["#"], [], "+/b", "#"),
    (["#"], [], "$x/b", "$x/b"),
    (["+/#"], [], "$x/b", "$x/b"),
    (["#", "$x/#"], [], "$x/b", "$x/#"),
    # The widest of those that include it, wherever it stands; else the first.
    (["a/b/#", "a/#"], [], "a/b/c", "a/#"),
    (["a/#", "a/b/#"], [], "a/b/c", "a/#"),
    (["a/b/#", "a/+/#", "a/#"], [], "a/b/c", "a/#"),
    (["a/#", "a/#"], [], "a/b", "a/#"),
    (["+/b", "a/+"], [], "a/b", "+/b"),
    (["a/+", "+/b"], [], "a/b", "a/+"),
    (["a/+", "+/b"], [], "c/b", "+/b"),
    # What has a topic in common with an unfolded filter is forwarded.
    (["a/#"], ["a/p/#"], "a/b", "a/#"),
    (["a/#"], ["a/p/#"], "a/p/1", "a/p/1"),
    (["a/#"], ["a/p/#"], "a/p", "a/p"),
    (["a/#"], ["a/p/#"], "a/+", "a/+"),
    (["a/#"], ["a/p/#"], "a/#", "a/#"),
    (["#"], ["#"], "$x", "$x"),
]


@pytest.mark.parametrize(("aggregates", "unfolded", "topic_filter", "declared"), FOLDING)
def test_what_is_declared(aggregates: list[str], unfolded: list[str], topic_filter: str, declared: str) -> None:
    face = Recorder()
    ledger = Ledger(face, aggregates, unfolded)
    ledger.add(topic_filter)
    assert face.calls == ["+" + declared]
    assert ledger.declared == [declared]
    assert ledger.children(declared) == 1
    ledger.remove(topic_filter)
    assert face.calls == ["+" + declared, "-" + declared]


def test_an_aggregate_that_is_asked_for_is_its_own_child() -> None:
    """Also where it touches what is unfolded: it would be declared either way, and must not be so twice."""
    face = Recorder()
    ledger = Ledger(face, ["a/#"], ["a/p/+"])
    for topic_filter in ("a/#", "a/b", "a/p/1"):
        ledger.add(topic_filter)
    assert face.told() == ["+a/#", "+a/p/1"]
    assert ledger.children("a/#") == 2
    ledger.remove("a/#")
    assert face.told() == []
    ledger.remove("a/b")
    assert face.told() == ["-a/#"]
