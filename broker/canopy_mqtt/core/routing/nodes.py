"""The other nodes of a cluster as clients of this broker: their sessions, and what goes to them.

A node subscribes here to what its own clients want, as the client `$node/NAME`. Messages go one hop: what a link to a
node has brought is sent to no other node. So a message comes to each node once, and never goes round, however the nodes
are linked. What is to be retained goes to all nodes, whether their clients want it now or later. Which of two retained
messages of a topic is newer is said by the time at which the publisher's node retained it (`node_messages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.topic_names import is_system, is_within
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import ACCEPTED, EXCLUDED
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message, MessageCopy
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, DROP_OLDEST, MessageTerms
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.node_messages import TimedMessage, for_group, from_group, marked
from canopy_mqtt.core.session.session import Session, SharedSession
from canopy_mqtt.core.topics.subscription import NO_IDENTIFIERS, FilterEntry, SharedGroup, Subscription
from canopy_mqtt.core.topics.topic_tree import TopicCursor, TopicTree

if TYPE_CHECKING:
    from mypy_extensions import i64


NODES: Final = "$node/"
"""The client identifiers of other nodes begin so; a client's may not."""

NODE_LINKS: Final = UPLINKS + NODES
"""The client identifiers of the links to other nodes begin so: they are the publishers of what comes from there."""

NODE: Final = "canopy-node"
"""The user property of CONNECT and CONNACK between nodes (`cluster.greeting`)."""

HELD: Final = "canopy-held"
"""The user property of the CONNACK for a node that asks: a filter that its session holds here, one for each."""

EVERYTHING: Final = "#"

ALL_RETAINED: Final = "#/retained"
ALL_CLEARED: Final = "#/cleared"
"""The names of the streams of all retained messages, and of all clearings. No topic filter is called so."""

_OWN: Final = NODES.encode()


def for_nodes(message: Message, at: int, clears: bool) -> Message:
    """Return a message that is retained at this time as other nodes get it: without RETAIN, which means an older one.

    `clears`: it is not retained here, and its topic has been cleared; without payload: see `Mark.clears`.
    """
    made = MessageCopy(message, marked(message.properties, message.qos, at, clears))
    made.retain = False
    return made


def crosses(message: Message, presence: bytes = b"") -> bool:
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
      clients are connected (`presence.topic`), unless the nodes are one broker.
    - No publisher waits for a node: beyond `link_bytes` the queue drops, and counts it. A single larger message passes.
    - A message with QoS 1 or 2 comes once.
    - A message that is to be retained comes once, with or without a filter, and says when it was retained. With each
      connection, and when something was dropped, all comes that is retained here, with RETAIN, and what was cleared
      here: what was missed meanwhile is among it.
    - What a client has written into a message says nothing to a node.
    - No access rule, and no limit of a client, holds for it: what it asks for is what clients of its node may have.
    """

    def __init__(self, client_id: str, counters: Counters, who: Principal | None = None) -> None:
        super().__init__(client_id, 0, 0, counters, who)
        self.upstream = self.internal = True
        self.queue.holds = False
        # The node has sent a PINGREQ: what its clients had wanted before is known here.
        self.has_declared = False
        self._presence = b""
        self._takes_frames = False
        self._relays_retained = False
        self._retained_in_store = False
        # When this session began, in microseconds since 1970; and all sessions, by client identifier.
        totals = counters.totals
        self._began: i64 = int((totals.now + totals.epoch) * 1e6)
        self._sessions: dict[str, Session] = {}
        # What is retained and cleared here, once the node has been connected, and how much had been dropped when it was
        # last begun to be sent.
        self._retained: TopicTree | None = None
        self._cleared: TopicTree | None = None
        self._dropped = 0

    def pinged(self) -> None:
        self.has_declared = True

    def bound(self, limits: Limits) -> None:
        """Apply the limits of a link's queue, and of the connection's."""
        policy = DROP_OLDEST if limits.queue_policy == DROP_OLDEST else DROP_NEWEST
        self._presence = b"" if limits.presence_crosses else limits.presence_topic
        self._relays_retained = limits.relays_retained
        self._retained_in_store = limits.retained_in_store
        self.limit(policy, None, 0, limits.link_bytes)
        send_buffer = self.send_buffer
        if send_buffer is not None:
            send_buffer.limit(policy, 0, limits.link_bytes)
            send_buffer.holds = False

    def update_fast_path(self) -> None:
        """Look at each message: where it comes from decides. Plain frames of clients pass (`takes_frames_of`)."""
        super().update_fast_path()
        self._takes_frames = self.fast_path and not self._presence
        self.fast_path = False

    def takes_frames_of(self, origin: Session | None) -> bool:
        """Return whether plain frames go as they came: those of a client do, since no `$` topic is among them."""
        return self._takes_frames and origin is not None and not origin.internal

    def excludes(self, origin: Session | None) -> bool:
        """Return whether the publisher is a link to a node."""
        return origin is not None and origin.client_id.startswith(NODE_LINKS)

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

        One that is to be retained comes by `RetainedStore.retain`, to all nodes. Where a store that they share has it,
        it is live here, with a mark that says that it had RETAIN. One for a share group that lives here is for members
        there, wherever it came from.
        """
        del retain
        if group is not None:
            message = for_group(message, qos, group.full_name, group.connected.count == 0)
            return super().deliver(message, _between_nodes(qos), False, NO_IDENTIFIERS, group, message_terms)
        if not crosses(message, self._presence):
            return EXCLUDED
        if message.retain and not self._retained_in_store:
            return ACCEPTED
        properties = message.properties
        if qos == 1 or properties or message.retain:
            properties = marked(properties, qos, 1 if message.retain else 0)
            if properties is not message.properties:
                message = MessageCopy(message, properties)
        return super().deliver(message, _between_nodes(qos), False, identifiers, group, message_terms)

    def send(self, message: Message) -> int:
        """Offer a message that is marked already (`for_nodes`), or what nodes tell each other: as `Session.deliver`."""
        return super().deliver(message, _between_nodes(message.qos), False, NO_IDENTIFIERS, None)

    def send_home(self, message: Message, name: str) -> int:
        """Offer a message for a share group that lives at the node: as `Session.deliver`."""
        qos = message.qos
        return super().deliver(for_group(message, qos, name), _between_nodes(qos), False, NO_IDENTIFIERS, None)

    def take_shared(self, some: list[Delivery]) -> None:
        """Remove messages as `Session.take_shared`: what other members get is as it was before it came here."""
        super().take_shared(some)
        for delivery in some:
            delivery.message = from_group(delivery.message)
            delivery.qos = delivery.message.qos

    def stream_all(self, retained: TopicTree, cleared: TopicTree, sessions: dict[str, Session]) -> None:
        """Begin to send all retained messages, and which topics were cleared. `sessions`: those of the router."""
        self._retained, self._cleared, self._sessions = retained, cleared, sessions
        self._dropped = self.ledger.in_all()
        self._stream(ALL_RETAINED, retained)
        self._stream(ALL_CLEARED, cleared)

    def fill(self, now: float) -> bool:
        """Send what waits, as `Session.fill`. Where something was dropped, it may have been retained: then all that is
        retained is sent again, behind what waits."""
        retained, cleared = self._retained, self._cleared
        if retained is not None and cleared is not None and self.ledger.in_all() != self._dropped:
            self.stream_all(retained, cleared, self._sessions)
        return super().fill(now)

    def _stream(self, name: str, tree: TopicTree) -> None:
        subscription = Subscription(self, name, 2)
        subscription.entry = FilterEntry(EVERYTHING)
        self.start_stream(subscription, tree)
        assert self.streams is not None
        stream = self.streams.streams[name]
        stream.walk = TopicCursor(tree, EVERYTHING, tree.youngest, True)
        # The other node tells by the times what it has.
        stream.send_live()

    def adapt_retained(self, delivery: Delivery) -> bool:
        """Mark a retained message of this node's own, or a clearing; False: it does not cross.

        Where no store brings back to a node what it had retained, its own cross, too, and those of nodes that cannot
        send theirs.
        """
        message = delivery.message
        at = message.at if isinstance(message, TimedMessage) else 0
        relayed = self._relays_retained and message.publisher.startswith(NODE_LINKS) and self._lacks(message, at)
        if is_system(message.topic) or not (relayed or crosses(message, self._presence)):
            return False
        delivery.message = MessageCopy(message, marked(message.properties, delivery.qos, at))
        if not message.payload():
            # When a clearing is forgotten is said by its time.
            delivery.message.expires_at = 0.0
        # As what waits before it: with a store, one of QoS 1 would overtake those of QoS 2, which wait for the commit.
        delivery.qos = _between_nodes(delivery.qos)
        return True

    def _lacks(self, message: Message, at: i64) -> bool:
        """Return whether no other node sends the node a message of a node, retained at that time.

        Its own it has lost. Another one has lost what is older than its session here, and sends what is not while it is
        connected.
        """
        source = message.publisher[len(UPLINKS) :]
        if source == self.client_id:
            return True
        session = self._sessions.get(source)
        return not isinstance(session, NodeSession) or session.send_buffer is None or at < session._began


def _between_nodes(qos: int) -> int:
    """Return the QoS with which a message of some QoS goes to another node: see `Mark`."""
    return 2 if qos == 1 else qos


def new_session(
    client_id: str, limits: Limits, counters: Counters, principal: Principal | None, shared: bool = False
) -> Session:
    """Make the session of a client, or of another node; `shared`: one that brokers share (`core.shared`)."""
    if client_id.startswith(NODES):
        node = NodeSession(client_id, counters, principal)
        node.bound(limits)
        return node
    kind = SharedSession if shared else Session
    session = kind(client_id, limits.session_messages, limits.session_bytes, counters, principal)
    session.queue_qos0 = limits.queue_qos0
    return session
