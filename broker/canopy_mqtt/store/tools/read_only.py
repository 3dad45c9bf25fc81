"""Opens the file of a store for reading, beside a broker that may be running.

Owns how that is done without changing anything: no lock is held, and the file is opened for reading. Promises:
everything that is read is of one moment. Faults are `StoreError`, in one line.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from canopy_mqtt.files import check_files
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import FILE as WORKERS
from canopy_mqtt.store.division import part
from canopy_mqtt.store.sqlite.opening import BUSY_SECONDS, FILE, LOCK, REMEDIES, told
from canopy_mqtt.store.sqlite.reading import clock
from canopy_mqtt.store.sqlite.schema import APPLICATION, VERSION
from canopy_mqtt.store.times import ahead_of_wall


class ReadOnlyStore:
    """An open file, as of one moment. `ahead`: seconds by which its times are ahead of the system's clock."""

    def __init__(self, db: sqlite3.Connection, path: Path, version: int, ahead: float) -> None:
        self.db = db
        self.path = path
        self.version = version
        self.ahead = ahead


def file_of(directory: Path) -> Path:
    """The file of a store that is there. Raises StoreError: there is none, or it is no file that can be read."""
    path = directory / FILE
    try:
        if not path.exists():
            if (directory / WORKERS).exists():
                first = part(directory, 0)
                raise StoreError(f"{directory} holds the stores of several workers: name the folder of one, as {first}")
            raise StoreError(f"{directory} holds no store ({FILE}): name the folder of store.path")
        # SQLite would wait for whoever writes to a FIFO.
        check_files(path)
        return path.resolve() if path.is_symlink() else path
    except OSError as error:
        remedy = "be the broker's user, or root" if isinstance(error, PermissionError) else "name another folder"
        raise StoreError(f"{path} cannot be read ({error.strerror}): {remedy}") from error


def process_using(path: Path) -> int | None:
    """Return the process that has the store open as its own; None: none has; 0: one that did not say."""
    try:
        lock = os.open(path.parent / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        told_by = os.pread(lock, 20, 0).decode(errors="replace").strip()
        return int(told_by) if told_by.isdecimal() else 0
    except OSError:
        return None
    finally:
        os.close(lock)
    return None


@contextmanager
def open_read_only(directory: Path) -> Iterator[ReadOnlyStore]:
    """Open the store of a directory to read it. Raises StoreError."""
    path = file_of(directory)
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("BEGIN")
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise StoreError(f"{path} is not a store of Canopy: name the folder of store.path")
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version != VERSION:
            raise StoreError(f"{path} is of version {version}, and not {VERSION}: use the canopy that wrote it")
        yield ReadOnlyStore(db, path, version, ahead_of_wall(clock(db)))
    except sqlite3.Error as error:
        raise StoreError(told(path, error)) from error
    except UnicodeDecodeError as error:  # of SQLite's message, which names what it cannot read
        raise StoreError(f"{path}: {REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error
    finally:
        if db is not None:
            db.close()
