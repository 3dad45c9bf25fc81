"""Moves the sessions in a store's folder to another number of workers, before any client comes.

Owns the steps, of which each can be interrupted: the workers of the former number run without clients until none has a
message for another one; then a new store is filled at the place of each worker, in the folder `next` there; then the
file `workers` says that these count, the old ones are removed, it says that, too, and the new ones take their places.
Whatever ends the process, the next start goes on: the old stores are whole until the new ones are on the disk. Only
files are renamed, within a place: that may be a link, or a disk of its own.

Promises: a store that counts and is not there ends each start, and so does one that is there and does not count; none
is removed that has not been read. So the files of new stores are there, empty, before the number counts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from canopy_mqtt.assembly import daemon
from canopy_mqtt.assembly.logwriter import BackgroundWriter
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Http, Recorder, Settings
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import FILE as NUMBER
from canopy_mqtt.store.division import MOST, Division, division, note, part
from canopy_mqtt.store.sqlite.opening import CACHE_KIBIBYTES, FILE, LOCK, lock_folder, open_store
from canopy_mqtt.store.sqlite.rebuilding import SIDE_FILES, keep_names
from canopy_mqtt.store.tools.dividing import Divider, check
from canopy_mqtt.store.tools.importing import filling
from canopy_mqtt.store.tools.read_only import ReadOnlyStore, open_read_only
from canopy_mqtt.store.tools.verifying import verify
from canopy_mqtt.workers.crew import Crew
from canopy_mqtt.workers.parts import TOTALS
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.process import WorkerError, nursery
from canopy_mqtt.workers.wire import Arrival

NEXT: Final = "next"
"""The folder of a new store at its place, until it counts."""

MIN_CACHE: Final = 512
"""KiB of pages in memory that a new store has at least, where many share what one has."""

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def join_stores(settings: Settings, log: Any, people: bool, output: BackgroundWriter) -> bool:
    """Move the sessions of several workers into the store of one process. Returns False if a signal stopped it.

    SIGTERM and SIGINT stop it in order; a second one ends the process at once, and no thread of it goes on when the
    lock is free. `output` takes the lines of the workers' logs; other arguments, and errors, are those of `take_store`.
    """

    async def join() -> None:
        this = asyncio.current_task()
        assert this is not None
        daemon.stop_on_signals(asyncio.get_running_loop(), output, this.cancel, this.cancelling)
        os.close(await take_store(settings, log, people, output.write))

    try:
        asyncio.run(join())
    except asyncio.CancelledError:
        return False
    finally:
        # There are no workers any more.
        nursery().close()
    return True


async def take_store(settings: Settings, log: Any, people: bool, write: Callable[[str], object]) -> int:
    """Take the folder of the store, with the sessions where this number of workers has them; -1: there is no store.

    The other arguments are those of `Crew`. Where it is cancelled, the lock is free again, and the next start goes on.

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
            there = await _in_thread(None, _finish, folder)
            if not await asyncio.to_thread(_has_stores, folder, there):
                await _in_thread(None, _begin, folder, workers)
            elif there != workers:
                await _move(settings, folder, there, log, people, write)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror}"
        raise StartupError(f"{what}: let the broker's user write there, and start it again") from error
    except (StoreError, WorkerError) as error:
        raise StartupError(str(error)) from error
    return lock


async def _in_thread(
    stopping: threading.Event | None, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
) -> _Result:
    """Do this in a thread, and wait for its end also where this is cancelled: the lock is held until then."""
    done = asyncio.ensure_future(asyncio.to_thread(work, *given, **named))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if stopping is not None:
            stopping.set()
        await asyncio.wait((done,))
        with suppress(Exception):
            done.result()
        raise


def _finish(folder: Path) -> int:
    """Finish what an earlier process had begun, or forget it; return of how many workers the stores are."""
    found = division(folder)
    if found.before:
        _replace(folder, found)
    for each in (folder, *_parts(folder)):
        if (each / NEXT).exists():
            shutil.rmtree(each / NEXT, ignore_errors=True)
            # One that was made for that is empty.
            with suppress(OSError):
                each.rmdir()
    return found.workers


async def _move(
    settings: Settings, folder: Path, there: int, log: Any, people: bool, write: Callable[[str], object]
) -> None:
    workers = settings.workers.count
    log.warning("sessions are moved to another number of workers", before=there, after=workers)
    if there > 1:
        crew = Crew(_former(settings, there), log, people, write, 0, _nobody)
        try:
            await crew.start([0] * len(settings.listeners))
            await crew.drain()
        finally:
            await crew.stop()
    stopping = threading.Event()
    sessions = await _in_thread(stopping, rebuild, folder, there, workers, settings.presence.topic, stopping)
    log.warning("sessions are moved", before=there, after=workers, sessions=sessions)


def _has_stores(folder: Path, workers: int) -> bool:
    """Return whether one of the stores of this number of workers has been opened; False: all are new.

    Raises StoreError: one is missing, or there is one that does not count.
    """
    places = _places(folder, workers)
    whose = f"the stores of {workers} workers" if workers > 1 else "the store of one process"
    missing = [place / FILE for place in places if not (place / FILE).exists()]
    if missing and workers > 1:
        raise StoreError(
            f"{missing[0]} is missing, and {folder} should have {whose}: put it back (its disk may not be mounted); if "
            "it is lost, make an empty file in its place"
        )
    others = [each / FILE for each in (folder, *_parts(folder)) if each not in places and _opened_before(each)]
    if others:
        raise StoreError(
            f"{others[0]} is there, and {folder} should have {whose} alone: move it away, or if it belongs to them "
            f"write how many workers they are of into {folder / NUMBER}"
        )
    return any(map(_opened_before, places))


def _opened_before(place: Path) -> bool:
    """Return whether a store has been opened there; a new one is an empty file."""
    file = place / FILE
    return file.exists() and file.stat().st_size > 0


def _begin(folder: Path, workers: int) -> None:
    """Make the stores of this number of workers, as empty files, before the number counts. Raises OSError.

    That of one process is made by its broker.
    """
    places = _places(folder, workers)
    for place in places if workers > 1 else ():
        place.mkdir(mode=0o700, exist_ok=True)
        (place / FILE).touch(mode=0o600)
        keep_names(place)
    keep_names(folder)
    note(folder, Division(workers))
    for each in (folder, *_parts(folder)):
        if each not in places and (each / FILE).exists():
            (each / FILE).unlink()
            with suppress(OSError):
                each.rmdir()


def _former(settings: Settings, workers: int) -> Settings:
    """Return the settings of another number of workers, without what one process alone can have, and without limits on
    what all keep together."""
    update: dict[str, Any] = {
        "workers": settings.workers.model_copy(update={"count": workers}),
        "http": Http(),
        "recorder": Recorder(),
    }
    for section, name in (*TOTALS, ("limits", "max_user_bytes")):
        # What one has for another one finds room there, though it counts at both for a moment.
        update[section] = update.get(section, getattr(settings, section)).model_copy(update={name: 0})
    return settings.model_copy(update=update)


def _nobody(arrival: Arrival, sock: socket.socket) -> None:
    """Close a connection: there are no clients."""
    del arrival
    sock.close()


def _places(folder: Path, workers: int) -> list[Path]:
    """Return the folders of the stores of this number of workers."""
    return [folder] if workers == 1 else [part(folder, worker) for worker in range(workers)]


def _parts(folder: Path) -> list[Path]:
    """Return the folders of workers that are there."""
    return [place for place in (part(folder, worker) for worker in range(MOST)) if place.is_dir()]


# -- filling the new stores --------------------------------------------------------------------------------------------


def rebuild(folder: Path, before: int, after: int, presence: str = "", stopping: threading.Event | None = None) -> int:
    """Fill the stores of another number of workers, and have them count. Returns the number of sessions.

    `presence`: the topic below which each worker says which of its clients are connected; empty: none does. `stopping`:
    set by another thread that wants it to end.

    Raises:
        StoreError: a store cannot be read, or has what another number of workers cannot have; nothing has changed.
        OSError: of the file that it names; nothing has changed, or the next start goes on.
        Stopped: `stopping` was set; nothing has changed.
    """
    places = _places(folder, after)
    for each in places:
        each.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        stores = [stack.enter_context(_opened(each, before)) for each in _places(folder, before)]
        for store in stores:
            check(store, before)
        share = max(CACHE_KIBIBYTES // after, MIN_CACHE)
        new = [stack.enter_context(filling(each / NEXT, share)) for each in places]
        divider = Divider(new, worker_of, stopping or threading.Event())
        for store in stores:
            divider.take(store)
        divider.take_broadcasts(stores)
        divider.take_retained(stores, presence.encode())
    # Names that are new are on the disk before they count.
    for each in {folder, *places}:
        keep_names(each)
    moved = Division(after, before)
    note(folder, moved)
    _replace(folder, moved)
    return divider.sessions


@contextmanager
def _opened(place: Path, before: int) -> Iterator[ReadOnlyStore]:
    """Open a former store for reading. Raises StoreError: it is damaged, or in use."""
    with ExitStack() as stack:
        if before > 1:
            # As a broker does, which repairs what a killed one left; its lock is held.
            store = open_store(place, "full")
            store.db.close()
            stack.callback(store.close)
        else:
            # No broker has looked at it, and left out what is damaged: that shall get no right checksums here.
            if line := next(verify(place), ""):
                raise StoreError(f"{place / FILE} is damaged ({line}): start it with workers.count = 1, which mends it")
        yield stack.enter_context(open_read_only(place))


# -- replacing the old ones --------------------------------------------------------------------------------------------


def _replace(folder: Path, moved: Division) -> None:
    """Put the new stores into the places of the old ones, which count no more. Raises OSError and StoreError."""
    places = _places(folder, moved.workers)
    if not moved.placed:
        # No new store has its place yet: those in the places are old.
        for place in places:
            _look_for(place / NEXT / FILE)
        for each in _places(folder, moved.before):
            _remove(each)
            if each not in places and each != folder:
                (each / LOCK).unlink(missing_ok=True)
                # A link or another disk stays, and what else an operator has there.
                with suppress(OSError):
                    each.rmdir()
            if each.is_dir():
                keep_names(each)
        moved = moved._replace(placed=True)
        note(folder, moved)
    for place in places:
        new = place / NEXT / FILE
        if new.exists():
            new.rename(place / FILE)
        _look_for(place / FILE)
        keep_names(place)
    for place in places:
        shutil.rmtree(place / NEXT, ignore_errors=True)
    note(folder, Division(moved.workers))


def _look_for(file: Path) -> None:
    if not file.exists():
        raise StoreError(f"{file} is missing, a new store that was complete: put it back (its disk may not be mounted)")


def _remove(place: Path) -> None:
    """Remove a store, with what SQLite has beside it; its file may be a link."""
    path = place / FILE
    for file in (path.resolve(), path):
        for side in reversed(SIDE_FILES):
            file.with_name(file.name + side).unlink(missing_ok=True)
