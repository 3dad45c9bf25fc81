"""A bad network between a client and a broker: the proxy of `canopy_mqtt.testing`, in the loop of the test.

Its links pass everything until a test freezes them, or cuts them. `tests/testing` tests what the proxy does.

    async with FaultProxy(broker.ports[0]) as proxy:
        peer = await Peer.open("127.0.0.1", proxy.port)
        (await proxy.link(0)).down.freeze()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.testing.proxy import ProxiedConnection, Proxy

__all__ = ["FaultProxy", "ProxiedConnection"]

PATIENCE: Final = 15.0
"""Seconds that a test waits for a connection."""


class FaultProxy(Proxy):
    """A listener on a free port of 127.0.0.1 whose connections go on to `port` there.

    `greet` is called with each new link before anything passes. `came`: all links there were, in their order.
    """

    def __init__(self, port: int, greet: Callable[[ProxiedConnection], None] | None = None) -> None:
        super().__init__(asyncio.get_running_loop(), lambda: None)
        self.came: list[ProxiedConnection] = []
        self._to = port
        self._greet = greet
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.open(self._to, MAX_PACKET)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        self.abort()

    def accepted(self, link: ProxiedConnection) -> None:
        super().accepted(link)
        if self._greet is not None:
            self._greet(link)
        self.came.append(link)
        self._news.set()

    async def link(self, number: int) -> ProxiedConnection:
        """The connection with this number, counted from 0 in the order in which they came; waits until it is there."""
        async with asyncio.timeout(PATIENCE):
            while len(self.came) <= number:
                self._news.clear()
                await self._news.wait()
        return self.came[number]

    def cut(self) -> None:
        """Reset every connection there is, both sides, all at once."""
        for link in list(self.links):
            link.cut()
