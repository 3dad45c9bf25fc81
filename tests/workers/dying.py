"""A move of sessions that is killed by itself: KILLED_AT is the number of the step before which it happens, from 0.

A step is a change of a folder, a sync that Python makes, or a transaction of a store, which begins, is committed, or is
written back to the file. Arguments are those of `moving.rebuild`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.workers import moving

MODULE: Final = __name__
"""What `tests.support.forked` runs the `main` of."""

STATEMENTS: Final = ("BEGIN IMMEDIATE", "COMMIT", "PRAGMA wal_checkpoint(TRUNCATE)")


class Doom:
    """What is left until the end."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def stepping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **named: Any) -> Any:
            self.step()
            return function(*arguments, **named)

        return stepped

    def said(self, statement: str) -> None:
        if statement in STATEMENTS:
            self.step()


def main() -> None:
    """Move sessions, and be killed by that."""
    doom = Doom(int(os.environ["KILLED_AT"]))
    owners = ((Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (Path, "rmdir"), (shutil, "rmtree"), (os, "fsync"))
    for owner, name in owners:
        setattr(owner, name, doom.stepping(getattr(owner, name)))
    connect = sqlite3.connect

    def connected(*arguments: Any, **named: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*arguments, **named)
        db.set_trace_callback(doom.said)
        return db

    setattr(sqlite3, "connect", connected)  # noqa: B010 (a function, which mypy would not have assigned to)
    folder, before, after = sys.argv[1:]
    moving.rebuild(Path(folder), int(before), int(after))
