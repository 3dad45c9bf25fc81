"""What hangs at one topic filter: adding, leaving, versions, turns, and that none of it depends on the crowd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import (
    MAX_FREE_SLOTS,
    FilterEntry,
    Subscription,
)
from canopy_mqtt.core.topics.trie import NodeTrie
from tests.support.runs import for_each
from tests.support.sessions import any_session, members


def subscription(topic_filter: str = "a/+", qos: int = 0) -> Subscription:
    return Subscription(any_session(), topic_filter, qos)


def connect(session: Session, connected: bool) -> None:
    """Give a session a connection, or take it away."""
    session.send_buffer = SendBuffer([], Counters(), 0, 0) if connected else None


def is_empty(entry: FilterEntry) -> bool:
    return entry.only is None and entry.many is None


def test_an_entry_that_left_the_trie_takes_nobody() -> None:
    trie = NodeTrie()
    entry = trie.insert("a")
    one = subscription("a")
    entry.add(one)
    entry.discard(one)
    trie.remove(entry)
    assert entry.retired
    for group in ("", "g"):
        with pytest.raises(ValueError, match="has left the trie"):
            entry.add(one, group)
    assert one.entry is None
    assert is_empty(entry)
    assert entry.subscriptions == []
    assert entry.groups == {}


@for_each("count", [10, 1_000, 20_000])
def test_coming_and_going_touches_one_other_at_most(count: int) -> None:
    """The same for a member whose client comes or goes: at most one other gets another slot."""
    entry = FilterEntry("same/key")
    crowd = [subscription("same/key") for _ in range(count)]
    for one in crowd:
        entry.add(one, "g")
    group = entry.groups["g"]
    for connected in (True, False):
        for moving in (crowd[0], crowd[count // 2], crowd[-1]):
            before = [one.slot for one in crowd]
            connect(moving.session, connected)
            group.place(moving)
            moved = [one for one, slot in zip(crowd, before, strict=True) if one is not moving and one.slot != slot]
            assert len(moved) <= 1
            assert moving in members(group.connected if connected else group.away)


@for_each("group", ["", "g"])
@for_each("count", [10, 1_000, 20_000])
def test_leaving_touches_one_other_at_most(count: int, group: str) -> None:
    """Work counted in records: whoever leaves, at most one other gets another slot, however many share the filter."""
    entry = FilterEntry("same/key")
    crowd = [subscription("same/key") for _ in range(count)]
    for one in crowd:
        entry.add(one, group)
    for leaving in (crowd[0], crowd[count // 2], crowd[-1]):
        before = [one.slot for one in crowd]
        entry.discard(leaving)
        moved = [one for one, slot in zip(crowd, before, strict=True) if one is not leaving and one.slot != slot]
        assert len(moved) <= 1
        before = [one.slot for one in crowd if one is not leaving]
        entry.add(leaving, group)
        assert [one.slot for one in crowd if one is not leaving] == before


STEPS = st.tuples(st.sampled_from(["join", "leave", "come", "go"]), st.sampled_from(["", "g", "h"]), st.integers(0, 9))


@given(st.lists(STEPS, max_size=60))
def test_any_order_of_changes(steps: list[tuple[str, str, int]]) -> None:
    """Against a model: who hangs where, and in which of a group's two lists, each in the slot that it says."""
    entry = FilterEntry("a")
    pool = [subscription() for _ in range(10)]
    model: dict[int, str] = {}
    there: set[int] = set()
    for what, name, number in steps:
        one = pool[number]
        if what == "join" and number not in model:
            entry.add(one, name)
            model[number] = name
        elif what == "leave":
            assert entry.discard(one) is (number in model)
            model.pop(number, None)
        elif what in {"come", "go"}:
            connect(one.session, what == "come")
            (there.add if what == "come" else there.discard)(number)
            if one.group is not None:
                one.group.place(one)
        names = set(model.values())
        assert set(entry.groups) == names - {""}
        assert {id(one) for one in entry.subscriptions} == {id(pool[n]) for n, at in model.items() if at == ""}
        assert [one.slot for one in entry.subscriptions] == list(range(len(entry.subscriptions)))
        for group in entry.groups.values():
            inside = {n for n, at in model.items() if at == group.name}
            for turns, expected in ((group.connected, inside & there), (group.away, inside - there)):
                assert {id(one) for one in members(turns)} == {id(pool[n]) for n in expected}
                assert turns.count == len(expected)
                assert all(turns.slots[one.slot] is one for one in members(turns))
                assert len(turns.slots) <= 2 * turns.count + MAX_FREE_SLOTS
        assert [one.session.shared for one in pool] == [int(model.get(n, "") != "") for n in range(10)]
        assert is_empty(entry) is (not model)
        assert int(entry.ordinary_count) + sum(group.size for group in entry.groups.values()) == len(model)
