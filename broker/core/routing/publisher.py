"""Publishes a message: routes it to all receivers, and retains it if asked.

Owns the order of the two. Messages from a connection take shorter paths if possible (`publish.publishing`).
"""

from __future__ import annotations

from typing import Final

from broker.core.hooks import LateListener
from broker.core.limits import Limits
from broker.core.queues.message import Message
from broker.core.queues.requests import NodeRequest, Request, RequestMessage
from broker.core.routing.receivers.fanout import Fanout
from broker.core.routing.remote.node_tags import take_late, take_number, take_share
from broker.core.routing.remote.nodes import NodeState
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

    def __init__(self, limits: Limits, fanout: Fanout, retained: RetainedStore, nodes: NodeState) -> None:
        self._limits = limits
        self._fanout = fanout
        self._cache = fanout.table.cache
        self._trie = fanout.table.trie
        self._retained = retained
        self._nodes = nodes
        # Who hears of messages from other nodes for sessions that have moved here, if there are nodes.
        self.late: LateListener | None = None

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
        # Without RETAIN no retained message is touched [MQTT-3.3.1-8]; nodes tell each other of theirs by another way.
        if message.retain and (origin is None or not origin.node):
            self._retained.retain(message, origin, True)
        return count

    def from_node(self, message: Message, origin: Session) -> int:
        """Route a message from another node: to a member of the share group that it was sent for (`Fanout.share_here`),
        to sessions that have moved here (`LateListener`), or to all who listen here. One of QoS 2 that has come before
        goes nowhere."""
        if not message.properties:
            return self.publish(message, origin)
        late = self.late
        if late is not None:
            move, message.properties = take_late(message.properties)
            if move:
                # One of QoS 2 has no number: others may have had it by that.
                _, message.properties = take_number(message.properties)
                return late.came(move, origin.client_id, message)
        share, message.properties = take_share(message.properties)
        properties = self._nodes.numbers.take(origin.client_id, message.properties, share)
        if properties is None:
            return 1
        message.properties = properties
        if share:
            return self._fanout.share_here(self._cache.route(message.topic), share, message)
        return self.publish(message, origin)

    def again(self, message: Message, origin: Session, request: NodeRequest) -> int:
        """Have a QoS 2 message go to other nodes that came before, and that they may lack. Returns as `publish`.

        Clients of this node have it, since the store has it with its packet identifier; but where its session has come
        from a node that was killed, they may lack it, too.
        """
        numbers = self._nodes.numbers
        if not numbers.knows(request.number):
            numbers.keep((request.number,))
            return self.ask(message, origin, request)
        try:
            self._fanout.to_nodes(self._cache.route(message.topic), RequestMessage(message, request))
        finally:
            request.routing = False
        return request.asked + 1

    def ask(self, message: Message, origin: Session | None, request: Request) -> int:
        """`publish` a request: the links that take it with QoS 1 or 2 and are connected are asked whom they reach.

        Afterwards `Request.waits` says whether there is anything to wait for.
        """
        if self._limits.answer_timeout <= 0.0 and not request.lasting:
            return self.publish(message, origin)
        try:
            return self.publish(RequestMessage(message, request), origin)
        finally:
            request.routing = False
