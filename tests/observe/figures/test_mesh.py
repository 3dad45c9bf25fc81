"""The figures of a mesh: what they say of the other nodes, and that a broker on its own has none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.mesh.mesh import Mesh
from broker.observe.figures import catalogue
from broker.settings.brokers.mesh import Mesh as MeshSettings
from canopy import Broker, Settings
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

Pair = tuple[Broker, Broker, MemoryMesh]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """The nodes a and b, and what lies between them."""
    memory = MemoryMesh("a", "b")
    async with AsyncExitStack() as stack:
        brokers = []
        for name in "ab":
            settings = Settings.model_validate({"listen": ("mqtt://127.0.0.1:0",), "sys": {"interval": 0.0}})
            broker = await stack.enter_async_context(Broker(settings))
            broker.figures.mesh = mesh = Mesh(broker, MeshSettings(name="one", node=name), memory[name])
            stack.push_async_callback(mesh.stop, 0.0)
            brokers.append(broker)
        a, b = brokers
        await stack.enter_async_context(memory)
        await until(lambda: all(told(each).get("mesh/connected") == "1" for each in (a, b)))
        yield a, b, memory


def told(broker: Broker) -> dict[str, str]:
    """What `$SYS/broker/mesh/` says."""
    topics = catalogue.topics(broker.figures.read())
    return {topic: payload for topic, payload in topics if topic.startswith("mesh/")}


async def test_they_say_who_is_there_what_is_wanted_and_what_waits(pair: Pair) -> None:
    a, b, memory = pair
    hears = await Peer.join(b.ports[0], "hears", ("x", 1), ("$share/g/y", 1))
    says = await Peer.join(a.ports[0], "says")
    await until(lambda: told(a)["mesh/nodes/b/behind"] == "0")
    found = told(a)
    assert (found["mesh/name"], found["mesh/node"], found["mesh/known"]) == ("one", "a", "1")
    assert (found["mesh/nodes/b/state"], found["mesh/nodes/b/down"]) == ("connected", "0.0")
    assert found["mesh/nodes/b/filters"] == told(b)["mesh/filters/declared"] == "2"
    memory.cut("a", "b")
    await until(lambda: told(a)["mesh/nodes/b/state"] == "gone")
    for _ in range(3):
        assert await says.publish("x", b"12345", qos=1) == 0
    found = told(a)
    assert (found["mesh/connected"], found["mesh/known"]) == ("0", "1")
    assert found["mesh/nodes/b/messages/waiting"] == "3"
    assert int(found["mesh/nodes/b/bytes/waiting"]) >= 15
    assert float(found["mesh/nodes/b/down"]) > 0.0
    memory.join("a", "b")
    assert [(await hears.message()).payload for _ in range(3)] == [b"12345"] * 3
    await until(lambda: told(a)["mesh/nodes/b/messages/waiting"] == "0")
    for peer in (hears, says):
        peer.abort()


async def test_sessions_and_retained_messages_that_go_to_another_node_are_counted(pair: Pair) -> None:
    a, b, _ = pair
    kept = ((wire.SESSION_EXPIRY, 100),)
    first = await Peer.join(a.ports[0], "moves", ("x", 1), props=kept)
    await first.publish("kept", b"1", qos=1, retain=True)
    second = await Peer.join(b.ports[0], "moves", ("x", 1), clean=False, props=kept)
    await until(lambda: told(b)["mesh/sessions/in"] == told(a)["mesh/sessions/out"] == "1")
    await until(lambda: told(a)["mesh/retained/sent"] == told(b)["mesh/retained/applied"] == "1")
    assert told(b)["mesh/claims/unanswered"] == "0"
    for peer in (first, second):
        peer.abort()


async def test_clients_are_counted_without_other_nodes(pair: Pair) -> None:
    a, b, _ = pair
    peer = await Peer.join(b.ports[0], "c", ("x", 1))
    assert [(each.figures.read().connected, each.figures.read().sessions) for each in (a, b)] == [(0, 0), (1, 1)]
    peer.abort()


async def test_a_broker_on_its_own_has_none() -> None:
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        assert len(dict(catalogue.topics(broker.figures.read()))) > 50
        assert told(broker) == {}
