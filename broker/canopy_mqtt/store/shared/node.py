"""What a node of a shared store does between its clients, the database and the other nodes.

Owns the sessions that the node has claimed, the changes that are noted for its next groups, and what of each session is
in memory. Knows no event loop, clock or socket, and nothing of the broker's core: it asks through `Calls`, which answer
later, and gives to a `Client` what its session has. So the histories of the executable model run it.

Promises: a change is confirmed when the group is written that it came in. A session whose owner is another by now is
dropped, and so is all that was noted of it. Whatever is written for a session is read by the node that has it: at once
after a hint, and in general where a hint may be missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from canopy_mqtt.store.shared.calls import (
    Ask,
    Changed,
    ChangedFilter,
    Claimed,
    Content,
    DeliveryKey,
    Empty,
    Foreign,
    General,
    Hello,
    Hints,
    Joined,
    Look,
    Noted,
    Owner,
    Page,
    Peer,
    Piece,
    Publish,
    Reap,
    Release,
    Taken,
    Terms,
    Waiting,
    Written,
)

P = ParamSpec("P")
T = TypeVar("T")

MOST: Final = 500
"""Changes of a group."""
BYTES: Final = 4 * 1024 * 1024
"""Bytes of its messages: with the message that passes them a group is complete. PostgreSQL takes up to 1 GB at once."""
REAPED: Final = 500
"""Sessions of dead nodes that are released in one group."""


class Client(Protocol):
    """The broker's side of a session: a connection, and what it has in memory."""

    @property
    def terms(self) -> Terms: ...

    @property
    def is_gone(self) -> bool:
        """Whether the connection is over, or the client has given up its CONNECT."""

    def restored(self, session: Session, content: Content) -> None:
        """The session is there: the CONNACK can go, and what was in flight."""

    @property
    def room(self) -> int:
        """How many more messages may be read into memory."""

    def take(self, waiting: Sequence[Waiting]) -> int:
        """Queue messages, in this order behind those that wait; return how many, since they may be larger than what
        there is room for. The others are read again when the session `wants` them."""

    def go_on(self) -> None:
        """Send what can be sent."""

    def end(self) -> None:
        """End the connection, or the CONNECT: the session is elsewhere."""

    def failed(self) -> None:
        """End the CONNECT: the claim had no answer."""

    def foreign(self) -> None:
        """End the CONNECT: the session is another user's."""


class Filters(Protocol):
    """The filters of all sessions, by which a message finds those that it is for."""

    def change(self, changed: ChangedFilter) -> None: ...

    def match(self, topic: str) -> Collection[int]:
        """Return the numbers of the filters that match a topic."""


class Note(NamedTuple):
    """A change, and who is told when it is written."""

    what: Noted
    then: Callable[[Written], None] | None


class Calls(Protocol):
    """What a node asks of the database, and tells the other nodes. An answer of None: there was none, and whether the
    call was carried out is not known."""

    def join(self, back: Callable[[Joined | None], None]) -> None: ...

    def feed(self, back: Callable[[Sequence[ChangedFilter] | None], None]) -> None:
        """Return the filters that changed since the last answer; after `join`, all."""

    def retained(self, back: Callable[[Sequence[object] | None], None]) -> None:
        """Bring the copy of the retained messages up to date, and return nothing."""

    def due(self) -> None:
        """Changes are noted, and no group is being written: close one, now or when more may have come."""

    def write(self, noted: Sequence[Noted], back: Callable[[Written], None]) -> None:
        """Write a group. It is asked again until there is an answer, under one number until it is written, and with the
        filters as they were known when it was given: its messages were matched with these."""

    def wrote(self, noted: Sequence[Noted], written: Written) -> Iterable[Callable[[], None]]:
        """A group is written, and sessions that are lost have been dropped. Return what is to be called when the
        retained messages are read that it has changed."""

    def claim(self, client_id: str, client: Client, back: Callable[[Claimed | Foreign | None], None]) -> None: ...

    def content(self, session: int, back: Callable[[Content | None], None]) -> None: ...

    def read(
        self, asks: Sequence[Ask], known: Sequence[DeliveryKey], back: Callable[[Sequence[Page] | None], None]
    ) -> None: ...

    def later(self, call: Callable[[], None]) -> None:
        """Call again what had no answer."""

    def tell(self, piece: Piece) -> None:
        """Tell all nodes that there is a link to."""

    def over(self, notes: Sequence[Note]) -> Iterable[Note]:
        """End what waits for this incarnation: calls, the connections of durable sessions, and their CONNECTs. Return
        what of the notes that are not confirmed is to be written in the next one."""


class Session:
    """A session that this node has claimed."""

    def __init__(self, client_id: str, client: Client, claimed: Claimed) -> None:
        self.client_id, self.client = client_id, client
        self.id, self.epoch, self.present = claimed
        self.is_restored = False
        self.known: set[tuple[int, int]] = set()
        """By (source, number): deliveries that were read, but for those of source 0 up to `low`."""
        self.low = 0
        """No delivery of source 0 up to here is still to be read."""
        self.more = False
        """More waits than there was room for."""
        self.reading = self.again = False
        """A read is out; what was hinted since then may be missing from it."""

    @property
    def owner(self) -> Owner:
        return Owner(self.id, self.epoch)


class Feed(Generic[T]):
    """Learns what has changed, one read at a time: an older answer that comes later would bring back the past."""

    def __init__(
        self,
        ask: Callable[[Callable[[Sequence[T] | None], None]], None],
        take: Callable[[Sequence[T]], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """`ask` reads; `take` is given what it has read; `later` calls again where there was no answer."""
        self._ask, self._take, self._later = ask, take, later
        self._out = self._again = False
        self._waiting: list[Callable[[], None]] = []

    def read(self, then: Callable[[], None] | None = None) -> None:
        """Read; `then` is called with the answer of a read that began by now."""
        if then is not None:
            self._waiting.append(then)
        if self._out:
            self._again = True
            return
        self._out, self._again = True, False
        waiting, self._waiting = self._waiting, []

        def back(changed: Sequence[T] | None) -> None:
            self._out = False
            if changed is None:
                self._waiting[:0] = waiting
                self._later(self.read)
                return
            self._take(changed)
            _call(waiting)
            if self._again:
                self.read()

        self._ask(back)


def _call(calls: Iterable[Callable[[], None]]) -> None:
    for each in calls:
        each()


class Node:
    """One node's part of a shared store."""

    def __init__(self, calls: Calls, filters: Callable[[], Filters]) -> None:
        """`filters`: makes a table without filters."""
        self._calls = calls
        self._make_filters = filters
        self._life = 0
        self._clear()

    def _clear(self) -> None:
        self._life += 1
        self.sessions: dict[int, Session] = {}
        self.by_client: dict[str, Session] = {}
        """The same, by client identifier."""
        self.notes: deque[Note] = deque()
        """What no group has yet."""
        self.flight: list[Note] | None = None
        """The group that is being written."""
        self.joined: Joined | None = None
        self.filters = self._make_filters()
        self._joining = self._reaping = False
        self._filter_feed = Feed(self._live_ask(self._calls.feed), self._change_filters, self._later)
        self._retained_feed = Feed(self._live_ask(self._calls.retained), lambda _: None, self._later)
        self._deaths: dict[int, int] = {}
        """By node, the last incarnation that is known to be over."""

    def _live(self, call: Callable[P, None]) -> Callable[P, None]:
        """Return what calls only as long as this incarnation lasts."""
        life = self._life

        def told(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._life == life:
                call(*args, **kwargs)

        return told

    # -- incarnations and filters --------------------------------------------------------------------------------------

    def join(self) -> None:
        """Begin an incarnation. Where the database does not answer, `second` tries again."""
        if not self._joining:
            self._joining = True
            self._calls.join(self._live(self._begin))

    def _begin(self, joined: Joined | None) -> None:
        if joined is None:
            self._joining = False
            return

        def fed() -> None:
            self._joining = False
            self.joined = joined
            self._calls.tell(Hello())
            self._look_whether_due()

        self._feed(fed)

    def over(self) -> None:
        """Begin another incarnation: of what this one noted nothing counts but what is carried over."""
        carried = [*self._calls.over([*(self.flight or ()), *self.notes])]
        self._clear()
        self.notes.extend(carried)
        self.join()

    def _live_ask(self, ask: Callable[[Callable[P, None]], None]) -> Callable[[Callable[P, None]], None]:
        return lambda back: ask(self._live(back))

    def _later(self, call: Callable[[], None]) -> None:
        self._calls.later(self._live(call))

    def _feed(self, then: Callable[[], None] | None = None) -> None:
        """Learn the filters that have changed."""
        self._filter_feed.read(then)

    def _change_filters(self, changed: Sequence[ChangedFilter]) -> None:
        for each in changed:
            self.filters.change(each)

    def look(self, then: Callable[[], None]) -> None:
        """Call `then` when the copy of the retained messages has all that was written before, here or elsewhere."""
        last = self.notes[-1].what if self.notes else None
        if isinstance(last, Look):
            last.then.append(then)
        else:
            self.note(Look([then]))

    def _read_retained(self, then: Callable[[], None] | None = None) -> None:
        """Learn the retained messages that have changed."""
        self._retained_feed.read(then)

    # -- groups --------------------------------------------------------------------------------------------------------

    def note(self, what: Noted, then: Callable[[Written], None] | None = None) -> None:
        """Note a change for a group; `then` is told when it is written, unless it is of a session that is lost."""
        self.notes.append(Note(what, then))
        self._look_whether_due()

    def _look_whether_due(self) -> None:
        if self.notes and self.flight is None and self.joined is not None:
            self._calls.due()

    def close_group(self, most: int = MOST) -> None:
        """Write what is noted, up to a second change of one thing, and no more than `most`; one group at a time."""
        if self.flight is not None or self.joined is None or not self.notes:
            return
        things = set()
        group: list[Note] = []
        size = 0
        while self.notes and len(group) < most and size < BYTES:
            what = self.notes[0].what
            thing = what.thing
            if thing is not None and thing in things:
                break
            things.add(thing)
            if isinstance(what, Publish):
                size += what.size
            group.append(self.notes.popleft())
        self.flight = group
        self._write()

    def _write(self) -> None:
        assert self.flight is not None
        for n, (what, then) in enumerate(self.flight):
            if isinstance(what, Publish) and what.filters is not None:
                self.flight[n] = Note(what._replace(filters=list(self.filters.match(what.topic))), then)
        self._calls.write([note.what for note in self.flight], self._live(self._written))

    def _written(self, written: Written) -> None:
        if written.rematch:
            self._feed(self._write)
            return
        if written.again:
            # Whom the group gave messages was in the lost answer.
            self._doubt()
        else:
            if written.news:
                self._feed()
            self._spread(written.hints)
        group, self.flight = self.flight or (), None
        for owner in written.lost:
            self._drop(owner)
        for what, then in group:
            if then is not None and what.owner not in written.lost:
                then(written)
        noted = [what for what, _ in group]
        self._see_retained(noted, written, [*self._calls.wrote(noted, written)])
        self._look_whether_due()

    def _see_retained(self, group: Sequence[Noted], written: Written, looks: list[Callable[[], None]]) -> None:
        """Read the retained messages if some have changed, and then tell those who look."""
        ours = any(isinstance(what, Publish) and what.retained is not None for what in group)
        looks += [then for what in group if isinstance(what, Look) for then in what.then]
        if ours:
            self._calls.tell(Changed())
        if ours or written.retained:
            self._read_retained(partial(_call, looks))
        else:
            _call(looks)

    def _drop(self, owner: Owner) -> None:
        """Another claim counts."""
        session = self.sessions.get(owner.session)
        if session is not None and session.epoch == owner.epoch:
            self._forget(session)
            session.client.end()

    def _forget(self, session: Session) -> None:
        del self.sessions[session.id]
        if self.by_client.get(session.client_id) is session:
            del self.by_client[session.client_id]

    # -- hints and reads -----------------------------------------------------------------------------------------------

    def receive(self, piece: Piece) -> None:
        """Take what another node tells."""
        match piece:
            case Hints(deliveries):
                self._hinted(deliveries)
            case Taken(client_id, epoch):
                session = self.by_client.get(client_id)
                if session is not None and session.epoch < epoch:
                    self._drop(session.owner)
            case Changed():
                self._read_retained()
            case Hello() | General():
                self._general()

    def _spread(self, hints: Sequence[DeliveryKey]) -> None:
        if hints:
            self._calls.tell(Hints(hints))
            self._hinted(hints)

    def _hinted(self, hints: Sequence[DeliveryKey]) -> None:
        self._read({hint.session for hint in hints if self._is_new(hint)})

    def _is_new(self, hint: DeliveryKey) -> bool:
        session = self.sessions.get(hint.session)
        if session is None or (hint.source, hint.id) in session.known:
            return False
        return hint.source > 0 or hint.id > session.low

    def _doubt(self) -> None:
        """Have all nodes read: what was told to nobody may be for any of them."""
        self._general()
        self._calls.tell(General())

    def _general(self) -> None:
        self._read(self.sessions)

    def wants(self, session: Session) -> None:
        """Read on, if more waits: there is room again."""
        if session.more:
            self._read([session.id])

    def _read(self, wanted: Iterable[int]) -> None:
        """Read all that sessions have and is not known: also what a publisher had written elsewhere before."""
        asked: list[Session] = []
        for number in sorted(wanted):
            session = self.sessions.get(number)
            if session is None or not session.is_restored:
                continue
            if session.reading:
                session.again = True
                continue
            session.reading = True
            asked.append(session)

        def back(pages: Sequence[Page] | None) -> None:
            for n, session in enumerate(asked):
                session.reading = False
                if self.sessions.get(session.id) is not session:
                    continue
                if pages is None:
                    self._calls.later(self._live(partial(self._read, [session.id])))
                else:
                    self._saw(session, pages[n])

        if asked:
            asks = [Ask(session.id, session.low, session.client.room) for session in asked]
            known = [DeliveryKey(session.id, *each) for session in asked for each in session.known]
            self._calls.read(asks, known, self._live(back))

    def _saw(self, session: Session, page: Page) -> None:
        if page.epoch is None or page.epoch > session.epoch:
            self._drop(session.owner)
            return
        if page.epoch < session.epoch:
            return
        session.more = page.more
        fresh = [each for each in page.waiting if (each.source, each.id) not in session.known]
        # What it sends at once may want more: that read begins when these are known.
        session.reading = True
        taken = session.client.take(fresh)
        session.reading = False
        if taken < len(fresh):
            page = page._replace(more=True, waiting=fresh[:taken])
            session.more = True
        session.known.update((each.source, each.id) for each in fresh[:taken])
        low = self._seen_up_to(session, page)
        if low > session.low:
            session.low = low
            session.known = {each for each in session.known if each[0] or each[1] > low}
        if session.again:
            session.again = False
            self._read([session.id])
        session.client.go_on()

    def _seen_up_to(self, session: Session, page: Page) -> int:
        """Return a number up to which nothing is missing: what is read, as far as nothing can appear there any more."""
        if not page.more:
            return page.final
        return min(page.final, max((each.id for each in page.waiting if not each.source), default=session.low))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def claim(self, client_id: str, client: Client) -> None:
        """Claim the session of a CONNECT, and restore it. In an incarnation."""

        def back(claimed: Claimed | Foreign | None) -> None:
            if isinstance(claimed, Foreign):
                client.foreign()
                return
            if claimed is not None:
                self._calls.tell(Taken(client_id, claimed.epoch))
            if claimed is None:
                # It may have been carried out, and another claim may have been before it.
                client.failed()
                self._doubt()
                self._look_for(client_id)
            elif client.is_gone:
                self._release(client_id, Owner(claimed.session, claimed.epoch), client)
                self._look_for(client_id)
            else:
                self._claimed(client_id, client, claimed)

        self._calls.claim(client_id, client, self._live(back))

    def _look_for(self, client_id: str) -> None:
        """Read whether a session is still this node's."""
        session = self.by_client.get(client_id)
        if session is not None:
            self._read([session.id])

    def _claimed(self, client_id: str, client: Client, claimed: Claimed) -> None:
        before = self.by_client.get(client_id)
        if before is not None:
            if before.epoch > claimed.epoch:
                client.end()
                return
            self._drop(before.owner)
        session = Session(client_id, client, claimed)
        self.sessions[session.id] = self.by_client[client_id] = session
        self._restore(session)

    def _restore(self, session: Session) -> None:
        """Read what the session has, and answer its CONNECT. The read begins after the answer of the claim."""

        def back(content: Content | None) -> None:
            if self.sessions.get(session.id) is not session:
                return
            if content is None:
                self._calls.later(self._live(partial(self._restore, session)))
            elif content.epoch != session.epoch:
                self._drop(session.owner)
            else:
                session.is_restored = True
                session.known.update((each.source, each.id) for each in content.flying)
                session.client.restored(session, content)
                self._restored(session)

        self._calls.content(session.id, self._live(back))

    def _restored(self, session: Session) -> None:
        # What commits later is hinted to a node that has the session.
        self._read([session.id])

    def leave(self, session: Session, expiry: int | None = None) -> None:
        """Release a session: its client is away. `expiry`: see `Release`."""
        if self.sessions.get(session.id) is session:
            self._forget(session)
            self._release(session.client_id, session.owner, session.client, expiry)

    def _release(self, client_id: str, owner: Owner, client: Client, expiry: int | None = None) -> None:
        del client_id, client
        self.note(Release(*owner, expiry))

    # -- now and then --------------------------------------------------------------------------------------------------

    def second(self, *, linked: bool) -> None:
        """A second has passed. `linked`: there are links to all nodes; without one, hints are missing."""
        if self.joined is None:
            self.join()
            return
        self.note(Empty())
        if not linked:
            self._general()

    def saw(self, peers: Sequence[Peer]) -> None:
        """Take what the database says of all nodes: the last hints of a dead one are missing, and its sessions are
        released."""
        if self.joined is None:
            return
        for peer in peers:
            ended = peer.incarnation if not peer.alive else peer.incarnation - 1
            if peer.id == self.joined.node:
                if ended >= self.joined.incarnation:
                    self.over()
                    return
            elif self._deaths.get(peer.id, 0) < ended:
                self._deaths[peer.id] = ended
                self._general()
        if not self._reaping and any(peer.orphans for peer in peers):
            self._reaping = True
            self.note(Reap(REAPED), self._reaped)

    def _reaped(self, written: Written) -> None:
        del written
        self._reaping = False
