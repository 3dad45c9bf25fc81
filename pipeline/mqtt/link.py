"""One connection to a broker, driven by the thread that uses it, on paho-mqtt.

Owns: CONNECT, SUBSCRIBE, what their answers mean, and when acknowledgements go out. Nothing happens between two calls
of ``step``: no thread of paho's runs, so a message is never acknowledged beside the disk that is to hold it.

Promises: a failure that would come again the same way is a ``RefusedError`` (credentials, certificates, a refused
filter, another client with the same identifier); everything else is a ``LostError``, and ``connect`` may be called
again.
"""

from __future__ import annotations

import random
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from pipeline.errors import PipelineError
from pipeline.mqtt.options import Broker

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 10.0
"""Seconds between two attempts to connect."""
REFUSAL: Final = 0x80
"""From this reason code on it is one."""

_PASSING: Final = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
"""Reason codes of CONNACK that another attempt may not get: unspecified, implementation, unavailable, busy, quota,
rate."""
_TAKEN_OVER: Final = 0x8E
_PACKET_TOO_LARGE: Final = 0x95
_LASTING: Final = frozenset({0x81, 0x82, 0x87, _TAKEN_OVER, 0x90, 0x94, _PACKET_TOO_LARGE, 0x98, 0x9A, 0x9B})
"""Reason codes of DISCONNECT that would come again: the client's own mistakes, and administration."""


class RefusedError(PipelineError):
    """The broker does not want this, and will not want it the next time; the message is one line."""


class LostError(PipelineError):
    """There is no connection, now; the message is one line."""


def backoff(attempt: int) -> float:
    """Seconds to wait before an attempt, counted from 0; spread, so that many clients do not come back at once."""
    longest: float = min(FIRST_DELAY * 2 ** min(attempt, 16), LONGEST_DELAY)
    return random.uniform(longest / 2, longest)


class _Client(paho.Client):
    """paho, with acknowledgements of QoS 2 held back as those of QoS 1 are. For one thread."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.holding = bool(keywords.get("manual_ack"))
        self.unreleased: set[int] = set()
        """Packet identifiers whose PUBREC went out, and whose PUBREL has not come."""
        self.on_refused: Callable[[int, ReasonCode], None] | None = None
        super().__init__(*args, **keywords)

    def _send_pubrec(self, mid: int) -> MQTTErrorCode:
        if self.holding and mid not in self.unreleased:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._send_pubrec(mid)

    def _handle_publish(self) -> MQTTErrorCode:
        code = super()._handle_publish()
        if self.holding and self._in_messages:
            # paho keeps a QoS 2 message until PUBREL; here it is handed over at once.
            arrived = list(self._in_messages.values())
            self._in_messages.clear()
            for message in arrived:
                # Repeated by the sender before it had our PUBREC: the same message [MQTT-4.3.3-10].
                if message.mid not in self.unreleased:
                    self._handle_on_message(message)
        return code

    def _handle_pubrel(self) -> MQTTErrorCode:
        if not self.holding:
            return super()._handle_pubrel()
        self.unreleased.discard(_packet_id(self._in_packet["packet"]))
        # What PUBREL asks for is on disk: paho may answer with PUBCOMP.
        self.manual_ack_set(False)
        try:
            return super()._handle_pubrel()
        finally:
            self.manual_ack_set(True)

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if len(packet) > 2 and packet[2] >= REFUSAL and self.on_refused is not None:
            self.on_refused(_packet_id(packet), ReasonCode(PacketTypes.PUBREC, identifier=packet[2]))
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._handle_pubrec()

    def acknowledge(self, mid: int, qos: int) -> None:
        """PUBACK or PUBREC. A failure to write shows at the next ``loop``."""
        if qos == 1:
            self._send_puback(mid)
        elif qos == 2:
            self.unreleased.add(mid)
            super()._send_pubrec(mid)


def _packet_id(packet: bytes | bytearray) -> int:
    number: int = struct.unpack_from("!H", packet)[0]
    return number


class Link:
    """A connection that can be made again and again.

    `session_expiry` 0 is a session that begins clean and ends with the connection. With `hold` nothing is acknowledged
    before ``acknowledge``. `receive_maximum` bounds what a broker of MQTT 5.0 sends before that.

    paho answers PUBREC as soon as a QoS 2 message arrives, which would lose it in a crash before it is on disk.
    ``_Client`` holds PUBREC back until ``acknowledge``, as paho's `manual_ack` does with PUBACK, and looks at the
    reason code of PUBREC.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        session_expiry: int = 0,
        receive_maximum: int = 65_535,
        hold: bool = False,
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.on_message: Callable[[paho.MQTTMessage], None] | None = None
        self.on_published: Callable[[int, ReasonCode], None] | None = None
        self.session_present = False
        self.generation = 0
        """Counts connections: a packet identifier means something only within one."""
        self.limits: Any = None
        """The properties of CONNACK."""
        self.abandoned = False
        """Any thread may set this: ``connect`` and ``subscribe`` wait no longer, and no CONNECT goes out any more."""
        self._five = broker.version == "5"
        self._persistent = session_expiry > 0
        self._expiry = session_expiry
        self._receive_maximum = receive_maximum
        self._answer: ReasonCode | None = None
        self._granted: dict[int, list[ReasonCode]] = {}
        self._ended: ReasonCode | None = None
        self.client = self._make(hold)

    def _make(self, hold: bool) -> _Client:
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            protocol=paho.MQTTv5 if self._five else paho.MQTTv311,
            clean_session=None if self._five else not self._persistent,
            reconnect_on_failure=False,
            manual_ack=hold,
        )
        client.connect_timeout = self.broker.connect_timeout
        client.max_inflight_messages_set(65_535)
        if self.broker.user_name is not None:
            client.username_pw_set(self.broker.user_name, self.broker.password)
        if self.broker.tls:
            client.tls_set_context(_tls(self.broker))
        client.on_socket_open = self._opened
        client.on_connect = self._connected
        client.on_subscribe = self._subscribed
        client.on_disconnect = self._disconnected
        client.on_message = self._arrived
        client.on_publish = self._published
        client.on_refused = self._refused
        return client

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as anybody knows."""
        return self.client.is_connected() and self.client.socket() is not None

    def connect(self) -> None:
        """Connect, anew after a loss, and wait for CONNACK. At most twice the option `connect_timeout`.

        Raises:
            RefusedError: it makes no sense to try again.
            LostError: it may be better the next time.
        """
        self._answer = self._ended = None
        where = self.broker.url
        properties = None
        if self._five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = self._receive_maximum
            if self._expiry:
                properties.SessionExpiryInterval = self._expiry
        try:
            self.client.connect(
                self.broker.host,
                self.broker.port,
                self.broker.keep_alive,
                clean_start=not self._persistent if self._five else paho.MQTT_CLEAN_START_FIRST_ONLY,
                properties=properties,
            )
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(f"{where}: its certificate is not trusted ({error.verify_message})") from None
        except OSError as error:
            raise LostError(f"{where}: no connection ({error.strerror or error})") from None
        answer = self._connack()
        if answer is None:
            raise LostError(f"{where}: no CONNACK; is an MQTT broker of version {self.broker.version} there?")
        if answer.value >= REFUSAL:
            said = f"{where}: the broker refuses client id {self.client_id!r}: {told(answer)}"
            raise LostError(said) if answer.value in _PASSING else RefusedError(said)

    def _connack(self) -> ReasonCode | None:
        deadline = time.monotonic() + self.broker.connect_timeout
        while self._answer is None and self.client.socket() is not None and time.monotonic() < deadline:
            self._go_on()
            self.client.loop(0.1)
        return self._answer

    def _opened(self, _client: Any, _data: Any, _socket: Any) -> None:
        # Between the connection and CONNECT, which would take the session from whoever has the client id by now.
        if self.abandoned:
            self.client._reset_sockets()
        self._go_on()

    def _go_on(self) -> None:
        if self.abandoned:
            raise LostError(f"{self.broker.url}: the connection is not wanted any more")

    def subscribe(self, filters: Sequence[str], qos: int, gone: Sequence[str] = ()) -> None:
        """Subscribe, wait for SUBACK, and unsubscribe what is `gone`. Messages may arrive meanwhile.

        With MQTT 5.0 retained messages come only for a subscription that was not there before.

        Raises:
            RefusedError: the broker refuses a filter.
            LostError: there is no connection any more, or no SUBACK.
        """
        if gone:
            self.client.unsubscribe(list(gone))
        if self._five:
            options = SubscribeOptions(qos=qos, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
            number = self.client.subscribe([(each, options) for each in filters])[1]
        else:
            number = self.client.subscribe([(each, qos) for each in filters])[1]
        deadline = time.monotonic() + self.broker.connect_timeout
        while number is not None and number not in self._granted:
            self._go_on()
            self.step(0.1)
            if time.monotonic() > deadline:
                raise LostError(f"{self.broker.url}: no SUBACK")
        if number is None:
            raise LostError(f"{self.broker.url}: the connection is lost")
        for topic_filter, reason in zip(filters, self._granted.pop(number), strict=False):
            if reason.value >= REFUSAL:
                raise RefusedError(f"{self.broker.url}: the broker refuses the filter {topic_filter!r}: {told(reason)}")

    def step(self, timeout: float) -> None:
        """Read and write what there is; wait at most `timeout` seconds for something to come.

        Raises:
            RefusedError: the broker ended the connection for a reason that stays.
            LostError: the connection is lost.
        """
        if self.client.socket() is not None:
            self.client.loop(timeout)
        if self.client.socket() is not None:
            return
        if self._ended is not None and self._ended.value in _LASTING:
            hint = "; each query needs its own client_id" if self._ended.value == _TAKEN_OVER else ""
            raise RefusedError(f"{self.broker.url}: the broker ends the connection: {told(self._ended)}{hint}")
        why = f" ({told(self._ended)})" if self._ended is not None else ""
        raise LostError(f"{self.broker.url}: the connection is lost{why}")

    def acknowledge(self, generation: int, mid: int, qos: int) -> None:
        """PUBACK or PUBREC, if the message came on this connection; otherwise the broker sends it again."""
        if qos and generation == self.generation and self.client.socket() is not None:
            self.client.acknowledge(mid, qos)

    def close(self) -> None:
        """DISCONNECT; the session stays as long as it may. For good."""
        self.client.on_message = None
        if self.client.socket() is not None:
            deadline = time.monotonic() + 1.0
            while self.client.want_write() and self.client.socket() is not None and time.monotonic() < deadline:
                self.client.loop(0.05)
            self.client.disconnect()
            while self.client.want_write() and self.client.socket() is not None and time.monotonic() < deadline:
                self.client.loop(0.05)
        self.client._reset_sockets()

    def _connected(self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self.session_present = bool(flags.session_present)
        self.limits = properties
        self._answer = reason
        # Here and not in ``connect``: messages may follow CONNACK at once.
        self.generation += 1
        if not self.session_present:
            self.client.unreleased.clear()

    def _subscribed(self, _client: Any, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        self._granted[mid] = reasons

    def _disconnected(self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            self._ended = reason

    def _arrived(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        if self.on_message is not None:
            self.on_message(message)

    def _published(self, _client: Any, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        if self.on_published is not None:
            self.on_published(mid, reason)

    def _refused(self, mid: int, reason: ReasonCode) -> None:
        if self.on_published is not None:
            self.on_published(mid, reason)


def told(reason: ReasonCode) -> str:
    """A reason code for people, as in `Not authorized (0x87)`."""
    return f"{reason} (0x{reason.value:02X})"


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
