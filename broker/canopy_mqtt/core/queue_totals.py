"""The sums over all queues of the broker, with the time and the lag that those who add to them need.

Owns `QueueTotals`: the sums to which queues add and from which they subtract, the time of the batch, which the shell
writes so that a message's wait is known without reading a clock, and the lag of the event loop. Where the sum over all
queues reaches its limit, the `GlobalLimiter` makes room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.accounts import Account
from canopy_mqtt.core.hooks import Permissions
from canopy_mqtt.core.jobs import Budget

if TYPE_CHECKING:
    # Compiled, these are machine words; interpreted, ordinary ints.
    from mypy_extensions import i64

    from canopy_mqtt.core.hooks import LossListener, MessageHook, Recorder
    from canopy_mqtt.core.ledger import Ledger
    from canopy_mqtt.core.persistence.journal import Journal
    from canopy_mqtt.core.queues.message_queue import MessageQueue
    from canopy_mqtt.core.queues.queue_terms import MessageTerms
    from canopy_mqtt.core.queues.requests import Peer
    from canopy_mqtt.core.queues.send_buffer import SendBuffer
    from canopy_mqtt.core.routing.retained import RetainedStore
    from canopy_mqtt.core.session.shedding import GlobalLimiter

UNLIMITED: Final = 1 << 60
"""The bound that 0 stands for."""


def bound(limit: i64) -> i64:
    """A limit as it is compared with: 0 is unlimited."""
    return limit if limit > 0 else UNLIMITED


class PublisherHolder:
    """The recorder's queue, which may exceed a limit."""

    def holds_publishers(self, now: float) -> bool:
        """Return whether publishers should wait: more than half of what may wait does, and some is written."""
        raise NotImplementedError


class QueueTotals:
    """Sums over all queues, in messages and bytes; times in seconds of the caller's monotonic clock."""

    def __init__(self) -> None:
        # When the present batch began. Each call of the core with a `now` writes it.
        self.now: float = 0.0
        # What makes a time of that clock one since 1970; set where nodes of a cluster compare times.
        self.epoch: float = 0.0
        # The last time by its clock that was given to a retained message of this node, in microseconds since 1970.
        self.retained_at: i64 = 0
        self.budget: Final = Budget()
        # The round of the event loop, as the shell counts those in which much is done: a bound on work holds for one.
        self.round: i64 = 0
        # What waits in all queues: live ones, sessions', in flight and unsent.
        self.messages: i64 = 0
        self.bytes: i64 = 0
        # Of those, QoS 1 and 2 in flight: none of them can be shed.
        self.inflight: i64 = 0
        self.inflight_bytes: i64 = 0
        self.max_messages: i64 = UNLIMITED
        self.max_bytes: i64 = UNLIMITED
        # The account of the broker's own sessions, and how many of the others have messages waiting in sessions.
        self.internal: Final = Account("internal", False, True)
        self.queue_holders: i64 = 0
        self.reliever: GlobalLimiter | None = None
        # How often a message came to a queue that is more than half full and whose client reads, and the last of those
        # queues: of connections, and of sessions.
        self.over_half: i64 = 0
        self.over_half_buffer: SendBuffer | None = None
        self.over_half_queue: MessageQueue | None = None
        # The recorder's queue, when it is more than half full and publishers are to wait for it.
        self.over_half_recorder: PublisherHolder | None = None
        # Seconds after which a client from whose queue nothing was taken does not read: no publisher waits for it then.
        self.standstill: float = 0.0
        # How often a publisher was held back for such a queue.
        self.holds: i64 = 0
        # Peers whose queues ran over and who have to go for it.
        self.overflowed: list[Peer] = []
        # Queues of subscriptions in which something may grow too old, each once, until a look finds them empty.
        self.aging: dict[MessageTerms, None] = {}
        # The recorder of what happens, and the plug-ins' hook for losses.
        self.tap: Recorder | None = None
        self.loss_listener: LossListener | None = None
        # What access control says, and the hook that is asked about each message, if there are such.
        self.permissions: Permissions | None = None
        self.message_hook: MessageHook | None = None
        # What is told what to store; None: nothing is.
        self.journal: Journal | None = None
        # Who is asked before a retained message is sent, where that is wanted; and how many were not for its answer.
        self.retained_check: RetainedStore | None = None
        self.retained_withheld: i64 = 0
        # The last place in the order of shared messages that was given without a store; and that which the next shared
        # delivery gets because its message had it before, 0: a new one.
        self._places: i64 = 0
        self.kept_place: i64 = 0
        # Ledgers with losses that no log line has told of yet, each once.
        self.unreported: list[Ledger] = []
        # The event loop: how late its last tick was, and when the next one is due (0.0: it is not measured).
        self.lag: float = 0.0
        self.tick_due: float = 0.0

    def has_room(self, messages: i64, size: i64) -> bool:
        """Return whether all queues together may hold so much more; where nothing waits, one message of any size."""
        return self.messages + messages <= self.max_messages and (
            self.bytes + size <= self.max_bytes or (self.messages == 0 and messages == 1)
        )

    def in_flight_room(self, size: i64) -> bool:
        """Return whether one more may be in flight: no more than half of the bounds, so that the rest can be shed."""
        return self.inflight < self.max_messages // 2 and self.inflight_bytes + size <= self.max_bytes // 2

    def place(self) -> i64:
        """Return the place of a shared delivery among those of its group, wherever they are: the one that its message
        had with another member, or the next. With a store it is a number of the store's order."""
        place: i64 = self.kept_place
        self.kept_place = 0
        if place == 0 and self.journal is not None:
            place = self.journal.place()
        if place == 0:
            self._places += 1
            place = self._places
        return place

    def queue_begins(self, account: Account) -> None:
        """Something waits in another session of an account."""
        account.queues += 1
        if account.queues == 1 and not account.internal:
            self.queue_holders += 1

    def queue_ends(self, account: Account) -> None:
        """Nothing waits any more in a session of an account."""
        account.queues -= 1
        if account.queues == 0 and not account.internal:
            self.queue_holders -= 1

    def relieve(self, messages: i64, size: i64) -> bool:
        """Let others shed until there is room for so much more. Return False when it cannot be had."""
        reliever = self.reliever
        return reliever is not None and reliever.relieve(messages, size)

    def admits(self, messages: i64, size: i64, waiting: i64, waiting_bytes: i64) -> bool:
        """Return whether a client gets so much more without room: little of its waits, or others shed for it."""
        return self.is_little(waiting + messages, waiting_bytes + size) or self.relieve(messages, size)

    def is_little(self, messages: i64, size: i64) -> bool:
        """Return whether a client may have so much waiting or in flight, whatever others have."""
        reliever = self.reliever
        return reliever is not None and reliever.is_little(messages, size)

    def lag_at(self, now: float) -> float:
        """Return how late the event loop is: its last tick, or the one that is overdue now, whichever is worse."""
        overdue = now - self.tick_due if self.tick_due > 0.0 else 0.0
        return overdue if overdue > self.lag else self.lag
