"""The walk over the subscribers: who takes, loses and lags most since the walk before."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.ledger import FULL_MESSAGES
from canopy_mqtt.observe.sampling.subscribers import BY_BYTES, BY_DROPS, BY_LAG, BY_MESSAGES, SubscriberWalk
from tests.core.harness import Network, limits
from tests.support.runs import for_each


def walked(network: Network, most: int = 10, elapsed: float = 2.0, piece: int = 3) -> SubscriberWalk:
    walk = SubscriberWalk(list(network.router.sessions.values()), most, elapsed)
    while walk.step(piece, network.now):
        pass
    return walk


@for_each("qos", [0, 1, 2])
def test_a_walk_has_what_was_taken_since_the_last_one(qos: int) -> None:
    network = Network(limits())
    for number in range(8):
        client = network.client(f"s{number}")
        for topic in range(number):
            client.subscribe(f"t{topic}", qos=qos)
    publisher = network.client("p")
    for topic in range(8):
        for _ in range(3):
            publisher.publish(f"t{topic}", b"x" * 100, qos=qos)
    network.settle()
    walk = walked(network, most=4)
    # s7 has subscribed to 7 topics of 3 messages each, in 2 seconds.
    assert walk.heaviest(BY_MESSAGES, 9) == [(b"s7", 10.5), (b"s6", 9.0), (b"s5", 7.5), (b"s4", 6.0)]
    assert walk.totals[BY_MESSAGES] == sum(range(8)) * 3 / 2
    assert [name for name, _ in walk.heaviest(BY_MESSAGES, 2)] == [b"s7", b"s6"]
    assert (walk.floor(BY_MESSAGES), walk.floor(BY_DROPS)) == (6.0, 0.0)
    (name, most), *_ = walk.heaviest(BY_BYTES, 9)
    assert name == b"s7"
    assert 10.5 * 100 < most < 10.5 * 110
    assert walk.heaviest(BY_DROPS, 9) == walk.heaviest(BY_LAG, 9) == []
    publisher.publish("t0", b"x", qos=qos)
    network.settle()
    again = walked(network, elapsed=1.0)
    assert dict(again.heaviest(BY_MESSAGES, 9)) == {f"s{number}".encode(): 1.0 for number in range(1, 8)}


def test_who_does_not_read_lags_and_loses() -> None:
    network = Network(limits(live_messages=5))
    slow = network.client("slow")
    slow.subscribe("t")
    network.client("quick").subscribe("t")
    publisher = network.client("p")
    slow.wire.frozen = True
    for _ in range(20):
        publisher.publish("t", b"x")
        network.settle()
    network.advance(3.0)
    walk = walked(network)
    assert walk.heaviest(BY_DROPS, 9) == [(b"slow", 7.5)]
    dropped = network.session("slow").ledger.dropped
    assert dropped is not None
    assert dropped[FULL_MESSAGES] == 15
    ((name, lag),) = walk.heaviest(BY_LAG, 9)
    assert name == b"slow"
    assert lag == pytest.approx(3.0)
    assert [name for name, _ in walk.heaviest(BY_MESSAGES, 9)] == [b"quick"]
    assert walked(network).heaviest(BY_DROPS, 9) == []


def test_losses_of_a_client_that_is_away_count() -> None:
    network = Network(limits())
    client = network.client("s", expiry=100)
    client.subscribe("t")
    client.cut()
    network.settle()
    network.client("p").publish("t", b"x")
    network.settle()
    assert walked(network, elapsed=1.0).heaviest(BY_DROPS, 9) == [(b"s", 1.0)]


def test_a_piece_looks_at_no_more_than_it_may() -> None:
    network = Network(limits())
    for number in range(10):
        network.client(f"s{number}")
    walk = SubscriberWalk(list(network.router.sessions.values()), 3, 1.0)
    assert [walk.step(4, network.now) for _ in range(3)] == [True, True, False]
