"""What a worker keeps of each limit on all workers together, and its part of it (`parts`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canopy_mqtt.core.accounts import SESSIONS
from canopy_mqtt.core.counters import bound
from canopy_mqtt.workers.parts import UNLIMITED

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server


class Totals:
    """The limits of one worker, in the order of `parts.TOTALS`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parts: Sequence[int] = ()

    @property
    def _of_broker(self) -> int:
        """Sessions of the broker itself, as those of links to the other workers, which count for no limit."""
        return self._server.router.accounts.internal.held[SESSIONS]

    def take(self, parts: Sequence[int]) -> list[int]:
        """Keep to these parts from now on. Returns how much is used of each."""
        self._parts = parts
        self.limit()
        router = self._server.router
        load = router.counters.load
        return [
            len(router.sessions) - self._of_broker,
            router.session_table.bytes,
            int(load.messages),
            int(load.bytes),
            router.alias_bytes,
            int(self._server.connection_table.partial.bytes),
        ]

    def limit(self) -> None:
        """Have the core keep to the parts; after a reload, until it is told others, to those it had."""
        if self._parts:
            router = self._server.router
            limits, load = router.limits, router.counters.load
            # To the core 0 is no limit: a part of nothing is one byte, or message.
            least = [0 if part == UNLIMITED else max(1, part) for part in self._parts]
            sessions, session_bytes, messages, size, aliases, partial = least
            limits.max_sessions = max(1, self._parts[0] + self._of_broker) if sessions else 0
            limits.max_session_bytes = session_bytes
            load.max_messages, load.max_bytes = bound(messages), bound(size)
            limits.max_alias_bytes = aliases
            self._server.connection_table.partial.limit = partial
