"""The end of a node: its clients go first, and the other nodes get what these have published."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes, payloads
from tests.e2e import wire
from tests.e2e.wire import Closed, Peer
from tests.support import postgresql
from tests.support.waiting import until

USE_ANOTHER_SERVER = 0x9C


async def test_a_drain_moves_clients_and_leaves_the_other_nodes(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    await nodes.start("a", "b")
    at_b = await nodes.join("b", "at-b", ("t", 1))
    leaving = await nodes.join("a", "leaving", ("t", 1), will=wire.Will("t", b"will", qos=1))
    draining, connects = nodes.brokers["a"].draining, nodes.link("b", "a").connects
    with caplog.at_level("WARNING", logger="canopy"):
        draining.start(0.01, False, "", "tester")
        await draining.done.wait()
    assert "draining clients=1 nodes=1" in caplog.text
    [last] = await leaving.closed()
    assert last.code == USE_ANOTHER_SERVER
    assert await payloads(at_b, b"will") == [b"will"]
    await until(lambda: draining.left == 0, "the client has gone")
    assert draining.moved == 1
    assert nodes.link("b", "a").connects == connects
    # No client comes in; a node that has lost its link does.
    with pytest.raises((Closed, ConnectionError)):
        await Peer.join(nodes.brokers["a"].ports[0], "new")
    nodes.link("b", "a").reset()
    await until(lambda: nodes.link("b", "a").connects == connects + 1, "node b is linked again")
    await nodes.linked()
    await nodes.brokers["a"].publish("t", b"of the program", qos=1)
    assert await payloads(at_b, b"of the program") == [b"of the program"]


async def test_wills_in_a_database_reach_the_other_nodes_before_a_stop(stack: AsyncExitStack, tmp_path: Path) -> None:
    """They go when they are written."""
    nodes = Nodes(stack, tmp_path, link_timeout=30.0)
    await nodes.start("a", "b", store={"url": postgresql.shared().url, "name": postgresql.new_name()})
    at_b = await nodes.join("b", "at-b", "t")
    await nodes.join("a", "leaving", will=wire.Will("t", b"will"))
    await nodes.stop("a")
    assert await payloads(at_b, b"will") == [b"will"]


async def test_what_was_acknowledged_before_a_stop_reaches_the_other_nodes(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Also what waits in the session of a node, which without a store ends with the broker."""
    nodes = Nodes(stack, tmp_path, link_timeout=30.0)
    await nodes.start("a", "b", mqtt={"max_inflight": 2}, shutdown={"flush_timeout": 20.0})
    at_b = await nodes.join("b", "at-b", ("t", 1))
    publisher = await nodes.join("a", "publisher", will=wire.Will("t", b"will", qos=1))
    # What a sends to b stays on its way for a time.
    nodes.wires["b", "a"].darken(up=False)
    for number in range(20):
        await publisher.publish("t", str(number).encode(), qos=1)
    stopping = asyncio.create_task(nodes.stop("a"))
    [last] = await publisher.closed()
    assert last.kind == wire.DISCONNECT
    assert nodes.link("b", "a").connected
    nodes.light()
    sent = [str(number).encode() for number in range(20)]
    assert await payloads(at_b, b"will") == [*sent, b"will"]
    await stopping
