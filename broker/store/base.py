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

from broker.core.histogram import Histogram
from broker.core.persistence.journal import Journal, Saved
from broker.store.damage import Damages

IN_USE: Final = "the store is in use by another broker of this process"
"""What opening says of a store that is open."""


class StoreError(Exception):
    """Why a store cannot be opened, read or written, in one line for the operator."""


class StoreListener(ABC):
    """Who is told that an open store cannot keep what it is told, and that it can again. Called on the event loop."""

    @abstractmethod
    def failed(self, reason: str) -> None:
        """What was told last cannot be kept, for this reason, in one line. Told again after each vain attempt."""

    @abstractmethod
    def recovered(self) -> None:
        """Everything that was told before is kept now."""

    def replaced(self) -> None:  # noqa: B027 (not everybody ends then)
        """Another broker has the tables: nothing can be kept here any more."""

    def damaged(self, damages: Damages) -> None:
        """Rows could not be used when they were read: what they held is lost."""
        del damages

    def set_aside(self, where: str, lost: dict[str, int], kept: dict[str, int]) -> None:
        """A damaged file is now at `where`, and a new one has what was whole in it: rows by table."""
        del where, lost, kept

    def noticed(self, line: str) -> None:
        """Something about the store that an operator should know, and that it has seen to."""
        del line


class Store(ABC):
    """Keeps what outlives a broker. One broker at a time: open, load, be told, close; then the next broker.

    Attributes:
        journal: what the core tells. It only takes notes: no call of it blocks, waits or raises.
        listener: who is told of failures while it is open.
        commit_times: seconds from a change to its commit; None for a store that does not say.
    """

    commit_times: Histogram | None = None

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.listener: StoreListener | None = None

    def figures(self) -> Iterator[tuple[str, object]]:
        """What is to be seen of it below `$SYS/broker/store/`: topic and value. Nothing by default.

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
        """Everything that was kept, with its times counted from now. Changes nothing.

        Raises:
            StoreError: what is there cannot be read.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything that was told before this call is kept as safely as this store can.

        Raises:
            StoreError: it cannot be kept.
        """

    @abstractmethod
    async def close(self) -> None:
        """The broker has stopped: flush, and let go of files and threads. Closing a closed store does nothing.

        Raises:
            StoreError: what was told last cannot be kept.
        """
