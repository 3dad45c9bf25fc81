"""Brokers with stores that are one: what a node knows of another when it begins before that one is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.app import Broker
from broker.mesh.mesh import Mesh
from broker.settings import Settings
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.mesh.brokers import joining
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

KEPT = ((wire.SESSION_EXPIRY, 1_000),)


class Pair:
    """The nodes `a` and `b`, each one broker after another on a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = MemoryMesh("a", "b")
        self.brokers: dict[str, Broker] = {}
        self.meshes: dict[str, Mesh] = {}

    async def start(self, name: str, **mesh: Any) -> None:
        """Begin, beside whoever is there."""
        settings = Settings.model_validate(
            {
                "listen": ["mqtt://127.0.0.1:0"],
                "mesh": {"name": "one", "node": name, **mesh},
                "store": {"path": str(self.folder / name)},
            }
        )
        self.memory[name].rooms.clear()
        broker = self.brokers[name] = Broker(settings)
        await broker.start()
        assert broker.mesh is not None
        self.meshes[name] = broker.mesh

    def join(self) -> None:
        """They reach each other."""
        self.memory.join("a", "b")

    async def joined(self) -> None:
        """And know what is wanted."""
        self.join()
        await until(lambda: all(self.met(name) for name in "ab"))

    def met(self, name: str) -> bool:
        """Whether a node knows all that the other wants now."""
        other = "b" if name == "a" else "a"
        remote = self.meshes[name].interest.remotes.get(other)
        return self.meshes[name].down().get(other) == 0.0 and remote is not None and remote.complete

    async def stop(self, name: str) -> None:
        """End in order."""
        self.memory.stop(name)
        await self.memory.settle()
        del self.meshes[name]
        await self.brokers.pop(name).stop()

    async def peer(self, name: str, client_id: str, *filters: tuple[str, int], **options: Any) -> Peer:
        return await Peer.join(self.brokers[name].ports[0], client_id, *filters, **options)

    def wanted(self) -> dict[str, int]:
        """What `a` knows `b` to want: the names with their weights."""
        session = self.meshes["a"].links["b"].session
        return {name: int(each.weight) for name, each in session.subscriptions.items()}


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    nodes = Pair(tmp_path)
    monkeypatch.setattr("broker.mesh.joining.join", joining(nodes.memory))
    async with AsyncExitStack() as stack:
        for name in "ab":
            await nodes.start(name)
        await nodes.joined()

        async def end() -> None:
            for name in list(nodes.brokers):
                await nodes.stop(name)

        stack.push_async_callback(end)
        yield nodes
    assert not nodes.memory.faults


async def test_what_another_node_wants_is_known_before_it_comes_and_then_as_it_is_by_then(pair: Pair) -> None:
    """Topic filters and share groups: those that it has dropped meanwhile go, others come."""
    client = await pair.peer("b", "c", ("x/+", 1), ("old", 1), ("$share/g/s", 1), props=KEPT)
    member = await pair.peer("b", "m", ("$share/g/s", 1))
    await until(lambda: pair.wanted() == {"x/+": 1, "old": 1, "$share/g/s": 2})
    await pair.stop("a")
    await client.unsubscribe("old")
    await client.subscribe(("new", 1))
    member.abort()
    await pair.start("a")
    assert pair.wanted() == {"x/+": 1, "old": 1, "$share/g/s": 0}
    says = await pair.peer("a", "says")
    for topic in ("x/1", "s"):
        assert await says.publish(topic, topic.encode(), qos=1) == 0
    await pair.joined()
    assert [(await client.message()).payload for _ in range(2)] == [b"x/1", b"s"]
    await until(lambda: pair.wanted() == {"x/+": 1, "new": 1, "$share/g/s": 1})
    assert await says.publish("old", qos=1) == 0x10
    assert await says.publish("new", b"new", qos=1) == 0
    assert (await client.message()).payload == b"new"
    client.abort()
    says.abort()


async def test_a_node_that_takes_fewer_topic_filters_than_before_meets_the_other_all_the_same(pair: Pair) -> None:
    client = await pair.peer("b", "c", *((f"t/{number}", 1) for number in range(600)))
    await until(lambda: len(pair.wanted()) == 600)
    await pair.stop("a")
    await pair.start("a", max_node_filters=64)
    assert len(pair.wanted()) == 600
    await pair.joined()
    await until(lambda: len(pair.wanted()) <= 64)
    client.abort()


async def test_a_broker_that_is_stopped_and_started_again_goes_on_with_what_waits(pair: Pair) -> None:
    """Within one process."""
    client = await pair.peer("b", "c", ("x", 1))
    await until(lambda: pair.wanted() == {"x": 1})
    pair.memory.cut("a", "b")
    await until(lambda: pair.meshes["a"].down()["b"] > 0.0)
    says = await pair.peer("a", "says")
    assert await says.publish("x", b"waits", qos=1) == 0
    says.abort()
    broker = pair.brokers["a"]
    await broker.stop()
    pair.memory["a"].rooms.clear()
    await broker.start()
    assert broker.mesh is not None
    pair.meshes["a"] = broker.mesh
    assert pair.wanted() == {"x": 1}
    await pair.joined()
    assert (await client.message()).payload == b"waits"
    client.abort()


async def test_a_node_that_is_given_up_is_given_up_in_the_store(pair: Pair) -> None:
    client = await pair.peer("b", "c", ("x", 1))
    await until(lambda: pair.wanted() == {"x": 1})
    client.abort()
    await pair.stop("a")
    await pair.stop("b")
    await pair.start("a", node_expiry=1.0)
    await until(lambda: not pair.meshes["a"].links)
    await pair.stop("a")
    await pair.start("a")
    assert not pair.meshes["a"].links
