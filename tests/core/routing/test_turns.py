"""What falls due in masses, and sessions that end with masses of subscriptions: worked off in turns, with nothing lost.

Work is counted, not timed: `router.budget.used`, and what is left after a call.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import NEVER, V5, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.hooks import AccessControl, Recorder
from canopy_mqtt.core.jobs import DROP_WORK, DUE_WORK, STEP_WORK
from canopy_mqtt.core.persistence.journal import Saved, SessionRecord, WillRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.subscription_table import DROPS, DROPS_AT_ONCE, DROPS_PAID
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription
from tests.core.harness import Client, Network, limits, total_ledger
from tests.support.restored import restore
from tests.support.runs import examples

MANY = 12_000
"""More than a queue of the default size holds."""


def with_wills(network: Network, count: int, qos: int = 0) -> None:
    """Restore sessions whose connections ended with the broker: their wills are due at once."""
    saved = Saved()
    for number in range(count):
        record = SessionRecord(f"gone{number}", NEVER, None)
        record.will = WillRecord(Will("will", b"%d" % number, qos, False), 0.0)
        saved.sessions.append(record)
    restore(network.router, saved, network.now)


def ticks(network: Network) -> int:
    """Tick until nothing is due, with a turn for everybody between; how often that was. Each tick is bounded."""
    router = network.router
    count = 0
    more = True
    while more:
        before = router.budget.used
        more = router.tick(network.now)
        assert router.budget.used - before <= STEP_WORK + 2 * DUE_WORK + DROP_WORK * DROPS
        # As the shell does it: not before `next_due`.
        network.settle()
        due = router.deadlines.next_due()
        if more and due >= 0.0:
            network.now = max(network.now, due)
        count += 1
        assert count < 100_000
    return count


class TestWills:
    @pytest.mark.crowd
    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_many_due_at_one_instant(self, qos: int) -> None:
        """None is lost: the writers have their turns between [MQTT-3.1.2-8]."""
        network = Network()
        with_wills(network, MANY, qos)
        reader = network.client("reader", receive_maximum=100)
        reader.subscribe("will", qos=qos)
        assert ticks(network) > 10
        assert sorted(int(each) for each in reader.payloads()) == list(range(MANY))
        assert network.router.counters.dropped_in_all() == 0

    def test_small_queues_are_not_run_over(self) -> None:
        """A turn ends as soon as a queue is half full, however small it is."""
        network = Network(limits(live_messages=8, session_messages=8, max_inflight=4))
        with_wills(network, 500, 1)
        reader = network.client("reader")
        reader.subscribe("will", qos=1)
        ticks(network)
        assert sorted(int(each) for each in reader.payloads()) == list(range(500))

    @pytest.mark.crowd
    @pytest.mark.parametrize("qos", [0, 1])
    def test_connections_that_break_together(self, qos: int) -> None:
        """Hundreds of connections end before any writer has its turn: their wills wait for one another."""
        network = Network(limits(live_messages=20, session_messages=20))
        reader = network.client("reader")
        reader.subscribe("will", qos=qos)
        clients = [network.client(f"c{number}", will=Will("will", b"%d" % number, qos)) for number in range(400)]
        for client in clients:
            client.cut()
        network.settle()
        assert sorted(int(each) for each in reader.payloads()) == list(range(400))
        assert network.router.counters.dropped_in_all() == 0

    def test_those_after_a_pause_are_not_held(self) -> None:
        """Once the queues are empty a will goes out at once again."""
        network = Network(limits(live_messages=4))
        reader = network.client("reader")
        reader.subscribe("will")
        for number in range(10):
            network.client(f"c{number}", will=Will("will", b"%d" % number)).cut()
            network.settle()
        assert sorted(int(each) for each in reader.payloads()) == list(range(10))
        assert len(network.router.deadlines) == 0


def test_many_retained_messages_expire() -> None:
    """Cleared in turns; none is left, and none is delivered after its time [MQTT-3.3.2-5]."""
    network = Network()
    router = network.router
    for number in range(5_000):
        router.retained_store.retain(Message(b"r/%d" % number, b"x", 0, True, b"", network.now + 10.0, "p"))
    network.now += 10.0
    assert router.tick(network.now)
    assert 0 < len(router.retained) < 5_000
    late = network.client("late")
    late.subscribe("r/#")
    assert late.payloads() == []
    assert ticks(network) >= 5_000 * DUE_WORK // STEP_WORK
    assert len(router.retained) == 0
    assert router.retained_store.bytes == 0


def test_many_sessions_expire() -> None:
    """As many as a turn allows; one whose client comes meanwhile is not resumed [MQTT-4.1.0-2]."""
    network = Network()
    for number in range(2_000):
        network.router.sessions[f"s{number}"] = session = Session(f"s{number}", 10, 1_000, network.router.counters)
        session.expires_at = network.now + 5.0
        network.router.schedule(session)
    network.now += 5.0
    assert network.router.tick(network.now)
    last = network.idle("s1999")
    assert "s1999" in network.router.sessions
    assert not last.connect(clean=False).session_present
    ticks(network)
    assert list(network.router.sessions) == ["s1999"]


class TestSessionsThatEnd:
    COUNT = 3 * DROPS

    def crowded(self, network: Network, name: str = "big", expiry: int = 0) -> Client:
        client = network.client(name, expiry=expiry)
        session = client.session
        for number in range(self.COUNT):
            # All at the same topic, so that it would be seen if one were served.
            topic_filter = f"t/{number}" if number else "t/#"
            network.router.subscribe(session, "", topic_filter, Request(topic_filter, 1), 0)
        return client

    def test_the_call_that_ends_it_is_bounded(self) -> None:
        """A part goes at once, the rest in ticks; the accounts come out."""
        network = Network()
        router = network.router
        client = self.crowded(network)
        client.cut()
        assert router.table.count == self.COUNT - DROPS_AT_ONCE
        assert "big" not in router.sessions
        assert router.deadlines.due(network.now)
        seen = []
        while router.tick(network.now):
            seen.append(router.table.count)
        assert seen == [self.COUNT - DROPS_AT_ONCE - turn * DROPS for turn in (1, 2)]
        assert (router.table.count, len(router.trie), router.table.bytes) == (0, 0, 0)
        assert len(router.deadlines) == 0

    def test_churn_does_not_pile_up(self) -> None:
        """Clients that subscribe to much and leave at once, with no tick at all, leave behind at most two of them."""
        network = Network()
        router = network.router
        most = 0
        for number in range(8):
            client = network.idle(f"c{number}")
            client.dial()
            session, _ = router.connect(f"c{number}", True, client.wire.send_buffer, 5, 10, True, network.now)
            for each in range(self.COUNT):
                name = f"{number}/{each}"
                router.subscribe(session, "", name, Request(name), 0)
            router.end_session(session, network.now)
            most = max(most, router.table.count)
        assert most <= 2 * self.COUNT

    def test_many_groups_hear_in_turns_who_came(self) -> None:
        """Who came is chosen before those who are away when its turn has come, and who has gone is not, at once."""
        network = Network(limits(max_shared_subscriptions_per_client=0))
        router = network.router
        away, client = network.client("away", expiry=1_000), network.client("c", expiry=1_000)
        for each in (away, client):
            for number in range(35):
                name = f"s/{number}"
                router.subscribe(each.session, "g", name, Request(f"$share/g/{name}", 1), 0)
        for each in (away, client):
            each.cut()
        router.peers.places = 10
        client.connect(clean=False, expiry=1_000, settle=False)
        client.wire.to_channel()
        entries = [router.trie.find(f"s/{number}") for number in range(35)]

        def there() -> int:
            return sum(entry.groups["g"].connected.count for entry in entries if entry is not None)

        assert (there(), router.jobs.waiting) == (10, True)
        seen = []
        while router.tick(network.now):
            seen.append(there())
        assert seen == [20, 30]
        assert there() == 35
        client.cut()
        publisher = network.client("p")
        away.connect(clean=False, expiry=1_000)
        for number in range(35):
            publisher.publish(f"s/{number}", b"x", 1)
        assert len(away.payloads()) == 35
        assert network.session("c").queued() == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(("connect", "cut", "end", "publish", "publish", "tick")), st.integers(0, 2)),
        max_size=40,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_members_of_many_groups_in_any_order(steps: list[tuple[str, int]]) -> None:
    """Each message is one member's, while there is a session that is none of those that are over."""
    network = Network()
    router = network.router
    # Most memberships are placed, and go, later.
    router.peers.places = 1
    router.table.drops = 1
    publisher = network.client("p")
    clients = [network.idle(f"c{number}") for number in range(3)]
    got = 0
    sent = 0

    def alive() -> int:
        return sum(not name.startswith("$share/") for name in router.sessions)

    for kind, number in [*steps, ("connect", 0)]:
        client = clients[number]
        session = router.sessions.get(client.client_id)
        if kind == "connect" and (session is None or session.send_buffer is None):
            client.connect(clean=False, expiry=1_000, settle=False)
            client.wire.to_channel()
            if session is None:
                for each in range(4):
                    router.subscribe(client.session, "g", f"s/{each}", Request(f"$share/g/s/{each}", 1), 0)
        elif kind == "cut" and session is not None and session.send_buffer is not None:
            client.cut()
        elif kind == "end" and session is not None and session.send_buffer is None:
            # What waits for it goes to another, or is lost with the last, as what waits for its groups.
            alone = alive() == 2
            waiting = sum(each.queued() for each in router.sessions.values())
            router.end_session(session, network.now)
            got += waiting if alone else 0
        elif kind == "tick":
            router.tick(network.now)
        elif kind == "publish":
            for each in range(4):
                reached = router.publish(Message(b"s/%d" % each, b"x", 1, False, b"", 0.0, "p"), publisher.session)
                assert reached == (alive() > 1)
                sent += reached
    while router.tick(network.now):
        pass
    network.settle()
    taken = sum(len(client.take()) for client in clients)
    # What was lost with the last member may still be there for one that comes before its memberships have gone.
    assert taken <= sent - sum(session.queued() for session in router.sessions.values()) <= taken + got
    assert total_ledger(router.sessions.values()) == []
    for number in range(3):
        left = router.sessions.get(f"c{number}")
        if left is not None:
            router.end_session(left, network.now)
    while router.tick(network.now):
        pass
    assert (router.table.count, len(router.trie), router.table.bytes) == (0, 0, 0)


def test_who_comes_again_and_again_is_placed_once() -> None:
    """What is still to be placed does not grow with the connects, and all of it is where it belongs in the end."""
    network = Network()
    router = network.router
    router.peers.places = 10
    client = network.client("c", V5, expiry=100)
    for number in range(50):
        request = Request(f"$share/g/t/{number}", 1)
        router.subscribe(client.session, "g", f"t/{number}", request, 0)
    for _ in range(20):
        client.cut()
        client.connect(clean=False, expiry=100, settle=False)
        client.wire.to_channel()
        assert len(router.peers.placing) == 1
    ticks(network)
    assert not router.peers.placing
    client.cut()
    client.connect(clean=False, expiry=100, settle=False)
    client.wire.to_channel()
    client.cut()
    assert not router.peers.placing


class Faulty(AccessControl):
    """Raises when it is asked about a publish."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, qos, retain
        raise RuntimeError(f"a fault at {topic}")


def test_what_falls_due_and_raises_takes_nobodys_turn() -> None:
    """A tick that ends with a fault is followed by another: what has begun has no other wake-up."""
    network = Network()
    router = network.router
    large = network.client("large", V5, expiry=1)
    for number in range(3 * DROPS):
        router.subscribe(large.session, "", f"large/{number}", Request(f"large/{number}", 1), 0)
    large.cut()
    network.client("faulty", V5, expiry=10, will=Will("will", b"", 0, delay=2)).cut()
    router.access_control = Faulty()
    network.now += 1.5
    assert router.tick(network.now)
    network.now += 1.0
    with pytest.raises(RuntimeError, match="a fault"):
        router.tick(network.now)
    assert router.table.leaving
    assert router.deadlines.due(network.now)
    ticks(network)
    assert router.table.count == 0


def test_a_session_that_ends_behind_a_large_one_makes_room_at_once() -> None:
    """So that its client, which begins anew, is not refused for what it had before."""
    network = Network()
    router = network.router
    router.table.drops = DROPS_AT_ONCE
    large, small = network.client("large"), network.client("small")
    for client, count in ((large, 3 * DROPS_AT_ONCE), (small, DROPS_AT_ONCE)):
        for number in range(count):
            name = f"{client.client_id}/{number}"
            router.subscribe(client.session, "", name, Request(name, 1), 0)
    large.cut()
    account = small.session.account
    small.cut()
    assert router.table.leaving
    assert account.filters == 0


class Names(Recorder):
    """Has the subscriptions that a record of "x" would show."""

    def __init__(self) -> None:
        self.there = 0

    def subscribed(self, subscription: Subscription, snapshot: bool) -> None:
        del snapshot
        self.there += subscription.topic_filter == "x"

    def unsubscribed(self, client_id: str, topic_filter: str, ended: bool) -> None:
        del client_id, ended
        self.there = 0 if topic_filter == "x" else self.there

    def connected(self, *_: object) -> None:
        """Nothing is looked at but subscriptions."""

    def disconnected(self, *_: object) -> None:
        """The same."""

    def session_ended(self, *_: object) -> None:
        """The same."""


def test_all_former_subscriptions_of_a_name_end_before_the_next_one() -> None:
    """However many sessions of one client are over and not yet taken away when a recorder comes."""
    network = Network()
    router = network.router
    router.table.drops = 0
    # Each subscription that is made pays for some that go: those of the first session that ended.
    large, client = network.client("large"), network.client("c")
    for number in range(10 * DROPS_PAID):
        router.subscribe(large.session, "", f"{number}", Request(f"{number}", 1), 0)
    large.cut()
    for _ in range(2):
        router.subscribe(client.session, "", "x", Request("x", 1), 0)
        client.cut()
        client.connect(clean=True, settle=False)
        client.wire.to_channel()
    recorder = Names()
    router.record(recorder, ["#"])
    router.subscribe(client.session, "", "x", Request("x", 1), 0)
    router.table.drops = DROPS
    ticks(network)
    assert recorder.there == 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("end"), st.integers(0, 2)),
            st.tuples(st.just("subscribe"), st.integers(0, 2)),
            st.tuples(st.just("tick"), st.just(0)),
            st.tuples(st.just("publish"), st.integers(0, 40)),
        ),
        max_size=30,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_ends_in_any_order(steps: list[tuple[str, int]]) -> None:
    """Whatever comes between the turns, each message goes to the sessions that live and subscribed, once."""
    network = Network()
    router = network.router
    # Many more than a tick takes away here.
    router.table.drops = 5
    clients = [network.client(f"c{number}") for number in range(3)]
    publisher = network.client("p")
    wanted: list[set[str]] = [set(), set(), set()]
    for kind, number in steps:
        if kind == "end":
            clients[number].cut()
            clients[number].connect(clean=True, settle=False)
            clients[number].wire.to_channel()
            wanted[number] = set()
        elif kind == "subscribe":
            for each in range(20):
                router.subscribe(clients[number].session, "", f"t/{each}", Request(f"t/{each}", 1), 0)
                wanted[number].add(f"t/{each}")
        elif kind == "tick":
            router.tick(network.now)
        else:
            count = router.publish(Message(f"t/{number}".encode(), b"x", 1, False, b"", 0.0, "p"), publisher.session)
            assert count == sum(f"t/{number}" in names for names in wanted)
    for client, names in zip(clients, wanted, strict=True):
        assert set(client.session.subscriptions) == names
    while router.tick(network.now):
        pass
    network.settle()
    assert router.table.count == sum(len(names) for names in wanted)
    assert len(router.trie) == len(set().union(*wanted))
    assert total_ledger(router.sessions.values()) == []
