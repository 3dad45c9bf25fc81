"""What removes from a shared store that which is over: sessions, what they leave, and old slots.

Every node sweeps. Nodes do not wait for each other: each takes what no other one has locked, and one at a time empties
slots. Promises: a slot that is read or written for long holds up readers and writers by a twentieth of a second at a
time, the less often the longer it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import asyncpg

from canopy_mqtt.store.shared.database import SharedDatabase

SECOND: Final = 1.0
"""Seconds between two turns."""
BUDGET: Final = 0.5
"""Seconds of a turn after which what is left waits for the next one."""
SESSIONS: Final = 500
"""Sessions that end in one transaction."""
DELIVERIES: Final = 5_000
"""Deliveries that are deleted or moved in one transaction."""
SLOT_SECONDS: Final = 600
"""Seconds for which a slot is written. What is acknowledged by then is never moved."""
TRIM_SECONDS: Final = 10.0
CLEAN_SECONDS: Final = 3_600.0
FILTER_SECONDS: Final = 60.0
FILTERS: Final = 500
"""Filters without subscriptions that are looked for at once: those of sessions that have ended."""
FIRST_PAUSE: Final = 1.0
"""Seconds before a slot that is in use is tried again; twice as many each time."""
MAX_PAUSE: Final = 60.0


class Sweeper:
    """Sweeps for a node."""

    def __init__(self, database: SharedDatabase, now: Callable[[], float], unused: Callable[[str], None]) -> None:
        """`now`: a clock in seconds that only goes forward; `unused` is told of filters that no session has: the node
        ends them in its groups, which look again."""
        self._database = database
        self._unused = unused
        self._filters_at = now() + FILTER_SECONDS
        self._now = now
        self._trim_at = now() + TRIM_SECONDS
        self._clean_at = now() + CLEAN_SECONDS
        self._empty_at = now()
        self._pause = 0.0
        self._until = now()

    @property
    def blocked(self) -> bool:
        """Whether a slot could not be emptied when it was tried last, since a transaction uses it."""
        return self._pause > 0.0

    async def turn(self) -> None:
        """Sweep for `BUDGET` seconds at most, and a transaction. Call it each `SECOND`. Raises FAILURES."""
        now = self._now()
        self._until = now + BUDGET
        database = self._database
        while await database.expire(SESSIONS) == SESSIONS and self._has_time():
            pass
        while await database.collect(DELIVERIES) and self._has_time():
            pass
        if now >= self._trim_at:
            self._trim_at = now + TRIM_SECONDS
            await database.trim()
        if now >= self._clean_at and await self._forget():
            self._clean_at = now + CLEAN_SECONDS
            await database.clean_long()
        if now >= self._filters_at:
            names = await database.unused_filters(FILTERS)
            if len(names) < FILTERS:
                self._filters_at = now + FILTER_SECONDS
            for name in names:
                self._unused(name)
            while await database.forget_retained(DELIVERIES) == DELIVERIES and self._has_time():
                pass
        await database.change_slot(SLOT_SECONDS)
        if now >= self._empty_at:
            for slot in await database.old_slots():
                await self._empty(slot)

    def _has_time(self) -> bool:
        return self._now() < self._until

    async def _forget(self) -> bool:
        """Delete what is not needed any more; False: there is more of it."""
        while await self._database.forget(DELIVERIES) == DELIVERIES:
            if not self._has_time():
                return False
        return True

    async def _empty(self, slot: int) -> None:
        """Move what waits in a slot, some at a time; then empty it, if that does not have to wait."""
        while (moved := await self._database.move(slot, DELIVERIES)) == DELIVERIES:
            if not self._has_time():
                return
        if moved is None:
            return
        try:
            await self._database.empty(slot)
        except asyncpg.LockNotAvailableError:
            self._pause = min(2 * self._pause, MAX_PAUSE) if self._pause else FIRST_PAUSE
            self._empty_at = self._now() + self._pause
        else:
            self._pause = 0.0
