"""Brokers of one mesh in this process, and their clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from broker.app import Broker
from broker.mesh.mesh import Mesh
from broker.net.server import Server
from broker.settings import Mesh as MeshSettings
from broker.store.groups.principals import RuleTexts
from tests.e2e.wire import Peer
from tests.support.memory_bus import MemoryMesh


def joining(memory: MemoryMesh) -> Callable[..., Awaitable[Mesh]]:
    """What stands for `broker.mesh.joining.join`: a broker becomes a node on this bus, and meets nobody before."""

    async def join(server: Server, settings: MeshSettings, rules: RuleTexts, failed: object) -> Mesh:
        del failed
        return Mesh(server, settings, memory[settings.node], rules)

    return join


class Nodes:
    """Some brokers, and what lies between them."""

    def __init__(self, mesh: MemoryMesh, brokers: dict[str, Broker], meshes: dict[str, Mesh]) -> None:
        self.mesh = mesh
        self.brokers = brokers
        self.meshes = meshes
        self.peers: list[Peer] = []

    def abort(self) -> None:
        """All clients go."""
        for peer in self.peers:
            peer.abort()

    async def join(self, node: str, client_id: str, *filters: str | tuple[str, int], **options: Any) -> Peer:
        """A client of a node."""
        self.peers.append(await Peer.join(self.brokers[node].ports[0], client_id, *filters, **options))
        return self.peers[-1]


Start = Callable[..., Awaitable[Nodes]]
