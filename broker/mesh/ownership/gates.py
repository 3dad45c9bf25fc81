"""Gates: what a session that moved here has to have first of a node that could not be reached, comes first.

A node X that did not take part in a move has messages for the session in its queue for the old node, and perhaps in
that for this. The session is *shut* to X until X has put the former behind the latter (`links.late`), then a mark.

Owns the gates of this node, and what it owes others as an old node: to tell each X of the move before X sends it more.
Promises: a gate opens with the mark, where X knows of none, or after `expiry` seconds; both stay within a bound in the
bytes of topic filters, so that X can be told of all in one go: beyond, sessions move as if all nodes had been reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import islice, takewhile
from math import inf
from typing import Any, Final

from broker.core.hooks import LateListener
from broker.core.persistence.late import deliver_late
from broker.core.queues.message import Message
from broker.core.routing.remote.loop_detection import FROM_NODE, NODES
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.ownership.messages import Late, Missed, Noted, Source

ITEM: Final = 128
"""Bytes that a session or a topic filter counts for besides its text."""

SOURCES: Final = 16
"""Moves of a session, one after the other, of which a node that cannot be reached has heard in part, at most."""

TOGETHER: Final = 10.0
"""Seconds within which gates open together whose time is over, at most."""

SINCE: Final = 3
"""The version of the mesh from which on nodes know of gates."""

TOLD: Final = 1_048_576
"""Bytes of moves that a node is told of together: it looks through its queue once for them."""

MARK: Final = "!"
"""What stands behind the name of a move in the mark: see `links.late`."""

LATE: Final = f"{NODES}late/"
"""How the publisher of a message is called that another node has published, and has handed over."""


def move_name(client_id: str, time: int) -> str:
    """What the move of a session because of a claim is called."""
    return f"{time}-{blake2b(client_id.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


class Gate:
    """Sessions that have come from a node in one go. `name`: of the move; `missed`: by name, whom they are shut to.

    `merges`: one has come into a session that was here, which is shut to nobody, and gets what is late besides.
    """

    def __init__(
        self, name: str, giver: str, sessions: list[Session], filters: list[str], due: float, merges: bool
    ) -> None:
        self.name = name
        self.giver = giver
        self.sessions = sessions
        self.filters = filters
        self.size = _size(filters)
        self.due = due
        self.shuts = [] if merges else sessions
        # Which of the nodes were asked for their mark.
        self.asked: set[str] = set()
        self.missed: dict[str, Missed] = {}
        # It is still being found out which nodes they are to be shut to; these have made their mark already.
        self.coming = True
        self.marked: set[str] = set()


class Owed:
    """A node is to be told of a move. `told`: that was tried."""

    def __init__(self, late: Late, due: float) -> None:
        self.late = late
        self.size = _size(late.filters)
        self.due = due
        self.told = False


class Gates(LateListener):
    """The gates of one node, and what it owes. `expiry`: `mesh.node_expiry`."""

    def __init__(
        self,
        node: str,
        router: Router,
        tell: Callable[[str, list[Late]], None],
        there: Callable[[str], bool],
        version: Callable[[str], int],
        now: Callable[[], float],
        expiry: float,
        most_bytes: int,
        log: Any,
    ) -> None:
        """`tell`: tells a node of moves before all that is sent to it after. `most_bytes`: see above, each."""
        self.opened_late = 0
        """Sessions that no longer wait for a node, because its time is over: they may have missed messages of it."""
        self.node = node
        self._router = router
        self._tell = tell
        self._there = there
        self._version = version
        self._now = now
        self._expiry = expiry
        self._most_bytes = most_bytes
        self._log = log
        # Both in the order in which their time is over.
        self._gates: dict[str, Gate] = {}
        self._owed: dict[tuple[str, str], Owed] = {}
        # Their bytes.
        self._shutting = self._owing = 0
        self._of: dict[Session, Gate] = {}
        # What nodes that are there have something for.
        self._knows: dict[str, set[str]] = {}

    def __len__(self) -> int:
        """How many moves are not over for all nodes."""
        return len(self._gates)

    @property
    def owed(self) -> int:
        """How many messages are owed to nodes."""
        return len(self._owed)

    def speaks(self, node: str) -> bool:
        """Whether a node knows of gates."""
        return self._version(node) >= SINCE

    # -- sessions that come --------------------------------------------------------------------------------------------

    def begin(self, name: str, giver: str, sessions: list[Session], merges: bool = False) -> Gate | None:
        """Sessions of a node are here now, and all that comes for the move of this name is for them."""
        gate = Gate(name, giver, sessions, filters_of(sessions), self._until(), merges)
        if name in self._gates or self._shutting + gate.size > self._most_bytes:
            return None
        self._gates[name] = gate
        self._shutting += gate.size
        for session in gate.shuts:
            self._of[session] = gate
        return gate

    def _until(self) -> float:
        """When the time of a gate is over that begins now; many at once, so that they are told of together."""
        until = self._now() + self._expiry
        step = min(TOGETHER, self._expiry / 4)
        return until if until == inf else (until // step + 1.0) * step

    def shut(self, gate: Gate, missed: Iterable[Missed]) -> set[str]:
        """It is known which nodes were missed: shut the sessions to them, but for those that have made their mark.

        Which they are, as publishers. `ask` follows.
        """
        gate.coming = False
        if self._gates.get(gate.name) is not gate:
            return set()  # the move took longer than that
        gate.missed = {each.node: each for each in missed if each.node not in gate.marked and self._has(each)}
        shut = {FROM_NODE + node for node in gate.missed}
        if not shut:
            self._end(gate)
        for session in gate.shuts:
            session.shut = set(shut) if shut else None
        return shut if gate.shuts else set()

    def _has(self, missed: Missed) -> bool:
        """Whether a node may have something in one of its queues."""
        knows = self._knows.get(missed.node)
        return knows is None or any(source.node in knows for source in missed.sources)

    def ask(self, gate: Gate) -> None:
        """Ask those nodes that are there for their marks."""
        for node in list(gate.missed):
            if self._there(node):
                self._ask([gate], node)

    def _ask(self, gates: list[Gate], node: str) -> None:
        if not self.speaks(node):
            for gate in gates:
                self._open(gate, node)
            return
        for gate in gates:
            gate.asked.add(node)
        self._tell_all(node, [Late(gate.name, self.node, gate.missed[node], gate.filters) for gate in gates])

    def _tell_all(self, node: str, lates: list[Late]) -> None:
        together: list[Late] = []
        size = 0
        for late in lates:
            together.append(late)
            size += _size(late.filters)
            if size >= TOLD:
                self._tell(node, together)
                together, size = [], 0
        if together:
            self._tell(node, together)

    def came(self, move: str, node: str, message: Message) -> int:
        """See `LateListener.came`."""
        name = move.removesuffix(MARK)
        gate = self._gates.get(name)
        other = node.removeprefix(FROM_NODE)
        if gate is None:
            return 0  # it was told of twice
        if move != name:
            if gate.coming:
                gate.marked.add(other)
                for session in gate.shuts:
                    drop_waiting(session, {node})
            elif other in gate.missed:
                self._open(gate, other)
            return 0
        if not gate.coming and other not in gate.missed:
            return 0
        message.publisher = LATE + other
        return self.put(gate, message)

    def put(self, gate: Gate, message: Message) -> int:
        """A message is for these sessions. How many took it."""
        here = [each for each in gate.sessions if self._is_here(each)]
        return sum(deliver_late(self._router, each, message, message.publisher) for each in here)

    def _is_here(self, session: Session) -> bool:
        return self._router.sessions.get(session.client_id) is session

    def _open(self, gate: Gate, node: str) -> None:
        del gate.missed[node]
        for session in gate.shuts:
            if session.shut is not None:
                session.shut.discard(FROM_NODE + node)
                if not session.shut:
                    session.shut = None
        if not gate.missed:
            self._end(gate)

    def _end(self, gate: Gate) -> None:
        if self._gates.pop(gate.name, None) is not None:
            self._shutting -= gate.size
        for session in gate.shuts:
            self._of.pop(session, None)

    def forget(self, session: Session) -> None:
        """A session is not here any more."""
        gate = self._of.pop(session, None)
        if gate is not None:
            session.shut = None
            gate.sessions.remove(session)
            if not gate.sessions:
                self._end(gate)

    # -- sessions that go ----------------------------------------------------------------------------------------------

    def going(self, session: Session, to: str) -> None:
        """A session is about to go to a node: what that has for it comes here before, behind all that is on its way."""
        gate = self._of.get(session)
        if gate is not None and to in gate.missed and to not in gate.asked:
            self._ask([gate], to)

    def missed(self, session: Session, to: str, nodes: set[str]) -> list[Missed]:
        """What of a session that goes to a node now these nodes and those that it is shut to have not sent yet."""
        gate = self._of.get(session)
        shut = {} if gate is None else gate.missed
        found: list[Missed] = []
        for node in (nodes | shut.keys()) - {to}:
            known = self._router.sessions.get(FROM_NODE + node)
            received = [] if known is None or known.incoming_qos2 is None else sorted(known.incoming_qos2)
            sources = [Source(self.node, received=received)]
            if gate is not None and node in shut:
                older = [each for each in shut[node].sources if not self._never_told(node, each)]
                sources = [Source(self.node, gate.name, gate.giver, node in gate.asked, received), *older]
            if len(sources) <= SOURCES:
                found.append(Missed(node, sources))
        return found

    def _never_told(self, node: str, source: Source) -> bool:
        """Whether a node will never hear of a move that went from here: a session that goes to and fro leaves none."""
        owed = self._owed.get((node, source.move))
        if source.asked or source.giver != self.node or owed is None or owed.told:
            return False
        self._settled(node, source.move)
        return True

    def owe(self, name: str, to: str, missed: Iterable[Missed], filters: list[str]) -> None:
        """Tell these nodes that a session goes to a node, at once or when they are there."""
        for each in missed:
            owed = Owed(Late(name, to, each, filters), self._until())
            if self._owing + owed.size <= self._most_bytes and (each.node, name) not in self._owed:
                self._owed[each.node, name] = owed
                self._owing += owed.size
                if self._there(each.node):
                    self._pay([owed], each.node)

    def _pay(self, owed: list[Owed], node: str) -> None:
        for each in owed:
            each.told = True
        if not self.speaks(node):
            for each in owed:
                self._settled(node, each.late.name)
        else:
            self._tell_all(node, [each.late for each in owed])

    def _settled(self, node: str, name: str) -> None:
        owed = self._owed.pop((node, name), None)
        if owed is not None:
            self._owing -= owed.size

    def noted(self, node: str, noted: Noted) -> None:
        """A node has heard of it."""
        self._settled(node, noted.name)

    # -- nodes and time ------------------------------------------------------------------------------------------------

    def knows(self, node: str, nodes: Iterable[str], given_up: Iterable[str] = ()) -> None:
        """A node has something for these, or may have; and for others nothing any more."""
        known = self._knows.setdefault(node, set())
        known.update(nodes)
        known.difference_update(given_up)

    def left(self, node: str) -> None:
        """A node is gone: what it has is not known any more."""
        self._knows.pop(node, None)

    def joined(self, node: str) -> None:
        """A node is there: before anything else it hears of the moves that it has missed."""
        self._pay([owed for owed in self._owed.values() if owed.late.missed.node == node], node)
        self._ask([gate for gate in self._gates.values() if node in gate.missed], node)

    @property
    def due(self) -> float:
        """When `tick` is to be called; 0.0: not before something happens here."""
        dues = [gate.due for gate in islice(self._gates.values(), 1)]
        dues += [owed.due for owed in islice(self._owed.values(), 1)]
        return min((each for each in dues if each < inf), default=0.0)

    def tick(self) -> None:
        """Open the gates whose time is over."""
        now = self._now()
        opened: dict[str, int] = {}
        for gate in list(takewhile(lambda gate: gate.due <= now, self._gates.values())):
            for node in list(gate.missed):
                self.opened_late += len(gate.sessions)
                opened[node] = opened.get(node, 0) + len(gate.sessions)
                self._open(gate, node)
            self._end(gate)
        for node, sessions in opened.items():
            self._log.warning("messages may be missing", node=node, sessions=sessions)
        for key, _ in list(takewhile(lambda item: item[1].due <= now, self._owed.items())):
            self._settled(*key)


def filters_of(sessions: Iterable[Session]) -> list[str]:
    """What some sessions have subscribed to, without share groups."""
    found = {
        each.topic_filter: None for session in sessions for each in session.subscriptions.values() if not each.group
    }
    return list(found)


def _size(filters: list[str]) -> int:
    return ITEM + sum(ITEM + len(each.encode()) for each in filters)


def drop_waiting(session: Session, publishers: set[str]) -> None:
    """Have nothing of these publishers wait in a session whose client has not been here yet: it comes another way."""
    if session.outbox is not None or session.inflight.count or session.queue.disk is not None:
        return
    waiting = session.queue.take_all()
    session.offered -= len(waiting)
    for delivery in waiting:
        message = delivery.message
        if message.publisher not in publishers or delivery.group is not None or delivery.qos == 0:
            session.deliver(
                message, delivery.qos, delivery.retain, delivery.identifiers, delivery.group, delivery.sub_queue
            )
