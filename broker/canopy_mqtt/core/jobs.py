"""Work in turns: its unit, what each thing counts for, what a turn may do, and the jobs that wait for a turn.

One unit is a delivery of bytes that are there already; 32,768 units take about two milliseconds. A turn ends by the
work that it counted, which is the same on every machine; the clock is a second bound, for work that takes longer than
it counts. The client that causes work is charged for it in its turn. Weights that end with `_SHIFT` are bits: n bytes
count for n >> shift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core.deadlines import Deadlines

# -- what a turn may do ------------------------------------------------------------------------------------------------

TURN_WORK: Final = 65_536
"""The work of a connection in its turn while no other waits: three to four milliseconds."""

ROUND_WORK: Final = 32_768
"""The work of all clients together in a round of the event loop, beside that of the first, which may be alone; and
that of shedding in a round: two milliseconds."""

ROUND_WRITES: Final = 32_768
"""The work of writes in a round before connections with more than a little wait for the next."""

SHARE_WORK: Final = 16_384
"""The least work of a client in its turn: up to a millisecond. Less would cost more than it does."""

LIGHT_WORK: Final = 512
"""The work of each client once a round is used up: some dozens of small messages, or a few filters."""

STEP_WORK: Final = 16_384
"""The work of one step of the broker's own work, such as wills, expiries, `$SYS` or a review, and of the sessions that
end for another client: some milliseconds."""

CLOCK_WORK: Final = 1_024
"""The work after which a turn reads the clock: to read it takes as long as two deliveries."""

MAX_UNIT_SECONDS: Final = 150e-9
"""The time that a unit may take before its turn ends by the clock: two and a half times what it takes. A turn alone
may take ten milliseconds, a step of the broker's own work two and a half."""

# -- messages ----------------------------------------------------------------------------------------------------------

OBJECT_WORK: Final = 16
"""A delivery that has an object of its own: about a microsecond."""

WAITING_OBJECTS: Final = 2
"""A delivery that has to wait in its session, in new memory, counts for this many more of them."""

PACKET_WORK: Final = 8
NEXT_WORK: Final = 2
"""A packet, and each further PUBLISH that is taken with it."""

DECODE_WORK: Final = 48
"""A PUBLISH that is decoded in full: two to three microseconds."""

PROPERTY_SHIFT: Final = 1
"""Two bytes of a PUBLISH's properties. Each user property is checked by itself, and may have five bytes."""

MISS_WORK: Final = 24
MISS_LEVEL_WORK: Final = 4
MISS_LENGTH_SHIFT: Final = 4
"""A topic that no cache knows, beside the walk through the trie; each of its levels; 16 bytes of it. Its route is made,
and stands in the tree of the cached topics."""

ASK_PUBLISH_WORK: Final = 8
ASK_FILTER_WORK: Final = 32
ASK_RECEIVER_WORK: Final = 16
"""A question to access control about a publish, a subscription and a receiver, beside its own `ask_work`: one or two
microseconds where it is quick."""

RETAIN_WORK: Final = 48
LEVEL_WORK: Final = 3
"""A retained message that is kept, and each new level of its topic: 65,536 units of these take about three
milliseconds. One that is refused, or cleared, counts for as much, with all levels."""

EXPIRY_WORK: Final = 48
"""The time of a retained message that expires: it stands among all times that there are."""

DUE_WORK: Final = 32
"""A thing that falls due: a retained message that is cleared, a session that ends."""

SHED_LOOK_WORK: Final = 4
SHED_LIVE_WORK: Final = 4
SHED_WORK: Final = 12
"""A session whose queues are looked at, a message that is shed from the queue of a connection, and one from that of a
session, which is an object: 0.25 and 0.75 microseconds where they are in no cache of the processor."""

# -- subscriptions -----------------------------------------------------------------------------------------------------

CHECK_WORK: Final = 2
"""The check of one filter, besides its length: 30,000 short ones take some milliseconds."""

FILTER_WORK: Final = 16
"""A filter that is subscribed to or unsubscribed from, besides the change of the trie: half a microsecond, with its
share of the packet. Counting more costs everybody: clients that subscribe at the same time then have more and shorter
turns, and the caches of the processor begin anew with each."""

MANY_FILTERS_SHIFT: Final = 16
"""Such a filter counts for one more by this shift of the number of subscriptions: among a million it takes one
to two microseconds."""

TOLD_WORK: Final = 64
"""The same where access control, a journal, a listener or a recorder hears of it, or where it may get a queue of its
own: some microseconds more."""

LENGTH_SHIFT: Final = 4
"""16 bytes of a filter."""

STREAM_WORK: Final = 2_048
"""The beginning of a stream of retained messages: the topics that it visits, at most."""

LOOK_WORK: Final = 2
TERMS_WORK: Final = 64
"""A subscription of a session that goes on when it is looked at, and when it is given the queue that it has by the
rules; each rule counts one more."""

NODE_SHIFT: Final = 5
"""32 bytes of the trie that come or go: a filter of 128 levels that shares none of them makes 128 nodes, 80
microseconds."""

OUTDATED_WORK: Final = 4
"""A cached topic that is to be matched again for a new wide filter: the next publisher there waits for it, and the
subscriber has caused it."""

DROP_WORK: Final = 16
"""A subscription that is taken away."""

# -- connections -------------------------------------------------------------------------------------------------------

CONNECT_WORK: Final = 1_024
"""A client that is let in: fifty microseconds."""

END_WORK: Final = 512
HELD_WORK: Final = 4
"""The end of a connection, and each message that waits for the client then."""

END_SESSION_WORK: Final = 256
"""The end of a session that gives way to another, beside its messages and subscriptions."""

WRITE_WORK: Final = 128
ITEM_WORK: Final = 8
BYTES_SHIFT: Final = 6
REFILL_WORK: Final = 16
WALK_WORK: Final = 1_024
"""A write, each frame that is written, 64 of its bytes, each delivery that is taken from the session for the next
write, and a look at the retained messages for it."""

WEBSOCKET_SHIFT: Final = 3
"""A WebSocket frame, in bits: 8 units. In a round with little room, that is 64 frames for each client."""

LINE_WORK: Final = 256
"""A log line about refusals, beside the work of asking access control."""


class Budget:
    """The work of one broker. A turn begins with what it may do (`begin`), and is over once that is used.

    Or earlier, by the clock: each unit of a turn may take `MAX_UNIT_SECONDS`. The time counts from the first reading
    of the clock, and one item is always done, however long it takes.
    """

    def __init__(self) -> None:
        # Since the start; only grows. Whatever is done adds its weight here.
        self.used: i64 = 0
        # What `used` is when the present turn is over, and when `spent` has to look: then, or at the clock before.
        self.end: i64 = 0
        self.mark: i64 = 0
        # Seconds that only grow; the shell sets it. None: turns end by work alone.
        self.clock: Callable[[], float] | None = None
        # When the present turn is over by the clock; 0.0: the clock was not read in it.
        self._until: float = 0.0

    def begin(self, work: i64) -> None:
        """Begin a turn of so much work."""
        self.end = self.used + work
        self.mark = self.end
        if self.clock is not None and work > CLOCK_WORK:
            self.mark = self.used + CLOCK_WORK
        self._until = 0.0

    def spent(self) -> bool:
        """Return whether the present turn is over. Not before `used` has reached `mark`."""
        if self.used < self.mark:
            return False
        clock = self.clock
        if clock is not None and self.used < self.end:
            now = clock()
            if self._until == 0.0:
                self._until = now + MAX_UNIT_SECONDS * int(self.end - self.used)
            if now >= self._until:
                self.end = self.used
            else:
                self.mark = min(self.end, self.used + CLOCK_WORK)
        return self.used >= self.end

    def look(self) -> None:
        """Let `spent` read the clock when it is asked next: what was done may take long, as the call of a hook may."""
        if self.clock is not None:
            self.mark = self.used


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """Work that takes several turns. It is consistent whenever `step` has returned."""

    def step(self, budget: Budget) -> bool:
        """Do a bounded part of it, until the budget is spent. Return True when all is done."""
        raise NotImplementedError


PLACING: Final = 0
BROADCASTS: Final = 1
REASSIGNING: Final = 2
REMOVAL: Final = 3
WILLS: Final = 4
"""The lanes of the broker's own jobs, in their order: who may take shared messages comes before who gets them."""

PARTS: Final = (4, 2, 3, 4, 4)
"""The step of each lane ends when this number of quarters of a run are over."""


class Scheduler:
    """The jobs that the broker does by itself, beside its connections: in each lane one, which waits or does not.

    While a job waits the scheduler is among the deadlines, and always due: so the shell calls the router.
    """

    def __init__(self, budget: Budget, deadlines: Deadlines) -> None:
        self._budget = budget
        self._deadlines = deadlines
        self._lanes: list[Job | None] = [None] * len(PARTS)

    @property
    def waiting(self) -> bool:
        """True while a job waits for its next step."""
        return self._lanes.count(None) < len(PARTS)

    def submit(self, lane: i64, job: Job) -> None:
        """Give a job its next step in the next run. It is the only one of its lane; it may wait already."""
        self._lanes[lane] = job
        self.wake()

    def wake(self) -> None:
        """Have the shell call the router at once, if a job waits."""
        if self.waiting:
            self._deadlines.set(self, 0.0)

    def run(self, work: i64) -> None:
        """Begin a turn of so much work with a step of each job that waits."""
        budget = self._budget
        began: i64 = budget.used
        self._deadlines.cancel(self)
        for lane, job in enumerate(self._lanes):
            if job is not None:
                budget.begin(began + work * PARTS[lane] // 4 - budget.used)
                if job.step(budget):
                    self._lanes[lane] = None
        budget.begin(began + work - budget.used)
