"""Moves the clients of a broker to others before it stops: for upgrades of one broker after the other.

Owns the refusal of new clients and the pace of disconnecting: evenly over the given time, so that the other brokers are
not overrun. 5.0 clients get 0x9C (use another server) or 0x9D (server moved), with a Server Reference if one is given;
connections of older ones are closed. Sessions stay here, and so do the other nodes of a cluster, until the broker
stops: they take what the clients have published, and bring what those that are left wait for. Promises: `stop` admits
clients again; it and the end of the broker leave no task behind.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.causes import MOVED
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.net.connections.ends import CLOSE

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

PAUSE: Final = 0.1
"""Seconds between two groups of clients that are asked to leave."""

TURN: Final = 128
"""Clients that are asked in one turn: some milliseconds."""

TEXT: Final = "the broker is being drained"


class Draining:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self.active = False
        """True while new clients are refused."""
        self.moved = 0
        """Clients that were asked to leave since the draining began."""
        self.by = ""
        """The operator or signal that began it."""
        self.done = asyncio.Event()
        """Set when all clients have been asked to leave."""

    @property
    def left(self) -> int:
        """The number of clients' connections that are left."""
        return sum(1 for each in self._server.connections if each.terms.door is None)

    def start(self, seconds: float, for_good: bool, reference: str, by: str) -> None:
        """Refuse new clients, and move the others within `seconds`. A second call begins again.

        `for_good`: clients should not come back (0x9D, in 5.0). `reference`: the server that they
        should use, in the format of section 4.11; empty: they know others.
        """
        self.stop()
        self.active = self._server.connection_table.closed = True
        self.moved = 0
        self.done.clear()
        self.by = by
        self._server.router.limits.server_reference = reference
        code = reason_codes.SERVER_MOVED if for_good else reason_codes.USE_ANOTHER_SERVER
        clients = self.left
        self._server.log.warning(
            "draining",
            clients=clients,
            nodes=len(self._server.connections) - clients,
            seconds=seconds,
            reference=reference,
            by=by,
        )
        self._task = self._server.loop.create_task(self._move(seconds, code))

    def stop(self) -> None:
        """Admit clients again, unless the broker stops."""
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
        waiting = [each for each in server.connections if each.terms.door is None]
        asked = 0
        while asked < len(waiting):
            # As many as should have gone by now.
            passed = loop.time() - begun + PAUSE
            due = len(waiting) if passed >= seconds else int(len(waiting) * passed / seconds)
            for connection in waiting[asked : min(due, asked + TURN)]:
                asked += 1
                if connection in server.connections:
                    self.moved += 1
                    try:
                        connection.end(CLOSE, MOVED, code, TEXT)
                    except Exception as error:
                        server.faults.broke("drain", error)
            await asyncio.sleep(0 if asked < due else PAUSE)
        left = sum(1 for session in server.router.sessions.values() if not session.internal)
        server.log.warning("drained", clients=self.moved, sessions=left)
        self.done.set()
