"""A node's signs of life in a shared store, and which other nodes show none.

Owns since when each other node has been seen without another sign of life. Promises: a node is declared dead only by
one that itself beat and looked all that time without an error. So nobody is after an outage of the database, nor by a
node that stood still. No client waits for it: claims never do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg

from canopy_mqtt.store.postgresql.database import FAILURES
from canopy_mqtt.store.shared.calls import Over, Peer
from canopy_mqtt.store.shared.database import SharedDatabase

SECOND: Final = 1.0
"""Seconds between two turns."""


class Sign(NamedTuple):
    """A sign of life of an incarnation."""

    incarnation: int
    seen: datetime


class Watch:
    """Beats for a node, and looks at the others."""

    def __init__(self, database: SharedDatabase, *, dead_after: float, now: Callable[[], float]) -> None:
        """`dead_after`: seconds without a sign of life; `now`: a clock in seconds that only goes forward."""
        self.dead_after = dead_after
        self._database = database
        self._now = now
        self._signs: dict[int, tuple[Sign, float]] = {}
        """By node: its last sign of life, and since when it is known."""
        self._worked = now()
        """When a turn had no error last."""
        self._ran = self._worked
        """When `runs` was asked last."""

    @property
    def away(self) -> float:
        """Seconds since the database answered last."""
        return self._now() - self._worked

    def runs(self) -> bool:
        """Return False, once, if this process has not run for a while, such as after a SIGSTOP.

        Ask each `SECOND`. What the database and the clients have sent meanwhile is read before anybody acts on `away`:
        a client that has said goodbye has no will that is published.
        """
        before, self._ran = self._ran, self._now()
        return self._ran - before < self.dead_after

    async def turn(self) -> Sequence[Peer] | None:
        """Beat, and declare dead who has shown no sign of life; return all nodes. None: the database does not answer.

        Call it each `SECOND`. Raises Over: this incarnation is over.
        """
        began = self._now()
        if self.away >= self.dead_after:
            # Who has not looked for so long has not seen whether others beat.
            self._signs.clear()
        try:
            await self._database.beat()
            peers = await self._database.nodes()
            self._look(peers, began)
            for peer in self._silent(peers, began):
                await self._declare_dead(peer)
        except Over:
            self._worked = self._now()  # the database has said so
            raise
        except FAILURES:
            self._signs.clear()
            if self.away >= self.dead_after:
                # Nobody else ends a call that hangs: a group has no time-out.
                self._database.ask_again()
            return None
        self._worked = self._now()
        return peers

    def _look(self, peers: Sequence[Peer], now: float) -> None:
        signs = {}
        for peer in peers:
            if peer.alive and peer.id != self._database.node:
                sign = Sign(peer.incarnation, peer.seen)
                before, since = self._signs.get(peer.id, (sign, now))
                signs[peer.id] = (sign, since if before == sign else now)
        self._signs = signs

    def _silent(self, peers: Sequence[Peer], now: float) -> list[Peer]:
        return [peer for peer in peers if peer.id in self._signs and now - self._signs[peer.id][1] >= self.dead_after]

    async def _declare_dead(self, peer: Peer) -> None:
        # What stood in the way has been ended: the next turn tries again.
        with suppress(asyncpg.LockNotAvailableError):
            await self._database.declare_dead(peer)
