"""What the page shows of the sessions that the nodes of a cluster share by one database."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.admin.page.conftest import Visit, picture
from tests.cluster.nodes import Nodes
from tests.e2e import wire
from tests.support.waiting import until

pytest.importorskip("asyncpg")
# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")

DURABLE = [(wire.SESSION_EXPIRY, 3600)]


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Two nodes with one database."""
    async with AsyncExitStack() as stack:
        nodes = Nodes(stack, tmp_path)
        await nodes.start_shared()
        yield nodes


@pytest.mark.long
async def test_sessions_of_all_nodes_are_listed_shown_and_ended_at_each(shared: Nodes, visit: Visit) -> None:
    away = await shared.join("b", "away", ("t/#", 1), clean=False, props=DURABLE)
    await away.disconnect()
    await until(lambda: "away" not in shared.brokers["b"].router.sessions)
    await shared.join("b", "elsewhere", ("t/#", 1), clean=False, props=DURABLE)
    await (await shared.join("a", "publisher")).publish("t/1", b"x", qos=1)
    page = await visit(shared.brokers["a"], "clients")
    await expect(page.get_by_role("table")).to_contain_text("publisher")
    await page.get_by_role("link", name="sessions", exact=True).click()
    row = page.get_by_role("row").filter(has_text="away")
    await expect(row).to_contain_text("address 127.0.0.1")
    await expect(row).to_contain_text("1 h")
    connected = page.get_by_role("row").filter(has_text="elsewhere")
    await expect(connected.get_by_role("cell", name="b", exact=True)).to_be_visible()
    for width in (1440, 768, 390):
        await page.set_viewport_size({"width": width, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await picture(page, f"shared-sessions-{width}")
    await page.get_by_label("State").select_option("disconnected")
    await page.get_by_role("button", name="Search").click()
    await expect(connected).to_have_count(0)
    await page.get_by_role("link", name="away", exact=True).click()
    await expect(page.get_by_role("heading", name="Client away")).to_be_visible()
    await expect(page.get_by_role("table", name="Subscriptions of this client")).to_contain_text("t/#")
    await picture(page, "shared-session")
    await page.get_by_role("button", name="End the session").click()
    await page.get_by_role("button", name="End the session: its queued messages are lost").click()
    await expect(page.get_by_text("There is no client or session with this identifier.")).to_be_visible()
