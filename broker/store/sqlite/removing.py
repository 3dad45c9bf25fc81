"""Finds the files of former workers' stores, and removes empty ones."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from broker.store.base import Part, StoreError
from broker.store.parts import FOLDER, REMAINS
from broker.store.sqlite.opening import FILE, LOCK, open_store, told

FILES: Final = (f"{FILE}-wal", f"{FILE}-shm", FILE, LOCK)
"""What goes, in this order: a log without its file would be taken for a loss."""


def parts(directory: Path) -> list[Part]:
    """The stores of workers in the folder of the first one's. Raises StoreError."""
    try:
        found = [(FOLDER.fullmatch(each.name), each) for each in directory.iterdir() if (each / FILE).exists()]
    except (FileNotFoundError, NotADirectoryError):
        return []  # opening it says what is wrong
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error.strerror}") from error
    return sorted(Part(int(name[1]), str(each)) for name, each in found if name is not None)


def remove(directory: Path) -> None:
    """Remove a store that has no session of a client. Raises StoreError."""
    opened = open_store(directory, "full")
    try:
        for what, statement in REMAINS:
            if count := opened.db.execute(statement).fetchone()[0]:
                raise StoreError(f"{opened.path} is not removed: {count} {what} are in it")
        # The lock is held until all of it has gone.
        opened.db.close()
        for name in FILES:
            (directory / name).unlink(missing_ok=True)
    except sqlite3.Error as error:
        raise StoreError(told(opened.path, error)) from error
    except OSError as error:
        raise StoreError(f"{opened.path} cannot be removed: {error.strerror}") from error
    finally:
        opened.close()
    # What else is there stays, and the folder with it.
    with contextlib.suppress(OSError):
        directory.rmdir()
