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
from itertools import islice
from typing import Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.store.shared.calls import (
    ACKNOWLEDGED,
    Ask,
    Change,
    Changed,
    ChangedFilter,
    Claimed,
    Content,
    DeliveryKey,
    DueWill,
    Empty,
    EndedWill,
    Foreign,
    General,
    Hello,
    Hint,
    Hints,
    Joined,
    Look,
    Member,
    Members,
    NewWill,
    Noted,
    Owner,
    Page,
    Peer,
    Piece,
    Publish,
    Pulled,
    Reap,
    Release,
    Subscribe,
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
PAGE: Final = 1_000
"""Sessions that are read at once, at most."""
TOLD: Final = 4_096
"""Share groups of whose members here the others are told, each second; those of others take turns among the members at
their publishers' nodes."""
LAPSES: Final = 3
"""Seconds after which a node that has told nothing of its members counts as one without."""
REAPED: Final = 500
"""Sessions of dead nodes that are released in one group."""


UNWRITTEN: Final = Written(False, False, False, False, frozenset(), frozenset(), ())
"""What is said of a change that was dropped."""


class Client(Protocol):
    """The broker's side of a session: a connection, and what it has in memory."""

    @property
    def terms(self) -> Terms: ...

    @property
    def is_gone(self) -> bool:
        """Whether the connection is over, or the client has given up its CONNECT."""

    def restored(self, session: Session, content: Content) -> None:
        """The session is there, and its will is kept: the CONNACK can go, and what was in flight."""

    def will_of(self, owner: Owner) -> NewWill | None:
        """Return the will that its CONNECT has."""

    @property
    def room(self) -> int:
        """How many more messages may be read into memory."""

    def take(self, waiting: Sequence[Waiting]) -> int:
        """Queue messages, in this order behind those that wait; return how many, since they may be larger than what
        there is room for. The others are read again when the session `wants` them."""

    @property
    def share_room(self) -> int:
        """How many more messages it may take from the queues of its share groups."""

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

    def refused(self, what: Noted, why: str) -> None:
        """The database refuses a change, which is dropped: end the connection of whoever waits for it. `why`: for
        people."""

    def claim(self, client_id: str, client: Client, back: Callable[[Claimed | Foreign | None], None]) -> None: ...

    def content(self, session: int, back: Callable[[Content | None], None]) -> None: ...

    def read_due(self) -> None:
        """Sessions are to be read, and no read is out: call `Node.read`, now or when more may have got something."""

    def read(
        self, asks: Sequence[Ask], known: Sequence[DeliveryKey], back: Callable[[Sequence[Page] | None], None]
    ) -> None: ...

    def wills(self, back: Callable[[Sequence[DueWill] | None], None]) -> None:
        """Return wills of this node that are due."""

    def publish_will(self, will: DueWill) -> None:
        """Note the message of a will (`Publish.will`), now or later; or, where it may not be published, that it has
        ended."""

    def pull(self, share_filter: int, members: Sequence[Member], back: Callable[[Pulled | None], None]) -> None:
        """Move what waits for the share group with a filter to members, in turn."""

    def later(self, call: Callable[[], None]) -> None:
        """Call again what had no answer."""

    def tell(self, piece: Piece) -> None:
        """Tell all nodes that there is a link to."""

    def over(self) -> Iterable[Callable[[], None]]:
        """End what waits for this incarnation: calls, the connections of durable sessions, and their CONNECTs. Return
        what looks at the retained messages, and is to look again."""

    def carry(self, notes: Sequence[Note]) -> Iterable[Note]:
        """Return what of notes that are not confirmed is to be written in the next incarnation, after `over`."""


class Session:
    """A session that this node has claimed."""

    def __init__(self, client_id: str, client: Client, claimed: Claimed) -> None:
        self.client_id, self.client = client_id, client
        self.id, self.epoch, self.present, _ = claimed
        self.is_restored = False
        self.known: set[tuple[int, int]] = set()
        """By (source, number): deliveries that were read, but for those of source 0 up to `low`."""
        self.low = 0
        """No delivery of source 0 up to here is still to be read."""
        self.more = False
        """More waits than there was room for."""
        self.reading = False
        """A read of it is out: what is hinted since then may be missing from its answer."""
        self.finished: set[tuple[int, int]] = set()
        """Of `known`, what came through share groups and is deleted: a read that is out may still bring it."""
        self.shares: set[str] = set()
        """The filters of its share groups, as the database has them."""

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


class ShareGroup:
    """A share group whose queue is in the store. `filter`: the number of its filter."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.filter = name, number
        self.pulling = self.again = False
        """A pull is out; what was hinted since then may be missing from it."""
        self.more = False
        """There may be more than there was room for."""
        self.late = False
        """What another node's members may take first is looked for in a moment."""
        self.turn = 0
        """Whose turn it is, of all members at all nodes."""


class Told(NamedTuple):
    """Of how many members of each share group another node has told, by the groups' queues, and in which second."""

    counts: dict[int, int]
    second: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """One node's part of a shared store. The executable model takes rules away from it."""

    def __init__(self, calls: Calls, filters: Callable[[], Filters]) -> None:
        """`filters`: makes a table without filters."""
        self.page = PAGE
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
        self.unsure: list[Note] = []
        """What is carried over of the group that an earlier incarnation was writing: it may be written."""
        self.unread: dict[int, None] = {}
        """Sessions that are to be read, in this order."""
        self.is_reading = False
        """A read is out."""
        self._suspects = 0
        """Of the first changes, how many were in a group that the database refused, and may be what it refuses."""
        self.joined: Joined | None = None
        self.filters = self._make_filters()
        self._joining = self._reaping = False
        self._wills: set[Owner] | None = set()
        """Those that are due, and about to be published; None: they are being read."""
        self._filter_feed = Feed(self._live_ask(self._calls.feed), self._change_filters, self._later)
        self._retained_feed = Feed(self._live_ask(self._calls.retained), lambda _: None, self._later)
        self._deaths: dict[int, int] = {}
        """By node, the last incarnation that is known to be over."""
        self.groups: dict[int, ShareGroup] = {}
        """Share groups, by their queues."""
        self._queues: dict[str, int] = {}
        """The same, by their filters."""
        self._members: dict[str, dict[int, Session]] = {}
        """By filter, the members of share groups that are here. Whoever was first in a turn is last in the next one."""
        self._elsewhere: dict[int, Told] = {}
        """By other node, the members of share groups that are there."""
        self._seconds = 0
        """How many have passed in this incarnation."""

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
            self._settle(joined.failed)
            self._look_whether_due()

        self._feed(fed)

    def _settle(self, failed: frozenset[DeliveryKey] | None) -> None:
        """Confirm what is carried over of a group that is written, and write it where it is not."""
        unsure, self.unsure = self.unsure, []
        # What ends a will is written in any case: it may be the group that set the will.
        again = [note for note in unsure if failed is None or isinstance(note.what, EndedWill)]
        self.notes.extendleft(reversed(again))
        if failed is None or len(again) == len(unsure):
            return
        group = [note for note in unsure if not isinstance(note.what, EndedWill)]
        written = UNWRITTEN._replace(again=True, retained=True, failed=failed)
        for _, then in group:
            if then is not None:
                then(written)
        self._wrote(group, written)

    def over(self) -> None:
        """Begin another incarnation: of what this one noted nothing counts but what is carried over."""
        looks = [*self._calls.over()]
        unsure = [*self._calls.carry([*self.unsure, *(self.flight or ())])]
        notes = [*self._calls.carry(self.notes)]
        self._clear()
        self.unsure += unsure
        self.notes.extend(notes)
        for each in looks:
            self.look(each)
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
            if each.name.startswith(SHARE_PREFIX):
                self._learn(each)

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
        if self._suspects:
            most = min(most, max(self._suspects // 2, 1))
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
        for what, _ in self.flight:
            if isinstance(what, Publish) and what.filters is not None:
                # In place: another tuple of fifteen fields takes 1.5 µs.
                what.filters[:] = self.filters.match(what.topic)
        self._calls.write([note.what for note in self.flight], self._live(self._written))

    def _written(self, written: Written) -> None:
        if written.rematch:
            self._feed(self._write)
            return
        if written.refused:
            self._divide(written.refused)
            return
        if written.again:
            # Whom the group gave messages was in the lost answer.
            self._doubt()
        else:
            if written.news:
                self._feed()
            self._spread(written.hints)
        group, self.flight = self.flight or (), None
        self._suspects = max(self._suspects - len(group), 0)
        for owner in written.lost:
            self._drop(owner)
        for what, then in group:
            if not written.lost or what.owner not in written.lost:
                self._keep_pace(what)
                if then is not None:
                    then(written)
        self._wrote(group, written)

    def _wrote(self, group: Sequence[Note], written: Written) -> None:
        """Read the retained messages if some have changed, and then tell those who look."""
        noted = [what for what, _ in group]
        looks = [*self._calls.wrote(noted, written)]
        looks += [then for what in noted if isinstance(what, Look) for then in what.then]
        ours = any(isinstance(what, Publish) and what.retained is not None for what in noted)
        if ours:
            self._calls.tell(Changed())
        if ours or written.retained:
            self._read_retained(partial(_call, looks))
        else:
            _call(looks)
        self._look_whether_due()

    def _divide(self, why: str) -> None:
        """Write half of a group that the database refuses, and so on, until one change is left: that one is dropped."""
        group, self.flight = self.flight or [], None
        if len(group) > 1:
            self.notes.extendleft(reversed(group))
            self._suspects = len(group)
            self._look_whether_due()
            return
        self._suspects = 0
        for what, _ in group:
            if isinstance(what, Reap):
                self._reaping = False
            if isinstance(what, Publish) and what.will is not None:
                self.note(EndedWill(*what.will, None))
            self._calls.refused(what, why)
        self._wrote(group, UNWRITTEN)

    def _drop(self, owner: Owner) -> None:
        """Another claim counts."""
        session = self.sessions.get(owner.session)
        if session is not None and session.epoch == owner.epoch:
            self._forget(session)
            session.client.end()

    def _keep_pace(self, what: Noted) -> None:
        """Follow a change that is written."""
        match what:
            case Subscribe(number, _, topic_filter, qos) if topic_filter.startswith(SHARE_PREFIX):
                session = self.sessions.get(number)
                if session is not None and qos is None:
                    session.shares.discard(topic_filter)
                    self._part(session, topic_filter)
                elif session is not None:
                    session.shares.add(topic_filter)
                    # The group may be new, and is known once the feed has been read.
                    self._feed(partial(self._enter, session, topic_filter))
            case Publish(will=Owner() as will) | EndedWill(will=will):
                if self._wills is not None and will in self._wills:
                    self._wills.remove(will)
                    if not self._wills:
                        self._read_wills()
            case Change(number, _, source, key, _, state) if source and state == ACKNOWLEDGED:
                session = self.sessions.get(number)
                if session is not None and session.reading:
                    session.finished.add((source, key))
                elif session is not None:
                    session.known.discard((source, key))

    def _forget(self, session: Session) -> None:
        del self.sessions[session.id]
        for name in session.shares:
            self._part(session, name)
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
            case Members(node, counts):
                self._elsewhere[node] = Told(dict(counts), self._seconds)
            case Hello() | General():
                self._general()

    def _spread(self, hints: Sequence[Hint]) -> None:
        if not hints:
            return
        told: list[DeliveryKey] = []
        for session, messages, number in hints:
            group = self.groups.get(session)
            turns = {0} if group is None else {self._whose_turn(group) for _ in range(messages)}
            told += [DeliveryKey(session, turn, number) for turn in turns]
        self._calls.tell(Hints(told))
        self._hinted(told)

    def _hinted(self, hints: Sequence[DeliveryKey]) -> None:
        self._want({hint.session for hint in hints if self._is_new(hint)})
        for number, node in {(hint.session, hint.source) for hint in hints if hint.session in self.groups}:
            if self.joined is None or node in (0, self.joined.node):
                self._pull(self.groups[number].name)
            else:
                self._pull_late(self.groups[number])

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
        """Read what all sessions have."""
        self._want(self.sessions)
        for name in [*self._members]:
            self._pull(name)

    def wants(self, session: Session) -> None:
        """Read on, if more waits: there is room again."""
        if session.more:
            self._want([session.id])

    def _want(self, sessions: Iterable[int]) -> None:
        """Have a read that begins from now on read what sessions have."""
        self.unread.update(dict.fromkeys(sessions))
        self._look_whether_to_read()

    def _look_whether_to_read(self) -> None:
        if self.unread and not self.is_reading:
            self._calls.read_due()

    def read(self) -> None:
        """Read all that sessions have and is not known: also what a publisher had written elsewhere before. One read
        at a time."""
        if self.is_reading:
            return
        asked: list[Session] = []
        for number in list(islice(self.unread, self.page)):
            del self.unread[number]
            session = self.sessions.get(number)
            if session is not None and session.is_restored:
                session.reading = True
                asked.append(session)

        def back(pages: Sequence[Page] | None) -> None:
            for n, session in enumerate(asked):
                session.reading = False
                if pages is not None and self.sessions.get(session.id) is session:
                    self._saw(session, pages[n])
            self.is_reading = False
            if pages is None:
                self._later(partial(self._want, [session.id for session in asked]))
            self._look_whether_to_read()

        if asked:
            self.is_reading = True
            asks = [Ask(session.id, session.low, session.client.room) for session in asked]
            known = [DeliveryKey(session.id, *each) for session in asked for each in session.known]
            self._calls.read(asks, known, self._live(back))
        else:
            self._look_whether_to_read()

    def _saw(self, session: Session, page: Page) -> None:
        if page.epoch is None or page.epoch > session.epoch:
            self._drop(session.owner)
            return
        if page.epoch < session.epoch:
            return
        session.more = page.more
        fresh = [each for each in page.waiting if (each.source, each.id) not in session.known]
        taken = session.client.take(fresh)
        if taken < len(fresh):
            page = page._replace(more=True, waiting=fresh[:taken])
            session.more = True
        session.known.update((each.source, each.id) for each in fresh[:taken])
        low = self._seen_up_to(session, page)
        if low > session.low:
            session.low = low
            session.known = {each for each in session.known if each[0] or each[1] > low}
        session.known -= session.finished
        session.finished.clear()
        session.client.go_on()
        self.has_room(session)

    def _seen_up_to(self, session: Session, page: Page) -> int:
        """Return a number up to which nothing is missing: what is read, as far as nothing can appear there any more."""
        if not page.more:
            return page.final
        return min(page.final, max((each.id for each in page.waiting if not each.source), default=session.low))

    # -- share groups --------------------------------------------------------------------------------------------------

    def _learn(self, changed: ChangedFilter) -> None:
        """A share group has begun or ended."""
        before = self._queues.get(changed.name)
        if before == changed.share:
            return
        if before is not None:
            del self.groups[before], self._queues[changed.name]
        if changed.share is not None:
            self._queues[changed.name] = changed.share
            self.groups[changed.share] = ShareGroup(changed.name, changed.id)
            self._pull(changed.name)

    def _enter(self, session: Session, name: str) -> None:
        """Have a session take from a share group from now on, if it is here and a member."""
        if self.sessions.get(session.id) is session and name in session.shares:
            self._members.setdefault(name, {})[session.id] = session
            self._pull(name)

    def _part(self, session: Session, name: str) -> None:
        """Have a session take no more from a share group. What it has taken stays with it."""
        members = self._members.get(name)
        if members is not None and members.pop(session.id, None) is not None and not members:
            del self._members[name]

    def has_room(self, session: Session) -> None:
        """Take more for a session, if more waits for its share groups."""
        for name in session.shares:
            number = self._queues.get(name)
            if number is not None and self.groups[number].more:
                self._pull(name)

    def _whose_turn(self, group: ShareGroup) -> int:
        """Return the node whose members are to take a message first: each as often as it has members."""
        assert self.joined is not None
        queue = self._queues[group.name]
        here = len(self._members.get(group.name, ()))
        counts = [(self.joined.node, here)]
        counts += [(node, told.counts.get(queue, 0)) for node, told in self._elsewhere.items()]
        total = sum(count for _, count in counts)
        group.turn = (group.turn + 1) % max(total, 1)
        turn = group.turn
        for node, count in counts:
            if turn < count:
                return node
            turn -= count
        return 0

    def _pull_late(self, group: ShareGroup) -> None:
        """Move what members at another node have no room for, in a moment, or when one here acknowledges something."""
        if group.name not in self._members:
            return
        group.more = True
        if not group.late:
            group.late = True

            def late() -> None:
                group.late = False
                self._pull(group.name)

            self._calls.later(self._live(late))

    def _tell_members(self) -> None:
        """Tell the others of the members here. What they have told lapses: they may have none by now, and a link may
        have been down when they said so."""
        assert self.joined is not None
        counts = [(self._queues[name], len(members)) for name, members in self._members.items() if name in self._queues]
        if counts:
            self._calls.tell(Members(self.joined.node, counts[:TOLD]))
        self._seconds += 1
        self._elsewhere = {
            node: told for node, told in self._elsewhere.items() if self._seconds - told.second <= LAPSES
        }

    def _pull(self, name: str) -> None:
        """Move what waits for a share group to its members here, as far as they have room."""
        group, members = self.groups.get(self._queues.get(name, 0)), self._members.get(name)
        if group is None or members is None:
            return
        if group.pulling:
            group.again = True
            return
        # What a member has got and not read takes room that is not counted yet, and what waits for it goes first.
        asked = [
            Member(*session.owner, session.client.share_room)
            for session in members.values()
            if not (session.reading or session.id in self.unread or session.more) and session.client.share_room > 0
        ]
        group.more = True
        if not asked:
            return
        group.pulling = True
        first = members.pop(asked[0].session)
        members[first.id] = first

        def back(pulled: Pulled | None) -> None:
            group.pulling = False
            if pulled is None:
                # What a lost answer took is read by the members.
                self._want([each.session for each in asked])
                self._calls.later(self._live(partial(self._pull, name)))
            else:
                self._pulled(group, pulled)

        self._calls.pull(group.filter, asked, self._live(back))

    def _pulled(self, group: ShareGroup, pulled: Pulled) -> None:
        group.more = pulled.full or pulled.left
        for number in pulled.refused:
            # It is elsewhere, and nothing else may tell that, if it is idle; or it has subscribed again meanwhile.
            session = self.sessions.get(number)
            if session is not None:
                self._part(session, group.name)
                self._calls.later(self._live(partial(self._enter, session, group.name)))
        self._want(pulled.taken | pulled.refused)
        if pulled.left and not pulled.full:
            # What somebody else had locked may stay.
            self._calls.later(self._live(partial(self._pull, group.name)))
        if group.again:
            group.again = False
            self._pull(group.name)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def claim(self, client_id: str, client: Client) -> None:
        """Claim the session of a CONNECT, and restore it. In an incarnation."""

        def back(claimed: Claimed | Foreign | None) -> None:
            if isinstance(claimed, Foreign):
                client.foreign()
                return
            if claimed is not None:
                self._calls.tell(Taken(client_id, claimed.epoch))
                self._spread(claimed.hints)
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
            self._want([session.id])

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
            elif (will := session.client.will_of(session.owner)) is None:
                self._accept(session, content)
            else:
                self.note(will, lambda _: self._accept_with_will(session, content))

        self._calls.content(session.id, self._live(back))

    def _accept_with_will(self, session: Session, content: Content) -> None:
        """Once its will is kept: also a node that is killed right after the CONNACK publishes it."""
        if self.sessions.get(session.id) is session and not session.client.is_gone:
            self._accept(session, content)
        else:
            self.note(EndedWill(*session.owner, None))
            self.leave(session)

    def _accept(self, session: Session, content: Content) -> None:
        session.is_restored = True
        session.known.update((each.source, each.id) for each in content.flying)
        session.shares.update(each.filter for each in content.subscriptions if each.filter.startswith(SHARE_PREFIX))
        session.client.restored(session, content)
        self._restored(session)
        for name in session.shares:
            if name in self._queues:
                self._enter(session, name)
            else:
                # Another node has begun the group: what waits there is for whichever member comes first.
                self._feed(partial(self._enter, session, name))

    def _restored(self, session: Session) -> None:
        # What commits later is hinted to a node that has the session.
        self._want([session.id])

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
        self._tell_members()
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
                if peer.wills and self._wills is not None and not self._wills:
                    self._read_wills()
            elif self._deaths.get(peer.id, 0) < ended:
                self._deaths[peer.id] = ended
                self._general()
        if not self._reaping and any(peer.orphans for peer in peers):
            self._reaping = True
            self.note(Reap(REAPED), self._reaped)

    def _read_wills(self) -> None:
        self._wills = None
        self._calls.wills(self._live(self._publish_wills))

    def _publish_wills(self, wills: Sequence[DueWill] | None) -> None:
        self._wills = {each.will for each in wills or ()}
        for each in wills or ():
            self._calls.publish_will(each)

    def _reaped(self, written: Written) -> None:
        del written
        self._reaping = False
