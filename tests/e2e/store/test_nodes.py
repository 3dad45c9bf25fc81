"""Nodes of a cluster with one database, as processes: a durable client finds everything at any node, and a node that is
killed takes nothing along that was acknowledged."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import pytest

from canopy_load.brokers.process import free_port
from tests.e2e.wire import SESSION_EXPIRY, Peer
from tests.support import postgresql
from tests.support.daemon import Daemon, canopy

NAMES: Final = ("a", "b", "c")


class Cluster:
    """Three nodes over a schema of their own."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.daemons: dict[str, Daemon] = {}
        self.schema = ("--store", postgresql.shared().url, "--set", f"store.name={postgresql.new_name()}")
        self._ports = {name: free_port() for name in NAMES}
        nodes = [f'{{name="{name}",address="mqtt://127.0.0.1:{port}"}}' for name, port in self._ports.items()]
        self._nodes = f"cluster.nodes=[{','.join(nodes)}]"

    def words(self, name: str, cluster: str = "plant") -> tuple[str, ...]:
        """The arguments with which a node is started."""
        listen = f"cluster.listen=mqtt://127.0.0.1:{self._ports[name]}"
        settings = (f"cluster.name={cluster}", f"cluster.node={name}", listen, self._nodes, "store.synchronous=off")
        return (*self.schema, *(word for each in settings for word in ("--set", each)))

    async def start(self, name: str) -> None:
        self.daemons[name] = await asyncio.to_thread(lambda: Daemon(*self.words(name)))
        self.stack.callback(self.daemons[name].close)

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self.daemons.pop(name).end, signal.SIGKILL)

    async def join(self, name: str, client_id: str, *filters: tuple[str, int]) -> Peer:
        """A client with a session that lasts, at a node."""
        port = self.daemons[name].port
        peer = await Peer.join(port, client_id, *filters, clean=False, props=[(SESSION_EXPIRY, 300)])
        self.stack.callback(peer.abort)
        return peer

    async def publish(self, name: str, *payloads: bytes) -> None:
        """Publish with QoS 1 and 2 in turn, and see each through, at a node."""
        peer = await Peer.join(self.daemons[name].port, "publisher")
        for number, payload in enumerate(payloads):
            assert await peer.publish("t", payload, qos=1 + number % 2) == 0
        await peer.disconnect()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        made = Cluster(stack)
        for name in NAMES:
            await made.start(name)
        yield made


@pytest.mark.long
async def test_retained_messages_outlive_all_nodes(cluster: Cluster) -> None:
    """And a live one comes to a subscriber at another node as it was sent."""
    client = await cluster.join("a", "s", ("r/+", 1))
    peer = await Peer.join(cluster.daemons["b"].port, "publisher")
    cluster.stack.callback(peer.abort)
    for number in range(3):
        assert await peer.publish(f"r/{number}", b"%d" % number, qos=1, retain=True) == 0
    assert await peer.publish("r/1", b"", qos=1, retain=True) == 0
    assert [(await client.message()).payload for _ in range(4)] == [b"0", b"1", b"2", b""]
    for name in NAMES:
        await cluster.kill(name)
    await cluster.start("c")
    client = await Peer.join(cluster.daemons["c"].port, "new", ("r/+", 1))
    assert {(await client.message()).payload for _ in range(2)} == {b"0", b"2"}
    await client.disconnect()


@pytest.mark.long
async def test_a_killed_node_takes_nothing_along(cluster: Cluster) -> None:
    client = await cluster.join("a", "s", ("t", 2))
    await client.disconnect()
    # At once: another node learns of the subscription by this message.
    await cluster.publish("b", b"1", b"2", b"3", b"4")
    await cluster.kill("a")
    client = await cluster.join("c", "s")
    came = [await client.message() for _ in range(4)]
    assert [each.payload for each in sorted(came, key=lambda each: each.qos)] == [b"1", b"3", b"2", b"4"]
    # And one that is connected, and does not read.
    await cluster.publish("b", b"5", b"6")
    await cluster.kill("c")
    client = await cluster.join("b", "s")
    assert client.connack is not None
    assert client.connack.session_present
    assert {(await client.message()).payload for _ in range(2)} == {b"5", b"6"}
    await cluster.start("a")
    moved = await cluster.join("a", "s")
    assert (await client.closed())[-1].code == 0x8E
    await cluster.publish("b", b"7")
    assert (await moved.message()).payload == b"7"


@pytest.mark.long
async def test_a_node_of_another_cluster_is_refused_the_schema(cluster: Cluster) -> None:
    done = await asyncio.to_thread(canopy, "serve", "--listen", "mqtt://127.0.0.1:0", *cluster.words("a", "port"))
    assert done.returncode == 1
    assert 'has the sessions of the cluster "plant", and this is a node of "port" (cluster.name)' in done.stderr
    assert "name another schema (store.name)" in done.stderr
