"""Moves the clients of a broker to others before it stops: for upgrades of one broker after the other.

Owns who may come meanwhile (nobody) and the pace at which clients are told to go: evenly over the time that is given,
so that the others are not overrun. 5.0 clients get 0x9C (use another server) or 0x9D (server moved), with a Server
Reference where one is given; older ones have their connection closed. Sessions stay here.

Promises: `stop` lets clients in again; it and the end of the broker leave no task behind.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker.core.causes import MOVED
from broker.core.codec import reasons

if TYPE_CHECKING:
    from broker.net.server import Server

PAUSE: Final = 0.1
"""Seconds between two groups of clients that are asked to leave."""

TURN: Final = 128
"""Clients that are asked in one turn: some milliseconds."""

TEXT: Final = "the broker is being drained"


class Draining:
    """The draining of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self.active = False
        """Whether new clients are refused."""
        self.moved = 0
        """Clients that were asked to leave since it began."""
        self.by = ""
        """Who or what began it."""
        self.done = asyncio.Event()
        """Whether all clients have been asked to leave, since it began."""

    @property
    def left(self) -> int:
        """Connections of clients that are still here."""
        return len(self._server.connections)

    def start(self, seconds: float, for_good: bool, reference: str, by: str) -> None:
        """Refuse new clients, and move the others within `seconds`. If it runs already, it begins again.

        `for_good`: clients should not come back (0x9D, in 5.0). `reference`: the server that they
        should use, in the format of section 4.11; empty: they know others.
        """
        self.stop()
        self.active = self._server.connection_table.closed = True
        self.moved = 0
        self.done.clear()
        self.by = by
        self._server.router.limits.server_reference = reference
        code = reasons.SERVER_MOVED if for_good else reasons.USE_ANOTHER_SERVER
        self._server.log.warning("draining", clients=self.left, seconds=seconds, reference=reference, by=by)
        self._task = self._server.loop.create_task(self._move(seconds, code))

    def stop(self) -> None:
        """Let clients in again, unless the broker stops."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.active:
            self.active = self._server.connection_table.closed = False
            self._server.log.warning("draining has ended", moved=self.moved, left=self.left)

    async def _move(self, seconds: float, code: int) -> None:
        server = self._server
        loop = server.loop
        begun = loop.time()
        waiting = list(server.connections)
        told = 0
        while told < len(waiting):
            # As many as should have gone by now.
            passed = loop.time() - begun + PAUSE
            due = len(waiting) if passed >= seconds else int(len(waiting) * passed / seconds)
            for connection in waiting[told : min(due, told + TURN)]:
                told += 1
                if connection in server.connections:
                    self.moved += 1
                    try:
                        connection.close(MOVED, code, TEXT)
                    except Exception as error:
                        server.faults.broke("drain", error)
            await asyncio.sleep(0 if told < due else PAUSE)
        left = sum(1 for session in server.router.sessions.values() if not session.own)
        server.log.warning("drained", clients=self.moved, sessions=left)
        self.done.set()
