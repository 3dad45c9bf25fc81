"""The bans of all workers, as the supervisor keeps them.

Owns the failed logins of all workers, and all bans in force. Promises: failures count together, whichever workers saw
them; each ban, and each that is lifted, is told to all workers, and a worker that starts is told of all before it has a
client. Times are those of the system's monotonic clock, which all processes have.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from canopy_mqtt.security.bans import Ban, Bans
from canopy_mqtt.security.brute_force import BruteForceGuard
from canopy_mqtt.settings import Security

KEY_BYTES: Final = 16


AsTold = tuple[str, str, float, float, str, str]
"""An operator's ban as processes tell each other: kind, who, until, since, by, reason."""


def as_told(ban: Ban) -> AsTold:
    return ban.kind, ban.who, ban.until, ban.since, ban.by, ban.reason


class KeptBans:
    """The supervisor's table. `tells` says something to the workers that run, but for the one that is named (`but`)."""

    def __init__(self, settings: Security, tells: Callable[..., None]) -> None:
        self._guard = BruteForceGuard(settings)
        self._bans = Bans(settings.max_bans)
        self._seconds = settings.ban_time
        self._tells = tells
        # Of the marks of credentials: a wrong password is the same one at each worker.
        self._key = secrets.token_bytes(KEY_BYTES)

    def change(self, settings: Security) -> None:
        """Use other settings. The workers have them already."""
        self._guard.change(settings)
        self._seconds = settings.ban_time
        self._bans.max_bans = settings.max_bans

    def all(self) -> tuple[str, bytes, list[AsTold], list[tuple[str, float]]]:
        """Return what a worker that starts has to be told."""
        now = time.monotonic()
        guessed = [(key, now + left) for key, left in self._guard.current(now)]
        return "bans", self._key, [as_told(each) for each in self._bans.all()], guessed

    def heard(self, worker: int) -> dict[str, Callable[..., None]]:
        """Return what is to be called with what a worker says."""

        def failed(key: str, mark: int) -> None:
            now = time.monotonic()
            if self._guard.note(key, mark, now):
                self._tells("guessed", key, now + self._seconds, worker)

        def forgiven(host: str) -> None:
            self._guard.lift(host)
            self._tells("forgiven", host, but=worker)

        def ban(*given: Any) -> None:
            self._bans.add(Ban(*given), time.monotonic())
            self._tells("ban", *given, but=worker)

        def lift(kind: str, who: str) -> None:
            self._bans.lift(kind, who)
            self._tells("lift", kind, who, but=worker)

        return {"guessing": failed, "forgiven": forgiven, "ban": ban, "lift": lift}
