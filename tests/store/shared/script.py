"""Histories by hand: transactions that a test has go to a statement and wait there, in PostgreSQL and in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.model import functions
from tests.cluster.model.database import Steps, Transaction
from tests.cluster.model.functions import Item, Vector
from tests.cluster.model.network import FOR_EVER
from tests.store.shared.mirror import Mirror


class Script:
    """A database with two nodes, whose clock stands still."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        self.db = Mirror(change=change)
        try:
            self.nodes = {name: Caller(self, name) for name in ("n1", "n2")}
        except BaseException:
            self.db.close()
            raise
        self.n1, self.n2 = self.nodes.values()

    def begin(self, function: Callable[..., Steps[Any]], *args: Any) -> Transaction:
        """Begin a transaction, which waits before its second statement, or for a lock."""
        tx = self.db.start(function, *args)
        self.db.step(tx)
        return tx

    def go(self, tx: Transaction, until: str = "") -> Any:
        """Have a transaction go on until it waits before a statement, for a lock, or is over; return its result."""
        while tx in self.db.active and tx in self.db.runnable() and (tx.waits is not None or tx.next != until):
            self.db.step(tx)
        return tx.result

    def run(self, function: Callable[..., Steps[Any]], *args: Any) -> Any:
        """Carry out a transaction that waits for no other one."""
        tx = self.begin(function, *args)
        self.go(tx)
        assert not self.is_open(tx)
        return tx.result

    def is_open(self, tx: Transaction) -> bool:
        return tx in self.db.active

    def waits(self, tx: Transaction) -> bool:
        """Return whether a transaction waits for a lock."""
        return self.is_open(tx) and tx not in self.db.runnable()

    def kill(self, tx: Transaction) -> None:
        self.db.abort(tx)

    def close(self) -> None:
        """Hold everything against the model once more, and end."""
        try:
            self.db.compare_all()
        finally:
            self.db.close()

    def rows(self, table: str) -> dict[Any, Any]:
        return self.db.tables[table]

    def change_slot(self, times: int = 1) -> None:
        for _ in range(times):
            self.run(functions.change_slot)


class Caller:
    """A node: what it calls with, and how far it knows the filters."""

    def __init__(self, script: Script, name: str) -> None:
        self.script, self.name = script, name
        self.incarnation, self.grp, _ = script.run(functions.join, name, 0, 0)
        self.vector: Vector = {}
        self.filters: set[str] = set()

    def learn(self) -> None:
        """Read the filters that are new."""
        rows, self.vector = self.script.run(functions.feed, self.vector)
        for name, row in rows:
            (self.filters.discard if row["gone"] else self.filters.add)(name)

    def begin(self, *items: Item, again: bool = False) -> Transaction:
        """Begin the transaction of a group; `again`: under the number of the one before."""
        self.grp += not again
        return self.script.begin(
            functions.write, self.name, self.incarnation, self.grp, list(items), (dict(self.vector), {})
        )

    def write(self, *items: Item, again: bool = False) -> Any:
        """Write a group, and return its answer."""
        tx = self.begin(*items, again=again)
        self.script.go(tx)
        assert not self.script.is_open(tx)
        return tx.result

    def start_claim(self, client: str, *, clean: bool = False, expiry: int = FOR_EVER) -> Transaction:
        return self.script.begin(functions.claim, self.name, self.incarnation, client, clean, expiry)

    def claim(self, client: str, *, clean: bool = False, expiry: int = FOR_EVER) -> Any:
        """Claim a session, and return the answer."""
        tx = self.start_claim(client, clean=clean, expiry=expiry)
        self.script.go(tx)
        assert not self.script.is_open(tx)
        return tx.result

    def subscriber(self, client: str, topic_filter: str = "a", qos: int = 2) -> dict[str, Any]:
        """Make a session with a subscription, and return whose it is: session and epoch."""
        got = self.claim(client)
        owner = {"sid": got["sid"], "epoch": got["epoch"]}
        self.write(subscribe(owner, topic_filter, qos))
        for node in self.script.nodes.values():
            node.learn()
        return owner

    def retain(self, number: int, *, topic: str = "r", clear: bool = False, **given: Any) -> Item:
        """A publish that is retained, or clears its topic."""
        item = self.publish(number, topic=topic, **given)
        item["msg"]["clear"] = clear
        return {**item, "retain": True, "fence": "owner" in given}

    def publish(self, number: int, *, topic: str = "a", qos: int = 1, owner: Any = None, pid: int = 1) -> Item:
        """A publish of this node, with the filters that it knows."""
        owner = owner or {"sid": 0, "epoch": 0}
        return {
            "kind": "pub", "qos": qos, "pid": pid, "retain": False, "fence": qos == 2, **owner,
            "msg": {"topic": topic, "pub": self.name, "n": number, "qos": qos},
            "filters": {each for each in self.filters if functions.matches(each, topic)},
        }  # fmt: skip


def subscribe(owner: dict[str, Any], topic_filter: str, qos: int = 2) -> Item:
    return {"kind": "sub", "filter": topic_filter, "qos": qos, "fence": True, **owner}


def unsubscribe(owner: dict[str, Any], topic_filter: str) -> Item:
    return {"kind": "unsub", "filter": topic_filter, "fence": True, **owner}


def change(kind: str, owner: dict[str, Any], key: Any, pid: int = 1) -> Item:
    """`kind`: done, sent or released."""
    return {"kind": kind, "row": key, "pid": pid, "fence": kind != "done", **owner}


def end(topic_filter: str) -> Item:
    return {"kind": "endfilter", "filter": topic_filter}


def release(owner: dict[str, Any]) -> Item:
    return {"kind": "release", "fence": True, **owner}
