"""Moves of sessions that stand still: the other node is there, and has said nothing of them for some time.

Owns when the time of each is over. Promises: a move that somebody waits for ends then, or at once if its time is over
when somebody begins to wait; one that nobody waits for goes on as long as both nodes are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar


class Move:
    """A session on its way."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.due = 0.0


Kind = TypeVar("Kind", bound=Move)


class Silence(Generic[Kind]):
    """The moves of one direction. `seconds`: what each has from one word of the other node to the next."""

    def __init__(
        self, seconds: float, now: Callable[[], float], wanted: Callable[[Kind], bool], end: Callable[[Kind], None]
    ) -> None:
        """`wanted`: whether somebody waits for the end of a move. `end`: ends it."""
        self._seconds = seconds
        self._now = now
        self._wanted = wanted
        self._end = end
        # In the order in which they fall due; those whose time is over are not among them.
        self._line: dict[Kind, None] = {}

    def broken(self, move: Kind) -> None:
        """It begins, or goes on."""
        self._line.pop(move, None)
        move.due = self._now() + self._seconds
        self._line[move] = None

    def forget(self, move: Kind) -> None:
        """It is over."""
        self._line.pop(move, None)

    def hurry(self, move: Kind) -> None:
        """Somebody waits for it."""
        if move not in self._line and self._wanted(move):
            self._end(move)

    @property
    def due(self) -> float:
        """When `tick` is to be called; 0.0: not before something happens."""
        return next((move.due for move in self._line), 0.0)

    def postpone(self, seconds: float) -> None:
        """All have so many seconds more."""
        for move in self._line:
            move.due += seconds

    def tick(self) -> None:
        """End those whose time is over and that somebody waits for."""
        now = self._now()
        while 0.0 < self.due <= now:
            move = next(iter(self._line))
            del self._line[move]
            if self._wanted(move):
                self._end(move)
