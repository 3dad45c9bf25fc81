"""The checker finds what is wrong, excuses what it says it does, and says nothing of a history that is as promised."""

from __future__ import annotations

import pytest

from tests.support.history.checker import Verdict, check
from tests.support.history.history import (
    Acknowledged,
    Answered,
    Ended,
    Event,
    Fault,
    History,
    Opened,
    Received,
    Retained,
    Sent,
    Subscribed,
)

LONG = 100.0
"""A time at which every fault of these histories has been over for long."""


def opened(at: float, client: str, node: str, connection: int, present: bool = True) -> Opened:
    return Opened(at, client, node, connection, at - 0.1, present)


def sent(at: float, number: int, qos: int, retain: bool = False, node: str = "a") -> Sent:
    return Sent(at, "p", node, f"t/{qos}", number, qos, retain)


def acked(at: float, number: int, qos: int, node: str = "a") -> Acknowledged:
    return Acknowledged(at, node, f"t/{qos}", number)


def got(at: float, number: int, qos: int, node: str = "b") -> Received:
    return Received(at, "s", node, f"t/{qos}", number, qos)


BEGIN: list[Event] = [
    opened(0, "p", "a", 1, False),
    opened(0, "s", "b", 2, False),
    Subscribed(0.5, "s", "t/#"),
]
"""A publisher at a and a subscriber at b."""

GOOD: list[Event] = [
    *BEGIN,
    *(sent(number, number, qos) for qos in (1, 2) for number in (1, 2, 3)),
    *(acked(number + 0.2, number, qos) for qos in (1, 2) for number in (1, 2, 3)),
    *(got(number + 0.1, number, qos) for qos in (1, 2) for number in (1, 2, 3)),
]


def judged(*events: Event) -> Verdict:
    return check(History(list(events)))


def broken(*events: Event) -> list[str]:
    return [violation.promise for violation in judged(*events).violations]


def without(events: list[Event], *missing: Event) -> list[Event]:
    assert all(event in events for event in missing)
    return [event for event in events if event not in missing]


def test_a_good_history_has_no_violation_and_was_looked_at() -> None:
    verdict = judged(*GOOD)
    assert verdict.violations == []
    assert verdict.checked == {"at least once": 6, "as it was sent": 6, "exactly once": 3, "order": 6}
    assert not verdict.excused


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_acknowledged_and_did_not_come(qos: int) -> None:
    assert broken(*without(GOOD, got(2.1, 2, qos))) == ["at least once"]


@pytest.mark.parametrize("qos", [1, 2])
def test_one_that_was_not_acknowledged_need_not_come(qos: int) -> None:
    assert broken(*without(GOOD, got(2.1, 2, qos), acked(2.2, 2, qos))) == []


def test_one_that_was_sent_before_the_subscription_need_not_come() -> None:
    early: list[Event] = [sent(0.1, 0, 1), acked(0.2, 0, 1)]
    assert broken(*GOOD, *early) == []


def test_other_topics_need_not_come() -> None:
    other: list[Event] = [Sent(1, "p", "a", "tt/1", 9, 1), Acknowledged(2, "a", "tt/1", 9)]
    assert broken(*GOOD, *other) == []


def test_a_message_of_qos_1_may_come_twice_and_one_of_qos_2_may_not() -> None:
    assert broken(*GOOD, got(5, 3, 1)) == []
    assert broken(*GOOD, got(5, 3, 2)) == ["exactly once"]


def test_a_kill_does_not_excuse_a_second_time_in_one_session() -> None:
    again: list[Event] = [Fault(3.2, 4, "kill", ("b",)), opened(4.5, "s", "b", 3), got(5, 3, 2)]
    assert broken(*GOOD, *again) == ["exactly once"]


def test_a_session_that_moved_does_not_excuse_a_second_time() -> None:
    assert broken(*GOOD, opened(4.5, "s", "c", 3), got(5, 3, 2, "c")) == ["exactly once"]


@pytest.mark.parametrize(
    "torn",
    [
        [Fault(4.3, 6, "cut", ("b", "c")), opened(4.5, "s", "c", 3, present=False)],
        [Fault(4.3, 6, "cut", ("b", "c")), opened(4.5, "s", "c", 3)],
        [opened(4.5, "s", "c", 3), Fault(4.6, 6, "kill", ("b",))],
    ],
    ids=["lost", "disturbed", "disturbed on the way"],
)
def test_what_a_client_of_two_sessions_gets_is_excused(torn: list[Event]) -> None:
    verdict = judged(*GOOD, *torn, got(5, 3, 2, "c"))
    assert verdict.violations == []
    assert verdict.excused["exactly once"] == 1


def test_but_not_what_came_before_it_had_two() -> None:
    apart = Fault(4.3, 6, "cut", ("b", "c"))
    assert broken(*GOOD, got(4, 3, 2), apart, opened(4.5, "s", "c", 3)) == ["exactly once"]


def test_nor_what_was_published_when_it_had_one_again() -> None:
    apart: list[Event] = [Fault(4.3, 6, "cut", ("b", "c")), opened(4.5, "s", "c", 3)]
    again: list[Event] = [sent(20, 4, 2), acked(20.2, 4, 2), got(20.1, 4, 2, "c"), got(20.3, 4, 2, "c")]
    assert broken(*GOOD, *apart, *again) == ["exactly once"]


@pytest.mark.parametrize(("present", "found"), [(False, []), (True, ["exactly once"])])
def test_while_it_has_two_it_may_come_to_have_two_for_longer(present: bool, found: list[str]) -> None:
    """It is told again that there is none: what there was comes after that. A move like any other says nothing."""
    moves: list[Event] = [opened(4.5, "s", "c", 3, present=False), opened(7.2, "s", "d", 4, present)]
    twice: list[Event] = [sent(9, 4, 2), acked(9.1, 4, 2), got(9.1, 4, 2, "d"), got(9.3, 4, 2, "d")]
    assert broken(*GOOD, Fault(4.3, 4.4, "cut", ("b", "c")), *moves, *twice) == found


def test_nor_what_a_fault_between_other_nodes_has_nothing_to_do_with() -> None:
    for fault in (Fault(4.3, 6, "cut", ("a", "d")), Fault(4.3, 6, "cut", ("b", "d"))):
        assert broken(*GOOD, fault, opened(4.5, "s", "c", 3), got(5, 3, 2, "c")) == ["exactly once"]


def test_a_client_that_does_not_find_its_session() -> None:
    lost = opened(4.5, "s", "c", 3, present=False)
    assert broken(*GOOD, lost) == ["session kept"]
    assert broken(*GOOD, Fault(4.3, 6, "cut", ("a", "c")), lost) == ["session kept"]
    assert broken(*GOOD, Fault(4.3, 6, "cut", ("b", "c")), lost) == []
    assert broken(*GOOD, Fault(3.5, 4, "kill", ("b",)), opened(4.5, "s", "b", 3, present=False)) == ["session kept"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_comes_behind_a_later_one(qos: int) -> None:
    events = [*without(GOOD, got(2.1, 2, qos)), got(3.5, 2, qos)]
    assert broken(*events) == ["order"]


def test_first_deliveries_count() -> None:
    """What is sent again comes again, behind others [MQTT-4.6.0-6]."""
    assert broken(*GOOD, got(4, 1, 1), got(4, 2, 1), got(4, 3, 1)) == []


def test_what_nobody_sent() -> None:
    assert broken(*GOOD, got(5, 77, 1)) == ["as it was sent"]


def test_a_message_that_came_with_more_than_its_qos() -> None:
    assert broken(*GOOD, sent(4, 4, 1), Received(5, "s", "b", "t/1", 4, 2)) == ["as it was sent"]


def test_a_message_that_waited_for_a_node_that_could_not_be_reached_outlives_its_process() -> None:
    lost = without(GOOD, got(3.1, 3, 1))
    apart = Fault(2.5, 20, "cut", ("a", "b"))
    assert broken(*lost, apart) == ["at least once"]
    assert broken(*lost, apart, Fault(10, 12, "kill", ("a",))) == ["at least once"]


def test_a_session_that_moved_while_a_third_node_could_not_be_reached() -> None:
    lost = without(GOOD, got(3.1, 3, 1))
    alone = Fault(2.5, 6, "alone", ("a", "c"))
    moved = opened(5, "s", "c", 3)
    assert broken(*lost, moved) == ["at least once"]
    assert broken(*lost, alone) == ["at least once"]
    assert broken(*lost, alone, opened(5, "s", "b", 3)) == ["at least once"]
    assert broken(*lost, Fault(2.5, 6, "alone", ("b", "d")), moved) == ["at least once"]
    assert broken(*lost, alone, opened(20, "s", "c", 3)) == ["at least once"]
    assert broken(*lost, Fault(2.5, 6, "alone", ("a", "d")), moved) == ["at least once"]
    assert broken(*lost, Fault(4.5, 6, "alone", ("a", "c")), moved) == ["at least once"]
    assert broken(*lost, alone, moved) == ["at least once"]
    # Unless one of its own nodes ended before that node could be reached again.
    for node in "bc":
        killed = Fault(5.5, 5.8, "kill", (node,))
        assert broken(*lost, alone, moved, killed) == []
        assert broken(*lost, moved, killed) == ["at least once"]
        # What had come before it moved comes again.
        assert broken(*GOOD, alone, moved, killed, got(7, 3, 2, "c")) == []
    assert broken(*GOOD, alone, moved, got(7, 3, 2, "c")) == ["exactly once"]
    assert broken(*lost, alone, moved, Fault(5.5, 5.8, "kill", ("d",))) == ["at least once"]
    assert broken(*lost, alone, moved, Fault(3.5, 3.8, "kill", ("b",))) == ["at least once"]
    assert broken(*lost, alone, moved, Fault(20, 21, "kill", ("c",))) == ["at least once"]


def test_a_third_node_that_is_lost_while_a_session_moves_is_no_excuse() -> None:
    moved = opened(3.3, "s", "d", 9)
    for nodes in (("a", "d"), ("a", "b"), ("a",)):
        assert broken(*GOOD, moved, Fault(3.25, 9, "cut", nodes), got(13, 3, 2, "d")) == ["exactly once"]
    assert broken(*GOOD, moved, Fault(3.25, 9, "cut", ("b", "d")), got(13, 3, 2, "d")) == []


def test_a_process_that_ended_before_it_had_acknowledged_a_message() -> None:
    killed, too = Fault(3.05, 3.1, "kill", ("a",)), Fault(3.06, 3.1, "kill", ("b",))
    lost = without(GOOD, got(3.1, 3, 2))
    assert broken(*lost, killed) == ["at least once"]
    assert broken(*lost, too) == ["at least once"]
    assert broken(*lost, killed, too) == []
    assert broken(*lost, killed, opened(3.06, "s", "c", 9)) == []
    assert broken(*lost, killed, opened(7, "s", "c", 9)) == ["at least once"]
    assert broken(*without(GOOD, got(3.1, 3, 1)), killed) == ["at least once"]
    assert broken(*GOOD, killed, got(5, 3, 2)) == ["exactly once"]
    assert broken(*GOOD, killed, too, got(5, 3, 2)) == []
    assert broken(*GOOD, killed, too, got(5, 1, 2)) == ["exactly once"]
    assert broken(*lost, Fault(3.3, 4, "kill", ("a",)), Fault(3.3, 4, "kill", ("b",))) == ["at least once"]


def test_a_publisher_with_two_sessions() -> None:
    """One of them may know a packet identifier that the other has released."""
    moved: list[Event] = [Fault(2.5, 5, "cut", ("a", "d")), opened(2.8, "p", "d", 9)]
    assert broken(*without(GOOD, got(3.1, 3, 2)), *moved) == []
    assert broken(*without(GOOD, got(3.1, 3, 1)), *moved) == ["at least once"]
    assert broken(*without(GOOD, got(3.1, 3, 2)), *moved[1:]) == ["at least once"]
    assert broken(*without(GOOD, got(1.1, 1, 2)), *moved) == ["at least once"]


def test_a_process_that_began_without_the_node_of_a_subscriber_that_had_just_come_there() -> None:
    lost = without(GOOD, got(3.1, 3, 1))
    came: list[Event] = [opened(0.7, "s", "c", 3), opened(0.9, "s", "b", 4)]
    begun = Fault(1.5, 2.8, "kill", ("a",))
    apart = Fault(1.4, 5, "cut", ("a", "b"))
    assert broken(*lost, begun, *came) == ["at least once"]
    assert broken(*lost, begun, *came, Fault(1.4, 2, "cut", ("a", "d"))) == ["at least once"]
    assert broken(*lost, apart, *came) == ["at least once"]
    assert broken(*lost, begun, apart) == ["at least once"]
    assert broken(*lost, begun, apart, *came) == []


def test_what_a_publisher_that_moved_publishes_may_overtake_what_waits_for_a_node() -> None:
    late = [*without(GOOD, got(2.1, 2, 1)), got(5, 2, 1)]
    apart, moved = Fault(1.9, 4, "cut", ("a", "b")), opened(2.5, "p", "d", 9)
    assert broken(*late, apart) == ["order"]
    assert broken(*late, apart, moved) == ["order"]
    late = [*without(late, sent(3, 3, 1), acked(3.2, 3, 1)), moved, sent(3, 3, 1, node="d"), acked(3.2, 3, 1, "d")]
    assert broken(*late) == ["order"]
    assert broken(*late, Fault(1.9, 4, "cut", ("b", "d"))) == ["order"]
    assert broken(*late, apart) == []


def test_a_session_that_moves_without_a_third_node_keeps_the_order() -> None:
    late = [*without(GOOD, got(2.1, 2, 1), got(3.1, 3, 1)), got(3.4, 3, 1, "d"), got(3.4, 2, 1, "d")]
    assert broken(*late, opened(3.3, "s", "d", 9), Fault(3.0, 4, "kill", ("c",))) == ["order"]


RETAINED: list[Event] = [
    *BEGIN,
    *(sent(number, number, 1, retain=True) for number in (1, 2, 3)),
    *(acked(number + 0.2, number, 1) for number in (1, 2)),
    *(got(number + 0.1, number, 1) for number in (1, 2, 3)),
]
"""Two of three were acknowledged."""


@pytest.mark.parametrize("last", [2, 3])
def test_retained_is_the_last_acknowledged_or_a_later_one(last: int) -> None:
    ends = [Retained(LONG, node, (("t/1", last),)) for node in "ab"]
    assert broken(*RETAINED, *ends) == []


@pytest.mark.parametrize("found", [(("t/1", 1),), (), (("t/1", 4),)], ids=["old", "none", "made up"])
def test_retained_is_something_else(found: tuple[tuple[str, int], ...]) -> None:
    assert broken(*RETAINED, Retained(LONG, "a", found)) == ["retained, the last"]


def test_nodes_retain_different_messages() -> None:
    ends = [Retained(LONG, "a", (("t/1", 2),)), Retained(LONG + 1, "b", (("t/1", 3),))]
    assert broken(*RETAINED, *ends) == ["retained, the same"]


TWO: list[Event] = [opened(1, "c", "a", 1, False), opened(2, "c", "b", 2)]
"""A client that has two connections."""


def test_a_connection_that_ended_for_a_later_one() -> None:
    verdict = judged(*TWO, Ended(2.1, "c", 1, 0x8E))
    assert verdict.violations == []
    assert verdict.checked == {"session kept": 1, "one connection": 1, "told 0x8E": 1}


def test_an_earlier_connection_that_still_answers() -> None:
    still = Answered(3.1, "c", 1, 3.0)
    assert broken(*TWO, still) == ["one connection"]
    assert broken(*TWO, Answered(3.1, "c", 1, 1.9)) == []
    assert broken(*TWO, Answered(3.1, "c", 2, 3.0)) == []
    assert broken(*TWO, Fault(1.5, 5, "cut", ("a", "b")), still) == []


@pytest.mark.parametrize("code", [None, 0x8B])
def test_a_connection_that_ended_with_another_code(code: int | None) -> None:
    assert broken(*TWO, Ended(2.1, "c", 1, code)) == ["told 0x8E"]
    assert broken(*TWO, Ended(2.1, "c", 1, code, own=True)) == []
    assert broken(*TWO, Ended(2.1, "c", 1, code), Fault(2, 3, "kill", ("a",))) == []


def test_a_connection_that_was_over_before_is_nobody_s() -> None:
    assert broken(opened(1, "c", "a", 1, False), Ended(1.5, "c", 1, None), opened(2, "c", "b", 2)) == []
