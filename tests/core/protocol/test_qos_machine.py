"""QoS 1 and 2 under every order of sending, losing and coming back: a stateful Hypothesis machine.

Two publishers and two subscribers (3.1.1 and 5.0 of each) keep their sessions. Bytes move by any number in either
direction, so that a connection can end between any two bytes, with packets lost both ways. The harness's judge holds
every packet against the rules of the wire: DUP, order of redelivery, identifiers, windows. The machine adds what the
subscribers must have in the end: QoS 2 exactly once, QoS 1 at least once, in order for each publisher, topic and QoS,
and nothing lost.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.codec.packets import V5, V311
from tests.core.harness import Client, Network, limits, total_ledger
from tests.support.runs import examples

TOPICS = ("t/a", "t/b")
SUBSCRIBERS = ("s4", "s5")
PUBLISHERS = ("p4", "p5")

who = st.sampled_from((*SUBSCRIBERS, *PUBLISHERS))
publishers = st.sampled_from(PUBLISHERS)
subscribers = st.sampled_from(SUBSCRIBERS)
few = st.one_of(st.integers(1, 40), st.just(1 << 20))


class QualityOfService(RuleBasedStateMachine):
    """See the top of this file.

    As a sender [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.2-3] [MQTT-4.3.3-1] [MQTT-4.3.3-2] [MQTT-4.3.3-3] [MQTT-4.3.3-4]
    [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.3.3-7], as a receiver [MQTT-4.3.2-4] [MQTT-4.3.2-5] [MQTT-4.3.3-8]
    [MQTT-4.3.3-9] [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12], and [MQTT-4.4.0-1] [MQTT-4.5.0-1]
    [MQTT-4.6.0-5] [MQTT3-4.6.0-6].
    """

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self.clients: dict[str, Client] = {}
        self.sent: dict[tuple[str, str, int], list[bytes]] = {}
        self.number = 0

    @initialize(
        window=st.integers(1, 4),
        receive=st.integers(1, 4),
        live=st.integers(2, 6),
        pace=st.sampled_from((0, 1, 5)),
        qos12_messages=st.sampled_from(((2, 2), (1, 2), (2, 1))),
    )
    def begin(self, window: int, receive: int, live: int, pace: int, qos12_messages: tuple[int, int]) -> None:
        """Everybody connects; the subscribers subscribe."""
        self.network = Network(limits(max_inflight=window, live_messages=live, live_bytes=2_000), pace=pace)
        self.receive = receive
        self.granted = dict(zip(SUBSCRIBERS, qos12_messages, strict=True))
        for name in (*SUBSCRIBERS, *PUBLISHERS):
            self.clients[name] = self.network.idle(name, V311 if name.endswith("4") else V5)
            self._connect(name)
            self.network.settle()
        for name in SUBSCRIBERS:
            self.clients[name].subscribe("t/+", qos=self.granted[name])

    def _connect(self, name: str) -> None:
        client = self.clients[name]
        v5 = client.version == V5
        client.connect(
            clean=False,
            expiry=10_000 if v5 else None,
            receive_maximum=self.receive if v5 and name in SUBSCRIBERS else None,
            settle=False,
        )

    @rule(
        name=publishers,
        topic=st.sampled_from(TOPICS),
        qos=st.sampled_from((1, 2)),
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    )
    def publish(self, name: str, topic: str, qos: int, sizes: list[int]) -> None:
        """A publisher that is connected sends."""
        client = self.clients[name]
        for size in sizes:
            if client.connack.reason_code != 0 or client.wire.cut or len(client.outgoing) >= 20:
                return
            self.number += 1
            payload = f"{self.number}:".encode() + b"x" * size
            client.post(topic, payload, qos)
            self.sent.setdefault((name, topic, qos), []).append(payload)

    @rule(name=who, count=few)
    def up(self, name: str, count: int) -> None:
        """Some bytes reach the broker."""
        self.clients[name].wire.to_channel(count)

    @rule(name=who, count=few)
    def down(self, name: str, count: int) -> None:
        """Some bytes reach a client."""
        self.clients[name].wire.to_client(count)

    @rule(name=who, size=st.sampled_from((1, 64, 1 << 20)))
    def write(self, name: str, size: int) -> None:
        """A writer takes one batch."""
        link = self.clients[name].wire
        link.batch = size
        link.flush(1)
        link.batch = 1 << 30

    @rule()
    def settle(self) -> None:
        """Everything moves."""
        self.network.settle()

    @rule(name=who)
    def cut(self, name: str) -> None:
        """A connection is lost with all that was on the wire."""
        self.clients[name].cut()

    @rule(name=who, receive=st.integers(1, 4))
    def reconnect(self, name: str, receive: int) -> None:
        """A client comes back after a loss, perhaps with another Receive Maximum."""
        if self.clients[name].wire.cut:
            self.receive = receive
            self._connect(name)

    @rule(name=subscribers, answering=st.booleans())
    def hold_back(self, name: str, answering: bool) -> None:
        """A subscriber stops acknowledging, or begins again with what it owes."""
        client = self.clients[name]
        client.answering = answering
        if answering and not client.wire.cut:
            client.answer(settle=False)

    @rule(name=subscribers, count=st.integers(1, 3))
    def answer_some(self, name: str, count: int) -> None:
        """A subscriber acknowledges a few."""
        client = self.clients[name]
        if not client.wire.cut:
            client.answer(count, settle=False)

    @invariant()
    def in_order_and_never_twice(self) -> None:
        """What has come so far is a beginning of what was sent."""
        for name in self.clients:
            if name in SUBSCRIBERS:
                self._check(name, whole=False)

    @invariant()
    def the_ledger_adds_up(self) -> None:
        """At every moment."""
        if self.clients:
            assert total_ledger(self.network.router.sessions.values()) == []
            assert self.network.router.counters.dropped_in_all() == 0

    def _check(self, name: str, whole: bool) -> None:
        granted = self.granted[name]
        got: dict[tuple[bytes, int], list[bytes]] = {}
        for packet in self.clients[name].inbox:
            got.setdefault((packet.topic, packet.qos), []).append(packet.payload)
        for (publisher, topic, qos), sent in self.sent.items():
            mine = set(sent)
            arrived = [payload for payload in got.get((topic.encode(), min(qos, granted)), []) if payload in mine]
            once = list(dict.fromkeys(arrived))
            if qos == 2 == granted:
                assert arrived == once, f"{publisher} to {name}: QoS 2 twice"
            # [MQTT-4.6.0-5] [MQTT-4.6.0-6]: the first arrival of each is in order.
            assert once == sent[: len(once)], f"{publisher} to {name}, {topic}, QoS {qos}: {once} is not {sent}"
            if whole:
                assert len(once) == len(sent), f"{publisher} to {name}, {topic}, QoS {qos}: lost {sent[len(once) :]}"

    def teardown(self) -> None:
        """Everybody comes back, and everything arrives."""
        if not self.clients:
            return
        for name, client in self.clients.items():
            client.answering = True
            client.answer(settle=False)
            if client.wire.cut:
                self._connect(name)
        self.network.settle()
        for name in SUBSCRIBERS:
            self._check(name, whole=True)
        for name, client in self.clients.items():
            assert not client.closed, f"{name} was disconnected: {client.end}"
            assert client.outgoing == {}, f"{name} has unfinished publishes"
            session = self.network.session(name)
            assert not session.inflight
            assert not session.queue.pending
            assert not session.received_qos2
            assert session.queued() == 0


TestQualityOfService = QualityOfService.TestCase
TestQualityOfService.settings = settings(
    max_examples=examples(150), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
