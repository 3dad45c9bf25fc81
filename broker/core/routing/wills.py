"""Publishes wills (section 3.1.2.5), in turns if many are due together.

Owns a session's will at the end of its connection, and the wills that wait for a turn. Promises: a will is published
exactly once, and none is lost because too many are due at once: as soon as one has half filled a queue, the others wait
until its writer has had a turn.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from broker.core.codec import reasons
from broker.core.codec.packets import Will
from broker.core.counters import Counters
from broker.core.hooks import MessageHook
from broker.core.permissions import Permissions
from broker.core.principal import Principal
from broker.core.queues.message import Message
from broker.core.refusals import WILL
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.publisher import Publisher
from broker.core.routing.receivers.fanout import Fanout
from broker.core.routing.session_table import SessionTable
from broker.core.session.session import Session

BROADCAST_PAUSE: Final = 0.005
"""Seconds that a will waits again while another message is on its way to very many."""


@mypyc_attr(allow_interpreted_subclasses=True)
class WillListener:
    """Is told of the wills of clients here: a mesh, for its other nodes. Must not raise."""

    def will_changed(self, session: Session) -> None:
        """A session has got a will, has it no more, or is to publish it at a time that is known now."""


class DueWill:
    """A will that waits for its turn; its session may have ended, or be another's. None: it was on another node."""

    def __init__(self, message: Message, session: Session | None, principal: Principal) -> None:
        self.message = message
        self.session = session
        self.principal = principal


class WillQueue:
    """Publishes wills, now or in a turn of the router."""

    def __init__(
        self, publisher: Publisher, counters: Counters, deadlines: Deadlines, fanout: Fanout, table: SessionTable
    ) -> None:
        self._table = table
        self._publisher = publisher
        self._fanout = fanout
        self._counters = counters
        self._deadlines = deadlines
        # What access control says, if there is one.
        self.permissions: Permissions | None = None
        # Who is asked about messages, if anybody is. See `Router.message_hook`.
        self.hook: MessageHook | None = None
        # Who is told of wills, if anybody is.
        self.listener: WillListener | None = None
        # Whether the last will has half filled a queue, or is on its way to very many: the next ones wait.
        self._pressed = False
        # How many wait.
        self.waiting = 0

    def begin_turn(self) -> None:
        """The writers have had theirs."""
        self._pressed = self._fanout.broadcasting

    def left(self, session: Session, now: float) -> None:
        """The connection that a session's will is about has ended: publish it now, or set the time for that."""
        will = session.will
        if will is None:
            return
        delay = min(will.delay, session.expiry_interval)
        if delay == 0:
            self.publish(session, now)
        else:
            session.will_due = now + delay
            if session.journal is not None:
                session.journal.will_set(session.client_id, will, session.will_due)
            self.tell(session)

    def tell(self, session: Session) -> None:
        """A session has got a will, or it is over: have that be known to whoever is told."""
        if self.listener is not None:
            self.listener.will_changed(session)

    def forget(self, session: Session) -> None:
        """A session's will is not to be published any more."""
        session.will_due = 0.0
        if session.will is not None:
            if session.journal is not None:
                session.journal.will_cleared(session.client_id)
            session.will = None
            self._table.count(session)
            self.tell(session)

    def publish(self, session: Session, now: float) -> None:
        """Publish a session's will, if it has one; in a turn to come where those before it have half filled a queue."""
        will = session.will
        self.forget(session)
        if will is None:
            return
        self._publish(will_message(will, session.client_id, now), session, session.principal, now)

    def publish_for(self, will: Will, client_id: str, principal: Principal, now: float) -> None:
        """Publish the will of a client whose broker is gone."""
        self._publish(will_message(will, client_id, now), None, principal, now)

    def _publish(self, message: Message, session: Session | None, principal: Principal, now: float) -> None:
        if self._pressed or self._fanout.broadcasting:
            self.waiting += 1
            self._deadlines.set(DueWill(message, session, principal), now)
        else:
            self._send(message, session, principal)

    def due(self, waiting: DueWill, now: float) -> None:
        """It is the turn of one that waited."""
        if self._fanout.broadcasting:
            self._deadlines.set(waiting, now + BROADCAST_PAUSE)
            return
        self.waiting -= 1
        self._send(waiting.message, waiting.session, waiting.principal)

    def _send(self, message: Message, session: Session | None, principal: Principal) -> None:
        """Publish it, unless its client, who is `principal`, may do that no more: it could when it connected."""
        permissions = self.permissions
        if permissions is not None and not permissions.asked.may_publish(
            principal, message.topic.decode(), message.qos, message.retain
        ):
            self._counters.denied_publishes += 1
            self._refused(message, session, principal, reasons.NOT_AUTHORIZED, "")
            return
        hook = self.hook
        if hook is not None:
            changed = hook.publish(principal, message, True)
            if changed is None:
                self._refused(message, session, principal, hook.reason_code, "a plug-in")
                return
            message = changed
        counters = self._counters
        half_full = counters.half_full
        backed_up = counters.backed_up
        self._publisher.publish(message, session)
        if counters.half_full != half_full or counters.backed_up != backed_up or self._fanout.broadcasting:
            self._pressed = True

    def _refused(
        self, message: Message, session: Session | None, principal: Principal, reason_code: int, why: str
    ) -> None:
        """Remember that a will was refused: its client is not there to be told."""
        if session is not None:
            topic = message.topic.decode()
            counters = self._counters
            counters.refusals.note(
                session.ledger,
                principal,
                WILL,
                topic,
                reason_code,
                counters.load.now,
                why,
                message.qos,
                message.retain,
            )


def will_message(will: Will, client_id: str, now: float) -> Message:
    """The application message of a will, its message expiry counted from its publication (section 3.1.3.2.4).

    It is retained if the will says so [MQTT-3.1.2-15] and not otherwise [MQTT-3.1.2-14]. Its properties, the user's
    among them, are the bytes of the CONNECT, and so in their order [MQTT-3.1.3-10].
    """
    expires_at = now + will.message_expiry if will.message_expiry >= 0 else 0.0
    return Message(will.topic.encode(), will.payload, will.qos, will.retain, will.properties, expires_at, client_id)
