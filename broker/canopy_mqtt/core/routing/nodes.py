"""The other nodes of a cluster as clients of this broker: their sessions, and the times of retained messages.

A node subscribes here to what its own clients want, as the client `$node/NAME`. Messages go one hop: what a link to a
node has brought is sent to no other node. So a message comes to each node once, and never goes round, however the nodes
are linked. What is to be retained goes to all nodes, whether their clients want it now or later. Which of two retained
messages of a topic is newer is said by a user property with the time at which the publisher's node retained it.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec.packets import PUBLISH
from canopy_mqtt.core.codec.primitives import text
from canopy_mqtt.core.codec.properties import USER_PROPERTY, PropertyReader
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import is_within
from canopy_mqtt.core.counters import Counters, QueueTotals
from canopy_mqtt.core.ledger import ACCEPTED, EXCLUDED
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, DROP_OLDEST, MessageTerms
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import FilterEntry, SharedGroup, Subscription
from canopy_mqtt.core.topics.topic_tree import RetainedTree

NODES: Final = "$node/"
"""The client identifiers of other nodes begin so; a client's may not."""

NODE_LINKS: Final = UPLINKS + NODES
"""The client identifiers of the links to other nodes begin so: they are the publishers of what comes from there."""

NODE: Final = "canopy-node"
"""The user property of CONNECT and CONNACK between nodes (`cluster.greeting`)."""

HELD: Final = "canopy-held"
"""The user property of the CONNACK for a node that asks: a filter that its session holds here, one for each."""

TIME: Final = "canopy-time"
"""The user property with the time at which a message was retained, in microseconds since 1970."""

EVERYTHING: Final = "#"

QOS1: Final = b"\x26" + text("canopy-qos") + text("1")
"""The encoded user property, at the end, of a message with QoS 1: between nodes it goes with QoS 2. One that came twice
would come twice to subscribers with QoS 0, and to two members of a share group."""

MAX_DIGITS: Final = 17
"""Digits of such a time: enough for 3,000 years."""

_OWN: Final = NODES.encode()

_NAME: Final = TIME.encode()
_HEAD: Final = b"\x26" + text(TIME)
"""The encoded property up to its value, section 2.2.2.2."""


def retained_at(properties: bytes) -> int:
    """Return the time at which a message was retained, in microseconds since 1970; 0: it has none.

    `properties`: encoded, as in `Message.properties`. The last one counts: a client may have written others before.
    """
    if properties.find(_HEAD) < 0:
        return 0
    found = b""
    section = PropertyReader(properties, 0, len(properties), PUBLISH)
    try:
        while section.next():
            if section.identifier == USER_PROPERTY and section.name == _NAME:
                found = section.value
    except ProtocolError:
        return 0
    return int(found) if found.isdigit() and len(found) <= MAX_DIGITS else 0


def with_time(message: Message, load: QueueTotals) -> Message:
    """Return a message that says when it was retained: now, unless it came from another node, which said it.

    A time is later than all that this node has given or seen before, however the clocks of the nodes differ.
    """
    if message.publisher.startswith(NODE_LINKS):
        load.retained_at = max(load.retained_at, retained_at(message.properties))
        return message
    load.retained_at = max(load.retained_at + 1, int((load.now + load.epoch) * 1e6))
    return _copy(message, True, message.properties + _HEAD + text(str(load.retained_at)))


def is_older(message: Message, kept_at: int) -> bool:
    """Return whether a message of another node was retained, or cleared, there before what is known here."""
    return message.publisher.startswith(NODE_LINKS) and retained_at(message.properties) < kept_at


def as_published(message: Message) -> Message:
    """Return a message that is being retained as other nodes get it: without RETAIN, which means an older one."""
    return _copy(message, False, message.properties)


def _copy(message: Message, retain: bool, properties: bytes) -> Message:
    return Message(
        message.topic, message.payload(), message.qos, retain, properties, message.expires_at, message.publisher
    )


def crosses(message: Message, presence: bytes) -> bool:
    """Return whether a message may go to another node: what came from a node does not, nor which clients are connected
    (`presence`: the topic, empty: none), and what nodes say to each other is only a node's to say.
    """
    publisher = message.publisher
    if presence and is_within(message.topic, presence):
        return False
    if message.topic.startswith(_OWN) and not publisher.startswith(NODES):
        return False
    return not publisher.startswith(NODE_LINKS)


class NodeSession(Session):
    """The session of another node here.

    Promises:
    - A message that came from a node is not sent to another one, nor what a client publishes below `$node/`, nor which
      clients are connected (`presence.topic`).
    - No publisher waits for a node: beyond `link_bytes` the queue drops, and counts it. A single larger message passes.
    - A message with QoS 1 or 2 comes once.
    - A message that is to be retained comes once, with or without a filter, and says when it was retained. With each
      connection all comes that is retained here, with RETAIN: what was missed meanwhile is among it.
    - No access rule, and no limit of a client, holds for it: what it asks for is what clients of its node may have.
    """

    def __init__(self, client_id: str, counters: Counters, who: Principal | None = None) -> None:
        super().__init__(client_id, 0, 0, counters, who)
        self.upstream = self.internal = True
        self.queue.holds = False
        self._presence = b""

    def bound(self, limits: Limits) -> None:
        """Apply the limits of a link's queue, and of the connection's."""
        policy = DROP_OLDEST if limits.queue_policy == DROP_OLDEST else DROP_NEWEST
        self.limit(policy, None, 0, limits.link_bytes)
        self._presence = limits.presence_topic
        send_buffer = self.send_buffer
        if send_buffer is not None:
            send_buffer.limit(policy, 0, limits.link_bytes)
            send_buffer.holds = False

    def update_fast_path(self) -> None:
        """Look at each message: where it comes from decides."""
        super().update_fast_path()
        self.fast_path = False

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        message_terms: MessageTerms | None = None,
    ) -> int:
        """Offer a message to the node: as `Session.deliver`; EXCLUDED: it does not cross.

        One that is to be retained comes by `RetainedStore.retain`, to all nodes.
        """
        del retain
        if not crosses(message, self._presence):
            return EXCLUDED
        if message.retain:
            return ACCEPTED
        if qos == 1:
            message, qos = _copy(message, False, message.properties + QOS1), 2
        return super().deliver(message, qos, False, identifiers, group, message_terms)

    def stream_all(self, tree: RetainedTree) -> None:
        """Begin to send all retained messages, as for a new subscription to all topics."""
        subscription = Subscription(self, EVERYTHING, 2)
        subscription.entry = FilterEntry(EVERYTHING)
        self.start_stream(subscription, tree)

    def adapt_retained(self, delivery: Delivery) -> bool:
        """Send a retained message of this node's own; False: it does not cross."""
        return crosses(delivery.message, self._presence)


def new_session(client_id: str, limits: Limits, counters: Counters, principal: Principal | None) -> Session:
    """Make the session of a client, or of another node."""
    if client_id.startswith(NODES):
        node = NodeSession(client_id, counters, principal)
        node.bound(limits)
        return node
    session = Session(client_id, limits.session_messages, limits.session_bytes, counters, principal)
    session.queue_qos0 = limits.queue_qos0
    return session
