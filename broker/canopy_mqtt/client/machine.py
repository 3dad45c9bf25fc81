"""The client's side of MQTT 3.1.1 and 5.0 without a socket and without a clock.

Owns the state of one client: that of its connection, and that of its session, which survives a lost connection. The
owner of the network connection calls `open` for each one and passes each read to `receive`, which returns events;
after each call it writes what `take` returns. `tick` is to be called at `due`.

It returns events: the packets Connack, Publish, Suback, Unsuback and Disconnect, and `Delivered`. It has no enhanced
authentication (section 4.12) and no topic aliases.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from canopy_mqtt.client.failures import (
    FAILURE,
    V3_REASONS,
    ClientError,
    LostError,
    NotSupportedError,
    RefusedError,
    told,
)
from canopy_mqtt.core.codec import encoder, packets, reason_codes
from canopy_mqtt.core.codec import properties as names
from canopy_mqtt.core.codec.decoder import Decoder
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
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import ProtocolError, ProtocolViolation, TopicAliasInvalid

MOST: Final = 65_535
"""The largest packet identifier, and the largest Receive Maximum."""

IDLE: Final = 0
CONNECTING: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3


class Delivered(NamedTuple):
    """The broker has a message of ours, or refuses it, by its reason code."""

    packet_id: int
    reason_code: int


Event = Connack | Publish | Suback | Unsuback | Disconnect | Delivered


def connect_packet(
    client_id: str = "",
    *,
    version: int = V5,
    clean_start: bool = True,
    keep_alive: int = 60,
    user_name: str | None = None,
    password: str | bytes | None = None,
    will: Will | None = None,
    session_expiry: int = 0,
    receive_maximum: int = MOST,
    max_packet_size: int = MAX_PACKET,
    user_properties: Sequence[tuple[str, str]] = (),
) -> Connect:
    """A CONNECT. `version` 4 or 5; times in seconds, sizes in bytes.

    3.1.1 has no properties: of them, only `receive_maximum` and `max_packet_size` still bind this client there.
    """
    section = Properties()
    for identifier, value, otherwise in (
        (names.SESSION_EXPIRY_INTERVAL, session_expiry, 0),
        (names.RECEIVE_MAXIMUM, receive_maximum, MOST),
        (names.MAXIMUM_PACKET_SIZE, max_packet_size, MAX_PACKET),
    ):
        if value != otherwise:
            section.integers[identifier] = value
    section.user.extend(user_properties)
    secret = password.encode() if isinstance(password, str) else password
    return Connect(client_id, version, clean_start, keep_alive, will, user_name, secret, section)


class ClientMachine:
    """One client. `connect` is what each connection begins with; its owner may change it between two of them.

    Promises:
    - A message with QoS 1 or 2 is kept until the broker has acknowledged it, and is sent again on the next connection,
      in the order of the first sending [MQTT-4.4.0-1] [MQTT-4.6.0-1].
    - A QoS 2 message that comes again is handed out once, as long as the broker has the session [MQTT-4.3.3-10].
    - Nothing is sent that the CONNACK excludes: Receive Maximum, Maximum Packet Size, Maximum QoS, Retain Available.
    - A broker that breaks the protocol ends the connection: `failure` has the reason, and 5.0 is told by DISCONNECT.
    - Memory is bounded by what the caller publishes and reads, and the size of a packet. A broker that sends more
      messages than the Receive Maximum of this side is heard all the same: mosquitto 2.0 does so.

    `hold`: nothing is acknowledged before `acknowledge`; otherwise each message is at once.
    """

    def __init__(self, connect: Connect, *, hold: bool = False) -> None:
        self.connect = connect
        self.state = IDLE
        self.failure: ClientError | None = None
        """Why the connection is over; None: it is not, or this side ended it."""
        self.connack = Connack()
        """The last CONNACK of success: what the broker grants."""
        self.session_present = False
        self._hold = hold
        self._out = bytearray()
        self._decoder = Decoder(MAX_PACKET, False, connect.version)
        # The session: our messages by packet identifier, in order, None from PUBREC on; `dup` once it was written.
        self._sent: dict[int, Publish | None] = {}
        self._last_id = 0
        # QoS 2 messages that got a PUBREC and no PUBREL yet.
        self._received: set[int] = set()
        # The connection.
        self._five = connect.version == V5
        self._unsent: deque[int] = deque()
        self._quota = self._window = 0
        self._asked: dict[int, int] = {}
        """Filters of each SUBSCRIBE and UNSUBSCRIBE without an answer; those of the latter as negative numbers."""
        self._unacknowledged: dict[int, Publish | None] = {}
        """Received messages that are not acknowledged; None where PUBREC was sent and PUBREL has not come."""
        self._max_packet = MAX_PACKET
        self._keep_alive = 0.0
        self._heard = self._asked_at = self._look_at = 0.0
        self.unanswered = 0
        """PINGREQ packets without a PINGRESP."""

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """True if the broker has accepted us, and nothing ended that."""
        return self.state == CONNECTED

    @property
    def unacknowledged(self) -> int:
        """Messages of ours with QoS 1 and 2 that the broker has not acknowledged to the end."""
        return len(self._sent)

    @property
    def window(self) -> int:
        """Messages with QoS 1 and 2 that may be on their way at the same time: the broker's Receive Maximum."""
        return self.connack.properties.integers.get(names.RECEIVE_MAXIMUM, MOST)

    def open(self, now: float) -> None:
        """Begin with CONNECT on a new network connection [MQTT-3.1.0-1]."""
        connect = self.connect
        self.state = CONNECTING
        self.failure = None
        self._five = connect.version == V5
        largest = connect.properties.integers.get(names.MAXIMUM_PACKET_SIZE, MAX_PACKET)
        self._decoder = Decoder(largest, False, connect.version)
        self._asked.clear()
        self._unacknowledged.clear()
        self._unsent.clear()
        self._heard = now
        self._out = bytearray(encoder.encode(connect, connect.version))

    def take(self) -> bytes:
        """Return the bytes to write now, and forget them."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def lost(self, why: str, cause: BaseException | None = None) -> None:
        """Note that the network connection is gone."""
        if self.state in (CONNECTING, CONNECTED):
            error = LostError(why)
            error.__cause__ = cause
            self._end(error)

    def disconnect(self, reason_code: int = reason_codes.SUCCESS) -> None:
        """Send DISCONNECT; nothing follows it [MQTT-3.14.4-1]."""
        if self.state == CONNECTED:
            self._send(Disconnect(reason_code))
        self.state = CLOSED

    def _end(self, failure: ClientError) -> None:
        self.state = CLOSED
        self.failure = failure
        self._decoder.clear()

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When `tick` has something to do, on the owner's clock; infinite: never."""
        return self._look_at if self.state == CONNECTED and self._keep_alive else math.inf

    def tick(self, now: float, reading: bool = True) -> None:
        """Called as time passes: send PINGREQ in half of the keep alive time [MQTT-3.1.2-20], and end a connection
        on which nothing has come for the whole of it since. `reading`: the owner reads, so that silence is the
        broker's."""
        if not reading:
            self._heard = now
        if now < self.due:
            return
        half = self._keep_alive / 2
        self._look_at = now + half
        if not self.unanswered or not reading:
            self.ping(now)
            return
        end = max(self._asked_at, self._heard) + self._keep_alive
        if now >= end:
            self._end(LostError(f"the broker is silent: no answer to a PINGREQ within {self._keep_alive:g} s"))
        self._look_at = min(self._look_at, end)

    def ping(self, now: float) -> None:
        """Send PINGREQ. The broker answers it after all that came before; then `unanswered` is 0."""
        self._asked_at = now
        self.unanswered += 1
        self._out += encoder.PINGREQ

    # -- what the caller sends -----------------------------------------------------------------------------------------

    def publish(self, packet: Publish) -> int:
        """Send a message, which this client keeps as its own. Returns its packet identifier; 0 with QoS 0.

        With QoS 1 and 2 it waits for the connection where there is none, and for room in the window: a `Delivered`
        with this identifier follows.

        Raises:
            LostError: QoS 0, and no connection.
            NotSupportedError: the broker does not take such a message.
            ValueError: no PUBLISH can carry it.
        """
        if self.state == CONNECTED:
            self._check(packet)
        if not packet.qos:
            if self.state != CONNECTED:
                raise LostError("there is no connection")
            self._out += self._fitting(packet)
            return 0
        packet.packet_id = self._next_id()
        packet.dup = False
        if self.state == CONNECTED and self._quota and not self._unsent:
            self._out += self._fitting(packet)
            packet.dup = True
            self._quota -= 1
        else:
            self._fitting(packet)
            self._unsent.append(packet.packet_id)
        self._sent[packet.packet_id] = packet
        return packet.packet_id

    def subscribe(self, requests: Sequence[SubscriptionRequest], properties: Properties | None = None) -> int:
        """Send SUBSCRIBE. Returns the packet identifier of the Suback that follows. Raises LostError without a
        connection."""
        return self._ask(Subscribe(self._next_id(), list(requests), properties), len(requests))

    def unsubscribe(self, topic_filters: Sequence[str], properties: Properties | None = None) -> int:
        """Send UNSUBSCRIBE. Returns the packet identifier of the Unsuback that follows. Raises LostError without a
        connection."""
        return self._ask(Unsubscribe(self._next_id(), list(topic_filters), properties), -len(topic_filters))

    def acknowledge(self, packet: Publish) -> None:
        """Send PUBACK or PUBREC for a message that was held (`hold`).

        Nothing is said for one that came on another connection: the broker sends it again. A QoS 2 message counts as
        received also where the connection is lost, and no new one has begun [MQTT-4.3.3-10].
        """
        packet_id = packet.packet_id
        if not packet_id or self._unacknowledged.get(packet_id) is not packet:
            return
        if packet.qos == 2:
            self._received.add(packet_id)
            self._unacknowledged[packet_id] = None
        else:
            del self._unacknowledged[packet_id]
        if self.state == CONNECTED:
            self._out += encoder.ack(PUBREC if packet.qos == 2 else PUBACK, packet_id)

    def _send(self, packet: Packet) -> None:
        self._out += encoder.encode(packet, self.connect.version)

    def _ask(self, packet: Subscribe | Unsubscribe, count: int) -> int:
        if self.state != CONNECTED:
            raise LostError("there is no connection")
        frame = encoder.encode(packet, self.connect.version)
        if len(frame) > self._max_packet:
            raise NotSupportedError(
                f"{len(frame)} bytes, and the broker's Maximum Packet Size is {self._max_packet}",
                reason_codes.PACKET_TOO_LARGE,
            )
        self._asked[packet.packet_id] = count
        self._out += frame
        return packet.packet_id

    def _next_id(self) -> int:
        """Return a packet identifier that is not in use [MQTT-2.2.1-3]."""
        for _ in range(MOST):
            self._last_id = self._last_id % MOST + 1
            if self._last_id not in self._sent and self._last_id not in self._asked:
                return self._last_id
        raise ClientError("all packet identifiers are in use")

    def _check(self, packet: Publish) -> None:
        """Check that the broker takes the message, size apart. Raises NotSupportedError."""
        granted = self.connack.properties.integers
        if packet.qos > granted.get(names.MAXIMUM_QOS, 2):  # [MQTT-3.2.2-11]
            raise NotSupportedError(f"the broker takes no QoS {packet.qos}", reason_codes.QOS_NOT_SUPPORTED)
        if packet.retain and not granted.get(names.RETAIN_AVAILABLE, 1):  # [MQTT-3.2.2-14]
            raise NotSupportedError("the broker takes no retained messages", reason_codes.RETAIN_NOT_SUPPORTED)

    def _fitting(self, packet: Publish) -> bytes:
        """Return the packet's bytes, if the broker takes that size [MQTT-3.2.2-15]. Raises NotSupportedError."""
        frame = encoder.publish(packet, self.connect.version)
        if len(frame) > self._max_packet:
            raise NotSupportedError(
                f"{len(frame)} bytes are more than the broker's Maximum Packet Size of {self._max_packet}",
                reason_codes.PACKET_TOO_LARGE,
            )
        return frame

    def _pump(self, events: list[Event]) -> None:
        """Send what waits for room in the window."""
        while self._unsent and self._quota:
            packet_id = self._unsent.popleft()
            packet = self._sent[packet_id]
            assert packet is not None
            try:
                self._check(packet)
                frame = self._fitting(packet)
            except NotSupportedError as error:
                # The message waited for a connection, and this broker does not take it.
                del self._sent[packet_id]
                events.append(Delivered(packet_id, error.reason_code))
                continue
            self._out += frame
            packet.dup = True
            self._quota -= 1

    # -- what comes ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process a read, and return its events. If the connection is over after it, `failure` has the reason."""
        events: list[Event] = []
        if self.state not in (CONNECTING, CONNECTED):
            return events
        self._heard = now
        decoder = self._decoder
        try:
            decoder.feed(data)
            while decoder.next_frame():
                kind = decoder.header >> 4
                if self.state == CONNECTING:
                    self._answer(decoder.packet(), events, now)
                elif kind == packets.PUBLISH:
                    self._arrived(decoder.publish(), events)
                elif PUBACK <= kind <= PUBCOMP:
                    packet_id = decoder.short_ack()
                    if packet_id > 0:
                        self._acknowledged(kind, packet_id, 0, events)
                    else:
                        packet = decoder.packet()
                        assert isinstance(packet, Ack)
                        self._acknowledged(kind, packet.packet_id, packet.reason_code, events)
                else:
                    self._other(decoder.packet(), events)
                if self.state == CLOSED:
                    break
        except ProtocolError as error:
            if self.state == CONNECTED and self._five:
                self._send(Disconnect(error.reason_code))
            self._end(LostError(f"the broker breaks the protocol: {error}", error.reason_code))
        return events

    def _answer(self, packet: Packet, events: list[Event], now: float) -> None:
        """Process the answer to the CONNECT."""
        if not isinstance(packet, Connack):
            raise ProtocolViolation("the first packet is not a CONNACK")  # [MQTT-3.2.0-1]
        code = packet.reason_code if self._five else V3_REASONS[packet.reason_code]
        text = packet.properties.strings.get(names.REASON_STRING, "")
        if code:
            self._end(RefusedError(f"the broker refuses the connection: {told(code)}{text and ': '}{text}", code))
            return
        if packet.session_present and self.connect.clean_start:
            raise ProtocolViolation("a session is present after a clean start")  # [MQTT-3.2.2-2]
        granted = packet.properties.integers
        self.state = CONNECTED
        self.connack = packet
        self.session_present = packet.session_present
        self._keep_alive = float(granted.get(names.SERVER_KEEP_ALIVE, self.connect.keep_alive))  # [MQTT-3.1.2-21]
        self._look_at = now + self._keep_alive / 2
        self.unanswered = 0
        self._max_packet = granted.get(names.MAXIMUM_PACKET_SIZE, MAX_PACKET)
        self._quota = self._window = self.window  # [MQTT-3.3.4-7]
        if not self.connect.client_id:
            self.connect.client_id = packet.properties.strings.get(names.ASSIGNED_CLIENT_IDENTIFIER, "")
        events.append(packet)
        self._resume(events)

    def _resume(self, events: list[Event]) -> None:
        """Send again what the broker may not have [MQTT-4.4.0-1], and what was published since the CONNECT, once and
        in order."""
        self._unsent.clear()
        if not self.session_present:
            # What the broker forgot is no repetition [MQTT-3.2.2-5]; what it had said PUBREC to, it has answered for.
            self._received.clear()
        for packet_id, packet in list(self._sent.items()):
            if packet is not None:
                packet.dup = packet.dup and self.session_present
                self._unsent.append(packet_id)
            elif self.session_present:
                self._out += encoder.ack(PUBREL, packet_id)
            else:
                del self._sent[packet_id]
                events.append(Delivered(packet_id, reason_codes.SUCCESS))
        self._pump(events)

    def _other(self, packet: Packet, events: list[Event]) -> None:
        if isinstance(packet, (Suback, Unsuback)):
            sign = 1 if isinstance(packet, Suback) else -1
            count = self._asked.get(packet.packet_id, 0) * sign
            if count <= 0:
                raise ProtocolViolation(f"{packets.NAMES[packet.kind]} without a request for it")
            if len(packet.reason_codes) != count and (sign > 0 or self._five):  # [MQTT-3.8.4-6] [MQTT-3.11.3-1]
                raise ProtocolViolation(f"{len(packet.reason_codes)} reason codes for {count} topic filters")
            del self._asked[packet.packet_id]
            events.append(packet)
        elif isinstance(packet, Pingresp):
            self.unanswered = max(self.unanswered - 1, 0)
            self._look_at = min(self._look_at, self._asked_at + self._keep_alive / 2)
        elif isinstance(packet, Disconnect):
            text = packet.properties.strings.get(names.REASON_STRING, "")
            code = packet.reason_code
            events.append(packet)
            self._end(LostError(f"the broker ends the connection: {told(code)}{text and ': '}{text}", code))
        else:
            raise ProtocolViolation(f"a {packets.NAMES[packet.kind]} that does not belong here")

    def _arrived(self, packet: Publish, events: list[Event]) -> None:
        if packet.topic_alias:
            raise TopicAliasInvalid("a topic alias above the Topic Alias Maximum")  # [MQTT-3.1.2-26]
        packet_id = packet.packet_id
        if packet_id:
            if packet.qos == 2 and packet_id in self._received:
                # Sent again by a broker that had no PUBREC [MQTT-4.3.3-10].
                self._unacknowledged[packet_id] = None
                self._out += encoder.ack(PUBREC, packet_id)
                return
            if packet_id in self._unacknowledged:
                if packet.dup:
                    # The acknowledgement of the first one is yet to come.
                    return
                raise ProtocolViolation(f"the packet identifier {packet_id} is in use")  # [MQTT-2.2.1-4]
            self._unacknowledged[packet_id] = packet
        events.append(packet)
        if packet_id and not self._hold:
            self.acknowledge(packet)

    def _acknowledged(self, kind: int, packet_id: int, code: int, events: list[Event]) -> None:
        if kind == PUBREL:
            code = reason_codes.SUCCESS
            if self._unacknowledged.get(packet_id) is not None:
                raise ProtocolViolation("a PUBREL for a message that has had no PUBREC")
            if packet_id in self._received:
                self._received.discard(packet_id)
            elif self._five:
                code = reason_codes.PACKET_IDENTIFIER_NOT_FOUND
            self._unacknowledged.pop(packet_id, None)
            self._out += encoder.ack(PUBCOMP, packet_id, code, self.connect.version)
            return
        if packet_id not in self._sent:
            if kind == PUBREC and code < FAILURE:
                code = reason_codes.PACKET_IDENTIFIER_NOT_FOUND
                self._out += encoder.ack(PUBREL, packet_id, code, self.connect.version)
            return
        packet = self._sent[packet_id]
        expected = packet is None or (packet.dup and packet.qos == (1 if kind == PUBACK else 2) and kind != PUBCOMP)
        if not expected or (packet is None and kind == PUBACK):
            raise ProtocolViolation(f"a {packets.NAMES[kind]} for a message that is not waiting for one")
        if kind == PUBREC and code < FAILURE:
            self._sent[packet_id] = None
            self._out += encoder.ack(PUBREL, packet_id)
            return
        del self._sent[packet_id]
        self._quota = min(self._quota + 1, self._window)
        # PUBCOMP tells of no refusal: at most that the broker has no such message any more.
        events.append(Delivered(packet_id, reason_codes.SUCCESS if kind == PUBCOMP else code))
        self._pump(events)
