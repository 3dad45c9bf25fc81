"""The settings of a connection that come from its listener."""

from __future__ import annotations

from broker.core.hooks import Origin
from broker.net.connections.admission import ListenerAdmission


class ListenerTerms:
    """`admission` are limits of that listener's own, if any; `tls` says whether a connection began with a handshake.

    `max_packet_size` and `mount` are those of `Origin`.
    """

    def __init__(
        self, name: str, tls: bool, max_packet_size: int, mount: str, admission: ListenerAdmission | None
    ) -> None:
        self.name = name
        self.tls = tls
        self.max_packet_size = max_packet_size
        self.mount = mount
        self.admission = admission

    def origin(self, address: str, host: str) -> Origin:
        """Where a connection comes from; `address` for people, `host` its IP address ("": none)."""
        origin = Origin(address, host, self.name)
        origin.max_packet_size = self.max_packet_size
        origin.mount = self.mount
        return origin
