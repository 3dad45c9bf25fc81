"""What the tests of connections share: brokers in their process, and the lines of the log. Those of TLS run on both
event loops that a broker may be embedded in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog
import uvloop

from broker.core.hooks import AccessControl
from canopy import Broker, Settings
from tests.net.transports import Embed, lose_all

ON_BOTH = ("test_suspended.py", "test_tls.py", "test_listeners.py", "test_proxied.py", "test_websocket_live.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which event loops a test runs on, one after the other."""
    del config
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return both if item.path.name in ON_BOTH else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the brokers of the test log."""
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]


@pytest.fixture
async def embed() -> AsyncIterator[Embed]:
    """Brokers with sections of settings as keywords; else one TCP listener, and nothing under `$SYS`."""
    async with AsyncExitStack() as stack:
        brokers: list[Broker] = []

        async def start(access_control: AccessControl | None = None, **sections: Any) -> Broker:
            if "listener" not in sections:
                sections.setdefault("listen", ("mqtt://127.0.0.1:0",))
            # Nobody waits at the end for clients that do not read.
            sections.setdefault("shutdown", {"flush_timeout": 0.0})
            sections.setdefault("sys", {"interval": 0.0})
            settings = Settings.model_validate(sections)
            brokers.append(await stack.enter_async_context(Broker(settings, access_control=access_control)))
            return brokers[-1]

        yield start
        for running in brokers:
            lose_all(running)
