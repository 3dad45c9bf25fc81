"""One connection to a broker, driven by the thread that uses it, on the project's own codec.

Owns: CONNECT, SUBSCRIBE, what their answers mean, when acknowledgements go out, and what was published without one.
Nothing happens between two calls: no thread runs, so nothing is acknowledged beside the disk that is to hold it.

Promises: a failure that would come again the same way is a ``RefusedError`` (credentials, certificates, a refused
filter, another client with the same identifier); everything else is a ``LostError``, and ``connect`` may be called
again.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from broker.core.codec import encoder, packets, reasons
from broker.core.codec import properties as names
from broker.core.codec.decoder import Decoder
from broker.core.codec.errors import ProtocolError, ProtocolViolation, TopicAliasInvalid
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import Packet, Publish, SubscriptionRequest
from broker.core.codec.properties import Properties
from pipeline.errors import PipelineError
from pipeline.mqtt.options import Broker
from pipeline.mqtt.wire import Wire

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 10.0
"""Seconds between two attempts to connect."""
REFUSAL: Final = 0x80
"""From this reason code on it is one."""
LARGEST_IDENTIFIER: Final = 65_535
RETAIN_IF_NEW: Final = 1
"""Retain Handling: retained messages for a subscription that was not there before."""

_PASSING: Final = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
"""Reason codes of CONNACK that another attempt may not get: unspecified, implementation, unavailable, busy, quota,
rate."""
_LASTING: Final = frozenset({0x81, 0x82, 0x87, reasons.SESSION_TAKEN_OVER, 0x90, 0x94, 0x95, 0x98, 0x9A, 0x9B})
"""Reason codes of DISCONNECT that would come again: the client's own mistakes, and administration."""
_V3_REASONS: Final = (0x00, 0x84, 0x85, 0x88, 0x86, 0x87)
"""Return codes of 3.1.1's CONNACK as reason codes of 5.0."""


class RefusedError(PipelineError):
    """The broker does not want this, and will not want it the next time; the message is one line."""


class LostError(PipelineError):
    """There is no connection, now; the message is one line."""


def backoff(attempt: int) -> float:
    """Seconds to wait before an attempt, counted from 0; spread, so that many clients do not come back at once."""
    longest: float = min(FIRST_DELAY * 2 ** min(attempt, 16), LONGEST_DELAY)
    return random.uniform(longest / 2, longest)


class Link:
    """A connection that can be made again and again.

    `session_expiry` 0 is a session that begins clean and ends with the connection. With `hold` nothing is acknowledged
    before ``acknowledge``; without, at once. `receive_maximum` bounds what a broker of MQTT 5.0 sends before that.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        session_expiry: int = 0,
        receive_maximum: int = LARGEST_IDENTIFIER,
        hold: bool = False,
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.on_message: Callable[[Publish], None] | None = None
        self.on_published: Callable[[int, int], None] | None = None
        """Packet identifier and reason code of what is done, or refused."""
        self.session_present = False
        self.generation = 0
        """Counts connections: a packet identifier means something only within one."""
        self.limits = Properties()
        """The properties of CONNACK."""
        self.abandoned = False
        """Any thread may set this: ``connect`` and ``subscribe`` wait no longer, and no CONNECT goes out any more."""
        self.unanswered: dict[int, bytes] = {}
        """What was published and is not done: its frame by packet identifier; empty after PUBREC."""
        self._version = packets.V5 if broker.version == "5" else packets.V311
        self._expiry = session_expiry
        self._receive_maximum = receive_maximum
        self._hold = hold
        self._wire: Wire | None = None
        self._decoder = Decoder(LARGEST_PACKET, False, self._version)
        self._unreleased: set[int] = set()
        """Packet identifiers of QoS 2 messages whose PUBREC went out, and whose PUBREL has not come."""
        self._identifier = 0
        self._answer: packets.Connack | None = None
        self._granted: dict[int, list[int]] = {}
        self._ended: int | None = None
        """The reason code of the broker's DISCONNECT."""
        self._why = ""
        self._keep_alive = float(broker.keep_alive)
        self._wrote = self._heard = 0.0

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as anybody knows."""
        return self._wire is not None and self._answer is not None

    @property
    def unwritten(self) -> int:
        """Bytes that wait to be written."""
        return 0 if self._wire is None else self._wire.unwritten

    def connect(self) -> None:
        """Connect, anew after a loss, and wait for CONNACK. At most twice the option `connect_timeout`.

        Raises:
            RefusedError: it makes no sense to try again.
            LostError: it may be better the next time.
        """
        self._drop()
        self._answer = self._ended = None
        where = self.broker.url
        tls = _tls(self.broker) if self.broker.tls else None
        try:
            wire = Wire(self.broker.host, self.broker.port, self.broker.connect_timeout, tls)
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(f"{where}: its certificate is not trusted ({error.verify_message})") from None
        except OSError as error:
            raise LostError(f"{where}: no connection ({error.strerror or error})") from None
        if self.abandoned:
            # Between the connection and CONNECT, which would take the session from whoever has the client id by now.
            wire.close()
            self._go_on()
        self._decoder = Decoder(LARGEST_PACKET, False, self._version)
        self._wire = wire
        self._heard = time.monotonic()
        self._send(self._connect_packet())
        answer = self._connack()
        if answer is None:
            self._drop()
            raise LostError(f"{where}: no CONNACK; is an MQTT broker of version {self.broker.version} there?")
        code = answer.reason_code if self._version == packets.V5 else _V3_REASONS[answer.reason_code]
        if code >= REFUSAL:
            self._drop()
            said = f"{where}: the broker refuses client id {self.client_id!r}: {told(code)}"
            raise LostError(said) if code in _PASSING else RefusedError(said)
        for identifier, frame in list(self.unanswered.items()):
            self._wire.write(frame or encoder.ack(packets.PUBREL, identifier, 0, self._version))

    def _connect_packet(self) -> Packet:
        properties = Properties()
        if self._version == packets.V5:
            properties.integers[names.RECEIVE_MAXIMUM] = self._receive_maximum
            if self._expiry:
                properties.integers[names.SESSION_EXPIRY_INTERVAL] = self._expiry
        password = self.broker.password
        return packets.Connect(
            self.client_id,
            self._version,
            clean_start=not self._expiry,
            keep_alive=self.broker.keep_alive,
            user_name=self.broker.user_name,
            password=None if password is None else password.encode(),
            properties=properties,
        )

    def _connack(self) -> packets.Connack | None:
        deadline = time.monotonic() + self.broker.connect_timeout
        while self._answer is None and self._wire is not None and time.monotonic() < deadline:
            self._go_on()
            self._exchange(0.1)
        return self._answer

    def _go_on(self) -> None:
        if self.abandoned:
            self._drop()
            raise LostError(f"{self.broker.url}: the connection is not wanted any more")

    def subscribe(self, filters: Sequence[str], qos: int, gone: Sequence[str] = ()) -> None:
        """Subscribe, wait for SUBACK, and unsubscribe what is `gone`. Messages may arrive meanwhile.

        With MQTT 5.0 retained messages come only for a subscription that was not there before.

        Raises:
            RefusedError: the broker refuses a filter.
            LostError: there is no connection any more, or no SUBACK.
        """
        if gone:
            self._send(packets.Unsubscribe(self._next_identifier(), list(gone)))
        handling = RETAIN_IF_NEW if self._version == packets.V5 else 0
        number = self._next_identifier()
        self._send(
            packets.Subscribe(number, [SubscriptionRequest(each, qos, retain_handling=handling) for each in filters])
        )
        deadline = time.monotonic() + self.broker.connect_timeout
        while number not in self._granted:
            self._go_on()
            self.step(0.1)
            if time.monotonic() > deadline:
                raise LostError(f"{self.broker.url}: no SUBACK")
        for topic_filter, reason in zip(filters, self._granted.pop(number), strict=False):
            if reason >= REFUSAL:
                raise RefusedError(f"{self.broker.url}: the broker refuses the filter {topic_filter!r}: {told(reason)}")

    def step(self, timeout: float) -> None:
        """Read and write what there is; wait at most `timeout` seconds for something to come.

        Raises:
            RefusedError: the broker ended the connection for a reason that stays.
            LostError: the connection is lost.
        """
        if self._wire is not None:
            self._exchange(timeout)
            self._stay_alive()
        if self._wire is not None:
            return
        if self._ended is not None and self._ended in _LASTING:
            hint = "; each query needs its own client_id" if self._ended == reasons.SESSION_TAKEN_OVER else ""
            raise RefusedError(f"{self.broker.url}: the broker ends the connection: {told(self._ended)}{hint}")
        why = told(self._ended) if self._ended is not None else self._why
        raise LostError(f"{self.broker.url}: the connection is lost{f' ({why})' if why else ''}")

    def stay(self) -> None:
        """Stay connected without reading: PINGREQ where one is due. A failure shows at the next ``step``."""
        if self._wire is None:
            return
        # Nobody listens: that nothing is heard says nothing of the broker.
        self._heard = time.monotonic()
        self._stay_alive()
        with suppress(OSError):
            self._wire.flush()

    def publish(self, packet: Publish) -> int:
        """Send a message; with QoS 1 and 2 it is kept until it is done, and sent on the next connection too. Its packet
        identifier, 0 with QoS 0.

        Raises:
            ValueError: no PUBLISH can carry it.
        """
        if packet.qos:
            packet.packet_id = self._next_identifier()
        frame = encoder.publish(packet, self._version)
        if packet.qos:
            self.unanswered[packet.packet_id] = frame
        if self._wire is not None:
            self._wire.write(frame)
        return packet.packet_id

    def acknowledge(self, generation: int, identifiers: Sequence[tuple[int, int]]) -> None:
        """PUBACK or PUBREC, by packet identifiers and QoS, if the messages came on this connection; otherwise the
        broker sends them again."""
        if generation != self.generation:
            return
        answers = bytearray()
        for identifier, qos in identifiers:
            # Two bytes of an acknowledgement that says "success", in both versions.
            answers += (b"\x40\x02" if qos == 1 else b"\x50\x02") + identifier.to_bytes(2, "big")
            if qos == 2:
                # Also where it cannot be written any more: what comes again under this identifier is on disk.
                self._unreleased.add(identifier)
        if self._wire is not None:
            self._wire.write(bytes(answers))

    def close(self) -> None:
        """DISCONNECT; the session stays as long as it may. For good."""
        self.on_message = None
        if self.connected:
            self._send(packets.Disconnect())
            deadline = time.monotonic() + 1.0
            while self.unwritten and time.monotonic() < deadline:
                self._exchange(0.05)
        self._drop()

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = None

    def _next_identifier(self) -> int:
        for _ in range(LARGEST_IDENTIFIER):
            self._identifier = self._identifier % LARGEST_IDENTIFIER + 1
            if self._identifier not in self.unanswered:
                break
        return self._identifier

    def _send(self, packet: Packet) -> None:
        if self._wire is not None:
            self._wire.write(encoder.encode(packet, self._version))
            self._wrote = time.monotonic()

    def _stay_alive(self) -> None:
        now = time.monotonic()
        if self._wire is not None and now - self._heard > 1.5 * self._keep_alive:
            self._why = "the broker is silent"
            self._drop()
        # In half of it, whatever else was written: an answer is due then, which tells a dead connection.
        elif now - self._wrote > self._keep_alive / 2:
            self._send(packets.Pingreq())

    def _exchange(self, timeout: float) -> None:
        """One read, and what it asks for. Where the connection ends ``_wire`` is None."""
        assert self._wire is not None
        decoder = self._decoder
        try:
            data = self._wire.exchange(timeout)
            if not data:
                return
            self._heard = time.monotonic()
            decoder.feed(data)
            while decoder.next_frame():
                if decoder.header >> 4 == packets.PUBLISH:
                    self._arrived(decoder.publish())
                else:
                    self._other(decoder.packet())
                    if self._ended is not None:
                        return
        except ProtocolError as error:
            self._why = f"the broker breaks the protocol: {error}"
            self._drop()
        except OSError as error:
            self._why = error.strerror or ""
            self._drop()

    def _arrived(self, packet: Publish) -> None:
        if packet.topic_alias:
            raise TopicAliasInvalid("a topic alias, which was not allowed")
        if packet.qos == 2 and packet.packet_id in self._unreleased:
            # Sent again by a broker that had no PUBREC: the same message [MQTT-4.3.3-10].
            self.acknowledge(self.generation, [(packet.packet_id, 2)])
            return
        if self.on_message is not None:
            self.on_message(packet)
        if packet.qos and not self._hold:
            self.acknowledge(self.generation, [(packet.packet_id, packet.qos)])

    def _other(self, packet: Packet) -> None:
        if isinstance(packet, packets.Ack):
            self._acknowledged(packet)
        elif isinstance(packet, packets.Connack) and self._answer is None:
            self._connected(packet)
        elif isinstance(packet, packets.Suback):
            self._granted[packet.packet_id] = packet.reason_codes
        elif isinstance(packet, packets.Disconnect):
            self._ended = packet.reason_code
            self._drop()
        elif not isinstance(packet, packets.Pingresp | packets.Unsuback):
            raise ProtocolViolation(f"a {packets.NAMES[packet.kind]} that nobody asked for")

    def _connected(self, packet: packets.Connack) -> None:
        self._answer = packet
        self.session_present = packet.session_present
        self.limits = packet.properties
        self._keep_alive = float(packet.properties.integers.get(names.SERVER_KEEP_ALIVE, self.broker.keep_alive))
        # Here and not in ``connect``: messages may follow CONNACK at once.
        self.generation += 1
        if not self.session_present:
            self._unreleased.clear()

    def _acknowledged(self, packet: packets.Ack) -> None:
        identifier = packet.packet_id
        if packet.kind == packets.PUBREL:
            # What it asks for is on disk.
            self._unreleased.discard(identifier)
            self._send(packets.Ack(packets.PUBCOMP, identifier))
        elif packet.kind == packets.PUBREC and packet.reason_code < REFUSAL:
            if identifier in self.unanswered:
                self.unanswered[identifier] = b""
            self._send(packets.Ack(packets.PUBREL, identifier))
        elif self.unanswered.pop(identifier, None) is not None and self.on_published is not None:
            # PUBCOMP tells of no refusal: what it may say is that the broker has no such message any more.
            self.on_published(identifier, 0 if packet.kind == packets.PUBCOMP else packet.reason_code)


def told(reason: int) -> str:
    """A reason code for people, as in `Not authorized (0x87)`."""
    return f"{reasons.name(reason)} (0x{reason:02X})"


def _tls(broker: Broker) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=broker.ca)
        if broker.cert is not None:
            context.load_cert_chain(broker.cert, broker.key)
    except (ssl.SSLError, OSError) as error:
        raise RefusedError(f"option 'tls_ca', 'tls_cert' or 'tls_key' names a file that is no PEM ({error})") from error
    if broker.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
