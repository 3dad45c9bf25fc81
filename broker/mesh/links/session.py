"""The session of another node: what is published here and wanted there waits in it, as for any client.

Owns what a message becomes on its way to a node (the name of its share group, its number), and when a store keeps it.
Promises, with a store: a publisher's acknowledgement leaves when the node has the message, or the store. While the node
confirms messages in time, none is written. When its connection ends, or a publisher has waited in vain, all that is on
its way is written, and so is what follows, until the queue is empty: in turns, where the connection has ended. A
message with a number leaves when the store has that; QoS 1 and 2 keep one order.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.core.codec.packets import NEVER
from broker.core.counters import FULL_BYTES, Counters
from broker.core.persistence.commits import RELEASE_TURN, Waiter
from broker.core.persistence.journal import Journal
from broker.core.queues.delivery import RELEASED, Delivery, SubscriptionQueue
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import Message, MessageCopy
from broker.core.queues.requests import NodeRequest, RequestMessage
from broker.core.routing.remote.loop_detection import TO_NODE
from broker.core.routing.remote.node_tags import take_number, take_share, with_number, with_share
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup
from broker.mesh.links.keeping import PIECE, NodeJournal


class NodeSession(Session):
    """What waits for one node. Nothing that came from a node goes there (`Session.node`)."""

    def __init__(self, node: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        super().__init__(TO_NODE + node, max_messages, max_bytes, counters)
        self.numbered = True
        """Whether the node knows what the number of a publish is. What waits before it has come is told it, too."""
        self.name = node
        self.node = self.own = True
        # An acknowledgement of a publisher waits for it.
        self.answers = True
        # A mark stays behind what was to come before it (`late`).
        self.window.in_order = True
        self.expiry_interval = NEVER
        # Since when the node takes nothing, while it does not (s, the clock of the event loop).
        self.away_since = 0.0
        # Whether each packet identifier that the node may know of us is known here, so that it may go on with them.
        self.known = False
        # Who has messages kept; None: there is no store.
        self.keeper: NodeJournal | None = None
        self._unkept = Unkept(self)
        self._keeping = Keeping(self)
        self._keeps_since = 0.0
        # Whether there will be further turns: this node does not stop.
        self._in_turns = True
        self.piece = PIECE
        """How many messages the store is told of in a turn."""
        self.window.silenced = self._silenced

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
        if group is not None and self._crowded(qos):
            self.offered += 1
            return self.drop(FULL_BYTES)
        properties = message.properties
        if self.numbered and (qos == 2 or properties):
            request = message.request if isinstance(message, RequestMessage) else None
            properties = with_number(properties, request.number if isinstance(request, NodeRequest) else 0)
        if group is not None:
            properties = with_share(properties, f"$share/{group.name}/{group.topic_filter}")
        if properties is not message.properties:
            chosen: Message = MessageCopy(message, properties)
            message = RequestMessage(chosen, message.request) if isinstance(message, RequestMessage) else chosen
        return super().deliver(message, qos, retain, (), group, sub_queue)

    def _crowded(self, qos: int) -> bool:
        """Whether the last quarter of the room is all that is left, which share groups do not get: one client may be in
        very many of them, and each takes a message of its own."""
        outbox, queue = self.outbox, self.queue
        if outbox is not None and outbox.bytes > outbox.max_bytes - outbox.max_bytes // 4:
            return True
        return qos > 0 and queue.bytes > queue.max_bytes - queue.max_bytes // 4

    def hand(self, message: Message) -> int:
        """As `deliver`, for a message that is handed over to the node as it is (`late`)."""
        return super().deliver(message, message.qos, message.retain, (), None)

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
            _, properties = take_number(properties)
            delivery.message = MessageCopy(delivery.message, properties)
        return taken

    # -- what is kept --------------------------------------------------------------------------------------------------

    def keep_in(self, journal: Journal | None) -> None:
        """As `Session.keep_in`: all that is in it by now, the store has."""
        keeper: NodeJournal | None = None
        if journal is not None:
            keeper = NodeJournal(journal, [*self.inflight.values(), *self.queue.waiting()])
        self.keeper = keeper
        super().keep_in(keeper)

    def attach(self, version: int, window: int, plain: bool) -> None:
        """As `Session.attach`."""
        if self.keeper is not None and self.keeper.due:
            self._keep_rest()
        super().attach(version, window, plain)
        self.known = True

    def resume(self, now: float) -> None:
        """As `Session.resume`."""
        super().resume(now)
        self._look()

    def detach(self, outbox: Outbox) -> None:
        """As `Session.detach`: what was on its way is kept, and its acknowledgements wait for that alone."""
        super().detach(outbox)
        self.away_since = self.totals.now
        self._keep(True)

    def on_ack(self, kind: int, packet_id: int, reason_code: int, now: float) -> None:
        """As `Session.on_ack`."""
        super().on_ack(kind, packet_id, reason_code, now)
        self._look()

    def on_acks(self, kind: i64, data: bytes, start: i64, now: float) -> i64:
        """As `Session.on_acks`."""
        at = super().on_acks(kind, data, start, now)
        self._look()
        return at

    def _ask(self, delivery: Delivery) -> None:
        """What is kept is acknowledged when the store has it: nobody waits for the node."""
        keeper = self.keeper
        if keeper is None or not keeper.keeps:
            super()._ask(delivery)
        elif delivery in keeper.due:
            # Until the store is told of it, whoever is connected.
            message = delivery.message
            if isinstance(message, RequestMessage) and self.window.link().takes(message.request, False):
                delivery.asked = message.request

    def _silenced(self) -> None:
        self._keep(False)

    def _keep(self, unsent: bool) -> None:
        """Have all be kept that is on its way, and what follows. `unsent`: see `NodeJournal.begin`."""
        keeper = self.keeper
        if keeper is None:
            return
        commits = keeper.commits
        if self._unkept.waits_for != 0 and commits is not None:
            commits.leave(self._unkept)
        self._keeps_since = self.totals.now
        if not keeper.keeps:
            keeper.begin(self.inflight.values(), self.queue.waiting(), unsent)
            self.window.journal = self.queue.journal = keeper
        if unsent and self._in_turns and commits is not None and len(keeper.due) > self.piece:
            commits.hand(self._keeping)
        else:
            self._keep_rest()

    def keep_piece(self) -> None:
        """A turn, while much is to be kept."""
        keeper = self.keeper
        if keeper is not None and not self.ended:
            keeper.go_on(self.client_id, self.piece)
            if keeper.due and keeper.commits is not None:
                keeper.commits.hand(self._keeping)
            else:
                self._all_kept(keeper)

    def keep_at_once(self) -> None:
        """This node stops: the store is told now of what it is to be told, also when the connection ends later."""
        self._in_turns = False
        if self.keeper is not None and self.keeper.due:
            self._keep_rest()

    def _keep_rest(self) -> None:
        keeper = self.keeper
        if keeper is not None:
            if keeper.commits is not None:
                keeper.commits.leave(self._keeping)
            keeper.go_on(self.client_id, len(keeper.due))
            self._all_kept(keeper)

    def _all_kept(self, keeper: NodeJournal) -> None:
        # With this the store has all packet identifiers that the node may know.
        keeper.session_kept(self.client_id, self.principal, self.expiry_interval, self._keeps_since)
        self.inflight.settle()
        self.queue.settle(True)

    def _look(self) -> None:
        """Whether messages need not be kept any more: the node is there, and nothing waits for it in the queue."""
        keeper = self.keeper
        if keeper is None or self.window.journal is None or self.outbox is None:
            return
        if keeper.keeps:
            if self.queue.pending is None and self._unkept.waits_for == 0:
                # The node is to be told packet identifiers that the store does not have. It has to know that before: a
                # process that goes on from the store does not use them for other messages then.
                keeper.session_kept(self.client_id, self.principal, self.expiry_interval, 0.0)
                commits = keeper.commits
                if commits is not None and commits.pending():
                    commits.wait(self._unkept)
                else:
                    self.keep_no_more()
        elif not keeper.kept and (self.window.held is None or self.window.held.count == 0):
            self.window.journal = self.queue.journal = None

    def keep_no_more(self) -> None:
        """New messages are not kept from now on, but confirmed by the node; those that are kept go their way."""
        keeper = self.keeper
        if keeper is not None:
            keeper.keeps = False
            self.window.link().silent = False
            self._look()


class Unkept(Waiter):
    """Waits until the store knows that messages of a session are not kept any more."""

    def __init__(self, session: NodeSession) -> None:
        super().__init__()
        self._session = session

    def committed(self, number: i64) -> i64:
        """See `Waiter.committed`."""
        del number
        self._session.keep_no_more()
        return 1


class Keeping(Waiter):
    """Has a turn while much of a session is to be kept."""

    def __init__(self, session: NodeSession) -> None:
        super().__init__()
        self._session = session

    def committed(self, number: i64) -> i64:
        """See `Waiter.committed`: a whole turn."""
        del number
        self._session.keep_piece()
        return RELEASE_TURN
