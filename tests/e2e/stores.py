"""Where the daemons of a test keep what outlives them: a folder, or a schema of a database."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.store.times import Note
from tests.support import postgresql

LEASE: Final = 1.0
"""Seconds that a broker waits for one that was killed before it."""

ALONE: Final = "SELECT count(*) FROM delivery WHERE size IS NOT NULL AND state = 0"


class Kept(ABC):
    """One store. What is asked of it is asked from a thread, or while no broker runs."""

    def __init__(self, place: str, *flags: str) -> None:
        self.place = place
        self.flags = flags

    @abstractmethod
    def pass_(self, seconds: float) -> None:
        """Let so much time go by until the next broker: the last note of the clocks becomes so much older."""

    @abstractmethod
    def count(self, statement: str) -> int:
        """The one number that a statement gives."""

    def on_disk_alone(self) -> int:
        """Messages that the store has for a broker which counts them, and has none of them in memory."""
        return self.count(ALONE)


def _older(found: Sequence[Any], seconds: float) -> tuple[float, float, float, str, int]:
    """The note of the clocks in a row, so many seconds older, as a row."""
    time, wall, uptime, boot = float(found[0]), float(found[1]), float(found[2]), str(found[3])
    return Note(time, wall - seconds, uptime - seconds, boot).row()


class InFile(Kept):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), "--store", str(folder))
        self.folder = folder

    def pass_(self, seconds: float) -> None:
        with closing(sqlite3.connect(self.folder / "canopy.db")) as db, db:
            found = db.execute("SELECT time, wall, uptime, boot FROM clock").fetchone()
            db.execute(
                "UPDATE clock SET time = ?, wall = ?, uptime = ?, boot = ?, checksum = ?", _older(found, seconds)
            )

    def count(self, statement: str) -> int:
        with closing(sqlite3.connect(self.folder / "canopy.db")) as db:
            found: int = db.execute(statement).fetchone()[0]
        return found


class InDatabase(Kept):
    """A schema."""

    def __init__(self, server: postgresql.Server) -> None:
        self.server = server
        self.name = postgresql.new_name()
        super().__init__(
            f"postgresql://127.0.0.1:{server.port}/postgres, schema {self.name}",
            *("--store", server.url, "--set", f"store.name={self.name}", "--set", f"store.lease_timeout={LEASE}"),
        )

    def pass_(self, seconds: float) -> None:
        path = f'SET search_path = "{self.name}"'
        [found] = self.server.ask(path, then="SELECT time, wall, uptime, boot FROM owner")
        time, wall, uptime, boot, checksum = _older(found, seconds)
        self.server.ask(
            path,
            then=f"UPDATE owner SET time = {time!r}, wall = {wall!r}, uptime = {uptime!r}, boot = '{boot}',"
            f" clock_checksum = {checksum}",
        )

    def count(self, statement: str) -> int:
        [[found]] = self.server.ask(f'SET search_path = "{self.name}"', then=statement)
        return int(found)


def kept(kind: str, folder: Path) -> Kept:
    """A new one: `sqlite` or `postgresql`."""
    return InFile(folder) if kind == "sqlite" else InDatabase(postgresql.shared())
