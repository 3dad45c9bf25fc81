"""Three nodes of which any is killed and started again, clients that roam, and wills in every state.

Nodes that live always see each other, and hear of what is so before one of them dies. Each will is published once where
the connection it is about has ended otherwise than by DISCONNECT 0x00, and never where its client was back in time
[MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.1.3-9]; it is lost only where all have died that had heard of it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.harness import Client
from tests.mesh.wills.world import DEAD_AFTER, World
from tests.support.runs import examples

NAMES = ("a", "b", "c")
CLIENTS = ("x", "y")
LONG = 100_000

names = st.sampled_from(NAMES)
clients = st.sampled_from(CLIENTS)


class Connection:
    """A connection with a will, and what is to become of that."""

    def __init__(self, node: str, payload: bytes, delay: int) -> None:
        self.node = node
        self.payload = payload
        self.delay = delay
        self.ends = False
        """It has ended, and its will is to be published."""
        self.never = False
        """It is not to be published any more, if it has not been."""
        self.lost = False
        """Nobody is left who knows of it."""
        self.holders = set(NAMES)
        """Who knows of it, since its node died."""
        self.orphan = False
        """Its node has died."""


class Kills(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(*NAMES)
        self.clients: dict[str, Client] = {}
        self.current: dict[str, Connection] = {}
        self.all: list[Connection] = []
        self.where: dict[str, str] = {}

    def up(self) -> list[str]:
        """The nodes that live."""
        return list(self.world.nodes)

    def published(self, connection: Connection) -> int:
        """How often its will was."""
        return self.world.count()[connection.payload]

    @rule(name=names, client_id=clients, clean=st.booleans(), delay=st.sampled_from((0, 20, 90)), will=st.booleans())
    def connect(self, name: str, client_id: str, clean: bool, delay: int, will: bool) -> None:
        """A client comes to a node, whatever has become of its last connection."""
        if name not in self.world.nodes:
            return
        before = self.current.pop(client_id, None)
        if before is not None and not self.published(before):
            # A connection that another one replaces ends like any other.
            before.ends = True
            before.never = before.never or (before.delay > 0 and not clean)
        payload = b"%d" % len(self.all) if will else b""
        self.clients[client_id] = self.world.connect(
            name, client_id, payload, clean=clean, expiry=LONG, delay=delay if will else 0
        )
        self.where[client_id] = name
        assert self.clients[client_id].connack.reason_code == 0
        if will:
            self.current[client_id] = Connection(name, payload, delay)
            self.all.append(self.current[client_id])

    @rule(client_id=clients, how=st.sampled_from(("cut", "disconnect", "with will")))
    def leave(self, client_id: str, how: str) -> None:
        """Its connection ends."""
        client = self.clients.pop(client_id, None)
        if client is None:
            return
        connection = self.current.get(client_id)
        if how == "cut":
            client.cut()
        else:
            client.disconnect(0 if how == "disconnect" else 4)
        if connection is not None:
            if how == "disconnect":
                connection.never = True
            else:
                connection.ends = True
        self.world.settle()

    @precondition(lambda self: len(self.up()) > 1)
    @rule(name=names)
    def kill(self, name: str) -> None:
        """kill -9, when the others have heard all that it had to say."""
        if name not in self.world.nodes:
            return
        self.world.settle()
        self.world.kill(name)
        for connection in self.all:
            if connection.node == name and not connection.orphan:
                connection.orphan = True
                connection.ends = connection.ends or not connection.never
                connection.holders = set(self.up())
            elif connection.orphan:
                connection.holders.discard(name)
                connection.lost = connection.lost or not connection.holders
        for client_id, where in self.where.items():
            if where == name:
                self.clients.pop(client_id, None)

    @rule(name=names)
    def start(self, name: str) -> None:
        """Another process of a node."""
        if name not in self.world.nodes:
            self.world.start(name)
            self.world.settle()

    @rule(seconds=st.sampled_from((1, 15, 40, 100)))
    def advance(self, seconds: int) -> None:
        """Time passes."""
        self.world.advance(seconds)

    @invariant()
    def none_twice(self) -> None:
        """And none that is not to be."""
        counts = self.world.count()
        for connection in self.all:
            count = counts[connection.payload]
            assert count <= 1, connection.payload
            assert not count or connection.ends, connection.payload
            if count:
                connection.never = False

    def teardown(self) -> None:
        """All time passes."""
        self.world.advance(20 * DEAD_AFTER)
        counts = self.world.count()
        for connection in self.all:
            count = counts[connection.payload]
            if not connection.lost:
                assert count == (connection.ends and not connection.never), connection.payload
        for node in self.world.nodes.values():
            assert node.wills.kept == len(
                [each for each in self.current.values() if not each.ends and not each.never and each.node != node.name]
            )


Kills.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestKills = Kills.TestCase
