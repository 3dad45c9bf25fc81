"""Stores to test, each with clocks that stand until they are moved: `KINDS` by name, and `Place`, where one is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from canopy_mqtt.core.persistence.journal import Journal, Saved
from canopy_mqtt.store import MemoryStore, Store
from canopy_mqtt.store.sqlite import SqliteStore
from canopy_mqtt.store.times import Clocks
from tests.support import postgresql

MakeStore = Callable[[Path, Clocks], Store]


def _memory(folder: Path, clocks: Clocks) -> Store:
    del folder
    return MemoryStore(clocks)


def _sqlite(folder: Path, clocks: Clocks) -> Store:
    # Nobody cuts the power.
    return SqliteStore(folder, synchronous="off", clocks=clocks)


def rebooted(wall: Callable[[], float]) -> Clocks:
    """The clocks of a system that starts anew before each broker: its wall clock says how much time was between."""
    return Clocks(wall, lambda: 0.0, "")


NAMES: Final[dict[Path, str]] = {}
"""Folder → the schema that stands for it."""


def _postgresql(folder: Path, clocks: Clocks) -> Store:
    server = postgresql.shared()
    from canopy_mqtt.store.postgresql import PostgresStore

    # Nobody cuts the power.
    name = NAMES.setdefault(folder, postgresql.new_name())
    return PostgresStore(server.url, name=name, synchronous="off", lease_timeout=1.0, clocks=clocks)


KINDS: Final[dict[str, MakeStore]] = {"memory": _memory, "postgresql": _postgresql, "sqlite": _sqlite}
"""Kind of store → how one is made in a folder, with the clocks of a system."""

OUTLIVES: Final = frozenset(KINDS) - {"memory"}
"""Kinds of which another object, or process, finds again what was kept."""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Place:
    """A store of one kind with both of its clocks."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.wall = Clock(1_000_000.0)
        self.clock = Clock(50.0)
        self.store = self.make()

    def make(self) -> Store:
        """Another store object on the same folder."""
        return KINDS[self.kind](self.folder, rebooted(self.wall))

    @property
    def journal(self) -> Journal:
        return self.store.journal

    async def open(self) -> None:
        await self.store.open(self.clock)

    def move(self, seconds: float) -> None:
        """Time passes while a broker runs."""
        self.wall.now += seconds
        self.clock.now += seconds

    async def load(self) -> Saved:
        """Return what the store would give to the next broker now."""
        await self.store.flush()
        return await self.store.load()

    async def again(self, gap: float = 0.0, clock: float = 7.0) -> Saved:
        """The broker stops, and after so many seconds another one begins, whose own clock stands anywhere."""
        await self.store.close()
        self.wall.now += gap
        self.clock = Clock(clock)
        if self.kind in OUTLIVES:
            self.store = self.make()
        await self.open()
        return await self.store.load()
