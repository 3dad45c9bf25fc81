"""A running broker for the tests that talk to one through sockets.

- `broker`: a broker with the default settings, on a free port of 127.0.0.1, stopped after the test.
- `start_broker(**sections)`: the same with settings of one's own, as many as the test needs:
  `await start_broker(limits={"max_packet_size": 1000}, mqtt={"max_qos": 1})`; also with a gate or authentication
  methods of one's own (`canopy_mqtt.core.hooks`).

With `CANOPY_E2E_BROKER=host:port` the tests that need no settings run against that broker instead, which is how the
tests themselves are held against other implementations. With `CANOPY_E2E_SCHEME=ws` the tests in `conformance` go over
WebSocket, with `CANOPY_E2E_STORE=1` these brokers keep everything on disk, with `CANOPY_E2E_STORE=postgresql` in a
database, and with `CANOPY_E2E_MOUNT=tenant/` all clients are mounted there, of which they are to see nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.hooks import AccessControl, AuthMethod
from canopy_mqtt.settings import Settings
from tests.support import postgresql

OUTSIDE = os.environ.get("CANOPY_E2E_BROKER", "")

SCHEME = os.environ.get("CANOPY_E2E_SCHEME", "mqtt")
"""How its clients reach a broker: mqtt or ws."""

MOUNT = os.environ.get("CANOPY_E2E_MOUNT", "")
"""The mount point: the prefix of all topics of the clients."""

STORE = os.environ.get("CANOPY_E2E_STORE", "").removesuffix("0")
"""The broker's store: a folder of its own (1) or a database. It acknowledges what is stored. Empty: none.
"""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


StartBroker = Callable[..., Awaitable[Address]]


@pytest.fixture
async def start_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StartBroker]:
    """Start brokers with settings of one's own; each is stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(
            access_control: AccessControl | None = None,
            auth_methods: dict[str, AuthMethod] | None = None,
            **sections: Any,
        ) -> Address:
            if OUTSIDE:
                pytest.skip("the settings of an outside broker cannot be changed")
            if STORE == "postgresql":
                store = {"url": postgresql.shared().url, "name": postgresql.new_name(), "synchronous": "off"}
                sections["store"] = {**store, **sections.get("store", {})}
            elif STORE:
                sections.setdefault("store", {"path": str(tmp_path_factory.mktemp("store"))})
            settings = Settings.model_validate(
                {"listener": [{"url": f"{SCHEME}://127.0.0.1:0", "mount": MOUNT}], **sections}
            )
            running = await stack.enter_async_context(
                Broker(settings, access_control=access_control, auth_methods=auth_methods)
            )
            return Address("127.0.0.1", running.ports[0])

        yield start


async def default_broker(start: StartBroker) -> Address:
    """A broker with the default settings, or the outside one."""
    if OUTSIDE:
        host, _, port = OUTSIDE.rpartition(":")
        return Address(host, int(port))
    return await start()


@pytest.fixture
async def broker(start_broker: StartBroker) -> Address:
    """A broker with the default settings."""
    return await default_broker(start_broker)
