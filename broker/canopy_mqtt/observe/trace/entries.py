"""A trace: its connections and their packets, in the order in which they came and went.

Owns the bounds of one trace. Promises: a trace never counts more than `max_bytes`, which includes a constant for each
entry; the packet that does not fit ends it. A reader of a running trace waits for the next entry and holds no copy.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["clientid", "topic", "ip_address"]
State: TypeAlias = Literal["running", "stopped", "time over", "full", "broker stopped"]

OPENED: Final = 0
PACKET: Final = 1
CLOSED: Final = 2
REFUSED: Final = 3

ENTRY_BYTES: Final = 240
"""Bytes that an entry counts for besides its packet."""

CONNECTION_BYTES: Final = 1_200
"""Bytes that a connection counts for: its names may have some hundred bytes each."""


@dataclass(slots=True, eq=False)
class TracedConnection:
    """A connection in a trace. `number`: in the order in which traces first saw them, from 1."""

    number: int
    host: str
    address: str
    """The client's IP address ("": none) and whole address."""
    local: tuple[str, int] | None
    """The address that the client connected to; None: a Unix socket."""
    listener: str
    client_id: str = ""
    version: int = 0
    """The protocol level; 0: the trace saw no CONNECT."""
    begun: bool = False
    """True if the trace saw the connection from its first byte on."""


@dataclass(slots=True, frozen=True, eq=False)
class Denied:
    """Refusals of one kind, `count` times: `action` is named as in `core.ledger`."""

    action: str
    topic: str
    reason_code: int
    count: int


@dataclass(slots=True, frozen=True, eq=False)
class Entry:
    """An event at `time` (ns, Unix). A packet has `size` bytes, of which `data` is the beginning."""

    what: int
    time: int
    connection: TracedConnection
    inward: bool = True
    data: bytes = b""
    size: int = 0
    version: int = 0
    """The protocol level in force when the packet came."""
    note: str = ""
    """The reason why a connection ended, or what decided a refusal."""
    denied: Denied | None = None
    """The refused action."""


@dataclass(slots=True, eq=False)
class Trace:
    """One trace. `bit` tells it from the others that run."""

    name: str
    kind: Kind
    value: str
    seconds: float
    max_bytes: int
    bit: int = 0
    started_at: float = field(default_factory=time.time)
    ended_at: float = 0.0
    state: State = "running"
    entries: list[Entry] = field(default_factory=list)
    packets: int = 0
    bytes: int = 0
    """The bytes that it counts."""
    _met: set[TracedConnection] = field(default_factory=set)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.state == "running"

    def add(self, entry: Entry) -> bool:
        """Keep an entry. Returns False if there is no room for it."""
        cost = ENTRY_BYTES + len(entry.data)
        if entry.denied is not None:
            cost += ENTRY_BYTES + len(entry.denied.topic) + len(entry.note)
        if entry.connection not in self._met:
            cost += CONNECTION_BYTES
        if self.bytes + cost > self.max_bytes:
            return False
        self._met.add(entry.connection)
        self.bytes += cost
        self.entries.append(entry)
        if entry.what == PACKET:
            self.packets += 1
        self._wake_readers()
        return True

    def knows(self, connection: TracedConnection) -> bool:
        return connection in self._met

    def end(self, state: State) -> None:
        self.state = state
        self.ended_at = time.time()
        self._wake_readers()

    async def more(self, than: int) -> bool:
        """Wait until there are more than `than` entries. Returns False if the trace has ended without more."""
        while len(self.entries) <= than:
            if not self.running:
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        return True

    def _wake_readers(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
