"""The limits of a broker go by what all nodes keep, in the memory of none of them too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from canopy_mqtt.core.accounts import FILTERS, SESSIONS
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Suback, Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.store.shared import holdings
from canopy_mqtt.store.shared.schema import FILTER_BYTES
from tests.core.harness import Client
from tests.store.shared.brokers import Broker, client_of, connect, rows, subscribe, until_empty
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import claim
from tests.store.shared.place import subscribe as has_subscribed
from tests.support.waiting import until

ACCOUNT = "address local"
"""Of clients without an address."""


class Brokers:
    """Makes nodes whose time passes as a test says."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.made: list[Broker] = []

    async def make(self, name: str, **given: Any) -> Broker:
        broker = Broker([], self.nodes.make(name), **given)
        await broker.open()
        self.made.append(broker)
        return broker

    @staticmethod
    async def look(broker: Broker) -> None:
        """Have a node look into the database now."""
        for _ in range(holdings.LOOKS):
            broker.store._holdings._at = 0.0
            await broker.store.count()


@pytest.fixture
async def brokers(nodes: Nodes) -> AsyncIterator[Brokers]:
    made = Brokers(nodes)
    yield made
    for each in made.made:
        await each.store.close()


async def refused(broker: Broker, name: str, **given: Any) -> int:
    client = broker.idle(name)
    client.judge.enabled = False
    await connect(client, broker, **given)
    return client.connack.reason_code


async def suback(client: Client, topic_filter: str) -> int:
    before = len(client.got(Suback))
    client.send(Subscribe(client.take_id(), [Request(topic_filter, 1)]))
    client.network.settle()
    await until(lambda: len(client.got(Suback)) > before, "SUBACK")
    return client.got(Suback)[-1].reason_codes[0]


async def test_sessions_of_all_nodes_count_for_the_limit(nodes: Nodes, brokers: Brokers) -> None:
    """Those that are away, too. Who has one may come back to it, and who is refused one leaves none."""
    here, there = await brokers.make("a", max_sessions=20), await brokers.make("b", max_sessions=20)
    clients = [await client_of(there, f"s{number}") for number in range(18)]
    for client in clients[:9]:
        client.disconnect()
    await brokers.look(here)
    code = 0
    for number in count():
        code = await refused(here, f"t{number}")
        if code:
            break
    assert code == reason_codes.QUOTA_EXCEEDED
    assert len(here.router.sessions) <= 2
    await here.store.flush()
    await until_empty(nodes, "session WHERE expires_at <= clock_timestamp()")
    assert await rows(nodes, "session") <= 20
    await connect(clients[0], here)
    assert clients[0].connack.session_present


async def test_a_session_counts_once_as_it_comes_and_goes(brokers: Brokers) -> None:
    here = await brokers.make("a", max_sessions=100)
    table = here.router.session_table
    client = await client_of(here, "s")
    await subscribe(client, "a")
    assert len(here.router.sessions) + table.elsewhere == 1
    client.disconnect()
    assert len(here.router.sessions) + table.elsewhere == 1
    account = here.router.accounts.named(ACCOUNT)
    assert account.held[SESSIONS] == 1
    await here.store.flush()
    await brokers.look(here)
    assert table.elsewhere == account.held[SESSIONS] == 1
    assert here.router.table.elsewhere == account.held[FILTERS] == FILTER_BYTES + 1
    await connect(client, here)
    assert table.elsewhere == here.router.table.elsewhere == 0


async def test_filters_of_all_nodes_count_for_the_limit(nodes: Nodes, brokers: Brokers) -> None:
    """Of sessions that are away, and of all users."""
    here = await brokers.make("a", max_filter_bytes=20 * FILTER_BYTES)
    client = await client_of(here, "s")
    assert await suback(client, "a") == 1
    await has_subscribed(await nodes.open("b"), "away", *(f"f{number}" for number in range(19)))
    await brokers.look(here)
    assert await suback(client, "b") == reason_codes.QUOTA_EXCEEDED
    assert await suback(client, "a") == 1


async def test_a_user_has_no_more_in_all_sessions_than_it_may(nodes: Nodes, brokers: Brokers) -> None:
    """Also one that comes, subscribes and leaves again and again."""
    here = await brokers.make("a", max_user_bytes=20_000)
    code = 0
    for number in count():
        client = here.idle(f"s{number}")
        client.judge.enabled = False
        await connect(client, here)
        code = client.connack.reason_code
        if code:
            break
        for name in range(4):
            await suback(client, f"{number} {name}")
        client.disconnect()
        await here.store.flush()
        await brokers.look(here)
    assert code == reason_codes.QUOTA_EXCEEDED
    assert await rows(nodes, "subscription") * FILTER_BYTES < 20_000


async def test_an_account_without_clients_is_charged_for_a_minute(
    nodes: Nodes, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await brokers.make("a")
    await claim(await nodes.open("b"), "other")
    now = 0.0
    client = await client_of(here, "s")
    client.disconnect()
    await here.store.flush()
    account = here.router.accounts.named(ACCOUNT)
    watched = here.store._holdings

    async def nothing() -> None:
        """The node's own looks go by another clock."""

    monkeypatch.setattr(here.store, "count", nothing)
    for now in (1.0, 2.0, 3.0, 2.0 + holdings.REMEMBERED):
        assert account.held[SESSIONS] == 1
        watched._at = 0.0
        await watched.turn(lambda now=now: now)  # type: ignore[misc]
        assert here.router.session_table.elsewhere == 2
    watched._at = 0.0
    await watched.turn(lambda: 4.0 + holdings.REMEMBERED)
    assert account.held[SESSIONS] == 0
    assert ACCOUNT not in here.router.accounts.by_name
