"""What the tests of connections share: the lines of the log; those of TLS run on both event loops that a broker may be
embedded in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import structlog
import uvloop

ON_BOTH = ("test_tls.py", "test_listeners.py", "test_proxied.py", "test_websocket_live.py")


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
