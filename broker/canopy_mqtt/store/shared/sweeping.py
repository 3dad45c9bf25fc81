"""What removes from a shared store that which is over: sessions, what they leave, and old slots.

Every node sweeps. Nodes do not wait for each other: each takes what no other one has locked, and one at a time empties
slots. Promises: a slot that is read or written for long holds up readers and writers by a twentieth of a second at a
time, the less often the longer it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import asyncpg

from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.schema import SLOTS

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
OLD_SLOTS: Final = f"""
SELECT slot::smallint FROM slots CROSS JOIN generate_series(0, {SLOTS - 1}) slot
    WHERE slot NOT IN (current, (current + {SLOTS - 1}) % {SLOTS})
        AND pg_relation_size(format('delivery_%s', slot)) + pg_relation_size(format('message_%s', slot)) > 0
"""
"""The slots that are neither the current one nor the one before, and have something. Their size tells it at once: a
scan would go over all that was deleted there."""
UNUSED: Final = """
SELECT name FROM filter f WHERE NOT gone AND NOT EXISTS (SELECT FROM subscription s WHERE s.filter = f.id) LIMIT $1
"""


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
        # Sessions whose time is over end, and what they and others have left is deleted.
        while await self._call("expire_1($1)", SESSIONS) == SESSIONS and self._has_time():
            pass
        while await self._call("collect_1($1)", DELIVERIES) and self._has_time():
            pass
        if now >= self._trim_at:
            self._trim_at = now + TRIM_SECONDS
            await self._call("trim_1()")
        if now >= self._clean_at and await self._forget():
            self._clean_at = now + CLEAN_SECONDS
            await self._call("clean_long_1()")
        if now >= self._filters_at:
            names = await self._database.sweep(UNUSED, FILTERS)
            if len(names) < FILTERS:
                self._filters_at = now + FILTER_SECONDS
            for (name,) in names:
                self._unused(name)
            while await self._call("forget_retained_1($1)", DELIVERIES) == DELIVERIES and self._has_time():
                pass
        await self._call("change_slot_1($1)", SLOT_SECONDS)
        if now >= self._empty_at:
            for (slot,) in await self._database.sweep(OLD_SLOTS):
                await self._empty(slot)

    async def _call(self, function: str, *values: object) -> Any:
        [[answer]] = await self._database.sweep(f"SELECT {function}", *values)
        return answer

    def _has_time(self) -> bool:
        return self._now() < self._until

    async def _forget(self) -> bool:
        """Delete what is not needed any more; False: there is more of it."""
        while await self._call("forget_1($1)", DELIVERIES) == DELIVERIES:
            if not self._has_time():
                return False
        return True

    async def _empty(self, slot: int) -> None:
        """Move what waits in a slot, some at a time; then empty it, if that does not have to wait."""
        while (moved := await self._call("move_1($1, $2)", slot, DELIVERIES)) == DELIVERIES:
            if not self._has_time():
                return
        if moved is None:  # another node does
            return
        try:
            if await self._call("empty_deliveries_1($1)", slot):
                await self._call("empty_messages_1($1)", slot)
        except asyncpg.LockNotAvailableError:  # somebody reads or writes there
            self._pause = min(2 * self._pause, MAX_PAUSE) if self._pause else FIRST_PAUSE
            self._empty_at = self._now() + self._pause
        else:
            self._pause = 0.0
