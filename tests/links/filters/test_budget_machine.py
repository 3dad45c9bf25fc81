"""Filters that come and go in any order, within budgets, roots and times of any size: the cover holds at every moment.

A stateful Hypothesis machine. Filters are sets of topics of a small world; the face keeps a picture of what the
upstream had after each call, and each picture is held against the rules when the operation is over.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from canopy_mqtt.links.filters.budget import BudgetedFilters
from tests.links.recorder import Recorder, covers, matched, overlaps
from tests.support.runs import examples

FILTERS = [
    *("a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "a/a/b", "a/b/a", "b/a/a", "b/a/b", "b/b/b"),
    *("a/+", "+/b", "a/#", "#", "b/a/#", "a/+/b", "$x", "$x/a", "$x/b/a", "$x/+/b", "$x/#"),
]

filters = st.sampled_from(FILTERS)
budgets = st.sampled_from([1, 2, 2, 3, 4, 5, 8])
roots = st.sampled_from([[], [], [], ["a/#", "b/#"], ["a/#", "b/+/b", "$x/#"], ["+/b", "a/+/+"], ["#"]])
unfolded = st.sampled_from([[], [], ["a/a/#"], ["+/b"], ["b/a", "$x/a"]])
holds = st.sampled_from([0.0, 5.0, 5.0, 60.0])


class Upstream(Recorder):
    """Keeps what it had after each call, and refuses what is beyond the budget."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0
        self.pictures: list[frozenset[str]] = []

    def declare(self, topic_filter: str) -> None:
        super().declare(topic_filter)
        assert len(self.held) <= self.limit, f"{topic_filter} is one too many of {self.limit}: {sorted(self.held)}"
        self.pictures.append(frozenset(self.held))

    def withdraw(self, topic_filter: str) -> None:
        super().withdraw(topic_filter)
        self.pictures.append(frozenset(self.held))


class Budget(RuleBasedStateMachine):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.face = Upstream()
        self.live: list[str] = []
        self.now = 1_000.0

    @initialize(budget=budgets, roots=roots, unfolded=unfolded, hold=holds)
    def begin(self, budget: int, roots: list[str], unfolded: list[str], hold: float) -> None:
        """The settings at start."""
        self.budget, self.roots, self.unfolded, self.hold = budget, roots, unfolded, hold
        self.face.limit = budget
        self.local_filters = BudgetedFilters(self.face, budget, roots, unfolded, hold)
        self._look()

    def _look(self) -> None:
        # What was served before the next operation, and whether all slots were taken.
        self.before = {each for each in self.live if self.serves(self.face.held, each)}
        self.was_full = len(self.face.held) == self.budget
        self.face.pictures = [frozenset(self.face.held)]
        self.face.calls = []

    def is_alone(self, topic_filter: str) -> bool:
        """Return whether it is never folded."""
        return any(overlaps(each, topic_filter) for each in self.unfolded)

    def is_inside(self, topic_filter: str) -> bool:
        """Return whether it lies within the roots."""
        return not self.roots or any(covers(root, topic_filter) for root in self.roots)

    def serves(self, held: set[str] | frozenset[str], topic_filter: str) -> bool:
        """Return whether the upstream sends what the filter needs, to its own or to one wider declaration."""
        if self.is_alone(topic_filter):
            return topic_filter in held
        return any(covers(each, topic_filter) for each in held)

    @rule(wanted=filters)
    def subscribe(self, wanted: str) -> None:
        """One more."""
        self._look()
        self.live.append(wanted)
        self.local_filters.add(wanted, self.now)

    @rule(wanted=st.lists(filters, min_size=2, max_size=12))
    def subscribe_many(self, wanted: list[str]) -> None:
        """A client with much to ask for."""
        for topic_filter in wanted:
            self.subscribe(topic_filter)
            self.everything_holds()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        """One less."""
        self._look()
        gone = data.draw(st.sampled_from(self.live))
        self.live.remove(gone)
        self.local_filters.remove(gone, self.now)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def unsubscribe_many(self, data: st.DataObject) -> None:
        """A client goes."""
        for gone in data.draw(st.lists(st.sampled_from(self.live), max_size=10, unique=True)):
            self._look()
            self.live.remove(gone)
            self.local_filters.remove(gone, self.now)
            self.everything_holds()

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        """Time passes. What is opened leaves room; what is not due is not touched."""
        self._look()
        refused = self.local_filters.refused
        due = self.local_filters.next_tick()
        self.now += seconds
        self.local_filters.tick(self.now)
        if due == 0.0:
            assert not self.face.calls
        if self.face.calls and not refused:
            assert len(self.face.held) <= max(1, self.budget * 3 // 4)
        calls = list(self.face.calls)
        self.local_filters.tick(self.now)
        assert self.face.calls == calls or self.hold == 0.0
        due = self.local_filters.next_tick()
        assert due == 0.0 or due > self.now
        if due == 0.0:
            assert self.face.held <= set(self.live)

    @invariant()
    def everything_holds(self) -> None:
        """See the promises of the local_filters."""
        if not hasattr(self, "local_filters"):
            return
        held = self.face.held
        live = set(self.live)
        assert len(held) <= self.budget
        assert sorted(self.local_filters.declared) == sorted(held)
        assert (self.local_filters.demanded, self.local_filters.subscriptions) == (len(live), len(self.live))
        inside = {each for each in live if self.is_inside(each)}
        assert self.local_filters.outside == len(live) - len(inside)
        served = {each for each in inside if self.serves(held, each)}
        refused = inside - served
        assert self.local_filters.refused == len(refused)
        self._check_declared(held, served)
        self._check_refused(held, refused)
        if not self.was_full:
            self._check_moments(self.before & served)

    def _check_declared(self, held: set[str], served: set[str]) -> None:
        assert sum(self.local_filters.children(each) for each in held) == len(served)
        for each in held:
            assert self.is_inside(each)
            assert self.local_filters.children(each) > 0
            alone = each in served and self.is_alone(each)
            assert alone or not any(covers(other, each) for other in held - {each}), f"{each} is not needed"

    def _check_refused(self, held: set[str], refused: set[str]) -> None:
        # Nothing is refused while there is room, or a fold that could take it in.
        if refused:
            assert len(held) == self.budget
        folded = {each for each in held if each not in self.live or not self.is_alone(each)}
        for each in refused:
            if self.is_alone(each):
                continue
            widest = self.roots or ["#", "$x/#"]
            for other in folded:
                assert not any(covers(wide, each) and covers(wide, other) for wide in widest), (each, other)

    def _check_moments(self, kept: set[str]) -> None:
        # What was served before and is served now was served all the time.
        for picture in self.face.pictures:
            sent: frozenset[str] = frozenset().union(*(matched(each) for each in picture))
            for each in kept:
                assert matched(each) <= sent, f"{each} had a gap: {self.face.calls}"
                if self.is_alone(each):
                    assert each in picture

    def teardown(self) -> None:
        """When everybody has gone, so has everything."""
        for gone in self.live:
            self.local_filters.remove(gone, self.now)
        self.live = []
        self.face.pictures = []
        self.before = set()
        self.everything_holds()
        assert self.face.held == set()


TestBudget = Budget.TestCase
TestBudget.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
