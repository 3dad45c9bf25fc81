"""The page below a path of another server, as reverse proxies and Home Assistant's ingress show it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import expect

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker
from tests.admin.conftest import Serve
from tests.admin.page.conftest import Visit, retain
from tests.support.reverse_proxy import NGINX, nginx, running, web

SERVER: Final = """
server {{
    listen 127.0.0.1:{front};
    location /plant/canopy/ {{
        proxy_pass {back}/;
        proxy_set_header X-Ingress-Path /plant/canopy;
        proxy_buffering off;
    }}
}}
"""


@pytest.fixture
async def broker(serve: Serve) -> Broker:
    return await serve()


@pytest.fixture
async def below(broker: Broker, tmp_path: Path) -> AsyncIterator[str]:
    """The page's address at the proxy, which passes on nothing outside of its path."""
    if not NGINX:
        pytest.skip("nginx is not installed")
    front = free_port()
    command = nginx(tmp_path, web(SERVER.format(front=front, back=broker.http[0])))
    async with running(command, front):
        yield f"http://127.0.0.1:{front}/plant/canopy"


async def test_every_part_of_it_is_found_below_the_path(broker: Broker, below: str, visit: Visit) -> None:
    """Its files, what it shows live, and what it asks the API."""
    retain(broker, "site/7/temperature", b"21.5")
    page = await visit(broker, "retained", url=below)
    await expect(page.get_by_text("site/7/temperature")).to_be_visible()
    await page.goto(f"{below}/#/overview")
    await expect(page.locator("#headline")).not_to_be_empty()
    assert await page.evaluate("document.styleSheets.length") == 3
