"""Nodes of a cluster in this process, with a bad network between each two of them.

Owns `Nodes`, which starts and stops brokers and clients, and `Wire`, the way of one node's link to another node: it can
go dark without a word, in one direction or both. What it holds back then comes when it is lit again, as TCP sends it
again after an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from canopy_load.brokers.process import free_port
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.cluster.cluster import Cluster
from canopy_mqtt.cluster.node_link import NodeLink
from canopy_mqtt.core.routing.nodes import NodeSession
from canopy_mqtt.settings import Settings
from tests.e2e import wire
from tests.e2e.faults import FaultProxy, ProxiedConnection
from tests.e2e.wire import Packet, Peer
from tests.support import postgresql
from tests.support.waiting import until

TIMEOUT: Final = 0.5
"""The `link_timeout` of the tests, in seconds."""

NOTHING: Final[dict[str, dict[str, Any]]] = {}


class Wire(FaultProxy):
    """The way from one node to another one."""

    def __init__(self, port: int) -> None:
        super().__init__(port, self._begin)
        self._up = self._down = False

    def darken(self, up: bool = True, down: bool = True) -> None:
        """Let nothing pass any more: `up`, to the other node, and `down`, from there. Nobody is told."""
        self._up, self._down = up, down
        for each in list(self.links):
            self._begin(each)

    def light(self) -> None:
        """Let everything pass again."""
        self._up = self._down = False
        for each in list(self.links):
            each.heal()

    def _begin(self, each: ProxiedConnection) -> None:
        if self._up:
            each.up.freeze()
        if self._down:
            each.down.freeze()


class Alone(Broker):
    """A node that does not wait for the others when it starts: they start later, on the same event loop."""

    async def meet_nodes(self, cluster: Cluster) -> None:
        pass


class Nodes:
    """The nodes of one test, by name, and all that it starts."""

    def __init__(self, stack: AsyncExitStack, folder: Path, **cluster: Any) -> None:
        self.stack = stack
        self.folder = folder
        self.brokers: dict[str, Broker] = {}
        self.wires: dict[tuple[str, str], Wire] = {}
        self._cluster = {"name": "plant", "link_timeout": TIMEOUT, **cluster}
        self._ports: dict[str, int] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self.prepare: Callable[[str, Broker], None] | None = None
        """Called with each broker before it is started."""

    async def start(
        self, *names: str, stores: str = "", own: Mapping[str, dict[str, Any]] = NOTHING, **sections: Any
    ) -> None:
        """Start nodes, and wait until each is linked with each other. `stores`: the names of those with a store;
        `own`: sections of single nodes."""
        for name in names:
            self._ports[name] = free_port()
        for name in names:
            for other in names:
                if other != name:
                    way = await self.stack.enter_async_context(Wire(self._ports[other]))
                    self.wires[name, other] = way
        for name in names:
            nodes = [
                {"name": other, "address": f"mqtt://127.0.0.1:{self.wires[name, other].port}"}
                for other in names
                if other != name
            ]
            settings: dict[str, Any] = {
                "listen": ("mqtt://127.0.0.1:0",),
                "sys": {"interval": 0},
                "shutdown": {"flush_timeout": 0.5},
                "federation": {"broker_id": f"id-{name}"},
                **sections,
                **own.get(name, {}),
                "cluster": {
                    **self._cluster,
                    "node": name,
                    "listen": f"mqtt://127.0.0.1:{self._ports[name]}",
                    "nodes": nodes,
                },
            }
            if name in stores:
                settings["store"] = {"path": str(self.folder / name), "commit_window": 0.0}
            self._settings[name] = settings
            await self.restart(name, Alone)
        await self.linked()

    async def start_shared(self) -> None:
        """Start two nodes with one database, `a` and `b`, that serve HTTP."""
        store = {"url": postgresql.shared().url, "name": postgresql.new_name(), "synchronous": "off"}
        await self.start("a", "b", store=store, http={"listen": ("http://127.0.0.1:0",)})

    async def restart(self, name: str, kind: type[Broker] = Broker, **sections: Any) -> Broker:
        """Start a node anew, with the settings that it had, and these."""
        broker = kind(Settings(**self._settings[name], **sections))
        self.stack.push_async_callback(broker.stop)
        if self.prepare is not None:
            self.prepare(name, broker)
        self.brokers[name] = broker
        await broker.start()
        return broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    def link(self, name: str, other: str) -> NodeLink:
        """The link by which a node gets what it wants from another one."""
        links = self.brokers[name].links
        assert links is not None
        found = links.links[f"$node/{other}"]
        assert isinstance(found, NodeLink)
        return found

    def session(self, name: str, other: str) -> NodeSession:
        """Where messages wait at a node for another one."""
        found = self.brokers[name].router.sessions[f"$node/{other}"]
        assert isinstance(found, NodeSession)
        return found

    async def linked(self) -> None:
        """Wait until each node that runs has a link to each other one, and has said what it wants."""
        for name in self.brokers:
            for other in self.brokers:
                if other != name:
                    link = self.link(name, other)
                    await until(partial(_is_up, link), f"{name} linked to {other}")

    def darken(self, name: str, other: str, up: bool = True, down: bool = True) -> None:
        """Cut two nodes off from each other: `up`, what `name` sends to `other`, and `down`, the reverse."""
        self.wires[name, other].darken(up, down)
        self.wires[other, name].darken(down, up)

    async def cut(self, name: str, other: str) -> None:
        """Cut two nodes off from each other, and wait until both know it."""
        self.darken(name, other)
        await until(lambda: not self.link(name, other).connected and not self.link(other, name).connected, "no link")

    def light(self) -> None:
        """Let everything pass again."""
        for each in self.wires.values():
            each.light()

    async def join(self, name: str, client_id: str, *filters: str | tuple[str, int], **options: Any) -> Peer:
        """A connected client of a node."""
        peer = await Peer.join(self.brokers[name].ports[0], client_id, *filters, **options)
        self.stack.callback(peer.abort)
        return peer


def _is_up(link: NodeLink) -> bool:
    return link.connected and link.declarer.settled


async def payloads(peer: Peer, last: bytes) -> list[bytes]:
    """The payloads of all messages up to the one with the payload `last`, with that one."""
    found: list[bytes] = []
    async with asyncio.timeout(wire.TIMEOUT):
        while not found or found[-1] != last:
            found.append((await peer.message()).payload)
    return found


async def messages(peer: Peer, last: bytes) -> list[Packet]:
    """The messages before the one with the payload `last`."""
    found: list[Packet] = []
    async with asyncio.timeout(wire.TIMEOUT):
        while (message := await peer.message()).payload != last:
            found.append(message)
    return found
