"""One task's connection of the sink: it publishes with a window, and waits for all acknowledgements.

Owns: at most `window` messages without an acknowledgement, and not more than the broker's Receive Maximum.

Promises: ``finish`` returns only when every message is acknowledged (QoS 1: PUBACK, QoS 2: PUBCOMP) or, with QoS 0,
written. A lost connection is made again, and what was not acknowledged is sent again; when nothing was acknowledged
for `connect_timeout`, or over `MAX_LOSSES` connections in a row, the task fails. So does it when a message is refused.
"""

from __future__ import annotations

import time
from typing import Final

from canopy_mqtt.client.failures import FAILURE, ClientError, NotSupportedError, backoff, told
from canopy_mqtt.client.machine import Delivered
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.words import counted
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.mqtt.link import broker_client, failed
from canopy_pipeline.mqtt.message import Message
from canopy_pipeline.mqtt.mqtt_options import SinkOptions

MAX_LOSSES: Final = 5
"""Connections in a row that may be lost without one acknowledgement; the broker may close them for their messages."""
TICK: Final = 0.05
"""Seconds to wait for an acknowledgement before the time limit is looked at."""
MAX_UNWRITTEN_BYTES: Final = 1 << 20
"""Bytes that may wait for the socket before ``publish`` waits for it."""
HINTS: Final = {
    reason_codes.QOS_NOT_SUPPORTED: ": set option 'qos'",
    reason_codes.RETAIN_NOT_SUPPORTED: ": leave the column 'retain' out",
}
"""The remedies for a message that the broker does not take."""


class Publisher:
    """Connects at once.

    Raises:
        PipelineError: there is no connection within `connect_timeout`, or the broker refuses it.
    """

    def __init__(self, options: SinkOptions, client_id: str) -> None:
        self._options = options
        self._five = options.version == "5"
        self._waiting: dict[int, str] = {}
        """The topics of unacknowledged messages, by packet identifier."""
        self._failure: PipelineError | None = None
        self._losses = 0
        self._progress = time.monotonic()
        self._link = broker_client(options, client_id)
        self._link.on_delivered = self._delivered
        try:
            self._connect()
        except BaseException:
            self._link.disconnect()
            raise

    def publish(self, message: Message) -> None:
        """Send one message, after waiting for room in the window.

        Raises:
            PipelineError: it, or one before it, cannot be published.
        """
        while len(self._waiting) >= self._window:
            self._step()
        if not self._link.connected:
            self._step()
        try:
            number = self._link.publish(self._packet(message))
        except NotSupportedError as error:
            why = f"{error}{HINTS.get(error.reason_code, '')}"
            raise PipelineError(f"a message to {message.topic!r} cannot be published: {why}") from error
        if number:
            self._waiting[number] = message.topic
        if len(self._waiting) * 2 >= self._window or self._link.unwritten > MAX_UNWRITTEN_BYTES:
            self._step(0.0 if self._link.unwritten <= MAX_UNWRITTEN_BYTES else TICK)

    def finish(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            PipelineError: a message is refused, or there are no acknowledgements.
        """
        while self._waiting or (self._link.unwritten and self._link.connected):
            self._step()
        self._told()

    def close(self) -> None:
        self._link.disconnect()

    @property
    def _window(self) -> int:
        return min(self._options.window, self._link.machine.window)

    def _connect(self) -> None:
        deadline = time.monotonic() + self._options.connect_timeout
        attempt = 0
        while True:
            try:
                self._link.connect()
            except ClientError as error:
                if error.lasting or time.monotonic() >= deadline:
                    raise failed(error) from error
            else:
                return
            time.sleep(backoff(attempt))
            attempt += 1

    def _step(self, timeout: float = TICK) -> None:
        self._told()
        before = len(self._waiting)
        try:
            self._link.step(timeout)
        except ClientError as error:
            if error.lasting:
                raise failed(error) from error
            self._losses += 1
            if self._losses >= MAX_LOSSES:
                raise PipelineError(f"{error}; {MAX_LOSSES} times without an acknowledgement") from error
            # What was to be sent with QoS 0 went with the connection.
            self._connect()
            self._progress = time.monotonic()
        if len(self._waiting) < before:
            self._progress, self._losses = time.monotonic(), 0
        limit = self._options.connect_timeout
        if self._waiting and time.monotonic() - self._progress > limit:
            raise PipelineError(
                f"{self._options.url}: no acknowledgement for {limit:g} s; "
                f"{counted(len(self._waiting), 'message')} without one"
            )
        self._told()

    def _told(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _packet(self, message: Message) -> Publish:
        packet = Publish(message.topic.encode(), message.payload, message.qos, message.retain)
        if self._five and (message.properties or message.user_properties):
            given = dict(message.properties)
            packet.message_expiry = given.pop("message_expiry", -1)
            packet.properties = encode_forward(**given, user=list(message.user_properties))
        return packet

    def _delivered(self, what: Delivered) -> None:
        topic = self._waiting.pop(what.packet_id, None)
        if what.reason_code >= FAILURE and self._failure is None:
            self._failure = PipelineError(
                f"{self._options.url}: the broker refuses a message to {topic!r}: {told(what.reason_code)}"
            )
