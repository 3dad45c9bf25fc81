"""Sessions that go from this node to others.

Owns each until the other node keeps it. Promises: the connection ends first, as when the client connects here again; no
message that came to the session before it went stays behind unnamed; at most `WINDOW` bytes are on the way to a node
that it has not taken. Until a node has said that it keeps the session, it is still here: if that node leaves, it stays;
also if somebody else waits for it, and the node has said nothing of it for too long (`silence`).

What comes to the session while it goes is its rest, and follows when all nodes know where its subscriptions stand now.
With the rest the other node is told which nodes did not take part in this, and these are told of the move (`gates`): so
again if it then finds that further ones did not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.core.codec.errors import Refused
from broker.core.codec.packets import Will
from broker.core.connection.connect.identity import check_owner
from broker.core.counters import SESSION_ENDED
from broker.core.persistence.journal import DeliveryRecord, Fetch, SessionRecord
from broker.core.persistence.moving import delivery_record, record_of
from broker.core.persistence.pages import FETCHED, FETCHED_BYTES, Page
from broker.core.queues.delivery import QUEUED, RELEASED, Delivery
from broker.core.queues.message import MovedMessage
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.ownership.messages import LATER, LOST, NONE, REFUSED, Abort, Ask, Message, Part
from broker.mesh.ownership.records import SessionWriter
from broker.mesh.ownership.silence import Move, Silence
from broker.store.groups.principals import Principals

WINDOW: Final = 1_048_576
"""Bytes of parts on their way to a node that it has not taken, but for one part: what waits for it besides has room in
`mesh.queue_bytes`."""


class _Read(Fetch):
    """Pages of a session that goes, which are being read."""

    def __init__(self, first: int, last: int, messages: int, done: Callable[[list[DeliveryRecord]], None]) -> None:
        super().__init__(first, last, messages)
        self._done = done

    def committed(self, number: int) -> int:
        """They have come."""
        del number
        if not self.over:
            self._done(self.records)
        return len(self.records)


class Giving(Move):
    """One session that goes to a node, because of a claim."""

    def __init__(self, session: Session, node: str, ask: Ask) -> None:
        super().__init__(session.client_id)
        self.session = session
        self.node = node
        self.ask = ask
        # What waits on disk alone and was read, how far, and how much of each page.
        self.read: list[DeliveryRecord] = []
        self.read_bytes = 0
        self.pages: dict[Page, tuple[int, int]] = {}
        self.fetch: _Read | None = None
        # How many of its messages have a name by this, which they keep wherever a copy of them waits.
        self.named = 0
        # What has gone, and what of that was read since.
        self.gone: set[Delivery] = set()
        self.will: Will | None = None
        self.will_due = 0.0
        self.writer: SessionWriter | None = None
        self.rest = False
        # Nodes that may not know the session's filters at the other node, or have not sent all that is for it here. Of
        # those that were told of the move (as publishers) nothing goes along that comes after that.
        self.without: set[str] = set()
        self.parted: frozenset[str] = frozenset()
        # Nodes that claim it too: they have their answer when this is over.
        self.askers: list[tuple[str, Ask]] = []


class _Line:
    """What goes to one node."""

    def __init__(self) -> None:
        self.unread = 0
        self.waiting: deque[Giving] = deque()


class Giver:
    """The sessions that go. `most_bytes`: of messages of one session that are read from disk to go along."""

    def __init__(
        self,
        node: str,
        router: Router,
        principals: Principals,
        send: Callable[[str, Message], None],
        over: Callable[[Giving], None],
        wanted: Callable[[Giving], bool],
        stays: Callable[[Giving], None],
        barrier: Callable[[Callable[[set[str]], None]], None],
        going: Callable[[Giving], None],
        parting: Callable[[Giving], None],
        now: Callable[[], float],
        log: Any,
        most_bytes: int,
        silence: float,
    ) -> None:
        """`node`: this one. `over`: who is told that one has gone, or stays. `wanted`: whether somebody waits for that;
        it ends then when the other node has said nothing for `silence` seconds. `stays`: is told first of one that
        stays. `barrier`: calls when all has arrived that the nodes had published for this one, with those of which that
        is not sure. `going`: is told before; `parting`: when what comes to a session from now on does not go along any
        more."""
        self.givings: dict[str, Giving] = {}
        self.moved = 0
        """Sessions that have gone to other nodes."""
        self.left_behind = 0
        """Messages that did not go along with their sessions: more waited on disk than may go."""
        self._node = node
        self._router = router
        self._principals = principals
        self._send = send
        self._over = over
        self._stays = stays
        self.silence = Silence(silence, now, wanted, self._give_up)
        self._barrier = barrier
        self._going = going
        self._parting = parting
        self._now = now
        self._log = log
        self._most_bytes = most_bytes
        self._lines: dict[str, _Line] = {}

    def give(self, node: str, ask: Ask) -> int:
        """End the connection of a session, and have it go to a node: NONE: there is none (any more); REFUSED; LATER."""
        router, now = self._router, self._now()
        giving = self.givings.get(ask.client_id)
        if giving is not None:
            if not ask.merges and giving.ask.time > ask.time:
                return LOST
            giving.askers.append((node, ask))
            self.silence.hurry(giving)
            return LATER
        session = router.sessions.get(ask.client_id)
        if session is not None and session.outbox is None:
            router.look_at(session, now)
        if session is None or session.ended or session.own or session.uplink or session.node:
            return NONE
        clean = ask.clean
        try:
            check_owner(session, ask.user, router.limits, now)
        except Refused:
            if not ask.merges:
                return REFUSED
            clean = True
        self._disconnect(session)
        if router.sessions.get(ask.client_id) is not session:
            return NONE
        if clean:
            router.end_session(session, now)
            return NONE
        giving = self.givings[ask.client_id] = Giving(session, node, ask)
        self.silence.broken(giving)
        self._go_on(giving)
        return LATER

    def let_go(self, ask: Ask) -> None:
        """End the connection of a session that a node has claimed, and that cannot go yet."""
        router, now = self._router, self._now()
        session = router.sessions.get(ask.client_id)
        if session is None or session.own or session.uplink or session.node:
            return
        try:
            check_owner(session, ask.user, router.limits, now)
        except Refused:
            return
        self._disconnect(session)

    def hurry(self, client_id: str) -> None:
        """Somebody waits for a session that goes."""
        giving = self.givings.get(client_id)
        if giving is not None:
            self.silence.hurry(giving)

    def _disconnect(self, session: Session) -> None:
        if session.outbox is not None:
            peer = session.outbox.peer
            assert peer is not None
            peer.take_over(self._now())
            self._router.peers.drain(self._router, self._now())

    # -- what goes -----------------------------------------------------------------------------------------------------

    def _go_on(self, giving: Giving) -> None:
        """Read the next pages; when there are none, have all that has not gone yet go."""
        session = giving.session
        disk = session.queue.disk
        journal = session.journal
        if disk is not None and journal is not None and giving.read_bytes < self._most_bytes:
            first = last = messages = size = 0
            taken: list[tuple[Page, int]] = []
            for page in disk.pages():
                read_to, count = giving.pages.get(page, (0, 0))
                if page.last <= read_to:
                    continue
                if taken and (messages + page.messages > FETCHED or size + page.bytes > FETCHED_BYTES):
                    break
                first = first or max(int(page.first), read_to + 1)
                last = int(page.last)
                messages += int(page.messages) - count
                size += int(page.bytes)
                taken.append((page, int(page.messages)))
            if taken:
                for page, count in taken:
                    giving.pages[page] = (int(page.last), count)
                giving.read_bytes += size
                giving.fetch = _Read(first, last, messages, lambda records: self._was_read(giving, records))
                journal.fetch(session.client_id, giving.fetch)
                return
        self._begin_parts(giving)

    def _was_read(self, giving: Giving, records: list[DeliveryRecord]) -> None:
        giving.fetch = None
        if self.givings.get(giving.client_id) is giving:
            giving.read.extend(records)
            self._go_on(giving)

    def _begin_parts(self, giving: Giving) -> None:
        session, parted = giving.session, giving.parted
        record = self._rest_of(giving) if giving.rest else self._all_of(giving)
        pages = [] if session.queue.disk is None else session.queue.disk.pages()
        # In their places among what is in memory; without those that were dropped since they were read.
        read = [kept for kept in giving.read if any(page.first <= kept.number <= page.last for page in pages)]
        giving.read = []
        if read:
            waiting = [kept for kept in record.deliveries if kept.state == QUEUED] + read
            waiting.sort(key=lambda kept: kept.number)
            record.deliveries[:] = [kept for kept in record.deliveries if kept.state != QUEUED] + waiting
        if parted:
            record.deliveries[:] = [kept for kept in record.deliveries if not _is_of(kept, parted)]
        record.pages.clear()
        giving.writer = SessionWriter(record, self._principals)
        line = self._lines.setdefault(giving.node, _Line())
        line.waiting.append(giving)
        self._pump(giving.node, line)

    def _all_of(self, giving: Giving) -> SessionRecord:
        session, now = giving.session, self._now()
        if session.ended:
            # Its time was over while pages were read.
            return SessionRecord(giving.client_id, 0, 0.0, session.principal)
        self._name(giving, [*session.inflight.values(), *session.queue.waiting()])
        record = record_of(session, now)
        giving.gone.update(session.queue.waiting())
        # From here on it is the other node's to publish.
        giving.will, giving.will_due = session.will, session.will_due
        session.will, session.will_due = None, 0.0
        self._router.schedule(session)
        return record

    def _rest_of(self, giving: Giving) -> SessionRecord:
        session, now = giving.session, self._now()
        record = SessionRecord(giving.client_id, session.expiry_interval, 0.0, session.principal)
        if not session.ended:
            self._parting(giving)
            rest = [delivery for delivery in session.queue.waiting() if delivery not in giving.gone]
            giving.gone.update(rest)
            self._name(giving, rest)
            record.deliveries.extend(delivery_record(delivery, {}, now) for delivery in rest)
        return record

    def _name(self, giving: Giving, deliveries: list[Delivery]) -> None:
        """Should the session stay here, and be there as well, messages of one name are one when the two meet."""
        for delivery in deliveries:
            if delivery.state != RELEASED and not isinstance(delivery.message, MovedMessage):
                giving.named += 1
                name = f"{self._node} {giving.node} {giving.ask.time} {giving.named}"
                delivery.message = MovedMessage(delivery.message, name)

    def _pump(self, node: str, line: _Line) -> None:
        while line.waiting and line.unread < WINDOW:
            giving = line.waiting[0]
            writer = giving.writer
            if writer is None or self.givings.get(giving.client_id) is not giving:
                line.waiting.popleft()
                continue
            data = writer.next()
            line.unread += len(data)
            self._send(node, Part(giving.client_id, giving.ask.time, giving.rest, data))
            line.waiting.popleft()
            if not writer.over:
                # Each in turn: a large session holds up no small one.
                line.waiting.append(giving)

    # -- what the other node says --------------------------------------------------------------------------------------

    def took(self, node: str, size: int) -> None:
        """It has taken so many bytes of parts."""
        line = self._lines.get(node)
        if line is not None:
            line.unread = max(line.unread - size, 0)
            for giving in self.givings.values():
                if giving.node == node:
                    self.silence.broken(giving)
            self._pump(node, line)

    def ready(self, node: str, client_id: str, time: int, without: list[str]) -> None:
        """All nodes know that the subscriptions stand there, `without` these: the rest goes. So again, if what further
        nodes have sent here since has not come there."""
        giving = self._of(node, client_id, time)
        if giving is None or giving.writer is None or not giving.writer.over:
            return
        giving.writer = None
        giving.without = giving.without | set(without)
        self.silence.broken(giving)
        if giving.rest:
            self._begin_rest(giving, set())
            return
        giving.rest = True
        self._going(giving)
        # What nodes sent before they knew it is still on its way here, perhaps.
        self._barrier(lambda missed: self._begin_rest(giving, missed))

    def _begin_rest(self, giving: Giving, missed: set[str]) -> None:
        giving.without = (giving.without | missed) - {self._node, giving.node}
        if self.givings.get(giving.client_id) is giving:
            self._go_on(giving)

    def taken(self, node: str, client_id: str, time: int) -> None:
        """The session is kept there: it is forgotten here."""
        giving = self._of(node, client_id, time)
        if giving is None or not giving.rest:
            return
        session = giving.session
        self._count_left_behind(giving)
        self._router.release(session, self._now())
        self.moved += 1
        self._end(giving)

    def aborted(self, node: str, abort: Abort) -> None:
        """It takes no more of the session."""
        giving = self._of(node, abort.client_id, abort.time)
        if giving is not None:
            self._stay(giving)
        self._send(node, Abort(abort.client_id, abort.time, True))

    def _give_up(self, giving: Giving) -> None:
        self._send(giving.node, Abort(giving.client_id, giving.ask.time, True))
        self._stay(giving)

    def _of(self, node: str, client_id: str, time: int) -> Giving | None:
        giving = self.givings.get(client_id)
        return giving if giving is not None and giving.node == node and giving.ask.time == time else None

    def _count_left_behind(self, giving: Giving) -> None:
        disk = giving.session.queue.disk
        if disk is None or giving.session.ended:
            return
        behind = 0
        for page in disk.pages():
            read_to, count = giving.pages.get(page, (0, 0))
            if page.last > read_to:
                behind += int(page.messages) - count
        if behind > 0:
            self.left_behind += behind
            giving.session.offered += behind
            giving.session.ledger.lost(SESSION_ENDED, behind)
            self._log.warning("messages stayed behind", client_id=giving.client_id, node=giving.node, messages=behind)

    def left(self, node: str) -> None:
        """A node is gone: what was on its way there stays."""
        self._lines.pop(node, None)
        for giving in list(self.givings.values()):
            giving.askers = [each for each in giving.askers if each[0] != node]
            if giving.node == node:
                self._stay(giving)

    def _stay(self, giving: Giving) -> None:
        session = giving.session
        if giving.fetch is not None:
            giving.fetch.over = True
        if giving.will is not None and not session.ended:
            session.will, session.will_due = giving.will, giving.will_due
            self._router.wills.tell(session)
            self._router.session_table.count(session)
            self._router.schedule(session)
        self._stays(giving)
        self._end(giving)

    def _end(self, giving: Giving) -> None:
        del self.givings[giving.client_id]
        self.silence.forget(giving)
        self._over(giving)


def _is_of(kept: DeliveryRecord, publishers: frozenset[str]) -> bool:
    """Whether a message of one of these would not be taken by a session that is shut to them."""
    return kept.qos > 0 and not kept.share and kept.message is not None and kept.message.publisher in publishers
