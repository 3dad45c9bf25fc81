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

from broker.core.codec.packets import NEVER
from broker.core.codec.primitives import string
from broker.core.codec.properties import RESPONSE_TOPIC, properties_of
from broker.core.counters import EXPIRED, REFUSED, TOO_LARGE, Counters
from broker.core.queues.delivery import DROPPED, QUEUED, RELEASED, SENT, Delivery, SubscriptionQueue
from broker.core.queues.live.outbox import KEPT_BACK, Outbox
from broker.core.queues.message import HEADROOM, Message
from broker.core.queues.requests import RequestMessage
from broker.core.routing.loop_detection import UPLINKS, has_looped, visited, with_hop
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup
from broker.core.topics.topic_tree import RetainedTree
from broker.upstream.filters.declarer import FIRST_ID
from broker.upstream.filters.mapping import Mapping
from broker.upstream.protocol.poison_messages import PoisonMessageDetector

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
        # The others are the declarer's.
        self.inflight.largest_id = FIRST_ID - 1
        self.mapping = mapping
        self.broker_id = broker_id
        self.hop_limit = hop_limit
        self.uplink = self.own = True
        self.queue.holds = False
        self.expiry_interval = NEVER
        # Its link is not in the settings any more; what waited is kept for a while, should it come back.
        self.abandoned = False
        # What the upstream is and takes; `plain_text`: the link has no properties, 3.1.1.
        self.peer_id = ""
        self.plain_text = False
        self.max_qos = 2
        self.retain_available = True
        # Messages that were not sent up: they have been there, came too far, or have no name there.
        self.kept_back: i64 = 0
        self.trial = PoisonMessageDetector()
        # For which the queue of QoS 0 has a place that nothing stands in: so all that comes waits behind it.
        self._one_by_one = False
        # How many messages had been offered when none was found that could go in place of the doubtful ones.
        self._looked_after: i64 = -1

    def attach(self, version: int, window: int, plain: bool) -> None:
        """A connection takes this session up. See `Session.attach`."""
        super().attach(version, window, plain)
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
        """Frames go up as they came only where nothing about them changes: the same name, and no properties at all."""
        super().update_fast_path()
        if not self.plain_text or not self.mapping.plain:
            self.fast_path = False

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        sub_queue: SubscriptionQueue | None = None,
    ) -> int:
        """Offer a message to the upstream: as `Session.deliver`, or KEPT_BACK.

        Without subscription identifiers: what a client publishes has none [MQTT-3.3.4-6].
        """
        del identifiers
        if qos == 0 and self.outbox is None and not self.queue_qos0:
            return super().deliver(message, 0, retain, (), group, sub_queue)
        adapted = self.to_upstream(message)
        if adapted is None:
            return KEPT_BACK
        if self.trial.bars(adapted.topic, self.totals.now):
            self.offered += 1
            return self.drop(REFUSED)
        answer = super().deliver(
            adapted, min(qos, self.max_qos), retain and self.retain_available, (), group, sub_queue
        )
        if self.trial.on and self.outbox is not None:
            # It may be the one that is waited for.
            self.outbox.schedule_flush()
        return answer

    def adapt_retained(self, delivery: Delivery) -> bool:
        """Make a retained message what it is upstream. False: it is not sent."""
        adapted = self.to_upstream(delivery.message) if self.retain_available else None
        if adapted is None:
            return False
        if self.trial.bars(adapted.topic, self.totals.now):
            self.offered += 1
            self.drop(REFUSED)
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
        """Whether what came down another link may go up this one: only if both carry the path of a message.

        Without one nobody could tell that it comes round, should they lead to the same broker.
        """
        source = self._sessions.get(link)
        return not self.plain_text and not (isinstance(source, UplinkSession) and source.plain_text)

    # -- one by one ----------------------------------------------------------------------------------------------------

    def fill_outbox(self, now: float) -> bool:
        """Fill the outbox, as `Session.pump`; on trial `send_alone` does that."""
        if not self.trial.on:
            return super().fill_outbox(now)
        if self.window.held is not None:
            self.window.held.go_on()
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
        outbox = self.outbox
        if outbox is not None and outbox.queue.expired is not None:
            self.window.free_expired(outbox)
            self.trial.forget_finished()

    def send_alone(self, now: float) -> bool:
        """On trial, and with nothing on its way: send the message whose turn it is. False: nothing was sent.

        When all that was in flight has been acknowledged, and nothing is doubtful, the trial is over.
        """
        outbox = self.outbox
        if outbox is None or outbox.closed:
            return False
        trial = self.trial
        while True:
            delivery = self.next_alone(now)
            if delivery is None:
                if not trial.doubtful:
                    self._end_trial(now)
                return False
            size = delivery.message.size() + HEADROOM
            if outbox.too_large(delivery):
                if delivery.state == QUEUED:
                    self.shed_one(delivery, TOO_LARGE)
                    continue
                self.window.finish(delivery)
                if delivery.attempts == 0:
                    self.drop(TOO_LARGE)
                continue
            if not outbox.has_room(size) or (delivery.state == QUEUED and not self._fly(delivery)):
                return False
            trial.sent(delivery, now)
            self.window.push(delivery, outbox)
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
                # It may just have come, behind very many of a topic that is doubtful.
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
            self.queue.hold_qos0(True)
            self.update_fast_path()

    def _release_qos0(self) -> None:
        if self._one_by_one:
            self._one_by_one = False
            self.queue.hold_qos0(False)
            self.update_fast_path()

    def let_qos0_pass(self, now: float) -> None:
        """No message has its turn: what needs none goes."""
        self._release_qos0()
        if self.outbox is not None and self.queue.qos0 > 0:
            self._send_qos0(self.outbox, now)
            self.update_fast_path()

    def _send_qos0(self, outbox: Outbox, now: float) -> None:
        """Send the QoS 0 that waits, past the rest, as far as the outbox has room."""
        queue = self.queue
        gone: list[Delivery] = []
        for delivery in queue.waiting():
            size = delivery.message.size()
            if delivery.qos > 0 or not outbox.has_room(size + HEADROOM):
                continue
            gone.append(delivery)
            if delivery.message.expired(now):
                queue.give_up(delivery, EXPIRED)
            elif outbox.too_large(delivery):
                queue.give_up(delivery, outbox.why_not(delivery.message))
            else:
                self.totals.messages -= 1
                self.totals.bytes -= size
                outbox.push(delivery)
        queue.take_out(gone)

    def _end_trial(self, now: float) -> None:
        self.trial.over()
        self.window.reopen()
        self._release_qos0()
        self.go_on(now)

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
                    self.shed_one(each, REFUSED)

    def _refuse(self, delivery: Delivery) -> None:
        self.window.finish(delivery)
        delivery.settle(True)
        if delivery.attempts > 0:
            # It counted as delivered when it was written.
            self.delivered -= 1
        self.drop(REFUSED)

    def begin_anew(self, retained: RetainedTree) -> None:
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
        received = self.incoming_qos2
        self.incoming_qos2 = None
        if received is not None and self.journal is not None:
            for packet_id in received:
                self.journal.completed(self.client_id, packet_id)

    def lower(self) -> None:
        """Have nothing that waits be above the QoS that the upstream takes [MQTT-3.2.2-11], nor be retained if it
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
                    self.drop(TOO_LARGE)
        for delivery in self.queue.waiting():
            delivery.retain = delivery.retain and self.retain_available
            if delivery.qos > most:
                delivery.qos = most
                if most == 0:
                    self.queue.qos0 += 1


def renamed(properties: bytes, mapping: Mapping, up: bool) -> bytes:
    """The properties of a message that crosses the link, with its Response Topic as it is called on the other side.

    One that has no name there is left out: an answer to it would never come back.
    """
    if RESPONSE_TOPIC not in properties:
        return properties
    for identifier, start, stop in properties_of(properties):
        if identifier == RESPONSE_TOPIC:
            topic = properties[start + 3 : stop]
            other = mapping.remote_topic(topic) if up else mapping.local_topic(topic)
            if other is None:
                return properties[:start] + properties[stop:]
            return properties[: start + 1] + string(other) + properties[stop:]
    return properties
