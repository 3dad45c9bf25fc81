"""A journal that is told anything, groups that end anywhere, a disk that fails: what a crash leaves is a prefix.

At any time the files are copied as they are, as if the process had been killed then. A store that is opened on the copy
gives back what the model had been told at one moment, which is not before the last number that was committed: whoever
had been let go by that number was right to go.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from broker.store import MemoryStore, StoreError
from broker.store.groups.group import Batch
from broker.store.sqlite import SqliteStore
from broker.store.sqlite.writer import Written
from tests.store.sqlite.place import see
from tests.store.sqlite.test_store import STEP_NAMES, Both
from tests.support.runs import examples

Value = TypeVar("Value")

TELLING = tuple(name for name in STEP_NAMES if name != "flush")


class Crashes(RuleBasedStateMachine):
    """Two sessions, some topics; the store on disk and the model are told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="canopy-crashes-"))
        self.copies = 0
        self.failing = 0
        # Groups end when the loop has a turn.
        self.store = SqliteStore(self.folder / "store", synchronous="off", commit_window=0.0, commit_bytes=5_000)
        self.model = MemoryStore()
        self.do(self.store.open(self.loop.time))
        self.do(self.model.open(self.loop.time))
        self.both = Both(self.store, self.model)
        # How much had been told → what the model had then.
        self.seen: dict[int, Any] = {}
        self.remember()
        writer = self.store._writer
        assert writer is not None
        self.writer, self.write = writer, writer.write
        writer.write = self.perhaps  # type: ignore[method-assign]

    def do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(work)

    def remember(self) -> None:
        commits = self.store.journal.commits
        assert commits is not None
        self.commits = commits
        self.seen[int(commits.told)] = see(self.do(self.model.load()))

    def perhaps(self, batch: Batch) -> Written:
        """In the writer's thread: the disk fails, so many times."""
        if self.failing:
            self.failing -= 1
            return Written(batch, sqlite3.OperationalError("database or disk is full"), 0.0)
        return self.write(batch)

    @rule(steps=st.lists(st.tuples(st.sampled_from(TELLING), st.sampled_from("cd"), st.integers(0, 3)), max_size=8))
    def tell(self, steps: list[tuple[str, str, int]]) -> None:
        """What happens in one call of the core."""
        for what, client_id, number in steps:
            self.both.tell(what, client_id, number)
        self.remember()

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        """The loop has turns: a group ends, another may come down."""
        for _ in range(turns):
            self.do(asyncio.sleep(0))

    @rule(times=st.integers(1, 3))
    def fail(self, times: int) -> None:
        self.failing = times

    @rule()
    def flush(self) -> None:
        """It raises when the disk fails, and all is there when it does not."""
        while True:
            try:
                self.do(self.store.flush())
                break
            except StoreError:
                assert self.commits.failed
        assert self.commits.committed == self.commits.told
        assert not self.commits.failed

    @rule()
    def crash(self) -> None:
        committed, told = int(self.commits.committed), int(self.commits.told)
        found = self.opened(self.copy())
        assert any(found == self.seen[number] for number in self.seen if committed <= number <= told)

    def copy(self) -> Path:
        """The files as they are between two transactions, another group perhaps on its way."""
        self.copies += 1
        target = self.folder / f"copy{self.copies}"

        def as_they_are() -> None:
            target.mkdir()
            for name in ("canopy.db", "canopy.db-wal"):
                if (self.store.directory / name).exists():
                    shutil.copy(self.store.directory / name, target / name)

        self.do(self.store._call(as_they_are))
        return target

    def opened(self, folder: Path) -> Any:
        store = SqliteStore(folder, synchronous="off")
        self.do(store.open(self.loop.time))
        found = see(self.do(store.load()))
        self.do(store.close())
        return found

    def teardown(self) -> None:
        """An orderly end leaves all of it."""
        try:
            self.flush()
            self.do(self.store.close())
            assert self.opened(self.store.directory) == self.seen[int(self.commits.told)]
        finally:
            if self.store._opened is not None:
                self.failing = 0
                self.do(self.store.close())
            self.loop.close()
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("steps", [15, 50])
def test_what_a_crash_leaves(steps: int) -> None:
    options: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(
        Crashes,
        settings=settings(max_examples=examples(150 if steps < 20 else 50), stateful_step_count=steps, **options),
    )
