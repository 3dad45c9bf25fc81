"""Sessions that go from this node to others.

Owns each until the other node keeps it. Promises: the connection ends first, as when the client connects here again; no
message that came to the session before it went stays behind unnamed; what moves at a time is bounded (`turns`), and of
what is on disk each has a few pages in memory. Until a node has said that it keeps the session, it is still here: if
that node leaves, it stays; also if somebody else waits for it, and the node says nothing of it (`silence`).

What comes to the session while it goes is its rest, and follows when all nodes know where its subscriptions stand now.
With the rest the other node is told which nodes did not take part in this, and these are told of the move (`gates`): so
again if it then finds that further ones did not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.core.codec.errors import Refused
from broker.core.codec.packets import Will
from broker.core.connection.connect.identity import check_owner
from broker.core.counters import SESSION_ENDED
from broker.core.persistence.journal import DeliveryRecord, Fetch, SessionRecord
from broker.core.persistence.moving import delivery_record, record_of
from broker.core.persistence.pages import FETCHED, FETCHED_BYTES, UNBOUNDED, Page
from broker.core.queues.delivery import DROPPED, RELEASED, Delivery
from broker.core.queues.message import MovedMessage
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.ownership.messages import LATER, LOST, NONE, REFUSED, Abort, Answer, Ask, Message, Part
from broker.mesh.ownership.moves.records import SessionWriter
from broker.mesh.ownership.moves.silence import Silence
from broker.mesh.ownership.moves.turns import Going, Turns
from broker.store.groups.principals import Principals

WINDOW: Final = 1_048_576
"""Bytes of parts on their way to a node that it has not taken, but for one part: what waits for it besides has room in
`mesh.queue_bytes`."""

MOVING: Final = 33_554_432
"""Bytes of the sessions that move to one node at a time (`turns`)."""

REMINDERS: Final = 3
"""How often within the time that a node is waited for it is told of a session that waits for its turn."""


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


class _Span:
    """What a page had when a session began to go, or its rest, and had not been read. Bounds are included."""

    def __init__(self, page: Page, read_to: int, read: int) -> None:
        self.first = max(int(page.first), read_to + 1)
        self.last = int(page.last)
        self.messages = int(page.messages) - read
        self.bytes = int(page.bytes)


class Giving(Going):
    """One session that goes to a node, because of a claim."""

    def __init__(self, session: Session, node: str, ask: Ask) -> None:
        super().__init__(session, node)
        self.ask = ask
        # What is still to be written, in memory and on disk alone, by numbers in one order.
        self.waiting: deque[Delivery] = deque()
        self.unread: deque[_Span] = deque()
        self.fetch: _Read | None = None
        # How much was read of what is on disk alone, how far, and how much of each page.
        self.read_bytes = 0
        self.pages: dict[Page, tuple[int, int]] = {}
        # How many messages on disk are more than goes along, and how many are too large to go.
        self.behind = 0
        self.too_large = 0
        # How many of its messages have a name by this, which they keep wherever a copy of them waits.
        self.named = 0
        # What of memory has gone.
        self.gone: set[Delivery] = set()
        self.will: Will | None = None
        self.will_due = 0.0
        self.writer: SessionWriter | None = None
        self.rest = False
        # Nodes that may not know the session's filters at the other node, or have not sent all that is for it here.
        self.without: set[str] = set()
        # Those of them that were told of the move, as publishers: nothing goes along that comes of them after that; and
        # those of whom that holds for what is written now.
        self.parted: frozenset[str] = frozenset()
        self.shut: frozenset[str] = frozenset()
        # Nodes that claim it too: they have their answer when this is over.
        self.askers: list[tuple[str, Ask]] = []


class _Line:
    """What goes to one node: bytes of parts that it has not taken, and what has something to write."""

    def __init__(self) -> None:
        self.untaken = 0
        self.writing: deque[Giving] = deque()


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
        comes: Callable[[Giving], None],
        now: Callable[[], float],
        log: Any,
        most_bytes: int,
        largest: int,
        timeout: float,
        silence: float,
    ) -> None:
        """`node`: this one. `over`: who is told that one has gone, or stays. `wanted`: whether somebody waits for that;
        it ends then when the other node has said nothing for `silence` seconds. `stays`: is told first of one that
        stays. `barrier`: calls when all has arrived that the nodes had published for this one, with those of which that
        is not sure. `going`: is told before; `parting`: when what comes to a session from now on does not go along any
        more. `comes`: has the other node wait for one whose turn has not come, for which it has `timeout` seconds."""
        self.givings: dict[str, Giving] = {}
        self.moved = 0
        """Sessions that have gone to other nodes."""
        self.left_behind = 0
        """Messages that did not go along with their sessions: too large, or more waited on disk than may go."""
        self._node = node
        self._router = router
        self._principals = principals
        self._send = send
        self._over = over
        self._stays = stays
        self.silence = Silence(silence, now, wanted, self._give_up)
        self.turns = Turns(MOVING, timeout / REMINDERS, now, self._begin, comes)
        self._wanted = wanted
        self._barrier = barrier
        self._going = going
        self._parting = parting
        self._now = now
        self._log = log
        self._most_bytes = most_bytes
        self.largest = largest
        """Bytes of a message that goes along, at most: one that is larger than what may wait for a node ends its
        membership."""
        self._lines: dict[str, _Line] = {}

    def give(self, node: str, ask: Ask, fetched: bool = False) -> int:
        """End the connection of a session, and have it go to a node: NONE: there is none (any more); REFUSED; LATER.

        `fetched`: it was offered to the node: no client waits for it.
        """
        router, now = self._router, self._now()
        giving = self.givings.get(ask.client_id)
        if giving is not None:
            if not ask.merges and giving.ask.time > ask.time:
                return LOST
            giving.askers.append((node, ask))
            if not self.turns.waiting(giving):
                self.silence.hurry(giving)
            elif giving.ask.time < ask.time:
                self._put_off(giving)
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
        if session.queue.disk is not None:
            session.queue.disk.stop_reading()
        self.turns.enter(giving, fetched)
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

    def goes_on(self, client_id: str) -> bool:
        """Whether a session is on its way, or waits for its turn while others are, and the other node has said
        something of them lately."""
        giving = self.givings.get(client_id)
        return giving is not None and any(each.due > self._now() for each in self.turns.moving(giving.node))

    def hurry(self, client_id: str) -> None:
        """Somebody waits for a session that goes."""
        giving = self.givings.get(client_id)
        if giving is None:
            return
        if not self.turns.waiting(giving):
            self.silence.hurry(giving)
        elif self._wanted(giving):
            self._put_off(giving)

    def _put_off(self, giving: Giving) -> None:
        """Its turn has not come, and somebody has claimed it later than the other node."""
        self._send(giving.node, Answer(giving.client_id, giving.ask.time, LOST))
        self._stay(giving)

    def _disconnect(self, session: Session) -> None:
        if session.outbox is not None:
            peer = session.outbox.peer
            assert peer is not None
            peer.take_over(self._now())
            self._router.peers.drain(self._router, self._now())

    # -- what goes -----------------------------------------------------------------------------------------------------

    def _begin(self, giving: Giving) -> None:
        """Its turn has come."""
        self.silence.broken(giving)
        session, now = giving.session, self._now()
        if session.ended:
            # Its time was over while it waited.
            record = SessionRecord(giving.client_id, 0, 0.0, session.principal)
        else:
            self._name(giving, session.inflight.values())
            record = record_of(session, now, queued=False)
            record.deliveries[:] = self._going_along(giving, record.deliveries)
            # From here on it is the other node's to publish.
            giving.will, giving.will_due = session.will, session.will_due
            session.will, session.will_due = None, 0.0
            self._router.schedule(session)
        self._write(giving, record)

    def _begin_rest(self, giving: Giving, missed: set[str]) -> None:
        giving.without = (giving.without | missed) - {self._node, giving.node}
        if self.givings.get(giving.client_id) is giving:
            session = giving.session
            giving.shut = giving.parted
            if not session.ended:
                self._parting(giving)
            self._write(giving, SessionRecord(giving.client_id, session.expiry_interval, 0.0, session.principal))

    def _write(self, giving: Giving, record: SessionRecord) -> None:
        """Begin to write the parts of a record, and behind it what waits now and has not gone."""
        queue = giving.session.queue
        giving.waiting = deque(each for each in queue.waiting() if each not in giving.gone)
        giving.unread = deque()
        giving.behind = 0
        for page in [] if queue.disk is None else queue.disk.pages():
            read_to, count = giving.pages.get(page, (0, 0))
            if page.last <= read_to:
                continue
            if giving.read_bytes >= self._most_bytes:
                giving.behind += int(page.messages) - count
            else:
                giving.unread.append(_Span(page, read_to, count))
                giving.pages[page] = (int(page.last), int(page.messages))
                giving.read_bytes += int(page.bytes)
        giving.writer = SessionWriter(record, self._principals)
        giving.writer.more = True
        self._writes(giving)

    def _writes(self, giving: Giving) -> None:
        """It has something to write."""
        line = self._lines.setdefault(giving.node, _Line())
        line.writing.append(giving)
        self._pump(giving.node, line)

    def _pump(self, node: str, line: _Line) -> None:
        while line.writing and line.untaken < WINDOW:
            giving = line.writing.popleft()
            writer = giving.writer
            if writer is None or self.givings.get(giving.client_id) is not giving:
                continue
            reads = writer.empty and writer.more and not self._read_on(giving, writer)
            if reads and writer.begun:
                continue
            data = writer.next()
            line.untaken += len(data)
            self._send(node, Part(giving.client_id, giving.ask.time, giving.rest, data))
            if not writer.over and not reads:
                # Each in turn: a large session holds up no small one.
                line.writing.append(giving)

    def _read_on(self, giving: Giving, writer: SessionWriter) -> bool:
        """Have the writer get what comes next. False: it is read from disk."""
        session, waiting, unread = giving.session, giving.waiting, giving.unread
        if session.ended:
            # Its time is over, and what waited is lost, and counted.
            waiting.clear()
            unread.clear()
        first = unread[0].first if unread else UNBOUNDED
        found: list[Delivery] = []
        while waiting and len(found) < FETCHED and int(waiting[0].record) < first:
            delivery = waiting.popleft()
            if delivery.state != DROPPED:
                found.append(delivery)
        if found or not unread:
            now = self._now()
            self._name(giving, found)
            giving.gone.update(found)
            writer.add(
                self._going_along(giving, (delivery_record(each, {}, now) for each in found)), bool(waiting or unread)
            )
            return True
        last = messages = size = 0
        behind = int(waiting[0].record) if waiting else UNBOUNDED
        while unread and unread[0].first < behind:
            span = unread[0]
            if last and (messages + span.messages > FETCHED or size + span.bytes > FETCHED_BYTES):
                break
            unread.popleft()
            last, messages, size = span.last, messages + span.messages, size + span.bytes
        journal = session.journal
        assert journal is not None
        giving.fetch = _Read(first, last, messages, lambda records: self._was_read(giving, records))
        journal.fetch(giving.client_id, giving.fetch)
        return False

    def _was_read(self, giving: Giving, records: list[DeliveryRecord]) -> None:
        giving.fetch = None
        writer = giving.writer
        if writer is not None and self.givings.get(giving.client_id) is giving:
            disk = giving.session.queue.disk
            pages = [] if disk is None else disk.pages()
            # Without those that were dropped since they were asked for: always the first.
            first = int(pages[0].first) if pages else UNBOUNDED
            more = bool(giving.waiting or giving.unread)
            writer.add(self._going_along(giving, (kept for kept in records if kept.number >= first)), more)
            self._writes(giving)

    def _going_along(self, giving: Giving, records: Iterable[DeliveryRecord]) -> list[DeliveryRecord]:
        """Those that are not too large, and that the session would still take there, where it is shut to some nodes."""
        found: list[DeliveryRecord] = []
        for kept in records:
            message = kept.message
            if message is not None and len(message.payload) > self.largest:
                giving.too_large += 1
            elif message is None or kept.qos == 0 or kept.share or message.publisher not in giving.shut:
                found.append(kept)
        return found

    def _name(self, giving: Giving, deliveries: Iterable[Delivery]) -> None:
        """Should the session stay here, and be there as well, messages of one name are one when the two meet."""
        for delivery in deliveries:
            if delivery.state != RELEASED and not isinstance(delivery.message, MovedMessage):
                giving.named += 1
                name = f"{self._node} {giving.node} {giving.ask.time} {giving.named}"
                delivery.message = MovedMessage(delivery.message, name)

    # -- what the other node says --------------------------------------------------------------------------------------

    def took(self, node: str, size: int) -> None:
        """It has taken so many bytes of parts."""
        line = self._lines.get(node)
        if line is not None:
            line.untaken = max(line.untaken - size, 0)
            for giving in self.turns.moving(node):
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
        behind = giving.behind + giving.too_large
        if behind > 0 and not giving.session.ended:
            self.left_behind += behind
            giving.session.offered += behind
            giving.session.ledger.lost(SESSION_ENDED, behind)
            self._log.warning("messages stayed behind", client_id=giving.client_id, node=giving.node, messages=behind)

    def left(self, node: str) -> None:
        """A node is gone: what was on its way there stays."""
        self._lines.pop(node, None)
        self.turns.left(node)
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
        self.turns.leave(giving)
        self._over(giving)
