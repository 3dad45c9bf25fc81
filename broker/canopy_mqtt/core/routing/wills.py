"""Publishes wills (section 3.1.2.5), in turns if many are due together.

Owns a session's will at the end of its connection, the wills that wait for a turn, and those of clients that were
connected when the broker died and have no session (`will_grace`). What is in a store that brokers share waits there
for its delay, and here for its turn alone. Promises: a will is published exactly once, and none is lost because too
many are due at once, also if the broker dies meanwhile: as soon as one has half filled a queue, the others wait until
its writer has had a turn. A store forgets it in the call of the core in which it is published.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mypy_extensions import i64

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.codec.topic_names import DOLLAR, is_system
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.deadlines import Deadlines
from canopy_mqtt.core.jobs import DUE_WORK, WILLS, Budget, Job
from canopy_mqtt.core.persistence.journal import WAITING, Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.refusals import WILL
from canopy_mqtt.core.routing.bridge_states import may_send_will
from canopy_mqtt.core.routing.fanout import Fanout
from canopy_mqtt.core.routing.session_table import SessionTable
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.shared import KEPT

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.router import Router


class LoneWill:
    """A will without its session, which may have ended, or be another's: it waits for its turn, or is held until `due`.

    `kept`: by what the store that brokers share knows it; None: that does not. `message`: that store has published it,
    and the live message waits. `session`: None: it has none here. `name`: that of a will that waits for its turn in a
    store; empty: it is in none.
    `due`: until when it is held for a client that may come back; 0.0: it is not.
    """

    def __init__(
        self,
        will: Will,
        client_id: str,
        session: Session | None,
        principal: Principal,
        name: str,
        due: float = 0.0,
        kept: object | None = None,
        message: Message | None = None,
    ) -> None:
        self.kept = kept
        self.message = message
        self.will = will
        self.client_id = client_id
        self.session = session
        self.principal = principal
        self.name = name
        self.due = due


class WillQueue(Job):
    """Publishes wills, now or as a job."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._table: SessionTable = router.session_table
        self._fanout: Fanout = router.fanout
        self._counters: Counters = router.counters
        self._deadlines: Deadlines = router.deadlines
        # The wills of clients without a session, by client identifier; the last number of one that waits for its turn.
        self.held: dict[str, LoneWill] = {}
        self._number = 0
        # True if the last will has half filled a queue, or is on its way to very many: the next ones wait.
        self._pressed = False
        # How often queues had become half full when the present turn began.
        self._half_full: i64 = 0
        # Those that wait for their turn, in their order.
        self.line: dict[LoneWill, None] = {}
        self._other_keeper: Journal | None = None

    @property
    def keeper(self) -> Journal | None:
        """Return what is told of wills without a session (`Journal.will_alone`): the journal, if there is a store.

        Without a store another may be set before the first session. It is told of the wills of all clients, whose
        sessions end with this process.
        """
        journal = self._router.journal
        return self._other_keeper if journal is None else journal

    @keeper.setter
    def keeper(self, keeper: Journal | None) -> None:
        self._other_keeper = keeper

    def begin_turn(self) -> None:
        """Note that the writers have had their turns."""
        self._pressed = self._fanout.broadcasting
        self._half_full = self._counters.half_full

    def connection_ended(self, session: Session, now: float) -> None:
        """Publish a session's will at the end of its connection, or after its Will Delay Interval.

        The delay is at most the Session Expiry Interval: the end of the session publishes the will (section 3.1.3.2.2).
        """
        will = session.will
        if will is None:
            return
        delay = min(will.delay, session.expiry_interval)
        shared = self._router.shared
        kept = session.claim.take_will() if delay > 0 and session.claim is not None else None
        if delay == 0:
            self.publish(session, now)
        elif kept is not None and shared is not None:
            self.revoke(session)
            shared.will_ended(kept, delay)
        else:
            session.will_due = now + delay
            if session.journal is not None:
                session.journal.will_set(session.client_id, will, session.will_due)
            elif session.will_alone and self.keeper is not None:
                self.keeper.will_alone(session.client_id, session.principal, will, session.will_due)

    def revoke(self, session: Session) -> None:
        """Take a session's will away: its client has sent DISCONNECT 0x00, or has resumed the session in time."""
        session.will_due = session.grace_from = 0.0
        if session.will is not None:
            if session.will_alone:
                session.will_alone = False
                self._clear(session.client_id)
            elif session.journal is not None:
                session.journal.will_cleared(session.client_id)
            session.will = None
            if not session.ended:
                self._table.count(session)

    def publish(self, session: Session, now: float) -> None:
        """Publish a session's will, if it has one: now, or in a later turn (`submit`).

        One that waits for `store.will_grace` goes on waiting when its session has ended before.
        """
        will = session.will
        due = session.will_due if 0.0 < session.grace_from <= now else 0.0
        if not session.ended or session.will_alone:
            self.revoke(session)  # else the journal knows that the session has gone, and its will with it
        if will is None:
            return
        if session.ended and due > now:
            self.hold(session.client_id, session.principal, will, due)
            return
        kept = session.claim.take_will() if session.claim is not None else None
        self.submit(will, session.client_id, session, session.principal, now, kept)

    def submit(
        self,
        will: Will,
        client_id: str,
        session: Session | None,
        principal: Principal,
        now: float,
        kept: object | None = None,
    ) -> None:
        """Publish a will, or let it wait for its turn.

        Not if its client, who is `principal`, may do that no more: it could when it connected. `kept`: by what the
        store that brokers share knows it, which has told this broker that it is due; None: it is in none.
        """
        if self._pressed or self._fanout.broadcasting:
            name = ""
            keeper = self.keeper
            if keeper is not None and kept is None:
                # The client may have another by the time that this one has its turn.
                self._number += 1
                name = f"{WAITING}{self._number}/{client_id}"
                keeper.will_alone(name, principal, will, now)
            self._wait(LoneWill(will, client_id, session, principal, name, 0.0, kept))
            return
        # The message is retained if the will says so [MQTT-3.1.2-15] and not otherwise [MQTT-3.1.2-14]. Its properties,
        # the user's among them, are the bytes of the CONNECT, and so in their order [MQTT-3.1.3-10]; its message expiry
        # counts from its publication (section 3.1.3.2.4).
        expires_at = now + will.message_expiry if will.message_expiry >= 0 else 0.0
        topic = will.topic.encode()
        whole = Message(topic, will.payload, will.qos, will.retain, will.properties, expires_at, client_id)
        message: Message | None = whole
        permissions = self._router.permissions
        if topic[0] == DOLLAR or permissions is not None or self._counters.totals.message_hook is not None:
            message = self._allowed(whole, session, principal)
        if kept is None:
            if message is not None:
                self._send(message, session, 0)
        elif message is None:
            self._discard_kept(kept)
        else:
            live = partial(self._send_live, LoneWill(will, client_id, session, principal, "", 0.0, None, message))
            self._router.keep_will(kept, message, session, live)

    def _send_live(self, published: LoneWill) -> None:
        """The store that brokers share has published a will: send it to all who have it live, or let it wait."""
        if self._pressed or self._fanout.broadcasting:
            self._wait(published)
        elif published.message is not None:
            self._send(published.message, published.session, KEPT)

    def _allowed(self, message: Message, session: Session | None, principal: Principal) -> Message | None:
        """Return the message of a will as access control and a plug-in let it be published; None: they do not."""
        topic = message.topic
        if is_system(topic) and not may_send_will(self._router, topic, message.publisher):
            return None
        permissions = self._router.permissions
        hook = self._counters.totals.message_hook
        if hook is not None or (permissions is not None and not permissions.steady):
            # How long they take is not known.
            self._router.budget.look()
        if permissions is not None and not permissions.asked.may_publish(
            principal, topic.decode(), message.qos, message.retain
        ):
            self._counters.denied_publishes += 1
            self._refused(message, session, principal, reason_codes.NOT_AUTHORIZED, "")
            return None
        if hook is None:
            return message
        changed = hook.publish(principal, message, True)
        if changed is None:
            self._refused(message, session, principal, hook.reason_code, "a plug-in")
        return changed

    def _send(self, message: Message, session: Session | None, packet_id: int) -> None:
        half_full = self._counters.half_full
        self._router.publish(message, session, False, packet_id)
        if self._counters.half_full != half_full or self._fanout.broadcasting:
            self._pressed = True

    def _wait(self, waiting: LoneWill) -> None:
        self.line[waiting] = None
        # Its client may be back by now, with another will: else it could have any number of them wait.
        self._table.hold_will(waiting, waiting.client_id, waiting.principal, waiting.will)
        self._router.jobs.submit(WILLS, self)

    def _discard_kept(self, kept: object) -> None:
        """Tell the store that brokers share not to publish a will that it has."""
        if self._router.shared is not None:
            self._router.shared.will_ended(kept, -1)

    def _clear(self, name: str) -> None:
        """Have the keeper forget a will that stands without a session."""
        keeper = self.keeper
        if keeper is not None:
            keeper.will_cleared(name)

    # -- without a session ---------------------------------------------------------------------------------------------

    def hold(self, client_id: str, principal: Principal, will: Will, due: float, new: bool = True) -> None:
        """Keep the will of a client without a session until it is due. `new`: a store does not know that time yet."""
        held = LoneWill(will, client_id, None, principal, "", due)
        self.held[client_id] = held
        self._table.hold_will(client_id, client_id, principal, will)
        self._deadlines.set(held, due)
        keeper = self.keeper
        if new and keeper is not None:
            keeper.will_alone(client_id, principal, will, due)

    def revoke_in_grace(self, session: Session, now: float) -> None:
        """Take a will away that waits for `store.will_grace` alone: its client is back, with Clean Start."""
        if 0.0 < session.grace_from <= now:
            self.revoke(session)

    def client_returned(self, client_id: str, user_name: str | None, now: float) -> None:
        """Take the held will of a client identifier away, since its client connects; publish that of another user."""
        held = self._take_held(client_id)
        if held is not None and held.principal.user_name != user_name:
            self.submit(held.will, client_id, None, held.principal, now)

    def publish_held(self, held: LoneWill, now: float) -> None:
        """Publish a held will: its client has not come back in time."""
        self._take_held(held.client_id)
        self.submit(held.will, held.client_id, None, held.principal, now)

    def drop(self, will: LoneWill) -> bool:
        """One that is held or waits is not to be published. False: it was, or its client is back."""
        if will.due > 0.0:
            if self.held.get(will.client_id) is not will:
                return False
            self._take_held(will.client_id)
            return True
        if will not in self.line:
            return False
        self._take_from_line(will)
        if will.kept is not None:
            self._discard_kept(will.kept)
        return True

    def _take_held(self, client_id: str) -> LoneWill | None:
        held = self.held.pop(client_id, None)
        if held is not None:
            self._deadlines.cancel(held)
            self._table.let_go_of_will(client_id)
            self._clear(client_id)
        return held

    def restore_waiting(self, name: str, principal: Principal, will: Will) -> None:
        """Put a will that a store kept in line: it waited for its turn when the broker died."""
        number, _, client_id = name.removeprefix(WAITING).partition("/")
        if number.isdigit():
            self._number = max(self._number, int(number))
        self._wait(LoneWill(will, client_id, None, principal, name))

    # -- in turns ------------------------------------------------------------------------------------------------------

    def step(self, budget: Budget) -> bool:
        """Publish the wills that wait, in their order, until a queue becomes half full."""
        counters = self._counters
        line = self.line
        while line and not self._pressed and not self._fanout.broadcasting and not budget.spent():
            if counters.half_full != self._half_full:
                break
            waiting = next(iter(line))
            self._take_from_line(waiting)
            budget.used += DUE_WORK
            if waiting.message is not None:
                self._send(waiting.message, waiting.session, KEPT)
            else:
                now = counters.totals.now
                self.submit(waiting.will, waiting.client_id, waiting.session, waiting.principal, now, waiting.kept)
        return not line

    def _take_from_line(self, waiting: LoneWill) -> None:
        del self.line[waiting]
        self._table.let_go_of_will(waiting)
        if waiting.name:
            self._clear(waiting.name)

    def _refused(
        self, message: Message, session: Session | None, principal: Principal, reason_code: int, why: str
    ) -> None:
        """Remember that a will was refused: its client is not there to be told."""
        if session is not None:
            topic = message.topic.decode()
            session.refused(WILL, topic, reason_code, why, message.qos, message.retain, 1, principal)
