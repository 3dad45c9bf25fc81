"""`/api/v5/filters`: the topic filters that are subscribed to, level by level."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.api import filters
from broker.admin.api.filters import Levels
from canopy import Broker
from tests.admin.api.conftest import Api
from tests.e2e.wire import Peer
from tests.support.waiting import counted_turns


async def below(api: Api, **query: Any) -> list[tuple[str, int, int, int]]:
    """What is there, by the filter so far."""
    found = await api.get("/filters", **query)
    return [(each["topic_filter"], each["subscriptions"], each["shared"], each["below"]) for each in found["data"]]


async def test_a_level_says_who_subscribes_to_it_and_how_many_go_on(api: Api, broker: Broker) -> None:
    peers = [
        await Peer.join(broker.ports[0], "a", "plant/+/temp", "plant/#", "/lead", "#"),
        await Peer.join(broker.ports[0], "b", "plant/1/temp", "plant/#", "$share/g/plant/#", "plant"),
    ]
    assert await below(api) == [("", 0, 0, 1), ("#", 1, 0, 0), ("plant", 1, 0, 5)]
    assert await below(api, prefix="plant") == [("plant/#", 3, 1, 0), ("plant/+", 0, 0, 1), ("plant/1", 0, 0, 1)]
    # The first level may be empty: "" is below no prefix, and the prefix "" is that level.
    assert await below(api, prefix="") == [("/lead", 1, 0, 0)]
    assert await below(api, prefix="plant/2") == []
    for peer in peers:
        peer.abort()


async def test_each_level_is_on_one_page_whatever_goes_meanwhile(api: Api, broker: Broker) -> None:
    names = [f"t/{number:02}" for number in range(10)] + ["t/"]
    peer = await Peer.join(broker.ports[0], "c", *names)
    seen: list[str] = []
    cursor = ""
    while True:
        page = await api.get("/filters", prefix="t", limit=3, cursor=cursor)
        seen += [each["topic_filter"] for each in page["data"]]
        if not page["meta"]["hasnext"]:
            break
        cursor = page["meta"]["cursor"]
        # The very entry that the cursor names.
        await peer.unsubscribe(seen[-1])
    assert seen == sorted(names)
    peer.abort()


async def test_very_many_are_looked_at_in_turns(api: Api, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "TURN", 10)
    peer = await Peer.join(broker.ports[0], "c")
    for start in range(0, 1_000, 100):
        await peer.subscribe(*[f"t/{number}" for number in range(start, start + 100)])
    async with counted_turns() as turns:
        assert await below(api) == [("t", 0, 0, 1_000)]
    assert len(turns) >= 100
    peer.abort()


levels = st.sampled_from(["", "a", "b", "c", "d", "e", "+"])
seen = st.lists(st.tuples(st.lists(levels, min_size=1, max_size=3).map("/".join), st.booleans()), max_size=60)


@given(seen, st.sampled_from(["", "a/", "/"]), st.none() | levels, st.integers(1, 4))
def test_the_first_levels_are_counted_whole_in_whatever_order_they_come(
    subscriptions: list[tuple[str, bool]], start: str, after: str | None, most: int
) -> None:
    """As somebody counts who keeps all of them."""
    found = Levels(start, after, most)
    counts: dict[str, list[int]] = {}
    for topic_filter, shared in subscriptions:
        found.see(topic_filter, shared)
        if topic_filter.startswith(start):
            level, *more = topic_filter.removeprefix(start).split("/")
            if after is None or level > after:
                count = counts.setdefault(level, [0, 0, 0])
                count[0] += not more
                count[1] += not more and shared
                count[2] += bool(more)
    wanted = [(level, *counts[level]) for level in sorted(counts)[:most]]
    assert [(each.level, each.subscriptions, each.shared, each.below) for each in found.found()] == wanted
