"""Counts the deliveries that access control has not allowed, and notes them for each subscriber once a second.

Owns `BarredList`. Promises: a message to subscribers of whom some may not have it costs one addition, however many they
are; one that everybody may have costs nothing. At most `MOST_ROUTES` routes with `MOST_BARRED` subscribers are listed
between two calls of `tell`; what is beyond is only counted. One call of `tell` looks at `AT_ONCE` subscribers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec import reasons
from broker.core.counters import Counters
from broker.core.refusals import RECEIVE
from broker.core.routing.receivers.reach import Reach
from broker.core.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i64

MOST_ROUTES: Final = 1_024
MOST_BARRED: Final = 65_536
"""Routes, and subscribers who may not receive on them, that are remembered until they are told of: a megabyte."""

AT_ONCE: Final = 4_096
"""Subscribers that one call of `tell` looks at: some milliseconds."""


class BarredList:
    """The routes on which messages did not go to somebody, since the last time."""

    def __init__(self) -> None:
        self._reaches: list[Reach] = []
        self._subscribers: i64 = 0
        # Deliveries of routes that found no place.
        self._unlisted: i64 = 0
        # The route that is told of, how many messages it had, and where in its subscribers `tell` is.
        self._present: Reach | None = None
        self._messages: i64 = 0
        self._at: i64 = 0

    def count(self, reach: Reach) -> None:
        """A message goes out that `reach.barred` do not get."""
        if not reach.listed:
            barred: i64 = len(reach.barred)
            if len(self._reaches) >= MOST_ROUTES or self._subscribers + barred > MOST_BARRED:
                self._unlisted += barred
                return
            self._subscribers += barred
            reach.listed = True
            self._reaches.append(reach)
        reach.messages += 1

    def tell(self, sessions: dict[str, Session], counters: Counters) -> bool:
        """Note what was not delivered, for each subscriber who is still here. True: there is more, for another call."""
        counters.denied_deliveries += self._unlisted
        counters.refusals.unlisted += self._unlisted
        self._unlisted = 0
        left: i64 = AT_ONCE
        while left > 0:
            reach = self._present
            if reach is None:
                if not self._reaches:
                    return False
                reach = self._reaches.pop()
                self._subscribers -= len(reach.barred)
                self._present = reach
                self._messages, self._at = reach.messages, 0
                reach.messages = 0
                reach.listed = False
            if self._at >= len(reach.barred):
                self._present = None
                continue
            principal = reach.barred[self._at]
            self._at += 1
            left -= 1
            counters.denied_deliveries += self._messages
            session = sessions.get(principal.client_id)
            if session is not None and session.principal is principal:
                counters.refusals.note(
                    session.ledger,
                    principal,
                    RECEIVE,
                    reach.topic,
                    reasons.NOT_AUTHORIZED,
                    counters.load.now,
                    count=self._messages,
                )
        return True
