"""Which journal entries are committed, and who waits for them before it answers a client.

Owns two numbers and the list of waiters. Promises: no waiter is released before its number; they continue in the order
in which they began to wait, a bounded number in each turn; one that has left is forgotten at once, so a store that
cannot write keeps nothing of closed connections. It knows neither what waits (`Waiter`) nor the event loop: `wake`
tells the shell that there is a waiter to release.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

RELEASE_TURN: Final = 2_048
"""Things that are released in one turn, about; a waiter counts for `VISIT` besides. Below a millisecond."""

VISIT: Final = 4

HANDED: Final = -1
"""The number of a waiter that is released in the next turn."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter:
    """Has something to send when a number is committed."""

    def __init__(self) -> None:
        # The number that is waited for, 0: none. `Commits` sets it.
        self.waits_for: i64 = 0

    def committed(self, number: i64) -> i64:
        """All up to `number` is committed, at least what was waited for: let it go, and wait again for the rest.

        How many things went. No call of the journal may call this.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Commits:
    """The commits of one journal. Everything runs on the event loop's thread.

    The journal adds 1 to `journal_position` for each note that has to reach the disk. When all notes up to a number are
    kept as safely as the store can, the store calls `advance` with it: from its own callback on the event loop, never
    from within a call of the journal.
    """

    def __init__(self) -> None:
        self.journal_position: i64 = 0
        self.committed: i64 = 0
        # The journal position when the first QoS 1 or 2 publish came after everything that has to be kept whatever
        # becomes of it; -1: none came since. The journal's, which may leave what is told from there on out of a group.
        self.cut: i64 = -1
        # The store cannot write now: nothing more is committed until `recover`.
        self.failed = False
        # The store's: it can take no more notes of messages than it has, whatever the settings say of failures.
        self.full = False
        # The shell's: have `release` be called, again and again until no waiter is left. Without a shell
        # `advance` releases all.
        self.wake: Callable[[], None] | None = None
        # Those that wait, in their order. Linked, unlike a plain dict: the first is found at once.
        self._line: OrderedDict[Waiter, None] = OrderedDict()
        # Of those, how many are still to be looked at since the last `advance`.
        self._left: i64 = 0
        # Calls of the journal have failed and are postponed: what it has been told is not complete, and no group may
        # end. Nothing above `_gap_start` is committed before `_gap_end` is, where all of them have been told; -1: there
        # is no such gap.
        self.incomplete = False
        self._gap_start: i64 = -1
        self._gap_end: i64 = 0

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._line)

    def pending(self) -> bool:
        """Return whether anything that was told is not safe yet."""
        return self.journal_position > self.committed

    def begin(self) -> None:
        """A publish of QoS 1 or 2 came: what was told before it is one thing, and what comes is another."""
        if self.cut < 0:
            self.cut = self.journal_position

    # -- the store's side ----------------------------------------------------------------------------------------------

    def advance(self, number: i64) -> None:
        """All notes up to `number` are safe, or stand for nothing any more.

        A number that is not above the last one says nothing new.
        """
        if self._gap_start >= 0:
            if self.incomplete or number < self._gap_end:
                if number > self._gap_start:
                    number = self._gap_start
            else:
                self._gap_start = -1
        if number <= self.committed:
            return
        self.committed = number
        if self.waiting == 0:
            return
        self._left = self.waiting
        self._wake()

    def _wake(self) -> None:
        wake = self.wake
        if wake is not None:
            wake()
            return
        while self.release():
            pass

    def fail(self) -> None:
        """The store cannot write now; it goes on trying."""
        self.failed = True

    def recover(self) -> None:
        """The store can write again."""
        self.failed = False
        self.full = self.full and self.incomplete

    # -- calls of the journal that failed ------------------------------------------------------------------------------

    def postpone(self) -> None:
        """A call of the journal is postponed: it counts as told, and is not committed before `complete`."""
        self.incomplete = True
        if self._gap_start < 0:
            self._gap_start = self.journal_position
        self.journal_position += 1
        self.cut = -1

    def complete(self) -> None:
        """The journal has been told all that was postponed: the next group has it."""
        self.incomplete = False
        self.full = False
        self._gap_end = self.journal_position
        self.cut = -1

    def refuses(self, on_failure: bool) -> bool:
        """Return whether a publish of QoS 1 or 2 is refused now. `on_failure`: whenever the store cannot write."""
        return self.full or (on_failure and (self.failed or self.incomplete))

    # -- those who wait ------------------------------------------------------------------------------------------------

    def wait(self, waiter: Waiter) -> None:
        """Tell a waiter when everything that was told so far is committed. One that waits already goes on so.

        With nothing pending it is told after the next commit: ask `pending` first.
        """
        self.wait_for(waiter, self.journal_position)

    def wait_for(self, waiter: Waiter, number: i64) -> None:
        """The same for what was told up to `number`, above 0."""
        if waiter.waits_for > 0:
            return
        waiter.waits_for = number
        self._line[waiter] = None

    def hand(self, waiter: Waiter) -> None:
        """Tell a waiter that waits for nothing in the next turn, whatever is committed: before all others."""
        waiter.waits_for = HANDED
        self._line[waiter] = None
        self._line.move_to_end(waiter, False)
        self._left += 1
        self._wake()

    def leave(self, waiter: Waiter) -> None:
        """A waiter waits for nothing any more."""
        if waiter.waits_for != 0:
            waiter.waits_for = 0
            del self._line[waiter]
            self._left = min(self._left, i64(len(self._line)))

    def release(self) -> bool:
        """A turn: tell those whose number is committed. True: there are more, for another turn.

        Whatever one of them raises: the next turn goes on with the one behind it.
        """
        number: i64 = self.committed
        work: i64 = 0
        while self._left > 0:
            if work >= RELEASE_TURN:
                return True
            self._left -= 1
            waiter, _ = self._line.popitem(False)
            work += VISIT
            if waiter.waits_for > number:
                self._line[waiter] = None
            else:
                waiter.waits_for = 0
                work += waiter.committed(number)
        return False
