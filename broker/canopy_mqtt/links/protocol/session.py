"""The session of a link: messages for the upstream wait here, as a client's messages wait in its session.

Owns the conversion of a message for the upstream: its name there, the brokers through which it has come, and the QoS
and RETAIN that the upstream supports. Everything else is `Session`'s: queue, window, packet identifiers, ledger. It is
a subclass, because the fanout calls all sessions in the same way; an adapter in a field of `Session` would cost
something for each delivery to every client.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.codec.properties import response_topic
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import ACCEPTED, EXCLUDED, EXPIRED, REFUSED, TOO_LARGE
from canopy_mqtt.core.queues.delivery import DROPPED, QUEUED, RELEASED, SENT, Delivery
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.queue_terms import MessageTerms
from canopy_mqtt.core.queues.requests import RequestMessage
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.links import UPLINKS, has_looped, visited, with_hop
from canopy_mqtt.core.routing.nodes import NODE_LINKS, NODES
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup
from canopy_mqtt.core.topics.topic_tree import TopicTree
from canopy_mqtt.links.filters.declarer import FIRST_ID
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.protocol.poison_messages import PoisonMessageDetector

LOOKED_AT: Final = 1_000
"""Messages in the queue among which one is looked for that can go in place of the doubtful ones."""


class UplinkSession(Session):
    """The session of one link. `hop_limit`: brokers that a message may have come through; 0: no limit.

    `sessions`: those of the router, by client identifier.

    Promises:
    - A message that has been at the upstream, or has come over as many links as are allowed, is kept back and counted.
    - A message keeps its properties, and its Response Topic is renamed as its topic is.
    - The session lives as long as its link is in the settings, whatever becomes of its connections: what is in flight
      or waits survives an outage within the bounds.
    - While it is not known which message has the upstream end the connection, they go one by one (`trial`), and QoS 0
      waits.
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
        self.upstream = self.internal = True
        # The other broker is a node of the same cluster.
        self.node = name.startswith(NODES)
        self.expiry_interval = NEVER
        # Its link is not in the settings any more; what waited is kept for a while, should it come back.
        self.abandoned = False
        # What the upstream is and takes; `plain_text`: the link has no properties, 3.1.1.
        self.peer_id = ""
        self.plain_text = False
        self.max_qos = 2
        self.retain_available = True
        # True where this worker has the links of all workers, and sends what clients of any of them publish.
        self.for_all_workers = False
        # True while no other link of this broker can bring a message that may not go up.
        self.alone = True
        # Messages that were not sent up: they have been there, came too far, or have no name there.
        self.kept_back: i64 = 0
        self.trial = PoisonMessageDetector()
        # For which the queue of QoS 0 has a place that nothing stands in: so all that comes waits behind it.
        self._one_by_one = False
        # How many messages had been offered when none was found that could go in place of the doubtful ones.
        self._looked_after: i64 = -1
        self.queue.holds = False
        # The others are the declarer's.
        self.inflight.largest_id = FIRST_ID - 1

    def attach(self, version: int, send_quota: int, plain: bool) -> None:
        """A connection takes this session up. See `Session.attach`."""
        super().attach(version, send_quota, plain)
        self.plain_text = not self.v5
        self.trial.opened()
        self._looked_after = -1
        if self.trial.on:
            self.window.quota = 0
            self.hold_qos0()
        else:
            self._release_qos0()
        self.update_fast_path()

    def update_fast_path(self) -> None:
        """Frames go up as they came only where nothing about them changes: the same name, and no properties at all.

        Nor where it matters whether another link has brought them.
        """
        super().update_fast_path()
        if not self.plain_text or not self.mapping.plain or not self.alone:
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
        """Offer a message to the upstream: as `Session.deliver`.

        Without subscription identifiers: what a client publishes has none [MQTT-3.3.4-6].
        """
        del identifiers
        if qos == 0 and self.send_buffer is None and not self.queue_qos0:
            return super().deliver(message, 0, retain, (), group, message_terms)
        adapted = self.to_upstream(message)
        if adapted is None:
            return EXCLUDED
        if self.trial.bars(adapted.topic, self.totals.now):
            self.offered += 1
            return self.ledger.lost(REFUSED, 1)
        answer = super().deliver(
            adapted, min(qos, self.max_qos), retain and self.retain_available, (), group, message_terms
        )
        if self.trial.on and self.send_buffer is not None:
            # The answer may be the one for which the trial waits.
            self.send_buffer.schedule_flush()
        return answer

    def adapt_retained(self, delivery: Delivery) -> bool:
        """Make a retained message what it is upstream. False: it is not sent."""
        adapted = self.to_upstream(delivery.message) if self.retain_available else None
        if adapted is None:
            return False
        if self.trial.bars(adapted.topic, self.totals.now):
            self.offered += 1
            self.ledger.lost(REFUSED, 1)
            return False
        delivery.message = adapted
        delivery.qos = min(delivery.qos, self.max_qos)
        return True

    def to_upstream(self, message: Message) -> Message | None:
        """The message as it is upstream; None, and counted: it is kept back."""
        topic = self.mapping.remote_topic(message.topic)
        properties = message.properties
        if topic is not None and properties:
            been = visited(properties)
            if self.peer_id in been or has_looped(been, self.broker_id, self.hop_limit):
                topic = None
        if topic is not None and message.publisher.startswith(UPLINKS) and not self._may_pass(message.publisher):
            topic = None
        if topic is None:
            self.kept_back += 1
            return None
        if properties and not self.mapping.plain:
            properties = renamed(properties, self.mapping, True)
        made = Message(
            topic,
            message.payload(),
            message.qos,
            message.retain,
            with_hop(properties, self.broker_id),
            message.expires_at,
            message.publisher,
        )
        return RequestMessage(made, message.request) if isinstance(message, RequestMessage) else made

    def _may_pass(self, link: str) -> bool:
        """Return whether a message that came down another link may go up this one: only if both carry the path of a
        message.

        Without a path a loop could not be detected, should both lead to the same broker. What another node of the
        cluster has sent does not go up: it may have come down a link there that carries no path. Other workers have no
        links.
        """
        if link.startswith(NODE_LINKS):
            return self.for_all_workers
        source = self._sessions.get(link)
        return not self.plain_text and not (isinstance(source, UplinkSession) and source.plain_text)

    # -- one by one ----------------------------------------------------------------------------------------------------

    def fill(self, now: float) -> bool:
        """Fill the send buffer, as `Session.refill`; on trial `send_alone` does that."""
        if not self.trial.on:
            return super().fill(now)
        if self.window.held is not None:
            self.window.held.send_ready()
        return False

    def unacknowledged(self) -> list[Delivery]:
        return [each for each in self.inflight.values() if each.state == SENT and each.attempts > 0]

    def next_alone(self, now: float) -> Delivery | None:
        """The message whose turn it is to go alone; None: none has its turn, or the trial is over."""
        trial = self.trial
        trial.forget_finished()
        if not trial.doubtful:
            return next((each for each in self.inflight.values() if each.state == SENT), None)
        delivery: Delivery | None = None
        if trial.wants_another(now) and self._looked_after != self.offered:
            delivery = self._another(now)
            if delivery is None:
                self._looked_after = self.offered
        return trial.retried(now) if delivery is None else delivery

    def free_expired(self) -> None:
        """On trial: what expired before it was written is not waited for."""
        send_buffer = self.send_buffer
        if send_buffer is not None and send_buffer.expired is not None:
            self.window.free_expired(send_buffer)
            self.trial.forget_finished()

    def send_alone(self, now: float) -> bool:
        """On trial, and with nothing on its way: send the message whose turn it is. False: nothing was sent.

        When all that was in flight has been acknowledged, and nothing is doubtful, the trial is over.
        """
        send_buffer = self.send_buffer
        if send_buffer is None or send_buffer.closed:
            return False
        trial = self.trial
        while True:
            delivery = self.next_alone(now)
            if delivery is None:
                if not trial.doubtful:
                    self._end_trial(now)
                return False
            size = delivery.message.size + HEADROOM
            if send_buffer.refusal(delivery.message, delivery.qos, delivery.identifiers) != ACCEPTED:
                if delivery.state == QUEUED:
                    self.queue.shed_one(delivery, TOO_LARGE)
                    continue
                self.window.finish(delivery)
                if delivery.attempts == 0:
                    self.ledger.lost(TOO_LARGE, 1)
                continue
            if not send_buffer.has_room(size) or (delivery.state == QUEUED and not self._fly(delivery)):
                return False
            trial.sent(delivery, now)
            self.window.push(delivery, send_buffer)
            return True

    def _another(self, now: float) -> Delivery | None:
        """A message to be sent in place of the doubtful ones, in flight or of those that wait."""
        trial = self.trial
        for alike in (False, True):
            for delivery in self.inflight.values():
                if delivery.state == SENT and trial.passes(delivery, alike):
                    return delivery
            pending = self.queue.pending
            if pending is None:
                continue
            for delivery in islice(pending, LOOKED_AT):
                if self._may_fly(delivery, alike, now):
                    return delivery
            if not alike and len(pending) > LOOKED_AT:
                # The message may just have come, behind very many of a doubtful topic.
                for delivery in islice(reversed(pending), LOOKED_AT):
                    if self._may_fly(delivery, alike, now):
                        return delivery
        return None

    def _may_fly(self, delivery: Delivery, alike: bool, now: float) -> bool:
        return (
            delivery.state != DROPPED
            and delivery.qos > 0
            and not delivery.message.expired(now)
            and self.trial.passes(delivery, alike)
        )

    def _fly(self, delivery: Delivery) -> bool:
        """Take a message out of the queue, wherever it stands, and give it a packet identifier."""
        if self.inflight.count >= self.inflight.largest_id:
            return False
        self.queue.take(delivery)
        return self.window.put(delivery)

    def hold_qos0(self) -> None:
        """Nothing is to go beside the message that goes alone."""
        if not self._one_by_one:
            self._one_by_one = True
            self.queue.count_qos0(1)

    def _release_qos0(self) -> None:
        if self._one_by_one:
            self._one_by_one = False
            self.queue.count_qos0(-1)

    def let_qos0_pass(self, now: float) -> None:
        """No message has its turn: what needs none goes."""
        self._release_qos0()
        if self.send_buffer is not None and self.queue.qos0 > 0:
            self._send_qos0(self.send_buffer, now)

    def _send_qos0(self, send_buffer: SendBuffer, now: float) -> None:
        """Send the QoS 0 that waits, past the rest, as far as the send buffer has room."""
        queue = self.queue
        gone: list[Delivery] = []
        for delivery in queue.waiting():
            size = delivery.message.size
            if delivery.qos > 0 or not send_buffer.has_room(size + HEADROOM):
                continue
            gone.append(delivery)
            cause = send_buffer.refusal(delivery.message, 0, delivery.identifiers)
            if delivery.message.expired(now):
                queue.give_up(delivery, EXPIRED)
            elif cause != ACCEPTED:
                queue.give_up(delivery, cause)
            else:
                self.totals.messages -= 1
                self.totals.bytes -= size
                send_buffer.push(delivery)
        queue.take_out(gone)

    def _end_trial(self, now: float) -> None:
        self.trial.over()
        self.window.reopen()
        self._release_qos0()
        self.fill_and_flush(now)

    def forgive(self) -> None:
        """The link leads to another upstream from its next connection on."""
        self.trial.reset()
        self._release_qos0()

    def give_up(self, delivery: Delivery, now: float) -> None:
        """The upstream ends the connection for this message: it is lost, and what waits of its topic, if that is
        barred. For a connection that is over."""
        self._refuse(delivery)
        topic = delivery.message.topic
        if not self.trial.bars(topic, now):
            return
        for each in self.inflight.values():
            if each.state == SENT and each.message.topic == topic:
                self._refuse(each)
        if self.queue.pending is not None:
            for each in list(self.queue.pending):
                if each.state != DROPPED and each.message.topic == topic:
                    self.queue.shed_one(each, REFUSED)

    def _refuse(self, delivery: Delivery) -> None:
        self.window.finish(delivery)
        delivery.settle()
        if delivery.attempts > 0:
            # The message counted as delivered when it was written.
            self.delivered -= 1
        self.ledger.lost(REFUSED, 1)

    def begin_anew(self, retained: TopicTree) -> None:
        """The upstream has no session of ours: what is in flight goes as if for the first time, and what is retained.

        A QoS 2 message that it had received (PUBREC) is its own since, and not sent again [MQTT-4.4.0-1].
        """
        for delivery in self.inflight.values():
            if delivery.state == RELEASED:
                self.window.finish(delivery)
        self.forget_received()
        for subscription in self.subscriptions.values():
            self.start_stream(subscription, retained)
            if self.journal is not None:
                self.journal.subscribed(self.client_id, subscription, True)

    def forget_received(self) -> None:
        """The upstream's session is another one: the packet identifiers of its QoS 2 messages mean nothing."""
        received = self.received_qos2
        self.received_qos2 = None
        if received is not None and self.journal is not None:
            for packet_id in received:
                self.journal.completed(self.client_id, packet_id)

    def lower(self) -> None:
        """Lower the queued messages to the upstream's Maximum QoS [MQTT-3.2.2-11], and clear RETAIN if the upstream
        retains nothing [MQTT-3.2.2-14]."""
        most = self.max_qos
        for delivery in self.inflight.values():
            delivery.retain = delivery.retain and self.retain_available
            if delivery.qos > most and delivery.state != RELEASED:
                if most > 0:
                    delivery.qos = most
                    continue
                self.window.finish(delivery)
                if delivery.attempts == 0:
                    self.ledger.lost(TOO_LARGE, 1)
        for delivery in self.queue.waiting():
            delivery.retain = delivery.retain and self.retain_available
            if delivery.qos > most:
                delivery.qos = most
                if most == 0:
                    self.queue.qos0 += 1


def renamed(properties: bytes, mapping: Mapping, up: bool) -> bytes:
    """Return the properties of a message that crosses the link, with the other side's name of its Response Topic.

    It leaves out a Response Topic without a name there: an answer to it would never come back.
    """
    found = response_topic(properties)
    if found is None:
        return properties
    return found.replaced(mapping.remote_topic(found.value) if up else mapping.local_topic(found.value))
