"""Posts alarms as JSON to a URL of the settings. Loaded only if the settings name one.

Promises: the webhook never keeps the event loop or the alarms waiting. The queue is bounded and drops the oldest alarm
first; each alarm is tried a bounded number of times, in order. The webhook follows no redirect and reads no answer, so
that its server cannot steer the broker. The URL stands in no log line, because it may hold a secret.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from canopy_mqtt.settings import Alarms

ATTEMPTS: Final = 6
"""Attempts for one alarm, over about half a minute: time enough for a service to restart."""

ANSWER_TIMEOUT: Final = 5.0
"""Seconds for one attempt. A server that is slower has the others, and holds up no more than the alarms that wait."""

FIRST_PAUSE: Final = 1.0
MAX_PAUSE: Final = 60.0
"""Seconds between two attempts: they double after each, up to this."""


class Webhook:
    """Sends alarms to one URL."""

    def __init__(self, settings: Alarms, broker: str, log: Any) -> None:
        """`broker`: the name that the broker sends of itself."""
        self._settings = settings
        self._broker = broker
        self._log = log
        self._host = urlsplit(settings.webhook).hostname or ""
        self._waiting: deque[dict[str, Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.pause = FIRST_PAUSE
        self.delivered = 0
        self.left_out = 0
        """Alarms that were given up, or dropped because the queue was full."""

    def send(self, alarm: dict[str, Any]) -> None:
        """Queue an alarm behind the earlier ones."""
        if self._stopped:
            return
        self._waiting.append(alarm)
        if len(self._waiting) > self._settings.history:
            self._leave_out(self._waiting.popleft(), "too many wait")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self) -> None:
        """Post all queued alarms; the task ends when the queue is empty."""
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT),
                headers={"User-Agent": "canopy"},
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session:
                while self._waiting:
                    await self._deliver(session, self._waiting.popleft())
        finally:
            self._task = None
            if self._waiting and not self._stopped:
                # An alarm came while the session was being closed.
                self._task = asyncio.get_running_loop().create_task(self._work())

    async def _deliver(self, session: aiohttp.ClientSession, alarm: dict[str, Any]) -> None:
        pause = self.pause
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, MAX_PAUSE)
            why = await self._post(session, alarm)
            if not why:
                self.delivered += 1
                return
        self._leave_out(alarm, why)

    async def _post(self, session: aiohttp.ClientSession, alarm: dict[str, Any]) -> str:
        """Post once. Returns the reason of a failure, or ""."""
        try:
            async with session.post(
                self._settings.webhook, json=alarm | {"broker": self._broker}, allow_redirects=False
            ) as response:
                return "" if 200 <= response.status < 300 else f"status {response.status}"
        except TimeoutError:
            return "no answer in time"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may hold the URL.
            return type(error).__name__

    def _leave_out(self, alarm: dict[str, Any], why: str) -> None:
        self.left_out += 1
        name, state = alarm["alarm"], alarm["state"]
        self._log.warning("alarm not delivered", alarm=name, state=state, host=self._host, reason=why)
