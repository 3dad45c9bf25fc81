"""The interface of a store, whatever it writes to.

Owns the interface `Store`, and its one error.
Promises: a store is told of changes through its `journal` (`core.persistence.journal`) on the event loop's thread, in
order, and never waited for; `load` returns everything before the first client connects. A store that commits later says
so through the journal's `commits` (`core.persistence.commits`), also on the event loop; only then are the
acknowledgements sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final

from canopy_mqtt.core.persistence.journal import Journal, Saved
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.store.damage import Damages

IN_USE: Final = "the store is in use by another broker of this process"
"""The error of opening a store that is open."""


class StoreError(Exception):
    """A store cannot be opened, read or written; the message says why in one line for the operator."""


class StoreListener(ABC):
    """Hears that an open store cannot write the changes it got, and that it can again. Called on the event loop."""

    @abstractmethod
    def failed(self, reason: str) -> None:
        """The last changes cannot be stored, for this reason, in one line. Called again after each failed attempt."""

    @abstractmethod
    def recovered(self) -> None:
        """All changes told before are stored now."""

    def replaced(self) -> None:  # noqa: B027 (not everybody ends then)
        """Another broker has taken the tables: nothing can be stored here any more."""

    def damaged(self, damages: Damages) -> None:
        """Rows could not be used when they were read, and their content is lost."""
        del damages

    def set_aside(self, where: str, lost: dict[str, int], kept: dict[str, int]) -> None:
        """A damaged file was moved to `where`, and a new one has what was whole in it: rows by table."""
        del where, lost, kept

    def noticed(self, line: str) -> None:
        """The operator should know something about the store, which it has dealt with."""
        del line


class Store(ABC):
    """Keeps what outlives a broker. One broker at a time: open, load, be told, close; then the next broker.

    Attributes:
        journal: what the core tells. It only takes notes: no call of it blocks, waits or raises.
        listener: who is told of failures while it is open.
        commit_times: seconds from a change to its commit; None for a store that does not say.
        blocked: whether somebody keeps it from giving back the room of what is gone.
    """

    commit_times: Histogram | None = None
    blocked = False

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.listener: StoreListener | None = None

    def figures(self) -> Iterator[tuple[str, object]]:
        """Yield topic and value of each figure below `$SYS/broker/store/`; none by default.

        `path`; `groups` and `rows`, written since `open`; `bytes` on disk; `paged/messages` and `paged/bytes`, as
        queues count bytes, that wait there alone; `waiting`, changes not committed yet.
        """
        return iter(())

    @abstractmethod
    async def open(self, clock: Callable[[], float]) -> None:
        """A broker begins to use this store; `clock` is its monotonic clock, in seconds, which all times told refer to.

        A broker object that was stopped and is started again, its sessions still in memory, opens it without `load`; no
        other broker may have used the store in between.

        Raises:
            StoreError: it is in use by another broker, or cannot be opened.
        """

    @abstractmethod
    async def load(self) -> Saved:
        """Return the whole content, with its times counted from now. Changes nothing.

        Raises:
            StoreError: the content cannot be read.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until all changes told before this call are stored as safely as this store can.

        Raises:
            StoreError: they cannot be stored.
        """

    @abstractmethod
    async def close(self) -> None:
        """Flush, and release files and threads, since the broker has stopped. Closing a closed store does nothing.

        Raises:
            StoreError: the last changes cannot be stored.
        """
