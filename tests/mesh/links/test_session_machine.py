"""One node publishes for another, whose connection comes and goes; it is killed at any time, and begins again.

Always: what was acknowledged to the publisher has the other node, or the disk [MQTT-4.3.2-4] [MQTT-4.3.3-8]. In the end
it has come, both QoS in one order [MQTT-4.6.0-6], of QoS 2 once [MQTT-4.3.3-10]; but where a process was killed whose
store did not have all packet identifiers in use, or where the other node has forgotten them.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.core.codec.packets import PUBACK, PUBREC
from tests.core.harness import Client
from tests.mesh.links.link import PATIENCE, Node
from tests.support.runs import examples

some = st.integers(1, 4)
windows = st.sampled_from((100, 3, 1, 0))


class Kills(RuleBasedStateMachine):
    """See the module."""

    piece = 0

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(piece=self.piece)
        self.node.subscribe("x/#")
        self.node.commit()
        # One whose publishes of QoS 2 have numbers, for which they wait.
        self.keeps = self.begin_keeps()
        # By number: its QoS, who publishes it, and the packet identifier there.
        self.published: list[tuple[int, Client, int]] = []
        self.first = 0
        self.acknowledged: set[int] = set()
        self.may_double = False

    def begin_keeps(self) -> Client:
        return self.node.network.client("keeps", expiry=1_000)

    @rule(qos=st.sampled_from((1, 2)), kept=st.booleans(), count=some)
    def publish(self, qos: int, kept: bool, count: int) -> None:
        publisher = self.keeps if kept else self.node.publisher
        for _ in range(count):
            packet = publisher.post(f"x/{qos}", b"%d" % len(self.published), qos)
            self.published.append((qos, publisher, packet.packet_id))
        self.node.network.settle()

    @rule(count=some)
    def act(self, count: int) -> None:
        self.node.act(count)

    @rule(count=some)
    def hear(self, count: int) -> None:
        self.node.hear(count)

    @rule(whole=st.booleans())
    def commit(self, whole: bool) -> None:
        """The group that is on its way to the disk is there; or only now it is on its way."""
        store = self.node.store
        assert store is not None
        if not store.commit() or whole:
            store.close_group()
        self.node.turn()

    @rule()
    def turn(self) -> None:
        self.node.turn()

    @rule(what=st.sampled_from(("lose", "kill", "wait in vain", "begin anew")), window=windows)
    def trouble(self, what: str, window: int) -> None:
        """And then the connection is there again, or not (0)."""
        node = self.node
        if what == "wait in vain":
            node.network.advance(PATIENCE + 1.0)
        elif what == "kill":
            self.kill()
        else:
            node.lose()
        if what == "begin anew":
            # The other node is another process, which knows nothing of the one before.
            node.other.has_session = False
            self.may_double = True
        self.connect(window)

    @rule(window=windows)
    def connect(self, window: int) -> None:
        if window and self.node.wire is None:
            self.node.connect(window)

    def kill(self) -> None:
        self.note()
        assert self.node.store is not None
        kept = self.node.store.state.sessions["$node/to/c"]
        self.may_double = self.may_double or kept.disconnected_at is None
        self.first = len(self.published)
        self.keeps.killed()
        self.node.kill()
        self.keeps = self.begin_keeps()

    def note(self) -> None:
        """What the publishers have heard."""
        heard = {
            (publisher, ack.packet_id)
            for publisher in (self.node.publisher, self.keeps)
            for kind in (PUBACK, PUBREC)
            for ack in publisher.acks(kind)
        }
        for number, (_, publisher, packet_id) in enumerate(self.published[self.first :], self.first):
            if (publisher, packet_id) in heard:
                self.acknowledged.add(number)

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        self.note()
        assert self.acknowledged <= {*self.node.other.got, *self.node.on_disk()}

    def teardown(self) -> None:
        node = self.node
        if node.wire is None:
            node.connect()
        node.commit()
        node.finish()
        self.note()
        got = node.other.got
        assert {*range(self.first, len(self.published))} <= self.acknowledged <= {*got}
        once = list(dict.fromkeys(got))
        assert once == sorted(once)
        if not self.may_double:
            twice = [number for number in got if self.published[number][0] == 2]
            assert len(twice) == len(set(twice))
        # The node takes and confirms messages: none is kept any more.
        node.commit()
        assert node.on_disk() == []
        assert node.session.window.journal is None


class Pieces(Kills):
    """The store is told of what is to be kept in pieces."""

    piece = 1


TestPieces = Pieces.TestCase
TestPieces.settings = settings(
    max_examples=examples(2_000), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestKills = Kills.TestCase
TestKills.settings = settings(
    max_examples=examples(2_000), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
