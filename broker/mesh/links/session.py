"""The session of another node: what is published here and wanted there waits in it, as for any client.

Owns what a message becomes on its way to a node: one that a share group has given to the node says so. Everything else
is `Session`'s: queue, window, packet identifiers, ledger. It is a subclass: whoever delivers calls any session alike.
"""

from __future__ import annotations

from broker.core.codec.packets import NEVER
from broker.core.counters import Counters
from broker.core.queues.delivery import RELEASED, Delivery, SubscriptionQueue
from broker.core.queues.message import Message, MessageCopy
from broker.core.queues.requests import RequestMessage
from broker.core.routing.loop_detection import NODES
from broker.core.routing.nodes import take_share, with_share
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup


class NodeSession(Session):
    """What waits for one node. Nothing that came from a node goes there (`Session.node`)."""

    def __init__(self, node: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        super().__init__(f"{NODES}to/{node}", max_messages, max_bytes, counters)
        self.name = node
        self.node = self.own = True
        # An acknowledgement of a publisher waits for it.
        self.answers = True
        self.expiry_interval = NEVER

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        sub_queue: SubscriptionQueue | None = None,
    ) -> int:
        """As `Session.deliver`. What a share group gives to the node names the group."""
        del identifiers
        if group is not None:
            share = f"$share/{group.name}/{group.topic_filter}"
            chosen: Message = MessageCopy(message, with_share(message.properties, share))
            message = RequestMessage(chosen, message.request) if isinstance(message, RequestMessage) else chosen
        return super().deliver(message, qos, retain, (), group, sub_queue)

    def begin_anew(self) -> None:
        """The node is another process: what is in flight goes as if for the first time.

        A QoS 2 message that it had received (PUBREC) is its own since, and not sent again [MQTT-4.4.0-1].
        """
        for delivery in self.inflight.values():
            if delivery.state == RELEASED:
                self.window.finish(delivery)

    def take_shared(self, groups: set[SharedGroup]) -> list[Delivery]:
        """As `Session.take_shared`: what goes to another member is what was published."""
        taken = super().take_shared(groups)
        for delivery in taken:
            _, properties = take_share(delivery.message.properties)
            delivery.message = MessageCopy(delivery.message, properties)
        return taken
