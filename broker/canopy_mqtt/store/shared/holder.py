"""A CONNECT that claims its session from a shared store, and then what of the session is in the core's memory.

Promises: messages are taken only as there is room for them, so the core drops none that the store still has; what is
not taken is read again when half of what was there is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from canopy_mqtt.core.causes import MOVED, TAKEN_OVER
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.persistence import restore
from canopy_mqtt.core.persistence.journal import DeliveryRecord
from canopy_mqtt.core.queues.message import OVERHEAD
from canopy_mqtt.store.shared.calls import Content, EndedWill, NewWill, Owner, Terms, Waiting
from canopy_mqtt.store.shared.journal import Kept, SharedJournal
from canopy_mqtt.store.shared.node import Node, Session
from canopy_mqtt.store.shared.records import delivery_record, new_will, session_record

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.router import Router
    from canopy_mqtt.core.shared import Attempt

UNAVAILABLE: Final = "the database of the cluster's sessions does not answer"
ELSEWHERE: Final = "its client has connected to another node"
SHARE_ROOM: Final = 20
"""Messages that a client has from the queues of its share groups at most, and no more than its Receive Maximum."""
ANOTHER_USER: Final = "the session of this client identifier is another user's"


class Place(Protocol):
    """Where sessions are held: one broker."""

    node: Node
    journal: SharedJournal
    router: Router
    now: Callable[[], float]
    most: int
    """Messages of a session that are in memory at most."""

    def opened(self, holder: Holder, content: Content) -> None:
        """Its attempt is about to be answered. `content`: what its session has."""

    def starved(self, holder: Holder) -> None:
        """There was no room for messages that have been read."""


def unclaimed(attempt: Attempt) -> None:
    """Answer a CONNECT whose session cannot be claimed. A clean one that ends with its connection does not need the
    database: a session of its client identifier that is there stays."""
    if attempt.is_gone:
        return
    if attempt.clean and attempt.expiry == 0:
        attempt.opened(None)
    else:
        attempt.refused(reason_codes.SERVER_UNAVAILABLE, UNAVAILABLE)


class Holder:
    """The broker's side of a session (`node.Client`)."""

    def __init__(self, place: Place, attempt: Attempt, principal: str) -> None:
        """`principal`: whose the session is to be, JSON."""
        self.attempt = attempt
        self._granted = attempt.expiry
        self.claimed: Session | None = None
        """None: the session is not claimed, or not here any more."""
        self._place = place
        self._principal = principal
        self._kept: Kept | None = None
        self._read_at = place.most // 2
        """Messages that wait here when more are read, at most; -1: they are read when there is room (`starved`)."""

    # -- as the node sees it -------------------------------------------------------------------------------------------

    @property
    def terms(self) -> Terms:
        attempt = self.attempt
        return Terms(attempt.clean, attempt.expiry, self._principal, attempt.principal.account_name())

    @property
    def is_gone(self) -> bool:
        return self.attempt.is_gone

    def will_of(self, owner: Owner) -> NewWill | None:
        will = self.attempt.will
        return None if will is None else new_will(owner, will, self.attempt.expiry)

    def restored(self, session: Session, content: Content) -> None:
        place, attempt = self._place, self.attempt
        if attempt.is_gone:
            place.node.leave(session)
            return
        self.claimed = session
        if attempt.will is not None:
            attempt.kept_will = session.owner
        kept = self._kept = Kept(session.owner, attempt.expiry > 0 or session.present, self._sent)
        place.journal.kept[session.client_id] = kept
        record = None
        if session.present:
            record = session_record(session.client_id, attempt.expiry, attempt.principal, content, kept.number)
        place.opened(self, content)
        attempt.opened(record)

    @property
    def room(self) -> int:
        session = self.attempt.session
        if session is None:
            return 0
        queue = session.queue
        return max(min(self._place.most, queue.max_messages) - queue.messages, 0)

    @property
    def share_room(self) -> int:
        session, kept = self.attempt.session, self._kept
        if session is None or kept is None:
            return 0
        return max(min(SHARE_ROOM, session.window.limit) - kept.shared, 0)

    def take(self, waiting: Sequence[Waiting]) -> int:
        session, kept = self.attempt.session, self._kept
        if session is None or kept is None:
            return 0
        queue, load = session.queue, session.totals
        messages, size = queue.messages, queue.bytes
        session.account.fit()
        records: list[DeliveryRecord] = []
        for each in waiting:
            more = len(each.topic.encode()) + len(each.payload) + len(each.properties or b"") + OVERHEAD
            count = len(records) + 1
            full = messages > 0 and (messages >= queue.max_messages or size + more > queue.max_bytes)
            if full or not (load.has_room(count, size - queue.bytes + more) or load.admits(1, more, messages, size)):
                if not full:
                    self._place.starved(self)
                self._read_at = messages // 2 if messages else -1
                break
            messages, size = messages + 1, size + more
            records.append(delivery_record(each, kept.number(each)))
        else:
            self._read_at = self._place.most // 2
        restore.take(self._place.router, session, records, self._place.now())
        return len(records)

    def go_on(self) -> None:
        self._sent()

    def end(self) -> None:
        self._let_go()
        self.attempt.end(TAKEN_OVER, reason_codes.SESSION_TAKEN_OVER, ELSEWHERE, self._place.now())

    def failed(self) -> None:
        unclaimed(self.attempt)

    def foreign(self) -> None:
        self.attempt.refused(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, ANOTHER_USER)

    # -- as the place sees it ------------------------------------------------------------------------------------------

    def move(self) -> None:
        """End the connection of a session that is kept, or a member of a share group, since the database cannot be
        reached from here."""
        session = self.attempt.session
        if self.attempt.is_kept or (session is not None and session.memberships):
            self._move()

    def _move(self) -> None:
        text = "the sessions of the cluster cannot be kept here"
        self.attempt.end(MOVED, reason_codes.USE_ANOTHER_SERVER, text, self._place.now())

    def lost(self) -> None:
        """This incarnation of the node is over: the session is claimed no more. A will that is kept is published by
        another one, as if the connection had been lost: so it ends."""
        self.claimed = None
        if self.attempt.take_will() is None:
            self.move()
            return
        if self.attempt.session is not None:
            self._place.router.wills.revoke(self.attempt.session)
        self._move()

    def left(self) -> None:
        """The connection is over: give the session back. What is left of a will is not to be published."""
        will = self.attempt.take_will()
        if isinstance(will, Owner):
            self._place.node.note(EndedWill(*will, None))
        claimed, expiry = self.claimed, self.attempt.expiry
        if claimed is not None:
            self._let_go()
            self._place.node.leave(claimed, None if expiry == self._granted else expiry)

    def _let_go(self) -> None:
        """The session is not here any more: nothing is noted of it."""
        claimed, self.claimed = self.claimed, None
        kept = self._place.journal.kept
        if claimed is not None and kept.get(claimed.client_id) is self._kept:
            del kept[claimed.client_id]

    def refuse(self, source: int, message: int) -> None:
        """Take a delivery out of flight: another connection of the client has acknowledged it."""
        session, kept = self.attempt.session, self._kept
        number = None if kept is None else kept.find(source, message)
        if session is None or kept is None or number is None:
            return
        kept.forget(number)
        for each in session.inflight.values():
            if each.record == number and each.attempts == 0:
                session.offered -= 1
                session.window.finish(each)
                session.fill_and_flush(self._place.now())
                return

    def _sent(self) -> None:
        """Read on, if more waits and half of what was here is sent, and take from share groups."""
        claimed, session = self.claimed, self.attempt.session
        if claimed is not None and claimed.shares:
            self._place.node.has_room(claimed)
        if (
            claimed is not None
            and session is not None
            and claimed.more
            and not claimed.reading
            and session.waiting_messages() <= self._read_at
        ):
            self._place.node.wants(claimed)
