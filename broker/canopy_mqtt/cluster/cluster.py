"""This broker as a node of a cluster: its links to the other nodes, and its listener for theirs.

Times of retained messages are compared by the clocks of the nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from canopy_mqtt.cluster.comparing import TOPIC, Comparing
from canopy_mqtt.cluster.door import Door
from canopy_mqtt.cluster.greeting import OWN, Greeting
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

    def __init__(
        self,
        server: Server,
        make_links: type[NodeLinks] = NodeLinks,
        store: str = "",
        files: Callable[[], Iterable[Path]] | None = None,
    ) -> None:
        """`store`: the identity of the store that the nodes share; `files`: returns the files with users and rules,
        None: these and the settings are not compared with those of the others."""
        settings = server.settings.cluster
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_clock()
        own = Greeting(settings.name, settings.node, store=store)
        self.links = make_links(server, settings, own)
        if not store:
            server.router.retained_store.nodes = tuple(NODES + name for name in self.links.nodes)
        door = Door(server, own, list(self.links.nodes))
        self.listener = ClusterListener(server, settings, door)
        self.telling = Telling(server, self.links, door.spoken)
        self._told: Callable[[Piece], None] | None = None
        self.comparing: Comparing | None = None
        if files is not None:
            say = partial(self.telling.say, OWN)
            self.comparing = Comparing(lambda: server.settings, files, say, server.faults.broke)
            self.links.differs = self.comparing.differs
            self.links.heard = self._heard
        self.opened: Callable[[], Awaitable[None]] | None = None
        """Awaited once the other nodes can come in, before the links connect."""

    def hear(self, told: Callable[[Piece], None]) -> None:
        """Have `told` called with what other nodes tell this one. Call it before the links are prepared."""
        self._told = told
        self.links.heard = self._heard

    def _heard(self, node: str, topic: bytes, payload: bytes) -> None:
        """Another node has said something to this one."""
        if topic == TOPIC:
            if self.comparing is not None:
                self.comparing.heard(node, payload)
        elif self._told is not None:
            self._told(decode(topic, payload))

    async def start(self) -> None:
        """Let the other nodes in. Raises StartupError."""
        await self.listener.open()
        if self.comparing is not None:
            self.comparing.start()
        if self.opened is not None:
            await self.opened()

    async def stop(self) -> None:
        """Let no other node in any more. The links end later, when the clients have gone (`LinkManager.stop`)."""
        if self._timer is not None:
            self._timer.cancel()
        if self.comparing is not None:
            self.comparing.stop()
        self.telling.close()
        await self.listener.close()

    def _look_at_clock(self) -> None:
        """Tell the core the time, again and again: clocks are set, and that of a suspended machine stands still."""
        loop = self._server.loop
        self._server.router.counters.totals.epoch = time.time() - loop.time()
        self._timer = loop.call_later(CLOCK_STEP, self._look_at_clock)
