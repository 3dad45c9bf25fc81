"""Divides a round of the event loop among the connections if there is more work than fits.

Owns the budget of a round, for work that clients cause and for writes to them, and the queues of those that wait for
the next one. Promises: all heavy turns of one round together do about as much as one connection may do alone; a client
with little work continues at once, whatever the others wait for; each waiting client gets a turn after all that waited
before, and those that wait for the first time come before those that had one; nobody publishes more until the receivers
of the previous turns have been written to. A connection that is alone has the whole round.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.core.connection.protocol import TURN_WORK
from broker.core.queues.queue_totals import QueueTotals
from broker.net.scheduling.timers import Checked
from broker.net.stream import STALL, STALL_ROUNDS

ROUND_WORK: Final = TURN_WORK // 2
"""What all clients together may have done in a round, in units of `Router.work`, beside the first of them, who may be
alone: two milliseconds."""

LIGHT_WORK: Final = 512
"""What each may have done when that is used up: some dozens of small messages, or a few filters."""

SHARE: Final = 16_384
"""The least that one who waits gets in its turn: up to a millisecond. Less would cost more than it does."""

LARGE: Final = 4_096
"""Bytes of a read of which nothing is acted on in a round that is used up: its messages go on in one piece later."""

ROUND_WRITES: Final = 32_768
"""What is written in a round, in the same units, before those with more than a little wait for the next."""

WRITE_WORK: Final = 128
ITEM_WORK: Final = 8
BYTES_WORK: Final = 6
REFILL_WORK: Final = 16
STREAM_WORK: Final = 1_024
"""What a write counts for, each thing that is written, so many bits of its bytes (64 bytes), each thing that is taken
from the session for the next write, and a look at the retained messages."""

LITTLE: Final = 4
LITTLE_BYTES: Final = 4_096
"""Things that wait for one client, and their bytes, which are written at once, whatever the others wait for."""

MUCH: Final = 256
"""Messages that wait for a client from which on nothing that it says is acted on in a round that has no room, and its
end comes in the line of those who wait for one."""

NOTED: Final = ROUND_WORK // 8
"""Work after which the round's end is waited for: less is not worth a call."""

YOUNG: Final = 2 * TURN_WORK
"""Work after which Python looks for garbage among the young objects: some thousands, a millisecond. By itself it does
so when thousands more were made than were freed. In full queues, where each message takes the place of an old one, that
is never, and then once among all that wait: 780,000 took 0.11 s."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Turn(Checked):
    """A connection, as far as whoever gives it a turn needs to know it."""

    def __init__(self) -> None:
        super().__init__()
        # It waits for a turn in which to read on, or to write.
        self.waits = False
        self.waits_to_write = False
        # The number of the first round in which it may read on: those whom it reached have been written to by then.
        self.ready_in: i64 = 0

    def turn(self, work: i64) -> i64:
        """Go on with a read that was left unfinished, for so much work. What it was. Must not raise."""
        raise NotImplementedError

    def write_turn(self) -> None:
        """Write a batch. Must not raise."""
        raise NotImplementedError

    def leave(self) -> None:
        """The socket has gone, and what belongs to the connection goes now. Must not raise."""
        raise NotImplementedError


class Turns:
    """The rounds of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, totals: QueueTotals) -> None:
        """`totals` is told of each round that begins."""
        self._loop = loop
        self._totals = totals
        # What a turn may do now.
        self.work: i64 = TURN_WORK
        self._done: i64 = 0
        self._written: i64 = 0
        # Nothing but a little is written until the next round.
        self.full = False
        # The next round has been asked of the event loop; one is going on.
        self._noted = False
        self._running = False
        # Work since the young objects were looked at.
        self._made: i64 = 0
        # Who waits: to read on for the first time, and again; to write; to be forgotten.
        self._first: deque[Turn] = deque()
        self._again: deque[Turn] = deque()
        self._writers: deque[Turn] = deque()
        self._gone: deque[Turn] = deque()
        # The server's: it stops, and nobody waits for a turn to be forgotten.
        self.ending = False
        # The hub's: writers of a batch for very many are still to be woken.
        self.held = False
        # Writers that waited when clients last had turns: they come before the next one.
        self._owed: i64 = 0

    # -- what was done -------------------------------------------------------------------------------------------------

    def did(self, work: i64) -> None:
        self._done += work
        if self._done >= NOTED:
            self._note()
            left: i64 = ROUND_WORK - self._done
            if left < LIGHT_WORK:
                left = LIGHT_WORK
            self.work = left

    def wrote(self, things: i64, size: i64) -> None:
        """So many things were written for one client, of so many bytes in all."""
        self._count_written(WRITE_WORK + ITEM_WORK * things + (size >> BYTES_WORK))

    def fetched(self, things: i64, walks: bool) -> None:
        """So many things were taken from a session for the next write, retained messages perhaps (`walks`)."""
        self._count_written(REFILL_WORK * things + (STREAM_WORK if walks else WRITE_WORK))

    def _count_written(self, work: i64) -> None:
        self._written += work
        if self._written >= NOTED:
            self._note()
            self.full = self._written >= ROUND_WRITES

    @property
    def spent(self) -> bool:
        return self._done >= ROUND_WORK and not self.ending

    def _note(self) -> None:
        if not self._noted and not self._running:
            self._noted = True
            self._loop.call_soon(self._round)

    # -- who waits -----------------------------------------------------------------------------------------------------

    def go_on(self, turn: Turn, first: bool) -> None:
        """Have a connection go on with what it has read, in a round to come."""
        if not turn.waits:
            turn.waits = True
            # A round that was asked for earlier comes before the writers who have just been woken.
            turn.ready_in = self._totals.round + (2 if self._noted else 1)
            (self._first if first else self._again).append(turn)
            self._note()

    def stall(self, turn: Turn) -> None:
        """Have a connection go on a little later: a subscriber has fallen behind."""
        self._loop.call_later(STALL, self._stalled, turn, STALL_ROUNDS)

    def _stalled(self, turn: Turn, rounds: int) -> None:
        if rounds > 0:
            self._loop.call_soon(self._stalled, turn, rounds - 1)
        else:
            self.go_on(turn, False)

    def put_off(self, turn: Turn, things: i64, size: i64) -> bool:
        """Have a connection for which so much waits write in a round to come, unless it is little."""
        if things <= LITTLE and size <= LITTLE_BYTES:
            return False
        self.write_on(turn)
        return True

    def write_on(self, turn: Turn) -> None:
        """Have a connection write on in a round to come."""
        if not turn.waits_to_write:
            turn.waits_to_write = True
            self._writers.append(turn)
            self._note()

    def end(self, turn: Turn) -> None:
        """Have a connection that is lost be forgotten in a round to come."""
        self._gone.append(turn)
        self._note()

    @property
    def writing(self) -> bool:
        return bool(self._writers)

    @property
    def waiting(self) -> bool:
        return bool(self._first or self._again or self._writers or self._gone)

    # -- a round -------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._noted = False
        self._running = True
        self._totals.round += 1
        self._made += self._done
        self._done = 0
        self._written = 0
        self.full = False
        self.work = TURN_WORK
        if self._made >= YOUNG:
            self._made = 0
            # A program may have switched it off, by either way that there is.
            if gc.isenabled() and gc.get_threshold()[0] > 0:
                gc.collect(1)
        try:
            self._serve_all()
        finally:
            # Whatever one of them raises: the others have their turns.
            self._running = False
            if self._done > 0 or self._written > 0 or self.waiting:
                self._note()

    def _serve_all(self) -> None:
        writers = self._writers
        while writers and not self.full:
            turn = writers.popleft()
            turn.waits_to_write = False
            if self._owed > 0:
                self._owed -= 1
            turn.write_turn()
        gone = self._gone
        while gone and (self._done < ROUND_WORK // 2 or self.ending):
            gone.popleft().leave()
        if self._owed > 0 or self.held:
            self.work = LIGHT_WORK
        else:
            if self._first:
                self._serve(self._first, ROUND_WORK * 3 // 4 if self._again else ROUND_WORK)
            if self._again:
                self._serve(self._again, ROUND_WORK)
            self._owed = len(writers)

    def _serve(self, line: deque[Turn], until: i64) -> None:
        """Give those who wait now their turns, one after another, until so much was done in this round."""
        count: i64 = len(line)
        alone = len(self._first) + len(self._again) == 1
        equal: i64 = ROUND_WORK // count
        while count > 0 and self._done < until and line[0].ready_in <= self._totals.round:
            count -= 1
            turn = line.popleft()
            turn.waits = False
            left: i64 = until - self._done
            share: i64 = equal if equal < left else left
            if alone:
                share = TURN_WORK
            if share < SHARE:
                share = SHARE
            self.did(turn.turn(share))
