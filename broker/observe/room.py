"""How much of each bounded room is used, and by whom: for figures, alarms and the API."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.accounts import FILTERS, RETAINED, RETAINED_SIZE, ROOMS, SESSION_SIZE, SESSIONS, SETTINGS
from broker.core.routing.router import Router


@dataclass(frozen=True, slots=True)
class RoomUse:
    """One room. Bytes, but for `sessions` and `retained-messages`, which are counted."""

    name: str
    setting: str
    held: int
    """What is used of it, by all clients and by the broker itself."""
    bound: int
    """0: none."""
    accounts: int
    """Users, and addresses, that hold something."""
    share: int
    """The fair share of one of them; 0 without a bound."""
    largest: list[tuple[str, int]]
    """Those that hold most, and what they hold. Subscriptions to one filter count in full for each."""
    refused: int
    gave_way: int

    @property
    def used(self) -> float:
        """The part of the bound that is used; 0.0 without a bound."""
        return self.held / self.bound if self.bound else 0.0


def rooms(router: Router, most: int = 1) -> list[RoomUse]:
    """All rooms, with up to `most` of their largest accounts each."""
    limits = router.limits
    store = router.retained_store
    held = {
        FILTERS: (int(router.table.bytes), limits.max_filter_bytes),
        RETAINED: (len(store.tree) - store.system_count, limits.max_retained_messages),
        RETAINED_SIZE: (store.bytes, limits.max_retained_bytes),
        SESSIONS: (len(router.sessions), limits.max_sessions),
        SESSION_SIZE: (router.session_table.bytes, limits.max_session_bytes),
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
                [(each.name, each.held[number]) for each in room.largest(most)],
                int(room.refused),
                int(room.gave_way),
            )
        )
    return found
