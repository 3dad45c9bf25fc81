"""One connection to another node, without the pipe: this node is the client, and publishes.

Owns what is said to the node but for messages: those are its session's. The node's ServerProtocol is at the other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.causes import CONNECTION_LOST, MAX_TEXT
from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import encode
from broker.core.codec.errors import ProtocolError, ProtocolViolation
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import PUBREL, V5, Ack, Connack, Connect, Disconnect, Packet, Pingresp
from broker.core.codec.properties import MAXIMUM_PACKET_SIZE, MAXIMUM_QOS, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.core.queues.outbox import Outbox
from broker.core.routing.peers import PeerConnected, PeerDisconnected
from broker.core.routing.router import Router
from broker.mesh.links.session import NodeSession
from broker.upstream.protocol.client import CLOSED, CONNECTED, CONNECTING, ClientProtocol

if TYPE_CHECKING:
    from mypy_extensions import i64

TURN: Final = 4_096
"""Packets that are acted on before others have their turn."""


class NodeProtocol(ClientProtocol):
    """The protocol state of one connection to a node. `expiry`: seconds that the node keeps what it knows of us."""

    def __init__(self, router: Router, session: NodeSession, outbox: Outbox, client_id: str, expiry: int) -> None:
        super().__init__(router, outbox, Decoder(LARGEST_PACKET, False, V5))
        self.close_text = ""
        self._session = session
        self._client_id = client_id
        self._expiry = expiry
        self._clean_start = False
        outbox.v5 = True

    def hello(self, clean_start: bool) -> bytes:
        """The CONNECT. The node knows by the pipe who it is from."""
        self._clean_start = clean_start
        packet = Connect(self._client_id, V5, clean_start, 0, None, None, None)
        packet.properties.integers[SESSION_EXPIRY_INTERVAL] = self._expiry
        return encode(packet, V5)

    def run(self, now: float) -> None:
        """Act on the packets that are there, or on as many as one turn allows (`unfinished`)."""
        decoder = self.decoder
        done: i64 = 0
        self.unfinished = False
        while self.state != CLOSED:
            if done >= TURN:
                self.unfinished = decoder.end < len(decoder.buffer)
                if self.unfinished:
                    return
            if not decoder.next_frame():
                return
            done += 1
            self.router.counters.packets_received += 1
            kind: i64 = decoder.header >> 4
            if self.state == CONNECTED and 4 <= kind <= 7 and decoder.short_ack() > 0:
                self._acknowledged(kind, decoder.short_ack(), 0, now)
            else:
                self._packet(decoder.packet(), now)

    def fail(self, error: ProtocolError) -> None:
        """The node broke the protocol: say so where that is possible, and end the connection."""
        if self.state == CONNECTED:
            self.final_packet = encode(Disconnect(error.reason_code), V5)
        self._end(f"the node broke the protocol: {error}"[:MAX_TEXT])

    def _packet(self, packet: Packet, now: float) -> None:
        if self.state == CONNECTING:
            if not isinstance(packet, Connack):
                raise ProtocolViolation("the first packet is not CONNACK")  # [MQTT-3.2.0-1]
            self._on_connack(packet, now)
        elif isinstance(packet, Ack):
            self._acknowledged(packet.kind, packet.packet_id, packet.reason_code, now)
        elif isinstance(packet, Pingresp):
            self.ping_sent = 0.0
        elif isinstance(packet, Disconnect):
            self._end(f"the node ended the connection: {reasons.name(packet.reason_code)}")
        else:
            raise ProtocolViolation("a packet that does not belong here")

    def _on_connack(self, packet: Connack, now: float) -> None:
        if packet.reason_code != 0:
            self._end(f"the node refused the connection: {reasons.name(packet.reason_code)}")
            return
        if packet.session_present and self._clean_start:
            raise ProtocolViolation("a session is present after a clean start")  # [MQTT-3.2.2-2]
        integers = packet.properties.integers
        if integers.get(MAXIMUM_QOS, 2) < 2:
            self._end("the node takes no messages of QoS 2: nodes of a mesh have the same mqtt.max_qos")
            return
        session, outbox, router = self._session, self.outbox, self.router
        self.accepted = True
        self.state = CONNECTED
        outbox.max_packet = integers.get(MAXIMUM_PACKET_SIZE, LARGEST_PACKET)  # [MQTT-3.2.2-15]
        if not packet.session_present:
            # It is another process: what it had acknowledged with PUBREC is its own since, or lost with it.
            session.begin_anew()
        session.attach(V5, integers.get(RECEIVE_MAXIMUM, 65_535), True)  # [MQTT-3.3.4-7]
        router.fanout.post(PeerConnected(session, outbox))
        router.fanout.drain(router, now)
        session.resume(now)

    def _acknowledged(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        if kind == PUBREL:
            raise ProtocolViolation("PUBREL from a node that was published nothing by us to release")
        self._session.on_ack(kind, packet_id, reason_code, now)

    def refill(self, now: float) -> bool:
        """After the writer took a batch: queue what waited for room. True when it should take another."""
        self.router.counters.load.now = now
        more = self.state == CONNECTED and self._session.backlog and self._session.pump(now)
        return more or not self.outbox.empty

    def close(self, reason_code: int, text: str, forget: bool, now: float) -> None:
        """End the connection from this side, with a DISCONNECT. `forget`: the node need not keep our session."""
        if self.state == CLOSED:
            return
        if self.state == CONNECTED:
            packet = Disconnect(reason_code)
            if forget:
                packet.properties.integers[SESSION_EXPIRY_INTERVAL] = 0
            self.final_packet = encode(packet, V5)
        self._end(text)
        self.router.fanout.drain(self.router, now)

    def lost(self, text: str, now: float, closed: bool = False) -> None:
        """The pipe is gone, or given up."""
        del closed
        self._end(text)
        self.router.fanout.drain(self.router, now)

    def take_over(self, now: float) -> None:
        """Nobody else can have this client identifier; but the shell may end it."""
        self.close(reasons.SUCCESS, "replaced", False, now)

    def overflow(self, now: float) -> None:
        """No policy of a node's session ends it."""

    def _end(self, text: str) -> None:
        if self.state == CLOSED:
            return
        was_connected = self.state == CONNECTED
        self.state = CLOSED
        self.close_text = text
        if was_connected:
            self.router.fanout.post(PeerDisconnected(self._session, self.outbox, CONNECTION_LOST))
        else:
            self.outbox.close()
        self.outbox.report_end()
