"""Three nodes that lose each other, write the same topics, and become the same: as machines of Hypothesis.

In the first the clocks differ by less than `max_clock_ahead` and nothing is lost: the last write wins by its stamp. In
the second clocks are wrong, nodes start anew, tombstones and room are scarce: all that holds then is that the nodes
become the same.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.mesh.retained.clock import Stamp
from broker.mesh.retained.replicas import ReplicaTerms
from tests.mesh.retained.nodes import Nodes

NAMES = ("a", "b", "c")
name = st.sampled_from(NAMES)
topic = st.sampled_from(["t/1", "t/2", "t/3", "t/1/deep", "$own/t"])
seconds = st.floats(0.0, 40.0)


class Replication(RuleBasedStateMachine):
    """What both machines do."""

    terms = ReplicaTerms(digest_interval=10.0)

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Nodes(*NAMES, terms=self.terms)
        self.count = 0

    @initialize(together=st.booleans())
    def start(self, together: bool) -> None:
        if together:
            self.nodes.join_all()
            self.nodes.settle()

    @rule(node=name, topic=topic, expiry=st.sampled_from([0.0, 0.0, 0.0, 5.0, 300.0]))
    def publish(self, node: str, topic: str, expiry: float) -> None:
        self.count += 1
        self.nodes[node].publish(topic, b"%d" % self.count, expiry)
        self.written(node, topic, b"" if expiry else b"%d" % self.count)

    @rule(node=name, topic=topic)
    def clear(self, node: str, topic: str) -> None:
        self.nodes[node].publish(topic, b"")
        self.written(node, topic, b"")

    def written(self, node: str, topic: str, payload: bytes) -> None:
        """A client has written; without a payload where nothing is there in the end."""

    @rule(sender=name, receiver=name)
    def deliver(self, sender: str, receiver: str) -> None:
        self.nodes.deliver(sender, receiver)

    @rule(node=name)
    def turn(self, node: str) -> None:
        self.nodes[node].turn()

    @rule(one=name, other=name)
    def cut(self, one: str, other: str) -> None:
        self.nodes.cut(one, other)

    @rule(one=name, other=name)
    def join(self, one: str, other: str) -> None:
        self.nodes.join(one, other)

    @rule()
    def settle(self) -> None:
        self.nodes.settle()

    @rule(seconds=seconds)
    def advance(self, seconds: float) -> None:
        self.nodes.advance(seconds)

    def teardown(self) -> None:
        self.nodes.heal()
        kept = [self.nodes[name].kept() for name in NAMES]
        assert kept[0] == kept[1] == kept[2]
        for name in NAMES:
            replicas = self.nodes[name].replicas
            assert replicas.ready
            assert replicas.stamps.kept == len(self.nodes[name].kept())
        self.judge(kept[0])

    def judge(self, kept: dict[str, bytes]) -> None:
        """The nodes are the same: is it what it should be."""


class LastWriteWins(Replication):
    """Clocks differ by up to 20 s, in any direction; tombstones last."""

    terms = ReplicaTerms(digest_interval=10.0, tombstone_time=100_000.0)

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[str, list[tuple[Stamp, str, bytes]]] = {}

    @rule(node=name, skew=st.floats(-10.0, 10.0))
    def set_clock(self, node: str, skew: float) -> None:
        self.nodes[node].skew = skew

    def written(self, node: str, topic: str, payload: bytes) -> None:
        entry = self.nodes[node].replicas.stamps.get(topic)
        assert entry is not None
        writes = self.writes.setdefault(topic, [])
        assert all(entry.stamp > stamp for stamp, other, _ in writes if other == node)
        writes.append((entry.stamp, node, payload))

    def judge(self, kept: dict[str, bytes]) -> None:
        winners = {topic: max(writes)[2] for topic, writes in self.writes.items()}
        assert kept == {topic: payload for topic, payload in winners.items() if payload}
        assert all(self.nodes[name].replicas.counts.corrected == 0 for name in NAMES)


class Convergence(Replication):
    """Whatever goes wrong, but for room: see `test_replicas`."""

    terms = ReplicaTerms(digest_interval=10.0, tombstone_time=30.0, tombstone_bytes=2_000)

    @rule(node=name, skew=st.sampled_from([0.0, 10.0, 90.0, -90.0, 86_400.0, -1_800_000_000.0]))
    def set_clock(self, node: str, skew: float) -> None:
        self.nodes[node].skew = skew

    @rule(node=name, keeps=st.booleans())
    def restart(self, node: str, keeps: bool) -> None:
        self.nodes.restart(node, keeps)


TestLastWriteWins = LastWriteWins.TestCase
TestLastWriteWins.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConvergence = Convergence.TestCase
TestConvergence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
