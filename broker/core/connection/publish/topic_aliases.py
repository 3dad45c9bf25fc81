"""The topic aliases that one client has set (section 3.3.2.3.4), and their memory.

Their bytes are counted for each client and for all (`Router.alias_bytes`), and limited by the settings. A client that
connects while most of the total is used gets Topic Alias Maximum 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec import reasons
from broker.core.codec.errors import ProtocolViolation, Refused, TopicAliasInvalid
from broker.core.routing.router import Router

if TYPE_CHECKING:
    from mypy_extensions import i64

ALIAS_BYTES: Final = 160
"""What an alias counts for beside its topic name: the table's place, and two objects' heads."""


def plenty(router: Router) -> bool:
    """Whether a client that connects now may set aliases: a quarter of the bound over all is left."""
    bound = router.limits.max_alias_bytes
    return bound == 0 or router.alias_bytes < bound - bound // 4


class TopicAliases:
    """Alias to topic name, for the life of one connection."""

    def __init__(self, router: Router, maximum: int) -> None:
        """`maximum`: the Topic Alias Maximum that the client was told."""
        self._router = router
        self._maximum = maximum
        self._topics: dict[int, bytes] = {}
        self._bytes: i64 = 0

    def resolve(self, topic: bytes, alias: int) -> bytes:
        """The topic name of an alias: set when `topic` is not empty, used when it is.

        Any from 1 (the decoder refuses 0) to the maximum that was announced is taken [MQTT-3.3.2-12], and none above
        it [MQTT-3.2.2-17]: with a maximum of 0, which is announced by saying nothing, none at all [MQTT-3.2.2-18].

        Raises:
            TopicAliasInvalid: the alias is above the maximum.
            ProtocolViolation: it was never set.
            Refused: 0x97: the aliases of this client, or of all, would take more bytes than the settings allow.
        """
        if alias > self._maximum:
            raise TopicAliasInvalid(f"topic alias {alias} is above the maximum")  # [MQTT-3.3.2-9]
        known = self._topics.get(alias)
        if topic:
            grown: i64 = len(topic) + ALIAS_BYTES if known is None else len(topic) - len(known)
            self._charge(grown)
            self._topics[alias] = topic
            return topic
        if known is None:
            raise ProtocolViolation(f"topic alias {alias} was never set")
        return known

    def _charge(self, grown: i64) -> None:
        router = self._router
        limits = router.limits
        if grown > 0:
            if 0 < limits.max_alias_bytes_per_client < self._bytes + grown:
                raise Refused(
                    f"topic aliases of more than {limits.max_alias_bytes_per_client} bytes", reasons.QUOTA_EXCEEDED
                )
            if 0 < limits.max_alias_bytes < router.alias_bytes + grown:
                raise Refused("the broker has no room for more topic aliases", reasons.QUOTA_EXCEEDED)
        self._bytes += grown
        router.alias_bytes += grown

    def forget(self) -> None:
        """The connection is over, and its aliases with it [MQTT-3.3.2-7]."""
        self._topics = {}
        self._router.alias_bytes -= self._bytes
        self._bytes = 0
