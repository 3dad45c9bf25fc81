"""Plug-ins on the way of messages: those that change or refuse what clients publish, and those that hear of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.codec import reasons
from broker.core.codec.errors import ProtocolError
from broker.core.codec.topic_names import is_system, validate_topic
from broker.core.counters import DROP_CAUSES
from broker.core.hooks import MessageHook
from broker.core.principal import Principal
from broker.core.queues.message import Message
from broker.core.queues.queue_totals import LossRecorder
from broker.hooks.calls import Calls, code_of
from broker.hooks.interface import Published
from broker.inprocess.properties import Properties


class HookedMessages(MessageHook):
    """Asks plug-ins about each message of a client. `clock`: seconds, as the core counts them."""

    def __init__(self, calls: Calls, publish: list[Any], retained: list[Any], clock: Callable[[], float]) -> None:
        super().__init__()
        self._calls = calls
        self._publish = publish
        self._retained = retained
        self._clock = clock

    def publish(self, principal: Principal, message: Message, will: bool) -> Message | None:
        """What is routed in place of a message; None: nothing is."""
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
            self.reason_code = reasons.IMPLEMENTATION_SPECIFIC_ERROR
            return None

    def _changed(self, message: Message, shown: Published, topic: str, properties: Properties, now: float) -> Message:
        """The message itself where nothing was changed. Raises ValueError for what could not be published."""
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
            self._calls.tell(self._retained, message.topic.decode(), message.payload())


class HookedLosses(LossRecorder):
    """Tells plug-ins of losses, and whoever records them."""

    def __init__(self, calls: Calls, drop: list[Any], recorder: LossRecorder | None) -> None:
        super().__init__()
        self._calls = calls
        self._drop = drop
        self._recorder = recorder
        self.deliveries = recorder is not None and recorder.deliveries

    def lost_messages(self, client_id: str, cause: int, count: int) -> None:
        if self._recorder is not None:
            self._recorder.lost_messages(client_id, cause, count)
        self._calls.tell(self._drop, client_id, DROP_CAUSES[cause], count)
