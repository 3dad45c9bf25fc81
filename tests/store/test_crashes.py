"""A file of SQLite on a disk that fails: what a crash leaves is a prefix."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.sqlite import SqliteStore
from canopy_mqtt.store.sqlite.writer import Written
from tests.store.crashes import survive
from tests.store.sqlite.place import see


class OnDisk:
    """A SQLite file; the disk fails."""

    turn = 0.0

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="canopy-crashes-"))
        self.copies = 0
        self.failures: list[bool] = []
        # Groups end when the loop has a turn.
        self.store = SqliteStore(self.folder / "store", synchronous="off", commit_window=0.0, commit_bytes=5_000)

    def hurt(self) -> None:
        writer = self.store._writer
        assert writer is not None
        self.write = writer.write
        writer.write = self.perhaps  # type: ignore[method-assign]

    def perhaps(self, batch: Batch) -> Written:
        """In the writer's thread."""
        if self.failures:
            self.failures.pop()
            return Written(batch, sqlite3.OperationalError("database or disk is full"))
        return self.write(batch)

    async def found(self, now: Callable[[], float]) -> Any:
        """The files are copied as they are between two transactions, another group perhaps on its way."""
        self.copies += 1
        target = self.folder / f"copy{self.copies}"

        def as_they_are() -> None:
            target.mkdir()
            for name in ("canopy.db", "canopy.db-wal"):
                if (self.store.directory / name).exists():
                    shutil.copy(self.store.directory / name, target / name)

        await self.store._call(as_they_are)
        return await self.opened(target, now)

    async def left(self, now: Callable[[], float]) -> Any:
        return await self.opened(self.store.directory, now)

    async def opened(self, folder: Path, now: Callable[[], float]) -> Any:
        store = SqliteStore(folder, synchronous="off")
        await store.open(now)
        found = see(await store.load())
        await store.close()
        return found

    def remove(self) -> None:
        shutil.rmtree(self.folder)


@pytest.mark.parametrize(("steps", "most"), [(15, 150), (50, 50)])
def test_what_a_crash_leaves(steps: int, most: int) -> None:
    survive(OnDisk, steps, most)
