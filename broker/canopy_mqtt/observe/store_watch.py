"""Reports the state of the store: a log line when it fails and when it recovers, and its figures.

Owns those lines: at most two in `LINES_APART` seconds, however often a disk fails. The publisher of the state hears of
every change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from canopy_mqtt.histogram import Histogram
from canopy_mqtt.store.base import Store, StoreListener
from canopy_mqtt.store.damage import Damages

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

LINES_APART: Final = 10.0
"""Seconds between two lines about failures."""

WRITTEN: Final = "written"
"""The state of a store that works."""


class StoreWatch(StoreListener):
    """Watches the store of one server. Calls `changed` when the state may have changed."""

    def __init__(self, server: Server, store: Store, ended: Callable[[str], None] | None = None) -> None:
        """`ended` is called with the reason when another broker has taken the store."""
        self._server = server
        self._store = store
        self._ended = ended
        self.changed: Callable[[], None] | None = None
        self.failures = 0
        """The number of times that the store began to fail."""
        self.damaged_rows: dict[str, int] = {}
        """Unusable rows since the start, by table, or `will`."""
        self.aside = ""
        """The place to which a damaged file was moved at the start."""
        self._next_damage_line = 0.0
        self._reason = ""
        self._since = 0.0
        # Whether the log knows of this failure; when the next line may be written, and the timer for that.
        self._reported = False
        self._next_line = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def commit_times(self) -> Histogram | None:
        """The seconds from a change to its commit; None for a store that does not say."""
        return self._store.commit_times

    @property
    def state(self) -> str:
        """`WRITTEN`, or the reason why the store cannot be written."""
        return self._reason or WRITTEN

    @property
    def failing(self) -> bool:
        return bool(self._reason)

    def failed(self, reason: str) -> None:
        """Report a failure, unless it is known."""
        if reason == self._reason:
            return
        if not self._reason:
            self.failures += 1
            self._since = self._server.loop.time()
        self._reason = reason
        self._report()
        self._change()

    def recovered(self) -> None:
        """Report the recovery, if the failure was reported."""
        if not self._reason:
            return
        self._reason = ""
        self.stop()
        if self._reported:
            self._reported = False
            seconds = round(self._server.loop.time() - self._since, 3)
            self._server.log.warning("store is written again", seconds=seconds, failures=self.failures)
        self._change()

    def replaced(self) -> None:
        """End the broker: its supervisor restarts it with the present state of the store."""
        if self._ended is not None:
            self._ended(f"the store: {self._reason}")

    def damaged(self, damages: Damages) -> None:
        """Report the first damaged rows by name, and the number of all."""
        log, now = self._server.log, self._server.loop.time()
        for what, count in damages.counts.items():
            self.damaged_rows[what] = self.damaged_rows.get(what, 0) + count
        if now >= self._next_damage_line:
            self._next_damage_line = now + LINES_APART
            for each in damages.named:
                log.error(
                    "store row is damaged", row=each.what, client_id=each.client_id, topic=each.topic, reason=each.why
                )
            log.error("store has lost damaged rows", now=damages.told(), since_start=sum(self.damaged_rows.values()))

    def set_aside(self, where: str, lost: dict[str, int], kept: dict[str, int]) -> None:
        """Report the damaged file, and raise the alarm."""
        self.aside = where
        self._server.log.error("store was set aside", file=where, lost=lost, kept=kept)

    @property
    def blocked(self) -> bool:
        """True while another transaction keeps the store from giving back the room of what is gone."""
        return self._store.blocked

    @property
    def damage(self) -> str:
        """Describe the damage since the start in one line; empty: none."""
        parts = [f"the damaged file is {self.aside}"] if self.aside else []
        rows = ", ".join(f"{count:,} of {what}" for what, count in sorted(self.damaged_rows.items()))
        return "; ".join([*parts, *([f"lost rows: {rows}"] if rows else [])])

    def noticed(self, line: str) -> None:
        """Log a line of the store."""
        self._server.log.warning("store", detail=line)

    def figures(self) -> Iterator[tuple[str, object]]:
        """Yield topic below `$SYS/broker/store/` and value; nothing for a store in the process's own memory."""
        found = list(self._store.figures())
        if found:
            yield "state", self.state
            yield "failures", self.failures
            yield "damaged", sum(self.damaged_rows.values())
            yield from found

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self) -> None:
        self._timer = None
        if not self._reason:
            return
        now = self._server.loop.time()
        if now >= self._next_line:
            self._next_line = now + LINES_APART
            self._reported = True
            self._server.log.error("store cannot be written", reason=self._reason, failures=self.failures)
        elif self._timer is None:
            self._timer = self._server.loop.call_at(self._next_line, self._report)

    def _change(self) -> None:
        if self.changed is not None:
            self.changed()
