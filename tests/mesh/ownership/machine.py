"""What every state machine of this room does: messages of nodes reach others one by one, and nodes have their turns."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.core.harness import total_ledger
from tests.mesh.ownership.world import World

names = st.runner().flatmap(lambda machine: st.sampled_from(list(machine.world.nodes)))
lanes = st.runner().flatmap(lambda machine: st.sampled_from(list(machine.world.lanes)))


class Moving(RuleBasedStateMachine):
    """Some nodes of one world. Of two sessions that go to one node, one moves at a time."""

    def __init__(self, *nodes: str) -> None:
        super().__init__()
        self.world = World(*nodes)
        for node in self.world.nodes.values():
            node.room.giver.turns.most_bytes = 0

    @rule(lane=lanes, count=st.integers(1, 3))
    def step(self, lane: tuple[str, str], count: int) -> None:
        """Some messages of one node reach another."""
        self.world.step(*lane, count)

    @rule(lane=lanes, count=st.integers(1, 3))
    def flow(self, lane: tuple[str, str], count: int) -> None:
        """Some of what was published reaches another."""
        self.world.flow(*lane, count)

    @rule(name=names)
    def run_node(self, name: str) -> None:
        """A node has its turn."""
        self.world.run(name)

    @invariant()
    def ledgers_add_up(self) -> None:
        """Nothing is lost unnamed, wherever the session is."""
        for node in self.world.nodes.values():
            assert total_ledger(node.network.router.sessions.values()) == []


class Stopping(Moving):
    """Nodes are stopped, and go on."""

    @rule(name=names)
    def publish(self, name: str) -> None:
        """A node accepts a message."""
        if name not in self.world.stopped:
            self.world.publish(name)

    @rule(name=names)
    def stop(self, name: str) -> None:
        """A node does nothing from now on."""
        self.world.stop(name)

    @rule(name=names)
    def go_on(self, name: str) -> None:
        """It goes on, and finds those that it has lost."""
        self.world.go_on(name)
