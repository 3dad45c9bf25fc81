"""Three nodes, two clients that come to any of them, and messages between them in every order.

The nodes never lose each other, and no session is ever thrown away. At no moment is a client connected to two of them,
and in the end it has had every message, QoS 2 once.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.core.harness import Client
from tests.mesh.ownership.machine import Moving, names
from tests.mesh.ownership.world import TOPIC, quiet
from tests.support.runs import examples

NAMES = ("a", "b", "c")


class Together(Moving):
    """[MQTT-3.1.4-3] [MQTT-4.3.3-10] [MQTT-4.4.0-1]"""

    def __init__(self) -> None:
        super().__init__(*NAMES)
        self.clients = [self.world.client("x"), self.world.client("y")]
        for client in self.clients:
            self.world.connect(client, "a")
            self.world.settle()
            assert client.subscribe(TOPIC, qos=2) == [2]
            self.world.settle()
        self.sent: list[bytes] = []

    @rule(which=st.integers(0, 1), name=names)
    def connect(self, which: int, name: str) -> None:
        """A client comes to a node, whatever has become of where it was."""
        for node in self.world.nodes.values():
            node.network.now += 0.001
        self.world.connect(self.clients[which], name)

    @rule(which=st.integers(0, 1))
    def cut(self, which: int) -> None:
        """Its connection is lost."""
        assert self.clients[which].link is not None
        self.clients[which].cut()

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
        """At no moment is one connected to two."""
        assert all(len(self.world.owners(client.client_id)) <= 1 for client in self.clients)

    def teardown(self) -> None:
        """All is quiet; the clients come once more."""
        self.world.settle()
        for client in self.clients:
            self.ends(client)
        quiet(self.world)

    def ends(self, client: Client) -> None:
        """One has all."""
        for node in self.world.nodes.values():
            node.network.now += 0.001
        self.world.connect(client, "b")
        self.world.settle()
        assert client.connack.session_present
        assert self.world.owners(client.client_id) == self.world.holders(client.client_id) == ["b"]
        got = Counter(each.payload for each in client.inbox)
        assert [payload for payload in self.sent if payload not in got] == []
        first = Counter(each.payload for each in client.inbox if not each.dup)
        assert [payload for payload, count in first.items() if count > 1] == []
        assert [payload for payload, count in got.items() if count > 1 and payload.startswith(b"2")] == []


Together.TestCase.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestTogether = Together.TestCase
