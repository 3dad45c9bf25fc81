"""The number of a QoS 2 publish, by which nodes know it when it comes again."""

from __future__ import annotations

import pytest

from broker.core.routing.remote.node_tags import with_number
from broker.core.routing.remote.publish_numbers import GONE, HEARD, KEPT, MOST_DIGITS, PublishNumbers
from broker.store.tools.rows import LARGEST_NUMBER
from tests.e2e import wire

OWN = wire.packet(3, 0, wire.properties([(wire.USER_PROPERTY, ("canopy-publish", "5"))]))[3:]
"""What a client may write."""


def came(numbers: PublishNumbers, number: int, share: str = "", node: str = "a") -> bool:
    return numbers.take(node, with_number(b"", number), share) == b""


@pytest.fixture
def numbers() -> PublishNumbers:
    made = PublishNumbers()
    made.know("a", True)
    return made


def test_no_number_comes_twice(numbers: PublishNumbers) -> None:
    given = {each.next() for each in (numbers, PublishNumbers()) for _ in range(1_000)}
    assert len(given) == 2_000
    assert 0 < min(given) < max(given) < LARGEST_NUMBER


def test_each_is_taken_once_from_a_node(numbers: PublishNumbers) -> None:
    """For each share group that it has chosen, and for all who have subscribed without one."""
    numbers.know("b", True)
    assert came(numbers, 7)
    assert came(numbers, 8)
    assert came(numbers, 7, "$share/g/x")
    assert not came(numbers, 7)
    assert not came(numbers, 7, node="b")
    assert not came(numbers, 7, "$share/g/x")


def test_a_node_that_comes_back_is_known(numbers: PublishNumbers) -> None:
    """Also when it was given up, unless so many were given up since; not as one that gives no numbers."""
    assert came(numbers, 7)
    numbers.give_up("a")
    for number in range(GONE - 1):
        numbers.give_up(f"b{number}")
    assert not came(numbers, 7)
    numbers.know("a", True)
    numbers.give_up("c")
    assert not came(numbers, 7)
    numbers.give_up("a")
    for number in range(GONE):
        numbers.give_up(f"d{number}")
    numbers.know("a", True)
    assert came(numbers, 7)
    numbers.know("a", False)
    numbers.know("a", True)
    assert came(numbers, 7)


def test_what_was_published_here_or_has_come_from_any_node_is_known(numbers: PublishNumbers) -> None:
    """It does not come from another one; in a share group that may choose a client of this node again."""
    numbers.know("b", True)
    own = numbers.next()
    numbers.keep([8])
    assert came(numbers, 7)
    assert [numbers.knows(each) for each in (own, own + 1, 7, 8, 9)] == [True, False, True, True, False]
    assert [came(numbers, each, node="b") for each in (own, own + 1, 7, 8, 9)] == [False, True, False, False, True]
    assert came(numbers, own, "$share/g/x", node="b")


def test_so_many_are_kept(numbers: PublishNumbers) -> None:
    numbers.keep(range(1, KEPT + 2))
    assert [numbers.knows(each) for each in (1, 2, KEPT + 1)] == [False, True, True]


def test_the_last_ones_are_known(numbers: PublishNumbers) -> None:
    assert all(came(numbers, number) for number in range(1, HEARD + 2))
    assert not came(numbers, 2)
    assert not came(numbers, HEARD + 1)
    assert came(numbers, 1)


def test_a_number_takes_as_little_whatever_a_share_group_or_a_node_calls_itself(numbers: PublishNumbers) -> None:
    """Else one client with a long name of a group makes every other node keep a gigabyte (`HEARD` of 64 KiB)."""
    assert came(numbers, 7, f"$share/{'g' * 60_000}/x")
    assert not came(numbers, 7, f"$share/{'g' * 60_000}/x")
    assert came(numbers, 7, f"$share/{'g' * 60_001}/x")
    assert len(str(LARGEST_NUMBER)) <= MOST_DIGITS
    assert numbers.take("a", OWN[:-3] + wire.string("9" * 60_000), "") == b""
    assert max(map(len, numbers._heard["a"].known)) < 64


def test_what_a_client_has_written_stands_as_it_was(numbers: PublishNumbers) -> None:
    """It is no number, also where the message has none, nor does a node that gives none have any [MQTT-3.3.2-17]."""
    for number in (7, 8, 0, 0):
        assert numbers.take("a", with_number(OWN, number), "") == OWN
    assert numbers.take("a", with_number(OWN, 7), "") is None
    assert numbers.take("unknown", OWN, "") == OWN


def test_numbers_of_publishes_that_may_come_again_are_known_the_last_ones() -> None:
    """Not those that were acknowledged, or that all nodes have: 0."""
    numbers = PublishNumbers()
    sessions: list[dict[int, int]] = [{}, {}]
    given = []
    for packet_id in range(1, HEARD + 1):
        for session in sessions:
            given.append(numbers.next())
            session[packet_id] = given[-1]
            numbers.gave(given[-1], session, packet_id)
    assert numbers.given_since(0) == given[: -HEARD - 1 : -1]
    assert numbers.given_since(given[-3]) == given[:-3:-1]
    del sessions[0][HEARD]
    sessions[1][HEARD] = 0
    assert numbers.given_since(given[-5]) == given[-3:-5:-1]
    assert numbers.given_since(numbers.last) == []
