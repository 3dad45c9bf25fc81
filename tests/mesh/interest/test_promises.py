"""A node that has confirmed a filter has it, or a wider one, at each step: also while filters are folded and folds are
opened, while there is no room, and while it leaves and comes back.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mesh.interest.nodes import PLENTY, Counted, Mesh, Node
from tests.support.runs import examples

FILTERS = [f"{first}/{second}" for first in "abc" for second in "123"]

filters = st.lists(st.sampled_from(FILTERS), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(st.just("wanted"), filters),
    st.tuples(st.just("wanted"), filters),
    st.tuples(st.just("unwanted"), filters),
    st.tuples(st.just("wait"), filters),
    st.tuples(st.sampled_from(["go", "go", "go on", "go on", "go far"]), filters),
    st.tuples(st.just("time"), filters),
    st.tuples(st.just("begin anew"), filters),
)
MOVES = {"go": 1, "go on": 4, "go far": 20}


class Watched:
    """A node that wants and waits, another that hears; and what the one was promised that the other has."""

    def __init__(self, max_filters: int, most: int) -> None:
        self.mesh = Mesh()
        self.here = self.mesh.add(Node(self.mesh, "here", max_filters=max_filters, declare_keys=1))
        self.there = self.mesh.add(Node(self.mesh, "there", units=1, most=most))
        self.mesh.settle()
        self.sink = self.there.sinks["here"]
        self.wanted: dict[str, int] = {}
        self.waiting: list[tuple[Counted, list[str]]] = []
        self.promised: set[str] = set()

    def want(self, topic_filter: str) -> None:
        self.wanted[topic_filter] = self.wanted.get(topic_filter, 0) + 1
        self.here.room.wanted(topic_filter, self.mesh.now)

    def want_no_more(self, topic_filter: str) -> None:
        count = self.wanted.get(topic_filter, 0)
        if count == 0:
            return
        self.here.room.unwanted(topic_filter, self.mesh.now)
        self.wanted[topic_filter] = count - 1
        if count == 1:
            del self.wanted[topic_filter]
            self.promised.discard(topic_filter)
            for _, topic_filters in self.waiting:
                if topic_filter in topic_filters:
                    topic_filters.remove(topic_filter)

    def wait(self) -> None:
        waiter = Counted()
        if self.here.room.wait(waiter, self.mesh.now):
            self.waiting.append((waiter, list(self.wanted)))
        elif self.here.room.interest.confirmed_by("there") > 0:
            # Where nobody is there, nothing is promised: who comes is told all of it.
            self.promised.update(self.wanted)

    def move(self) -> None:
        """One thing after the other, and a look after each."""
        self.mesh.deliver("here", "there")
        self.look()
        self.there.turn(self.mesh.now)
        self.look()
        self.mesh.deliver("there", "here")
        self.look()
        self.here.turn(self.mesh.now)
        self.look()

    def begin_anew(self) -> None:
        self.mesh.cut("here", "there")
        self.mesh.join("here", "there")
        self.mesh.join("there", "here")
        self.look()

    def look(self) -> None:
        for waiter, topic_filters in self.waiting:
            if waiter.heard == [True]:
                self.promised.update(topic_filters)
        self.waiting = [each for each in self.waiting if not each[0].heard]
        assert [each for each in self.promised if not self.sink.covers(each)] == []


@settings(max_examples=examples(500))
@given(
    wanted=filters,
    steps=st.lists(steps, min_size=15, max_size=40),
    bounds=st.sampled_from([(0, PLENTY), (4, PLENTY), (6, PLENTY), (0, 16 + 3)]),
)
def test_who_has_confirmed_a_filter_has_it_or_a_wider_one(
    wanted: list[str], steps: list[tuple[str, list[str]]], bounds: tuple[int, int]
) -> None:
    both = Watched(*bounds)
    for each in wanted:
        both.want(each)
    both.mesh.settle()
    both.wait()
    assert both.promised == set(wanted)
    for step, topic_filters in steps:
        if step == "wanted":
            for each in topic_filters:
                both.want(each)
            both.wait()
        elif step == "unwanted":
            for each in topic_filters:
                both.want_no_more(each)
        elif step == "wait":
            both.wait()
        elif step == "time":
            both.mesh.now += 3.0
        elif step == "begin anew":
            both.begin_anew()
        else:
            for _ in range(MOVES[step]):
                both.move()
    both.here.turn(both.mesh.now)  # what is due by time begins here
    both.mesh.settle()
    both.look()
    both.wait()
    assert both.promised == set(both.wanted)
    both.look()
    assert both.sink.filters == both.here.declared()[0]
