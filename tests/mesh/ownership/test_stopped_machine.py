"""Four nodes that are stopped and go on, and a client that comes to any of them meanwhile.

No node is given up: what is said to a stopped one waits for it. Of the nodes that are not stopped one has the client,
as soon as they have heard each other; when all go on there is one session.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.mesh.ownership.machine import Stopping, names
from tests.mesh.ownership.world import TIMEOUT, TOPIC, quiet
from tests.support.runs import examples

NAMES = ("a", "b", "c", "d")
ENDS = 8 * TIMEOUT
"""Seconds after which nobody waits for a node that is stopped."""


class Stopped(Stopping):
    """[MQTT-3.1.4-3]"""

    def __init__(self) -> None:
        super().__init__(*NAMES)
        client = self.world.client()
        self.world.connect(client, "a")
        self.world.settle()
        assert client.subscribe(TOPIC, qos=2) == [2]
        self.world.settle()

    @rule(name=names)
    def connect(self, name: str) -> None:
        """The client comes to a node; its earlier connections stay."""
        if name not in self.world.stopped:
            self.world.elapse(0.001)
            self.world.connect(self.world.client(), name)

    @rule(seconds=st.sampled_from((0.1, TIMEOUT / 2, TIMEOUT)))
    def advance(self, seconds: float) -> None:
        """Time passes, and all that can be heard is."""
        self.world.settle()
        self.world.advance(seconds)
        self.one_has_it()

    @rule()
    def settle(self) -> None:
        """Everything moves."""
        self.world.settle()
        self.one_has_it()

    def one_has_it(self) -> None:
        """Of those that are not stopped."""
        running = self.world.running()
        owners = [name for name in self.world.owners() if name in running]
        assert len(owners) <= 1, owners

    def teardown(self) -> None:
        """Nobody waits for a node that is stopped; when all go on there is one session."""
        self.world.settle()
        self.world.advance(ENDS)
        for name in self.world.running():
            for claim in self.world[name].room.claims.pending.values():
                assert not any((claim.awaiting, claim.claimants, claim.next, claim.askers)), name
        self.one_has_it()
        for name in NAMES:
            self.world.go_on(name)
        self.world.settle()
        assert len(self.world.holders()) <= 1, self.world.holders()
        self.world.advance(ENDS)
        assert len(self.world.holders()) == 1, self.world.holders()
        assert self.world.owners() in ([], self.world.holders())
        quiet(self.world)


Stopped.TestCase.settings = settings(
    max_examples=examples(400),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestStopped = Stopped.TestCase
