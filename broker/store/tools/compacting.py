"""Rewrites a store without its empty pages, while no broker uses it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from broker.store.base import StoreError
from broker.store.sqlite.opening import open_store, told
from broker.store.sqlite.sweeping import Sweep
from broker.store.tools.looking import file_of


def compact(directory: Path) -> tuple[int, int]:
    """Rewrite the file of a directory; bytes before and after.

    Raises:
        StoreError: there is none, a broker uses it, or it cannot be written; it is as it was then.
    """
    file_of(directory)
    store = open_store(directory, "full")
    try:
        db = store.db
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        before = store.path.stat().st_size
        sweep = Sweep(db)
        while sweep.piece():
            pass
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return before, store.path.stat().st_size
    except sqlite3.Error as error:
        raise StoreError(told(store.path, error)) from error
    finally:
        store.close()
