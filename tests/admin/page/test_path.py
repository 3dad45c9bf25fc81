"""The page below a path of another server, as reverse proxies and Home Assistant's ingress show it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import expect

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker
from tests.admin.conftest import Serve
from tests.admin.page.conftest import Visit, retain
from tests.support.waiting import reachable

# Debian keeps daemons where an ordinary user's PATH does not look.
NGINX: Final = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""

CONFIG: Final = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 100; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{front};
        location /plant/canopy/ {{
            proxy_pass {back}/;
            proxy_set_header X-Ingress-Path /plant/canopy;
            proxy_buffering off;
        }}
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
    config = tmp_path / "nginx.conf"
    config.write_text(CONFIG.format(front=front, back=broker.http[0]))
    proxy = await asyncio.create_subprocess_exec(NGINX, "-e", "stderr", "-p", str(tmp_path), "-c", str(config))

    try:
        await reachable(front, proxy)
        yield f"http://127.0.0.1:{front}/plant/canopy"
    finally:
        if proxy.returncode is None:
            proxy.kill()
        await proxy.wait()


async def test_every_part_of_it_is_found_below_the_path(broker: Broker, below: str, visit: Visit) -> None:
    """Its files, what it shows live, and what it asks the API."""
    retain(broker, "site/7/temperature", b"21.5")
    page = await visit(broker, "retained", url=below)
    await expect(page.get_by_text("site/7/temperature")).to_be_visible()
    await page.goto(f"{below}/#/overview")
    await expect(page.locator("#headline")).not_to_be_empty()
    assert await page.evaluate("document.styleSheets.length") == 3
