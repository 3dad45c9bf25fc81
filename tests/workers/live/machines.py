"""Two machines with workers, which are one broker: each is a supervisor, and both run here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

from tests.e2e import wire
from tests.e2e.wire import Packet, Peer
from tests.support.daemon import Daemon
from tests.support.ports import free_ports
from tests.workers.live.test_serving import LONG, is_there, pids

WORKERS: Final = 2
NODES: Final = {"a": ("a", "a-w1"), "b": ("b", "b-w1")}
"""The nodes that each machine is."""

KEPT: Final = [(wire.SESSION_EXPIRY, 3_600)]

OWN_NAME: Final = "$SYS/broker/mesh/node"


class Machines:
    """Both of them, started. A context: whatever happens, they are gone afterwards."""

    def __init__(self, *flags: str, store: Callable[[str], Sequence[str]] = lambda _: (), scheme: str = "tcp") -> None:
        """`store`: flags for the store of a machine."""
        self._flags = flags
        self._store = store
        self.places = {name: f"{scheme}/127.0.0.1:{free_ports(WORKERS)}" for name in NODES}
        self.running: dict[str, Daemon] = {}
        self._peers: list[Peer] = []
        with ThreadPoolExecutor() as pool:
            try:
                for name, daemon in zip(NODES, pool.map(self._made, NODES), strict=True):
                    self.running[name] = daemon
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()
        self.close()

    def let_go(self) -> None:
        """Cut the connections of all clients."""
        for peer in self._peers:
            peer.abort()
        self._peers.clear()

    def close(self) -> None:
        for daemon in self.running.values():
            daemon.close()

    async def start(self, name: str, workers: int = WORKERS) -> None:
        """Start a machine that has ended."""
        self.running[name] = await asyncio.to_thread(self._made, name, workers)

    async def stop(self, name: str) -> None:
        """Have a machine end in order."""
        code, _ = await asyncio.to_thread(self.running[name].end)
        assert code == 0

    def _made(self, name: str, workers: int = WORKERS) -> Daemon:
        (other,) = NODES.keys() - {name}
        sets = [
            'mesh.name="site"',
            f'mesh.node="{name}"',
            f'mesh.listen=["{self.places[name]}"]',
            f'mesh.connect=["{self.places[other]}"]',
            'http.listen=["http://127.0.0.1:0"]',
            # The node's name is told there.
            "sys.interval=0.2",
        ]
        flags = [each for one in sets for each in ("--set", one)]
        return Daemon("--workers", str(workers), *flags, *self._store(name), *self._flags, patience=2 * LONG)

    async def anywhere(self, name: str, client_id: str = "", *filters: tuple[str, int], **options: Any) -> Peer:
        """A client that is connected to a worker of this machine."""
        peer = await Peer.join(self.running[name].port, client_id, *filters, **options)
        self._peers.append(peer)
        return peer

    async def join(self, node: str, client_id: str = "", *filters: tuple[str, int], **options: Any) -> Peer:
        """A client that is connected to this worker: which one it comes to is chance."""
        while True:
            peer = await self.anywhere(node[0], client_id, (OWN_NAME, 0), **options)
            waited: list[Packet] = []
            while (found := await peer.recv()).topic != OWN_NAME:
                waited.append(found)
            if found.payload == node.encode():
                break
            # Whoever comes next takes its session over, with what is not acknowledged.
            peer.abort()
        peer.put_back(waited)
        await peer.unsubscribe(OWN_NAME)
        if filters:
            await peer.subscribe(*filters)
        return peer

    async def kill(self, name: str) -> None:
        """Kill all processes of a machine at once, as a power cut does."""
        daemon = self.running[name]
        for pid in (*pids(daemon).values(), daemon.process.pid):
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(daemon.close)
        while any(map(is_there, pids(daemon).values())):  # noqa: ASYNC110 (they are no children of this process)
            await asyncio.sleep(0.01)
