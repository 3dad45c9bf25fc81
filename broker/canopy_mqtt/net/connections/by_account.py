"""Connections that share a bound, by account, and how much each holds: by that the broker chooses the one that ends.

Owns the order: the account that holds most first, and of its connections the oldest first. A connection costs a
stranger nothing, and one of many that come and go is never the oldest of all: without the accounts, those who make
most connections would end those of everybody else.
Promises: a change costs O(log n) of the accounts, and O(1) where there is one; an account is there while it holds
something.
"""

from __future__ import annotations

from typing import cast

from mypy_extensions import i64

from canopy_mqtt.core.heap import Heap, HeapItem
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.net.timers import WheelItem


def account_of(host: str) -> str:
    """Name the account of a connection from an IP address before its client is known."""
    return Principal(host=host).account_name()


class AccountHeld(HeapItem):
    """The connections of one account. The key: how much they hold, below 0; of equal ones the oldest is the first.
    `held`: of each connection, the oldest first."""

    def __init__(self, name: str, number: i64) -> None:
        super().__init__(0.0, number)
        self.name = name
        self.size: i64 = 0
        self.held: dict[WheelItem, int] = {}


class ByAccount:
    """Connections and how much each holds; `size`: all of them together."""

    def __init__(self) -> None:
        self.size: i64 = 0
        # By connection, those that have held something for longest first; read it, and never change it.
        self.accounts: dict[WheelItem, AccountHeld] = {}
        self._by_name: dict[str, AccountHeld] = {}
        self._heap = Heap()
        # Accounts so far.
        self._made: i64 = 0

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self.accounts)

    def set(self, connection: WheelItem, held: int, name: str) -> None:
        """A connection holds so much, above 0. `name`: of its account, the same while it holds something."""
        account = self.accounts.get(connection)
        if account is None:
            account = self._by_name.get(name)
            if account is None:
                self._made += 1
                account = AccountHeld(name, self._made)
                self._by_name[name] = account
                self._heap.add(account)
            self.accounts[connection] = account
        self._change(account, held - account.held.get(connection, 0))
        account.held[connection] = held

    def remove(self, connection: WheelItem) -> None:
        """A connection holds nothing any more, if it did."""
        account = self.accounts.pop(connection, None)
        if account is None:
            return
        self._change(account, -account.held.pop(connection))
        if not account.held:
            del self._by_name[account.name]
            self._heap.remove(account)

    def largest(self) -> AccountHeld:
        """Return the account that holds most; there has to be one."""
        return cast("AccountHeld", self._heap.items[0])

    def _change(self, account: AccountHeld, by: int) -> None:
        self.size += by
        account.size += by
        account.key = -float(account.size)
        if len(self._heap.items) > 1:
            self._heap.moved(account)
