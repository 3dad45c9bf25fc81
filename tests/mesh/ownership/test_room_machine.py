"""Three nodes, a client that comes to any of them, and messages between them in every order.

The nodes never lose each other, and the session is never thrown away. At no moment is the client connected to two of
them, and in the end it has had every message, QoS 2 once.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.mesh.ownership.machine import Moving, names
from tests.mesh.ownership.world import TOPIC, quiet
from tests.support.runs import examples

NAMES = ("a", "b", "c")


class Together(Moving):
    """[MQTT-3.1.4-3] [MQTT-4.3.3-10] [MQTT-4.4.0-1]"""

    def __init__(self) -> None:
        super().__init__(*NAMES)
        self.client = self.world.client()
        self.world.connect(self.client, "a")
        self.world.settle()
        assert self.client.subscribe(TOPIC, qos=2) == [2]
        self.world.settle()
        self.sent: list[bytes] = []

    @rule(name=names)
    def connect(self, name: str) -> None:
        """The client comes to a node, whatever has become of where it was."""
        for node in self.world.nodes.values():
            node.network.now += 0.001
        self.world.connect(self.client, name)

    @rule()
    def cut(self) -> None:
        """Its connection is lost."""
        assert self.client.link is not None
        self.client.cut()

    @rule(name=names, qos=st.sampled_from((1, 2)))
    def publish(self, name: str, qos: int) -> None:
        """A node accepts a message."""
        self.sent.append(self.world.publish(name, qos))

    @rule(name=names, again=st.booleans())
    def hand_over(self, name: str, again: bool) -> None:
        """A node is about to go, or thinks better of it."""
        room = self.world[name].room
        if again:
            room.stay()
        room.hand_over()

    @rule()
    def settle(self) -> None:
        """Everything moves."""
        self.world.settle()

    @invariant()
    def one_owner(self) -> None:
        """At no moment is it connected to two."""
        assert len(self.world.owners()) <= 1

    def teardown(self) -> None:
        """All is quiet; the client comes once more."""
        self.world.settle()
        for node in self.world.nodes.values():
            node.network.now += 0.001
        self.world.connect(self.client, "b")
        self.world.settle()
        assert self.client.connack.session_present
        assert self.world.owners() == self.world.holders() == ["b"]
        got = Counter(each.payload for each in self.client.inbox)
        assert [payload for payload in self.sent if payload not in got] == []
        first = Counter(each.payload for each in self.client.inbox if not each.dup)
        assert [payload for payload, count in first.items() if count > 1] == []
        assert [payload for payload, count in got.items() if count > 1 and payload.startswith(b"2")] == []
        quiet(self.world)


Together.TestCase.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestTogether = Together.TestCase
