"""Asks plug-ins about clients' messages, which they may change or refuse, and tells them of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import is_system, validate_topic
from canopy_mqtt.core.hooks import LossListener, MessageHook
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.hooks.interface import Published
from canopy_mqtt.hooks.plugin_calls import PluginCalls, code_of
from canopy_mqtt.inprocess.properties import Properties


class HookedMessages(MessageHook):
    """Asks plug-ins about each message of a client. `clock`: seconds, as the core counts them."""

    def __init__(self, calls: PluginCalls, publish: list[Any], retained: list[Any], clock: Callable[[], float]) -> None:
        super().__init__()
        self._calls = calls
        self._publish = publish
        self._retained = retained
        self._clock = clock

    def publish(self, principal: Principal, message: Message, will: bool) -> Message | None:
        """Return the message to route in place of this one; None: it is refused."""
        if not self._publish:
            return message
        now = self._clock()
        properties = Properties.decoded(message.properties, message.remaining_expiry(now))
        topic = message.topic.decode()
        shown = Published(topic, message.payload(), message.qos, message.retain, properties, will)
        try:
            for method in self._publish:
                code = code_of(method(principal, shown))
                if code >= 0x80:
                    self.reason_code = code
                    return None
            return self._changed(message, shown, topic, properties, now)
        except Exception as error:
            self._calls.failed(error)
            self.reason_code = reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
            return None

    def _changed(self, message: Message, shown: Published, topic: str, properties: Properties, now: float) -> Message:
        """Return the changed message, or the original one if nothing was changed. Raises ValueError for invalid
        changes.
        """
        payload = bytes(shown.payload)
        if (
            shown.topic == topic
            and payload == message.payload()
            and shown.qos == message.qos
            and shown.retain == message.retain
            and shown.properties is properties
        ):
            return message
        if shown.topic != topic:
            try:
                validate_topic(shown.topic)
            except ProtocolError as error:
                raise ValueError(f"a plug-in has given a message the topic {shown.topic!r}: {error}") from error
            if is_system(shown.topic.encode()):
                raise ValueError(f"a plug-in has given a message the topic {shown.topic!r}, which is the broker's")
        if not 0 <= shown.qos <= message.qos:
            raise ValueError(f"a plug-in has given a message of QoS {message.qos} the QoS {shown.qos}")
        expires_at, encoded = message.expires_at, message.properties
        if shown.properties is not properties:
            expiry = shown.properties.message_expiry_interval
            expires_at = 0.0 if expiry is None else now + expiry
            encoded = shown.properties.encoded()
        return Message(
            shown.topic.encode(), payload, shown.qos, bool(shown.retain), encoded, expires_at, message.publisher
        )

    def retained(self, message: Message) -> None:
        if self._retained:
            self._calls.notify(self._retained, message.topic.decode(), message.payload())


class HookedLosses(LossListener):
    """Tells plug-ins of losses."""

    def __init__(self, calls: PluginCalls, drop: list[Any]) -> None:
        super().__init__()
        self._calls = calls
        self._drop = drop

    def lost_messages(self, client_id: str, cause: int, count: int) -> None:
        self._calls.notify(self._drop, client_id, DROP_CAUSES[cause], count)
