"""Opens the file of a store in a thread, and reads its last numbers."""

from __future__ import annotations

import sqlite3
from asyncio import Future
from pathlib import Path
from typing import NamedTuple

from broker.store.base import StoreError
from broker.store.sqlite.opening import REFUSE, Opened, open_store, told
from broker.store.sqlite.reading import clock, numbers
from broker.store.times import Note


class Begun(NamedTuple):
    """An open file, the highest numbers in it, and how the clocks stood when the last broker noted it."""

    opened: Opened
    highest: tuple[int, int, int]
    note: Note | None


def begin(directory: Path, synchronous: str, on_damage: str = REFUSE) -> Begun:
    """Open the store of a directory for a broker. Raises StoreError; nothing is open then."""
    opened = open_store(directory, synchronous, on_damage)
    try:
        return Begun(opened, numbers(opened.db), clock(opened.db))
    except sqlite3.Error as error:
        opened.close()
        raise StoreError(told(opened.path, error)) from error


def let_go(beginning: Future[Begun]) -> None:
    """Close a file that nobody waits for any more."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().opened.close()
