"""This broker as a node of a cluster: its links to the other nodes, and its listener for theirs.

Times of retained messages are compared by the clocks of the nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from canopy_mqtt.cluster.door import Door
from canopy_mqtt.cluster.greeting import Greeting
from canopy_mqtt.cluster.listener import ClusterListener
from canopy_mqtt.cluster.node_links import NodeLinks
from canopy_mqtt.cluster.pieces import decode
from canopy_mqtt.cluster.telling import Telling
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.store.shared.calls import Piece

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server


CLOCK_STEP: Final = 1.0
"""Seconds between two looks at the wall clock, by which retained messages have their times."""


class Cluster:
    """The part of a node that the cluster adds. Made and started on the event loop."""

    def __init__(self, server: Server, make_links: type[NodeLinks] = NodeLinks, store: str = "") -> None:
        """`store`: the identity of the store that the nodes share."""
        settings = server.settings.cluster
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_clock()
        own = Greeting(settings.name, settings.node, store=store)
        self.links = make_links(server, settings, own)
        if not store:
            server.router.retained_store.nodes = tuple(NODES + name for name in self.links.nodes)
        self.listener = ClusterListener(server, settings, Door(server, own, list(self.links.nodes)))
        self.telling = Telling(server, self.links)
        self.opened: Callable[[], Awaitable[None]] | None = None
        """Awaited once the other nodes can come in, before the links connect."""

    def hear(self, told: Callable[[Piece], None]) -> None:
        """Have `told` called with what other nodes tell this one. Call it before the links are prepared."""
        self.links.heard = lambda topic, payload: told(decode(topic, payload))

    async def start(self) -> None:
        """Let the other nodes in. Raises StartupError."""
        await self.listener.open()
        if self.opened is not None:
            await self.opened()

    async def stop(self) -> None:
        """Let no other node in any more. The links end later, when the clients have gone (`LinkManager.stop`)."""
        if self._timer is not None:
            self._timer.cancel()
        self.telling.close()
        await self.listener.close()

    def _look_at_clock(self) -> None:
        """Tell the core the time, again and again: clocks are set, and that of a suspended machine stands still."""
        loop = self._server.loop
        self._server.router.counters.load.epoch = time.time() - loop.time()
        self._timer = loop.call_later(CLOCK_STEP, self._look_at_clock)
