"""A running broker for the tests that talk to one through sockets.

- `broker`: a broker with the default settings, on a free port of 127.0.0.1, stopped after the test.
- `start_broker(**sections)`: the same with settings of one's own, as many as the test needs:
  `await start_broker(limits={"max_packet_size": 1000}, mqtt={"max_qos": 1})`; also with a gate or authentication
  methods of one's own (`broker.core.hooks`).

With `CANOPY_E2E_BROKER=host:port` the tests that need no settings run against that broker instead, which is how the
tests themselves are held against other implementations. With `CANOPY_E2E_SCHEME=ws` the tests in `conformance` go over
WebSocket, with `CANOPY_E2E_STORE=1` these brokers keep everything on disk, with `CANOPY_E2E_STORE=postgresql` in a
database, and with `CANOPY_E2E_MOUNT=tenant/` all clients are mounted there, of which they are to see nothing. With
`CANOPY_E2E_MESH=1` each broker is two that are one, and clients connect to one and the other in turn.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.app import Broker
from broker.core.hooks import AccessControl, AuthMethod
from broker.mesh.mesh import Mesh
from broker.settings import Mesh as MeshSettings
from broker.settings import Settings
from tests.support import postgresql
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

pytest.register_assert_rewrite("tests.e2e.embedded")

from tests.e2e.embedded import embed  # noqa: E402 (a fixture; its assertions are rewritten)

__all__ = ["broker", "embed", "start_broker"]

OUTSIDE = os.environ.get("CANOPY_E2E_BROKER", "")

SCHEME = os.environ.get("CANOPY_E2E_SCHEME", "mqtt")
"""How its clients reach a broker: mqtt or ws."""

MOUNT = os.environ.get("CANOPY_E2E_MOUNT", "")
"""What stands before all topics of the clients."""

STORE = os.environ.get("CANOPY_E2E_STORE", "").removesuffix("0")
"""Whether a broker keeps everything on disk, in a folder of its own (1) or a database, and acknowledges what is kept.
"""


MESH = os.environ.get("CANOPY_E2E_MESH", "") not in ("", "0")
"""Whether a broker is two, joined by a mesh, to which clients connect in turn."""


class Address:
    """Where a broker listens; of several that are one, each time another one's port."""

    def __init__(self, host: str, *ports: int) -> None:
        self.host = host
        self._ports = itertools.cycle(ports)

    @property
    def port(self) -> int:
        """Where the next client connects to."""
        return next(self._ports)


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
            names = ("a", "b") if MESH else ("a",)
            running = [
                await stack.enter_async_context(
                    Broker(settings, access_control=access_control, auth_methods=auth_methods)
                )
                for _ in names
            ]
            if MESH:
                await joined(stack, dict(zip(names, running, strict=True)))
            return Address("127.0.0.1", *(each.ports[0] for each in running))

        yield start


async def joined(stack: AsyncExitStack, brokers: dict[str, Broker]) -> None:
    """Have brokers be one, until the stack is left."""
    memory = MemoryMesh(*brokers)
    meshes = []
    for name, broker in brokers.items():
        mesh = Mesh(broker, MeshSettings(name="one", node=name), memory[name])
        meshes.append(mesh)
        stack.push_async_callback(mesh.stop, 0.0)
    await stack.enter_async_context(memory)
    await until(lambda: all(link.connected for mesh in meshes for link in mesh.links.values()))


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
