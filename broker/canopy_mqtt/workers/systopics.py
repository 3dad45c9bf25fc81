"""`$SYS` at a worker: its clients read the figures of all.

The first worker that answers makes one set of topics of what all say; each takes it from there, and publishes it to its
own clients: `$SYS` does not pass between workers. Who is the first shows each time, so nothing is handed over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from canopy_mqtt.observe.figures.catalogue import Found, read, topics_of
from canopy_mqtt.observe.figures.sources import Sources
from canopy_mqtt.observe.systopics import SysTopics
from canopy_mqtt.workers.asking import Away, Siblings
from canopy_mqtt.workers.figures import of_all

LOOK: Final = 1.0
"""Seconds until the workers are asked again where one did not answer."""


class Made(NamedTuple):
    """The topics below `$SYS/broker/` of all workers, and who did not answer."""

    topics: dict[str, str]
    missing: list[str]


class CrewSysTopics(SysTopics):
    """Publishes the figures of all workers to the clients of one."""

    def __init__(
        self, sources: Sources, interval: float, siblings: Siblings, raised: Callable[[], dict[str, dict[str, Any]]]
    ) -> None:
        """`raised` returns the fields of the raised alarms of this worker, by their names."""
        super().__init__(sources, interval)
        self._siblings = siblings
        self._raised = raised
        self._asking: asyncio.Task[None] | None = None
        # What was made here for all, and when.
        self._made: asyncio.Task[Made] | None = None
        self._made_at = 0.0
        siblings.answers["sys"] = self._own
        siblings.answers["alarms"] = self._alarms
        siblings.answers["sys of all"] = self._of_all

    def stop(self) -> None:
        super().stop()
        for task in (self._asking, self._made):
            if task is not None:
                task.cancel()

    def begin_turn(self) -> None:
        """Begin to ask for the values, unless that is still under way."""
        if self._asking is None or self._asking.done():
            self._asking = self._server.loop.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            for name in self._siblings.names:
                try:
                    made: Made = await self._siblings.ask(name, "sys of all")
                    break
                except Away:
                    continue
            if made.missing and self._timer is not None:
                self._timer.cancel()
                self._timer = self._server.loop.call_later(min(LOOK, self._interval), self._turn)
            self.update(self.listed(made.topics))
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
            self._server.after_batch()

    async def _of_all(self) -> Made:
        """Return the topics of all workers; all of these get the same."""
        now = self._server.loop.time()
        seconds = self._interval / 2
        if self._made is not None and self._made.done() and (self._made.exception() or self._made.result().missing):
            seconds = LOOK / 2
        if self._made is None or now - self._made_at >= seconds:
            self._made_at = now
            self._made = self._server.loop.create_task(self._collect())
        return await asyncio.shield(self._made)

    async def _collect(self) -> Made:
        figures, missing = await of_all(self._siblings, "sys")
        topics = dict(topics_of(figures))
        alarms = await self._siblings.ask_all("alarms")
        for name, some in alarms.found.items():
            for alarm, fields in some.items():
                topics.setdefault(f"alarms/{alarm}", json.dumps(fields | {"worker": name}))
        return Made(topics, missing)

    async def _own(self) -> dict[str, Found]:
        """Return the figures of this worker, with which an interval ends."""
        reading = self.end_interval(self._server.loop.time())
        return {figure.name: found for figure, found in read(reading, lambda figure: figure.topics)}

    async def _alarms(self) -> dict[str, dict[str, Any]]:
        return self._raised()
