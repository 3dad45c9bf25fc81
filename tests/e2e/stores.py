"""Where the daemons of a test keep what outlives them: a folder, or a schema of a database."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.support import postgresql

LEASE: Final = 1.0
"""Seconds that a broker waits for one that was killed before it."""

AWAY: Final = "UPDATE session SET disconnected_at = disconnected_at - {0}, will_due = will_due - {0}"
EXPIRY: Final = "UPDATE {1} SET expires_at = expires_at - {0}"
ALONE: Final = "SELECT count(*) FROM delivery WHERE size IS NOT NULL AND state = 0"


class Kept(ABC):
    """One store. What is asked of it is asked from a thread, or while no broker runs."""

    def __init__(self, place: str, *flags: str) -> None:
        self.place = place
        self.flags = flags

    @abstractmethod
    def change(self, *statements: str) -> None:
        """The tables are plain enough to be changed by hand."""

    @abstractmethod
    def count(self, statement: str) -> int:
        """The one number that a statement gives."""

    def on_disk_alone(self) -> int:
        """Messages that the store has for a broker which counts them, and has none of them in memory."""
        return self.count(ALONE)

    def pass_(self, seconds: float) -> None:
        """Everything in the store happened so much earlier."""
        tables = ("message", "delivery", "retained")
        self.change(AWAY.format(seconds), *(EXPIRY.format(seconds, table) for table in tables))


class InFile(Kept):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), "--store", str(folder))
        self.folder = folder

    def change(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / "canopy.db")) as db, db:
            for statement in statements:
                db.execute(statement)

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

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.server.ask(f'SET search_path = "{self.name}"', then=statement)

    def count(self, statement: str) -> int:
        [[found]] = self.server.ask(f'SET search_path = "{self.name}"', then=statement)
        return int(found)


def kept(kind: str, folder: Path) -> Kept:
    """A new one: `sqlite` or `postgresql`."""
    return InFile(folder) if kind == "sqlite" else InDatabase(postgresql.shared())
