"""Random traffic of QoS 0 to 2 over a store that commits when it likes, and brokers that are killed at any time.

The broker that comes after one that was killed finds what was committed, and nothing else. After each step: whatever a
publisher has an acknowledgement for stands in what is committed, or has arrived; QoS 2 has arrived once at most; the
order of a topic holds, also of what goes to the subscribers one by one, over several turns (`Journal.broadcast`). At
the end everybody comes back, and whatever was acknowledged has arrived.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.persistence.journal import Saved
from tests.core.harness import Client, Network, limits, total_ledger
from tests.store.grouped import GroupStore
from tests.store.observed import at_once, restored
from tests.store.sqlite.grouped import FileStore
from tests.support.runs import examples

# Publishers, and subscribers with the QoS that they have asked for.
PUBLISHERS = {"a": p.V5, "b": p.V311}
SUBSCRIBERS = {"x": 2, "y": 1, "z": 0}
TOPICS = ("t/1", "t/2")
EVERYBODY = (*PUBLISHERS, *SUBSCRIBERS)

everybody = st.sampled_from(EVERYBODY)
publishers = st.sampled_from(sorted(PUBLISHERS))


class Sent:
    """A publish of QoS 1 or 2: until its client has an acknowledgement, the client keeps this packet."""

    def __init__(self, client: Client, packet: p.Publish) -> None:
        self.client = client
        self.packet = packet
        self.packet_id = packet.packet_id

    @property
    def acknowledged(self) -> bool:
        """PUBACK or PUBREC has come."""
        return self.client.outgoing.get(self.packet_id) is not self.packet


class Kills(RuleBasedStateMachine):
    """Brokers one after the other, and the clients that live longer than they do."""

    # Receivers up to which a message goes to all of them in one turn.
    at_once = 1

    def __init__(self) -> None:
        super().__init__()
        self.limits = limits(receive_maximum=6, max_inflight=4)
        self.network = Network(self.limits)
        self.store: Any = self.first_store()
        self.network.router.journal = self.store.journal
        self.network.router.fanout.at_once = self.at_once
        self.clients: dict[str, Client] = {}
        self.count = 0
        self.open: list[Sent] = []
        self.promised: list[Sent] = []

    def first_store(self) -> Any:
        store = GroupStore(self.clock)
        at_once(store.open(self.clock))
        return store

    def restart(self) -> Saved:
        """The store of the next broker, and what it finds."""
        self.store = GroupStore(self.clock, self.store)
        at_once(self.store.open(self.clock))
        saved: Saved = at_once(self.store.load())
        return saved

    def kept(self, name: str) -> set[bytes]:
        """The messages that the next broker would find for a client."""
        state = self.store.state
        kept = {one.message.payload for one in state.sessions[name].deliveries.values() if one.message}
        return kept | {one.message.payload for one in state.broadcasts.values() if name not in one.passed}

    def clock(self) -> float:
        return self.network.now

    def online(self, name: str) -> Client | None:
        client = self.clients[name]
        if client.link is None or client.link.cut or client.link.protocol.close_cause:
            return None
        return client

    def join(self, name: str) -> None:
        client = self.clients[name]
        client.connect(clean=False, expiry=None if client.version == p.V311 else 1_000)
        assert client.connack.reason_code == 0

    @initialize()
    def everybody_is_there(self) -> None:
        """And what they have subscribed to is committed."""
        for name in EVERYBODY:
            self.clients[name] = self.network.idle(name, PUBLISHERS.get(name, p.V5))
            self.join(name)
        for name, qos in SUBSCRIBERS.items():
            client = self.clients[name]
            client.send(p.Subscribe(client.take_id(), [Request("t/#", qos)]))
        self.network.settle()
        self.store.commit_all()
        self.network.settle()
        assert all(self.clients[name].got(p.Suback) for name in SUBSCRIBERS)

    # -- traffic -------------------------------------------------------------------------------------------------------

    def post(self, client: Client, topic: str, qos: int) -> None:
        self.count += 1
        if qos:
            # The lowest that is free: what the broker remembers wrongly of an identifier shows when it comes again.
            client._next_id = 0
        packet = client.post(topic, b"%d" % self.count, qos)
        if qos:
            self.open.append(Sent(client, packet))

    @rule(name=publishers, topic=st.sampled_from(TOPICS), qos=st.sampled_from([0, 1, 1, 2, 2]), times=st.integers(1, 3))
    def publish(self, name: str, topic: str, qos: int, times: int) -> None:
        client = self.online(name)
        if client is None:
            return
        for _ in range(times):
            if qos == 0 or len(client.outgoing) < self.limits.receive_maximum:
                self.post(client, topic, qos)
        self.network.settle()

    @rule(name=publishers, qos=st.integers(1, 2))
    def publish_and_lose(self, name: str, qos: int) -> None:
        """It arrives, and the connection is lost before its acknowledgement could."""
        client = self.online(name)
        if client is None or len(client.outgoing) >= self.limits.receive_maximum:
            return
        self.post(client, TOPICS[0], qos)
        client.wire.to_channel()
        client.cut()
        self.network.settle()

    @precondition(lambda self: self.at_once == 1)
    @rule(
        name=publishers,
        topic=st.sampled_from(TOPICS),
        qos=st.integers(1, 2),
        turns=st.lists(st.sampled_from(["one more", "close", "commit"]), max_size=8),
        lost=st.booleans(),
        killed=st.none() | st.lists(everybody, unique=True),
    )
    def publish_in_turns(
        self, name: str, topic: str, qos: int, turns: list[str], lost: bool, killed: list[str] | None
    ) -> None:
        """It goes to one after another, groups end between them, and others act, before all have had it.

        `lost`: the publisher's connection ends before that; `killed`: so does the broker, and these come back.
        """
        client = self.online(name)
        if client is None or len(client.outgoing) >= self.limits.receive_maximum:
            return
        self.post(client, topic, qos)
        client.wire.to_channel()
        router = self.network.router
        for turn in turns:
            if turn == "one more":
                router.budget.begin(1)
                router.fanout.broadcasts.step(router.budget)
            elif turn == "close":
                self.store.close_group()
            elif not self.store.gate.failed:
                self.store.commit()
            self.network.wake()
            for link in list(self.network.links):
                link.to_client()
        if lost:
            client.cut()
        if killed is not None:
            self.kill(killed, 0)

    @rule(name=st.sampled_from(sorted(SUBSCRIBERS)), answering=st.booleans())
    def answer_or_not(self, name: str, answering: bool) -> None:
        client = self.online(name)
        if client is not None:
            client.answering = answering
            if answering:
                client.answer()

    @rule(name=everybody)
    def leave(self, name: str) -> None:
        if self.online(name) is not None:
            self.clients[name].cut()
            self.network.settle()

    @rule(name=everybody)
    def come(self, name: str) -> None:
        """Also while the broker still has the last connection."""
        self.join(name)

    # -- the store -----------------------------------------------------------------------------------------------------

    @rule()
    def close_group(self) -> None:
        self.store.close_group()

    @precondition(lambda self: not self.store.gate.failed)
    @rule()
    def commit(self) -> None:
        self.store.commit()
        self.network.settle()

    @precondition(lambda self: not self.store.gate.failed)
    @rule()
    def commit_all(self) -> None:
        self.store.commit_all()
        self.network.settle()

    @precondition(lambda self: not self.store.gate.failed)
    @rule(name=everybody)
    def commit_and_lose(self, name: str) -> None:
        """Packets that were held leave, and do not arrive."""
        self.store.commit_all()
        if self.online(name) is not None:
            self.clients[name].cut()
        self.network.settle()

    @rule()
    def fail(self) -> None:
        self.store.gate.fail()

    @rule()
    def recover(self) -> None:
        self.store.gate.recover()

    @rule(back=st.lists(everybody, unique=True), shift=st.sampled_from([0, 1, 9]))
    def kill(self, back: list[str], shift: int) -> None:
        """The broker is gone, and with it what was not committed. Some come back at once.

        `shift`: how far the next one's packet identifiers are from those of the last.
        """
        for client in self.clients.values():
            client.killed()
        saved = self.restart()
        self.network.router = restored(saved, self.limits, self.network.now, self.store)
        self.network.router.fanout.at_once = self.at_once
        self.network.links = []
        for session in self.network.router.sessions.values():
            session.inflight.last_id += shift
        for name in back:
            self.join(name)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def arrived(self, name: str) -> list[bytes]:
        return [packet.payload for packet in self.clients[name].inbox]

    @invariant()
    def what_was_acknowledged_is_committed(self) -> None:
        """Or it has arrived, and nobody needs it any more. QoS 2 that did not arrive is not only in memory."""
        left: list[Sent] = []
        for sent in self.open:
            (self.promised if sent.acknowledged else left).append(sent)
        self.open = left
        for name in ("x", "y"):
            if name not in self.clients:
                return
            missing = {sent.packet.payload for sent in self.promised} - set(self.arrived(name))
            if missing:
                missing -= self.kept(name)
            assert not missing, f"{missing} for {name}"

    @invariant()
    def qos_2_arrives_once(self) -> None:
        if "x" in self.clients:
            exact = [packet.payload for packet in self.clients["x"].inbox if packet.qos == 2]
            assert len(exact) == len(set(exact)), exact

    @invariant()
    def order_holds(self) -> None:
        """[MQTT-4.6.0-6], for what arrives for the first time; QoS 1 may come again."""
        for name in SUBSCRIBERS:
            last: dict[tuple[bytes, int], int] = {}
            seen = set()
            for packet in self.clients[name].inbox if name in self.clients else ():
                number = int(packet.payload)
                if number in seen:
                    continue
                seen.add(number)
                way = (packet.topic, packet.qos)
                if packet.qos > 0:
                    assert last.get(way, 0) < number or self._of_another(number, last[way]), (name, way, number)
                last[way] = max(number, last.get(way, 0))

    def _of_another(self, one: int, other: int) -> bool:
        """Return whether two publishes come from different publishers: one that waited for its publisher's return comes
        late."""
        sent = {int(each.packet.payload): each.client for each in (*self.open, *self.promised)}
        return sent[one] is not sent[other]

    @invariant()
    def ledgers_add_up(self) -> None:
        assert total_ledger(self.network.router.sessions.values()) == []

    @invariant()
    def nobody_waits_who_is_gone(self) -> None:
        """Of each connection its answers and its QoS 2 publishes may wait, and nothing else does."""
        there = sum(self.online(name) is not None for name in self.clients)
        assert self.store.gate.waiting <= 2 * there

    def teardown(self) -> None:
        """Everybody comes back, the store works again, and all of it arrives."""
        if not self.clients:
            return
        self.store.gate.recover()
        for name in EVERYBODY:
            self.clients[name].answering = True
            self.join(name)
        for _ in range(4 * self.count + 20):
            self.store.commit_all()
            self.network.settle()
        self.what_was_acknowledged_is_committed()
        assert not self.open
        for name in EVERYBODY:
            assert not self.clients[name].outgoing
        for name in ("x", "y"):
            assert {sent.packet.payload for sent in self.promised} <= set(self.arrived(name))
            session = self.network.router.sessions[name]
            assert not session.inflight
            assert not session.queue.pending
        self.qos_2_arrives_once()
        self.order_holds()
        assert self.store.gate.waiting == 0


class KillsOfFiles(Kills):
    """The same with the journal and the file of `SqliteStore`, whose groups leave young deliveries out."""

    at_once = 1_000

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="canopy-kills-"))
        super().__init__()

    def first_store(self) -> Any:
        return FileStore(self.folder, self.clock)

    def restart(self) -> Saved:
        self.store.kill()
        self.store = FileStore(self.folder, self.clock)
        saved: Saved = self.store.load()
        return saved

    def kept(self, name: str) -> set[bytes]:
        saved = self.store.saved()
        [session] = [one for one in saved.sessions if one.client_id == name]
        kept = {one.message.payload for one in session.deliveries if one.message}
        return kept | {one.message.payload for one in saved.broadcasts if name not in one.passed}

    @rule()
    def ease(self) -> None:
        self.store.ease()
        self.network.settle()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.store.kill()
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("machine", [Kills, KillsOfFiles])
@pytest.mark.parametrize("steps", [15, 50])
def test_kills(steps: int, machine: type[Kills]) -> None:
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.6.0-6], over brokers that are killed."""
    options: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples(200 if steps < 20 else 80), stateful_step_count=steps, **options),
    )
