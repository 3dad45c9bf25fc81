"""The client's side of MQTT on one connection, as the owner of the network connection sees it.

Owns what does not depend on what crosses: the interface to `ClientConnection`, the turns in which a read is processed,
the dispatch of packets, and the ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.causes import CONNECTION_LOST, MAX_TEXT
from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import PINGREQ, encode
from broker.core.codec.errors import ProtocolError, ProtocolViolation
from broker.core.codec.packets import V5, Ack, Connack, Disconnect, Packet, Pingresp
from broker.core.codec.properties import REASON_STRING, SESSION_EXPIRY_INTERVAL
from broker.core.connection.protocol import TURN_WORK
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.live.peer import Peer
from broker.core.routing.peers import PeerConnected, PeerDisconnected
from broker.core.routing.router import Router
from broker.core.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i64

CONNECTING: Final = 0
CONNECTED: Final = 1
CLOSED: Final = 2


class ClientProtocol(Peer):
    """The protocol state of one connection. Times in seconds of the loop's clock.

    `sender`: the session of which messages go out; `other`: what the other side is called in the log.
    """

    def __init__(
        self, router: Router, sender: Session, outbox: Outbox, decoder: Decoder, version: int, other: str
    ) -> None:
        self.router = router
        self.sender = sender
        self.version = version
        self.other = other
        self.outbox = outbox
        self.decoder = decoder
        self.state = CONNECTING
        # Whether the other side has accepted us.
        self.accepted = False
        self.keep_alive = 0
        # Written last, if anything.
        self.final_packet = b""
        # A read is not through: the shell calls `go_on`.
        self.unfinished = False
        # That is because somebody here has fallen behind: a little later, then.
        self.hurried = False
        # What the last turn did, in units of `Router.work`.
        self.work_done: i64 = 0
        self.last_received = 0.0
        self.ping_sent = 0.0
        # How it ended: a reason code where there was one, and words.
        self.close_code = 0
        self.close_text = ""
        outbox.peer = self

    def hello(self, clean_start: bool) -> bytes:
        """The CONNECT."""
        raise NotImplementedError

    def receive(self, data: bytes, now: float, work: i64 = TURN_WORK) -> None:
        """Take a read and act on it, or on as much as `work` allows (`unfinished`). Work in units of `Router.work`."""
        self.router.counters.bytes_received += len(data)
        self.last_received = now
        self.decoder.feed(data)
        self.go_on(now, work)

    def go_on(self, now: float, work: i64 = TURN_WORK) -> None:
        """A turn: what happened to others first, then what the other side sent. `work_done`: what it was."""
        self.work_done = 0
        if self.state == CLOSED:
            return
        router = self.router
        before: i64 = router.work
        router.peers.drain(router, now)
        try:
            self.run(now, work)
        except ProtocolError as error:
            self.fail(error)
        router.peers.drain(router, now)
        self.work_done += router.work - before

    def run(self, now: float, work: i64) -> None:
        """Act on the packets that are there, or on as many as `work` allows. Raises ProtocolError."""
        raise NotImplementedError

    def fail(self, error: ProtocolError) -> None:
        """The other side broke the protocol: say so where that is possible, and end the connection."""
        if self.state == CONNECTED and self.version == V5:
            self.final_packet = encode(Disconnect(error.reason_code), V5)
        self.end(error.reason_code, f"{self.other} broke the protocol: {error}"[:MAX_TEXT])

    # -- packets -------------------------------------------------------------------------------------------------------

    def act(self, packet: Packet, now: float) -> None:
        """Act on a packet that is no PUBLISH. Raises ProtocolError."""
        if self.state == CONNECTING:
            if not isinstance(packet, Connack):
                raise ProtocolViolation("the first packet is not CONNACK")  # [MQTT-3.2.0-1]
            self.on_connack(packet, now)
        elif isinstance(packet, Ack):
            self.acknowledged(packet.kind, packet.packet_id, packet.reason_code, now)
        elif isinstance(packet, Pingresp):
            self.ping_sent = 0.0
            self.answered(now)
        elif isinstance(packet, Disconnect):
            self.on_disconnect(packet, now)
        else:
            self.on_other(packet, now)

    def on_connack(self, packet: Connack, now: float) -> None:
        """The answer to our CONNECT. Raises ProtocolError."""
        raise NotImplementedError

    def attach(self, window: int, now: float) -> None:
        """The other side has accepted us: from now on the session's messages go out on this connection."""
        router = self.router
        self.sender.attach(self.version, window, True)
        router.peers.post(PeerConnected(self.sender, self.outbox))
        router.peers.drain(router, now)

    def acknowledged(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP came. Raises ProtocolError."""
        self.sender.on_ack(kind, packet_id, reason_code, now)

    def answered(self, now: float) -> None:
        """The other side has answered a PINGREQ."""

    def on_disconnect(self, packet: Disconnect, now: float) -> None:
        """The other side ends the connection."""
        del now
        text = packet.properties.strings.get(REASON_STRING, "") or reasons.name(packet.reason_code)
        self.end(packet.reason_code, f"{self.other} ended the connection: {text}"[:MAX_TEXT])

    def on_other(self, packet: Packet, now: float) -> None:
        """Any other packet. Raises ProtocolError."""
        del packet, now
        raise ProtocolViolation("a packet that does not belong here")

    # -- what else the shell calls -------------------------------------------------------------------------------------

    def refill(self, now: float) -> bool:
        """After the writer took a batch: queue what waited for room. True when it should take another."""
        self.router.counters.load.now = now
        self.look(now)
        more = self.state == CONNECTED and self.sender.backlog and self.sender.pump(now)
        return more or not self.outbox.empty

    def ping(self, now: float) -> None:
        """Ask the other side whether it is there."""
        self.ping_sent = now
        self.outbox.control(PINGREQ)

    def close(self, reason_code: int, text: str, forget: bool, now: float) -> None:
        """End the connection from this side, with a DISCONNECT. `forget`: the other need not keep our session."""
        if self.state == CLOSED:
            return
        if self.state == CONNECTED:
            packet = Disconnect(reason_code)
            if forget and self.version == V5:
                packet.properties.integers[SESSION_EXPIRY_INTERVAL] = 0
            self.final_packet += encode(packet, self.version)
        self.end(reason_code, text)
        self.router.peers.drain(self.router, now)

    def lost(self, text: str, now: float, closed: bool = False) -> None:
        """The connection is gone, or given up. `closed`: the other side has closed it, by all that can be seen."""
        del closed
        self.end(0, text)
        self.router.peers.drain(self.router, now)

    def take_over(self, now: float) -> None:
        """Nobody else can have this client identifier; but the shell may end the connection."""
        self.close(reasons.SUCCESS, "replaced", False, now)

    def overflow(self, now: float) -> None:
        """No policy of such a session ends its connection."""

    def end(self, code: int, text: str) -> None:
        """The connection is over, for that reason code (0: none) and in these words."""
        if self.state == CLOSED:
            return
        was_connected = self.state == CONNECTED
        self.state = CLOSED
        self.close_code = code
        self.close_text = text
        self.ended(was_connected)
        if was_connected:
            self.router.peers.post(PeerDisconnected(self.sender, self.outbox, CONNECTION_LOST))
        else:
            self.outbox.close()
        self.outbox.report_end()

    def ended(self, was_connected: bool) -> None:
        """What else goes with the connection, before its session is told."""

    @property
    def answer_due(self) -> float:
        """When `hurry` has something to do; 0.0: never, as things stand."""
        return 0.0

    def hurry(self, now: float) -> None:
        """Wait no longer for what the acknowledgements wait for that are due."""

    @property
    def looks(self) -> bool:
        """Whether `look` is to be called now and then."""
        return False

    def look(self, now: float) -> None:
        """Time has passed."""
