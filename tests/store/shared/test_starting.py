"""A node that starts: its database may be away, and its name may be another process's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.postgresql import lease_holder
from canopy_mqtt.store.shared import running, store
from canopy_mqtt.store.shared.database import SharedDatabase
from tests.store.postgresql.place import Proxy
from tests.store.shared.brokers import Broker, client_of
from tests.store.shared.nodes import Nodes, declare_dead
from tests.store.sqlite.place import Listener
from tests.support.waiting import until


@pytest.fixture
async def alive(nodes: Nodes) -> AsyncIterator[SharedDatabase]:
    """A process that is the node "a", and beats."""
    node = await nodes.open("a")

    async def beats() -> None:
        while True:
            await node.beat()
            await asyncio.sleep(0.01)

    beating = asyncio.create_task(beats())
    yield node
    beating.cancel()
    with suppress(asyncio.CancelledError):
        await beating


async def test_a_second_process_of_a_node_does_not_start(nodes: Nodes, alive: SharedDatabase) -> None:
    with pytest.raises(StoreError, match='the node "a" runs already: stop that process, or give this node another'):
        await nodes.make("a").open(dead_after=60.0)
    await alive.beat()


async def test_a_process_that_shows_no_sign_of_life_is_waited_for(nodes: Nodes) -> None:
    """It may stand still, or be cut off: nothing says that it is dead. The operator hears why it takes so long."""
    await nodes.open("a")
    await nodes.ask("UPDATE beat SET at = clock_timestamp() + interval '1 second' RETURNING 1")
    lines: list[str] = []
    again = nodes.make("a")
    await again.open(dead_after=0.3, waits=lines.append)
    assert again.incarnation == 2
    [line] = lines
    assert 'the node "a" has shown a sign of life' in line


async def test_a_process_that_has_ended_is_not_waited_for(nodes: Nodes) -> None:
    """After kill -9 the next one on the same machine begins at once."""
    this = await asyncio.to_thread(lease_holder.this_process)
    place, pid, started = this.rsplit(" ", 2)
    await nodes.open("a")
    await nodes.ask(f"UPDATE node SET holder = '{place} {pid} {int(started) - 1}' RETURNING 1")
    lines: list[str] = []
    await nodes.make("a").open(dead_after=3_600.0, waits=lines.append)
    assert lines == []


async def test_a_node_that_has_stopped_is_not_waited_for(nodes: Nodes) -> None:
    """Nor does any other node count it as one that it should hear."""
    broker = Broker([], nodes.make("a"))
    await broker.open()
    await broker.store.close()
    lines: list[str] = []
    await nodes.make("a").open(dead_after=3_600.0, waits=lines.append)
    assert lines == []


async def test_a_node_waits_for_its_database(nodes: Nodes, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one line in the log, however long it takes."""
    monkeypatch.setattr(store, "UNREACHED", 0.01)
    broker = Broker([], nodes.make("a", url=await proxy.start()))
    broker.store.listener = heard = Listener()
    proxy.open = False
    opening = asyncio.create_task(broker.open())
    await until(lambda: proxy.connections >= 3)
    assert not opening.done()
    [line] = heard.notices
    assert line.startswith("this node begins to serve once it has its database: postgresql://")
    proxy.open = True
    await opening
    await client_of(broker, "s")
    await broker.store.close()


async def test_a_database_that_cannot_serve_is_not_waited_for(nodes: Nodes) -> None:
    broker = Broker([], nodes.make("a", url=nodes.url.replace("@", "-nobody@")))
    with pytest.raises(StoreError):
        await broker.open()


async def test_a_node_that_another_process_has_replaced_leaves_it_alone_for_a_while(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer each time: two of them would end each other's connections again and again."""
    monkeypatch.setattr(running, "FIRST_PAUSE", 0.05)
    broker = Broker([], nodes.make("a"))
    await broker.open()
    broker.store.listener = heard = Listener()
    node = broker.store.running
    pauses = []
    for _ in range(3):
        first = node.node.joined
        assert first is not None
        await nodes.make("a").open()
        await until(lambda: node.is_replaced)
        pauses.append(node._pause)
        refused = broker.idle("s")
        refused.connect(clean=False, expiry=300)
        broker.store.second(0.0, blocked=False)
        assert refused.connack.reason_code == reason_codes.SERVER_UNAVAILABLE
        assert heard.reasons[-1] == store.REPLACED
        await until(lambda first=first: node.node.joined not in (None, first))  # type: ignore[misc]
    assert pauses == [0.05, 0.1, 0.2]
    await client_of(broker, "s")
    await until(lambda: heard.recoveries)
    await broker.store.close()


async def test_a_node_that_was_declared_dead_begins_anew_at_once(nodes: Nodes) -> None:
    broker = Broker([], nodes.make("a"))
    await broker.open()
    node, other = broker.store.running, await nodes.open("b")
    first = node.node.joined
    await declare_dead(other, "a")
    await until(lambda: node.node.joined not in (None, first))
    assert node._pause == 0.0
    await broker.store.close()
