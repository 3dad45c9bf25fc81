"""The session of a link: what goes up waits here, as what goes down to a client waits in that client's session.

Owns what a message becomes on its way up: its name there, the brokers that it has come through, and what the upstream
takes of QoS and RETAIN. Everything else is `Session`'s: queue, window, packet identifiers, ledger.

Promises:
- A message that has been at the upstream, or has come over as many links as are allowed, is kept back and counted.
- A message keeps its properties, and its Response Topic is renamed as its topic is.
- The session lives as long as its link is in the settings, whatever becomes of its connections: what is in flight or
  waits survives an outage within the bounds.

Refuses: connections (`uplink`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.counters import TOO_LARGE, Counters
from broker.core.lanes import Lane
from broker.core.message import DROPPED, RELEASED, Delivery, Message
from broker.core.outbox import KEPT_BACK
from broker.core.path import UPLINKS, visited, with_hop
from broker.core.properties import RESPONSE_TOPIC, properties_of
from broker.core.retained import RetainedTree
from broker.core.session import NEVER, Session
from broker.core.subscription import SharedGroup
from broker.core.topics import parse_shared
from broker.core.wire import string
from broker.upstream.declarer import FIRST_ID
from broker.upstream.mapping import Mapping

if TYPE_CHECKING:
    from mypy_extensions import i64


class UplinkSession(Session):
    """The session of one link. `hop_limit`: brokers that a message may have come through; 0: no limit.

    `sessions`: those of the router, by client identifier.
    """

    def __init__(
        self,
        name: str,
        mapping: Mapping,
        broker_id: str,
        hop_limit: int,
        counters: Counters,
        sessions: dict[str, Session],
    ) -> None:
        super().__init__(UPLINKS + name, 0, 0, counters)
        self._sessions = sessions
        self.mapping = mapping
        self.broker_id = broker_id
        self.hop_limit = hop_limit
        self.uplink = True
        self.expiry_interval = NEVER
        # What the upstream is and takes; `plain_text`: the link has no properties, 3.1.1.
        self.peer_id = ""
        self.plain_text = False
        self.max_qos = 2
        self.retain_available = True
        # Messages that were not sent up: they have been there, came too far, or have no name there.
        self.kept_back: i64 = 0

    def attach(self, version: int, window: int, plain: bool) -> None:
        """A connection takes this session up. See `Session.attach`."""
        super().attach(version, window, plain)
        self.plain_text = not self.v5
        self.straighten()

    def straighten(self) -> None:
        """Frames go up as they came only where nothing about them changes: the same name, and no properties at all."""
        super().straighten()
        if not self.plain_text or not self.mapping.plain:
            self.direct = False

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        lane: Lane | None = None,
    ) -> int:
        """Offer a message to the upstream: as `Session.deliver`, or KEPT_BACK.

        Without subscription identifiers: what a client publishes has none [MQTT-3.3.4-6].
        """
        del identifiers
        if qos == 0 and self.outbox is None and not self.queue_qos0:
            return super().deliver(message, 0, retain, (), group, lane)
        dressed = self.dressed(message)
        if dressed is None:
            return KEPT_BACK
        return super().deliver(dressed, min(qos, self.max_qos), retain and self.retain_available, (), group, lane)

    def _allocate(self) -> int:
        """A packet identifier that is not in use, and none of those that are the declarer's."""
        if len(self.inflight) >= FIRST_ID - 1:
            return 0
        packet_id = super()._allocate()
        while packet_id >= FIRST_ID:
            packet_id = super()._allocate()
        return packet_id

    def dress(self, delivery: Delivery) -> bool:
        """Make a retained message what it is upstream. False: it is not sent."""
        dressed = self.dressed(delivery.message) if self.retain_available else None
        if dressed is None:
            return False
        delivery.message = dressed
        delivery.qos = min(delivery.qos, self.max_qos)
        return True

    def dressed(self, message: Message) -> Message | None:
        """The message as it is upstream; None, and counted: it is kept back."""
        topic = self.mapping.remote_topic(message.topic)
        properties = message.properties
        if topic is not None and properties:
            been = visited(properties)
            if been and (self.peer_id in been or self.broker_id in been or 0 < self.hop_limit <= len(been)):
                topic = None
        if topic is not None and message.publisher.startswith(UPLINKS) and not self._may_pass(message.publisher):
            topic = None
        if topic is None:
            self.kept_back += 1
            return None
        if properties and not self.mapping.plain:
            properties = renamed(properties, self.mapping, True)
        return Message(
            topic,
            message.payload(),
            message.qos,
            message.retain,
            with_hop(properties, self.broker_id),
            message.expires_at,
            message.publisher,
        )

    def _may_pass(self, link: str) -> bool:
        """Whether what came down another link may go up this one: only if both carry the path of a message.

        Without one nobody could tell that it comes round, should they lead to the same broker.
        """
        source = self._sessions.get(link)
        return not self.plain_text and not (isinstance(source, UplinkSession) and source.plain_text)

    def begin_anew(self, retained: RetainedTree) -> None:
        """The upstream has no session of ours: what is in flight goes as if for the first time, and what is retained.

        A QoS 2 message that it had received (PUBREC) is its own since, and not sent again [MQTT-4.4.0-1].
        """
        for delivery in list(self.inflight.values()):
            if delivery.state == RELEASED:
                self._finish(delivery)
        self.inbound = None
        for subscription in self.subscriptions.values():
            self.start_stream(subscription, retained.walk(parse_shared(subscription.topic_filter)[1]))

    def lower(self) -> None:
        """Have nothing that waits be above the QoS that the upstream takes [MQTT-3.2.2-11], nor be retained if it
        retains nothing [MQTT-3.2.2-14]."""
        most = self.max_qos
        for delivery in list(self.inflight.values()):
            delivery.retain = delivery.retain and self.retain_available
            if delivery.qos > most and delivery.state != RELEASED:
                if most > 0:
                    delivery.qos = most
                    continue
                self._finish(delivery)
                if delivery.attempts == 0:
                    self._drop(TOO_LARGE)
        if self.pending is not None:
            for delivery in self.pending:
                delivery.retain = delivery.retain and self.retain_available
                if delivery.qos > most and delivery.state != DROPPED:
                    delivery.qos = most
                    if most == 0:
                        self._pending_qos0 += 1


def renamed(properties: bytes, mapping: Mapping, up: bool) -> bytes:
    """The properties of a message that crosses the link, with its Response Topic as it is called on the other side.

    One that has no name there stays as it is.
    """
    if RESPONSE_TOPIC not in properties:
        return properties
    for identifier, start, stop in properties_of(properties):
        if identifier == RESPONSE_TOPIC:
            topic = properties[start + 3 : stop]
            other = mapping.remote_topic(topic) if up else mapping.local_topic(topic)
            if other is None:
                return properties
            return properties[: start + 1] + string(other) + properties[stop:]
    return properties
