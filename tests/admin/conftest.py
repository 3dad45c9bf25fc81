"""Brokers in the test's process that speak HTTP, and what asks them."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from canopy_mqtt import Broker, Settings

# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")

Serve = Callable[..., Awaitable[Broker]]
"""Starts a broker with those settings as keywords; `http` are settings of that section."""


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(http: dict[str, Any] | None = None, **sections: Any) -> Broker:
            settings = {
                "listen": ("mqtt://127.0.0.1:0",),
                "sys": {"interval": 0.0},
                "security": {"failure_delay": 0.0},
                "http": {"listen": ("http://127.0.0.1:0",)} | (http or {}),
            } | sections
            return await stack.enter_async_context(Broker(Settings.model_validate(settings)))

        yield start


@pytest.fixture
async def ask() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session
