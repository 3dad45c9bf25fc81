"""One connection to an upstream broker, without the socket: the client's side of the protocol.

Owns what was offered and negotiated, the turns in which a read is processed, and what is sent except messages. The
`Downlink` has the received messages, the link's session those to send, and the declarer the subscriptions. `connection`
has sockets and timers, and `link` decides when to connect. An invalid packet ends the connection, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from canopy_mqtt.client.failures import V3_REASONS
from canopy_mqtt.core.causes import CONNECTION_LOST, MAX_TEXT
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import PINGREQ, encode, publish
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Unsuback,
    Will,
)
from canopy_mqtt.core.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER_AVAILABLE,
)
from canopy_mqtt.core.codec.reason_codes import ProtocolError, ProtocolViolation
from canopy_mqtt.core.jobs import PACKET_WORK, TURN_WORK
from canopy_mqtt.core.queues.delivery import DONE, Delivery
from canopy_mqtt.core.queues.requests import AskedLink, Peer
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.links import LINK
from canopy_mqtt.core.routing.nodes import HELD, NODE
from canopy_mqtt.core.routing.peers import PeerConnected, PeerDisconnected
from canopy_mqtt.links.protocol.downlink import Downlink
from canopy_mqtt.links.protocol.link_state import LinkState

if TYPE_CHECKING:
    from mypy_extensions import i64

UPSTREAM: Final = "upstream"
"""The address of a link's other end in a record."""

CONNECTING: Final = 0
CONNECTED: Final = 1
CLOSED: Final = 2


class ConnectTerms:
    """The terms of a link's CONNECT, and its limits. Sizes in bytes, times in seconds; 0 where there is no limit."""

    def __init__(self) -> None:
        self.client_id = ""
        self.user_name: str | None = None
        self.password: bytes | None = None
        self.keep_alive = 60
        self.session_expiry = 0
        self.status_topic = ""
        self.receive_maximum = 65_535
        self.max_inflight = 65_535
        self.max_packet_size = MAX_PACKET
        self.queue_policy = 0
        self.live_messages = 0
        self.live_bytes = 0
        # Whether overlapping filters get identifiers of their own: not where the upstream sends one copy for all.
        self.identifies = True
        # Seconds within which a PINGREQ has to be answered; 0.0: the keep alive.
        self.answer_within = 0.0
        # To another node: who we are, and what is said of its answer (empty: it is the right one).
        self.node = ""
        self.judge_node: Callable[[str], str] | None = None


class Uplink(Peer):
    """The protocol state of one connection. Times in seconds of the loop's clock.

    `version` 4 or 5; `bridge`: with the bridge bit of 3.1.1.
    """

    def __init__(
        self,
        link: LinkState,
        terms: ConnectTerms,
        send_buffer: SendBuffer,
        version: int,
        bridge: bool,
    ) -> None:
        self.router = link.router
        self.session = link.session
        self.version = version
        self.send_buffer = send_buffer
        self.decoder = Decoder(terms.max_packet_size, False, version)
        self.state = CONNECTING
        # Whether the upstream has accepted us.
        self.accepted = False
        # Written last, if anything.
        self.final_packet = b""
        # True while a read is not processed to its end: the shell calls `go_on`.
        self.unfinished = False
        # True if the turn ended because a client has fallen behind: the shell waits a little before the next one.
        self.hurried = False
        self.last_received = 0.0
        self.ping_sent = 0.0
        # How it ended: a reason code where there was one, and words.
        self.close_code = 0
        self.close_text = ""
        send_buffer.peer = self
        self.declarer = link.declarer
        self.replays = link.replays
        self.figures = link.figures
        self.v5 = version == V5
        self._downlink = Downlink(link, send_buffer, version)
        self.terms = terms
        self.bridge = bridge
        # What the CONNECT said; and whether the connection is there only to end an earlier session.
        self.clean_start = False
        self.session_reset = False
        # What the upstream said.
        self.session_present = False
        self.keep_alive = terms.keep_alive
        # Filters that a session from before this program's start may hold.
        self.stale: list[str] = []
        # What the upstream refused to be subscribed to: for the log.
        self.refused: list[tuple[str, int]] = []
        # Whether the log has been told of a message that no filter of the link matches.
        self.outside_told = False
        # The message that it ended the connection for, if that is sure: for the log.
        self.given_up: Delivery | None = None
        send_buffer.v5 = self.v5

    @property
    def spoken(self) -> str:
        if self.v5:
            return "5.0"
        return "3.1.1 bridge" if self.bridge else "3.1.1"

    @property
    def answer_within(self) -> float:
        """Seconds within which the upstream has to answer a PINGREQ; 0.0: none is sent."""
        return self.terms.answer_within or float(self.keep_alive)

    @property
    def outside_topic(self) -> bytes:
        """The topic of the last message that no filter or root of the link matches; empty: there was none."""
        return self._downlink.outside_topic

    # -- what the shell calls ------------------------------------------------------------------------------------------

    def hello(self, clean_start: bool) -> bytes:
        """Return the CONNECT. It asks for a session that stays; in 3.1.1 that is one without Clean Session."""
        terms = self.terms
        self.clean_start = clean_start
        will: Will | None = None
        if terms.status_topic:
            will = Will(terms.status_topic, b"0", 1, True)
        packet = Connect(
            terms.client_id, self.version, clean_start, terms.keep_alive, will, terms.user_name, terms.password
        )
        packet.bridge = self.bridge
        if self.v5:
            integers = packet.properties.integers
            integers[SESSION_EXPIRY_INTERVAL] = terms.session_expiry
            if terms.receive_maximum < 65_535:
                integers[RECEIVE_MAXIMUM] = terms.receive_maximum
            if terms.max_packet_size < MAX_PACKET:
                integers[MAXIMUM_PACKET_SIZE] = terms.max_packet_size
            packet.properties.user.append((LINK, self.session.broker_id))
            if terms.node:
                packet.properties.user.append((NODE, terms.node))
        return encode(packet, self.version)

    def receive(self, data: bytes, now: float, work: i64 = TURN_WORK) -> None:
        """Take a read and act on it, or on as much as `work` allows (`unfinished`). Work as in `core.jobs`."""
        self.router.counters.bytes_received += len(data)
        self.last_received = now
        self.decoder.feed(data)
        self.go_on(now, work)

    def go_on(self, now: float, work: i64 = TURN_WORK) -> None:
        """Take a turn: tell other connections what has happened, then process what the upstream sent."""
        if self.state == CLOSED:
            return
        router = self.router
        router.peers.drain(router, now)
        try:
            self._run(now, work)
        except ProtocolError as error:
            if self.state == CONNECTED and self.v5:
                self.final_packet = encode(Disconnect(error.reason_code), V5)
            self.end(error.reason_code, f"the upstream broke the protocol: {error}"[:MAX_TEXT])
        router.peers.drain(router, now)

    def _run(self, now: float, work: i64) -> None:
        """Process received packets. End the turn when its work is spent, or when a client's queue is half full."""
        decoder = self.decoder
        router = self.router
        counters = router.counters
        half_full = counters.half_full
        backed_up = counters.backed_up
        budget = router.budget
        budget.begin(work)
        self.unfinished = False
        self.hurried = False
        while self.state != CLOSED:
            if budget.spent() or counters.half_full != half_full:
                self.unfinished = decoder.end < len(decoder.buffer)
                if self.unfinished:
                    self.hurried = counters.backed_up != backed_up
                    return
            if not decoder.next_frame():
                return
            budget.used += PACKET_WORK
            counters.packets_received += 1
            kind: i64 = decoder.header >> 4
            if self.state == CONNECTED and kind == 3:
                taken: i64 = self._downlink.publish_plain(decoder)
                if taken == 0:
                    self._downlink.publish(decoder.publish(), now)
                    taken = 1
                counters.messages_received += taken
                counters.packets_received += taken - 1
            elif self.state == CONNECTED and 4 <= kind <= 7 and decoder.short_ack() > 0:
                self._acknowledged(kind, decoder.short_ack(), 0, now)
            else:
                self._act(decoder.packet(), now)

    def refill(self, now: float) -> bool:
        """Queue messages that waited for room, after the writer took a batch. Return True if it should take another."""
        self.router.counters.totals.now = now
        self.look(now)
        more = self.state == CONNECTED and self.session.backlog and self.session.refill(now)
        return more or not self.send_buffer.empty

    def ping(self, now: float) -> None:
        self.ping_sent = now
        self.send_buffer.control(PINGREQ)

    def declare(self, now: float) -> None:
        if self.state == CONNECTED:
            asked: list[str] = []
            made = self.declarer.packets(asked)
            self.refused += self.declarer.take_unasked()
            # Before the upstream can have answered.
            for topic_filter in asked:
                self.replays.expect(topic_filter, now)
            for packet in made:
                self.send_buffer.control(packet)

    @property
    def looks(self) -> bool:
        return self.session.trial.on

    def look(self, now: float) -> None:
        """Try a doubtful message again, if its time has come."""
        if self.session.trial.on:
            self._try(now)

    @property
    def answer_due(self) -> float:
        """The time at which `hurry` has something to do; 0.0: there is none."""
        return self._downlink.answer_due

    def hurry(self, now: float) -> None:
        """Answer requests whose time is over, without the answers of other links."""
        self._downlink.hurry(now)

    def close(self, reason_code: int, text: str, forget: bool, now: float) -> None:
        """End the connection from this side, with a DISCONNECT. `forget`: the upstream need not keep our session."""
        if self.state == CLOSED:
            return
        if self.state == CONNECTED:
            if reason_code == reason_codes.SUCCESS and self.terms.status_topic:
                # A DISCONNECT takes the will away, so its word is said before.
                self.final_packet = publish(Publish(self.terms.status_topic.encode(), b"0", 0, True), self.version)
            packet = Disconnect(reason_code)
            if forget and self.v5:
                packet.properties.integers[SESSION_EXPIRY_INTERVAL] = 0
            self.final_packet += encode(packet, self.version)
        self.end(reason_code, text)
        self.router.peers.drain(self.router, now)

    def lost(self, text: str, now: float, closed: bool = False) -> None:
        """The connection is gone, or given up. `closed`: the upstream has closed it, by all that can be seen."""
        if closed:
            self._judge(0, now)
        self.end(0, text)
        self.router.peers.drain(self.router, now)

    def take_over(self, now: float) -> None:
        """End the connection. No client can have this client identifier, but the shell may end the connection."""
        self.close(reason_codes.SUCCESS, "replaced", False, now)

    def overflow(self, now: float) -> None:
        """No policy of such a session ends its connection."""

    # -- endings -------------------------------------------------------------------------------------------------------

    def end(self, code: int, text: str) -> None:
        """The connection is over, for that reason code (0: none) and in these words.

        The subscriptions go with it, and what it owed the upstream.
        """
        if self.state == CLOSED:
            return
        was_connected = self.state == CONNECTED
        self.state = CLOSED
        self.close_code = code
        self.close_text = text
        self._downlink.forget()
        if was_connected:
            self.declarer.close()
            if self.router.tap is not None:
                self.router.tap.disconnected(self.session.client_id, UPSTREAM, CONNECTION_LOST)
            self.router.peers.events.append(PeerDisconnected(self.session, self.send_buffer, CONNECTION_LOST))
        else:
            self.send_buffer.close()
        self.send_buffer.report_end()

    def _judge(self, code: int, now: float) -> None:
        """The upstream ends the connection: perhaps for a message (`trial`)."""
        if self.state != CONNECTED:
            return
        session = self.session
        delivery = session.trial.ended(code, self.declarer.quiet, session.unacknowledged(), now)
        if delivery is not None:
            self.given_up = delivery
            self.figures.given_up += 1
            session.give_up(delivery, now)

    def _try(self, now: float) -> None:
        """On trial: send the next message, when the upstream has answered everything that was sent before."""
        session = self.session
        trial = session.trial
        session.free_expired()
        if self.state != CONNECTED or trial.alone is not None or not self.declarer.quiet:
            return
        if trial.proved:
            # Whatever comes after nothing has another answer to go after.
            trial.proved = session.send_alone(now)
        if trial.proved or not trial.on:
            return
        if not trial.doubtful or trial.asks(now) or session.next_alone(now) is not None:
            session.hold_qos0()
            if self.ping_sent == 0.0:
                self.ping(now)
        else:
            session.let_qos0_pass(now)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _act(self, packet: Packet, now: float) -> None:
        """Act on a packet that is no PUBLISH. Raises ProtocolError."""
        if self.state == CONNECTING:
            if not isinstance(packet, Connack):
                raise ProtocolViolation("the first packet is not CONNACK")  # [MQTT-3.2.0-1]
            self._on_connack(packet, now)
        elif isinstance(packet, Ack):
            self._acknowledged(packet.kind, packet.packet_id, packet.reason_code, now)
        elif isinstance(packet, Pingresp):
            self.ping_sent = 0.0
            self.session.trial.answered()
            self.look(now)
        elif isinstance(packet, Disconnect):
            self._judge(packet.reason_code, now)
            text = packet.properties.strings.get(REASON_STRING, "") or reason_codes.name(packet.reason_code)
            self.end(packet.reason_code, f"the other broker ended the connection: {text}"[:MAX_TEXT])
        elif isinstance(packet, (Suback, Unsuback)):
            self._on_suback(packet, now)
        else:
            raise ProtocolViolation("a packet that does not belong here")

    def _on_suback(self, packet: Suback | Unsuback, now: float) -> None:
        """SUBACK or UNSUBACK: go on with what comes next, and forget what was kept for the filters that went."""
        gone = self.declarer.withdrawn(packet.packet_id)
        self.refused += self.declarer.acknowledged(packet.packet_id, packet.reason_codes)
        if gone:
            self.replays.withdrawn(gone)
            # Before a client can subscribe again and get old retained messages.
            self.replays.turn(self.declarer.table, now)
        self.declare(now)
        self.look(now)

    def _on_connack(self, packet: Connack, now: float) -> None:
        """Open the session, or end the connection if the upstream refuses it or is the wrong one. Raises
        ProtocolError.
        """
        code = packet.reason_code
        if code != 0:
            if not self.v5:
                code = V3_REASONS[code]
            text = packet.properties.strings.get(REASON_STRING, "") or reason_codes.name(code)
            self.end(code, f"the upstream refused the connection: {text}"[:MAX_TEXT])
            return
        if packet.session_present and self.clean_start:
            # What it has is not what we know of [MQTT-3.2.2-2] [MQTT-3.2.2-4].
            raise ProtocolViolation("a session is present after a clean start")
        node = ""
        for name, value in packet.properties.user:
            if name == LINK:
                self._downlink.peer_id = value
            elif name == NODE:
                node = value
            elif name == HELD and self.session.node:
                self.stale.append(value)
        wrong = "" if self.terms.judge_node is None else self.terms.judge_node(node)
        if not wrong and self._downlink.peer_id == self.session.broker_id and not self.session.node:
            wrong = "the upstream is this broker itself, or has its broker_id"
        if wrong:
            self._leave(reason_codes.IMPLEMENTATION_SPECIFIC_ERROR, wrong)
            return
        self.accepted = True
        if self.session_reset:
            self._leave(reason_codes.SUCCESS, "an earlier session was ended")
        else:
            self._open(packet, now)

    def _leave(self, code: int, text: str) -> None:
        """End the connection with a DISCONNECT that blames nothing."""
        self.final_packet = encode(Disconnect(reason_codes.SUCCESS), self.version)
        self.end(code, text)

    def _open(self, packet: Connack, now: float) -> None:
        """Take the upstream's limits, and let the session's messages and subscriptions go out on this connection."""
        integers = packet.properties.integers
        terms = self.terms
        session = self.session
        send_buffer = self.send_buffer
        router = self.router
        self.state = CONNECTED
        self.session_present = packet.session_present
        self.keep_alive = integers.get(SERVER_KEEP_ALIVE, terms.keep_alive)  # [MQTT-3.1.2-21]
        if not terms.client_id:
            terms.client_id = packet.properties.strings.get(ASSIGNED_CLIENT_IDENTIFIER, "")
        send_buffer.max_packet = integers.get(MAXIMUM_PACKET_SIZE, MAX_PACKET)  # [MQTT-3.2.2-15]
        send_buffer.limit(terms.queue_policy, terms.live_messages, terms.live_bytes)
        session.peer_id = self._downlink.peer_id
        session.max_qos = integers.get(MAXIMUM_QOS, 2)
        session.retain_available = integers.get(RETAIN_AVAILABLE, 1) == 1  # [MQTT-3.2.2-14]
        # In 5.0 the upstream tells whether a message has reached a subscriber.
        session.asked_link = AskedLink() if self.v5 else None
        send_quota = min(terms.max_inflight, integers.get(RECEIVE_MAXIMUM, 65_535))  # [MQTT-3.3.4-7]
        if router.tap is not None:
            # The session is one that goes on, whether the upstream's does or not.
            router.tap.connected(session.client_id, UPSTREAM, None, self.version, False, True)
        # From now on the session's messages go out on this connection.
        session.attach(self.version, send_quota, True)
        router.peers.events.append(PeerConnected(session, send_buffer))
        router.peers.drain(router, now)
        if not packet.session_present:
            session.begin_anew(router.retained)
        session.lower()
        identifies = self.v5 and terms.identifies and integers.get(SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1) == 1
        self.replays.open(packet.session_present, identifies, now)
        gone = self.declarer.open(self.version, packet.session_present, identifies, send_buffer.max_packet, self.stale)
        self.replays.withdrawn(gone)
        if terms.status_topic:
            # The status counts as one of the session's messages.
            session.offered += 1
            send_buffer.offer(
                publish(Publish(terms.status_topic.encode(), b"1", 0, session.retain_available), self.version)
            )
        self.declare(now)
        session.resume(now)
        self.look(now)

    def _acknowledged(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP came. Raises ProtocolError."""
        session = self.session
        if reason_code >= 0x80 and kind in (PUBACK, PUBREC):
            # A refused message is finished, too [MQTT-4.4.0-2].
            self.figures.rejected += 1
        if self.replays.guards and kind in (PUBACK, PUBREC):
            delivery = session.inflight.get(packet_id)
            if delivery is not None:
                self.replays.arrived(delivery.message.topic)
        if kind != PUBREL:
            session.on_ack(kind, packet_id, reason_code, now)
        else:
            received_qos2 = session.received_qos2
            code = reason_codes.SUCCESS
            if received_qos2 is not None and packet_id in received_qos2:
                received_qos2.discard(packet_id)
                if session.journal is not None:
                    session.journal.completed(session.client_id, packet_id)
            elif self.v5:
                code = reason_codes.PACKET_IDENTIFIER_NOT_FOUND
            self._downlink.acknowledge(PUBCOMP, packet_id, code, now)
        trial = session.trial
        if trial.on:
            trial.answers += 1
            alone = trial.alone
            if alone is not None and alone.state == DONE:
                trial.acknowledged()
            self._try(now)
