"""Brokers that become nodes, on Zenoh: a client that comes as soon as it can reaches the clients of all nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.app import Broker
from broker.settings import Settings
from tests.e2e.wire import Peer
from tests.support.waiting import until


def settings(folder: Path, node: str, *connect: str, **mesh: Any) -> Settings:
    """A node with a store, which knows the way to some others."""
    return Settings.model_validate(
        {
            "listen": ["mqtt://127.0.0.1:0"],
            "store": {"path": str(folder / node)},
            "mesh": {
                "name": "one",
                "node": node,
                "listen": [f"unixsock-stream/{folder}/{node}.socket"],
                "connect": [f"unixsock-stream/{folder}/{other}.socket" for other in connect],
                **mesh,
            },
        }
    )


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def published_at_once(broker: Broker, payload: bytes) -> None:
    """By a client that comes as soon as it can."""
    peer = await Peer.join(broker.ports[0], "says")
    try:
        assert await peer.publish("x", payload, qos=1) < 0x80
    finally:
        peer.abort()


async def test_a_node_that_starts_again(tmp_path: Path, stack: AsyncExitStack) -> None:
    """The others have to come to it; it knows from before who they are."""
    b = Broker(settings(tmp_path, "b", "a"))
    async with Broker(settings(tmp_path, "a")) as a:
        await stack.enter_async_context(b)
        await until(lambda: b.mesh is not None and b.mesh.not_ready() == [] and len(b.mesh.links) == 1)
        hears = await Peer.join(b.ports[0], "hears", ("x", 1))
        stack.callback(hears.abort)
        await published_at_once(a, b"1")
        assert (await hears.message()).payload == b"1"
    a = await stack.enter_async_context(Broker(settings(tmp_path, "a")))
    await published_at_once(a, b"2")
    assert (await hears.message()).payload == b"2"


async def test_a_node_that_does_not_come_is_not_waited_for_longer_than_its_time(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    async with (
        Broker(settings(tmp_path, "a", node_timeout=0.5)) as a,
        Broker(settings(tmp_path, "b", "a", node_timeout=0.5)) as b,
    ):
        await until(lambda: b.mesh is not None and b.mesh.not_ready() == [] and len(b.mesh.links) == 1)
        await published_at_once(a, b"1")
    a = await stack.enter_async_context(Broker(settings(tmp_path, "a", node_timeout=0.5)))
    await published_at_once(a, b"2")
