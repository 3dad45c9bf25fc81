"""What hangs at one topic filter: adding, leaving, versions, turns, and that none of it depends on the crowd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.queues.delivery import SubscriptionQueue
from broker.core.queues.policies.queue_policy import LATEST
from broker.core.topics.subscription import CHANGES_KEPT, FREE_SLOTS, FilterEntry, SharedGroup, Subscriber, Subscription


def subscription(topic_filter: str = "a/+", qos: int = 0) -> Subscription:
    return Subscription(Subscriber(), topic_filter, qos)


def group_of(one: Subscription) -> SharedGroup | None:
    return one.group


def sole(entry: FilterEntry) -> Subscription | None:
    return entry.sole


def retired(entry: FilterEntry) -> bool:
    return entry.retired


def test_options_are_kept() -> None:
    session = Subscriber()
    made = Subscription(session, "$share/g/a", 2, True, True, 1, 268_435_455)
    assert made.session is session
    assert made.topic_filter == "$share/g/a"
    assert (made.qos, made.no_local, made.retain_as_published, made.retain_handling) == (2, True, True, 1)
    assert made.identifier == 268_435_455
    assert made.entry is None
    assert made.group is None


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_comes_and_goes(count: int) -> None:
    entry = FilterEntry("a/+")
    assert entry.empty
    crowd = [subscription() for _ in range(count)]
    for one in crowd:
        entry.add(one)
        assert one.entry is entry
        assert not entry.empty
    assert entry.subscriptions == crowd
    assert entry.subscriber_count == count
    assert entry.sole is (crowd[0] if count == 1 else None)
    for left in range(count, 0, -1):
        assert (entry.sole is not None) == (left == 1)
        one = crowd.pop(left // 2)
        assert entry.discard(one)
        assert one.entry is None
        assert not entry.discard(one)
        assert set(entry.subscriptions) == set(crowd)
        assert [each.slot for each in entry.subscriptions] == list(range(left - 1))
    assert entry.empty
    assert entry.subscriptions == []
    assert entry.subscriber_count == 0


def test_hangs_in_one_place_only() -> None:
    one = subscription()
    entry, other = FilterEntry("a/+"), FilterEntry("b")
    entry.add(one)
    with pytest.raises(ValueError, match="already hangs"):
        other.add(one)
    with pytest.raises(ValueError, match="already hangs"):
        entry.add(one, "g")
    assert not other.discard(one)
    assert entry.subscriptions == [one]
    assert other.empty


def test_an_entry_that_left_the_trie_takes_nobody() -> None:
    entry = FilterEntry("a")
    one = subscription("a")
    entry.add(one)
    with pytest.raises(ValueError, match="still listens"):
        entry.retire()
    assert entry.subscriptions == [one]
    entry.discard(one)
    entry.retire()
    assert retired(entry)
    for group in ("", "g"):
        with pytest.raises(ValueError, match="has left the trie"):
            entry.add(one, group)
    assert one.entry is None
    assert entry.empty
    assert entry.subscriptions == []
    assert entry.groups == {}


def test_every_change_raises_the_version() -> None:
    entry = FilterEntry("a")
    seen = [entry.version]
    ordinary, shared = subscription(), subscription()
    entry.add(ordinary)
    seen.append(entry.version)
    entry.add(shared, "g")
    seen.append(entry.version)
    entry.touch(ordinary)
    seen.append(entry.version)
    entry.discard(shared)
    seen.append(entry.version)
    entry.discard(ordinary)
    seen.append(entry.version)
    assert seen == sorted(set(seen))
    entry.discard(ordinary)
    assert entry.version == seen[-1]


def test_who_changed_is_written_down() -> None:
    """For an entry with several subscriptions that is watched: whose subscriptions changed since a version."""
    entry = FilterEntry("a")
    assert entry.watch() is None
    many = [subscription() for _ in range(3)]
    for one in many:
        entry.add(one)
    changed = entry.watch()
    assert changed is not None
    assert entry.watch() is changed
    start = entry.version
    assert changed.since(start, entry.version) == []
    entry.touch(many[1])
    entry.discard(many[0])
    shared = subscription()
    entry.add(shared, "g")
    entry.discard(shared)
    entry.add(many[0])
    assert changed.since(start, entry.version) == [many[1].session, many[0].session, many[0].session]
    assert changed.since(start + 4, entry.version) == [many[0].session]
    assert changed.since(start - 1, entry.version) is None


def test_changes_that_are_remembered_are_bounded() -> None:
    """Beyond, nobody knows; the latest are there."""
    entry = FilterEntry("a")
    many = [subscription() for _ in range(3)]
    for one in many:
        entry.add(one)
    changed = entry.watch()
    assert changed is not None
    for number in range(10_000):
        before = entry.version
        entry.touch(many[number % 3])
        assert changed.since(before, entry.version) == [many[number % 3].session]
        assert len(changed._subscribers) <= 2 * CHANGES_KEPT
    assert changed.since(entry.version - CHANGES_KEPT, entry.version) is not None
    assert changed.since(3, entry.version) is None
    for one in many:
        entry.discard(one)
    assert changed.since(entry.version - 1, entry.version) is None


def test_changes_are_written_down_for_those_who_watch_only() -> None:
    entry = FilterEntry("a")
    many = [subscription() for _ in range(3)]
    for one in many:
        entry.add(one)
    first, second = entry.watch(), entry.watch()
    assert first is not None
    assert first is second
    entry.unwatch(first)
    entry.touch(many[0])
    assert first.since(entry.version - 1, entry.version) == [many[0].session]
    entry.unwatch(first)
    entry.touch(many[0])
    assert first.since(entry.version - 2, entry.version) is None
    again = entry.watch()
    assert again is not first
    # One that ends with the company of the last subscriber is not read as the next one.
    entry.discard(many[0])
    entry.discard(many[1])
    assert entry.sole is many[2]
    entry.add(many[0])
    assert again is not None
    assert again.since(entry.version - 1, entry.version) is None
    entry.unwatch(again)
    assert entry.watch() is not again


@pytest.mark.parametrize("visitors", [("",), ("g",), ("", "g"), ("g", ""), ("", "", "g", "h", "g")])
def test_company_that_leaves_leaves_nothing(visitors: tuple[str, ...]) -> None:
    """Whoever came beside the only subscriber: what is there afterwards is what was there before, and `sole` too."""
    entry = FilterEntry("a")
    staying = subscription()
    entry.add(staying)
    for order in (1, -1):
        crowd = [(subscription(), name) for name in visitors]
        for one, name in crowd:
            entry.add(one, name)
        assert sole(entry) is None
        entry.took_one_by_one(2)
        for one, _ in crowd[::order]:
            assert sole(entry) is None
            entry.discard(one)
        assert sole(entry) is staying
        assert entry.slow == 0
    other = subscription()
    entry.add(other)
    entry.discard(staying)
    assert sole(entry) is other
    entry.discard(other)
    assert entry.empty


def test_those_who_are_slow_are_no_more_than_there_are() -> None:
    entry = FilterEntry("a")
    many = [subscription() for _ in range(10)]
    for one in many:
        entry.add(one)
    entry.took_one_by_one(9)
    assert entry.slow == 9
    for one in many[:8]:
        entry.discard(one)
    assert entry.slow == 2


def test_share_groups() -> None:
    """Members of one share name at one filter are a group, apart from ordinary subscribers (section 4.8.2)."""
    entry = FilterEntry("a")
    ordinary, first, second, other = (subscription() for _ in range(4))
    entry.add(first, "g")
    assert entry.sole is None
    entry.add(ordinary)
    entry.add(second, "g")
    entry.add(other, "h")
    group = first.group
    assert group is not None
    assert group.entry is entry
    assert second.group is group
    assert other.group is not group
    assert ordinary.group is None
    assert entry.subscriptions == [ordinary]
    assert sorted(entry.groups) == ["g", "h"]
    assert group.members == [first, second]
    assert entry.subscriber_count == 4
    entry.discard(ordinary)
    entry.discard(first)
    assert group.members == [second]
    assert group_of(first) is None
    entry.discard(second)
    assert sorted(entry.groups) == ["h"]
    assert entry.subscriber_count == 1
    entry.discard(other)
    assert entry.empty
    assert entry.groups == {}


def test_turns_go_round() -> None:
    entry = FilterEntry("a")
    members = [subscription() for _ in range(3)]
    for member in members:
        entry.add(member, "g")
    group = entry.groups["g"]
    assert [group.next_member() for _ in range(7)] == [*members, *members, members[0]]


def test_turns_survive_members_that_leave() -> None:
    entry = FilterEntry("a")
    members = [subscription() for _ in range(3)]
    for member in members:
        entry.add(member, "g")
    group = entry.groups["g"]
    for _ in range(3):
        group.next_member()
    entry.discard(members[1])
    assert {group.next_member(), group.next_member()} == {members[0], members[2]}
    entry.discard(members[0])
    assert group.next_member() is members[2]
    entry.discard(members[2])
    assert group.next_member() is None


def test_turns_are_for_those_who_are_connected() -> None:
    entry = FilterEntry("a")
    members = [subscription() for _ in range(5)]
    for member in members:
        entry.add(member, "g")
    group = entry.groups["g"]
    version = entry.version
    for member in members[1:3]:
        member.session.connected = True
        group.place(member)
        group.place(member)  # says nothing new
    assert group.connected.members == members[1:3]
    assert {id(member) for member in group.away.members} == {id(member) for member in (members[0], *members[3:])}
    assert group.size == len(group.members) == entry.subscriber_count == 5
    assert [group.next_member() for _ in range(4)] == members[1:3] * 2
    members[1].session.connected = False
    group.place(members[1])
    assert [group.next_member() for _ in range(2)] == [members[2]] * 2
    members[2].session.connected = False
    group.place(members[2])
    assert {id(group.next_member()) for _ in range(5)} == {id(member) for member in members}
    assert entry.version == version


def test_a_connected_subscriber_joins_among_the_connected() -> None:
    entry = FilterEntry("a")
    session = Subscriber()
    session.connected = True
    here, there = Subscription(session, "$share/g/a"), subscription()
    entry.add(there, "g")
    entry.add(here, "g")
    group = entry.groups["g"]
    assert (group.connected.members, group.away.members, session.shared, there.session.shared) == (
        [here],
        [there],
        1,
        1,
    )
    entry.add(one := Subscription(session, "a"))
    assert session.shared == 1
    for leaving in (here, there, one):
        entry.discard(leaving)
    assert (session.shared, there.session.shared) == (0, 0)
    assert entry.empty


@pytest.mark.parametrize("count", [10, 1_000, 20_000])
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
            moving.session.connected = connected
            group.place(moving)
            moved = [one for one, slot in zip(crowd, before, strict=True) if one is not moving and one.slot != slot]
            assert len(moved) <= 1
            assert moving in (group.connected if connected else group.away).members


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "come", "go"]), st.integers(0, 9)), max_size=60))
def test_members_in_any_order_of_changes(changes: list[tuple[str, int]]) -> None:
    """Against a model: who stands in which of a group's two lists, each in the slot that it says."""
    entry = FilterEntry("a")
    pool = [subscription() for _ in range(10)]
    inside: set[int] = set()
    there: set[int] = set()
    for what, number in changes:
        one = pool[number]
        if what == "join" and number not in inside:
            entry.add(one, "g")
            inside.add(number)
        elif what == "leave":
            assert entry.discard(one) is (number in inside)
            inside.discard(number)
        elif what in {"come", "go"}:
            one.session.connected = what == "come"
            (there.add if what == "come" else there.discard)(number)
            group = one.group
            if group is not None:
                group.place(one)
        assert entry.subscriber_count == len(inside)
        assert [one.session.shared for one in pool] == [int(n in inside) for n in range(10)]
        if inside:
            group = entry.groups["g"]
            for turns, expected in ((group.connected, inside & there), (group.away, inside - there)):
                assert {id(one) for one in turns.members} == {id(pool[n]) for n in expected}
                assert turns.count == len(expected)
                assert all(turns.slots[one.slot] is one for one in turns.members)
                assert len(turns.slots) <= 2 * turns.count + FREE_SLOTS


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("count", [10, 1_000, 20_000])
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


@given(st.lists(st.tuples(st.sampled_from(["", "g", "h"]), st.integers(0, 9), st.booleans()), max_size=60))
def test_any_order_of_changes(changes: list[tuple[str, int, bool]]) -> None:
    """Against a model: who hangs where, each in the slot that it says."""
    entry = FilterEntry("a")
    pool = [subscription() for _ in range(10)]
    model: dict[int, str] = {}
    for group_name, number, joins in changes:
        if joins and number not in model:
            entry.add(pool[number], group_name)
            model[number] = group_name
        elif not joins:
            assert entry.discard(pool[number]) is (number in model)
            model.pop(number, None)
        names = set(model.values())
        assert set(entry.groups) == names - {""}
        for name in names | {""}:
            here = entry.subscriptions if name == "" else entry.groups[name].members
            assert {id(one) for one in here} == {id(pool[n]) for n, at in model.items() if at == name}
            if name == "":
                assert [one.slot for one in here] == list(range(len(here)))
        assert entry.empty is (not model)
        assert entry.subscriber_count == len(model)


def test_terms_of_its_own() -> None:
    """None until somebody gives some; they are the subscription's, and change nothing for others at its filter."""
    entry = FilterEntry("a/+")
    one, other = subscription(), subscription()
    assert one.sub_queue is None
    sub_queue = SubscriptionQueue(one.session, LATEST, 0.0, 0)
    one.sub_queue = sub_queue
    entry.add(one)
    entry.add(other)
    assert [each.sub_queue for each in entry.subscriptions] == [sub_queue, None]
    entry.discard(other)
    assert one.sub_queue is sub_queue
    assert sub_queue.session is one.session
