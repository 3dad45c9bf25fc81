"""Fills the stores of a number of workers with what those of another number have; 1: of one process.

Owns what becomes of each row. Promises: a session keeps everything, at the worker that has its client identifier; so
does the queue of a share group, at its home, which knows where its members are; each former store is read once; of what
is retained, all workers have the newest of each topic.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from canopy_mqtt.core.accounts import NODE_ACCOUNT
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX, is_within, parse_shared
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.node_messages import read_mark
from canopy_mqtt.core.routing.nodes import NODE_LINKS, NODES
from canopy_mqtt.core.routing.share_homes import MEMBERS, members_filter
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import name_of
from canopy_mqtt.store.sqlite.opening import told
from canopy_mqtt.store.tools import row_rules
from canopy_mqtt.store.tools.exporting import TIMES, rows_of
from canopy_mqtt.store.tools.importing import FaultyRow, Importer
from canopy_mqtt.store.tools.read_only import ReadOnlyStore

BETWEEN: Final = (
    "SELECT client_id FROM session JOIN delivery ON session.id = delivery.session"
    f" WHERE substr(client_id, 1, {len(NODES)}) = ? OR substr(client_id, 1, {len(NODE_LINKS)}) = ? LIMIT 1"
)
"""A session between workers, or nodes, that has messages."""

NODE_SESSION: Final = {
    "principal": '{"user_name": null, "listener": "cluster"}',
    "expiry_interval": row_rules.NEVER,
}
"""The session of a worker at another one: when that connects, it says how long it lasts."""

MEMBERS_SUBSCRIPTION: Final = {
    "qos": 2,
    "no_local": 1,
    "retain_as_published": 1,
    "retain_handling": 2,
    "identifier": 0,
    "streaming": 0,
}
"""The subscription of a worker for the members of a share group there (`core.routing.share_homes`)."""


class Stopped(Exception):
    """Another thread wants it to end."""


@contextmanager
def _reading(store: ReadOnlyStore) -> Iterator[None]:
    try:
        yield
    except FaultyRow as error:
        raise StoreError(f"{store.path}: {error}: see canopy store verify") from error
    except sqlite3.Error as error:
        raise StoreError(told(store.path, error)) from error


def check(store: ReadOnlyStore, before: int) -> None:
    """Refuse what would be left behind. Raises StoreError."""
    if found := store.db.execute(BETWEEN, (NODES, NODE_LINKS)).fetchone():
        remedy = "start the broker again" if before > 1 else "start it as a node of its cluster until they have gone"
        raise StoreError(f"{store.path} has messages for another worker or node ({found[0]}): {remedy}")


class Divider:
    """The new stores while they are filled. `sessions`: those that they have."""

    def __init__(
        self, stores: list[Importer], worker_of: Callable[[bytes, int], int], stopping: threading.Event
    ) -> None:
        """`worker_of`: the number of a client identifier's store among so many; `stopping`: see `Stopped`."""
        self.sessions = 0
        self._stores = stores
        self._worker_of = worker_of
        self._stopping = stopping
        # Messages that several deliveries share, and broadcasts, are numbered anew: each former store has had numbers
        # of its own.
        self._numbers = count(1)
        self._broadcasts = count(1)
        # Subscriptions by which workers tell of members of share groups, and the sessions of workers: see `_join`.
        self._told: set[tuple[str, int]] = set()
        self._nodes: set[tuple[int, int]] = set()

    def take(self, store: ReadOnlyStore) -> None:
        """Bring in all that a former store has, but for what is retained, and broadcasts.

        Raises StoreError and Stopped.
        """
        with _reading(store):
            self._take(store)

    def _take(self, store: ReadOnlyStore) -> None:
        homes = self._homes(store)
        self.sessions += sum(not client_id.startswith(SHARE_PREFIX) for client_id, _ in homes.values())
        # By message: the workers that have it, a bit each, and its new number.
        users: dict[int, int] = {}
        for message, session in store.db.execute("SELECT message, session FROM delivery WHERE message NOT NULL"):
            if session in homes:
                users[message] = users.get(message, 0) | 1 << homes[session][1]
        numbers: dict[int, int] = {}
        for table in row_rules.TABLES:
            for row in rows_of(store, table) if table not in ("retained", "broadcast", "passed") else ():
                if table == "message":
                    to = users.get(row["id"], 0)
                    numbers[row["id"]] = row["id"] = next(self._numbers)
                else:
                    row["client_id"], home = homes.get(row["id" if table == "session" else "session"], ("", -1))
                    to = 0 if home < 0 else 1 << home
                    if table == "subscription" and home >= 0 and row["filter"].startswith(SHARE_PREFIX):
                        self._join(row["filter"], home)
                if row.get("message") is not None:
                    row["message"] = numbers.get(row["message"], 0)
                self._add(table, row, store.ahead, to)

    def _join(self, name: str, worker: int) -> None:
        """Let a share group have a member at a worker: where it lives elsewhere, that worker has told it so.

        Else the queue of the group, and what its members have left behind, would be for nobody until workers are linked
        with each other.
        """
        home = self._home(name)
        if home == worker or (name, worker) in self._told:
            return
        self._told.add((name, worker))
        for at, other in ((home, worker), (worker, home)):
            if (at, other) not in self._nodes:
                self._nodes.add((at, other))
                self._add("session", NODE_SESSION | {"client_id": NODES + name_of(other)}, 0.0, 1 << at)
        members = members_filter(NODES + name_of(home), MEMBERS, 0, *parse_shared(name))
        row = MEMBERS_SUBSCRIPTION | {"client_id": NODES + name_of(worker), "filter": members}
        self._add("subscription", row, 0.0, 1 << home)

    def _homes(self, store: ReadOnlyStore) -> dict[int, tuple[str, int]]:
        """Return the sessions of a former store and where each goes, but for those of links, which begin anew."""
        return {
            session: (client_id, self._home(client_id))
            for session, client_id in store.db.execute("SELECT id, client_id FROM session")
            if not client_id.startswith((NODES, NODE_LINKS))
        }

    def take_broadcasts(self, stores: list[ReadOnlyStore]) -> None:
        """Bring in the messages that a former process has left on their way to very many: after all sessions.

        Each goes on to the sessions that it was for: those of its store, and those of each worker whose link had not
        had it yet. Raises StoreError and Stopped.
        """
        for number, store in enumerate(stores):
            with _reading(store):
                broadcasts = list(rows_of(store, "broadcast"))
                if not broadcasts:
                    continue
                passed: dict[int, set[str]] = {row["id"]: set() for row in broadcasts}
                clients = dict(store.db.execute("SELECT id, client_id FROM session"))
                for row in rows_of(store, "passed"):
                    passed.get(row["broadcast"], set()).add(clients[row["session"]])
            links = set(clients.values())
            for row in broadcasts:
                had, row["id"] = passed[row["id"]], next(self._broadcasts)
                without: list[tuple[str, int]] = []
                for other, each in enumerate(stores):
                    link = NODES + name_of(other)
                    all_had = other != number and (link in had or link not in links)
                    with _reading(each):
                        without += [found for found in self._homes(each).values() if all_had or found[0] in had]
                with _reading(store):
                    self._add("broadcast", row, store.ahead, -1)
                    for client_id, home in without:
                        self._add("passed", {"broadcast": row["id"], "client_id": client_id}, 0.0, 1 << home)

    def take_retained(self, stores: list[ReadOnlyStore], presence: bytes) -> None:
        """Bring in what is retained, and cleared: all workers have all of it, the newest of each topic.

        A worker sends the others what its own clients have retained: so each message is one worker's own, and at the
        others a copy of that. `presence`: the topic below which each worker says which of its clients are
        connected, if there is one. Raises StoreError and Stopped.
        """
        newest: dict[str, tuple[int, str, bool, int, int]] = {}
        names = [column.name for column in self._stores[0].columns("retained")]
        for number, store in enumerate(stores):
            with _reading(store):
                for row, topic, publisher, properties in store.db.execute(
                    "SELECT rowid, topic, publisher, properties FROM retained"
                ):
                    mark, copied = read_mark(properties or b""), (publisher or "").startswith(NODE_LINKS)
                    # As workers decide it: of equal times the greater name.
                    name = publisher[len(NODE_LINKS) :] if copied else name_of(number)
                    found = (0 if mark is None else mark.at, name, not copied, number, row)
                    newest[topic] = max(newest.get(topic, found), found)
        # In the order in which they were set: the oldest may have to give way first.
        for _, _, own, number, key in sorted(newest.values(), key=lambda each: (each[0], *each[3:])):
            store = stores[number]
            with _reading(store):
                [values] = store.db.execute(f"SELECT {', '.join(names)} FROM retained WHERE rowid = ?", (key,))
                self._add_retained(dict(zip(names, values, strict=True)), store.ahead, own, presence)

    def _add_retained(self, row: dict[str, Any], ahead: float, own: bool, presence: bytes) -> None:
        home = 1 << self._home(row["publisher"] or "")
        if presence and is_within(row["topic"].encode(), presence) and (not own or row["publisher"] is None):
            # Which clients are connected is each worker's own to say, and none is.
            return
        if not own:
            # Its own worker has lost it: a copy for all.
            self._add("retained", row, ahead, -1)
        else:
            name = name_of(home.bit_length() - 1)
            copy = row | {"publisher": NODE_LINKS + name, "account": NODE_ACCOUNT + name}
            self._add("retained", copy, ahead, ~home)
            self._add("retained", row, ahead, home)

    def _home(self, client_id: str) -> int:
        """Return the store of a client; what is the broker's own, and its links to other brokers, are in the first."""
        if not client_id or client_id.startswith(UPLINKS):
            return 0
        return self._worker_of(client_id.encode(), len(self._stores))

    def _add(self, table: str, row: dict[str, Any], ahead: float, to: int) -> None:
        """Add a row to the stores of some workers, a bit each. `ahead`: what its times are ahead of the clock."""
        if self._stopping.is_set():
            raise Stopped
        for name in TIMES & row.keys():
            if row[name] is not None:
                row[name] -= ahead
        to &= (1 << len(self._stores)) - 1
        while to:
            worker = to.bit_length() - 1
            to ^= 1 << worker
            try:
                self._stores[worker].row(table, row)
            except FaultyRow as error:
                raise FaultyRow(f"a row of {table}: {error}") from error
