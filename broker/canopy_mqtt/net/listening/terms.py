"""The settings of a connection that come from its listener."""

from __future__ import annotations

from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.net.connections.admission import Admission


class ListenerTerms:
    """`admission` are limits of that listener's own, if any; `tls` says whether a connection began with a handshake.

    `max_packet_size`, `mount` and `max_delay` are those of `Origin`.
    """

    def __init__(
        self,
        name: str,
        tls: bool,
        max_packet_size: int,
        mount: str,
        admission: Admission | None,
        max_delay: float = -1.0,
    ) -> None:
        self.name = name
        self.tls = tls
        self.max_packet_size = max_packet_size
        self.mount = mount
        self.admission = admission
        self.max_delay = max_delay

    def origin(self) -> Origin:
        """Make the origin of a connection, whose address is not known yet."""
        origin = Origin(listener=self.name)
        origin.max_packet_size = self.max_packet_size
        origin.mount = self.mount
        origin.max_delay = self.max_delay
        return origin
