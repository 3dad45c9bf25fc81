"""Makes room when all queues of the broker together hold too much, from the fullest ones first.

`GlobalLimiter` makes the fullest queues, live and offline alike, drop what has waited longest (cause `global`). A pass
over all queues finds the level to which they are reduced, with room for some more than is needed; then they drop. Both
are done in pieces, `ROUND_WORK` units in a round of the event loop (`QueueTotals.round`), and charged to the publisher;
when they are used up, what has no room is dropped. If less can be dropped, there is at most one pass in `RETRY`
seconds. A client that has little waiting is not refused for what others have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.jobs import ROUND_WORK, SHED_LIVE_WORK, SHED_LOOK_WORK, SHED_WORK
from canopy_mqtt.core.ledger import GLOBAL
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i64


PART: Final = 16
AHEAD: Final = 1_024
"""A look makes room for 1,024 more messages, or for one of each session if that is more, but at most for a sixteenth of
the bound: so that it costs little for each."""

RETRY: Final = 0.1
"""Seconds after a look that found too little before the next one."""

ROUND_SECONDS: Final = 0.01
"""After so long it is a new round in any case: where little is done the shell counts none."""

PAUSE: Final = 8_192
"""Work of one call after which it goes on only until there is room: the rest of what was looked for can come later."""

FRESH: Final = 1.0
"""Seconds for which a look serves."""

PIECE: Final = 256
PIECE_BYTES: Final = 65_536
"""The most that one queue gives in one piece, in messages or bytes."""

FINE: Final = 16
"""Steps between a size and its double, in which sizes are told apart; those below twice as many are, each."""

STEPS: Final = 60 * FINE


class GlobalLimiter:
    """Drops from the sessions of one broker.

    A queue gives nothing while a fuller one has more to give; a live queue of a single piece gives nothing, and
    in-flight messages are not touched. What waits in the sessions of an account below its fair share gives nothing: the
    share is what all queues hold, divided by the number of accounts with messages in sessions; all live queues count as
    one more.
    """

    def __init__(self, sessions: dict[str, Session], totals: QueueTotals) -> None:
        self._sessions = sessions
        self._totals = totals
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
        # What it has found: how many queues of each step of size, and what they hold together.
        self._counts: list[i64] = []
        self._sums: list[i64] = []
        self._fullest: Session | None = None
        self._fullest_size: i64 = 0
        # What an account is to have waiting in its sessions that gives (bytes).
        self._share: i64 = 0
        # Once all have been looked at: they give what they hold above this (-1 before), until so much has gone.
        self._level: i64 = -1
        self._left: i64 = 0
        self._again = False

    def relieve(self, messages: i64, size: i64) -> bool:
        """Make room for these messages and bytes more. False when it cannot be had, or not in this round.

        Nothing is shed where all that waits would not be enough.
        """
        totals = self._totals
        if messages > totals.max_messages or size > totals.max_bytes:
            # The message would not fit if all else were dropped.
            return False
        if totals.round != self._round or totals.now >= self._round_began + ROUND_SECONDS:
            self._round = totals.round
            self._round_began = totals.now
            self._until = self.work + ROUND_WORK
        before: i64 = self.work
        relieved = self._relieve(messages, size)
        totals.budget.used += self.work - before
        return relieved

    def is_little(self, messages: i64, size: i64) -> bool:
        """Return whether a client that has so much waiting, and no more, may have it beyond the bound.

        It is its part of a `PART` of the bound, which all sessions share alike, each with two queues.
        """
        totals = self._totals
        queues: i64 = 2 * PART * (len(self._sessions) + 1)
        return messages <= totals.max_messages // queues and size <= totals.max_bytes // queues

    def _relieve(self, messages: i64, size: i64) -> bool:
        totals = self._totals
        while not totals.has_room(messages, size):
            by_messages = totals.messages + messages > totals.max_messages
            if not self._names or by_messages != self._by_messages or totals.now > self._begun + FRESH:
                if totals.now < self._again_at and messages >= self._failed and size >= self._failed_bytes:
                    return False
                self._begin(by_messages)
            if self._level < 0:
                if not self._look():
                    return self._borrow(messages, size)
                if not self._settle(messages, size):
                    return False
            if not self._give(messages, size):
                break
        return totals.has_room(messages, size)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _begin(self, by_messages: bool) -> None:
        """Begin a look at all queues that there are now."""
        totals = self._totals
        self._begun = totals.now
        self._share = totals.bytes // (totals.queue_holders + 1)
        self._names = list(self._sessions)
        self._at = 0
        self._by_messages = by_messages
        self._level = -1
        self._counts = [0] * STEPS
        self._sums = [0] * STEPS
        self._fullest = None
        self._fullest_size = 0

    def _end(self) -> None:
        """The look has served."""
        self._names = []
        self._counts = []
        self._sums = []
        self._fullest = None

    def _look(self) -> bool:
        """Look at some more queues. True when all have been looked at."""
        names = self._names
        count: i64 = len(names)
        while self._at < count and self.work < self._until:
            session = self._sessions.get(names[self._at])
            self._at += 1
            self.work += SHED_LOOK_WORK
            if session is not None:
                self._note(session, self._live(session))
                self._note(session, self._waiting(session))
        return self._at >= count

    def _note(self, session: Session, size: i64) -> None:
        if size > 0:
            step = _step(size)
            self._counts[step] += 1
            self._sums[step] += size
            if size > self._fullest_size:
                self._fullest = session
                self._fullest_size = size

    def _settle(self, messages: i64, size: i64) -> bool:
        """All have been looked at: find the level down to which the fullest are to give.

        False, and nothing is to be shed, where there is less than is asked for.
        """
        totals = self._totals
        ahead: i64 = len(self._names)
        if ahead < AHEAD:
            ahead = AHEAD
        if self._by_messages:
            over: i64 = totals.messages + messages - totals.max_messages
            wanted: i64 = over + _extra(totals.max_messages, ahead)
        else:
            over = totals.bytes + size - totals.max_bytes
            wanted = over + _extra(totals.max_bytes, ahead * (totals.bytes // (totals.messages + 1) + 1))
        above: i64 = 0
        count: i64 = 0
        step: i64 = STEPS
        while step > 0:
            step -= 1
            above += self._sums[step]
            count += self._counts[step]
            if above - count * _least(step) >= wanted:
                break
        if above < wanted:
            # Not worth another look for a while.
            self._again_at = totals.now + RETRY
            self._failed = messages
            self._failed_bytes = size
        self._level = (above - wanted + count - 1) // count if above > wanted else 0
        self._left = wanted
        self._again = self._level > 0
        self._at = 0
        if above < over:
            self._end()
            return False
        return True

    # -- giving --------------------------------------------------------------------------------------------------------

    def _give(self, messages: i64, size: i64) -> bool:
        """Make queues give until there is room, and a little more. False when the work of this round is used up."""
        names = self._names
        count: i64 = len(names)
        totals = self._totals
        pause: i64 = self.work + PAUSE
        while self._left > 0:
            if self.work >= self._until:
                return False
            if self.work >= pause and totals.has_room(messages, size):
                return True
            if self._at >= count:
                if not self._again:
                    break
                # Less than one from each is still to be given.
                self._again = False
                self._level -= 1
                self._at = 0
            session = self._sessions.get(names[self._at])
            self.work += SHED_LOOK_WORK
            if session is None or not self._gives(session):
                self._at += 1
        self._end()
        return True

    def _gives(self, session: Session) -> bool:
        """Make the fuller of a session's queues give a piece. False when neither has more to give."""
        live: i64 = self._live(session)
        waiting: i64 = self._waiting(session)
        most: i64 = live if live > waiting else waiting
        give: i64 = most - self._level
        if give > self._left:
            give = self._left
        piece: i64 = PIECE if self._by_messages else PIECE_BYTES
        if give > piece:
            give = piece
        if give <= 0:
            return False
        gone = self._shed(session, live >= waiting, give if self._by_messages else 0, 0 if self._by_messages else give)
        self._left -= gone
        return gone > 0

    def _borrow(self, messages: i64, size: i64) -> bool:
        """Before all have been looked at: have the fullest so far make room for what is asked for, if it can."""
        totals = self._totals
        session = self._fullest
        if session is None or self._sessions.get(session.client_id) is not session:
            return False
        while self.work < self._until + ROUND_WORK and not totals.has_room(messages, size):
            more: i64 = totals.messages + messages - totals.max_messages
            more_bytes: i64 = totals.bytes + size - totals.max_bytes
            live: i64 = self._live(session)
            waiting: i64 = self._waiting(session)
            if (live if live > waiting else waiting) < (more if self._by_messages else more_bytes):
                return False
            if more > PIECE:
                more = PIECE
            if more_bytes > PIECE_BYTES:
                more_bytes = PIECE_BYTES
            if self._shed(session, live >= waiting, more, more_bytes) == 0:
                return False
        return totals.has_room(messages, size)

    def _shed(self, session: Session, live: bool, messages: i64, size: i64) -> i64:
        """Make one queue drop its oldest, and return how much went, in messages or bytes."""
        totals = self._totals
        before: i64 = totals.messages
        bytes_before: i64 = totals.bytes
        send_buffer = session.send_buffer
        each: i64 = SHED_WORK
        if not live:
            session.shed(messages, size, GLOBAL)
        elif send_buffer is not None:
            each = SHED_LIVE_WORK
            send_buffer.shed(messages, size, GLOBAL)
        self.work += each * (before - totals.messages)
        return before - totals.messages if self._by_messages else bytes_before - totals.bytes

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


def _step(size: i64) -> i64:
    """In which step a size is."""
    shift: i64 = 0
    while size >> shift >= 2 * FINE:
        shift += 1
    return shift * FINE + (size >> shift)


def _least(step: i64) -> i64:
    """The smallest size of a step."""
    if step < 2 * FINE:
        return step
    shift: i64 = step // FINE - 1
    return (step - shift * FINE) << shift
