"""Where a node listens for the other nodes, apart from the listeners of clients.

Connections that are not accepted yet, handshakes among them, have places of their own (`net.connections.admission`),
and count against no limit of clients: so no stranger who connects here takes a place, or a file descriptor, that a
client could have.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from canopy_mqtt.core.hooks import NodeDoor
from canopy_mqtt.net.listening.handshakes import Handshakes
from canopy_mqtt.net.listening.listeners import Listener
from canopy_mqtt.net.server import Server
from canopy_mqtt.settings import Cluster, Tls
from canopy_mqtt.settings import Listener as ListenerSettings

NAME: Final = "cluster"
"""The name of the listener, in the log."""

OWNER_ONLY: Final = "0600"
"""The mode of a Unix socket's file: only the broker's user can connect."""


def listener_settings(cluster: Cluster) -> ListenerSettings:
    """Return the settings of the listener."""
    endpoint = cluster.endpoint
    url = endpoint.url()
    if endpoint.path:
        return ListenerSettings(url=url, name=NAME, mode=OWNER_ONLY)
    if not endpoint.tls:
        return ListenerSettings(url=url, name=NAME)
    tls = Tls(
        certificate=cluster.cert_file,
        key=cluster.key_file,
        client_certificates="required",
        client_ca=cluster.ca_file,
        handshake_timeout=cluster.link_timeout,
    )
    return ListenerSettings(url=url, name=NAME, tls=tls)


class ClusterListener(Listener):
    """The listener for the other nodes."""

    def __init__(self, server: Server, cluster: Cluster, door: NodeDoor) -> None:
        super().__init__(server, listener_settings(cluster))
        self.terms.door = door
        self._renewing = asyncio.Lock()
        # Without a limit of their own: each has a place at the door.
        self.handshakes = Handshakes(0, server.loop)

    async def renew_file(self) -> None:
        """Listen anew if the file of its Unix socket is gone: somebody has removed it. Raises StartupError."""
        async with self._renewing:
            if not os.path.exists(self.endpoint.path):  # noqa: ASYNC240 (one call of the system)
                await super().close()
                await self.open()

    async def close(self) -> None:
        """Stop listening, and end the handshakes in progress."""
        await super().close()
        if self.handshakes is not None:
            self.handshakes.close()
