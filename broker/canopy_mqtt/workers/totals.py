"""Counts what a worker keeps of each limit on all workers together, and has it keep to its part (`parts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from canopy_mqtt.core.accounts import SESSIONS
from canopy_mqtt.core.counters import bound
from canopy_mqtt.workers.parts import MAX_ACCOUNTS, UNLIMITED, equal_part

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server


class Totals:
    """The limits of one worker, in the order of `parts.TOTALS`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parts: Sequence[int] = ()
        server.router.accounts.max_short = MAX_ACCOUNTS

    @property
    def _of_broker(self) -> int:
        """Sessions of the broker itself, as those of links to the other workers, which count for no limit."""
        return self._server.router.accounts.internal.held[SESSIONS]

    def take(self, parts: Sequence[int], accounts: Mapping[str, int]) -> tuple[list[int], dict[str, int]]:
        """Keep to these parts from now on, and to those of accounts.

        Returns how much is used of each, and by these accounts, and by others that have used up half of their part.
        """
        self._parts = parts
        self.limit()
        router = self._server.router
        router.accounts.divide(dict(accounts))
        named = [*accounts, *router.accounts.short]
        router.accounts.short.clear()
        by_account = {name: router.accounts.named(name).bytes for name in named}
        load = router.counters.load
        used = [
            len(router.sessions) - self._of_broker,
            router.session_table.bytes,
            int(load.messages),
            int(load.bytes),
            router.alias_bytes,
            int(self._server.connection_table.partial.bytes),
        ]
        return used, by_account

    def limit(self) -> None:
        """Have the core keep to the parts; after a reload, until it is told others, to those it had."""
        settings, router = self._server.settings, self._server.router
        limits, load = router.limits, router.counters.load
        limits.max_user_bytes = equal_part(settings.limits.max_user_bytes, settings.workers.count)
        if self._parts:
            # To the core 0 is no limit: a part of nothing is one byte, or message.
            least = [0 if part == UNLIMITED else max(1, part) for part in self._parts]
            sessions, session_bytes, messages, size, aliases, partial = least
            limits.max_sessions = max(1, self._parts[0] + self._of_broker) if sessions else 0
            limits.max_session_bytes = session_bytes
            load.max_messages, load.max_bytes = bound(messages), bound(size)
            limits.max_alias_bytes = aliases
            self._server.connection_table.partial.limit = partial
