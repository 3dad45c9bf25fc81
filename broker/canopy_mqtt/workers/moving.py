"""Moves the sessions in a store's folder to another number of workers, before any client comes.

Owns the steps, of which each can be interrupted: the workers of the former number run without clients until none has a
message for another one; then new stores are filled beside the old ones, in the folder `next`; then the file `workers`
says that these count, and they take the places of the old ones. Whatever ends the process, the next start goes on: the
old stores are whole until the new ones are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.nodes import NODE_LINKS, NODES
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Http, Recorder, Settings
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import Division, division, note, part
from canopy_mqtt.store.sqlite.opening import FILE, lock_folder, open_store, told
from canopy_mqtt.store.tools import row_rules
from canopy_mqtt.store.tools.exporting import TIMES, rows_of
from canopy_mqtt.store.tools.importing import FaultyRow, Importer, filling
from canopy_mqtt.store.tools.read_only import ReadOnlyStore, open_read_only
from canopy_mqtt.workers.crew import Crew
from canopy_mqtt.workers.lines import Room
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.plan import name_of
from canopy_mqtt.workers.process import WorkerError
from canopy_mqtt.workers.wire import Arrival

NEXT: Final = "next"
"""The folder of the new stores, until they count."""

SHARED: Final = "$share/"

MAX_STORES: Final = 64
"""Former stores at most, of which each has numbers of its own for its messages."""


async def take_store(settings: Settings, log: Any, people: bool, write: Callable[[str], object]) -> int:
    """Take the folder of the store, with the sessions where this number of workers has them; -1: there is no store.

    The other arguments are those of `Crew`.

    Returns:
        The descriptor of its lock.

    Raises:
        StartupError: it is in use, or its sessions cannot be moved.
    """
    if not settings.store.path:
        return -1
    folder, workers = Path(settings.store.path), settings.workers.count
    try:
        lock = await asyncio.to_thread(lock_folder, folder)
        try:
            there = await asyncio.to_thread(_finish, folder)
            if there != workers:
                await _move(settings, folder, there, log, people, write)
        except BaseException:
            os.close(lock)
            raise
    except (StoreError, WorkerError) as error:
        raise StartupError(str(error)) from error
    return lock


def _finish(folder: Path) -> int:
    """Finish what an earlier process had begun; return of how many workers the stores are."""
    found = division(folder)
    if found.moved:
        _replace(folder, found.workers)
    shutil.rmtree(folder / NEXT, ignore_errors=True)
    return division(folder).workers


async def _move(
    settings: Settings, folder: Path, there: int, log: Any, people: bool, write: Callable[[str], object]
) -> None:
    workers = settings.workers.count
    if there == 1 and not (folder / FILE).exists():
        await asyncio.to_thread(note, folder, Division(workers))
        return
    log.warning("sessions are moved to another number of workers", before=there, after=workers)
    if there > 1:
        crew = Crew(_former(settings, there), log, people, write, Room(0), _nobody)
        try:
            await crew.start([0] * len(settings.listeners))
            await crew.drain()
        finally:
            await crew.stop()
    sessions = await asyncio.to_thread(rebuild, folder, there, workers)
    log.warning("sessions are moved", before=there, after=workers, sessions=sessions)


def _former(settings: Settings, workers: int) -> Settings:
    """Return the settings of another number of workers, without what one process alone can have."""
    update = {
        "workers": settings.workers.model_copy(update={"count": workers}),
        "http": Http(),
        "recorder": Recorder(),
        "upstream": (),
    }
    made = settings.model_copy(update=update)
    if "listen" not in settings.model_fields_set:
        # Beside tables the default does not apply.
        made.model_fields_set.discard("listen")
    return made


def _nobody(arrival: Arrival, sock: socket.socket) -> None:
    """Close a connection: there are no clients."""
    del arrival
    sock.close()


def rebuild(folder: Path, before: int, after: int) -> int:
    """Fill the stores of another number of workers, and have them count. Returns the number of sessions.

    Raises:
        StoreError: a store cannot be read, or has what another number of workers cannot have; nothing has changed.
    """
    old = [folder] if before == 1 else [part(folder, worker) for worker in range(before)]
    sessions = 0
    with ExitStack() as stack:
        stores = []
        for each in old:
            # What a killed process left is brought in order, and nobody else has it open.
            stack.callback(_opened(each, whole=before > 1))
            stores.append(stack.enter_context(open_read_only(each)))
        if after > 1:
            _check(stores)
        for worker in range(after):
            new = folder / NEXT / name_of(worker) if after > 1 else folder / NEXT
            with filling(new) as importer:
                for number, store in enumerate(stores):
                    sessions += _fill(importer, store, number, worker, after)
    note(folder, Division(after, moved=True))
    _replace(folder, after)
    return sessions


def _opened(folder: Path, whole: bool) -> Callable[[], None]:
    """Open a store as a broker does, which repairs what a killed one left, and close it again.

    `whole`: hold its lock until the returned function is called; the folder of one process is locked already.
    """
    if not whole:
        return lambda: None
    store = open_store(folder, "full")
    store.db.close()
    return store.close


def _check(stores: list[ReadOnlyStore]) -> None:
    """Refuse what several workers cannot have. Raises StoreError."""
    for store in stores:
        for table, column in (("subscription", "filter"), ("session", "client_id")):
            query = f"SELECT count(*) FROM {table} WHERE substr({column}, 1, {len(SHARED)}) = ?"
            if store.db.execute(query, (SHARED,)).fetchone()[0]:
                raise StoreError(
                    f"{store.path.parent} has shared subscriptions, whose groups are moved to one process only: start "
                    "it with the number of workers that it had, or with workers.count = 1"
                )


def _fill(importer: Importer, store: ReadOnlyStore, number: int, worker: int, workers: int) -> int:
    """Bring the rows of one former store into the store of a worker. Returns how many sessions these are."""
    clients = dict(_clients(store, worker, workers))
    try:
        used = {
            message
            for message, session in store.db.execute("SELECT message, session FROM delivery WHERE message NOT NULL")
            if session in clients
        }
        for table in row_rules.TABLES:
            if table in ("retained", "broadcast") and number:
                # All have the same retained messages; and a broadcast is over in a broker that has ended in order.
                continue
            for row in rows_of(store, table):
                if (values := _moved(row, table, clients, used, number, store.ahead)) is not None:
                    importer.row(table, values)
    except FaultyRow as error:
        raise StoreError(f"{store.path}: a row of {table}: {error}: see canopy store verify") from error
    except sqlite3.Error as error:
        raise StoreError(told(store.path, error)) from error
    return len(clients)


def _clients(store: ReadOnlyStore, worker: int, workers: int) -> Iterator[tuple[int, str]]:
    """Yield the sessions that belong to a worker: their numbers in their former store, and client identifiers."""
    for session, client_id in store.db.execute("SELECT id, client_id FROM session"):
        if client_id.startswith((NODES, NODE_LINKS)):
            # Of links between workers, which begin anew. What waited there was drained.
            if store.db.execute("SELECT count(*) FROM delivery WHERE session = ?", (session,)).fetchone()[0]:
                raise StoreError(f"{store.path} has messages for another worker: start the broker again")
        elif workers == 1 or (
            worker == 0 if client_id.startswith(UPLINKS) else worker_of(client_id.encode(), workers) == worker
        ):
            yield session, client_id


def _moved(
    row: dict[str, Any], table: str, clients: Mapping[int, str], used: set[int], number: int, ahead: float
) -> Mapping[str, Any] | None:
    """Return a row as it comes into the new store; None: it does not."""
    if table == "session":
        if row["id"] not in clients:
            return None
    elif table == "message" and row["id"] not in used:
        return None
    if "session" in row:
        client_id = clients.get(row.pop("session"))
        if client_id is None:
            return None
        row["client_id"] = client_id
    for name in ("id", "message") if table in ("message", "delivery") else ():
        if row.get(name) is not None:
            # The same number may be another message's in another store.
            row[name] = row[name] * MAX_STORES + number
    for name in TIMES & row.keys():
        if row[name] is not None:
            row[name] -= ahead
    return row


def _replace(folder: Path, workers: int) -> None:
    """Put the new stores into the places of the old ones, which count no more."""
    made = folder / NEXT
    if workers > 1:
        for worker in range(workers):
            new = made / name_of(worker)
            if new.exists():
                shutil.rmtree(part(folder, worker), ignore_errors=True)
                new.rename(part(folder, worker))
        _remove_file(folder)
    else:
        if (made / FILE).exists():
            _remove_file(folder)
            (made / FILE).rename(folder / FILE)
    for each in folder.glob("w[0-9]*"):
        if workers == 1 or (each.name[1:].isdecimal() and int(each.name[1:]) >= workers):
            shutil.rmtree(each, ignore_errors=True)
    shutil.rmtree(made, ignore_errors=True)
    note(folder, Division(workers))


def _remove_file(folder: Path) -> None:
    """Remove the store of one process, with what SQLite has beside it."""
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
