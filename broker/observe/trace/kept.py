"""What a trace keeps: the connections that it saw, and their packets in the order in which they came and went.

Owns the bounds of one trace. Promises: it never counts more than `max_bytes`, with what each entry takes beside its
bytes; the packet that does not fit ends it. Whoever reads along waits for the next entry and holds nothing.
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
"""What an entry counts for beside its bytes."""

PARTY_BYTES: Final = 1_200
"""What a connection counts for: its names may have some hundred bytes each."""


@dataclass(slots=True, eq=False)
class Party:
    """One connection, as the entries know it. `number`: in the order in which traces met them, from 1."""

    number: int
    host: str
    address: str
    """IP address ("": none) and whole address of the client."""
    local: tuple[str, int] | None
    """Where the client connected to; None: a Unix socket."""
    listener: str
    client_id: str = ""
    version: int = 0
    """Protocol level; 0: no CONNECT was seen."""
    begun: bool = False
    """Whether the trace saw the connection from its first byte on."""


@dataclass(slots=True, frozen=True, eq=False)
class Denied:
    """Something that a client was refused, `count` times: `action` as `core.refusals` names it."""

    action: str
    topic: str
    reason_code: int
    count: int


@dataclass(slots=True, frozen=True, eq=False)
class Entry:
    """Something that happened, at `time` (ns, Unix). A packet of `size` bytes, of which `data` is the beginning."""

    what: int
    time: int
    party: Party
    inward: bool = True
    data: bytes = b""
    size: int = 0
    version: int = 0
    """The protocol level in force when a packet came."""
    note: str = ""
    """Why a connection ended; what decided that something is refused."""
    denied: Denied | None = None
    """What was refused."""


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
    """Bytes that it counts."""
    _met: set[Party] = field(default_factory=set)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"

    def add(self, entry: Entry) -> bool:
        """Keep an entry. False: there is no room for it."""
        cost = ENTRY_BYTES + len(entry.data)
        if entry.denied is not None:
            cost += ENTRY_BYTES + len(entry.denied.topic) + len(entry.note)
        if entry.party not in self._met:
            cost += PARTY_BYTES
        if self.bytes + cost > self.max_bytes:
            return False
        self._met.add(entry.party)
        self.bytes += cost
        self.entries.append(entry)
        if entry.what == PACKET:
            self.packets += 1
        self._tell()
        return True

    def knows(self, party: Party) -> bool:
        """Whether something of this connection was kept."""
        return party in self._met

    def end(self, state: State) -> None:
        """It goes on no longer."""
        self.state = state
        self.ended_at = time.time()
        self._tell()

    async def more(self, than: int) -> bool:
        """Wait until there are more entries than so many. False: there will be none."""
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

    def _tell(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
