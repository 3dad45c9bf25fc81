"""Three nodes that lose each other, hang, are stopped, and meet again, and clients that come to any of them meanwhile.

While nodes do not hear each other, each may have a session of one client. In the end, when all hear each other and
nothing is under way, there is one, and its client is connected to the node that has it, if it is connected at all.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from broker.core.codec.packets import Subscribe, SubscriptionRequest
from broker.core.codec.properties import Properties
from tests.core.harness import Client
from tests.mesh.ownership.machine import Stopping, names
from tests.mesh.ownership.world import TIMEOUT, TOPIC, quiet
from tests.support.runs import examples

NAMES = ("a", "b", "c")
CLIENTS = ("x", "y")

pairs = st.sampled_from([(one, other) for one in NAMES for other in NAMES if one < other])


def is_there(client: Client) -> bool:
    """Whether it has a connection."""
    return client.link is not None and not client.link.cut and not client.closed


class Apart(Stopping):
    """[MQTT-3.1.4-3]"""

    def __init__(self) -> None:
        super().__init__(*NAMES)
        self.connections = {client_id: [self.world.client(client_id)] for client_id in CLIENTS}

    @rule(name=names, client_id=st.sampled_from(CLIENTS), clean=st.booleans())
    def connect(self, name: str, client_id: str, clean: bool) -> None:
        """A client comes to a node; its earlier connections stay, as of a client that has lost them unseen."""
        if name in self.world.stopped:
            return
        for node in self.world.nodes.values():
            node.network.now += 0.001
        client = self.world.client(client_id)
        self.connections[client_id].append(client)
        self.world.connect(client, name, clean=clean)

    @rule(client_id=st.sampled_from(CLIENTS))
    def subscribe(self, client_id: str) -> None:
        """Its last connection subscribes, if it is there."""
        client = self.connections[client_id][-1]
        stopped = any(client.network is self.world[name].network for name in self.world.stopped)
        if not stopped and is_there(client) and client.connack.reason_code == 0:
            client.send(Subscribe(client.take_id(), [SubscriptionRequest(TOPIC, 1)], Properties()))

    @rule(client_id=st.sampled_from(CLIENTS))
    def lose(self, client_id: str) -> None:
        """All its connections are lost."""
        for client in self.connections[client_id]:
            if is_there(client):
                client.cut()

    @rule(pair=pairs)
    def part(self, pair: tuple[str, str]) -> None:
        """Two nodes lose each other."""
        self.world.cut(*pair)

    @rule(pair=pairs)
    def meet(self, pair: tuple[str, str]) -> None:
        """Two nodes find each other."""
        self.world.join(*pair)

    @rule(name=names, again=st.booleans())
    def hand_over(self, name: str, again: bool) -> None:
        """A node is about to go, or thinks better of it."""
        if name in self.world.stopped:
            return
        room = self.world[name].room
        if again:
            room.stay()
        room.hand_over()

    @rule(seconds=st.sampled_from((0.1, TIMEOUT / 2, TIMEOUT)))
    def hang(self, seconds: float) -> None:
        """Time passes, and nothing arrives."""
        self.world.elapse(seconds)

    @rule()
    def settle(self) -> None:
        """Everything moves."""
        self.world.settle()

    def teardown(self) -> None:
        """All go on and meet, and all is quiet."""
        for name in NAMES:
            self.world.go_on(name)
        for one in NAMES:
            for other in NAMES:
                if one < other:
                    self.world.join(one, other)
        self.world.settle()
        for _ in range(3):
            self.world.advance(TIMEOUT)
        for client_id in CLIENTS:
            holders = self.world.holders(client_id)
            assert len(holders) <= 1, (client_id, holders)
            assert self.world.owners(client_id) in ([], holders)
        quiet(self.world)


Apart.TestCase.settings = settings(
    max_examples=examples(400),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestApart = Apart.TestCase
