"""The topic aliases that we give to one connected peer (section 3.3.2.3.4), and the frames with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.queues.delivery import Delivery

if TYPE_CHECKING:
    from mypy_extensions import i64


class TopicAliases:
    """Those of one connection; `maximum` is the peer's Topic Alias Maximum. First come, first served."""

    def __init__(self, maximum: i64) -> None:
        self._maximum: i64 = maximum
        self._known: dict[bytes, int] = {}

    def frame(self, delivery: Delivery, v5: bool, expiry: int, dup: bool, max_packet: i64) -> bytes:
        """The frame of a delivery with the alias of its topic, if it has one or one is left to give.

        Without where it would be longer than `max_packet` bytes only by what sets the alias.
        """
        known_aliases = self._known
        topic = delivery.message.topic
        known = known_aliases.get(topic, 0)
        alias = known
        if alias == 0 and len(known_aliases) < self._maximum:  # [MQTT-3.3.2-11]
            alias = len(known_aliases) + 1
        if alias > 0:
            frame = delivery.frame(v5, expiry, dup, alias, known == 0)
            # What fits only by its topic alone goes out by its topic alone, and sets nothing [MQTT-3.1.2-25].
            if len(frame) <= max_packet:
                if known == 0:
                    known_aliases[topic] = alias
                return frame
        return delivery.frame(v5, expiry, dup, 0, True)
