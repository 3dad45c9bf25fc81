"""Publishes a message: routes it to all receivers, and retains it if asked.

Owns the order of the two. Messages from a connection take shorter paths if possible (`publish.publishing`).
"""

from __future__ import annotations

from typing import Final

from broker.core.limits import Limits
from broker.core.queues.message import Message
from broker.core.queues.requests import Request, RequestMessage
from broker.core.routing.receivers.fanout import Fanout
from broker.core.routing.retained.store import RetainedStore
from broker.core.session.session import Session

MISS_WORK: Final = 24
MISS_LEVEL_WORK: Final = 4
MISS_LENGTH_WORK: Final = 4
"""What a topic that no cache knows counts for in a turn, as deliveries, beside the walk through the trie: each level of
it as well, and one for so many bits of its length (16 bytes). Its route is made, and stands in the tree of the cached
topics."""


class Publisher:
    """Publishes for clients, wills and the broker itself."""

    def __init__(self, limits: Limits, fanout: Fanout, retained: RetainedStore) -> None:
        self._limits = limits
        self._fanout = fanout
        self._cache = fanout.table.cache
        self._trie = fanout.table.trie
        self._retained = retained

    def publish(self, message: Message, origin: Session | None) -> int:
        """Route a message; store or clear it when it is retained. Returns how many sessions and groups it was for.

        `origin` is the publishing session (for No Local), None for the broker's own messages and wills.
        """
        if self._limits.upgrade_outgoing_qos:
            # The lower of this and the granted QoS is the granted one, for live and retained messages alike.
            message.qos = 2
        cache = self._cache
        route = cache.lookup(message.topic)
        if route is None:
            # Filters that a client chose decide how far the trie is walked: whoever publishes pays for it in turns.
            before = self._trie.probes
            topic = message.topic
            route = cache.store(topic)
            walked = self._trie.probes - before + MISS_LEVEL_WORK * topic.count(b"/") + (len(topic) >> MISS_LENGTH_WORK)
            self._fanout.work += MISS_WORK + walked
        count = self._fanout.forward(route, message, origin)
        # Without RETAIN no retained message is touched [MQTT-3.3.1-8].
        if message.retain:
            self._retained.retain(message, origin, True)
        return count

    def ask(self, message: Message, origin: Session | None, request: Request) -> int:
        """`publish` a request: the links that take it with QoS 1 or 2 and are connected are asked whom they reach.

        Afterwards `Request.waits` says whether there is anything to wait for.
        """
        if self._limits.answer_timeout <= 0.0:
            return self.publish(message, origin)
        try:
            return self.publish(RequestMessage(message, request), origin)
        finally:
            request.routing = False
