"""A database in memory, with the parts of PostgreSQL that the cluster relies on.

Isolation is READ COMMITTED: each statement sees what was committed when it began, and what its own transaction wrote.
Locks are held to the end of their transaction. Transactions commit in another order than they begin. A commit whose
answer is lost has happened. TRUNCATE removes all rows that are there at its commit, seen or not.

A function of the schema is a generator: it yields the name of the statement that comes next, or the `Lock` that it
waits for. Other transactions run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Key: TypeAlias = Any
Row: TypeAlias = Any

TABLES: Final = (
    "node", "progress", "session", "garbage", "filter", "subscription", "message", "delivery", "received", "retained",
    "will", "published_will", "slots", "beat",
)  # fmt: skip

TOGETHER: Final = {("s", "s"), ("k", "k"), ("k", "n"), ("n", "k"), ("k", "s"), ("s", "k")}
"""The modes of locks that two transactions may hold at once. x: FOR UPDATE, ACCESS EXCLUSIVE; n: FOR NO KEY UPDATE; s:
FOR SHARE, ROW EXCLUSIVE of a table; k: FOR KEY SHARE."""


class Deleted:
    """Marks a row that its transaction has deleted."""


DELETED: Final = Deleted()


class Lock(NamedTuple):
    """A lock that a transaction waits for."""

    key: Hashable
    mode: str


Steps: TypeAlias = Generator[Lock | str, None, T]
"""A function of the schema."""


class Transaction:
    """A call of a function, as one transaction."""

    def __init__(self, db: Database, function: Callable[..., Steps[Any]], args: tuple[Any, ...]) -> None:
        self.db = db
        self.name = function.__name__
        self.args = args
        self.written: dict[tuple[str, Key], Row] = {}
        self.locks: list[Hashable] = []
        self.truncated: list[tuple[str, int]] = []
        self.waits: Lock | None = None
        self.next = "begin"
        """The statement that comes next."""
        self.steps = function(self, *args)
        self.result: Any = None
        self.caller: Any = None
        """The node that waits for the result."""
        self.back: Callable[[Any, bool], None] | None = None
        """Gets the result, and True if there is none to be had."""
        self.speed = 6.0

    def get(self, table: str, key: Key) -> Row:
        row = self.written.get((table, key))
        if row is DELETED:
            return None
        return row if row is not None else self.db.tables[table].get(key)

    def put(self, table: str, key: Key, row: Row) -> None:
        self.written[(table, key)] = row

    def delete(self, table: str, key: Key) -> None:
        self.written[(table, key)] = DELETED

    def scan(self, table: str) -> list[tuple[Key, Row]]:
        """Return all rows in the order of their keys."""
        found = dict(self.db.tables[table])
        for (name, key), row in self.written.items():
            if name == table:
                if row is DELETED:
                    found.pop(key, None)
                else:
                    found[key] = row
        return sorted(found.items(), key=lambda item: item[0])

    def free(self, key: Hashable, mode: str) -> bool:
        """Return whether no other transaction holds a lock that excludes this one."""
        return self.db.free(self, Lock(key, mode))

    def hold(self, key: Hashable, mode: str) -> None:
        """Take a lock that is free (SKIP LOCKED)."""
        self.db.locks.setdefault(key, {})[self] = mode
        self.locks.append(key)

    def drop(self, key: Hashable) -> None:
        self.locks.remove(key)
        self.db.locks[key].pop(self, None)

    def truncate(self, table: str, slot: int) -> None:
        """Remove at the commit all rows of a slot, seen or not: TRUNCATE knows no snapshots."""
        self.truncated.append((table, slot))


class Database:
    """Tables, locks and the transactions that are open."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        """`without`: the rules that are taken away, to see that each is needed."""
        self.without = without
        self.tables: dict[str, dict[Key, Row]] = {name: {} for name in TABLES}
        self.tables["slots"]["current"] = 0
        self.numbers: dict[str, int] = {}
        """The last number of each sequence."""
        self.clock: Callable[[], int] = lambda: 0
        self.commits = 0
        self.active: list[Transaction] = []
        self.locks: dict[Hashable, dict[Transaction, str]] = {}
        self.over: list[Transaction] = []
        """Transactions that have committed, whose callers have not been told."""
        self.on_commit: Callable[[Transaction, int], None] | None = None

    def draw(self, sequence: str) -> int:
        self.numbers[sequence] = self.numbers.get(sequence, 0) + 1
        return self.numbers[sequence]

    def start(self, function: Callable[..., Steps[Any]], *args: Any) -> Transaction:
        tx = Transaction(self, function, args)
        self.active.append(tx)
        return tx

    def free(self, tx: Transaction, lock: Lock) -> bool:
        holders = self.locks.get(lock.key, {})
        return all((lock.mode, mode) in TOGETHER for holder, mode in holders.items() if holder is not tx)

    def runnable(self) -> list[Transaction]:
        return [tx for tx in self.active if tx.waits is None or self.free(tx, tx.waits)]

    def step(self, tx: Transaction) -> None:
        """Carry out one statement. After the last one the transaction commits."""
        if tx.waits is not None:
            holders = self.locks.setdefault(tx.waits.key, {})
            if tx.waits.mode == "x" or tx not in holders:  # a lock never becomes weaker
                holders[tx] = tx.waits.mode
            tx.locks.append(tx.waits.key)
            tx.waits = None
        try:
            said = next(tx.steps)
        except StopIteration as stop:
            self._commit(tx, stop.value)
            self.over.append(tx)
            return
        if isinstance(said, Lock):
            tx.waits = said
        else:
            tx.next = said

    def _commit(self, tx: Transaction, result: Any) -> None:
        tx.result = result
        for table, slot in tx.truncated:
            self.tables[table] = {key: row for key, row in self.tables[table].items() if key[0] != slot}
        for (table, key), row in tx.written.items():
            if row is DELETED:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = row
        if tx.written:
            self.commits += 1
            if self.on_commit is not None:
                self.on_commit(tx, self.commits)
        self._end(tx)

    def abort(self, tx: Transaction) -> None:
        """Roll a transaction back."""
        self._end(tx)

    def _end(self, tx: Transaction) -> None:
        self.active.remove(tx)
        for key in tx.locks:
            holders = self.locks.get(key)
            if holders is not None:
                holders.pop(tx, None)
                if not holders:
                    del self.locks[key]

    def deadlocked(self) -> bool:
        return bool(self.active) and not self.runnable()
