"""Clients that come, go, take over and subscribe in any order: only the filters that they need are declared.

A stateful Hypothesis machine over the sessions of a few clients. After every step the upstream has what a naive reading
of the rules makes of the live subscriptions: filters are sets of topics there, and nothing is counted.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.links.filters.aggregated import AggregatedFilters
from tests.links.recorder import Recorder, covers, overlaps
from tests.support.runs import examples

FILTERS = ["a", "a/b", "a/a/b", "b/a", "b/b", "a/+", "+/b", "+", "a/#", "a/+/b", "b/#", "#", "$x", "$x/a", "$x/+"]
WIDES = ["a/#", "a/a/#", "a/+", "+/b", "b/#", "b/b", "#", "+/#", "$x/#"]
CLIENTS = ["one", "two", "three"]

filters = st.sampled_from(FILTERS)
clients = st.sampled_from(CLIENTS)
aggregates = st.lists(st.sampled_from(WIDES), max_size=3)
unfolded = st.lists(st.sampled_from(FILTERS), max_size=1)


def needed(topic_filter: str, aggregates: list[str], unfolded: list[str]) -> str:
    """Return the filter that the upstream has to hold for this one, by the words of the rules."""
    if topic_filter in aggregates and not any(
        covers(each, topic_filter) and not covers(topic_filter, each) for each in aggregates
    ):
        # Its own child, unless one before it matches the very same topics.
        if any(overlaps(each, topic_filter) for each in unfolded):
            return topic_filter
        return next(each for each in aggregates if covers(each, topic_filter))
    if any(overlaps(each, topic_filter) for each in unfolded):
        return topic_filter
    for aggregate in aggregates:
        includes = covers(aggregate, topic_filter)
        if includes and not any(covers(each, aggregate) and not covers(aggregate, each) for each in aggregates):
            return aggregate
    return topic_filter


class Branch(RuleBasedStateMachine):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.face = Recorder()
        self.sessions: dict[str, set[str]] = {}
        self.aggregates: list[str] = []
        self.unfolded: list[str] = []

    @initialize(aggregates=aggregates, unfolded=unfolded)
    def begin(self, aggregates: list[str], unfolded: list[str]) -> None:
        """The settings at start."""
        self.aggregates, self.unfolded = aggregates, unfolded
        self.local_filters = AggregatedFilters(self.face, aggregates, unfolded)

    @rule(client=clients, wanted=st.lists(filters, min_size=1, max_size=4))
    def subscribe(self, client: str, wanted: list[str]) -> None:
        """A SUBSCRIBE; what the session has already is replaced, which is nothing new."""
        session = self.sessions.setdefault(client, set())
        for topic_filter in wanted:
            if topic_filter not in session:
                session.add(topic_filter)
                self.local_filters.add(topic_filter)

    @rule(client=clients, which=st.lists(filters, min_size=1, max_size=4))
    def unsubscribe(self, client: str, which: list[str]) -> None:
        """An UNSUBSCRIBE; what the session has not is no matter."""
        session = self.sessions.setdefault(client, set())
        for topic_filter in which:
            if topic_filter in session:
                session.remove(topic_filter)
                self.local_filters.remove(topic_filter)

    @rule(client=clients)
    def end(self, client: str) -> None:
        """The session ends with its connection, or expires."""
        for topic_filter in sorted(self.sessions.pop(client, set())):
            self.local_filters.remove(topic_filter)

    @rule(client=clients, wanted=st.lists(filters, max_size=3))
    def take_over(self, client: str, wanted: list[str]) -> None:
        """Somebody connects with a clean start under the same name, and subscribes."""
        self.end(client)
        self.subscribe(client, wanted)

    @invariant()
    def upstream_has_what_is_needed(self) -> None:
        """Recounted from the sessions."""
        if not hasattr(self, "local_filters"):
            return
        live = [topic_filter for session in self.sessions.values() for topic_filter in session]
        reasons: dict[str, set[str]] = {}
        for topic_filter in live:
            reasons.setdefault(needed(topic_filter, self.aggregates, self.unfolded), set()).add(topic_filter)
        assert self.face.held == set(reasons)
        assert sorted(self.local_filters.declared) == sorted(reasons)
        assert {each: self.local_filters.children(each) for each in reasons} == {
            each: len(children) for each, children in reasons.items()
        }
        assert self.local_filters.demanded == len(set(live))
        assert self.local_filters.subscriptions == len(live)

    def teardown(self) -> None:
        """When everybody has gone, so has everything."""
        for client in CLIENTS:
            self.end(client)
        assert self.face.held == set()


TestBranch = Branch.TestCase
TestBranch.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
