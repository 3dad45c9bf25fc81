"""What all connections of one server share, and do after each batch: wake the writers with new messages.

Owns the way from a routed batch to the connections behind the outboxes, the one timer for what is due in the router,
and the settings as the connections need them: plain fields, because each is read for every CONNECT or every message. A
writer is woken once for each batch, however many messages the batch had for its peer; a batch without receivers costs
two comparisons. A connection that raises when it is woken is ended, and the others are woken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from broker.core.counters import Counters
from broker.core.queues.live.outbox import Outbox
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.router import Router
from broker.net.partial_packets import PartialPackets
from broker.net.scheduling.timers import Wheel
from broker.net.scheduling.turns import Turn, Turns

WAKES: Final = 128
"""Writers that are woken in one call, each of which may write some kilobytes: as many as a round has room for
(`turns.ROUND_WRITES`), since whoever finds none is called again. The others follow at once, after whatever else the
event loop has to do."""

AGAIN: Final = 1.0
"""Seconds until the router is called again whose tick has raised."""


class Link(Turn):
    """A connection, as far as whoever wakes it needs to know it."""

    def wake(self, now: float) -> None:
        """The outbox has something to take, at this time of the loop's clock."""
        raise NotImplementedError

    def ended_by_core(self) -> None:
        """The outbox was closed; perhaps the protocol with it."""
        raise NotImplementedError

    def broke(self, error: Exception) -> None:
        """A fault of ours while this connection was served: it ends. Must not raise."""
        raise NotImplementedError

    def check_failed(self, error: Exception) -> None:
        self.broke(error)


class FlushScheduler:
    """The batch loop of one server. Times in seconds, sizes in bytes."""

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
        self.loop = loop
        self.time: Callable[[], float] = loop.time
        self.wheel = Wheel(loop)
        self.turns = Turns(loop, router.counters.load)
        # What clients have begun to send and not finished; `Server` sets its bound.
        self.partial = PartialPackets(0)
        # The settings; `Server` writes them. A time-out of 0: never.
        self.connect_timeout = 0.0
        self.packet_timeout = 0.0
        self.stall_timeout = 0.0
        self.live_messages = 0
        self.live_bytes = 0
        self.write_batch_bytes = 0
        self._touched: list[Outbox] = router.peers.touched
        self._deadlines: Deadlines = router.deadlines
        self._tick = tick
        self.failed = failed
        self._due: asyncio.TimerHandle | None = None
        self._due_at = -1.0
        # Outboxes of batches for very many peers whose writers are woken in the rounds to come, no more than `WAKES` in
        # each list; whether there are any.
        self._put_off_outboxes: deque[list[Outbox]] = deque()
        self.behind = False
        # What waited for a commit is on its way out, in turns.
        self._releasing = False
        # After a tick that raised: it is tried again, but not in each round of the event loop.
        self._not_before = 0.0
        self._closed = False

    def after_batch(self, now: float = 0.0) -> None:
        """After each batch: wake the writers it touched, and see when the router wants to be called next.

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
            if len(touched) > WAKES:
                self._put_off(now)
            else:
                self._wake(touched, now)
                touched.clear()
        due = self._deadlines.next_due()
        if due != self._due_at:
            self._arm(due)

    def _wake(self, outboxes: list[Outbox], now: float) -> None:
        for outbox in outboxes:
            owner = outbox.owner
            if owner is not None:
                # Its class is looked at once, compiled: to assert it looks again wherever it is used.
                link = cast(Link, owner)
                try:
                    link.wake(now)
                    if outbox.closed:
                        link.ended_by_core()
                except Exception as error:
                    # Not in the turn of whoever published.
                    self.loop.call_soon(link.broke, error)

    def _put_off(self, now: float) -> None:
        """A batch for very many peers: each wake may be a write, and others have their turn in between."""
        touched = self._touched
        for at in range(WAKES, len(touched), WAKES):
            self._put_off_outboxes.append(touched[at : at + WAKES])
        del touched[WAKES:]
        first = not self.behind
        self.behind = True
        self.turns.held = True
        self._wake(touched, now)
        touched.clear()
        if first:
            # Behind what the writes have asked for: a new round, which has room for the next of them.
            self.loop.call_soon(self._wake_some)

    def _wake_some(self) -> None:
        waiting = self._put_off_outboxes
        some = waiting.popleft()
        while waiting and len(some) + len(waiting[0]) <= WAKES:
            # What is left of some batches has its turn together.
            some += waiting.popleft()
        more = len(waiting) > 0
        self.behind = more
        self.turns.held = more
        self._wake(some, self.time())
        if more:
            self.loop.call_soon(self._wake_some)

    def committed(self) -> None:
        """`Commits.wake`: what waited for a commit may leave, a turn's worth in each round of the event loop."""
        if not self._releasing:
            self._releasing = True
            self._release()

    def _release(self) -> None:
        commits = self.router.commits
        assert commits is not None
        self.counters.load.now = self.loop.time()
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
        """The loop's clock has been put forward: what is due by it is looked for after the next batch."""
        self.time = self.loop.time
        self._arm(-1.0)

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
        try:
            self._tick()
        except Exception as error:
            self.failed("router", error)
            # What could not be done is still due; the others that are due with it have to wait for it no longer.
            self._not_before = self.loop.time() + AGAIN
        self.after_batch()

    def close(self) -> None:
        self._closed = True
        self.wheel.close()
        if self._due is not None:
            self._due.cancel()
            self._due = None
            self._due_at = -1.0
