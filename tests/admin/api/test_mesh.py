"""The nodes of a mesh over HTTP, and by `canopy ctl mesh`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner, Result

from broker.ctl.cli import app
from broker.mesh.links.link import NodeLink
from broker.mesh.mesh import Mesh
from broker.settings.brokers.mesh import Mesh as MeshSettings
from canopy import Broker
from tests.admin.api.conftest import Api
from tests.admin.conftest import Serve
from tests.e2e.wire import Peer
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until


@pytest.fixture
async def joined(broker: Broker, serve: Serve) -> AsyncIterator[tuple[Broker, MemoryMesh]]:
    """Another broker, and what makes it one with `broker`: they are the nodes b and a."""
    other = await serve()
    memory = MemoryMesh("a", "b")
    for name, each in (("a", broker), ("b", other)):
        each.mesh = Mesh(each, MeshSettings(name="one", node=name), memory[name])
    async with memory:
        await until(lambda: broker.mesh is not None and "b" in broker.mesh.links and link(broker).connected)
        yield other, memory
    for each in (broker, other):
        mesh, each.mesh = each.mesh, None
        assert mesh is not None
        await mesh.stop(0.0)


def link(broker: Broker) -> NodeLink:
    """What goes to the node b."""
    assert broker.mesh is not None
    return broker.mesh.links["b"]


async def test_a_broker_on_its_own_says_so(api: Api) -> None:
    status, found = await api.call("GET", "/mesh")
    assert status == 404
    assert "mesh.name" in found["message"]


async def test_other_nodes_are_no_clients(api: Api, broker: Broker, joined: tuple[Broker, MemoryMesh]) -> None:
    """Though what they want stands as subscriptions of theirs."""
    peer = await Peer.join(joined[0].ports[0], "c", "x")
    await until(lambda: "x" in link(broker).session.subscriptions)
    for path in ("/clients", "/subscriptions", "/filters"):
        assert (await api.get(path))["data"] == [], path
    await peer.disconnect()


async def test_the_other_nodes_are_shown(api: Api, broker: Broker, joined: tuple[Broker, MemoryMesh]) -> None:
    peer = await Peer.join(joined[0].ports[0], "c", "x", "$share/g/y")
    found = await api.get("/mesh")
    assert (found["mesh"], found["node"], found["declared"]) == ("one", "a", 0)
    (node,) = found["nodes"]
    assert (node["name"], node["state"], node["filters"], node["behind"]) == ("b", "connected", 2, False)
    assert (node["waiting"], node["dropped"]) == (0, 0)
    run = await ctl(broker, "mesh")
    assert run.exit_code == 0, run.output
    assert run.stdout.splitlines()[-1].split()[:3] == ["b", "connected", "2"]
    assert json.loads((await ctl(broker, "--json", "mesh")).stdout)["nodes"] == [node]
    peer.abort()


@pytest.mark.usefixtures("joined")
async def test_no_other_node(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.mesh, "links", {})
    run = await ctl(broker, "mesh")
    assert run.exit_code == 0, run.output
    assert run.stdout.splitlines()[-1] == "no other node has joined"


async def test_a_node_that_is_gone_is_shown_with_what_waits_for_it(
    api: Api, broker: Broker, joined: tuple[Broker, MemoryMesh]
) -> None:
    other, memory = joined
    there = await Peer.join(other.ports[0], "c", ("x", 1))
    memory.cut("a", "b")
    await until(lambda: not link(broker).connected)
    here = await Peer.join(broker.ports[0], "p")
    await here.publish("x", b"1", qos=1)
    (node,) = (await api.get("/mesh"))["nodes"]
    assert (node["state"], node["waiting"], node["synchronized"]) == ("gone", 1, False)
    assert node["down"] > 0.0
    run = await ctl(broker, "mesh")
    assert run.exit_code == 3
    # How much it has of what is wanted and retained here is not known.
    name, state, _, *others = run.stdout.splitlines()[-1].split()[:7]
    assert [name, state, *others] == ["b", "gone", "s", "1", "1", str(node["waiting_bytes"])]
    for peer in (here, there):
        peer.abort()


async def ctl(broker: Broker, *arguments: str) -> Result:
    """Run `canopy ctl` in a thread, so that the broker may answer."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["--url", broker.http[0], *arguments])
