"""One bound over all queues: the fullest give first, and what cannot be had is dropped."""

from __future__ import annotations

import pytest

from broker.core.counters import GLOBAL
from broker.core.session.global_limit import PART, RETRY, GlobalLimiter
from tests.core.harness import Client, Network, limits


def frozen(network: Network, client_id: str, *filters: str) -> Client:
    """A subscriber that does not read."""
    client = network.client(client_id)
    client.subscribe(*filters)
    client.wire.frozen = True
    return client


def waiting(*clients: Client) -> list[int]:
    return [int(client.wire.outbox.messages) for client in clients]


def test_the_fullest_give_and_end_up_level() -> None:
    network = Network(limits(total_messages=48))
    publisher = network.client("p")
    small, middle, large = (frozen(network, name, name) for name in ("small", "middle", "large"))
    for client, count in ((small, 4), (middle, 14), (large, 30)):
        for _ in range(count):
            publisher.publish(client.client_id)
    assert waiting(small, middle, large) == [4, 14, 30]
    publisher.publish("small")
    # One had to go, and a part of the bound besides.
    assert waiting(small, middle, large) == [5, 14, 30 - 1 - 48 // PART]
    for _ in range(60):
        publisher.publish("small")
        assert network.router.counters.load.messages <= 48
    few, fewer, fewest = sorted(waiting(small, middle, large), reverse=True)
    assert few - fewest <= 1 + 48 // PART
    assert fewer <= 14 + 2
    assert network.router.counters.dropped[GLOBAL] == 48 + 61 - (few + fewer + fewest)


def test_in_bytes_and_those_that_are_away_as_well() -> None:
    network = Network(limits(total_bytes=20_000))
    publisher = network.client("p")
    away = network.client("away", clean=False, expiry=1_000)
    away.subscribe("a", qos=1)
    away.cut()
    there = frozen(network, "there", "b")
    for _ in range(20):
        publisher.publish("a", bytes(500), qos=1)
    first = network.session("away").pending_bytes
    for _ in range(60):
        publisher.publish("b", bytes(500))
        assert network.router.counters.load.bytes <= 20_000
    session = network.session("away")
    assert 0 < session.pending_bytes < first
    assert there.wire.outbox.bytes > 0
    assert network.router.counters.dropped[GLOBAL] == session.dropped_by_cause()[GLOBAL] + sum(
        there.session.dropped_by_cause()
    )
    # What is left is the newest.
    publisher.publish("a", b"last", qos=1)
    away.connect(clean=False, expiry=1_000)
    network.settle()
    assert away.inbox[-1].payload == b"last"


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_in_flight_stays_and_is_half_of_all_at_most(qos: int) -> None:
    """Who reads and does not acknowledge holds no more than half; the other half can be shed for others."""
    network = Network(limits(total_messages=8))
    publisher = network.client("p")
    client = network.client("c")
    client.answering = False
    client.subscribe("t", qos=2)
    for number in range(20):
        publisher.publish("t", bytes((number,)), qos=qos)
        assert network.router.counters.load.messages <= 8
    assert len(client.inbox) == len(client.session.inflight) == 4
    other = network.client("o")
    other.subscribe("o", qos=1)
    other.wire.frozen = True
    for _ in range(4):
        publisher.publish("o", qos=qos)
    # One is in flight in any case; of those that wait the fuller queue gave most.
    assert other.session.pending_messages + len(other.session.inflight) >= 2
    assert client.session.dropped_by_cause()[GLOBAL] >= 12
    assert len(client.session.inflight) == 4


def test_who_has_nothing_waiting_gets_the_next_message_in_any_case() -> None:
    """One large message to many who keep up is in memory once, though it is counted for each of them."""
    network = Network(limits(total_bytes=20_000))
    publisher = network.client("p")
    clients = [network.client(f"c{number}") for number in range(30)]
    for client in clients:
        client.subscribe("t", qos=1)
    for qos in (0, 1):
        publisher.publish("t", bytes(5_000), qos=qos)
    assert [len(client.inbox) for client in clients] == [2] * 30
    assert network.router.counters.dropped_in_all() == 0


def test_what_cannot_be_had_costs_nobody_what_waits() -> None:
    network = Network(limits(total_bytes=10_000, session_bytes=100_000))
    publisher = network.client("p")
    hog = network.client("hog")
    hog.answering = False
    hog.subscribe("h", qos=1)
    publisher.publish("h", bytes(9_000), qos=1)
    away = network.client("away", clean=False, expiry=1_000)
    away.subscribe("a", qos=1)
    away.cut()
    for _ in range(3):
        publisher.publish("a", bytes(100), qos=1)
    assert away.session.pending_messages == 3
    publisher.publish("a", bytes(5_000), qos=1)
    assert away.session.pending_messages == 3
    assert away.session.dropped_by_cause()[GLOBAL] == 1


def test_looks_that_find_nothing_are_rare() -> None:
    """What nothing can make room for is not looked for again and again."""
    network = Network(limits(total_messages=2))
    load = network.router.counters.load
    shedder = GlobalLimiter(network.router.sessions, load)
    load.now = 5.0
    load.messages = 10
    assert not shedder.relieve(1, 1)
    # There would be room by now, but nobody looks yet.
    load.max_messages = 100
    assert not shedder.relieve(1, 1)
    load.now = 5.0 + RETRY
    assert shedder.relieve(1, 1)


def test_a_stream_of_retained_messages_goes_on_where_nothing_else_has_room() -> None:
    network = Network(limits(total_messages=1))
    publisher = network.client("p")
    for number in range(30):
        publisher.publish(f"r/{number}", b"x", retain=True)
    holder = frozen(network, "holder", "t")
    publisher.publish("t")
    assert waiting(holder) == [1]
    client = network.client("c")
    client.subscribe("r/#", qos=1)
    network.settle()
    assert len(client.inbox) == 30
    assert sum(client.session.dropped_by_cause()) == 0
