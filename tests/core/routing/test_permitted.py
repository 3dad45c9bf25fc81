"""Share groups of which some members may not have a message: it goes to one that may, at a cost that does not grow."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.peers import PeerDisconnected
from canopy_mqtt.core.routing.verdicts import MAX_EXPLORED
from canopy_mqtt.core.topics.subscription import MAX_FREE_SLOTS, MAX_TAKERS
from tests.core.harness import Client, Network
from tests.core.routing.test_permissions import HOUR, Rules

MANY = 3_000
"""Members that may not have a message."""

GROUP = "$share/workers/secret/#"


class Secret(Rules):
    """Only those whose names begin with a topic's last level may have its messages; `all`: everybody."""

    def may_receive(self, principal: Principal, topic: str) -> bool:
        self.receives += 1
        last = topic.rsplit("/", 1)[-1]
        return last == "all" or principal.client_id.startswith(last)


def crowd(network: Network, count: int, connected: bool) -> None:
    """Sessions of another user in the group. Nothing reads what is for them."""
    router = network.router
    for number in range(count):
        send_buffer = SendBuffer([], router.counters, 1_000, 1_000_000)
        session, _ = router.connect(f"other{number}", False, send_buffer, 5, 1, True, network.now)
        session.principal = Principal("other", client_id=session.client_id)
        session.expiry_interval = HOUR
        router.subscribe(session, "workers", "secret/#", Request(GROUP, 1), 0)
        if not connected:
            router.peers.events.append(PeerDisconnected(session, send_buffer, "connection-lost"))
    router.peers.drain(router, network.now)


def secrets() -> tuple[Network, Secret]:
    network, rules = Network(), Secret()
    network.router.access_control = rules
    return network, rules


def test_each_of_very_many_is_asked_about_once() -> None:
    """Counted in questions to access control, whatever comes and goes at the filter meanwhile."""
    network, rules = secrets()
    crowd(network, MANY, connected=True)
    workers = [network.client(f"worker{number}") for number in range(3)]
    for worker in workers:
        worker.subscribe(GROUP, qos=1)
    writer, visitor = network.client("writer"), network.client("visitor")
    writer.publish("secret/worker", b"0", 1)
    for _ in range(MANY // MAX_EXPLORED + 3):
        before = rules.receives
        writer.publish("secret/worker", b"x", 1)
        assert rules.receives - before <= MAX_EXPLORED + 1
    assert rules.receives <= MANY + 3 + 3
    for worker in workers:
        worker.payloads()
    before = rules.receives
    for number in range(30):
        visitor.subscribe(GROUP)
        visitor.unsubscribe(GROUP)
        writer.publish("secret/worker", b"%d" % number, 1)
    assert [len(worker.payloads()) for worker in workers] == [10] * 3
    assert rules.receives - before <= 3 * 30


def test_topics_of_which_each_has_one_message_cost_a_few_questions() -> None:
    network, rules = secrets()
    workers = [network.client(f"worker{number}") for number in range(3)]
    for worker in workers:
        worker.subscribe(GROUP, qos=1)
    crowd(network, MANY, connected=True)
    writer = network.client("writer")
    writer.publish("secret/worker", b"0", 1)
    for number in range(300):
        before = rules.receives
        writer.publish(f"secret/{number}/worker", b"x", 1)
        assert rules.receives - before <= MAX_EXPLORED + MAX_TAKERS + 1
    assert sum(len(worker.payloads()) for worker in workers) == 301


@pytest.mark.crowd
def test_a_visit_of_very_many_leaves_the_group_as_it_was() -> None:
    network, _ = secrets()
    worker = network.client("worker")
    worker.subscribe(GROUP, qos=1)
    writer = network.client("writer")
    writer.publish("secret/worker", b"0", 1)
    entry = network.router.trie.find("secret/#")
    assert entry is not None
    group = entry.groups["workers"]
    before = (len(group.connected.slots), len(group.away.slots), network.router.cache.weight)
    visitors = [network.client(f"other{number}") for number in range(200)]
    for visitor in visitors:
        visitor.subscribe(GROUP, qos=1)
        writer.publish("secret/worker", b"1", 1)
        writer.publish("secret/other", b"1", 1)
    for visitor in visitors:
        visitor.disconnect()
    for _ in range(3):
        writer.publish("secret/worker", b"2", 1)
        writer.publish("secret/other", b"2", 1)
    after = (len(group.connected.slots), len(group.away.slots), network.router.cache.weight)
    assert after[0] <= before[0] + MAX_EXPLORED
    assert after[1] == before[1]
    # The topic that there was not before, its filter, and free slots.
    assert after[2] <= before[2] + 8 + MAX_FREE_SLOTS
    assert group.connected.takers == [worker.session.subscriptions[GROUP]]


NAMES = ("a0", "a1", "b0", "b1", "ab", "c")
TOPICS = ("t/a", "t/b", "t/a/b", "t/all")

STEPS = st.one_of(
    st.tuples(st.sampled_from(["connect", "cut", "subscribe", "unsubscribe", "forbid", "allow"]), st.integers(0, 5)),
    st.tuples(st.just("publish"), st.integers(0, 3)),
    st.tuples(st.just("change"), st.just(0)),
)


@given(st.booleans(), st.lists(STEPS, max_size=60))
def test_any_order_of_changes(steady: bool, steps: list[tuple[str, int]]) -> None:
    """Against a model that asks about everybody: who may have had each message, and that exactly one did."""
    network, rules = Network(), Secret(steady)
    network.router.access_control = rules
    forbidden: set[str] = set()
    rules.may_receive = lambda principal, topic: (  # type: ignore[method-assign]
        principal.client_id not in forbidden and Secret.may_receive(rules, principal, topic)
    )
    writer = network.client("writer")
    clients: list[Client] = []
    for name in NAMES:
        clients.append(network.client(name, clean=False, expiry=HOUR))
        clients[-1].subscribe("$share/g/t/#", qos=1)
    here, members = set(NAMES), set(NAMES)
    expected: list[tuple[set[str], bytes]] = []
    for number, (what, at) in enumerate(steps):
        name = NAMES[at]
        if what == "connect" and name not in here:
            clients[at].connect(clean=False, expiry=HOUR)
            here.add(name)
        elif what == "cut" and name in here:
            clients[at].cut()
            here.discard(name)
        elif what == "subscribe" and name in here:
            clients[at].subscribe("$share/g/t/#", qos=1)
            members.add(name)
        elif what == "unsubscribe" and name in here:
            clients[at].unsubscribe("$share/g/t/#")
            members.discard(name)
        elif what in ("forbid", "allow"):
            (forbidden.add if what == "forbid" else forbidden.discard)(name)
            rules.change() if steady else None
        elif what == "publish":
            topic, payload = TOPICS[at], b"%d" % number
            last = topic.rsplit("/", 1)[-1]
            may = {one for one in members - forbidden if last == "all" or one.startswith(last)}
            expected.append((may & here or may, payload))
            writer.publish(topic, payload, 1)
    forbidden.clear()
    if steady:
        rules.change()
    for at, name in enumerate(NAMES):
        if name not in here:
            clients[at].connect(clean=False, expiry=HOUR)
    got = {name: clients[at].payloads() for at, name in enumerate(NAMES)}
    for may, payload in expected:
        took = [name for name in NAMES for each in got[name] if each == payload]
        # Those that were away when it came may have lost the right to it, or the group, before they came back.
        assert len(took) <= 1
        assert set(took) <= may
        if may & here and not any(what in ("cut", "forbid", "unsubscribe") for what, _ in steps):
            assert len(took) == 1


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2))
def test_those_that_may_take_turns(workers: int, others: int, topics: int) -> None:
    """After each member was asked about, every permitted one has its share, whatever else is published."""
    network, _ = secrets()
    clients = []
    for number in range(max(workers, others)):
        if number < others:
            network.client(f"other{number}").subscribe(GROUP, qos=1)
        if number < workers:
            clients.append(network.client(f"worker{number}"))
            clients[-1].subscribe(GROUP, qos=1)
    writer = network.client("writer")
    for _ in range(workers + others):
        writer.publish("secret/worker", b"x", 1)
    for client in clients:
        client.payloads()
    for _ in range(4 * workers):
        writer.publish("secret/worker", b"x", 1)
        for number in range(topics):
            writer.publish(f"secret/{number}/other", b"y", 1)
    assert [len(client.payloads()) for client in clients] == [4] * workers
