"""Six hours of a client that is away while a publisher goes on, minute by minute, on an injected clock.

Its session's queue never exceeds its bounds in messages and bytes, nothing in it is older than it may be, and on its
return the client gets exactly what its policy promises. The same for a broker with many such clients under one bound.

amqtt#14 and #123 (offline sessions without bound), mosquitto#2455 (an outage of six hours ends in a crash loop),
mosquitto#2879 (a bound of 0 dropped everything instead of meaning unlimited).
"""

from __future__ import annotations

from typing import Final

import pytest

from canopy_mqtt.core.codec.packets import V5, V311, Publish
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import POLICIES
from canopy_mqtt.core.session.session import Session
from tests.core.harness import START, Client, Network, limits, total_ledger
from tests.support.losses import dropped_by_cause
from tests.support.runs import for_each

MINUTE: Final = 60.0
HOURS: Final = 6
STEPS: Final = HOURS * 60
IN_A_STEP: Final = 5
"""Messages published each minute, one for each topic."""
TOTAL: Final = STEPS * IN_A_STEP
DAY: Final = 86_400

MESSAGES: Final = 300
SIZE: Final = 1_000
BYTES: Final = 200_000
OVERHEAD: Final = 400
"""Bytes that a queue may count for a message beyond its payload."""


def policy(name: str, **more: float) -> Limits:
    """Limits with this policy."""
    made = limits(queue_policy=POLICIES.index(name))
    for key, value in more.items():
        kind = type(getattr(made, key))
        setattr(made, key, kind(value))
    return made


class Outage:
    """A subscriber that went away at the start, and a publisher that never stops."""

    def __init__(self, given: Limits, version: int = V5, expiry: int = DAY) -> None:
        self.network = Network(given)
        self.away = self.network.idle("away", version)
        self.away.connect(clean=False, expiry=expiry if version == V5 else None)
        self.away.subscribe("plant/#", qos=1)
        self.session: Session = self.away.session
        self.away.cut()
        self.publisher: Client = self.network.client("publisher")
        self.sent = 0
        self.most_messages = 0
        self.most_bytes = 0

    @property
    def minute(self) -> float:
        """Minutes since the start."""
        return (self.network.now - START) / MINUTE

    def wait(self, seconds: float) -> None:
        """Time passes; the shell sweeps the queues once a second."""
        self.network.advance(seconds)
        self.network.router.sweep(self.network.now)
        self.network.settle()

    def step(self, expiry: int = -1) -> None:
        """A minute of publishing. Every message is acknowledged."""
        for topic in range(IN_A_STEP):
            payload = b"%d " % self.sent + bytes(SIZE)
            self.publisher.publish(f"plant/{topic}", payload, qos=1, expiry=expiry)
            self.sent += 1
            load = self.network.router.counters.load
            self.most_messages = max(self.most_messages, self.session.queued())
            self.most_bytes = max(self.most_bytes, load.bytes)
        assert not self.publisher.outgoing, "the publisher was not acknowledged"
        self.wait(MINUTE)
        assert total_ledger([self.session]) == []

    def hours(self, expiry: int = -1) -> None:
        """All of them."""
        for _ in range(STEPS):
            self.step(expiry)

    def come_back(self) -> list[int]:
        """The numbers of what the client gets on its return."""
        return [number(packet) for packet in self.receive()]

    def receive(self) -> list[Publish]:
        """What the client gets on its return."""
        answer = self.away.connect(clean=False, expiry=DAY if self.away.version == V5 else None)
        assert answer.session_present
        found = self.away.take()
        assert self.session.queued() == 0
        assert self.network.router.counters.load.messages == 0
        assert self.network.router.counters.load.bytes == 0
        assert total_ledger([self.session]) == []
        assert self.session.delivered_in_all() == len(found)
        assert self.session.offered == self.sent
        return found

    def lost(self) -> dict[str, int]:
        """What the session lost, by cause."""
        return {DROP_CAUSES[cause]: count for cause, count in enumerate(dropped_by_cause(self.session)) if count}


def number(packet: Publish) -> int:
    """The number of a message."""
    return int(packet.payload.split(b" ", 1)[0])


class TestEachPolicy:
    """Bounded in messages; what comes back is what the policy keeps."""

    @for_each("version", [V311, V5], ids=["3.1.1", "5.0"])
    @pytest.mark.crowd
    @for_each("name", ["drop-newest", "disconnect"])
    def test_the_oldest_are_kept(self, version: int, name: str) -> None:
        """Nobody is connected, so `disconnect` has nobody to disconnect."""
        outage = Outage(policy(name, session_messages=MESSAGES), version)
        outage.hours()
        assert outage.most_messages == MESSAGES
        assert outage.come_back() == list(range(MESSAGES))
        assert outage.lost() == {"full-messages": TOTAL - MESSAGES}

    @for_each("version", [V311, V5], ids=["3.1.1", "5.0"])
    @pytest.mark.crowd
    def test_the_newest_are_kept(self, version: int) -> None:
        outage = Outage(policy("drop-oldest", session_messages=MESSAGES), version)
        outage.hours()
        assert outage.most_messages == MESSAGES
        assert outage.come_back() == list(range(TOTAL - MESSAGES, TOTAL))
        assert outage.lost() == {"full-messages": TOTAL - MESSAGES}

    @for_each("version", [V311, V5], ids=["3.1.1", "5.0"])
    @pytest.mark.crowd
    def test_the_latest_of_each_topic_is_kept(self, version: int) -> None:
        outage = Outage(policy("latest", session_messages=MESSAGES), version)
        outage.hours()
        assert outage.most_messages == IN_A_STEP
        assert outage.come_back() == list(range(TOTAL - IN_A_STEP, TOTAL))
        assert outage.lost() == {"replaced-by-latest": TOTAL - IN_A_STEP}


class TestBytes:
    """The bound in bytes holds all the time, too."""

    @pytest.mark.crowd
    @pytest.mark.parametrize("name", ["drop-newest", "drop-oldest", "disconnect"])
    def test_each_policy(self, name: str) -> None:
        outage = Outage(policy(name, session_messages=0, session_bytes=BYTES))
        outage.hours()
        assert BYTES - SIZE - OVERHEAD < outage.most_bytes <= BYTES
        found = outage.come_back()
        assert BYTES // (SIZE + OVERHEAD) <= len(found) <= BYTES // SIZE
        kept = range(TOTAL - len(found), TOTAL) if name == "drop-oldest" else range(len(found))
        assert found == list(kept)
        assert outage.lost() == {"full-bytes": TOTAL - len(found)}

    def test_latest_with_more_topics_than_fit(self) -> None:
        """Those that have a place are kept up to date; the rest has none."""
        room = 3
        outage = Outage(policy("latest", session_messages=room))
        outage.hours()
        assert outage.most_messages == room
        assert outage.come_back() == [TOTAL - IN_A_STEP + topic for topic in range(room)]
        assert outage.lost() == {
            "replaced-by-latest": (STEPS - 1) * room,
            "full-messages": STEPS * (IN_A_STEP - room),
        }

    def test_zero_is_unlimited(self) -> None:
        """mosquitto#2879."""
        outage = Outage(policy("drop-newest", session_messages=0, session_bytes=0))
        outage.hours()
        assert outage.come_back() == list(range(TOTAL))
        assert outage.lost() == {}


class TestAge:
    """`max_age`: what waited longer is gone, with each policy, whether the queue is full or not."""

    @pytest.mark.crowd
    @pytest.mark.parametrize("name", POLICIES)
    @pytest.mark.parametrize("minutes", [10, 30])
    def test_each_policy(self, name: str, minutes: int) -> None:
        outage = Outage(policy(name, queue_max_age=minutes * MINUTE))
        for _ in range(STEPS):
            outage.step()
            # The messages of `minutes` steps, and one step's more at the edge.
            assert outage.session.queued() <= (minutes + 1) * IN_A_STEP
        outage.wait(MINUTE / 2)
        found = outage.come_back()
        if name == "latest":
            assert found == list(range(TOTAL - IN_A_STEP, TOTAL))
            assert set(outage.lost()) <= {"replaced-by-latest", "age"}
        else:
            # The last ones were published a minute and a half ago; those before them a minute earlier each.
            kept = (minutes - 1) * IN_A_STEP
            assert found == list(range(TOTAL - kept, TOTAL))
            assert outage.lost() == {"age": TOTAL - kept}

    @for_each("name", POLICIES)
    def test_after_the_last_message(self, name: str) -> None:
        """The publisher stops; time alone empties the queue, and memory with it."""
        outage = Outage(policy(name, queue_max_age=10 * MINUTE))
        for _ in range(20):
            outage.step()
        outage.wait(8 * MINUTE)
        assert outage.session.queued() > 0
        outage.wait(3 * MINUTE)
        assert outage.session.queued() == 0
        assert outage.network.router.counters.load.bytes == 0
        assert outage.come_back() == []

    def test_full_and_old_at_once(self) -> None:
        """Each loss under its own cause: nothing that was still good made room for what is too old."""
        outage = Outage(policy("drop-newest", session_messages=20, queue_max_age=10 * MINUTE))
        outage.hours()
        assert outage.most_messages == 20
        outage.wait(MINUTE / 2)
        found = outage.come_back()
        assert found == sorted(found)
        assert min(found) >= TOTAL - 10 * IN_A_STEP
        lost = outage.lost()
        assert set(lost) == {"age", "full-messages"}
        assert sum(lost.values()) == TOTAL - len(found)
        # The queue turns over every ten minutes or so: it is not stuck with the first twenty.
        assert lost["age"] > 20 * (HOURS * 60 // 11 - 2)


class TestExpiry:
    """Expiry of messages and of sessions goes on while the client is away."""

    @for_each("name", POLICIES)
    def test_messages(self, name: str) -> None:
        """Only what has time left comes, with what is left of it [MQTT-3.3.2-5] [MQTT-3.3.2-6]."""
        minutes = 15
        outage = Outage(policy(name, session_messages=MESSAGES))
        for _ in range(100):
            outage.step(expiry=minutes * 60)
        outage.wait(MINUTE / 2)
        found = outage.receive()
        numbers = [number(packet) for packet in found]
        last = outage.sent
        if name == "latest":
            assert numbers == list(range(last - IN_A_STEP, last))
        else:
            assert numbers == [n for n in range(last) if n >= last - (minutes - 1) * IN_A_STEP]
        for packet in found:
            waited = (last - IN_A_STEP - number(packet) // IN_A_STEP * IN_A_STEP) // IN_A_STEP * 60 + 90
            assert packet.message_expiry == minutes * 60 - waited
        if name != "latest":
            # An expired message that made room for another (`drop-oldest`) may stand under either cause.
            assert sum(outage.lost().values()) == last - len(found)
            assert set(outage.lost()) <= ({"expired", "full-messages"} if name == "drop-oldest" else {"expired"})

    def test_what_expired_does_not_take_the_place_of_what_has_not(self) -> None:
        """A queue full of expired messages is not full."""
        outage = Outage(policy("drop-newest", session_messages=IN_A_STEP))
        outage.step(expiry=90)
        outage.wait(2 * MINUTE)
        outage.step()
        assert outage.come_back() == list(range(IN_A_STEP, 2 * IN_A_STEP))
        assert outage.lost() == {"expired": IN_A_STEP}

    def test_the_session(self) -> None:
        """After its expiry interval nothing of it is left [MQTT-3.1.2-23], and what waited is accounted for."""
        outage = Outage(policy("drop-newest", session_messages=MESSAGES), expiry=2 * 3600)
        session = outage.session
        while "away" in outage.network.router.sessions:
            assert outage.minute < 121
            outage.step()
        assert outage.minute >= 119
        assert session.queued() == 0
        assert outage.network.router.counters.load.messages == 0
        assert outage.network.router.counters.load.bytes == 0
        assert outage.lost()["session-ended"] == MESSAGES
        assert total_ledger([session]) == []
        answer = outage.away.connect(clean=False, expiry=DAY)
        assert not answer.session_present
        assert outage.away.take() == []


class TestManyOutages:
    """A bound over all queues together: many clients are away, and one of them gets far more than the others."""

    @pytest.mark.crowd
    @pytest.mark.parametrize("name", POLICIES)
    def test_the_total_holds(self, name: str) -> None:
        """The fullest gives; who has little keeps it. What is lost for the total says so."""
        clients, bound = 20, 250_000
        network = Network(policy(name, total_bytes=bound, session_messages=0, session_bytes=0))
        load = network.router.counters.load
        sessions = []
        for index in range(clients):
            client = network.idle(f"away{index}")
            client.connect(clean=False, expiry=DAY)
            client.subscribe(f"small/{index}/#", qos=1)
            if index == 0:
                client.subscribe("large/#", qos=1)
            sessions.append(client.session)
            client.cut()
        publisher = network.client("publisher")
        for step in range(60):
            for turn in range(10):
                # Topics of their own, so that `latest` has as much to keep as the others.
                publisher.publish(f"large/{step}/{turn}", bytes(SIZE), qos=1)
                assert load.bytes <= bound
            if step % 12 == 0:
                for index in range(1, clients):
                    publisher.publish(f"small/{index}/{step}", bytes(SIZE), qos=1)
                    assert load.bytes <= bound
            network.advance(MINUTE)
        assert total_ledger(sessions) == []
        # Shedding makes more room than it was asked for, and not much more.
        assert load.bytes > bound * 9 // 10
        assert load.messages == sum(session.queued() for session in sessions)
        for session in sessions[1:]:
            assert session.queued() == 5
            assert sum(dropped_by_cause(session)) == 0
        large = sessions[0]
        lost = {DROP_CAUSES[cause] for cause, count in enumerate(dropped_by_cause(large)) if count}
        assert lost == {"global"}
        assert sum(session.offered for session in sessions) == 600 + 5 * (clients - 1)
