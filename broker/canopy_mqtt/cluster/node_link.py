"""The link to one other node: a link to an upstream broker, made of `[cluster]`, with the rules of nodes.

It asks for what this node's own clients want, and publishes nothing there: the other node's link to this one does that
for the other direction, and nothing is shared between the two. So it does not matter which of them connects first, nor
what becomes of the other. A link that is cut without a word is found within `link_timeout`, and then dialled again at
once, and at least twice in each `link_timeout`.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.cluster.greeting import Greeting, read
from canopy_mqtt.cluster.pieces import HELLO
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.files import check_files
from canopy_mqtt.links.link import UpstreamLink
from canopy_mqtt.links.parameters import show_certificate
from canopy_mqtt.links.protocol.uplink import ConnectTerms, Uplink
from canopy_mqtt.settings import Cluster, ClusterNode, Upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

ANSWER_PART: Final = 0.4
"""The part of `link_timeout` within which a PINGREQ has to be answered. It goes after three quarters of that time, and
it is looked at four times in it: so the silence of a link is found before `link_timeout` is over."""

TRY_PART: Final = 0.5
"""The part of `link_timeout` between two attempts at most, and for each step of an attempt."""

FIRST_TRY: Final = 0.05
"""Seconds until the first attempt after a connection has ended, at most."""

DISTRUST: Final = {
    "certificate is not trusted": "the authority of cluster.ca_file here has not issued it",
    "_ALERT_": "it does not accept the certificate of this node: "
    "the authority of its cluster.ca_file has not issued it, or it has expired",
}
"""What is in the reason why a TLS connection has failed, and what that says of two nodes."""

REMEDY: Final = "give all nodes certificates of one authority, and its certificate as cluster.ca_file"

SESSION_EXPIRY: Final = 86_400
"""Seconds for which another node keeps what this one misses."""


def upstream_of(cluster: Cluster, node: ClusterNode, wants_earlier: bool) -> Upstream:
    """Return the settings of the link to a node. `wants_earlier`: what waits there for an earlier run of this node.

    Without a store it is for clients that have no session any more.
    """
    pause = cluster.link_timeout * TRY_PART
    # Not validated: neither its name nor its address could be those of an upstream broker.
    return Upstream.model_construct(
        name=NODES + node.name,
        url=node.address,
        ca_file=cluster.ca_file,
        cert_file=cluster.cert_file,
        key_file=cluster.key_file,
        client_id=NODES + cluster.node,
        version="5.0",
        keep_alive=max(1, math.ceil(pause)),
        session_expiry=SESSION_EXPIRY,
        clean_start=not wants_earlier,
        unfolded=(),
        subscribe_qos=2,
        retry_min=min(FIRST_TRY, pause),
        retry_max=pause,
    )


class NodeLink(UpstreamLink):
    """The link to one node. `changed` is called when it may be up or down, `answered` when nothing may be to be waited
    for with these filters any more."""

    def __init__(
        self,
        server: Server,
        settings: Upstream,
        node: ClusterNode,
        own: Greeting,
        link_timeout: float,
        changed: Callable[[], None],
        answered: Callable[[list[str]], None],
    ) -> None:
        super().__init__(server, settings, server.router.broker_id, server.router.limits.hop_limit)
        self.declarer.answered = []
        self.subscriber.answered = answered
        self.node = node
        self.patience = link_timeout * TRY_PART
        self._own = own
        self._answer_within = link_timeout * ANSWER_PART
        self._changed = changed
        self._has_declared = False
        self.quiet = False
        """Its ups and downs are for the level debug: something else tells of them."""

    # -- the connection ------------------------------------------------------------------------------------------------

    def connect_terms(self) -> ConnectTerms:
        """Return the terms of the next CONNECT."""
        terms = super().connect_terms()
        # The other node has had the limits of its clients' messages, and adds to them.
        terms.max_packet_size = MAX_PACKET
        terms.identifies = False
        terms.answer_within = self._answer_within
        terms.node = self._own._replace(asks=not self.declarer.knows_held).text()
        terms.judge_node = self._judge
        return terms

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context: it trusts the cluster's authority, and `mistrusts` looks at the name."""
        if not self.node.endpoint.tls:
            return None
        settings = self.settings
        try:
            check_files(settings.ca_file, settings.cert_file, settings.key_file)
            context = ssl.create_default_context(cafile=settings.ca_file)
            context.check_hostname = False
            show_certificate(context, settings.cert_file, settings.key_file)
        except OSError as error:
            raise ValueError(f"cluster.ca_file, cert_file or key_file cannot be used: {error}") from error
        return context

    @property
    def place(self) -> str:
        """The address of the node."""
        return self.node.address

    async def reach(
        self, factory: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> asyncio.BaseTransport:
        """Make the network connection. Raises OSError, UnicodeError."""
        endpoint = self.node.endpoint
        if endpoint.path:
            transport, _ = await self.loop.create_unix_connection(factory, endpoint.path)
        else:
            # Before it is reached: strangers may keep it from that, as they would keep it out here.
            found = await self.loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            hosts = [str(address[0]) for *_, address in found]
            self.server.connection_table.at_door.know(f"to {self.name}", hosts)
            transport, _ = await self.loop.create_connection(factory, endpoint.host, endpoint.port, ssl=context)
        return transport

    def mistrusts(self, transport: asyncio.BaseTransport) -> str:
        """Return why the other end is not the node: its certificate, or the user of its process; empty: it may be."""
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            shown = common_name(tls.getpeercert() or {})
            return "" if shown == self.node.name else f'its certificate is that of "{shown}"'
        user = peer_user(transport.get_extra_info("socket"))
        return "" if user in (None, os.geteuid()) else f"it is a process of another user ({user})"

    def _judge(self, said: str) -> str:
        """Return why the node that has answered is not the right one; empty: it is."""
        greeting = read(said)
        refusal = self._own.refusal(greeting)
        if not refusal and greeting is not None and greeting.node != self.node.name:
            refusal = f'it is the node "{greeting.node}"'
        return refusal

    # -- what is told --------------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Called when the other node has let this one in: what it told before may be missing."""
        super().opened()
        self._has_declared = False
        if self.link_state.heard is not None:
            self.link_state.heard(HELLO, b"")

    def moved(self) -> None:
        """Called after a batch."""
        super().moved()
        if self.declarer.quiet and not self.declarer.settled:
            # The other node has told which filters of an earlier time it holds.
            self.subscriber.flush_soon()
        if not self._has_declared and self.connected and self.declarer.settled:
            # By a PINGREQ it hears that this was all (`NodeSession.has_declared`).
            assert self.connection is not None
            self._has_declared = True
            self.connection.uplink.ping(self.loop.time())

    def ended(self) -> None:
        """Called when the connection is over."""
        super().ended()
        self._changed()

    def _become(self, state: str) -> None:
        super()._become(state)
        self._changed()

    def tell_connected(self, uplink: Uplink) -> None:
        """Log that the link is up."""
        state = {"session_present": uplink.session_present, "filters": len(self.declarer.wanted)}
        if self.quiet:
            self.log.debug("link up", node=self.node.name, address=self.node.address, **state)
        else:
            self.log.info("link up", node=self.node.name, address=self.node.address, **state)

    def failed(self, why: str) -> None:
        """Note that there is no connection; with the remedy, where one of two certificates is the reason."""
        found = next((meaning for part, meaning in DISTRUST.items() if part in why), "")
        super().failed(f"{why}: {found}; {REMEDY}" if found else why)

    def tell_failed(self, why: str) -> None:
        """Log that the link is down."""
        if self.quiet:
            self.log.debug("link down", node=self.node.name, address=self.node.address, why=why)
        else:
            self.log.warning("link down", node=self.node.name, address=self.node.address, why=why)


def common_name(certificate: dict[str, Any]) -> str:
    """Return the common name of a certificate as `ssl` has it; empty: it has none."""
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


def peer_user(sock: Any) -> int | None:
    """Return the user of the process at the other end of a Unix socket; None: another socket, or it is not known."""
    option = getattr(socket, "SO_PEERCRED", None)
    if sock is None or option is None or sock.family != socket.AF_UNIX:
        return None
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, size))
    return int(user)
