"""Reports errors of a store's journal: to the log and the counts like those of hooks, and to the store's listener.

Promises: `$SYS/broker/store/state` and `canopy health` show such an error until the journal has been told all that it
had missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.core.guards import HookReporter
from broker.core.persistence.commits import Commits


class Told(Protocol):
    """The part of `store.base.StoreListener` that is called here."""

    def failed(self, reason: str) -> None:
        """What was told last cannot be kept, for this reason, in one line."""

    def recovered(self) -> None:
        """Everything that was told before is kept now."""


class JournalFaults(HookReporter):
    """The reporter of a `GuardedJournal`."""

    def __init__(self, faults: HookReporter, commits: Commits | None, listener: Callable[[], Told | None]) -> None:
        """`faults`: counts and logs; `commits`: of the journal; `listener`: of its store, at the time of the call."""
        super().__init__()
        self._faults = faults
        self._commits = commits
        self._listener = listener

    def failed(self, hook: str, error: Exception) -> None:
        self._faults.failed(hook, error)
        listener = self._listener()
        if listener is not None:
            listener.failed(f"a change cannot be noted: {type(error).__name__}: {error}")

    def mended(self, hook: str) -> None:
        """All calls were repeated with success. If the disk fails too, its own recovery is reported later."""
        del hook
        listener = self._listener()
        if listener is not None and (self._commits is None or not self._commits.failed):
            listener.recovered()
