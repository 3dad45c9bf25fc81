"""The use of each limit that accounts share, and the accounts that hold most: for figures, alarms and the API."""

from __future__ import annotations

from dataclasses import dataclass

from canopy_mqtt.core.accounts import FILTERS, RETAINED, RETAINED_SIZE, ROOMS, SESSION_SIZE, SESSIONS, SETTINGS
from canopy_mqtt.core.routing.router import Router


@dataclass(frozen=True, slots=True)
class RoomUse:
    """The use of one limit, in bytes, except for `sessions` and `retained-messages`, which are counted."""

    name: str
    setting: str
    held: int
    """The total that all clients and the broker itself hold."""
    bound: int
    """The limit; 0: none."""
    accounts: int
    """The number of accounts (users and addresses) that hold something."""
    share: int
    """The fair share of one account; 0 without a limit."""
    largest: list[tuple[str, int]]
    """The largest accounts, and what they hold. Subscriptions to one filter count in full for each account."""
    refused: int
    gave_way: int

    @property
    def used(self) -> float:
        """The used part of the limit; 0.0 without a limit."""
        return self.held / self.bound if self.bound else 0.0


def rooms(router: Router, accounts: int = 1) -> list[RoomUse]:
    """Return the use of all limits, each with up to `accounts` of the largest accounts."""
    limits = router.limits
    store = router.retained_store
    # The sessions of several workers for each other count for no limit (`workers.totals`).
    own = router.accounts.internal.held if router.table.home_of is not None else [0] * len(ROOMS)
    sessions = len(router.sessions) + router.session_table.elsewhere
    held = {
        FILTERS: (int(router.table.bytes + router.table.elsewhere), limits.max_filter_bytes),
        RETAINED: (store.count, limits.max_retained_messages),
        RETAINED_SIZE: (store.bytes, limits.max_retained_bytes),
        SESSIONS: (sessions - own[SESSIONS], max(0, limits.max_sessions - own[SESSIONS])),
        SESSION_SIZE: (router.session_table.bytes - own[SESSION_SIZE], limits.max_session_bytes),
    }
    found: list[RoomUse] = []
    for number, room in enumerate(router.accounts.rooms):
        used, bound = held[number]
        found.append(
            RoomUse(
                ROOMS[number],
                SETTINGS[number],
                used,
                bound,
                room.holders,
                bound // max(1, room.holders),
                [(each.name, each.held[number]) for each in room.largest(accounts)],
                int(room.refused),
                int(room.gave_way),
            )
        )
    return found
