"""A database whose commits fail, or of which nobody hears: what a crash leaves is a prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from canopy_mqtt.store.group_commit import committer
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.group_commit.records import Loaded
from canopy_mqtt.store.postgresql import reading
from canopy_mqtt.store.postgresql.database import Database
from tests.store.crashes import survive
from tests.store.postgresql.place import make
from tests.store.sqlite.place import see
from tests.support import postgresql


class InDatabase:
    """PostgreSQL; the connection breaks with the commit on its way, or with the answer."""

    turn = 0.001

    def __init__(self) -> None:
        self.name = postgresql.new_name()
        self.failures: list[bool] = []
        self.store = make(self.name, commit_window=0.0, commit_bytes=5_000, lease_timeout=3600.0)

    def hurt(self) -> None:
        self.database = self.store._database
        self.commit = self.database.commit
        self.database.commit = self.perhaps  # type: ignore[method-assign]

    async def perhaps(self) -> None:
        if not self.failures:
            await self.commit()
            return
        if self.failures.pop():
            await (await self.database.connection()).execute("COMMIT")
        raise ConnectionError("broken")

    async def found(self, now: Callable[[], float]) -> Any:
        """The tables at one moment."""
        other = Database(
            self.database.url, self.name, node="", synchronous="off", stall_timeout=0.0, lease_timeout=3600.0
        )
        loaded = Loaded(0.0, Principals())
        other.renewed = now()
        connection = await other.connection()
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await reading._read(other, loaded)
        await other.disconnect()
        return see(loaded.saved)

    async def left(self, now: Callable[[], float]) -> Any:
        return await self.found(now)

    def remove(self) -> None:
        """The server of all tests goes with them."""


@pytest.mark.parametrize(("steps", "most"), [(15, 50), pytest.param(50, 20, marks=pytest.mark.long)])
def test_what_a_crash_leaves(steps: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    postgresql.shared()
    monkeypatch.setattr(committer, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(committer, "LAST_RETRY", 0.002)
    survive(InDatabase, steps, most)
