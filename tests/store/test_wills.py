"""The wills of clients that were connected when the broker was killed: published after the next start, once.

A store that commits when it is told keeps what a killed broker leaves; `Brokers` starts one after another on it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.journal import Journal, LoneWillRecord
from canopy_mqtt.core.persistence.restore import restore_will
from canopy_mqtt.core.principal import Principal
from tests.core.harness import Client, Network, limits
from tests.store.grouped import GroupStore
from tests.store.observed import at_once
from tests.support.restored import restore
from tests.support.runs import examples, for_each

GRACE = 30.0


class Brokers:
    """One broker after another, and a witness whose session is durable: it gets the wills with QoS 2."""

    def __init__(self, grace: float = GRACE, **more: Any) -> None:
        self.limits = limits(**more)
        self.limits.will_grace = grace
        self.now = 1_000.0
        self.network = self._network()
        self.store = GroupStore(self.clock)
        at_once(self.store.open(self.clock))
        self.network.router.journal = self.store.journal
        self.seen: Counter[bytes] = Counter()
        witness = self.network.client("witness", expiry=1_000_000)
        witness.send(p.Subscribe(witness.take_id(), [p.SubscriptionRequest("w/#", 2)]))
        self.settle()
        witness.cut()
        self.settle()

    def clock(self) -> float:
        return self.network.now

    def _network(self) -> Network:
        made = Network(self.limits)
        made.now = self.now
        return made

    def settle(self) -> None:
        """Everything is committed."""
        self.network.settle()
        self.store.commit_all()
        self.network.settle()

    def client(self, client_id: str, **connect: Any) -> Client:
        made = self.network.client(client_id, **connect)
        self.settle()
        return made

    def kill(self, after: float = 5.0) -> None:
        """The broker dies with what is committed, and so many seconds later another one starts."""
        self.now = self.network.now + after
        self.network = self._network()
        self.store = GroupStore(self.clock, self.store)
        at_once(self.store.open(self.clock))
        saved = at_once(self.store.load())
        self.network.router.journal = self.store.journal
        restore(self.network.router, saved, self.network.now)
        self.network.router.tick(self.network.now)

    def advance(self, seconds: float) -> None:
        self.network.advance(seconds)
        self.settle()

    def wills(self) -> dict[bytes, int]:
        """The wills that the witness has got by now, and how often."""
        witness = self.network.client("witness", clean=False, expiry=1_000_000)
        self.settle()
        self.seen.update(each.payload for each in witness.got(p.Publish))
        witness.cut()
        self.settle()
        return dict(self.seen)

    def leaves_no_trace(self) -> bool:
        """Of clients that are gone for good."""
        router = self.network.router
        journal = self.store.journal
        sessions = sum(session.account.session for session in router.sessions.values())
        return not router.wills.held and not journal.wills and router.session_table.bytes == sessions


WILL = Will("w/c", b"gone", 1)


@for_each(("expiry", "delay", "due"), [(0, 0, 30), (5, 0, 30), (5, 60, 30), (100, 10, 30), (100, 60, 60)])
def test_the_greater_of_delay_and_grace(expiry: int, delay: int, due: int) -> None:
    """A delay counts up to the end of the session [MQTT-3.1.3-9]; a session does not live longer for its will."""
    brokers = Brokers()
    brokers.client("c", will=Will("w/c", b"gone", 1, delay=delay), expiry=expiry)
    brokers.kill()
    brokers.advance(due - 1)
    assert brokers.wills() == {}
    assert ("c" in brokers.network.router.sessions) == (expiry > due - 1)
    brokers.advance(1)
    assert brokers.wills() == {b"gone": 1}


@for_each(("at", "published"), [(5, 1), (15, 0)])
def test_a_clean_start_while_the_own_delay_runs_publishes(at: int, published: int) -> None:
    """As it does without a kill: it ends the session [MQTT-3.1.3-9]. Afterwards the client is simply back."""
    brokers = Brokers()
    brokers.client("c", will=Will("w/c", b"gone", 1, delay=10), expiry=100)
    brokers.kill()
    brokers.advance(at)
    brokers.client("c", clean=True)
    brokers.advance(10 * GRACE)
    assert brokers.wills() == ({b"gone": 1} if published else {})


@for_each("committed", [True, False])
@for_each("expiry", [0, 100])
def test_a_disconnect_discards_the_will_once_it_is_committed(committed: bool, expiry: int) -> None:
    """[MQTT-3.1.2-10]. The window is that of the commit."""
    brokers = Brokers()
    client = brokers.client("c", will=WILL, expiry=expiry)
    client.disconnect()
    if committed:
        brokers.settle()
    brokers.kill()
    brokers.advance(10 * GRACE)
    assert brokers.wills() == ({} if committed else {b"gone": 1})


def test_a_will_whose_connect_was_not_committed_is_not_kept() -> None:
    brokers = Brokers()
    brokers.network.client("c", will=WILL)
    brokers.kill()
    brokers.advance(10 * GRACE)
    assert brokers.wills() == {}


def test_another_user_of_the_same_identifier_does_not_hide_a_will() -> None:
    brokers = Brokers()
    brokers.client("c", will=WILL, user_name="a")
    brokers.kill()
    brokers.client("c", user_name="b")
    assert brokers.wills() == {b"gone": 1}


def test_a_will_that_an_own_topic_has_become_is_not_published() -> None:
    brokers = Brokers()
    brokers.client("c", will=Will("here/c", b"gone", 1))
    brokers.limits.presence_topic = b"here"
    brokers.kill()
    brokers.settle()
    brokers.advance(10 * GRACE)
    assert brokers.leaves_no_trace()
    assert brokers.network.router.retained.get("here/c") is None


def test_kept_wills_count_as_sessions_do() -> None:
    """And their clients always have room when they come back."""
    brokers = Brokers()
    for name in "abc":
        brokers.client(name, will=Will("w/" + name, bytes(10_000), 1))
    full = brokers.network.router.session_table.bytes
    brokers.kill()
    assert brokers.network.router.session_table.bytes == pytest.approx(full, abs=100)
    brokers.limits.max_session_bytes = brokers.network.router.session_table.bytes + 500
    assert brokers.network.idle("d").connect(will=Will("w/d", bytes(10_000), 1)).reason_code != 0
    for name in "abc":
        brokers.client(name, will=Will("w/" + name, bytes(10_000), 1))
    assert brokers.network.router.session_table.bytes == pytest.approx(full, abs=100)


def test_very_many_at_once_are_published_in_turns() -> None:
    """A broker that is killed in every turn publishes each once; other clients have their turns between."""
    count = 600
    brokers = Brokers()
    for number in range(count):
        brokers.network.client(f"c{number}", will=Will("w/c", b"%d" % number, 1))
    brokers.settle()
    brokers.kill(after=2 * GRACE)
    brokers.network.now += GRACE
    turns = 0
    kills = 0
    while brokers.network.router.wills.held or brokers.network.router.wills.line:
        turns += 1
        brokers.network.router.tick(brokers.network.now)
        brokers.network.settle()
        if turns % 2:
            # Some of it is committed, and the rest is lost.
            brokers.store.commit_all()
        if turns in (2, 3, 5):
            kills += 1
            brokers.kill(after=0.0)
    assert kills >= 1
    brokers.settle()
    assert brokers.wills() == {b"%d" % number: 1 for number in range(count)}
    assert brokers.leaves_no_trace()


def test_one_that_waits_for_its_turn_is_still_its_client_s() -> None:
    """Rules may name the client identifier."""
    router = Network(limits()).router
    name = "$will/1/a/b"
    # Stores read principals by the names of their rows.
    restore_will(router, LoneWillRecord(name, Principal("u", client_id=name), WILL, -1.0), 1_000.0)
    (waits,) = router.wills.line
    assert (waits.client_id, waits.principal.client_id) == ("a/b", "a/b")


class Workers(Brokers):
    """Workers of one number, one after another, without a store. The witness is at another one."""

    def __init__(self) -> None:
        self.keeper = Keeper()
        self.limits = limits()
        self.limits.will_grace = GRACE
        self.now = 1_000.0
        self.seen: Counter[bytes] = Counter()
        self.start()

    def start(self) -> None:
        self.network = self._network()
        self.network.router.wills.keeper = self.keeper
        self.witness = self.network.client("witness")
        self.witness.send(p.Subscribe(self.witness.take_id(), [p.SubscriptionRequest("w/#", 2)]))
        self.settle()

    def settle(self) -> None:
        self.network.settle()

    def kill(self, after: float = 5.0) -> None:
        self.wills()
        self.now = self.network.now + after
        self.start()
        for name, (principal, will, due) in list(self.keeper.wills.items()):
            record = LoneWillRecord(name, principal, will, due - self.now if due else None)
            restore_will(self.network.router, record, self.now)

    def wills(self) -> dict[bytes, int]:
        """The wills that the witness has got by now, and how often."""
        self.settle()
        self.seen.update(each.payload for each in self.witness.got(p.Publish))
        return dict(self.seen)


class Keeper(Journal):
    """What outlives a worker."""

    def __init__(self) -> None:
        self.wills: dict[str, tuple[Principal, Will, float]] = {}

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        self.wills[name] = (principal, will, due)

    def will_cleared(self, client_id: str) -> None:
        del self.wills[client_id]


def test_a_delay_has_begun_when_a_worker_without_a_store_dies() -> None:
    """[MQTT-3.1.3-9]"""
    workers = Workers()
    client = workers.client("c", will=Will("w/c", b"gone", 1, delay=10), expiry=100)
    client.cut()
    workers.settle()
    workers.kill(4.0)
    workers.advance(5.0)
    assert workers.wills() == {}
    workers.advance(1.0)
    assert workers.wills() == {b"gone": 1}
    assert workers.keeper.wills == {}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from("ab"), st.booleans(), st.sampled_from([0, 20, 200])),
        st.tuples(st.sampled_from(["cut", "goodbye"]), st.sampled_from("ab")),
        st.tuples(st.just("pass"), st.sampled_from([1.0, 15.0, 40.0])),
        st.tuples(st.just("kill")),
    ),
    max_size=14,
)


@settings(max_examples=examples(300), deadline=None)
@given(steps, st.booleans(), st.sampled_from([Brokers, Workers]))
def test_each_will_is_published_once_or_called_off(
    actions: list[tuple[Any, ...]], retained: bool, kind: type[Brokers]
) -> None:
    """Whatever comes in between; all of it is committed when the broker dies."""
    brokers = kind()
    count = 0
    # The wills of those who are connected, and of those who were when the broker died: until when they may come back.
    connected: dict[str, bytes] = {}
    missed: dict[str, tuple[bytes, float]] = {}
    clients: dict[str, Client] = {}
    expected: Counter[bytes] = Counter()

    def overdue() -> None:
        for name, (payload, until) in list(missed.items()):
            if until <= brokers.network.now:
                expected[payload] += 1
                del missed[name]

    for what, *values in actions:
        name = values[0] if values else ""
        if what == "connect":
            if name in connected:
                # It is taken over, and its will has no delay.
                expected[connected.pop(name)] += 1
            missed.pop(name, None)
            count += 1
            connected[name] = b"%d" % count
            clients[name] = brokers.client(
                name, clean=values[1], expiry=values[2], will=Will("w/" + name, b"%d" % count, 1, retained)
            )
        elif what == "cut" and name in connected:
            clients[name].cut()
            brokers.settle()
            expected[connected.pop(name)] += 1
        elif what == "goodbye" and name in connected:
            clients[name].disconnect()
            brokers.settle()
            del connected[name]
        elif what == "pass":
            brokers.advance(values[0])
            overdue()
        elif what == "kill":
            brokers.kill(after=0.0)
            brokers.settle()
            missed.update((name, (payload, brokers.network.now + GRACE)) for name, payload in connected.items())
            connected.clear()
    assert brokers.wills() == dict(expected)
