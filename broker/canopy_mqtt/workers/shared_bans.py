"""The bans of one worker, which are those of all: what happens here is told to the supervisor, which tells all others.

Promises: a failed login counts at the supervisor alone, which says who is banned for guessing; an operator's ban holds
here at once, and elsewhere a moment later, where it ends connections as here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.causes import ADMINISTRATIVE_ACTION as CAUSE
from canopy_mqtt.core.codec.reason_codes import ADMINISTRATIVE_ACTION
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.security.bans import Ban, Bans
from canopy_mqtt.security.brute_force import BruteForceGuard
from canopy_mqtt.workers.kept_bans import AsTold, as_told

if TYPE_CHECKING:
    from canopy_mqtt.assembly.app import Broker

TURN: Final = 1_000
"""Connections that are compared with a ban in one turn of the event loop."""


class SharedGuard(BruteForceGuard):
    """Failed logins, which the supervisor counts. `tell` says something to it."""

    tell: Callable[..., None]

    def note(self, key: str, mark: int, now: float) -> bool:
        del now
        self.tell("guessing", key, mark)
        return False

    def lift(self, host: str, own: bool = True) -> bool:
        """End the ban of an address. `own`: it is lifted here, and the others are to be told."""
        found = super().lift(host)
        if found and own:
            self.tell("forgiven", host)
        return found


class SharedBans(Bans):
    """Bans by operators. `tell` says something to the supervisor."""

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__()
        self._tell = tell

    def add(self, ban: Ban, now: float, own: bool = True) -> bool:
        """Add a ban. `own`: an operator has made it here, and the others are to be told."""
        added = super().add(ban, now)
        if added and own:
            self._tell("ban", *as_told(ban))
        return added

    def lift(self, kind: str, who: str, own: bool = True) -> bool:
        """End a ban, and return True if there was one. `own`: as for `add`."""
        found = super().lift(kind, who)
        if found and own:
            self._tell("lift", kind, who)
        return found


class BansOfAll:
    """Puts into force at this worker what the supervisor says about bans."""

    def __init__(self, broker: Broker, worker: int, tell: Callable[..., None]) -> None:
        """`worker`: the number of this one. `tell` says something to the supervisor."""
        self._broker = broker
        self._worker = worker
        self._tell = tell
        self.bans = broker.bans = SharedBans(tell)
        self.says: dict[str, Callable[..., object]] = {
            "bans": self._begin,
            "ban": self._ban,
            "lift": self._lift,
            "guessed": self._guessed,
            "forgiven": lambda host: self._guard.lift(host, own=False),
        }
        """The functions to call with what the supervisor says, by its first word."""
        self._ending: set[asyncio.Task[None]] = set()
        # From `start` on.
        self._guard: SharedGuard

    def start(self) -> None:
        """Count no failures here any more. Called once the broker has started, before a client comes."""
        assert self._broker.securing is not None
        self._guard = SharedGuard(self._broker.settings.security)
        self._guard.tell = self._tell
        self._broker.securing.access.chain.brute_force = self._guard

    def _begin(self, key: bytes, by_operators: list[AsTold], guessed: list[tuple[str, float]]) -> None:
        self._guard.key = key
        for each in by_operators:
            self._ban(*each)
        for address, until in guessed:
            self._guard.ban(address, until)

    def _ban(self, kind: str, who: str, until: float, since: float, by: str, reason: str) -> None:
        made = Ban(kind, who, until, since, by, reason)
        self.bans.max_bans = self._broker.settings.security.max_bans
        known = self.bans.lift(kind, who, own=False)
        self.bans.add(made, time.monotonic(), own=False)
        self._broker.router.ban_hook = self.bans
        if known:
            # The operator who made it asked each worker, and this one has ended its connections.
            return
        task = asyncio.get_running_loop().create_task(self._end(made))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, ban: Ban) -> None:
        for number, connection in enumerate(list(self._broker.connections)):
            if number % TURN == TURN - 1:
                await asyncio.sleep(0)
            protocol = connection.protocol
            if protocol.accepted and connection in self._broker.connections:
                held = self.bans.find(protocol.client_id, protocol.user_name, connection.host, time.monotonic())
                if held is ban:
                    connection.end(CLOSE, CAUSE, ADMINISTRATIVE_ACTION, "banned")

    def _lift(self, kind: str, who: str) -> None:
        self.bans.lift(kind, who, own=False)
        if not self.bans:
            self._broker.router.ban_hook = None

    def _guessed(self, address: str, until: float, worker: int) -> None:
        """`worker`: where a failure was one too many."""
        here = worker == self._worker
        self._guard.ban(address, until)
        self._guard.bans += here
        assert self._broker.securing is not None
        self._broker.securing.access.chain.address_banned(address, time.monotonic(), here)
