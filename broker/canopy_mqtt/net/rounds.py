"""Divides each round of the event loop among the connections, and wakes the writers that have something to write.

Owns the lists of the connections that wait for their write, their end, or their turn to read on; the timer for what is
due in the router; and the settings as the connections need them: plain fields, because each is read for every CONNECT
or every message. Promises: all heavy turns of a round do about as much as one connection may do alone; a client with
little work continues at once; each waiting client gets a turn after all that waited before, and no client publishes
more until the receivers of the previous turns have been written to. A connection that raises is ended, alone.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, cast

from mypy_extensions import i64

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.deadlines import Deadlines
from canopy_mqtt.core.jobs import (
    LIGHT_WORK,
    REFILL_WORK,
    ROUND_WORK,
    ROUND_WRITES,
    SHARE_WORK,
    TURN_WORK,
    WALK_WORK,
    WRITE_WORK,
)
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.peers import ConnectedPeers
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.delays import Delays
from canopy_mqtt.net.stream import STALL, STALL_ROUNDS
from canopy_mqtt.net.timers import Endpoint, TimerWheel

LARGE: Final = 4_096
"""Bytes of a read of which nothing is acted on in a round that is used up: its messages go on in one piece later."""

LITTLE: Final = 4
LITTLE_BYTES: Final = 4_096
"""Things that wait for one client, and their bytes, which are written at once, whatever the others wait for."""

MUCH: Final = 256
"""Waiting messages from which on a client's reads, and its end, wait for a later round if this one has no room."""

WAKES: Final = 128
"""Writers that one batch wakes at once, and a round of those that are left: each may write some kilobytes."""

NOTED: Final = ROUND_WORK // 8
"""Work after which the round's end is waited for: less is not worth a call."""

YOUNG: Final = 2 * TURN_WORK
"""Work after which Python looks for garbage among the young objects: some thousands, a millisecond. By itself it does
so when thousands more were made than were freed. In full queues, where each message takes the place of an old one, that
is never, and then once among all that wait: 780,000 took 0.11 s."""

AGAIN: Final = 1.0
"""Seconds until the router is called again whose tick has raised."""


class Rounds:
    """The rounds of one server's event loop. Times in seconds, sizes in bytes."""

    def __init__(
        self,
        router: Router,
        loop: asyncio.AbstractEventLoop,
        tick: Callable[[], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        """`tick` is called when something in the router has fallen due, `failed` with a place and what it raised."""
        self.router: Router = router
        self.counters: Counters = router.counters
        self.budget = router.budget
        self.time: Callable[[], float] = loop.time
        # The same, but for uvloop's, which stands still in a round: that is taken from the system's monotonic clock.
        self.precise: Callable[[], float] = loop.time if isinstance(loop, asyncio.BaseEventLoop) else monotonic
        # What a turn may do now.
        self.work: i64 = TURN_WORK
        # The work that was done when this round began, and that at which its end is waited for.
        self._began: i64 = self.budget.used
        # The work that is done when this round has no room for more than a little.
        self.spent_at: i64 = self._began + ROUND_WORK
        self._noted_at: i64 = self._began + NOTED
        # The work of the writes of this round. Each adds its own, and calls `note_writes` from `NOTED` on.
        self.written: i64 = 0
        self._touched: list[SendBuffer] = router.peers.touched
        self._peers: ConnectedPeers = router.peers
        self.delays = Delays(router, loop)
        self._deadlines: Deadlines = router.deadlines
        # The rounds before these may have looked: no timer of theirs is left.
        self._deadlines.changed = True
        self._due_at = -1.0
        self.loop = loop
        self.wheel = TimerWheel(loop)
        # The settings; `Server` writes them. A time-out of 0: never.
        self.connect_timeout = 0.0
        self.packet_timeout = 0.0
        self.stall_timeout = 0.0
        self.write_batch_bytes = 0
        self._totals = router.counters.totals
        self._tick = tick
        self.failed = failed
        self._due: asyncio.TimerHandle | None = None
        # After a tick that raised: it is tried again, but not in each round of the event loop.
        self._not_before = 0.0
        # Work since the young objects were looked at.
        self._made: i64 = 0
        # The connections that wait: to read on for the first time, and again; to write; to end. And the buffers that a
        # batch for very many has touched, whose writers are still to be woken.
        self._first: deque[Endpoint] = deque()
        self._again: deque[Endpoint] = deque()
        self._writers: deque[Endpoint] = deque()
        self._gone: deque[Endpoint] = deque()
        self._asleep: deque[SendBuffer] = deque()
        # Writers that waited when clients last had turns: they come before the next one.
        self._owed: i64 = 0
        # Nothing but a little is written until the next round.
        self.full = False
        # Set by the server while it stops: no connection waits for a turn to end.
        self.ending = False
        # The next round has been asked of the event loop; one is going on.
        self._noted = False
        self._running = False
        # What waited for a commit is on its way out, in turns.
        self._releasing = False
        self._closed = False

    # -- after each batch ----------------------------------------------------------------------------------------------

    def after_batch(self, now: float = 0.0) -> None:
        """Wake the writers that a batch touched, schedule the router's next call, and count what the batch has caused.

        `now`: when the batch came, where that is known; to ask the clock costs as much as to route a message.
        """
        tap = self.router.tap
        if tap is not None:
            # First: waking writes acknowledgements, and what they are for shall have its number kept by then.
            tap.note_number()
        touched = self._touched
        if touched:
            if now == 0.0:
                now = self.time()
            if self._peers.delays > 0:
                self.delays.take_waiting(touched, now)
            if len(touched) > WAKES:
                # Each wake may be a write: the others have theirs in the rounds to come.
                self._asleep.extend(touched[WAKES:])
                del touched[WAKES:]
                self._note()
            # Once for all messages of a batch.
            for send_buffer in touched:
                if send_buffer.owner is not None:
                    cast(Endpoint, send_buffer.owner).wake(now)
            touched.clear()
        deadlines = self._deadlines
        if deadlines.changed:
            deadlines.changed = False
            due = deadlines.next_due()
            if due != self._due_at:
                self._arm(due)
        if self.budget.used >= self._noted_at:
            self.charge()

    # -- what was done -------------------------------------------------------------------------------------------------

    def charge(self) -> None:
        """Count what clients have caused, where no batch of theirs ends (`after_batch`)."""
        if self.budget.used >= self._noted_at:
            self._note()
            left: i64 = self.spent_at - self.budget.used
            if left < LIGHT_WORK:
                left = LIGHT_WORK
            self.work = left

    def charge_refill(self, things: i64, walks: bool) -> None:
        """Count what was taken from a session for the next write; `walks`: retained messages too."""
        self.written += REFILL_WORK * things + (WALK_WORK if walks else WRITE_WORK)
        if self.written >= NOTED:
            self.note_writes()

    def note_writes(self) -> None:
        """Note that the writes of this round are work enough to end it, and perhaps more than it may have."""
        self._note()
        self.full = self.written >= ROUND_WRITES

    @property
    def spent(self) -> bool:
        """True if this round has no room for more than a little."""
        return self.budget.used >= self.spent_at and not self.ending

    def _note(self) -> None:
        if not self._noted and not self._running:
            self._noted = True
            self.loop.call_soon(self._round)

    # -- who waits -----------------------------------------------------------------------------------------------------

    def resume(self, endpoint: Endpoint, first: bool) -> None:
        """Schedule a connection to continue with what it has read, in a later round."""
        if not endpoint.waits:
            endpoint.waits = True
            # A round that was asked for earlier comes before the writers who have just been woken.
            endpoint.ready_in = self._totals.round + (2 if self._noted else 1)
            (self._first if first else self._again).append(endpoint)
            self._note()

    def resume_later(self, endpoint: Endpoint) -> None:
        """Schedule a connection to continue a little later, since a subscriber has fallen behind."""
        self.loop.call_later(STALL, self._resume_after, endpoint, STALL_ROUNDS)

    def _resume_after(self, endpoint: Endpoint, rounds: int) -> None:
        if rounds > 0:
            self.loop.call_soon(self._resume_after, endpoint, rounds - 1)
        else:
            self.resume(endpoint, False)

    def defer_write(self, endpoint: Endpoint, things: i64, size: i64) -> bool:
        """Schedule a write of this size for a later round; return False if it is so little that it may be made now."""
        if things <= LITTLE and size <= LITTLE_BYTES:
            return False
        self.write_later(endpoint)
        return True

    def write_later(self, endpoint: Endpoint) -> None:
        """Schedule a connection to continue its write in a later round."""
        if not endpoint.waits_to_write:
            endpoint.waits_to_write = True
            self._writers.append(endpoint)
            self._note()

    def end(self, endpoint: Endpoint) -> None:
        """Schedule a connection to end in a later round."""
        self._gone.append(endpoint)
        self._note()

    @property
    def writing(self) -> bool:
        """True while writers wait for a later round."""
        return bool(self._writers or self._asleep)

    @property
    def waiting(self) -> bool:
        """True while a connection waits for a later round."""
        return bool(self._first or self._again or self._gone) or self.writing

    # -- a round -------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._noted = False
        self._running = True
        self._totals.round += 1
        done: i64 = self.budget.used - self._began
        self._made += done
        self._began += done
        self.spent_at = self._began + ROUND_WORK
        self._noted_at = self._began + NOTED
        self.written = 0
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
            if self.budget.used > self._began or self.written > 0 or self.waiting:
                self._note()

    def _serve_all(self) -> None:
        writers = self._writers
        while writers and not self.full:
            turn = writers.popleft()
            turn.waits_to_write = False
            if self._owed > 0:
                self._owed -= 1
            turn.write_turn()
        asleep = self._asleep
        if asleep:
            now = self.time()
            for _ in range(min(WAKES, len(asleep))):
                send_buffer = asleep.popleft()
                if send_buffer.owner is not None:
                    cast(Endpoint, send_buffer.owner).wake(now)
        gone = self._gone
        while gone and (self.budget.used < self._began + ROUND_WORK // 2 or self.ending):
            gone.popleft().end_in_turn()
        if self._owed > 0 or asleep:
            self.work = LIGHT_WORK
        else:
            if self._first:
                self._serve(self._first, ROUND_WORK * 3 // 4 if self._again else ROUND_WORK)
            if self._again:
                self._serve(self._again, ROUND_WORK)
            self._owed = len(writers)

    def _serve(self, line: deque[Endpoint], until: i64) -> None:
        """Give the waiting connections their turns, one after another, until so much work was done in this round."""
        count: i64 = len(line)
        alone = len(self._first) + len(self._again) == 1
        equal: i64 = ROUND_WORK // count
        until += self._began
        while count > 0 and self.budget.used < until and line[0].ready_in <= self._totals.round:
            count -= 1
            turn = line.popleft()
            turn.waits = False
            left: i64 = until - self.budget.used
            share: i64 = equal if equal < left else left
            if alone:
                share = TURN_WORK
            if share < SHARE_WORK:
                share = SHARE_WORK
            turn.turn(share)
            self.charge()

    # -- commits and times ---------------------------------------------------------------------------------------------

    def committed(self) -> None:
        """Release what waited for a commit (`Commits.wake`), a turn's worth in each round of the event loop."""
        if not self._releasing:
            self._releasing = True
            self._release()

    def _release(self) -> None:
        commits = self.router.commits
        assert commits is not None
        self._totals.now = self.loop.time()
        try:
            more = commits.release()
        except Exception as error:
            # One of them; the others go on.
            self.failed("commit", error)
            more = True
        self._releasing = more
        if more:
            self.loop.call_soon(self._release)
        self.after_batch()

    def clock_moved(self) -> None:
        """Called when the loop's clock was put forward: what is due by it is done after the next batch."""
        self.time = self.loop.time
        self._arm(-1.0)
        self._deadlines.changed = True

    def _arm(self, due: float) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._due_at = due
        if due >= 0.0 and not self._closed:
            self._due = self.loop.call_at(max(due, self._not_before), self._fall_due)

    def _fall_due(self) -> None:
        self._due = None
        self._due_at = -1.0
        self._deadlines.changed = True
        try:
            self._tick()
        except Exception as error:
            self.failed("router", error)
            # What could not be done is still due; the others that are due with it have to wait for it no longer.
            self._not_before = self.loop.time() + AGAIN
        self.after_batch()

    def close(self) -> None:
        """Forget all times."""
        self._closed = True
        self.wheel.close()
        self.delays.close()
        self._arm(-1.0)
