"""Makes room when all queues of the broker together hold too much, from the fullest ones first.

`GlobalLimiter` makes the fullest queues, live and offline alike, drop what has waited longest (cause `global`). A look
at all queues puts them into a heap, and serves for some messages: the fullest gives, down to the next one, until there
is room. Both are done in pieces, `ROUND_WORK` units in a round of the event loop (`QueueTotals.round`), and charged to
the publisher; when they are used up, what has no room is dropped. If less can be dropped, there is at most one look in
`RETRY` seconds. A client that has little waiting is not refused for what others have.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.counters import QueueTotals
from canopy_mqtt.core.jobs import ROUND_WORK, SHED_LIVE_WORK, SHED_LOOK_WORK, SHED_WORK
from canopy_mqtt.core.ledger import GLOBAL
from canopy_mqtt.core.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i64


PART: Final = 16
AHEAD: Final = 1_024
"""A look serves for 1,024 more messages, or for one of each session if that is more, but at most for a sixteenth of the
bound: so that it costs little for each."""

RETRY: Final = 0.1
"""Seconds after a look that found too little before the next one."""

ROUND_SECONDS: Final = 0.01
"""After so long it is a new round in any case: where little is done the shell counts none."""

FRESH: Final = 1.0
"""Seconds for which a look serves."""

PIECE: Final = 256
PIECE_BYTES: Final = 65_536
"""The most that one queue gives in one piece, in messages or bytes."""

LEVEL_PART: Final = 64
"""Of two queues that are equally full one gives a 64th of what it has, or one message, before the other's turn."""


class GlobalLimiter:
    """Drops from the sessions of one broker.

    A queue gives nothing while a fuller one has more to give; a live queue of a single piece gives nothing, and
    in-flight messages are not touched. What waits in the sessions of an account below its fair share gives nothing: the
    share is what all queues hold, divided by the number of accounts with messages in sessions; all live queues count as
    one more.
    """

    def __init__(self, sessions: dict[str, Session], load: QueueTotals) -> None:
        self._sessions = sessions
        self._load = load
        # All work since the start.
        self.work: i64 = 0
        # Until when it may grow in this round; which round that is, and since when (s).
        self._until: i64 = 0
        self._round: i64 = -1
        self._round_began: float = 0.0
        # No look for this much or more begins before that.
        self._again_at: float = 0.0
        self._failed: i64 = 0
        self._failed_bytes: i64 = 0
        # The present look: since when (s), at whom, how far it has come, and whether it is at messages or at bytes.
        self._begun: float = 0.0
        self._names: list[str] = []
        self._at: i64 = 0
        self._by_messages = True
        # What it has found: below 0 what each session can give, the most first, and its index in `_names`.
        self._fullest: list[tuple[int, int]] = []
        self._found: i64 = 0  # all of it together
        # What an account is to have waiting in its sessions that gives (bytes).
        self._share: i64 = 0
        # Once all have been looked at: so much may still go before the next look. -1 before.
        self._left: i64 = -1

    def relieve(self, messages: i64, size: i64) -> bool:
        """Make room for these messages and bytes more. False when it cannot be had, or not in this round.

        Nothing is shed where all that waits would not be enough.
        """
        load = self._load
        if messages > load.max_messages or size > load.max_bytes:
            # The message would not fit if all else were dropped.
            return False
        if load.round != self._round or load.now >= self._round_began + ROUND_SECONDS:
            self._round = load.round
            self._round_began = load.now
            self._until = self.work + ROUND_WORK
        before: i64 = self.work
        relieved = self._relieve(messages, size)
        load.budget.used += self.work - before
        return relieved

    def is_little(self, messages: i64, size: i64) -> bool:
        """Return whether a client that has so much waiting, and no more, may have it beyond the bound.

        It is its part of a `PART` of the bound, which all sessions share alike, each with two queues.
        """
        load = self._load
        queues: i64 = 2 * PART * (len(self._sessions) + 1)
        return messages <= load.max_messages // queues and size <= load.max_bytes // queues

    def _relieve(self, messages: i64, size: i64) -> bool:
        load = self._load
        while not load.has_room(messages, size):
            by_messages = load.messages + messages > load.max_messages
            if not self._names or by_messages != self._by_messages or load.now > self._begun + FRESH:
                if load.now < self._again_at and messages >= self._failed and size >= self._failed_bytes:
                    return False
                self._begin(by_messages)
            if self._left < 0:
                if not self._look():
                    return self._borrow(messages, size)
                if not self._plan(messages, size):
                    return False
            if self.work >= self._until:
                break
            if self._left == 0 or not self._fullest:
                self._end()
            else:
                gone = self._take(self._left)
                self._left = self._left - gone if gone < self._left else 0
        return load.has_room(messages, size)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _begin(self, by_messages: bool) -> None:
        """Begin a look at all queues that there are now."""
        load = self._load
        self._begun = load.now
        self._share = load.bytes // (load.queue_holders + 1)
        self._names = list(self._sessions)
        self._at = 0
        self._by_messages = by_messages
        self._left = -1
        self._fullest = []
        self._found = 0

    def _end(self) -> None:
        """The look has served."""
        self._names = []
        self._fullest = []

    def _look(self) -> bool:
        """Look at some more queues. True when all have been looked at."""
        names = self._names
        count: i64 = len(names)
        while self._at < count and self.work < self._until:
            session = self._sessions.get(names[self._at])
            self.work += SHED_LOOK_WORK
            if session is not None:
                live, waiting = self._live(session), self._waiting(session)
                self._found += live + waiting
                self._put(live if live > waiting else waiting, self._at)
            self._at += 1
        return self._at >= count

    def _put(self, size: i64, at: i64) -> None:
        """Put a session among those that can give, if it can: `size` is that of the fuller one of its queues."""
        if size > 0:
            heapq.heappush(self._fullest, (-int(size), int(at)))

    def _plan(self, messages: i64, size: i64) -> bool:
        """All have been looked at: say how much may go. False, and nothing goes, where it would not be enough."""
        load = self._load
        ahead: i64 = len(self._names)
        if ahead < AHEAD:
            ahead = AHEAD
        if self._by_messages:
            over: i64 = load.messages + messages - load.max_messages
            self._left = over + _extra(load.max_messages, ahead)
        else:
            over = load.bytes + size - load.max_bytes
            self._left = over + _extra(load.max_bytes, ahead * (load.bytes // (load.messages + 1) + 1))
        if self._found < self._left:
            # Not worth another look for a while.
            self._again_at = load.now + RETRY
            self._failed = messages
            self._failed_bytes = size
        if self._found < over:
            self._end()
            return False
        return True

    # -- giving --------------------------------------------------------------------------------------------------------

    def _borrow(self, messages: i64, size: i64) -> bool:
        """Before all have been looked at: have the fullest so far make room for what is asked for, if it can."""
        load = self._load
        while self._fullest and self.work < self._until + ROUND_WORK and not load.has_room(messages, size):
            more: i64 = load.messages + messages - load.max_messages
            if not self._by_messages:
                more = load.bytes + size - load.max_bytes
            if more <= 0 or -self._fullest[0][0] < more:
                return False
            self._take(more)
        return load.has_room(messages, size)

    def _take(self, most: i64) -> i64:
        """Make the fullest queue drop its oldest: a piece, no more than `most`, and no more than down to the next one.

        Return how much went, in messages or bytes: 0 if it has less by now than was found, or no more to give.
        """
        key, at = heapq.heappop(self._fullest)
        self.work += SHED_LOOK_WORK
        session = self._sessions.get(self._names[at])
        if session is None:
            return 0
        live: i64 = self._live(session)
        waiting: i64 = self._waiting(session)
        had: i64 = live if live > waiting else waiting
        gone: i64 = 0
        if had >= -key:
            give: i64 = had + self._fullest[0][0] if self._fullest else had
            if give < had // LEVEL_PART + 1:
                give = had // LEVEL_PART + 1
            piece: i64 = PIECE if self._by_messages else PIECE_BYTES
            give = min(give, most, piece)
            gone = self._shed(session, live >= waiting, give)
            if gone == 0:
                return 0
            live = self._live(session)
            waiting = self._waiting(session)
            had = live if live > waiting else waiting
        self._put(had, at)
        return gone

    def _shed(self, session: Session, live: bool, give: i64) -> i64:
        """Make one queue drop its oldest, and return how much went, in messages or bytes."""
        load = self._load
        before: i64 = load.messages
        bytes_before: i64 = load.bytes
        messages: i64 = give if self._by_messages else 0
        send_buffer = session.send_buffer
        each: i64 = SHED_WORK
        if not live:
            session.shed(messages, give - messages, GLOBAL)
        elif send_buffer is not None:
            each = SHED_LIVE_WORK
            send_buffer.shed(messages, give - messages, GLOBAL)
        self.work += each * (before - load.messages)
        return before - load.messages if self._by_messages else bytes_before - load.bytes

    def _live(self, session: Session) -> i64:
        """Return how much the queue of a session's connection can give, in messages or bytes."""
        send_buffer = session.send_buffer
        # The one thing in a queue that was empty is on its way, as a rule, and not waiting.
        if send_buffer is None or send_buffer.messages <= send_buffer.in_flight_messages or len(send_buffer.items) == 1:
            return 0
        return (
            send_buffer.messages - send_buffer.in_flight_messages
            if self._by_messages
            else send_buffer.bytes - send_buffer.in_flight_bytes
        )

    def _waiting(self, session: Session) -> i64:
        """Return how much its own queue can give."""
        queue = session.made_queue
        if queue is None or (queue.owner.queued < self._share and not queue.owner.internal):
            return 0
        return queue.in_memory if self._by_messages else queue.bytes_in_memory


def _extra(bound: i64, ahead: i64) -> i64:
    part: i64 = bound // PART if bound > PART else 1
    return ahead if ahead < part else part
