"""Nodes of a mesh on Zenoh, in this process or as a process of their own.

`python -m tests.mesh.zenoh.nodes SETTINGS` (JSON) is a node that sends back each message that it gets, and writes a
line for whatever its room hears but messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from broker.mesh.bus import INTEREST, Room
from broker.mesh.zenoh.bus import ZenohBus
from broker.mesh.zenoh.session import MeshError
from broker.net.log import Faults
from broker.settings.brokers.mesh import Mesh
from tests.support.waiting import until

QUICK: Final = 0.6
"""A `node_timeout` for tests in which somebody falls silent."""


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def _line(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = warning = error = debug = _line

    def named(self, event: str) -> list[dict[str, Any]]:
        """The fields of all lines of an event."""
        return [fields for name, fields in self.lines if name == event]


class Node(Room):
    """A bus, and a room on it that writes down what it hears."""

    def __init__(self, name: str, versions: tuple[int, int] | None = None, mesh: str = "test", **settings: Any) -> None:
        self.name = name
        self.events: list[str] = []
        self.messages: list[bytes] = []
        self.log = Lines()
        self.failed: list[str] = []
        self.answer: Callable[[str, bytes], None] | None = None
        made = Mesh(name=mesh, node=name, **settings)
        faults = Faults(lambda: self.log)
        if versions is None:
            self.bus = ZenohBus(made, self.log, faults, self.failed.append)
        else:
            self.bus = ZenohBus(made, self.log, faults, self.failed.append, versions)
        self.bus.attach(INTEREST, self)

    def joined(self, node: str) -> None:
        self.events.append(f"+{node}")

    def left(self, node: str) -> None:
        self.events.append(f"-{node}")

    def received(self, node: str, data: bytes) -> None:
        self.messages.append(data)
        if self.answer is not None:
            self.answer(node, data)

    def send(self, node: str, data: bytes) -> None:
        """Send to the room of another node."""
        self.bus.send(node, INTEREST, data)

    async def sees(self, *nodes: str) -> None:
        """Wait until exactly these are there."""
        await until(lambda: sorted(self.bus.nodes()) == sorted(nodes), f"{self.name} sees {nodes}: {self.events}")

    async def hears(self, count: int) -> None:
        """Wait for so many messages in all."""
        await until(lambda: len(self.messages) >= count, f"{self.name} hears {count} messages")


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    """All of them, started; stopped at the end, the last one first."""
    started: list[Node] = []
    try:
        for node in nodes:
            await node.bus.start()
            started.append(node)
        yield
    finally:
        for node in reversed(started):
            await node.bus.stop()


@asynccontextmanager
async def together(*nodes: Node) -> AsyncIterator[None]:
    """The same, when each sees all others."""
    async with running(*nodes):
        for node in nodes:
            await node.sees(*(other.name for other in nodes if other is not node))
        yield


async def _main(settings: dict[str, Any]) -> None:
    node = Node(settings.pop("node"), **settings)
    node.answer = node.send
    try:
        await node.bus.start()
    except MeshError as error:
        sys.exit(f"refused: {error}")
    while True:
        while node.events:
            print(node.events.pop(0), flush=True)
        if node.failed:
            sys.exit(node.failed[0])
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
