"""Opens the file of a store: which broker uses it, whether it can be used, and its version.

Owns the lock that keeps a second broker away, and the checks before anything is written. Promises: every error is one
line with the file, the fault and the remedy (`StoreError`); a file of another program, a damaged one, or one of another
version is never written to. The lock is a file of its own, so that the sqlite3 shell can read the tables while a broker
runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
from asyncio import Future
from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.files import check_files
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import Division, division, part
from canopy_mqtt.store.sqlite.reading import any_text, clock, is_damage, mend_ended, numbers
from canopy_mqtt.store.sqlite.rebuilding import SIDE_FILES, Rebuilt, finish, keep_names, make, put_aside, tables
from canopy_mqtt.store.sqlite.schema import APPLICATION, OLDEST_SQLITE, VERSION
from canopy_mqtt.store.times import Note

FILE: Final = "canopy.db"
PART: Final = f"{FILE}.part"
"""What `canopy store salvage` calls the new file until it is complete."""

REFUSE: Final = "refuse"
SET_ASIDE: Final = "set-aside"
"""The choices for a damaged file (`store.on_damage`)."""

OUR_TABLES: Final = (
    "SELECT count(*) FROM sqlite_schema WHERE name IN ('session', 'gone_session', 'delivery', 'retained')"
)
LOCK: Final = "canopy.lock"

MAGIC: Final = b"SQLite format 3\x00"

TOO_OPEN: Final = 0o027
"""Permissions that a file with payloads and user names never needs. A group may read it, as for a backup."""

BUSY_SECONDS: Final = 1.0
"""How long a transaction waits for another program that writes the file, such as the sqlite3 shell."""

STATEMENTS: Final = 64
"""Prepared statements that are kept: one for each length of each INSERT, and the others. The longest take 500 kB."""

AUTOCHECKPOINT: Final = 16_384
"""Pages of the log from which on a commit writes them back itself and delays its clients: the writer does it
earlier."""

MAX_LOG: Final = 64 * 1024 * 1024
"""Bytes to which the log is cut down when it has been written back."""

CACHE_KIBIBYTES: Final = 16_384
"""Pages of the file in memory."""


class DamagedFile(StoreError):
    """Bytes of the file have changed, so that it cannot be read as a whole."""


class Opened:
    """An open file and its lock. `notices`: what the operator should know, a line each; `rebuilt`: what came of a
    damaged file that was set aside."""

    def __init__(
        self, db: sqlite3.Connection, lock: int, path: Path, notices: list[str], rebuilt: Rebuilt | None = None
    ) -> None:
        self.db = db
        self.path = path
        self.notices = notices
        self.rebuilt = rebuilt
        self._lock = lock

    def close(self) -> None:
        try:
            self.db.close()
        finally:
            os.close(self._lock)


def open_store(directory: Path, synchronous: str, on_damage: str = REFUSE) -> Opened:
    """Open the store of a directory; directory and file are made where they are not there. `on_damage`: whether a
    damaged file is refused, or set aside.

    Raises:
        StoreError: it cannot be used, in one line for the operator. Then nothing was written to the file.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old for a store: give this Python {oldest} or newer")
    path = _file(directory)
    lock = lock_folder(path.parent)
    notices: list[str] = []
    rebuilt: Rebuilt | None = None
    try:
        _finish(path)
        try:
            new = not _check(path)
            # The log takes its permissions from the file.
            notices = [] if new else [line for each in SIDE_FILES for line in _tighten(Path(f"{path}{each}"))]
            db = _connect(path, new, synchronous, thorough=on_damage == SET_ASIDE)
        except DamagedFile:
            if on_damage != SET_ASIDE:
                raise
            rebuilt = put_aside(path)
            db = _connect(path, False, synchronous, thorough=True)
        notices += _open_folder(path.parent)
        if (part := path.with_name(PART)).exists():
            notices.append(f"{part} is what a killed canopy store salvage left: remove it, and salvage anew")
    except BaseException:
        os.close(lock)
        raise
    return Opened(db, lock, path, notices, rebuilt)


def _finish(path: Path) -> None:
    try:
        finish(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be put in its place ({error.strerror}): let the broker's user write there"
        ) from error


def _open_folder(directory: Path) -> list[str]:
    """Warn if others may write the folder, since they can replace the store. The mode is left to the folder's owner."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & (stat.S_IWOTH | stat.S_IWGRP) or mode & stat.S_ISVTX:
        return []
    return [f"{directory} may be written by others ({mode:04o}): chmod 700 it"]


def _tighten(path: Path) -> list[str]:
    """Take the permissions of others from a file that was restored or copied with the usual ones."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & TOO_OPEN:
            return []
        path.chmod(0o600)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path} is open to others ({mode:04o}), and stays so ({error.strerror}): chmod 600 it as its owner"]
    return [f"{path} was open to others ({mode:04o}): it is 0600 now"]


def _file(directory: Path) -> Path:
    """Return the file of a store. If it is a link, its lock stands beside the link's target: one file has one lock.

    Raises:
        StoreError: the folder has the stores of several workers, or the link leads nowhere.
    """
    found = division(directory)
    if found != Division(1):
        raise StoreError(
            f"{directory} has the stores of {found.workers} workers: start the broker with workers.count = "
            f"{found.workers}, or name the folder of one, {part(directory, 0)}"
        )
    path = directory / FILE
    try:
        return path.resolve() if path.is_symlink() else path
    except PermissionError:
        return path  # said by whoever opens it
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} is a link that leads nowhere: put the file in its place") from error


def lock_folder(directory: Path) -> int:
    """Return the descriptor that holds the lock of a directory; the system releases it with the process."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(f"{directory} is not a directory: name another one as store.path") from error
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be made ({error.strerror}): make it, owned by the broker's user"
        ) from error
    file = directory / LOCK
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        remedy = "let the broker's user write there"
        raise StoreError(f"{file} cannot be written ({error.strerror}): {remedy}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except BlockingIOError as error:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "?"
        os.close(lock)
        raise StoreError(f"{directory} is in use by process {holder}: stop that one, or name another store") from error
    except OSError as error:
        os.close(lock)
        remedy = "make room there" if error.errno == errno.ENOSPC else "put the store on a local disk"
        raise StoreError(f"{file} cannot be locked ({error.strerror}): {remedy}") from error
    return lock


def _check(path: Path) -> bytes:
    """Return the head of the file; empty: a new one is to be made. It is read without SQLite, which might change it."""
    try:
        check_files(path)
        with path.open("r+b") as file:
            head = file.read(100)
    except FileNotFoundError as error:
        if path.with_name(path.name + "-wal").exists():
            remedy = "put back the file, or move its log away too"
            raise StoreError(f"{path} is missing, and its log {path.name}-wal is there: {remedy}") from error
        return b""
    except OSError as error:
        remedy = "let the broker's user read and write it"
        raise StoreError(f"{path} cannot be opened ({error.strerror}): {remedy}") from error
    # One without content was being made when the process died.
    if head and head[:16] != MAGIC:
        raise DamagedFile(f"{path} is not an SQLite file: move it away, or restore it from a backup")
    return head


def fault(directory: Path) -> str:
    """Return why the file of a store cannot be used, as far as its first bytes say; empty: it can. Changes nothing."""
    try:
        path = _file(directory)
        head = _check(path)
    except StoreError as error:
        return str(error)
    # https://www.sqlite.org/fileformat.html: user version and application ID in the header.
    version, application = int.from_bytes(head[60:64], "big"), int.from_bytes(head[68:72], "big")
    if application not in (0, APPLICATION):
        return str(_of_another_program(path))
    return str(_of_another_version(path, version)) if application == APPLICATION and version != VERSION else ""


def _of_another_program(path: Path) -> StoreError:
    return StoreError(f"{path} is another program's SQLite file: name another directory as store.path")


def _of_another_version(path: Path, version: int) -> StoreError:
    return StoreError(
        f"{path} is of version {version}, and this broker's is {VERSION}: run the Canopy that wrote it, or export it"
        " with that one (canopy store export), move it away, and import the lines (canopy store import)"
    )


def _connect(path: Path, new: bool, synchronous: str, *, thorough: bool) -> sqlite3.Connection:
    if new:
        _touch(path)
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS,
        )
        # Pages that make no sense are told as damage, not worked with.
        db.execute("PRAGMA cell_size_check = ON")
        if not _ours(db, path):
            make(db)
            keep_names(path.parent)
        check(db, path, thorough=thorough)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT}")
        db.execute(f"PRAGMA journal_size_limit = {MAX_LOG}")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
        # Whether it can be written at all is to be known now, and not with the first message.
        db.execute("BEGIN IMMEDIATE")
        mend_ended(db)
        db.execute("COMMIT")
    except UnicodeDecodeError as error:  # of SQLite's message, which names what it cannot read
        if db is not None:
            db.close()
        raise _damaged(path, "its tables are not those of its version") from error
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise (DamagedFile if is_damage(error) else StoreError)(told(path, error)) from error
    except BaseException:
        if db is not None:
            db.close()
        raise
    return db


def check(db: sqlite3.Connection, path: Path, *, thorough: bool) -> None:
    """Check that tables and pages of a file are those of a store, but not that rows are whole. `thorough`: indexes too.

    Raises StoreError, and what SQLite raises.
    """
    with any_text(db):
        there = list(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2"))
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    noting = ("table", "canopy") in {row[:2] for row in there}
    if noting and db.execute("SELECT version FROM canopy").fetchall() != [(version,)]:
        raise _damaged(path, "it does not know its version")
    if noting and version != VERSION:
        raise _of_another_version(path, version)
    if there != list(tables()):
        raise _damaged(path, "its tables are not those of its version")
    [found] = db.execute("PRAGMA integrity_check(1)" if thorough else "PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _damaged(path, " ".join(found.split()))


def _damaged(path: Path, why: str) -> DamagedFile:
    return DamagedFile(f"{path}: {REMEDIES[sqlite3.SQLITE_CORRUPT]} ({why})")


def _touch(path: Path) -> None:
    """Create the file for the broker's user alone from the first moment on: who has it open once may read it for
    ever."""
    try:
        # SQLite takes an empty file, with its permissions.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        remedy = "let the broker's user write the directory"
        raise StoreError(f"{path} cannot be made ({error.strerror}): {remedy}") from error


def _ours(db: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is a store; False: it is empty."""
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    if application == APPLICATION:
        return True
    if db.execute(OUR_TABLES).fetchone()[0] == 4:
        raise _damaged(path, "it does not know whose it is")
    if application != 0 or db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise _of_another_program(path)
    return False


REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: "the disk has an error: look at the system's log",
    sqlite3.SQLITE_READONLY: "it cannot be written: let the broker's user write it, or mount it for writing",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: let the broker's user write the directory",
    sqlite3.SQLITE_BUSY: "another program is writing it: end that one",
    sqlite3.SQLITE_LOCKED: "another program is writing it: end that one",
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it from a backup, or keep what is whole (canopy store salvage)",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite file, or its first page is damaged: restore it from a backup, or keep"
    " what is whole (canopy store salvage)",
    sqlite3.SQLITE_PERM: "no permission: let the broker's user read and write it",
}
"""The operator's remedy, by the primary code of SQLite's error."""


def told(path: Path, error: Exception) -> str:
    """Describe an error of SQLite in one line: the file, the fault, the remedy."""
    code = getattr(error, "sqlite_errorcode", None)
    what = " ".join(str(error).split())
    remedy = "" if code is None else REMEDIES.get(code & 0xFF, "")
    return f"{path}: {remedy} ({what})" if remedy else f"{path}: {what}"


class OpenedForBroker(NamedTuple):
    """An open file, the highest numbers in it, and how the clocks stood when the last broker noted it."""

    opened: Opened
    highest: tuple[int, int, int]
    note: Note | None


def open_for_broker(directory: Path, synchronous: str, on_damage: str = REFUSE) -> OpenedForBroker:
    """Open the store of a directory for a broker. Raises StoreError; nothing is open then."""
    opened = open_store(directory, synchronous, on_damage)
    try:
        return OpenedForBroker(opened, numbers(opened.db), clock(opened.db))
    except sqlite3.Error as error:
        opened.close()
        raise StoreError(told(opened.path, error)) from error


def close_unused(beginning: Future[OpenedForBroker]) -> None:
    """Close a store that was opened after its broker had given up the start."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().opened.close()
