"""One connection to a scripted server, and the session that it belongs to.

Owns: bytes to packets and back, topic aliases, and the order in which packets are looked at (not at all while the
server is stalled). What the packets mean is the server's business (`scripted`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from canopy_mqtt.core.codec import packets, properties
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import (
    Ack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from tests.loadtest.account import Message, Written
from tests.loadtest.script import Script

MAX_PACKET = 268_435_460


@dataclass
class Session:
    client_id: str
    version: int
    subscriptions: dict[str, SubscriptionRequest] = field(default_factory=dict)
    peer: Peer | None = None
    connection: int = 0
    keeps: bool = False
    receive_maximum: int = 65_535
    deliveries: int = 0
    in_flight: dict[int, tuple[Publish, Written]] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    """By packet identifier, copies that will be acknowledged as well."""
    released: set[int] = field(default_factory=set)
    waiting: list[tuple[Publish, Written, str]] = field(default_factory=list)
    held: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    next_id: int = 0
    incoming: set[int] = field(default_factory=set)
    """Packet identifiers of the client's own QoS 1 and 2 messages that have not been acknowledged to the end."""
    unreleased: set[int] = field(default_factory=set)


class Server(Protocol):
    """The server that decides what the packets of its peers mean."""

    script: Script
    stalled: bool
    peers: set[Peer]
    arrivals: dict[str, int]
    attempts: dict[str, int]
    disconnected: list[str]
    violations: list[str]

    def begin_stall(self, seconds: float) -> None: ...
    def gone(self, peer: Peer) -> None: ...
    def connect(self, peer: Peer, packet: Connect) -> None: ...
    def publish(self, peer: Peer, session: Session, packet: Publish) -> None: ...
    def acknowledged(self, peer: Peer, session: Session, packet: Ack) -> None: ...
    def subscribe(self, peer: Peer, session: Session, packet: Subscribe) -> None: ...
    def unsubscribe(self, peer: Peer, session: Session, packet: Unsubscribe) -> None: ...


class Peer(asyncio.Protocol):
    """One connection to the scripted server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.decoder = Decoder(MAX_PACKET)
        self.session: Session | None = None
        self.will: packets.Will | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._aliases: dict[int, bytes] = {}
        self._pending: Packet | None = None

    @property
    def version(self) -> int:
        return self.decoder.version

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.peers.add(self)
        if self.server.stalled:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.server.gone(self)
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.decoder.feed(data)
        self.work()

    def send(self, packet: Packet) -> None:
        """Write a packet, unless the connection is on its way out."""
        if not self.transport.is_closing():
            self.transport.write(encode(packet, self.version))

    def work(self) -> None:
        """Look at what came in, as far as it goes."""
        try:
            while not self.server.stalled and not self.transport.is_closing():
                packet, self._pending = self._pending, None
                if packet is None:
                    if not self.decoder.next_frame():
                        return
                    packet = self.decoder.packet()
                    if self._stalls(packet):
                        self._pending = packet
                        return
                self._act(packet)
        except ProtocolError as error:
            self._complain(str(error))

    def _complain(self, text: str) -> None:
        self.server.violations.append(f"{self.session.client_id if self.session else 'stranger'}: {text}")
        self.transport.abort()

    def _stalls(self, packet: Packet) -> bool:
        if not isinstance(packet, Publish) or self.session is None:
            return False
        name = self.session.client_id
        number = self.server.arrivals.get(name, -1) + 1
        seconds = self.server.script.stall(
            Message(name, packet.topic.decode(), packet.payload, number, packet.qos, packet.retain)
        )
        if seconds:
            self.server.begin_stall(seconds)
        return bool(seconds)

    def _act(self, packet: Packet) -> None:
        server, session = self.server, self.session
        if isinstance(packet, Connect):
            if session is not None:
                self._complain("a second CONNECT")
                return
            if not server.script.hangs_up(packet.client_id, server.attempts.get(packet.client_id, -1) + 1, packet):
                server.connect(self, packet)
                return
            self.transport.close()
            return
        if session is None:
            self._complain(f"a {packets.NAMES[packet.kind]} without a session")
            return
        if server.script.hangs_up(session.client_id, session.connection, packet):
            self.transport.close()
        elif isinstance(packet, Publish):
            if self._resolve(packet):
                server.publish(self, session, packet)
        elif isinstance(packet, Ack):
            server.acknowledged(self, session, packet)
        elif isinstance(packet, Subscribe):
            server.subscribe(self, session, packet)
        elif isinstance(packet, Unsubscribe):
            server.unsubscribe(self, session, packet)
        elif isinstance(packet, Pingreq):
            self.send(Pingresp())
        elif isinstance(packet, Disconnect):
            self._leave(session, packet)

    def _leave(self, session: Session, packet: Disconnect) -> None:
        self.server.disconnected.append(session.client_id)
        if packet.reason_code == 0:
            self.will = None
        expiry = packet.properties.integers.get(properties.SESSION_EXPIRY_INTERVAL)
        if expiry is not None:
            session.keeps = expiry > 0
        self.transport.close()

    def _resolve(self, packet: Publish) -> bool:
        """Put the topic for its alias; whether there is one."""
        alias = packet.topic_alias
        if not alias:
            return True
        if alias > self.server.script.connack_properties.get(properties.TOPIC_ALIAS_MAXIMUM, 0):
            self._complain(f"topic alias {alias} is too large")
            return False
        if packet.topic:
            self._aliases[alias] = packet.topic
        elif alias not in self._aliases:
            self._complain(f"topic alias {alias} is unknown")
            return False
        packet.topic = self._aliases[alias]
        return True
