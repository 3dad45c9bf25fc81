"""The interface of a store, whatever it writes to.

Owns the interface `Store`, and its one error.
Promises: a store is told of changes through its `journal` (`core.persistence.journal`) on the event loop's thread, in
order, and never waited for; `load` returns everything before the first client connects. A store that commits later says
so through the journal's `commits` (`core.persistence.commits`), also on the event loop; only then are the
acknowledgements sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from canopy_mqtt.core.persistence.journal import Journal, Saved
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.store.damage import Damages

IN_USE: Final = "the store is in use by another broker of this process"
"""The error of opening a store that is open."""


class StoreError(Exception):
    """A store cannot be opened, read or written; the message says why in one line for the operator."""


class NodeReport(NamedTuple):
    """A node of several that share a store. `seen`: seconds since its last sign of life; `clients`: that are connected
    there; `durable`: those of them whose sessions outlive their connections."""

    name: str
    alive: bool
    seen: float
    version: str
    clients: int
    durable: int


class SessionReport(NamedTuple):
    """A session in a store that nodes share. `node`: where its client is connected, empty: nowhere; `expiry`: its
    Session Expiry Interval, s, None: never; `expires_in`: s, None: its client is connected, or it never expires."""

    account: str
    node: str
    epoch: int
    expiry: int | None
    expires_in: float | None
    waiting: int
    in_flight: int
    subscriptions: int
    filters: Sequence[tuple[str, int]]
    """Topic filter and QoS of the first ones."""


class SessionLine(NamedTuple):
    """A session in a list of those that nodes share (see `SessionReport`). `waiting`: at most `MAX_COUNTED`."""

    client_id: str
    account: str
    node: str
    expiry: int | None
    expires_in: float | None
    waiting: int
    subscriptions: int


MAX_COUNTED: Final = 10_000
"""Messages that are counted of a session in a list: a page of long queues would take the database seconds."""


class SharedReports(ABC):
    """What operators ask of a store that nodes share, at any of them. All raise StoreError."""

    @abstractmethod
    async def nodes(self) -> Sequence[NodeReport]:
        """Return the state of each node that there is, or was."""

    @abstractmethod
    async def session(self, client_id: str) -> SessionReport | None:
        """Return the state of a client's session; None: it has none."""

    @abstractmethod
    async def sessions(self, after: str, like: str, away: bool | None, limit: int) -> Sequence[SessionLine]:
        """Return the first `limit` sessions behind the client identifier `after` whose own has `like` in it, in
        capitals or not. `away`: only those whose clients are (True) or are not (False) connected nowhere."""

    @abstractmethod
    async def end_session(self, client_id: str) -> bool:
        """End a client's session, and its connection, at whichever node. False: there is none."""


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
        reports: what operators ask of a store that nodes share; None: it is one broker's.
    """

    commit_times: Histogram | None = None
    blocked = False
    reports: SharedReports | None = None

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
