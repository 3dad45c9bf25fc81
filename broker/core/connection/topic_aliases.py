"""The topic aliases that one client has set (section 3.3.2.3.4)."""

from __future__ import annotations

from broker.core.codec.errors import ProtocolViolation, TopicAliasInvalid
from broker.core.limits import Limits


class TopicAliases:
    """Alias to topic name, for the life of one connection."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._topics: dict[int, bytes] = {}

    def resolve(self, topic: bytes, alias: int) -> bytes:
        """The topic name of an alias: set when `topic` is not empty, used when it is.

        Any from 1 (the decoder refuses 0) to the maximum that was announced is taken [MQTT-3.3.2-12], and none above
        it [MQTT-3.2.2-17]: with a maximum of 0, which is announced by saying nothing, none at all [MQTT-3.2.2-18].

        Raises:
            TopicAliasInvalid: the alias is above the maximum.
            ProtocolViolation: it was never set.
        """
        if alias > self._limits.topic_alias_maximum:
            raise TopicAliasInvalid(f"topic alias {alias} is above the maximum")  # [MQTT-3.3.2-9]
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolViolation(f"topic alias {alias} was never set")
        return known
