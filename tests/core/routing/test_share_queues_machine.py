"""Random activity around a share group, with restarts: each message to one member, none lost, none of QoS 2 twice.

What is acknowledged to the publisher is owed to the group as long as it has a member. The model keeps of each message
only who has had it, and whether that is settled.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.store import MemoryStore
from tests.core.harness import Client, Network, limits, total_ledger
from tests.store.observed import at_once
from tests.store.places import rebooted
from tests.support.restored import restore
from tests.support.runs import examples, for_each

DURABLE = ("a", "b", "c")
NAMES = (*DURABLE, "clean")
TOPICS = ("t/0", "t/1")
SHARED = "$share/g/t/+"
EXPIRY = 100

names = st.sampled_from(NAMES)


class Groups(RuleBasedStateMachine):
    """One group, its members, a publisher, and a store if there is one."""

    kept = False

    def __init__(self) -> None:
        super().__init__()
        self.limits = limits(session_messages=0, session_bytes=0, max_inflight=100)
        self.store = MemoryStore(rebooted(self.clock))
        self.network = Network(self.limits)
        if self.kept:
            at_once(self.store.open(self.clock))
            self.network.router.journal = self.store.journal
        self.at_once = 0
        self.count = 0
        self.qos: dict[int, int] = {}
        # What the group is owed; what came to a member, how often with QoS 2; and what was acknowledged by one.
        self.owed: set[int] = set()
        self.came: set[int] = set()
        self.twice: Counter[int] = Counter()
        self.settled: set[int] = set()
        self.clients: dict[str, Client] = {}
        self.read: dict[str, int] = {}
        # The one client that is there, and the last number of each topic that came to it since it is alone.
        self.alone = ""
        self.last: dict[str, int] = {}

    def clock(self) -> float:
        return self.network.now

    # -- helpers -------------------------------------------------------------------------------------------------------

    def online(self, name: str) -> Client | None:
        client = self.clients.get(name)
        if client is None or client.link is None or client.link.cut or client.link.protocol.close_cause:
            return None
        return client

    def everybody(self) -> list[Client]:
        return [client for name in NAMES if (client := self.online(name)) is not None]

    def members(self) -> list[str]:
        """Who is in the group."""
        sessions = self.network.router.sessions
        return [name for name in NAMES if name in sessions and SHARED in sessions[name].subscriptions]

    def ending(self, name: str) -> None:
        """A session is about to end: QoS 2 that was sent ends with it [MQTT-4.8.2-5]."""
        session = self.network.router.sessions.get(name)
        if session is None:
            return
        for each in session.inflight.values():
            if each.qos == 2 and each.attempts > 0 and each.state == 1:
                self.owed.discard(int(each.message.payload()))

    def look(self) -> None:
        """Take what has come, and see what the group has come to."""
        self.network.settle()
        there = [client.client_id for client in self.everybody()]
        alone = there[0] if len(there) == 1 else ""
        if alone != self.alone:
            self.alone, self.last = alone, {}
        for name, client in self.clients.items():
            fresh = client.inbox[self.read.get(name, 0) :]
            self.read[name] = len(client.inbox)
            unanswered = {each.packet_id for each in client.unanswered if isinstance(each, p.Ack)}
            for each in fresh:
                self._came(name, each, each.packet_id not in unanswered)
        if not self.members():
            self.owed &= self.came  # what waited has ended with the group

    def _came(self, name: str, packet: Publish, answered: bool) -> None:
        number = int(packet.payload)
        assert number not in self.settled, f"{number} came again, to {name}"
        self.came.add(number)
        if packet.qos == 2:
            self.twice[number] += 1
            assert self.twice[number] == 1, f"{number} came twice, to {name}"
        if answered:
            self.settled.add(number)
        if name == self.alone and not packet.dup:
            topic = packet.topic.decode()
            assert number > self.last.get(topic, -1), f"{number} came after {self.last[topic]}, to {name}"
            self.last[topic] = number

    # -- what happens --------------------------------------------------------------------------------------------------

    @initialize(at_once=st.sampled_from([1, 2, 512]))
    def begin(self, at_once: int) -> None:
        self.at_once = self.network.router.unfinished.at_once = at_once
        for name in NAMES:
            self.clients[name] = self.network.idle(name)
            self.clients[name].judge.enabled = False
        self.connect("a", False, 100, True)

    @rule(name=names, clean=st.booleans(), window=st.sampled_from([1, 2, 100]), answering=st.booleans())
    def connect(self, name: str, clean: bool, window: int, answering: bool) -> None:
        client = self.clients[name]
        clean = clean or name not in DURABLE
        if self.online(name) is not None:
            self.leave(name, True)
        if clean:
            self.ending(name)
        client.answering = answering
        expiry = EXPIRY if name in DURABLE else 0
        client.incoming = client.incoming if not clean else set()
        client.connect(clean=clean, expiry=expiry, receive_maximum=window)
        self.look()
        if SHARED not in client.session.subscriptions:
            client.subscribe(SHARED, qos=2)
        self.look()

    @rule(name=names, cut=st.booleans())
    def leave(self, name: str, cut: bool) -> None:
        client = self.online(name)
        if client is None:
            return
        if name not in DURABLE:
            self.ending(name)
        if cut:
            client.cut()
        else:
            client.disconnect()
        client.unanswered = []
        self.look()

    @rule(name=names)
    def unsubscribe(self, name: str) -> None:
        client = self.online(name)
        if client is not None:
            client.unsubscribe(SHARED)
            self.look()

    @rule(name=names, count=st.integers(1, 5))
    def answer(self, name: str, count: int) -> None:
        client = self.online(name)
        if client is None:
            return
        for each in client.unanswered[:count]:
            if isinstance(each, p.Ack) and each.kind in (p.PUBACK, p.PUBREC):
                self.settled.update(
                    int(one.payload)
                    for one in client.got(Publish)
                    if one.packet_id == each.packet_id and int(one.payload) not in self.settled
                )
        client.answer(count)
        self.look()

    @rule(topic=st.sampled_from(TOPICS), qos=st.sampled_from([1, 2]), count=st.integers(1, 6))
    def publish(self, topic: str, qos: int, count: int) -> None:
        publisher = self.network.client("p")
        for _ in range(count):
            number = self.count
            self.count += 1
            self.qos[number] = qos
            owed = bool(self.members())
            publisher.publish(topic, b"%d" % number, qos)
            if owed:
                self.owed.add(number)
            self.look()

    @rule()
    def time_passes(self) -> None:
        for name in DURABLE:
            if self.online(name) is None:
                self.ending(name)
        self.network.advance(EXPIRY + 1)
        self.look()

    @rule()
    def restart(self) -> None:
        """The broker dies; what the store has is all that there is. Clean sessions are gone."""
        if not self.kept:
            return
        self.ending("clean")
        for client in self.clients.values():
            client.killed()
            client.unanswered = []
        self.look()
        saved = at_once(self.store.load())
        made = Network(self.limits)
        made.now = self.network.now
        made.router.journal = self.store.journal
        made.router.unfinished.at_once = self.at_once
        restore(made.router, saved, made.now)
        made.settle()
        self.network = made
        for client in self.clients.values():
            client.network = made
        self.look()

    @invariant()
    def accounts_are_right(self) -> None:
        sessions = self.network.router.sessions.values()
        assert total_ledger(sessions) == []
        totals = self.network.router.counters.totals
        if not self.network.router.jobs.waiting:
            waiting = sum(each.waiting_messages() + each.in_flight_messages() for each in sessions)
            live = sum(
                each.send_buffer.messages - each.send_buffer.in_flight_messages
                for each in sessions
                if each.send_buffer is not None
            )
            assert totals.messages == waiting + live

    @invariant()
    def a_queue_is_there_only_while_something_waits(self) -> None:
        queue = self.network.router.sessions.get(SHARED)
        if queue is not None:
            assert queue.waiting_messages() > 0
            assert self.members()
            orders = [each.order for each in queue.queue.waiting()]
            assert orders == sorted(orders)

    def teardown(self) -> None:
        """Everybody comes, and all that is owed has come."""
        if not self.clients:
            return
        for name in DURABLE:
            client = self.clients[name]
            if self.online(name) is not None:
                self.leave(name, True)
            client.answering = True
            client.connect(clean=False, expiry=EXPIRY)
            self.look()
        for name in NAMES:
            client = self.clients[name]
            if self.online(name) is not None:
                client.answering = True
                while client.unanswered:
                    self.answer(name, 100)
        self.look()
        missing = self.owed - self.came
        assert not missing, f"{sorted(missing)} came to nobody"
        assert SHARED not in self.network.router.sessions or not self.members()


class KeptGroups(Groups):
    kept = True


@for_each("machine", [Groups, KeptGroups])
def test_share_groups(machine: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(150),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
