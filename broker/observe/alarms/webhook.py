"""Posts alarms as JSON to a URL of the settings. Loaded where there is one.

Promises: it never keeps the event loop or the alarms waiting; what waits is bounded, the oldest is left out first; each
is tried a bounded number of times, in order. No redirect is followed and no answer is read: nobody there can steer the
broker. The URL stands in no log line: it may hold a secret.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from broker.settings import Alarms

ATTEMPTS: Final = 6
"""Attempts for one alarm, over about half a minute: a service that is started again is back by then."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts: doubled after each, up to this."""


class Webhook:
    """One URL."""

    def __init__(self, settings: Alarms, broker: str, log: Any) -> None:
        """`broker`: what it calls itself."""
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
        """Alarms that found the line full, or were given up."""

    def send(self, told: dict[str, Any]) -> None:
        """Post it when those before it have been."""
        if self._stopped:
            return
        self._waiting.append(told)
        if len(self._waiting) > self._settings.history:
            self._leave_out(self._waiting.popleft(), "too many wait")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Post no more."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self) -> None:
        """Everything that waits; the task ends when nothing does."""
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._settings.webhook_timeout),
                headers={"User-Agent": "canopy"},
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session:
                while self._waiting:
                    await self._deliver(session, self._waiting.popleft())
        finally:
            self._task = None
            if self._waiting and not self._stopped:
                # It came while the session was being closed.
                self._task = asyncio.get_running_loop().create_task(self._work())

    async def _deliver(self, session: aiohttp.ClientSession, told: dict[str, Any]) -> None:
        pause = self.pause
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE)
            why = await self._post(session, told)
            if not why:
                self.delivered += 1
                return
        self._leave_out(told, why)

    async def _post(self, session: aiohttp.ClientSession, told: dict[str, Any]) -> str:
        """Why it did not go well; "" where it did."""
        try:
            async with session.post(
                self._settings.webhook, json=told | {"broker": self._broker}, allow_redirects=False
            ) as response:
                return "" if 200 <= response.status < 300 else f"status {response.status}"
        except TimeoutError:
            return "no answer in time"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may hold the URL.
            return type(error).__name__

    def _leave_out(self, told: dict[str, Any], why: str) -> None:
        self.left_out += 1
        self._log.warning("alarm not delivered", alarm=told["alarm"], state=told["state"], host=self._host, reason=why)
