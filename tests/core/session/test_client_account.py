"""`limits.max_client_bytes`: all that is kept for one client is in one account, with one bound."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.codec.packets import V311, SubscriptionRequest
from canopy_mqtt.core.codec.reason_codes import QUOTA_EXCEEDED
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import QueueRule
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.client_account import MESSAGE_ROOM
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core_limits import limits as core_limits
from canopy_mqtt.settings import Settings
from tests.core.harness import Client, Network
from tests.support.runs import examples

SETTINGS = Settings.model_validate({"queue": {"hold_publishers": 0}})
"""The defaults; but nobody waits for a client, since time stands still here."""

MOST = core_limits(SETTINGS).max_client_bytes
MIB = 1 << 20


def deep(number: int) -> str:
    """A filter of 128 levels, each with a node of its own."""
    return f"{number}" + "/x" * 126 + "/+"


def kept(session: Session, router: Router) -> int:
    """What is kept for a client, each part asked where it is counted."""
    return (
        session.account.filters
        + router.retained_store.shares.of(session.client_id)
        + session.queue.bytes
        + session.window.bytes
    )


def fill_filters(client: Client) -> int:
    """Subscribe to filters of 128 levels until one is refused; how many were not."""
    for number in range(10_000):
        code = client.subscribe(deep(number))[0]
        if code == QUOTA_EXCEEDED:
            return number
        assert code == 0
    raise AssertionError("nothing was refused")


def fill_retained(client: Client) -> None:
    counters = client.network.router.counters
    before = counters.retained_refused
    for number in range(10_000):
        client.publish(f"r/{number}", bytes(100_000), retain=True)
        if counters.retained_refused > before:
            return
    raise AssertionError("nothing was refused")


def fill_queue(client: Client) -> None:
    """Have more for its session than there is room for: it acknowledges nothing."""
    topic = f"queued/{client.client_id}"
    client.subscribe(topic, qos=1)
    client.answering = False
    dropped = client.network.router.counters.dropped
    publisher = client.network.client("publisher")
    before = sum(dropped)
    for _ in range(10_000):
        publisher.publish(topic, bytes(40_000), 1)
        if sum(dropped) > before:
            return
    raise AssertionError("nothing was dropped")


PARTS = [fill_filters, fill_retained, fill_queue]


@pytest.mark.crowd
@pytest.mark.parametrize("first", range(3))
def test_all_of_everything_with_the_defaults(first: int) -> None:
    """Whatever comes first, the sum has one bound; each part alone may take nearly all of it."""
    network = Network(core_limits(SETTINGS))
    client = network.client("c", clean=False, expiry=3600)
    parts = PARTS[first:] + PARTS[:first]
    for part in parts:
        part(client)
        assert kept(client.session, network.router) <= MOST + 2 * MESSAGE_ROOM
        assert client.session.account.bytes >= kept(client.session, network.router) > MOST - 4 * MIB


def test_messages_have_room_whatever_else_there_is() -> None:
    """A client with as many filters as it may have still gets its messages."""
    network = Network(core_limits(SETTINGS))
    client = network.client("c", clean=False, expiry=3600)
    fill_retained(client)
    fill_filters(client)
    client.unsubscribe(deep(0))
    client.subscribe("q", qos=1)
    client.answering = False
    publisher = network.client("publisher")
    for _ in range(40):
        publisher.publish("q", bytes(40_000), 1)
    assert sum(network.router.counters.dropped) == 0
    client.answering = True
    client.answer(1)
    network.settle()
    assert len(client.payloads()) == 40


@pytest.mark.crowd
@pytest.mark.parametrize(
    ("name", "value"), [("session_bytes", 64 * MIB), ("max_filter_bytes_per_client", 0), ("max_client_bytes", 0)]
)
def test_a_part_with_a_higher_bound_of_its_own_has_it(name: str, value: int) -> None:
    """Nobody who has given a queue 64 MiB finds it full at 34."""
    limits = core_limits(SETTINGS)
    setattr(limits, name, value)
    limits.max_inflight_bytes = 8 * MIB
    limits.session_bytes = max(limits.session_bytes, 36 * MIB)
    network = Network(limits)
    client = network.client("c", clean=False, expiry=3600)
    fill_queue(client)
    assert client.session.queue.bytes + client.session.window.bytes > limits.session_bytes - 2 * MIB >= 33 * MIB


def test_a_rule_raises_it_for_its_clients() -> None:
    limits = core_limits(SETTINGS)
    limits.rules = (QueueRule(client_id="big", session_bytes=100 * MIB, session_messages=1_000_000),)
    network = Network(limits)
    big, small = network.client("big", clean=False, expiry=3600), network.client("small", clean=False, expiry=3600)
    fill_queue(small)
    fill_queue(big)
    assert small.session.queue.bytes < 34 * MIB < 80 * MIB < big.session.queue.bytes


class Machine(RuleBasedStateMachine):
    """A client that does all of it in any order: the account is what its parts are, and within its bound."""

    @initialize()
    def begin(self) -> None:
        limits = Limits()
        limits.max_client_bytes = 4 * MIB
        limits.max_filter_bytes_per_client = limits.max_retained_bytes_per_client = limits.session_bytes = 3 * MIB
        limits.max_inflight_bytes = 2 * MIB
        limits.live_bytes = 8 * MIB
        self.network = Network(limits)
        self.publisher = self.network.client("publisher")
        self.client = self.network.client("c", V311, clean=False)
        self.client.subscribe("q", qos=1)

    @rule(first=st.integers(0, 20), count=st.integers(1, 40))
    def subscribe(self, first: int, count: int) -> None:
        self.client.subscribe(*[SubscriptionRequest(deep(number), 0) for number in range(first, first + count)])

    @rule(first=st.integers(0, 40))
    def unsubscribe(self, first: int) -> None:
        self.client.unsubscribe(*[deep(number) for number in range(first, first + 20)])

    @rule(number=st.integers(0, 4), size=st.integers(0, 900_000), mine=st.booleans())
    def retain(self, number: int, size: int, mine: bool) -> None:
        (self.client if mine else self.publisher).publish(f"r/{number}", bytes(size), retain=True)

    @rule(count=st.integers(1, 8), size=st.integers(0, 400_000))
    def send(self, count: int, size: int) -> None:
        for _ in range(count):
            self.publisher.publish("q", bytes(size), 1)

    @rule(answering=st.booleans())
    def answers(self, answering: bool) -> None:
        self.client.answering = answering
        if answering:
            self.client.answer(100)
        self.network.settle()

    @rule(clean=st.booleans())
    def comes_again(self, clean: bool) -> None:
        """What it retained counts in a new session, too."""
        self.client.disconnect()
        self.client.connect(clean=clean)
        self.client.subscribe("q", qos=1)

    @invariant()
    def holds(self) -> None:
        session = self.client.session
        account = session.account
        assert account.retained == self.network.router.retained_store.shares.of("c")
        assert account.bytes == kept(session, self.network.router) + account.session
        assert account.bytes <= 4 * MIB + 2 * MESSAGE_ROOM
        assert account.filters + account.retained + account.session <= 4 * MIB


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=examples(25), stateful_step_count=25, deadline=None)
