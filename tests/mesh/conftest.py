"""Starts the brokers of a mesh. The tests of turns run on both event loops that a broker may be embedded in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from broker.app import Broker
from broker.mesh.mesh import Mesh
from broker.settings import Settings
from tests.mesh.brokers import Nodes, Start, joining
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which event loops a test runs on, one after the other."""
    del config
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return both if item.path.name == "test_turns.py" else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Brokers of these names, joined. `folder`: of their stores, if they have any. `others`: nodes without rooms, which
    have not joined."""
    async with AsyncExitStack() as stack:

        async def begin(
            *names: str, folder: Path | None = None, others: tuple[str, ...] = (), **sections: Any
        ) -> Nodes:
            memory = MemoryMesh(*names, *others)
            monkeypatch.setattr("broker.mesh.joining.join", joining(memory))
            brokers: dict[str, Broker] = {}
            meshes: dict[str, Mesh] = {}
            for name in names:
                store = {} if folder is None else {"path": str(folder / name)}
                settings = Settings.model_validate(
                    {
                        "listen": ["mqtt://127.0.0.1:0"],
                        **sections,
                        "store": {**store, **sections.get("store", {})},
                        "mesh": {"name": "one", "node": name, **sections.get("mesh", {})},
                    }
                )
                broker = brokers[name] = await stack.enter_async_context(Broker(settings))
                assert broker.mesh is not None
                meshes[name] = broker.mesh
            await stack.enter_async_context(memory)
            for other in others:
                memory.stop(other)
            await until(lambda: all(link.connected for mesh in meshes.values() for link in mesh.links.values()))
            nodes = Nodes(memory, brokers, meshes)
            stack.callback(nodes.abort)
            return nodes

        yield begin
