"""Counts what a worker keeps of each limit on all workers together, and has it keep to its part (`parts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.accounts import SESSION_SIZE, SESSIONS
from canopy_mqtt.core.queue_totals import bound
from canopy_mqtt.core.queues.disk_queue import UNBOUNDED
from canopy_mqtt.workers.parts import MAX_ACCOUNTS, UNLIMITED, equal_part

if TYPE_CHECKING:
    from canopy_mqtt.core.accounts import Room
    from canopy_mqtt.core.queues.disk_queue import Pages
    from canopy_mqtt.net.server import Server


KEPT_ROUNDS: Final = 120
"""Times that a worker is told its parts, half a minute, for which it wants what an account was refused: the client may
try again."""


class _Refused:
    """Knows whether an account was refused some of a room in the last half minute: in its worker's part it was above 16
    times what is free there, or there was none."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._known = int(room.refused)
        self._left = 0

    def lately(self) -> bool:
        """To be called each time that a worker is told its parts."""
        refused = int(self._room.refused)
        self._left = max(0, self._left - 1) if refused == self._known else KEPT_ROUNDS
        self._known = refused
        return self._left > 0


class Totals:
    """The limits of one worker, in the order of `parts.TOTALS`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parts: Sequence[int] = ()
        server.router.accounts.max_short = MAX_ACCOUNTS
        # By account: the bytes that it was refused, and for how many times more it wants them.
        self._wanted: dict[str, tuple[int, int]] = {}
        rooms = server.router.accounts.rooms
        self._sessions, self._session_bytes = _Refused(rooms[SESSIONS]), _Refused(rooms[SESSION_SIZE])

    @property
    def _of_broker(self) -> int:
        """Sessions of the broker itself, as those of links to the other workers, which count for no limit."""
        return self._server.router.accounts.internal.held[SESSIONS]

    @property
    def _pages(self) -> Pages | None:
        """Return the sums of what waits on disk alone; None: there is no store."""
        journal = self._server.router.counters.totals.journal
        return None if journal is None else journal.pages

    def take(
        self, parts: Sequence[int], accounts: Mapping[str, int]
    ) -> tuple[list[tuple[int, bool]], dict[str, tuple[int, bool]]]:
        """Keep to these parts from now on, and to those of accounts.

        Returns how much is used of each, and by these accounts, and by others that have used up half of their part;
        True: more of it was refused.
        """
        self._parts = parts
        self.limit()
        router = self._server.router
        router.accounts.divide(dict(accounts))
        wanted = self._want(router.accounts.short)
        most = self._server.settings.limits.max_user_bytes
        by_account: dict[str, tuple[int, bool]] = {}
        for name in [*accounts, *router.accounts.short, *wanted]:
            held = router.accounts.named(name).bytes
            by_account[name] = held, 0 < wanted.get(name, 0) <= most - held
        router.accounts.short.clear()
        totals = router.counters.totals
        used = [
            (len(router.sessions) - self._of_broker, self._sessions.lately()),
            (router.session_table.bytes, self._session_bytes.lately()),
            (int(totals.messages), False),
            (int(totals.bytes), False),
            (router.alias_bytes, False),
            (int(self._server.connection_table.partial.bytes), False),
            (0 if self._pages is None else int(self._pages.bytes), False),
        ]
        return used, by_account

    def _want(self, short: dict[str, int]) -> dict[str, int]:
        """Return the bytes that accounts were refused in the last half minute."""
        self._wanted = {name: (need, left - 1) for name, (need, left) in self._wanted.items() if left > 1}
        for name, need in short.items():
            if need and len(self._wanted) < MAX_ACCOUNTS:
                self._wanted[name] = need, KEPT_ROUNDS
        return {name: need for name, (need, _) in self._wanted.items()}

    def limit(self) -> None:
        """Have the core keep to the parts; after a reload, until it is told others, to those it had."""
        settings, router = self._server.settings, self._server.router
        limits, totals = router.limits, router.counters.totals
        limits.max_user_bytes = equal_part(settings.limits.max_user_bytes, settings.workers.count)
        pages = self._pages
        if pages is not None and pages.total_bytes < UNBOUNDED:
            pages.total_bytes = equal_part(settings.store.memory_total_bytes, settings.workers.count)
        if self._parts:
            # To the core 0 is no limit: a part of nothing is one byte, or message.
            least = [0 if part == UNLIMITED else max(1, part) for part in self._parts]
            sessions, session_bytes, messages, size, aliases, partial, disk = least
            limits.max_sessions = max(1, self._parts[0] + self._of_broker) if sessions else 0
            limits.max_session_bytes = session_bytes
            totals.max_messages, totals.max_bytes = bound(messages), bound(size)
            limits.max_alias_bytes = aliases
            self._server.connection_table.partial.limit = partial
            if pages is not None:
                pages.disk_bytes = bound(disk)
