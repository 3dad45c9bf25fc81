"""Nodes that want, want no more, join, leave and hear each other in any order: in the end each knows what each wants.

A stateful Hypothesis machine over three nodes, with lines on which one message after the other arrives. What a node was
promised, that another has its filter, is held after every step, also while nodes leave and come back.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.mesh.interest.nodes import PLENTY, Counted, Mesh, Node
from tests.support.runs import examples

NAMES = ["a", "b", "c"]
FILTERS = ["x", "x/1", "x/2", "x/3", "x/+", "x/#", "y/1", "y/2", "y/#", "+/1", "#", "$z", "$z/1", "$z/+", "$w/1"]
GROUPS = ["g", "h"]

names = st.sampled_from(NAMES)
filters = st.sampled_from(FILTERS)


class Promise(Counted):
    """Waits for what was wanted at one moment, each with the count of how often it had come and gone."""

    def __init__(self, wanted: dict[str, int]) -> None:
        super().__init__()
        self.wanted = wanted


class Nodes(RuleBasedStateMachine):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.mesh = Mesh()
        # Of each node: how often each filter is wanted; the promises that are not settled; those that were kept, by
        # the node that has the filter; and how often a filter was given up.
        self.wanted: dict[str, dict[str, int]] = {name: {} for name in NAMES}
        self.groups: dict[str, dict[tuple[str, str], int]] = {name: {} for name in NAMES}
        self.waiting: dict[str, list[Promise]] = {name: [] for name in NAMES}
        self.kept: dict[tuple[str, str], dict[str, int]] = {}
        self.given_up: dict[str, dict[str, int]] = {name: dict.fromkeys(FILTERS, 0) for name in NAMES}
        self.max_filters: dict[str, int] = {}

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        """Nodes with bounds of their own."""
        for name in NAMES:
            self.max_filters[name] = data.draw(st.sampled_from([0, 0, 2, 4, 6]))
            node = Node(
                self.mesh,
                name,
                max_filters=self.max_filters[name],
                most=data.draw(st.sampled_from([PLENTY, PLENTY, 16 + 5, 16 + 8])),
                most_bytes=data.draw(st.sampled_from([PLENTY, PLENTY, 16 * 256 + 20])),
                declare_keys=data.draw(st.sampled_from([1, 2, 1_024])),
                units=data.draw(st.sampled_from([1, 3, 512])),
                looks=data.draw(st.sampled_from([1, 3, 2_048])),
            )
            self.mesh.add(node)

    @rule(name=names, topic_filters=st.lists(filters, min_size=1, max_size=5), waits=st.booleans())
    def subscribe(self, name: str, topic_filters: list[str], waits: bool) -> None:
        """Some subscriptions, and perhaps somebody who waits for the others to know."""
        node = self.mesh.nodes[name]
        for each in topic_filters:
            node.room.wanted(each, self.mesh.now)
            self.wanted[name][each] = self.wanted[name].get(each, 0) + 1
        if waits:
            self.wait(name)

    @rule(name=names, topic_filters=st.lists(filters, min_size=1, max_size=5))
    def unsubscribe(self, name: str, topic_filters: list[str]) -> None:
        """Some of them end."""
        node = self.mesh.nodes[name]
        for each in topic_filters:
            count = self.wanted[name].get(each, 0)
            if count > 0:
                node.room.unwanted(each, self.mesh.now)
                self.wanted[name][each] = count - 1
                if count == 1:
                    self.given_up[name][each] += 1

    @rule(name=names, group=st.sampled_from(GROUPS), topic_filter=filters, members=st.sampled_from([-1, 0, 1, 2, 300]))
    def put_group(self, name: str, group: str, topic_filter: str, members: int) -> None:
        """The members of a share group come and go; -1: there is one, and it is away."""
        node = self.mesh.nodes[name]
        node.room.put_group(group, topic_filter, max(members, 0), 1 if members < 0 else 0)
        self.groups[name][group, topic_filter] = min(members, 255)

    @rule(name=names)
    def wait(self, name: str) -> None:
        """Somebody waits for the others to know all that is wanted now."""
        given_up = self.given_up[name]
        promise = Promise({each: given_up[each] for each, count in self.wanted[name].items() if count > 0})
        if self.mesh.nodes[name].room.wait(promise, self.mesh.now):
            self.waiting[name].append(promise)
        else:
            self.keep(name, promise)

    def keep(self, name: str, promise: Promise) -> None:
        """All nodes that are there have what was promised."""
        for other in self.mesh.nodes[name].bus.there:
            self.kept.setdefault((name, other), {}).update(promise.wanted)

    @rule(one=names, other=names)
    def join(self, one: str, other: str) -> None:
        """A node hears of another."""
        if one != other:
            self.mesh.join(one, other)

    @rule(one=names, other=names)
    def cut(self, one: str, other: str) -> None:
        """Two nodes lose each other."""
        if one != other:
            self.mesh.cut(one, other)

    @rule(one=names, other=names)
    def forget(self, one: str, other: str) -> None:
        """A node that is gone stays so."""
        if one != other and one not in self.mesh.nodes[other].bus.there:
            self.mesh.nodes[other].room.forget(one)
            self.kept.pop((one, other), None)

    @rule(one=names, other=names)
    def deliver(self, one: str, other: str) -> None:
        """A message arrives."""
        if one != other:
            self.mesh.deliver(one, other)

    @rule(name=names)
    def turn(self, name: str) -> None:
        """A turn of a node."""
        self.mesh.nodes[name].turn(self.mesh.now)
        still: list[Promise] = []
        for promise in self.waiting[name]:
            assert len(promise.heard) <= 1
            if not promise.heard:
                still.append(promise)
            elif promise.heard[0]:
                self.keep(name, promise)
        self.waiting[name] = still

    @rule(times=st.integers(min_value=1, max_value=20))
    def go_on(self, times: int) -> None:
        """Messages arrive, and everybody has turns."""
        for _ in range(times):
            for source, target in self.mesh.lines:
                self.mesh.deliver(source, target)
            for name in NAMES:
                self.turn(name)

    @rule(seconds=st.sampled_from([0.5, 6.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        """Time passes."""
        self.mesh.now += seconds

    @rule()
    def settle(self) -> None:
        """Everybody hears everybody: what each has is what each declares, and that covers what is wanted."""
        for name in NAMES:
            self.turn(name)  # what is due by time begins here
        self.mesh.settle()
        for name in NAMES:
            self.turn(name)
            assert self.waiting[name] == []
        for name in NAMES:
            node = self.mesh.nodes[name]
            assert node.interest.confirmed == node.interest.version
            declared, groups = node.declared()
            wanted = {each for each, count in self.wanted[name].items() if count > 0}
            for other in NAMES:
                if other != name:
                    sink = self.mesh.nodes[other].sinks[name]
                    assert sink.filters == declared
                    assert sink.groups == groups
                    missing = [each for each in wanted if not sink.covers(each)]
                    assert len(missing) <= node.interest.undeclared - node.interest.declared.undeclared
                    remote = self.mesh.nodes[other].room.remotes[name]
                    assert remote.count == len(declared) + len(groups) <= remote.most
                    assert remote.bytes <= remote.most_bytes
            here = {key: state for key, state in self.groups[name].items() if state != 0}
            assert groups.items() <= here.items()
            assert len(here) - len(groups) == node.interest.declared.undeclared
            if node.interest.declared.left_out == 0:
                assert groups == here
                if self.max_filters[name] == 0:
                    assert declared == wanted

    @invariant()
    def promises_are_kept(self) -> None:
        """Who has said that it has a filter has it, as long as it is wanted."""
        for (name, other), kept in self.kept.items():
            if self.mesh.nodes[name].interest.undeclared > self.mesh.nodes[name].interest.declared.undeclared:
                kept.clear()  # its budget is not enough for what is wanted, and that is counted
            sink = self.mesh.nodes[other].sinks[name]
            for each in list(kept):
                if self.given_up[name][each] != kept[each]:
                    del kept[each]
                else:
                    assert sink.covers(each), (name, other, each)

    @invariant()
    def budgets_are_kept(self) -> None:
        """No node declares more filters than it may."""
        for name, most in self.max_filters.items():
            assert most == 0 or len(self.mesh.nodes[name].interest.declared.filters.names) <= most

    def teardown(self) -> None:
        """In the end all know all, and nobody waits."""
        if self.max_filters:
            self.settle()


Nodes.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
TestInterestMachine = Nodes.TestCase
