"""Shared by the tests of connections: brokers in their process, and the lines of the log. Those of TLS run on both
event loops that a broker may be embedded in."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog
import uvloop

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.hooks import AccessControl
from tests.net.transports import Embed, lose_all

ON_BOTH = ("test_suspended.py", "test_tls.py", "test_listeners.py", "test_proxy_transport.py", "test_websocket_live.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which event loops a test runs on, one after the other."""
    del config
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return both if item.path.name in ON_BOTH else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Collect the log lines of the test's brokers."""
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]


@pytest.fixture
def made() -> Iterator[Callable[..., list[object]]]:
    """Objects of the named classes that the test has made and that still exist; the garbage collector rests meanwhile.

    A test asks for it before its broker: to search the garbage of a process that has run thousands of tests may take
    longer than `limits.max_loop_lag`.
    """
    gc.collect()
    # What is frozen is not among `gc.get_objects`.
    gc.freeze()
    gc.disable()
    yield lambda *kinds: [thing for thing in gc.get_objects() if isinstance(thing, kinds)]
    gc.enable()


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
            # A turn has as much work on every machine; tests/core/test_jobs.py is about the clock.
            brokers[-1].router.budget.clock = None
            return brokers[-1]

        yield start
        for running in brokers:
            lose_all(running)
