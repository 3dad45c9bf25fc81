"""Reads back, while the broker runs, what waits on disk only.

Owns who waits for that. What is not written yet is read after the next group; what cannot be read now, after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import DeliveryRecord
from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.medium import Medium

REREAD: Final = 5.0
"""Seconds until what could not be read is tried again, if no group is written before."""


class Fetches:
    """The requests of one open store for messages that wait on disk alone."""

    def __init__(
        self, commits: Commits, medium: Medium, notice: Callable[[str], None], tell: Callable[[Damages, int], None]
    ) -> None:
        """`notice`: tells the operator a line; `tell`: what could not be used of a session."""
        self._commits = commits
        self._medium = medium
        self._notice = notice
        self._tell = tell
        self._loop: asyncio.AbstractEventLoop | None = None
        # What is wanted, and of which session; what of it is not written yet, or could not be read.
        self._wanted: dict[Fetch, int] = {}
        self._unread: list[Fetch] = []
        self._timer: asyncio.TimerHandle | None = None
        # The last delivery that was written.
        self.last = 0

    def __len__(self) -> int:
        return len(self._wanted)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread = list(self._wanted)
        self.again()

    def stop(self) -> None:
        self._loop = None
        self.rest()

    def rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def want(self, session: int, fetch: Fetch) -> None:
        self._wanted[fetch] = session
        self._read(fetch)

    def again(self) -> None:
        self.rest()
        unread, self._unread = self._unread, []
        for fetch in unread:
            self._read(fetch)

    def _read(self, fetch: Fetch) -> None:
        if self._loop is not None:
            self._medium.read(fetch, self._wanted[fetch])

    def found(self, fetch: Fetch, records: list[DeliveryRecord], damages: Damages) -> None:
        """Hand over the records that were read. `damages`: those that can never be used."""
        if self._loop is None or fetch not in self._wanted:
            return
        if len(records) < fetch.messages and fetch.last > self.last and not fetch.over:
            self._unread.append(fetch)
            return
        self._tell(damages, self._wanted[fetch])
        if damages.deliveries:
            self._medium.discard(damages.deliveries)
        self._hand(fetch, records)

    def unread(self, fetch: Fetch, reason: str) -> None:
        if self._loop is None or fetch not in self._wanted:
            return
        if reason:
            self._notice(reason)
        self._unread.append(fetch)
        if self._timer is None:
            self._timer = self._loop.call_later(REREAD, self.again)

    def _hand(self, fetch: Fetch, records: list[DeliveryRecord]) -> None:
        del self._wanted[fetch]
        if not fetch.over:
            fetch.records = records
            self._commits.hand(fetch)
