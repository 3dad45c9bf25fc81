"""An account of each principal says how much of the broker's room it holds, and what is fair when room is short.

Owns `Account`, one for each principal: a user, or the address of clients that no authenticator knows by a user name;
and `Room`, one for each bound on a sum over all clients. The bounds of one client identifier stand beside these
(`session.ClientAccount`): an identifier costs a client nothing, a user name or an address does.
Promises: an account is there while it holds something; a change costs O(log n), and O(1) as a rule.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.principal import Principal

MAX_TIMES_FREE: Final = 16
"""An account may hold this multiple of what is free: 16/17 of a bound, where it is alone."""

MAX_GIVERS: Final = 64
"""Accounts above their share of which one is sought that can give something."""

MAX_TOLD: Final = 100
"""Accounts that log lines tell of in one interval; those beyond are counted."""

REFUSED: Final = "refused"
GAVE_WAY: Final = "gave way"
"""The texts by which log lines name an account."""

FILTERS: Final = 0
RETAINED: Final = 1
RETAINED_SIZE: Final = 2
SESSIONS: Final = 3
SESSION_SIZE: Final = 4
ROOMS: Final[tuple[str, ...]] = ("filters", "retained-messages", "retained", "sessions", "session-bytes")
"""The names of the rooms, as logs and figures have them: `filters`, `retained` and `session-bytes` are bytes."""

SETTINGS: Final[tuple[str, ...]] = (
    "limits.max_filter_bytes",
    "retained.max_messages",
    "retained.max_bytes",
    "session.max_sessions",
    "session.max_bytes",
)

MAX_USER_BYTES: Final = "limits.max_user_bytes"
"""The setting of the absolute bound."""


LINK_ACCOUNT: Final = "link "
"""The beginning of the names of accounts that have what links to upstream brokers have retained here."""


_NOTHING: Final = (0,) * len(ROOMS)
_NOWHERE: Final = (-1,) * len(ROOMS)


class Account:
    """An account counts what one principal holds. `held`: of each room, by its number."""

    def __init__(self, name: str, user: bool = False, internal: bool = False) -> None:
        """`name`: "user NAME", "address ADDRESS", "link NAME", or "internal"."""
        # Bytes in memory that wait in its sessions' queues, and how many of its sessions have some waiting.
        self.queued: i64 = 0
        self.queues: i64 = 0
        self.name = name
        self.user = user
        self.internal = internal
        self.held: list[int] = list(_NOTHING)
        # Where it stands in the heap of each room, while it holds something there.
        self.places: list[int] = list(_NOWHERE)
        # Of how many rooms it holds something.
        self.rooms: i64 = 0

    @property
    def bytes(self) -> int:
        """All bytes that it holds."""
        return self.held[FILTERS] + self.held[RETAINED_SIZE] + self.held[SESSION_SIZE] + int(self.queued)


class Room:
    """A room counts what the accounts hold of one bound, the largest account first. What is fair:

    - While there is room an account is not limited. It may hold `MAX_TIMES_FREE` times what is free, so that one
      account alone reaches 16/17 of a bound (94 %), and a newcomer finds something.
    - The fair share is the bound divided by the number of accounts that hold something, the asking one included.
    - An account that stays within its share gets room from the largest account above the share (`givers`). An account
      of an address gets none from one of a user: addresses cost an attacker less than users do.
    - The broker's own sessions and messages, and the sessions of links, are on the `internal` account. It is bounded by
      the whole alone, and gives nothing. What links retain is on accounts of theirs, which give way as addresses do.
    """

    def __init__(self, number: int, accounts: dict[str, Account]) -> None:
        """`accounts`: all of them by name, in which one stands while it holds something."""
        self.number = number
        # A heap: those that hold something, but for the internal one.
        self._heap: list[Account] = []
        self._accounts = accounts
        # How often it was refused to an account, and how often one gave way to another, since the start.
        self.refused: i64 = 0
        self.gave_way: i64 = 0

    @property
    def holders(self) -> int:
        """Return how many accounts hold something."""
        return len(self._heap)

    def change(self, account: Account, by: int) -> None:
        """An account holds `by` more, or less."""
        number = self.number
        before = account.held[number]
        held = before + by
        account.held[number] = held
        if account.internal or by == 0:
            return
        heap = self._heap
        if before == 0:
            if account.rooms == 0:
                self._accounts[account.name] = account
            account.rooms += 1
            place = len(heap)
            account.places[number] = place
            heap.append(account)
            if place > 0:
                self._rise(account)
        elif held == 0:
            self._take_out(account)
            account.rooms -= 1
            if account.rooms == 0:
                del self._accounts[account.name]
        elif by > 0:
            place = account.places[number]
            if place > 0 and heap[(place - 1) // 2].held[number] < held:
                self._rise(account)
        elif 2 * account.places[number] + 1 < len(heap):
            self._sink(account)

    def share(self, account: Account, bound: int) -> int:
        """The fair share of a bound, above 0, for an account that asks for some."""
        asking = 1 if account.held[self.number] == 0 else 0
        return bound // max(1, len(self._heap) + asking)

    def left(self, account: Account, bound: int, used: int) -> int:
        """Return what an account may take in one piece, of a bound of which so much is used."""
        free = bound - used
        if free <= 0 or account.internal:
            return max(0, free)
        # Never more than all use: filters count in full for each of the accounts that share them.
        held = min(account.held[self.number], used)
        return max(0, min(MAX_TIMES_FREE * free - held, free))

    def left_in_pieces(self, account: Account, bound: int, used: int) -> int:
        """Return what it may surely take in any number of pieces: each leaves less free."""
        free = bound - used
        if free <= 0 or account.internal:
            return max(0, free)
        return max(0, (MAX_TIMES_FREE * free - min(account.held[self.number], used)) // (MAX_TIMES_FREE + 1))

    def is_below_share(self, account: Account, need: int, bound: int) -> bool:
        """Return whether an account stays within its fair share with so much more: then others make room for it."""
        return not account.internal and account.held[self.number] + need <= self.share(account, bound)

    def givers(self, account: Account, need: int, bound: int) -> list[Account]:
        """The accounts above the fair share, the largest first, of which one is to give way to an account that needs
        so much; none where it would be above its own share with that."""
        if not self.is_below_share(account, need, bound):
            return []
        share = self.share(account, bound)
        found: list[Account] = []
        for each in self.largest(MAX_GIVERS):
            if each.held[self.number] <= share:
                break
            if each is not account and (account.user or not each.user):
                found.append(each)
        return found

    def largest(self, most: int) -> list[Account]:
        """Those that hold most, in this order."""
        heap = self._heap
        found: list[Account] = []
        ahead: list[tuple[int, int]] = []
        if heap:
            ahead.append((-heap[0].held[self.number], 0))
        while ahead and len(found) < most:
            _, at = heapq.heappop(ahead)
            found.append(heap[at])
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(heap):
                    heapq.heappush(ahead, (-heap[below].held[self.number], below))
        return found

    def _take_out(self, leaving: Account) -> None:
        """The last one takes its place in the heap, and goes up or down from there."""
        number = self.number
        place = leaving.places[number]
        leaving.places[number] = -1
        last = self._heap.pop()
        if last is not leaving:
            last.places[number] = place
            self._heap[place] = last
            self._rise(last)
            self._sink(last)

    def _rise(self, rising: Account) -> None:
        heap = self._heap
        number = self.number
        held = rising.held[number]
        place: i64 = rising.places[number]
        while place > 0:
            above: i64 = (place - 1) // 2
            parent = heap[above]
            if parent.held[number] >= held:
                break
            heap[place] = parent
            parent.places[number] = place
            place = above
        heap[place] = rising
        rising.places[number] = place

    def _sink(self, sinking: Account) -> None:
        heap = self._heap
        number = self.number
        held = sinking.held[number]
        size: i64 = len(heap)
        place: i64 = sinking.places[number]
        while True:
            below: i64 = 2 * place + 1
            if below >= size:
                break
            child = heap[below]
            if below + 1 < size and heap[below + 1].held[number] > child.held[number]:
                below += 1
                child = heap[below]
            if child.held[number] <= held:
                break
            heap[place] = child
            child.places[number] = place
            place = below
        heap[place] = sinking
        sinking.places[number] = place


class Accounts:
    """The accounts of one broker, and its rooms."""

    def __init__(self, internal: Account) -> None:
        self.internal = internal
        self.by_name: dict[str, Account] = {}
        self.rooms: list[Room] = [Room(number, self.by_name) for number in range(len(ROOMS))]
        self.filters = self.rooms[FILTERS]
        # What a log line is still to tell of: how often an account was refused room, or gave way, by its name, the
        # setting and which of the two; and how often it was one that found no place here.
        self.untold: dict[tuple[str, str, str], int] = {}
        self.untold_more: i64 = 0

    def of(self, principal: Principal) -> Account:
        """Return the account of a principal. A caller for whom one is made charges it at once, or drops it."""
        return self.named(principal.account_name())

    def named(self, name: str) -> Account:
        """The account of a name, as `Account.name` has it and a store keeps it; the internal one for an empty name."""
        if not name or name == self.internal.name:
            return self.internal
        account = self.by_name.get(name)
        return Account(name, name.startswith("user ")) if account is None else account

    def refuse(self, account: Account, room: Room, setting: str) -> None:
        """An account was refused some room: count it, and remember it for the log."""
        room.refused += 1
        self._tell(account, setting, REFUSED)

    def give_way(self, account: Account, room: Room) -> None:
        """An account gave way to another: a session of it ended, or a retained message went."""
        room.gave_way += 1
        self._tell(account, SETTINGS[room.number], GAVE_WAY)

    def _tell(self, account: Account, setting: str, what: str) -> None:
        key = (account.name, setting, what)
        count = self.untold.get(key, 0)
        if count > 0 or len(self.untold) < MAX_TOLD:
            self.untold[key] = count + 1
        else:
            self.untold_more += 1
