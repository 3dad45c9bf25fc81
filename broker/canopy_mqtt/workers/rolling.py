"""A rolling restart: one worker after the other ends in order, and starts again, while the others serve.

Promises: the next one ends once the last one serves again and is linked with the others. If one does not start, the
restart stops there, and that one starts with the settings from before, and with what reloads have changed since. New
workers are forked from what was imported at the start of the broker: a rolling restart brings other settings, and no
other version.
"""

from __future__ import annotations

import asyncio
from typing import Any

from canopy_mqtt.settings import Settings
from canopy_mqtt.workers.crew import Crew, Slot


class Roll:
    """The rolling restarts of one crew, one at a time."""

    def __init__(self, crew: Crew, log: Any) -> None:
        self._crew = crew
        self._log = log
        self._turn: Slot | None = None
        """The worker that is restarted now."""
        self._outcome: asyncio.Future[str]

    def restarts(self, slot: Slot) -> bool:
        """Return whether a worker ends because it is restarted."""
        return slot is self._turn

    def told(self, slot: Slot, why: str = "") -> None:
        """Take note that a worker serves again, or (`why`) that it has not started."""
        if slot is self._turn and not self._outcome.done():
            self._outcome.set_result(why)

    async def run(self, wanted: Settings) -> bool:
        """Restart all workers with these settings. Returns False where one has not started: it is in the log."""
        crew = self._crew
        before = crew.use(wanted)
        try:
            for slot in crew.slots:
                why = await self._restart(slot)
                if why:
                    crew.use_again(before)
                    self._log.error("rolling restart stopped", worker=slot.name, reason=why)
                    return False
        finally:
            self._turn = None
        self._log.info("workers are restarted")
        return True

    async def _restart(self, slot: Slot) -> str:
        """Restart a worker. Returns why it has not started; empty: it serves."""
        loop = asyncio.get_running_loop()
        self._turn, self._outcome = slot, loop.create_future()
        if not slot.line.open:
            # The worker has ended, and may have begun to start with the settings of before.
            if why := await self._outcome:
                return why
            self._outcome = loop.create_future()
        slot.line.pause()
        await self._crew.end(slot)
        return await self._outcome
