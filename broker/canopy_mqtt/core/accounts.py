"""An account of each principal says how much of the broker's room it holds, and what is fair when room is short.

Owns `Account`, one for each principal: a user, or the address of clients that no authenticator knows by a user name;
and `Room`, one for each bound on a sum over all clients. The bounds of one client identifier stand beside these
(`session.client_account`): an identifier costs a client nothing, a user name or an address does.
Promises: an account is there while it holds something; a change costs O(log n), and O(1) as a rule.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, cast

from canopy_mqtt.core.heap import Heap, HeapItem

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

NO_PART: Final = -1
"""In place of the bytes of an account that has no part of its own of `limits.max_user_bytes`."""


LINK_ACCOUNT: Final = "link "
"""The beginning of the names of accounts that have what links to upstream brokers have retained here."""

NODE_ACCOUNT: Final = LINK_ACCOUNT + "$node/"
"""The same of links to other nodes of a cluster, and to other workers."""


class Account:
    """An account counts what one principal holds. `held`: of each room, by its number."""

    def __init__(self, name: str, user: bool = False, internal: bool = False) -> None:
        """`name`: "user NAME", "address ADDRESS", "link NAME", or "internal"."""
        # Bytes in memory that wait in its sessions' queues, and how many of its sessions have some waiting.
        self.queued: i64 = 0
        self.queues: i64 = 0
        # What it may hold here, where several processes share `limits.max_user_bytes`, and each has a part of it.
        self.part: i64 = NO_PART
        self.name = name
        self.user = user
        self.internal = internal
        # An account of what another node has retained here, and has charged to its publishers there: the whole alone
        # bounds it, or nodes would have different messages.
        self.node = name.startswith(NODE_ACCOUNT)
        self.held: list[int] = [0] * len(ROOMS)
        # What stands for it in the heap of each room, while it holds something there.
        self.holders: list[Holder | None] = [None] * len(ROOMS)

    @property
    def bytes(self) -> int:
        """All bytes that it holds."""
        return self.held[FILTERS] + self.held[RETAINED_SIZE] + self.held[SESSION_SIZE] + int(self.queued)

    def user_room(self, max_user_bytes: int) -> int:
        """Return the bytes that it may hold more by `limits.max_user_bytes`, which is above 0; below 0: too many."""
        return (max_user_bytes if self.part == NO_PART else int(self.part)) - self.bytes


class Holder(HeapItem):
    """An account among those that hold something of one room. Its key: how much, below 0."""

    def __init__(self, account: Account, held: int) -> None:
        super().__init__(-float(held))
        self.account = account


class Room:
    """A room counts what the accounts hold of one bound, the largest account first. What is fair:

    - While there is room an account is not limited. It may hold `MAX_TIMES_FREE` times what is free, so that one
      account alone reaches 16/17 of a bound (94 %), and a newcomer finds something.
    - The fair share is the bound divided by the number of accounts that hold something, the asking one included.
    - An account that stays within its share gets room from the largest account above the share (`givers`). An account
      of an address gets none from one of a user: addresses cost an attacker less than users do.
    - The broker's own sessions and messages, and the sessions of links, are on the `internal` account. It is bounded by
      the whole alone, and gives nothing. What links retain is on accounts of theirs, which give way as addresses do;
      those of links to other nodes are bounded by the whole alone.
    """

    def __init__(self, number: int, accounts: dict[str, Account]) -> None:
        """`accounts`: all of them by name, in which one stands while it holds something."""
        self.number = number
        # Those that hold something, the largest first, but for the internal one.
        self._heap = Heap()
        self._accounts = accounts
        # How often it was refused to an account, and how often one gave way to another, since the start.
        self.refused: i64 = 0
        self.gave_way: i64 = 0

    @property
    def holders(self) -> int:
        """Return how many accounts hold something."""
        return len(self._heap.items)

    def change(self, account: Account, by: int) -> None:
        """An account holds `by` more, or less."""
        number = self.number
        before = account.held[number]
        held = before + by
        account.held[number] = held
        if account.internal or by == 0:
            return
        holder = account.holders[number]
        if holder is None:
            self._accounts[account.name] = account
            account.holders[number] = holder = Holder(account, held)
            self._heap.add(holder)
        elif held == 0:
            self._heap.remove(holder)
            account.holders[number] = None
            if account.holders.count(None) == len(ROOMS):
                del self._accounts[account.name]
        else:
            holder.key = -float(held)
            if len(self._heap.items) > 1:
                self._heap.moved(holder)

    def share(self, account: Account, bound: int) -> int:
        """The fair share of a bound, above 0, for an account that asks for some."""
        asking = 1 if account.held[self.number] == 0 else 0
        return bound // max(1, len(self._heap.items) + asking)

    def left(self, account: Account, bound: int, used: int) -> int:
        """Return what an account may take in one piece, of a bound of which so much is used."""
        free = bound - used
        if free <= 0 or account.internal or account.node:
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
        items = self._heap.items
        found: list[Account] = []
        ahead: list[tuple[float, int]] = [(items[0].key, 0)] if items else []
        while ahead and len(found) < most:
            _, at = heapq.heappop(ahead)
            found.append(cast("Holder", items[at]).account)
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(items):
                    heapq.heappush(ahead, (items[below].key, below))
        return found


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
        # What several processes share of `limits.max_user_bytes`: the parts of accounts that have one; and by name, as
        # many as are wanted, accounts that asked for some and have less than half left, with the bytes that were
        # refused last.
        self.parts: dict[str, int] = {}
        self.short: dict[str, int] = {}
        self.max_short: i64 = 0

    def user_room(self, account: Account, max_user_bytes: int) -> int:
        """Return the bytes that an account that asks may hold more, as `Account.user_room`, and note if it is short."""
        left = account.user_room(max_user_bytes)
        if left * 2 < max_user_bytes:
            self._note_short(account, 0)
        return left

    def lacks(self, account: Account, need: int, max_user_bytes: int) -> bool:
        """Return whether `limits.max_user_bytes`, 0 for none, leaves an account no room for so much more."""
        if max_user_bytes == 0 or account.internal or account.node:
            return False
        if self.user_room(account, max_user_bytes) >= need:
            return False
        self._note_short(account, need)
        return True

    def _note_short(self, account: Account, refused: int) -> None:
        if len(self.short) < self.max_short:
            self.short[account.name] = refused or self.short.get(account.name, 0)

    def divide(self, parts: dict[str, int]) -> None:
        """Have these accounts, and no others, a part of their own of `limits.max_user_bytes`."""
        for name in [*self.parts, *parts]:
            account = self.by_name.get(name)
            if account is not None:
                account.part = parts.get(name, NO_PART)
        self.parts = parts

    def of(self, principal: Principal) -> Account:
        """Return the account of a principal. A caller for whom one is made charges it at once, or drops it."""
        return self.named(principal.account_name())

    def named(self, name: str) -> Account:
        """The account of a name, as `Account.name` has it and a store keeps it; the internal one for an empty name."""
        if not name or name == self.internal.name:
            return self.internal
        account = self.by_name.get(name)
        if account is None:
            account = Account(name, name.startswith("user "))
            account.part = self.parts.get(name, NO_PART)
        return account

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
