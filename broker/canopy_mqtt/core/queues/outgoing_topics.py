"""The names of topics in the frames for one peer, where they differ from those for others: aliases, and a mount."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message


class _Last:
    """The message that was asked for last, as the peers of a mount know it: those of one fan-out share its frames."""

    def __init__(self) -> None:
        self.message: Message | None = None
        self.mount = b""
        self.unmounted: Message | None = None


_LAST: Final = _Last()


class OutgoingTopics:
    """The topic names of one connection. Aliases are given to the first topics that come.

    `maximum` is the peer's Topic Alias Maximum, `mount` the prefix that its topics omit.
    """

    def __init__(self, maximum: i64, mount: bytes = b"") -> None:
        self._maximum: i64 = maximum
        self.mount = mount
        self._known: dict[bytes, int] = {}

    def unmounted(self, message: Message) -> Message | None:
        """Return the message as the peer knows it; None: the peer has no name for its topic, and is not sent it."""
        if not self.mount:
            return message
        last = _LAST
        if last.message is not message or last.mount != self.mount:
            last.unmounted = message.unmounted(self.mount)
            last.message = message
            last.mount = self.mount
        return last.unmounted

    def shared_frame(self, delivery: Delivery, v5: bool) -> bytes | None:
        """Return the frame of a QoS 0 delivery if all peers of the mount get the same one; else None: it is made later.

        Not where the peer has aliases, nor for a delivery with something of its own.
        """
        if self._maximum > 0 or delivery.retain or len(delivery.identifiers) > 0 or delivery.message_terms is not None:
            return None
        known = self.unmounted(delivery.message)
        return known.qos0_frame(v5) if known is not None and known.shared_frame_suits() else None

    def frame(self, delivery: Delivery, v5: bool, expiry: int, dup: bool, max_packet: i64) -> bytes:
        """Return the frame of a delivery with the alias of its topic, if it has one or there is one to give.

        Without an alias where only setting it would make the frame longer than `max_packet` bytes.
        """
        message = self.unmounted(delivery.message)
        assert message is not None  # `SendBuffer.refusal` has kept it back
        known_aliases = self._known
        topic = delivery.message.topic
        known = known_aliases.get(topic, 0)
        alias = known
        if alias == 0 and len(known_aliases) < self._maximum:  # [MQTT-3.3.2-11]
            alias = len(known_aliases) + 1
        if alias > 0:
            frame = delivery.frame(message, v5, expiry, dup, alias, known == 0)
            # A frame that fits only by its topic alone goes out by that, and sets nothing [MQTT-3.1.2-25].
            if len(frame) <= max_packet:
                if known == 0:
                    known_aliases[topic] = alias
                return frame
        return delivery.frame(message, v5, expiry, dup, 0, True)
