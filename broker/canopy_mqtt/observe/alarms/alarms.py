"""The alarms of one broker: checks observations at intervals, and reports changes to log, `$SYS`, API and webhook.

Owns the task that checks. Promises: an alarm is reported once when it is raised and once when it is cleared; an alarm
without its subject is cleared; the history of cleared ones is bounded; a fault in one check does not end the next.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from canopy_mqtt.observe.alarms.observer import KINDS, Hysteresis, Observation, Observer
from canopy_mqtt.settings import Alarms as AlarmSettings

if TYPE_CHECKING:
    from canopy_mqtt.guards.log import Faults
    from canopy_mqtt.net.server import Server
    from canopy_mqtt.observe.figures.sources import Sources


class Host(Protocol):
    """The parts of the broker that alarms use."""

    log: Any
    faults: Faults
    loop: asyncio.AbstractEventLoop


class Notifier(Protocol):
    """Receives alarms besides the log: the webhook."""

    def send(self, alarm: dict[str, Any]) -> None:
        """Accept an alarm for sending; never waits, never raises."""

    async def stop(self) -> None:
        """Stop sending."""


@dataclass(slots=True)
class Alarm:
    """One alarm. Times are in seconds since 1970."""

    kind: str
    instance: str
    value: float
    """The worst value since the alarm was raised."""
    unit: str
    bound: float
    detail: str
    since: float
    until: float | None = None
    """The time at which it was cleared; None while it is raised."""

    @property
    def name(self) -> str:
        """The kind, followed by the instance if the kind has several."""
        return f"{self.kind}/{self.instance}" if self.instance else self.kind

    @property
    def message(self) -> str:
        """One sentence for people."""
        return f"{KINDS[self.kind]}: {self.detail}" if self.detail else KINDS[self.kind]

    def fields(self) -> dict[str, Any]:
        """Return the fields that `$SYS` and the webhook publish."""
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
    """The raised alarms of one broker, and the history of cleared ones."""

    def __init__(
        self,
        host: Host,
        settings: AlarmSettings,
        observer: Observer,
        make_notifier: Callable[[AlarmSettings], Notifier | None] = lambda _: None,
    ) -> None:
        """`make_notifier` makes the webhook, or returns None if the settings name none."""
        self._host = host
        self._settings = settings
        self._observer = observer
        self._make_notifier = make_notifier
        self._notifier = make_notifier(settings)
        self._states: dict[tuple[str, str], Hysteresis] = {}
        self.active: dict[tuple[str, str], Alarm] = {}
        self.history: deque[Alarm] = deque(maxlen=settings.history)
        """Cleared alarms, the newest last."""
        self.publish: Callable[[str, bytes], None] | None = None
        """Publishes below `$SYS/broker/`; an empty payload clears a topic."""
        self._task: asyncio.Task[None] | None = None

    def counts(self) -> dict[str, int]:
        """Return the number of raised alarms of each kind."""
        found = Counter(kind for kind, _ in self.active)
        return {kind: found[kind] for kind in KINDS}

    def start(self) -> None:
        """Begin to check at intervals, if the settings name an interval."""
        if self._settings.interval > 0.0:
            self._task = self._host.loop.create_task(self._run())

    async def change(self, settings: AlarmSettings) -> None:
        """Apply other settings, but for the switch on or off. Alarms that wait for a webhook that changes are
        discarded.
        """
        before, self._settings = self._settings, settings
        if settings == before:
            return
        self._observer.settings = settings
        self.history = deque(self.history, maxlen=settings.history)
        if self._task is not None:
            # The next look comes at once.
            self._task.cancel()
            self.start()
        if settings.webhook != before.webhook:
            receiver, self._notifier = self._notifier, self._make_notifier(settings)
            if receiver is not None:
                await receiver.stop()

    def cease(self) -> None:
        """Stop checking: from here on the stopping of the broker is the only fault to be seen."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop, and wait until no task of the alarms runs."""
        self.cease()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        if self._notifier is not None:
            await self._notifier.stop()

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
        """Check once. `disks`: the used share of each disk (`Observer.disks`)."""
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
        self._report(alarm)

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
        self._report(alarm)

    def _report(self, alarm: Alarm) -> None:
        fields = alarm.fields()
        if self.publish is not None:
            self.publish(f"alarms/{alarm.name}", json.dumps(fields).encode() if alarm.until is None else b"")
        if self._notifier is not None:
            self._notifier.send(fields)


def alarms(server: Server, sources: Sources, publish: Callable[[str, bytes], None]) -> Alarms:
    """Make the alarms of a broker. `publish` gets the topic below `$SYS/broker/` and the payload of each change."""
    settings = server.settings
    wanted = settings.alarms
    folders = {"store": settings.store.path, "recorder": settings.recorder.directory}
    observer = Observer(sources, wanted, {name: path for name, path in folders.items() if path})
    made = Alarms(server, wanted, observer, partial(_webhook, server))
    made.publish = publish
    sources.alarms = made.counts
    return made


def _webhook(server: Server, wanted: AlarmSettings) -> Notifier | None:
    if not wanted.webhook or wanted.interval <= 0.0:
        return None
    # Not before: it brings in aiohttp.
    from canopy_mqtt.observe.alarms.webhook import Webhook

    return Webhook(wanted, server.router.broker_id, server.log)
