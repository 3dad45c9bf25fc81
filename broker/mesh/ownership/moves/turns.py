"""Whose turn it is of the sessions that go to other nodes: a node has all of a session in memory until it keeps it.

Owns which of them move, and which wait. Promises: those that move to one node at a time have at most `most_bytes` of
messages together, one half for small ones and one for the others; a session that is larger than its half moves while no
other one of that half does. So no small session waits for a large one. In each half those come first whose clients
wait, and the users have their turns one after the other. The other node is told of each that waits again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from broker.core.session.session import Session
from broker.mesh.ownership.moves.silence import Move

SMALL: Final = 1_048_576
"""Bytes of messages of a small session, at most."""

ITEM: Final = 1_024
"""Bytes that a session counts for besides its messages."""


class Going(Move):
    """A session that goes to a node."""

    def __init__(self, session: Session, node: str) -> None:
        super().__init__(session.client_id)
        self.session = session
        self.node = node
        # The half that it is of, and what it counts there; and those among whom it waits.
        self.large = False
        self.size = 0
        self.fetched = False
        self.user = session.user_name
        # Without its client this changes no more.
        self._in_flight = sum(int(each.message.size()) for each in session.inflight.values())

    def measure(self) -> int:
        """Bytes that it counts for now."""
        return int(self.session.queue.bytes) + self._in_flight + ITEM


Kind = TypeVar("Kind", bound=Going)


class _Half(Generic[Kind]):
    """Small or large sessions that go to one node."""

    def __init__(self) -> None:
        self.bytes = 0
        self.moving: dict[Kind, None] = {}
        # Those that wait, by user: for whom clients do, and those that were fetched.
        self._claimed: dict[str | None, dict[Kind, None]] = {}
        self._fetched: dict[str | None, dict[Kind, None]] = {}

    def wait(self, going: Kind) -> None:
        self._lines(going).setdefault(going.user, {})[going] = None

    def _lines(self, going: Kind) -> dict[str | None, dict[Kind, None]]:
        return self._fetched if going.fetched else self._claimed

    def waiting(self) -> list[Kind]:
        return [going for lines in (self._claimed, self._fetched) for line in lines.values() for going in line]

    @property
    def over(self) -> bool:
        """Whether nothing moves or waits."""
        return not (self.moving or self._claimed or self._fetched)

    def begin(self, most_bytes: int) -> Kind | None:
        """The next one that may move, which does so from now on."""
        lines = self._claimed or self._fetched
        if not lines:
            return None
        user, line = next(iter(lines.items()))
        going = next(iter(line))
        size = going.measure()
        if self.moving and self.bytes + size > most_bytes:
            return None
        self.leave(going)
        if line:
            # Behind those of the other users.
            lines[user] = lines.pop(user)
        going.size = size
        self.bytes += size
        self.moving[going] = None
        return going

    def leave(self, going: Kind) -> None:
        """It waits no more, or is over."""
        if going in self.moving:
            del self.moving[going]
            self.bytes -= going.size
            return
        lines = self._lines(going)
        line = lines.get(going.user)
        if line is not None:
            line.pop(going, None)
            if not line:
                del lines[going.user]


class Turns(Generic[Kind]):
    """The turns of one node's sessions. `most_bytes`: see above."""

    def __init__(
        self,
        most_bytes: int,
        every: float,
        now: Callable[[], float],
        begin: Callable[[Kind], None],
        waits: Callable[[Kind], None],
    ) -> None:
        """`begin`: has one move. `waits`: is told of one that has to wait, at once and `every` so many seconds."""
        self.most_bytes = most_bytes
        self.small = SMALL
        self._every = every
        self._now = now
        self._begin = begin
        self._waits = waits
        # By node: the small ones and the others.
        self._halves: dict[str, tuple[_Half[Kind], _Half[Kind]]] = {}
        # Those that wait, in the order in which that is to be said again.
        self._line: dict[Kind, None] = {}

    def enter(self, going: Kind, fetched: bool) -> None:
        """One is to move: now, or when its turn has come. `fetched`: no client waits for it."""
        going.fetched = fetched
        going.large = going.measure() > self.small + ITEM
        halves = self._halves.setdefault(going.node, (_Half(), _Half()))
        halves[going.large].wait(going)
        self._wait(going)
        self._go_on(halves)
        if going in self._line:
            self._waits(going)

    def waiting(self, going: Kind) -> bool:
        """Whether its turn has not come."""
        return going in self._line

    def moving(self, node: str) -> Iterable[Kind]:
        """Those that move to a node."""
        return [going for half in self._halves.get(node, ()) for going in half.moving]

    @property
    def bytes(self) -> int:
        """What those that move count for, to all nodes."""
        return sum(half.bytes for halves in self._halves.values() for half in halves)

    def leave(self, going: Kind) -> None:
        """It has moved, or does not."""
        self._line.pop(going, None)
        halves = self._halves.get(going.node)
        if halves is not None:
            halves[going.large].leave(going)
            self._go_on(halves)
            if halves[0].over and halves[1].over:
                self._halves.pop(going.node, None)

    def left(self, node: str) -> None:
        """A node is gone: nothing moves there."""
        for half in self._halves.pop(node, ()):
            for going in half.waiting():
                self._line.pop(going, None)

    def _go_on(self, halves: tuple[_Half[Kind], _Half[Kind]]) -> None:
        for half in halves:
            while (going := half.begin(self.most_bytes // 2)) is not None:
                self._line.pop(going, None)
                self._begin(going)

    def _wait(self, going: Kind) -> None:
        self._line.pop(going, None)
        going.due = self._now() + self._every
        self._line[going] = None

    @property
    def due(self) -> float:
        """When `tick` is to be called; 0.0: not before something happens."""
        return next((going.due for going in self._line), 0.0)

    def tick(self) -> None:
        """Say again of which sessions the turn has not come."""
        now = self._now()
        while 0.0 < self.due <= now:
            going = next(iter(self._line))
            self._wait(going)
            self._waits(going)
