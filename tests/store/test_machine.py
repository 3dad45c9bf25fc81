"""Random activity of a few clients, with a restart at any point: the broker that comes after is the one that went.

After each step, what the store would give back after a crash is held against the living router. A restart, with or
without time in between, is held against the old router, from which everybody is disconnected and for which as much time
passes. The harness's judge watches every byte on the wire across the restarts (DUP, order, identifiers, PUBLISH after
PUBREL), and at the end everybody comes back, and no QoS 2 message has arrived twice.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.store import MemoryStore
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.store.observed import at_once, restored, see, see_kept
from tests.store.places import rebooted
from tests.support.runs import examples, for_each

CLIENTS = ("a", "b", "c")
FILTERS = ("t/1", "t/+", "#", "$share/g/t/1", "$share/g/t/+", "w/#")
TOPICS = ("t/1", "t/2", "u")
GAPS = (0.0, 5.0, 60.0)

clients = st.sampled_from(CLIENTS)


class Restarts(RuleBasedStateMachine):
    """The network of the core's tests, whose router keeps everything in a store."""

    def __init__(self) -> None:
        super().__init__()
        self.wall = 0.0
        self.count = 0
        # Who has had a shared subscription, and with it perhaps two deliveries of one message.
        self.sharing: set[str] = set()
        self.store = MemoryStore(rebooted(self.lasting))
        self.limits = limits(queue_qos0=True, session_messages=20)
        self.network = Network(self.limits)
        at_once(self.store.open(self.clock))
        self.network.router.journal = self.store.journal
        self.clients: dict[str, Client] = {}

    def clock(self) -> float:
        return self.network.now

    def lasting(self) -> float:
        return self.network.now + self.wall

    def client(self, name: str) -> Client:
        client = self.clients.get(name)
        if client is None:
            client = self.network.idle(name, p.V311 if name == "c" else p.V5)
            self.clients[name] = client
        return client

    def online(self, name: str) -> Client | None:
        client = self.clients.get(name)
        if client is None or client.link is None or client.link.cut or client.link.protocol.close_cause:
            return None
        return client

    @initialize()
    def everybody(self) -> None:
        for name in CLIENTS:
            self.client(name).connect(clean=False, expiry=100)
            self.client(name).subscribe("t/+", qos=2)

    @rule(
        name=clients,
        clean=st.booleans(),
        expiry=st.sampled_from([0, 20, 100, 0xFFFFFFFF]),
        delay=st.sampled_from([None, 0, 7, 50]),
        window=st.sampled_from([1, 3, 100]),
    )
    def connect(self, name: str, clean: bool, expiry: int, delay: int | None, window: int) -> None:
        client = self.client(name)
        will = None if delay is None else Will("w/" + name, b"will of " + name.encode(), 1, retain=True)
        if client.version == p.V5:
            if will is not None:
                will.delay = delay or 0
            client.connect(clean=clean, expiry=expiry, will=will, receive_maximum=window)
        else:
            client.connect(clean=clean, will=will)
        assert client.connack.reason_code == 0

    @rule(name=clients, way=st.sampled_from(["cut", "disconnect", "with will", "expiry 0", "expiry 30"]))
    def leave(self, name: str, way: str) -> None:
        client = self.online(name)
        if client is None:
            return
        if way == "cut" or client.version != p.V5:
            client.cut()
        elif way == "disconnect":
            client.disconnect()
        elif way == "with will":
            client.disconnect(4)
        elif way == "expiry 0" or client.session.expiry_interval == 0:
            client.disconnect(properties=bag(i={0x11: 0}))
        else:
            client.disconnect(properties=bag(i={0x11: 30}))
        self.network.settle()

    @rule(
        name=clients,
        topic_filter=st.sampled_from(FILTERS),
        qos=st.integers(0, 2),
        handling=st.integers(0, 2),
        published=st.booleans(),
        identifier=st.sampled_from([0, 5]),
    )
    def subscribe(
        self, name: str, topic_filter: str, qos: int, handling: int, published: bool, identifier: int
    ) -> None:
        client = self.online(name)
        if client is None or client.wire.frozen:
            return
        if topic_filter.startswith("$share"):
            self.sharing.add(name)
            # The judge awaits everything again that was in flight; of a shared one, another member may get it instead.
            client.judge.enabled = False
        if client.version == p.V5:
            client.subscribe(Request(topic_filter, qos, False, published, handling), identifier=identifier)
        else:
            client.subscribe(Request(topic_filter, qos))

    @rule(name=clients, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        client = self.online(name)
        if client is not None and not client.wire.frozen:
            client.unsubscribe(topic_filter)

    @rule(
        name=clients,
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        expiry=st.sampled_from([-1, -1, 3, 40]),
        empty=st.booleans(),
    )
    def publish(self, name: str, topic: str, qos: int, retain: bool, expiry: int, empty: bool) -> None:
        client = self.online(name)
        if client is None:
            return
        self.count += 1
        payload = b"" if empty and retain else b"%d" % self.count
        client.publish(topic, payload, qos, retain, expiry=expiry if client.version == p.V5 else -1)

    @rule(name=clients, topic=st.sampled_from(TOPICS))
    def publish_and_lose(self, name: str, topic: str) -> None:
        """A QoS 2 publish arrives, and its PUBREC never does."""
        client = self.online(name)
        if client is None:
            return
        self.count += 1
        client.post(topic, b"%d" % self.count, 2)
        client.wire.to_channel()
        client.cut()
        self.network.settle()

    @rule(name=clients, answering=st.booleans())
    def answer_or_not(self, name: str, answering: bool) -> None:
        client = self.online(name)
        if client is not None:
            client.answering = answering
            if answering:
                client.answer()

    @rule(name=clients, count=st.integers(1, 3))
    def answer_some(self, name: str, count: int) -> None:
        client = self.online(name)
        if client is not None:
            client.answer(count)

    @rule(name=clients, frozen=st.booleans())
    def freeze(self, name: str, frozen: bool) -> None:
        """A writer that takes nothing, so that what is in flight is not sent."""
        client = self.online(name)
        if client is not None:
            client.wire.frozen = frozen
            self.network.settle()

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.network.advance(seconds)

    @rule(gap=st.sampled_from(GAPS), base=st.sampled_from([1_000.0, 3.0, 2_000_000.0]))
    def restart(self, gap: float, base: float) -> None:
        """The broker stops and another one starts, whose clock stands anywhere."""
        network = self.network
        for client in self.clients.values():
            if client.link is not None:
                client.cut()
            for ghost in client.ghosts:
                ghost.wire.lose()
            client.answering = True
        network.settle()
        old = network.router
        at_once(self.store.close())
        # From here on the old broker is only what the new one is compared with.
        for session in old.sessions.values():
            session.keep_in(None)
        old.journal = None
        then = network.now + gap
        self.wall += then - base
        network.now = base
        at_once(self.store.open(self.clock))
        new = restored(at_once(self.store.load()), self.limits, base, self.store)
        if gap:
            old.tick(then)
        new.tick(base)
        before, after = see(old, then), see(new, base)
        for seen in (*before["sessions"].values(), *after["sessions"].values()):
            # Wills that fall due in the gap are published in any order.
            seen["waiting"].sort(key=repr)
        assert after == before
        network.router = new
        network.links = []

    @invariant()
    def a_crash_would_lose_nothing(self) -> None:
        network = self.network
        saved = at_once(self.store.load())
        again = restored(saved, self.limits, network.now)
        for session in again.sessions.values():
            session.keep_in(self.store.journal)
        assert see_kept(again, network.now) == see_kept(network.router, network.now)
        assert total_ledger(again.sessions.values()) == []

    @invariant()
    def ledgers_add_up(self) -> None:
        assert total_ledger(self.network.router.sessions.values()) == []

    def teardown(self) -> None:
        """Everybody comes back, takes what is left, and each publish has come to each once at most."""
        self.restart(0.0, 500.0)
        for name in CLIENTS:
            client = self.client(name)
            client.connect(clean=False, expiry=100)
        self.network.settle()
        for session in self.network.router.sessions.values():
            assert not session.inflight
            assert not session.queue.pending
        for name in set(CLIENTS) - self.sharing:
            exact = [one.payload for one in self.client(name).inbox if one.qos == 2 and not one.retain and one.payload]
            assert len(exact) == len(set(exact)), exact


@for_each("steps", [15, 40])
def test_restarts(steps: int) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.4.0-1] [MQTT-4.1.0-1], over restarts."""
    options: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(
        Restarts,
        settings=settings(max_examples=examples(150 if steps < 20 else 60), stateful_step_count=steps, **options),
    )
