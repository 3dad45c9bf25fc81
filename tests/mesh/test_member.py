"""Two nodes that greet each other over a line that loses what it wants."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mesh import frames
from broker.mesh.bus import ProtocolFault
from broker.mesh.member import ANSWER, JOINED, LEFT, Member

ROUNDS: Final = 4
"""In so many rounds of greetings and signs of life two nodes are there for each other again, whatever happened."""


class Side:
    """What one node has of the other: what it sends stands in `line`, until `other` hears it."""

    def __init__(self, incarnation: int, versions: tuple[int, int] = (1, 1)) -> None:
        self.epochs: Callable[[], int] = itertools.count(incarnation).__next__
        self.member = Member("other", incarnation, versions, self.epochs)
        self.incarnation = incarnation
        self.line: deque[bytes] = deque()
        self.other: Side
        # As the rooms see it: how often it joined, whether it is there, what was sent and heard since.
        self.joined = 0
        self.there = False
        self.sent = 0
        self.heard: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []

    def greet(self) -> None:
        if not self.member.there and not self.member.refused:
            self.line.append(self.member.greeting())

    def say(self) -> None:
        if self.there:
            text = f"{self.joined}/{self.sent}".encode()
            self.sent += 1
            self.line.append(self.member.frame([frames.message(1, text)], 0.0))

    def beat(self) -> None:
        if self.there:
            self.line.append(self.member.frame([], 0.0))

    def leave(self) -> None:
        left = self.member.begin_anew()
        assert bool(left) == self.there
        self.there = False

    def hear(self, data: bytes) -> None:
        messages: list[tuple[int, bytes]] = []
        if data[0] == frames.GREETING:
            outcome = self.member.hears_greeting(data, 0.0)
        else:
            outcome, messages = self.member.hears_frame(data, 0.0)
        assert not (outcome & LEFT and outcome & JOINED)
        if outcome & LEFT:
            assert self.there
            self.there = False
        if outcome & ANSWER:
            self.line.append(self.member.greeting())
        if outcome & JOINED:
            assert not self.there
            self.there = True
            self.joined += 1
            self.sent = 0
            self.heard = []
        for _, text in messages:
            assert self.there
            epoch, number = map(int, text.split(b"/"))
            self.heard.append((epoch, number))
        assert self.member.there == self.there
        # Once and in order, all of one time that the other was there.
        assert [number for _, number in self.heard] == list(range(len(self.heard)))
        assert len({epoch for epoch, _ in self.heard}) <= 1

    def hear_one(self) -> None:
        if self.other.line:
            self.hear(self.other.line.popleft())


def two(versions: tuple[int, int] = (1, 1), others: tuple[int, int] = (1, 1)) -> tuple[Side, Side]:
    a, b = Side(1_000_000, versions), Side(2_000_000, others)
    a.other, b.other = b, a
    return a, b


def settle(a: Side, b: Side) -> None:
    """Let both greet, give signs of life and hear, until nothing is on the way; both are there then."""
    for _ in range(ROUNDS):
        for side in (a, b):
            side.greet()
            side.beat()
        exchanged = 0
        while a.line or b.line:
            a.hear_one()
            b.hear_one()
            exchanged += 1
            assert exchanged < 100, "they answer each other for ever"
    assert a.there
    assert b.there


def test_two_nodes_that_greet_each_other_are_there_for_each_other() -> None:
    a, b = two()
    a.greet()
    b.greet()
    settle(a, b)
    assert a.joined == b.joined == 1
    a.say()
    a.say()
    b.say()
    settle(a, b)
    assert b.heard == [(1, 0), (1, 1)]
    assert a.heard == [(1, 0)]


def test_one_greeting_is_enough_for_both() -> None:
    a, b = two()
    a.greet()
    while a.line or b.line:
        a.hear_one()
        b.hear_one()
    assert a.there
    assert b.there


def test_a_frame_from_who_has_heard_our_epoch_is_a_greeting() -> None:
    a, b = two()
    a.greet()
    b.hear_one()
    a.hear_one()
    assert a.there
    a.line.clear()  # the last greeting is lost
    a.say()
    b.hear_one()
    assert b.heard == [(1, 0)]


def test_a_gap_has_both_begin_anew() -> None:
    a, b = two()
    a.greet()
    settle(a, b)
    a.say()
    a.line.clear()
    a.say()
    b.hear_one()
    assert not b.there
    assert b.heard == []
    settle(a, b)
    assert a.joined == b.joined == 2
    a.say()
    settle(a, b)
    assert b.heard == [(2, 0)]


def test_a_frame_that_comes_twice_has_both_begin_anew() -> None:
    a, b = two()
    a.greet()
    settle(a, b)
    a.say()
    b.hear(a.line[0])
    b.hear(a.line[0])
    assert not b.there


def test_a_process_that_began_later_takes_the_place_of_the_one_before_and_not_the_other_way_round() -> None:
    a, b = two()
    a.greet()
    settle(a, b)
    late = b.member.greeting()
    again = Side(3_000_000)
    again.other, a.other = a, again
    again.greet()
    a.hear_one()
    assert not a.there
    settle(a, again)
    assert a.joined == 2
    a.hear(late)
    assert a.there


def test_a_process_that_is_gone_makes_room_for_an_older_one() -> None:
    a, old = two()
    young = Side(3_000_000)
    young.other = a
    a.other = young
    young.greet()
    settle(a, young)
    assert a.member.process_gone() == LEFT
    a.there = False
    a.other = old
    a.line.clear()
    settle(a, old)
    assert a.joined == 2


def test_the_highest_common_version_is_spoken() -> None:
    a, b = two((1, 2), (2, 5))
    settle(a, b)
    assert a.member.version == b.member.version == 2


def test_without_a_common_version_both_know_and_fall_silent() -> None:
    a, b = two((1, 1), (2, 3))
    a.greet()
    while a.line or b.line:
        a.hear_one()
        b.hear_one()
    assert a.member.refused
    assert b.member.refused
    assert a.member.their_versions == (2, 3)
    assert not a.there
    assert not b.there


def test_a_frame_that_cannot_be_read_is_a_fault() -> None:
    a, b = two()
    a.greet()
    settle(a, b)
    a.say()
    with pytest.raises(ProtocolFault, match="ends within a message"):
        b.member.hears_frame(a.line[0][:-1], 0.0)


STEPS = st.sampled_from(["greet", "say", "beat", "hear", "hear", "hear", "drop", "leave", "swap", "restart"])


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=80))
def test_whatever_is_lost_rooms_hear_what_a_bus_promises_and_the_nodes_come_together(
    steps: list[tuple[str, bool]],
) -> None:
    a, b = two()
    starts = itertools.count(10_000_000, 1_000_000)
    for step, first in steps:
        side = a if first else b
        if step == "greet":
            side.greet()
        elif step == "say":
            side.say()
        elif step == "beat":
            side.beat()
        elif step == "hear":
            side.hear_one()
        elif step == "drop" and side.line:
            side.line.popleft()
        elif step == "leave":
            side.leave()
        elif step == "swap" and len(side.line) > 1:
            side.line.appendleft(side.line.pop())
        elif step == "restart":
            # What the killed process has sent may arrive still.
            again = Side(next(starts))
            again.line = side.line
            again.other, side.other.other = side.other, again
            a, b = (again, b) if first else (a, again)
    settle(a, b)
    a.say()
    b.say()
    settle(a, b)
    assert a.heard[-1] == (b.joined, b.sent - 1)
    assert b.heard[-1] == (a.joined, a.sent - 1)
