"""A store that commits changes in groups, whatever it writes them to.

Owns its journal with the `GroupCommitter`, its time, and the limits of what waits outside memory. The stores on disk
and in a database are made of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Final

from canopy_mqtt.core.persistence.journal import Saved
from canopy_mqtt.core.queues.disk_queue import Pages
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.store.base import Store
from canopy_mqtt.store.group_commit.committer import GROUP_BYTES, STALL_TIMEOUT, WINDOW, GroupCommitter
from canopy_mqtt.store.group_commit.medium import Medium
from canopy_mqtt.store.group_commit.principals import Principals, RuleTexts
from canopy_mqtt.store.group_commit.records import Loaded
from canopy_mqtt.store.times import Clocks, Times

SYNCHRONOUS: Final = ("off", "normal", "full")
"""The values of `store.synchronous`."""


class GroupStore(Store, Medium):
    """Keeps what its journal is told, as a subclass writes and reads it."""

    def __init__(
        self,
        place: str,
        *,
        synchronous: str = "full",
        commit_window: float = WINDOW,
        commit_bytes: int = GROUP_BYTES,
        stall_timeout: float = STALL_TIMEOUT,
        memory_messages: int = 0,
        memory_bytes: int = 0,
        memory_total_bytes: int = 0,
        disk_bytes: int = 0,
        clocks: Clocks | None = None,
        rules: RuleTexts | None = None,
    ) -> None:
        """`place`: where it is, for people; `synchronous`: full, normal or off; `commit_window` in seconds;
        `stall_timeout`: seconds that a group may take to be written, 0: any; `memory_messages`, `memory_bytes`,
        `memory_total_bytes`, `disk_bytes`: what waits in memory for one session, in all queues, and on disk alone at
        most (`Pages`); `clocks`: those that go on between two brokers, None: the machine's; `rules`: who writes and
        reads the rules of principals.

        Raises:
            ValueError: `synchronous` is none of the three.
        """
        if synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self._place = place
        self._synchronous = synchronous
        self._stall_timeout = stall_timeout
        self._principals = Principals(rules)
        self._times = Times(clocks)
        self._pages = Pages(memory_messages, memory_bytes, memory_total_bytes, disk_bytes)
        self._committer = GroupCommitter(
            self._times,
            self._pages,
            self,
            lambda: self.listener,
            window=commit_window,
            size=commit_bytes,
            stall_timeout=stall_timeout,
        )
        super().__init__(self._committer.journal)
        self.commit_times: Histogram = self._committer.commit_times

    async def load(self) -> Saved:
        await self.flush()
        loaded = await self._load(self._times.now())
        loaded.tell(self._committer.journal)
        self._committer.watch_clocks()
        self._committer.damaged(loaded.damages)
        return loaded.saved

    @abstractmethod
    async def _load(self, now: float) -> Loaded:
        """Read everything, with times counted from `now`, a lasting time, and delete what cannot be used. Raises
        StoreError."""

    async def flush(self) -> None:
        await self._committer.flush()

    def figures(self) -> Iterator[tuple[str, object]]:
        committer = self._committer
        yield "path", self._place
        yield "groups", committer.count
        yield "rows", committer.rows
        yield "bytes", self._size()
        yield "paged/messages", self._pages.messages
        yield "paged/bytes", self._pages.bytes
        yield "waiting", committer.waiting()

    @abstractmethod
    def _size(self) -> int:
        """Return the bytes that it takes, as of the last look."""
