"""One connection to another node, without the pipe: this node is the client, and publishes.

Owns what is said to the node but for messages: those are its session's. The node's ServerProtocol is at the other end.
Promises, with a store: the PUBREL of a message that is kept leaves when the store knows that the node has the message,
so that a process which begins from the store does not publish again what the node has released [MQTT-4.3.3-6].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import encode
from broker.core.codec.errors import ProtocolViolation
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import PUBREL, V5, Connack, Connect
from broker.core.codec.properties import MAXIMUM_PACKET_SIZE, MAXIMUM_QOS, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.windows.held_answers import HeldAnswers
from broker.core.routing.router import Router
from broker.mesh.links.session import NodeSession
from broker.upstream.protocol.client import CLOSED, CONNECTED, ClientProtocol

if TYPE_CHECKING:
    from mypy_extensions import i64

TURN: Final = 4_096
"""Packets that are acted on before others have their turn."""


class NodeProtocol(ClientProtocol):
    """The protocol state of one connection to a node. `expiry`: seconds that the node keeps what it knows of us."""

    def __init__(self, router: Router, session: NodeSession, outbox: Outbox, client_id: str, expiry: int) -> None:
        super().__init__(router, session, outbox, Decoder(LARGEST_PACKET, False, V5), V5, "the node")
        self.on_acknowledged: Callable[[], None] | None = None
        """Called after each acknowledgement, while somebody waits for one."""
        self._session = session
        self._client_id = client_id
        self._expiry = expiry
        self._clean_start = False
        outbox.v5 = True
        self._held: HeldAnswers | None = None
        if router.commits is not None:
            self._held = outbox.held = HeldAnswers(outbox, router.commits)

    def ended(self, was_connected: bool) -> None:
        """As in `ClientProtocol`."""
        del was_connected
        if self._held is not None:
            self.outbox.held = None
            self._held.drop()
            self._held = None

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
                more: i64 = self._take_acks(kind, now) - 1
                done += more
                self.router.counters.packets_received += more
            else:
                self.act(decoder.packet(), now)

    def _take_acks(self, kind: i64, now: float) -> i64:
        """Take an acknowledgement of four bytes, and those of its kind that stand side by side with it: how many."""
        decoder = self.decoder
        start: i64 = decoder.start
        stop: i64 = start if kind == PUBREL else self._session.on_acks(kind, decoder.buffer, start, now)
        if stop == start:
            self.acknowledged(kind, decoder.short_ack(), 0, now)
            return 1
        decoder.end = stop
        if self.on_acknowledged is not None:
            self.on_acknowledged()
        return (stop - start) // 4

    def on_connack(self, packet: Connack, now: float) -> None:
        """The node has accepted us, or not. Raises ProtocolError."""
        if packet.reason_code != 0:
            self.end(packet.reason_code, f"the node refused the connection: {reasons.name(packet.reason_code)}")
            return
        if packet.session_present and self._clean_start:
            raise ProtocolViolation("a session is present after a clean start")  # [MQTT-3.2.2-2]
        integers = packet.properties.integers
        if integers.get(MAXIMUM_QOS, 2) < 2:
            self.end(reasons.SUCCESS, "the node takes no messages of QoS 2: nodes of a mesh have the same mqtt.max_qos")
            return
        session = self._session
        self.accepted = True
        self.state = CONNECTED
        self.outbox.max_packet = integers.get(MAXIMUM_PACKET_SIZE, LARGEST_PACKET)  # [MQTT-3.2.2-15]
        if not packet.session_present:
            # It is another process: what it had acknowledged with PUBREC is its own since, or lost with it.
            session.begin_anew()
        self.attach(integers.get(RECEIVE_MAXIMUM, 65_535), now)  # [MQTT-3.3.4-7]
        session.resume(now)

    def acknowledged(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        """As in `ClientProtocol`. Raises ProtocolError."""
        if kind == PUBREL:
            raise ProtocolViolation("PUBREL from a node that was published nothing by us to release")
        super().acknowledged(kind, packet_id, reason_code, now)
        if self.on_acknowledged is not None:
            self.on_acknowledged()
