"""The HTTP server of a worker: that of a broker, but for where connections and answers come from.

The supervisor passes connections on (`http_door`); answers are those of all workers (`one_broker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from canopy_mqtt.admin.events import EventFeed
from canopy_mqtt.admin.host import Host
from canopy_mqtt.admin.routing import Call, Handled, Route
from canopy_mqtt.admin.server import AdminServer
from canopy_mqtt.settings import Endpoint, Http
from canopy_mqtt.workers import inquiries
from canopy_mqtt.workers.asking import Siblings
from canopy_mqtt.workers.feed import CrewFeed
from canopy_mqtt.workers.one_broker import OneBroker
from canopy_mqtt.workers.ways import WAYS


class WorkerAdminServer(AdminServer):
    """The HTTP server of one worker."""

    def __init__(self, broker: Host, settings: Http, siblings: Siblings) -> None:
        self._siblings = siblings
        super().__init__(broker, settings)
        self._one_broker = OneBroker(broker, siblings, WAYS | inquiries.WAYS)
        inquiries.answer_about(broker, siblings)
        # By the number of the address.
        self._factories: list[Callable[[], asyncio.Protocol]] = []

    def make_feed(self, broker: Host, max_streams: int) -> EventFeed:
        return CrewFeed(broker, max_streams, self._siblings)

    async def handle(self, route: Route, call: Call) -> Handled:
        return await self._one_broker.handle(route, call)

    async def listen(self, endpoint: Endpoint, factory: Callable[[], asyncio.Protocol]) -> None:
        """Do not listen: the supervisor does."""
        del endpoint
        self._factories.append(factory)

    async def take(self, address: int, sock: socket.socket) -> None:
        """Serve a connection that the supervisor has accepted."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._factories[address], sock)
        except OSError:
            # Its client has gone.
            with contextlib.suppress(OSError):
                sock.close()
