"""The alarms of one broker: looks at intervals, and tells the log, `$SYS`, the API and a webhook of what changes.

Owns the task that looks. Promises: an alarm is told of once when it is raised and once when it is cleared; one whose
subject is gone is cleared; what is remembered of cleared ones is bounded; a fault in one look does not end the next.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.observe.alarms.observer import KINDS, Hysteresis, Observation, Observer
from broker.settings import Alarms as AlarmSettings

if TYPE_CHECKING:
    from broker.net.log import Faults
    from broker.net.server import Server
    from broker.observe.figures.sources import Sources


WEBHOOK: Final = ("webhook", "webhook_timeout")
"""The settings of the webhook."""


class Host(Protocol):
    """The broker, as far as alarms need it."""

    log: Any
    faults: Faults
    loop: asyncio.AbstractEventLoop


class Receiver(Protocol):
    """Whoever is told besides the log: a webhook."""

    def send(self, told: dict[str, Any]) -> None:
        """Take note; never waits, never raises."""

    async def stop(self) -> None:
        """Send no more."""


@dataclass(slots=True)
class Alarm:
    """One alarm. Times in seconds since 1970."""

    kind: str
    instance: str
    value: float
    """How bad it was when it was raised, and the worst since."""
    unit: str
    bound: float
    detail: str
    since: float
    until: float | None = None
    """When it was cleared; None: it is raised."""

    @property
    def name(self) -> str:
        """The kind, and which of several."""
        return f"{self.kind}/{self.instance}" if self.instance else self.kind

    @property
    def message(self) -> str:
        """One sentence for people."""
        return f"{KINDS[self.kind]}: {self.detail}" if self.detail else KINDS[self.kind]

    def told(self) -> dict[str, Any]:
        """As `$SYS` and the webhook have it."""
        return {
            "alarm": self.kind,
            "instance": self.instance,
            "state": "raised" if self.until is None else "cleared",
            "message": self.message,
            "value": round(self.value, 3),
            "bound": self.bound,
            "unit": self.unit,
            "since": round(self.since, 3),
            "until": None if self.until is None else round(self.until, 3),
        }


class Alarms:
    """Those that are raised, and those that were."""

    def __init__(
        self,
        host: Host,
        settings: AlarmSettings,
        observer: Observer,
        make_receiver: Callable[[AlarmSettings], Receiver | None] = lambda _: None,
    ) -> None:
        """`make_receiver`: makes who is told besides the log, if anybody is to be."""
        self._host = host
        self._settings = settings
        self._observer = observer
        self._make_receiver = make_receiver
        self._receiver = make_receiver(settings)
        self._states: dict[tuple[str, str], Hysteresis] = {}
        self.active: dict[tuple[str, str], Alarm] = {}
        self.history: deque[Alarm] = deque(maxlen=settings.history)
        """Cleared ones, the newest last."""
        self.publish: Callable[[str, bytes], None] | None = None
        """Publishes below `$SYS/broker/`; an empty payload clears a topic."""
        self._task: asyncio.Task[None] | None = None

    def counts(self) -> dict[str, int]:
        """How many of each kind are raised."""
        found = Counter(kind for kind, _ in self.active)
        return {kind: found[kind] for kind in KINDS}

    def start(self) -> None:
        """Look at intervals, where the settings name one."""
        if self._settings.interval > 0.0:
            self._task = self._host.loop.create_task(self._run())

    async def change(self, settings: AlarmSettings) -> None:
        """Go by these from now on; whether it looks at all stays. What waits for a webhook that changes is left out."""
        before, self._settings = self._settings, settings
        if settings == before:
            return
        self._observer.settings = settings
        self.history = deque(self.history, maxlen=settings.history)
        if self._task is not None:
            # The next look comes at once.
            self._task.cancel()
            self.start()
        if any(getattr(settings, name) != getattr(before, name) for name in WEBHOOK):
            receiver, self._receiver = self._receiver, self._make_receiver(settings)
            if receiver is not None:
                await receiver.stop()

    def cease(self) -> None:
        """Look no more: from here on all that is wrong is that the broker stops."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Wait until nothing of it runs any more."""
        self.cease()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        if self._receiver is not None:
            await self._receiver.stop()

    async def _run(self) -> None:
        while True:
            try:
                # No thread where there is nothing to look at: the host's program may have none.
                disks = await asyncio.to_thread(self._observer.disks) if self._observer.has_disks else {}
                self.look(disks)
            except Exception as error:
                self._host.faults.broke("alarms", error)
            await asyncio.sleep(self._settings.interval)

    def look(self, disks: dict[str, float]) -> None:
        """Look once. `disks`: how full they are (`Observer.disks`)."""
        now = self._host.loop.time()
        found = self._observer.look(disks, now)
        there = {(each.kind, each.instance): each for each in found}
        for each in found:
            self._see(each, now)
        for key in [key for key in self._states if key not in there]:
            # What is gone, a link that a reload took away, say, is no alarm any more.
            del self._states[key]
            if key in self.active:
                self._clear(self.active[key])

    def _see(self, each: Observation, now: float) -> None:
        key = (each.kind, each.instance)
        state = self._states.setdefault(key, Hysteresis())
        changed = state.look(each.value, each.bounds, now)
        alarm = self.active.get(key)
        if alarm is not None and not changed:
            if each.value > alarm.value:
                alarm.value, alarm.detail = each.value, each.detail
            return
        if not changed:
            return
        if alarm is not None:
            self._clear(alarm)
            return
        alarm = Alarm(each.kind, each.instance, each.value, each.unit, each.bounds.raise_at, each.detail, time.time())
        self.active[key] = alarm
        self._host.log.warning(
            "alarm raised",
            alarm=alarm.kind,
            instance=alarm.instance,
            value=round(alarm.value, 3),
            bound=alarm.bound,
            detail=alarm.detail,
        )
        self._tell(alarm)

    def _clear(self, alarm: Alarm) -> None:
        del self.active[alarm.kind, alarm.instance]
        alarm.until = time.time()
        self.history.append(alarm)
        self._host.log.warning(
            "alarm cleared",
            alarm=alarm.kind,
            instance=alarm.instance,
            seconds=round(alarm.until - alarm.since, 1),
            worst=round(alarm.value, 3),
        )
        self._tell(alarm)

    def _tell(self, alarm: Alarm) -> None:
        told = alarm.told()
        if self.publish is not None:
            self.publish(f"alarms/{alarm.name}", json.dumps(told).encode() if alarm.until is None else b"")
        if self._receiver is not None:
            self._receiver.send(told)


def alarms(server: Server, sources: Sources, publish: Callable[[str, bytes], None]) -> Alarms:
    """`publish`: topic below `$SYS/broker/` and payload, for each that is raised or cleared."""
    settings = server.settings
    wanted = settings.alarms
    folders = {"store": settings.store.path, "recorder": settings.recorder.directory}
    observer = Observer(sources, wanted, {name: path for name, path in folders.items() if path})
    made = Alarms(server, wanted, observer, partial(_webhook, server))
    made.publish = publish
    sources.alarms = made.counts
    return made


def _webhook(server: Server, wanted: AlarmSettings) -> Receiver | None:
    """Who posts them, where the settings name a URL."""
    if not wanted.webhook or wanted.interval <= 0.0:
        return None
    # Not before: it brings in aiohttp.
    from broker.observe.alarms.webhook import Webhook

    return Webhook(wanted, server.router.broker_id, server.log)
