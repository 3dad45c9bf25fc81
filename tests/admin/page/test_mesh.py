"""What the page shows of a mesh: the other nodes, and first of all those that are away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import expect

from broker.mesh.mesh import Mesh
from broker.settings.brokers.mesh import Mesh as MeshSettings
from canopy import Broker
from tests.admin.conftest import Serve
from tests.admin.page.conftest import Visit, picture
from tests.e2e import wire
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

NODES = ("hall-1", "hall-2", "office")


@pytest.fixture
async def nodes(serve: Serve) -> AsyncIterator[tuple[dict[str, Broker], MemoryMesh]]:
    """Some brokers that are one, and what lies between them."""
    memory = MemoryMesh(*NODES)
    brokers = {name: await serve() for name in NODES}
    for name, broker in brokers.items():
        broker.mesh = broker.figures.mesh = Mesh(broker, MeshSettings(name="plant", node=name), memory[name])
    async with memory:
        await until(lambda: all(len(connected(broker)) == 2 for broker in brokers.values()))
        yield brokers, memory
    for broker in brokers.values():
        mesh, broker.mesh = broker.mesh, None
        assert mesh is not None
        await mesh.stop(0.0)


def connected(broker: Broker) -> list[str]:
    """The other nodes that take what is published."""
    return [] if broker.mesh is None else [name for name, link in broker.mesh.links.items() if link.connected]


@pytest.mark.long
async def test_a_node_that_is_away_is_what_one_sees_first(
    nodes: tuple[dict[str, Broker], MemoryMesh], visit: Visit
) -> None:
    brokers, memory = nodes
    hears = await wire.Peer.join(brokers["office"].ports[0], "hears", ("x", 1))
    says = await wire.Peer.join(brokers["hall-1"].ports[0], "says")
    page = await visit(brokers["hall-1"])
    headline = page.locator("#headline")
    await expect(headline).to_contain_text("All is well")
    await page.get_by_role("link", name="Mesh", exact=True).click()
    table = page.get_by_role("table", name="Other nodes")
    await expect(table.locator("tbody tr")).to_have_count(2)
    await expect(table.locator("tbody tr").first).to_contain_text("hall-2connected")
    await expect(page.get_by_role("heading", name="Mesh plant, node hall-1")).to_be_visible()
    memory.cut("hall-1", "office")
    await until(lambda: connected(brokers["hall-1"]) == ["hall-2"])
    for _ in range(3):
        assert await says.publish("x", b"12345", qos=1) == 0
    await expect(headline).to_contain_text("node office not connected since")
    await expect(headline).to_contain_text("3 messages waiting")
    first = table.locator("tbody tr").first
    await expect(first).to_contain_text("officenot connected since")
    await expect(first.locator("td").nth(2)).to_have_text("3")
    for scheme, width, shot in (
        ("light", 1280, "mesh-light"),
        ("dark", 1280, "mesh-dark"),
        ("dark", 390, "mesh-phone"),
    ):
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        await page.set_viewport_size({"width": width, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await picture(page, shot)
    memory.join("hall-1", "office")
    await expect(headline).to_contain_text("All is well")
    await expect(table).not_to_contain_text("not connected since")
    for peer in (hears, says):
        peer.abort()


@pytest.mark.long
async def test_a_broker_on_its_own_offers_no_view_of_a_mesh(serve: Serve, visit: Visit) -> None:
    page = await visit(await serve())
    await expect(page.get_by_role("link", name="Upstream", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Mesh", exact=True)).to_have_count(0)
