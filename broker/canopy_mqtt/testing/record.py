"""The messages published on a broker under test: by clients, as wills, and by the test itself.

Owns the list of messages, bounded in number and bytes. It records them with a tap (`canopy_mqtt.record.tap`), as the
recorder does, so that no additional subscriber counts, acknowledges or is visible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

from canopy_mqtt import Broker
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import V5, V311
from canopy_mqtt.core.codec.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    RESPONSE_TOPIC,
    Properties,
    decode_forward,
)
from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.core.queues.message import Message as Retained
from canopy_mqtt.record.tap import PUBLISH, RUN, Sink, Tap

MAX_MESSAGES: Final = 100_000
"""Messages that are remembered; the oldest go first. A test that publishes more counts them itself."""

MAX_BYTES: Final = 67_108_864
"""Bytes of their payloads."""


@dataclass(frozen=True)
class Message:
    """An application message. `publisher`: its client identifier, "" for the test's own; `expiry`: s, None: never."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    publisher: str = ""
    expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The payload as text; what is no UTF-8 is replaced."""
        return self.payload.decode("utf-8", "replace")

    def __str__(self) -> str:
        shown = self.payload[:60]
        flags = f"qos={self.qos}" + (", retain" if self.retain else "")
        rest = f"… ({len(self.payload)} bytes)" if len(self.payload) > 60 else ""
        by = f" from {self.publisher!r}" if self.publisher else ""
        return f"{self.topic}: {shown!r}{rest} ({flags}){by}"


def of_retained(message: Retained, now: float) -> Message:
    """Convert a retained message of the broker. `now`: its clock (s)."""
    return _message(
        message.topic,
        message.payload(),
        message.qos,
        True,
        message.properties,
        message.remaining_expiry(now),
        message.publisher,
    )


class Record(Sink):
    """The messages of one broker under test, over its restarts. Everything runs in the broker's loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when something has happened; what it was can be seen in the next round of the loop."""
        self._changed = changed
        self._tap: Tap | None = None
        self._broker: Broker | None = None
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self.forgotten = 0
        # Messages so far, those included that are forgotten.
        self.added = 0

    def attach(self, broker: Broker) -> None:
        """Listen to a broker that has started."""
        self.hand_over()
        self._broker = broker
        self._tap = Tap(self._clock, self, bytearray(8), 0, 0, False)
        broker.router.record(self._tap, ["#"])

    def _clock(self) -> int:
        self._changed()
        return monotonic_ns()

    def messages(self, topic_filter: str) -> list[Message]:
        """Return the messages whose topic the filter matches, in order."""
        self.hand_over()
        return [message for message in self._messages if matches(topic_filter, message.topic)]

    def newest(self, topic_filter: str, since: int) -> list[Message]:
        """Return those of them that came when `added` was `since` or more."""
        self.hand_over()
        count = min(self.added - since, len(self._messages))
        new = [self._messages[at] for at in range(-count, 0)]
        return [message for message in new if matches(topic_filter, message.topic)]

    def clients(self) -> list[str]:
        """The client identifiers of the connected clients."""
        sessions = {} if self._broker is None else self._broker.router.sessions
        return sorted(name for name, session in sessions.items() if session.send_buffer is not None)

    def clear(self) -> None:
        """Forget all."""
        self.hand_over()
        self._messages.clear()
        self._bytes = self.forgotten = 0

    def hand_over(self) -> None:
        """Take what the tap has collected."""
        if self._tap is None:
            return
        for entry in self._tap.take(False):
            if entry[0] == PUBLISH:
                _, _, _, topic, payload, qos, retain, forward, expiry, publisher, _ = entry
                self._add(_message(topic, payload, qos, retain, forward, expiry, publisher))
            elif entry[0] == RUN:
                _, _, _, data, _, v5, publisher = entry
                decoder = Decoder(MAX_PACKET, True, V5 if v5 else V311)
                decoder.feed(data)
                while decoder.next_frame():
                    packet = decoder.publish()
                    self._add(_message(packet.topic, packet.payload, 0, False, b"", -1, publisher))

    def _add(self, message: Message) -> None:
        self.added += 1
        self._messages.append(message)
        self._bytes += len(message.payload)
        while len(self._messages) > MAX_MESSAGES or self._bytes > MAX_BYTES:
            self._bytes -= len(self._messages.popleft().payload)
            self.forgotten += 1


def _message(
    topic: bytes, payload: bytes, qos: int, retain: bool, forward: bytes, expiry: int, publisher: str
) -> Message:
    held = decode_forward(forward) if forward else Properties()
    return Message(
        topic.decode(),
        payload,
        qos,
        retain,
        publisher,
        None if expiry < 0 else expiry,
        held.strings.get(CONTENT_TYPE),
        held.strings.get(RESPONSE_TOPIC),
        held.binaries.get(CORRELATION_DATA),
        tuple(held.user),
    )
