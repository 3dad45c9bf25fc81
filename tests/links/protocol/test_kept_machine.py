"""Random traffic over a link whose broker is killed at any time, and whose store commits when it likes.

The upstream lives on, and keeps the link's session. Whatever a publisher here has an acknowledgement for arrives there,
whatever the upstream has one for arrives here, QoS 2 once, and in the order of its topic.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Packet, Pingreq, Pingresp, Publish
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from tests.core.harness import Client
from tests.links.protocol.test_kept import killed, opened
from tests.links.scripted_link import LinkScene
from tests.support.runs import examples

QOS: Final = st.integers(1, 2)


class Down:
    """A message that the upstream has for the link, until that has acknowledged it."""

    def __init__(self, payload: bytes, qos: int) -> None:
        self.payload = payload
        self.qos = qos
        self.released = False


class Kills(RuleBasedStateMachine):
    """Brokers one after the other, and an upstream that lives longer than they do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.there = False
        # The upstream: whether it has a session of the link, what came, QoS 2 that is not released yet, what goes down.
        self.present = False
        self.came: dict[int, list[int]] = {1: [], 2: []}
        self.known: set[int] = set()
        self.down: dict[int, Down] = {}
        self.inbox: list[Packet] = []
        # Who published here, and has no acknowledgement; what was acknowledged, here and there.
        self.open: list[tuple[Client, Publish]] = []
        self.promised: dict[int, set[int]] = {1: set(), 2: set()}
        self.promised_down: dict[int, set[int]] = {1: set(), 2: set()}
        self.scene = LinkScene(publish=("up/#",), store=opened())
        client = self.subscriber()
        client.send(p.Subscribe(1, [Request("down/#", 2)]))
        self.scene.network.settle()
        client.cut()
        self.scene.network.settle()
        assert self.scene.store is not None
        self.scene.store.commit_all()
        self.publisher = self.scene.network.client("publisher")

    def subscriber(self) -> Client:
        client = self.scene.network.idle("subscriber")
        client.connect(clean=False, expiry=100)
        return client

    def look(self) -> None:
        """Whoever has an acknowledgement was promised something."""
        self.scene.network.settle()
        for client, packet in list(self.open):
            if client.outgoing.get(packet.packet_id) is not packet:
                self.open.remove((client, packet))
                self.promised[packet.qos].add(int(packet.payload))

    @rule(qos=QOS, times=st.integers(1, 3))
    def publish(self, qos: int, times: int) -> None:
        for _ in range(times):
            self.count += 1
            self.open.append((self.publisher, self.publisher.post(f"up/{qos}", b"%d" % self.count, qos)))
        self.look()

    @precondition(lambda self: not self.there)
    @rule()
    def connect(self) -> None:
        """Unacknowledged messages that the upstream has come again [MQTT-4.4.0-1]."""
        self.scene.connect(present=self.present)
        self.there = self.present = True
        for packet_id, one in self.down.items():
            self.say_down(packet_id, one, True)

    def say_down(self, packet_id: int, one: Down, dup: bool) -> None:
        if one.released:
            self.scene.say(Ack(PUBREL, packet_id))
        else:
            self.scene.send(f"down/{one.qos}", one.payload, qos=one.qos, packet_id=packet_id, dup=dup)

    @precondition(lambda self: self.there)
    @rule(qos=QOS)
    def publish_upstream(self, qos: int) -> None:
        self.count += 1
        packet_id = next(number for number in range(1, 1000) if number not in self.down)
        one = self.down[packet_id] = Down(b"%d" % self.count, qos)
        self.say_down(packet_id, one, False)

    @precondition(lambda self: self.there)
    @rule(most=st.integers(1, 6))
    def answer(self, most: int) -> None:
        """The upstream reads, and answers so many packets."""
        self.inbox += self.scene.took(Packet)
        taken, self.inbox = self.inbox[:most], self.inbox[most:]
        for packet in taken:
            if isinstance(packet, Publish):
                if packet.qos == 1 or packet.packet_id not in self.known:
                    self.came[packet.qos].append(int(packet.payload))
                if packet.qos == 2:
                    self.known.add(packet.packet_id)
                self.scene.say(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Pingreq):
                self.scene.say(Pingresp())
            elif isinstance(packet, Ack):
                self.take(packet)
        self.look()

    def take(self, packet: Ack) -> None:
        one = self.down.get(packet.packet_id)
        if packet.kind == PUBREL:
            self.known.discard(packet.packet_id)
            self.scene.say(Ack(PUBCOMP, packet.packet_id))
        elif one is not None and packet.kind == PUBREC:
            one.released = True
            self.promised_down[2].add(int(one.payload))
            self.scene.say(Ack(PUBREL, packet.packet_id))
        elif one is not None:
            self.promised_down[one.qos].add(int(one.payload))
            del self.down[packet.packet_id]

    @precondition(lambda self: self.there)
    @rule(closed=st.booleans())
    def lose(self, closed: bool) -> None:
        self.scene.link.lost("lost", self.scene.network.now, closed)
        self.scene.network.settle()
        self.there = False
        self.inbox.clear()

    @rule()
    def close_group(self) -> None:
        assert self.scene.store is not None
        self.scene.store.close_group()

    @rule()
    def commit(self) -> None:
        assert self.scene.store is not None
        self.scene.store.commit()
        self.look()

    @rule()
    def kill(self) -> None:
        """Messages that the upstream has not read are lost with the broker, as are those without an acknowledgement."""
        self.scene = killed(self.scene)
        self.publisher = self.scene.network.client("publisher")
        self.open.clear()
        self.inbox.clear()
        self.there = False

    def teardown(self) -> None:
        """Everybody is there, until nothing moves any more."""
        if not self.there:
            self.connect()
        moved = True
        while moved:
            self.scene.commit()
            self.inbox += self.scene.took(Packet)
            moved = bool(self.inbox)
            self.answer(1_000)
        client = self.subscriber()
        for _ in range(3):
            self.scene.commit()
        arrived = [(each.topic, int(each.payload)) for each in client.got(Publish)]
        for qos in (1, 2):
            self.hold(qos, self.came[qos], self.promised[qos])
            self.hold(qos, [number for topic, number in arrived if topic == b"down/%d" % qos], self.promised_down[qos])
        assert not self.down
        assert not self.known
        assert (len(self.scene.session.inflight), self.scene.session.queued()) == (0, 0)

    def hold(self, qos: int, came: list[int], promised: set[int]) -> None:
        once = list(dict.fromkeys(came))
        assert promised <= set(once)
        assert once == sorted(once)
        assert qos == 1 or once == came


def test_brokers_that_are_killed_anywhere() -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.6.0-6]"""
    run_state_machine_as_test(
        Kills,
        settings=settings(
            max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
