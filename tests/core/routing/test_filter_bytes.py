"""What subscriptions take: counted to the byte, bounded for each client and for all, and given back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.topics.subscription import (
    DELAY_BYTES,
    ENTRY_BYTES,
    SUB_QUEUE_BYTES,
    SUBSCRIPTION_BYTES,
    group_bytes,
    text_bytes,
)
from canopy_mqtt.core.topics.trie import COMPACT, LAYOUTS, NODE_BYTES, PREFIX_BYTES, create
from tests.core import naive
from tests.core.harness import Client, Network, limits
from tests.core.recount import ask, check_accounts, user_wish
from tests.support.runs import examples
from tests.support.tries import filters_of

QUOTA_EXCEEDED = 0x97


def deep(number: int, levels: int = 128) -> str:
    """A filter of many levels that it shares with no other: two bytes each on the wire."""
    return f"{number}/" + "a/" * (levels - 2) + "+"


def flood(client: Client, filters: list[str], each: int = 100) -> list[int]:
    """Subscribe to them in packets of so many; the reason codes."""
    codes: list[int] = []
    for at in range(0, len(filters), each):
        codes += ask(client, *filters[at : at + each]).reason_codes
    return codes


def test_a_full_client_may_replace_what_it_has() -> None:
    """Subscribing again to the same filter takes nothing [MQTT-3.8.4-3]."""
    network = Network(limits(max_filter_bytes_per_client=3 * (128 * NODE_BYTES + 2_000)))
    client = network.client("c")
    assert ask(client, deep(0), deep(1), deep(2)).reason_codes == [0, 0, 0]
    assert ask(client, Request(deep(1), 2), deep(3)).reason_codes == [2, QUOTA_EXCEEDED]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bound_is_met_to_the_byte(layout: str) -> None:
    """As long as there is much room nobody counts what a filter takes; in the end exactly that decides."""
    filters = [f"a/+/{number}" for number in range(8)]
    free = Network(trie=layout)
    assert flood(free.client("c"), filters) == [0] * 8
    taken = free.client("d")
    assert flood(taken, filters) == [0] * 8
    own = taken.session.account.filters
    for bound, granted in ((own, 8), (own - 1, 7)):
        network = Network(limits(max_filter_bytes_per_client=bound), trie=layout)
        assert flood(network.client("c"), filters).count(0) == granted
    whole = free.router.table.bytes
    one = free.router.table.cost(filters[0], "", filters[0])
    for bound, granted in ((2 * whole, 8), (one - 1, 0)):
        network = Network(limits(max_filter_bytes=bound), trie=layout)
        assert flood(network.client("c"), filters).count(0) == granted


@pytest.mark.parametrize(
    "name",
    [
        "$share/" + "g" * 60_000 + "/a",
        "a/" * 60 + "x" * 60_000,
        "a/" * 60 + "x" * 60_000 + "/+",
        "+/" * 60 + "x" * 60_000,
        "+/" * 60 + "x" * 50_000 + "\N{SNOWMAN}",
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_names_count(layout: str, name: str) -> None:
    """Characters count wherever they stand, and four times as soon as one of them is not ASCII."""
    network = Network(limits(max_filter_bytes_per_client=100_000_000), trie=layout)
    client = network.client("c")
    assert ask(client, name).reason_codes == [0]
    assert client.session.account.filters >= len(name) * (4 if not name.isascii() else 1)
    if layout == COMPACT and name.startswith("+"):
        # Every prefix is spelt out.
        assert client.session.account.filters >= network.router.table.bytes >= 60 * PREFIX_BYTES
    assert client.session.account.filters >= network.router.table.bytes


def test_delays_that_are_requested_count() -> None:
    """Each filter whose SUBSCRIBE requests one, until it requests none, or the subscription or the connection ends."""
    network = Network()
    client = network.client("c", expiry=100)
    ask(client, "a", "b", "c")
    plain = client.session.account.filters
    whole = network.router.table.bytes
    ask(client, "a", "b", "c", user=[("canopy-delay", "20ms")])
    ask(client, "a", user=[("canopy-delay", "30ms")])
    assert client.session.account.filters == plain + 3 * DELAY_BYTES
    assert network.router.table.bytes == whole + 3 * DELAY_BYTES
    check_accounts(network.router)
    ask(client, "b")
    assert client.session.account.filters == plain + 2 * DELAY_BYTES
    client.unsubscribe("c")
    client.cut()
    assert client.session.account.filters < plain
    check_accounts(network.router)


class Accounts(RuleBasedStateMachine):
    """Subscriptions come, change and go; the accounts say what a count from the beginning says."""

    @initialize(layout=st.sampled_from(LAYOUTS))
    def begin(self, layout: str) -> None:
        self.network = Network(trie=layout)
        self.layout = layout
        self.clients = [self.network.client(f"c{number}") for number in range(3)]

    @rule(
        number=st.integers(0, 2),
        group=st.sampled_from(["", "", "$share/g/", "$share/long name/"]),
        topic_filter=naive.topic_filters,
        policy=st.sampled_from(["", "", "latest"]),
    )
    def subscribe(self, number: int, group: str, topic_filter: str, policy: str) -> None:
        ask(self.clients[number], group + topic_filter, user=user_wish(policy))

    @rule(number=st.integers(0, 2), data=st.data())
    def unsubscribe(self, number: int, data: st.DataObject) -> None:
        there = sorted(self.clients[number].session.subscriptions)
        if there:
            self.clients[number].unsubscribe(data.draw(st.sampled_from(there)))

    @rule(number=st.integers(0, 2))
    def begin_anew(self, number: int) -> None:
        self.clients[number].disconnect()
        self.clients[number] = self.network.client(f"c{number}")

    @invariant()
    def exact(self) -> None:
        router = self.network.router
        trie = router.trie
        alone = create(self.layout)
        for topic_filter in filters_of(trie):
            alone.insert(topic_filter)
        assert trie.bytes == alone.bytes
        assert trie.bytes >= sum(ENTRY_BYTES + text_bytes(one) for one in filters_of(trie))
        everything = 0
        for session in router.sessions.values():
            counted = 0
            for name, subscription in session.subscriptions.items():
                size = SUBSCRIPTION_BYTES
                if subscription.group is not None:
                    size += group_bytes(name, subscription.group.name)
                size += SUB_QUEUE_BYTES if subscription.message_terms is not None else 0
                everything += size
                assert subscription.entry is not None
                one = create(self.layout)
                one.insert(subscription.entry.topic_filter)
                cost = trie.cost(subscription.entry.topic_filter)
                assert one.bytes <= cost
                # The entry keeps its cost; and the comparison for a whole packet never says too little.
                assert subscription.entry.cost == cost
                assert size + cost <= router.trie.max_cost(1, len(name)) + SUB_QUEUE_BYTES
                counted += size + cost
            assert session.account.filters == counted
        assert router.table.own_bytes == everything
        assert router.table.bytes <= sum(session.account.filters for session in router.sessions.values())


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
