"""The places of connections at the listener for other nodes that are not accepted yet, TLS handshakes among them.

Owns the choice which connection gives way to a new one. Strangers have few places together, and those of one address
fewer; the addresses of nodes have places of their own, which no stranger can take. Nodes send their CONNECT at once, so
that the oldest connection of those that compete is the one to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.principal import network

if TYPE_CHECKING:
    from canopy_mqtt.net.connections.connection import Connection

MAX_STRANGERS: Final = 32
"""Connections from addresses that are no node's: silent strangers take no more file descriptors than these."""

MAX_OF_STRANGER: Final = 4
"""Of these, connections from one address (IPv6: /64), so that one address does not have all places."""

MAX_OF_NODE: Final = 32
"""Connections from one address of a node: several nodes may have one, and other programs there."""


class DoorPlaces:
    """The connections that have a place. A connection gives it back when it is accepted, or its socket is closed."""

    def __init__(self) -> None:
        # The addresses of each node, by where they are known from.
        self._known: dict[str, frozenset[str]] = {}
        self._address: dict[Connection, str] = {}
        # The oldest first: those of each address, and those of strangers.
        self._of_address: dict[str, dict[Connection, None]] = {}
        self._strangers: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._address)

    def know(self, source: str, hosts: Iterable[str]) -> None:
        """Set the IP addresses of a node, in place of those from the same source."""
        self._known[source] = frozenset(network(host) for host in hosts if host)

    def take(self, connection: Connection, host: str) -> Connection | None:
        """Give a place to a connection from an IP address ("": a Unix socket, which is the user's own).

        Return the connection that has lost its place for it; None: there was room.
        """
        address = network(host) if host else ""
        of_node = not address or any(address in each for each in self._known.values())
        own = self._of_address.get(address, {})
        giving: Connection | None = None
        if len(own) >= (MAX_OF_NODE if of_node else MAX_OF_STRANGER):
            giving = next(iter(own))
        elif not of_node and len(self._strangers) >= MAX_STRANGERS:
            giving = next(iter(self._strangers))
        if giving is not None:
            self.leave(giving)
        self._address[connection] = address
        self._of_address.setdefault(address, {})[connection] = None
        if not of_node:
            self._strangers[connection] = None
        return giving

    def leave(self, connection: Connection) -> None:
        """Take the place back, if the connection has one."""
        address = self._address.pop(connection, None)
        if address is None:
            return
        own = self._of_address[address]
        del own[connection]
        if not own:
            del self._of_address[address]
        self._strangers.pop(connection, None)
